"""Many samples in one program against one solve for each; statuses, isolation and refusals by sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from compilations import compilations
from control_cases import double_integrator, pendulum

from trajopt import solvers
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.problems import LeastSquaresProblem, OptimalControlProblem
from trajopt.solvers import LBFGS, GaussNewton, iLQR, solve, solve_batch

TIMES, SIGMA, TRUTH = np.linspace(0.0, 3.0, 20), 0.05, np.array([1.5, 0.8, 0.3])
START = np.array([1.0, 0.1, 0.0])


def decay(x):
    return x[0] * jnp.exp(-x[1] * jnp.asarray(TIMES)) + x[2]


def residual(x, y):
    return (decay(x) - y) / SIGMA


RECORDINGS = np.asarray(decay(jnp.asarray(TRUTH))) + SIGMA * np.random.default_rng(0).normal(size=(200, TIMES.size))


def fit(**changes) -> LeastSquaresProblem:
    return LeastSquaresProblem("decay", residual, START, **{"data": RECORDINGS[0]} | changes)


def test_each_estimate_is_that_of_gauss_newton_and_the_regions_cover_the_truth():
    """95 % ellipsoids over 200 data sets: binomial band of 99.9 %, which curvature moves by less than its width."""
    problem = fit()
    found = solve_batch(problem, GaussNewton(), data=RECORDINGS)
    assert found.success.all() and set(found.statuses) == {"solved"} and len(found) == 200
    for k in (0, 7):
        single = solve(problem.replace(data=RECORDINGS[k]), GaussNewton())
        np.testing.assert_allclose(found.x[k], single.x, rtol=1e-8)
        np.testing.assert_allclose(found.covariance[k], single.covariance, rtol=1e-6)
        assert found.cost[k] == pytest.approx(single.cost, rel=1e-12) and found.iterations[k] == single.iterations
    error = found.x - TRUTH
    square = np.einsum("ri,ri->r", error, np.linalg.solve(found.covariance, error[..., None])[..., 0])
    low, high = scipy.stats.binom(200, 0.95).ppf([0.0005, 0.9995])
    assert low <= np.sum(square < scipy.stats.chi2(3).ppf(0.95)) <= high


BOUNDED = {"upper": np.array([1.45, np.inf, np.inf])}
METHODS = [
    (GaussNewton(), {}, 1e-8),
    (GaussNewton(), BOUNDED, 1e-8),
    (GaussNewton(), {"loss": "cauchy", "f_scale": 2.385}, 1e-6),
    (LBFGS(), {}, 1e-6),
]


@pytest.mark.parametrize("solver, changes, accuracy", METHODS, ids=lambda value: getattr(value, "name", ""))
def test_every_method_ends_where_the_single_solve_ends(solver, changes, accuracy):
    problem = fit(**changes)
    guesses = START + np.random.default_rng(1).uniform(0.0, 0.3, size=(6, 3))
    found = solve_batch(problem, solver, guesses=guesses)
    single = solve(problem, GaussNewton())
    assert found.success.all(), found.describe()
    np.testing.assert_allclose(found.x, np.tile(single.x, (6, 1)), rtol=accuracy, atol=accuracy)
    assert np.all(found.violation == 0.0)


def test_a_residual_that_is_not_determined_takes_the_step_of_least_norm():
    problem = LeastSquaresProblem("sum", lambda x, y: jnp.stack([x[0] + x[1] - y[0]]), np.zeros(2), data=np.ones(1))
    found = solve_batch(problem, GaussNewton(), data=np.array([[1.0], [4.0]]))
    np.testing.assert_allclose(found.x, [[0.5, 0.5], [2.0, 2.0]], atol=1e-12)
    assert np.isnan(found.covariance).all()


def test_samples_that_are_not_finite_or_run_out_keep_to_themselves():
    def root(x, y):
        return jnp.sqrt(x) - y

    problem = LeastSquaresProblem("root", root, np.ones(1), data=np.ones(1))
    guesses = np.array([[1.0], [-1.0], [0.5]])
    found = solve_batch(problem, GaussNewton(), guesses=guesses, data=np.full((3, 1), 2.0))
    assert found.statuses == ("solved", "non_finite", "solved")
    assert found.success.tolist() == [True, False, True] and found.best in (0, 2)
    np.testing.assert_allclose(found.x[[0, 2]], 4.0)
    short = solve_batch(problem, GaussNewton(), guesses=guesses, max_iterations=1)
    assert short.statuses[2] == "max_iterations" and short.iterations[2] == 1


def reach(**changes) -> OptimalControlProblem:
    return double_integrator(8, control_lower=-20.0, control_upper=20.0, **changes)


def test_motions_are_those_of_the_single_solves():
    """A constrained problem from several initial states."""
    problem, x0 = reach(), np.array([[0.0, 0.0], [0.2, -0.5], [-0.3, 1.0]])
    found = solve_batch(problem, iLQR(), x0=x0)
    assert found.success.all() and np.all(found.violation < 1e-6)
    for k in range(3):
        single = solve(problem.replace(x0=x0[k]), iLQR())
        assert found.cost[k] == pytest.approx(single.cost, rel=1e-9) and found.iterations[k] == single.iterations
        np.testing.assert_allclose(found.us[k], single.us, atol=1e-7)
        np.testing.assert_allclose(found.gains[k], single.gains, atol=1e-6)


def test_samples_begin_where_the_single_solves_begin():
    """At states that stay, in multiple shooting, where the guess leads to states that cost far more; the other does not."""

    def unstable(x, u, t):
        return 1.5 * x + u

    problem = OptimalControlProblem(
        "unstable", unstable, 12, np.ones(1), u0=np.zeros(1), stage_residual=lambda x, u, t: jnp.concatenate([x, u])
    )
    to_zero = np.array([-1.5, *np.zeros(11)])
    guesses = np.stack([np.zeros(12), to_zero])[..., None]
    found = solve_batch(problem, iLQR(), guesses=guesses)
    assert found.success.all()
    for k in range(2):
        single = solve(problem, iLQR(), x0=guesses[k])
        assert found.iterations[k] == single.iterations and found.initial_cost[k] == single.initial_cost
    assert found.initial_cost[0] == 6.0  # of staying at 1, not of 1.5^t
    assert found.initial_cost[1] < found.initial_cost[0]


@pytest.mark.slow
def test_swing_ups_are_those_of_the_single_solves():
    """Which optimum is found depends on the guess."""
    problem = pendulum(40)
    guesses = np.random.default_rng(0).normal(size=(3, 40, 1))
    found = solve_batch(problem, iLQR(), guesses=guesses)
    for k in range(3):
        single = solve(problem, iLQR(), x0=guesses[k])
        assert found.success[k] == single.success and found.cost[k] == pytest.approx(single.cost, rel=1e-7)
    again = solve(problem, iLQR(), x0=found.point(found.best))
    assert again.iterations == 0 and again.success


def test_motions_that_cannot_be_done_or_are_not_finite_have_their_own_status():
    def dynamics(x, u, t):
        return jnp.stack([x[0] + 0.1 * x[1], jnp.sqrt(1.0 - x[0]) + u[0]])

    problem = OptimalControlProblem(
        "root", dynamics, 8, np.zeros(2), u0=np.zeros(1), stage_residual=lambda x, u, t: jnp.concatenate([x, u])
    )
    found = solve_batch(problem, iLQR(), x0=np.array([[0.0, 0.0], [1.5, 0.0], [-0.5, 0.0]]))
    assert found.statuses == ("solved", "non_finite", "solved")
    assert found.cost[0] == pytest.approx(solve(problem, iLQR()).cost, rel=1e-9)


@pytest.mark.slow
def test_motions_that_cannot_be_done_leave_the_others_alone():
    # From rest a metre in a second needs more than 3; from on the way it does not.
    weak = double_integrator(8, control_lower=-3.0, control_upper=3.0)
    mixed = solve_batch(weak, iLQR(), x0=np.array([[0.0, 0.0], [0.9, 0.1]]))
    assert mixed.statuses == ("infeasible", "solved") and mixed.success.tolist() == [False, True]
    assert "1 infeasible" in mixed.describe()


def test_other_numbers_compile_nothing():
    problem = fit()
    first = solve_batch(problem, GaussNewton(), data=RECORDINGS[:4])
    again = solve_batch(problem.replace(data=RECORDINGS[9]), GaussNewton(), data=RECORDINGS[4:8])
    assert first.compile_time_s > 0 == again.compile_time_s


REFUSED = [
    (
        lambda: solve_batch(fit(), GaussNewton(), guesses=np.zeros((2, 4))),
        ShapeError,
        r"sample 0: .*guesses has shape \(4,\)",
    ),
    (
        lambda: solve_batch(fit(), GaussNewton(), data=np.zeros((3, 19))),
        ShapeError,
        r"sample 0: .*data has float64\[19\]",
    ),
    (
        lambda: solve_batch(fit(), GaussNewton(), data=np.where(np.arange(3)[:, None] == 2, np.nan, RECORDINGS[:3])),
        NonFiniteError,
        r"sample 2: problem 'decay': data has a non-finite entry at \(0,\)",
    ),
    (
        lambda: solve_batch(fit(), GaussNewton(), guesses=np.zeros((2, 3)), data=RECORDINGS[:3]),
        ShapeError,
        r"first axes have lengths 2 \(guesses\), 3 \(data\)",
    ),
    (lambda: solve_batch(fit(), GaussNewton()), OptionError, "nothing differs between the samples of 'decay'"),
    (lambda: solve_batch(fit(), GaussNewton(), x0=np.zeros((2, 3))), OptionError, "x0 is not for LeastSquaresProblem"),
    (lambda: solve_batch(fit(), iLQR(), data=RECORDINGS), OptionError, "iLQR solves an OptimalControlProblem"),
    (lambda: solve_batch(fit(), solvers.GradientDescent(), data=RECORDINGS), OptionError, "does not run in batches"),
    (lambda: solve_batch(fit(**BOUNDED), LBFGS(), data=RECORDINGS), OptionError, "'decay' has bounds"),
    (
        lambda: solve_batch(fit(), GaussNewton(), data=RECORDINGS, max_iterations=-1),
        OptionError,
        "max_iterations is -1",
    ),
    (lambda: solve_batch(reach(), iLQR(), x0=np.array([[0.0, 0.0], [np.nan, 0.0]])), NonFiniteError, "sample 1: .*x0"),
    (
        lambda: solve_batch(reach(), solvers.CEM(), x0=np.zeros((2, 2))),
        OptionError,
        "CEM does not solve .* use iLQR or DDP",
    ),
]


@pytest.mark.parametrize("make, error, message", REFUSED, ids=[message[:30] for _, _, message in REFUSED])
def test_what_is_wrong_is_named_before_anything_is_compiled(make, error, message):
    with compilations() as count, pytest.raises(error, match=message):
        make()
    assert not {"_solved", "_judged", "_examined"} & count.names


def test_single_precision():
    problem = LeastSquaresProblem(
        "decay", lambda x, y: (x[0] * jnp.exp(-x[1] * jnp.asarray(TIMES, jnp.float32)) - y), np.ones(2, np.float32),
        data=np.ones(20, np.float32),
    )  # fmt: skip
    data = np.stack([a * np.exp(-0.5 * TIMES) for a in (1.0, 2.0)]).astype(np.float32)
    found = solve_batch(problem, GaussNewton(), data=data)
    assert found.success.all() and found.x.dtype == np.float32
    np.testing.assert_allclose(found.x, [[1.0, 0.5], [2.0, 0.5]], rtol=1e-4)
    assert jax.config.jax_numpy_dtype_promotion == "strict"
