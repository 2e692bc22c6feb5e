"""What every sampling solver must do: known optima, bounds, seeds, resuming, failures named, parameters and initial states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import double_integrator
from least_squares_cases import linear

from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem
from trajopt.result import status_name
from trajopt.solvers import CEM, CMAES, MPPI, StochasticSearch, get, solve

INDEPENDENT = {
    f"{kind.__name__}, independent": functools.partial(kind, diagonal=True) for kind in (CEM, MPPI, CMAES, StochasticSearch)
}
ALL = {"CEM": CEM, "MPPI": MPPI, "CMAES": CMAES, "StochasticSearch": StochasticSearch} | INDEPENDENT
each_solver = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
# One problem object and one population for all: the rollouts are compiled once.
REACH = double_integrator(20, control_lower=-8.0, control_upper=8.0)
SMALL = {"population": 64}


@each_solver
def test_minimum_effort_with_a_terminal_constraint(make):
    solution = solve(REACH, make(**SMALL))
    assert solution.success and status_name(solution.status) == "solved"
    # 0.1 % of the optimum, 1 % for independent deviations that six elites refit. The terminal rows are linear, so that the
    # ensemble step meets them to rounding.
    optimum = 12 / (1 - 1 / 400)
    assert optimum * (1 - 1e-9) <= solution.cost <= (1.01 if make is INDEPENDENT["CEM, independent"] else 1.001) * optimum
    assert solution.residuals["terminal_equality"] < 1e-9 and solution.residuals["spread"] <= 1e-3
    assert np.abs(solution.us).max() <= 8.0
    # The multiplier of the distance is -d(cost)/d(distance) = -2 cost; it is an average over noisy generations.
    assert solution.multipliers["terminal"][0] == pytest.approx(-2 * optimum, rel=0.05)
    assert solution.trace["cost"].size == solution.iterations + 1 and np.all(np.diff(solution.trace["evaluations"]) > 0)
    assert solution.cost == pytest.approx(np.sum(solution.us**2) / 20, rel=1e-9)


@each_solver
def test_seeds_interruption_and_budget(make, tmp_path):
    def interrupt(row):
        if row["iteration"] == 3:
            raise KeyboardInterrupt

    path, solver = tmp_path / "checkpoint.npz", make(**SMALL)
    whole = solve(REACH, solver, seed=5, max_iterations=6)
    part = solve(REACH, solver, seed=5, callback=interrupt, checkpoint=path)
    assert (status_name(part.status), part.iterations, part.success) == ("interrupted", 3, False)
    rest = solve(REACH, solver, seed=5, resume=path, max_iterations=3)
    np.testing.assert_array_equal(rest.us, whole.us)
    for key in ("cost", "violation", "gradient_norm", "evaluations"):
        np.testing.assert_array_equal(rest.trace[key], whole.trace[key])
    other = solve(REACH, solver, seed=6, max_iterations=6)
    assert not np.array_equal(other.us, whole.us)
    none = solve(REACH, solver, time_budget=0.0)
    assert (status_name(none.status), none.iterations) == ("time_budget", 0)


def test_a_generation_ends_when_time_is_up():
    """After three batches of eight: the best of 24 motions counts, the distribution waits for a whole generation."""
    solver, oracle = CEM(population=64, chunk=8), REACH.compile()
    state = solver.init(oracle, REACH.initial_point, jax.random.key(1))
    before, asked = oracle.evaluations, iter([False, False, True])
    oracle.out_of_time = lambda: next(asked)
    cut = solver.step(oracle, state)
    assert oracle.evaluations - before == 24 and cut.generation == state.generation
    assert cut.distribution is state.distribution and cut.better_than(state, REACH.violation_tolerance)
    motion = REACH.check_point(cut.x)
    np.testing.assert_allclose(REACH.cost(motion), cut.cost, rtol=1e-12)
    oracle.out_of_time = lambda: False
    whole = solver.step(oracle, cut)
    assert oracle.evaluations - before == 24 + 66 and not cut.better_than(whole, REACH.violation_tolerance)


@each_solver
def test_motions_that_are_not_finite_are_ranked_last(make):
    """log(x) needs x > 0; the guess leaves that at once, and so do most of the draws about it."""
    problem = OptimalControlProblem(
        "logarithm", lambda x, u, t: u, 4, np.array([1.0]), u0=-0.1 * np.ones(1),
        stage_cost=lambda x, u, t: (jnp.log(x[0]) - 1.0) ** 2, terminal_cost=lambda x: (jnp.log(x[0]) - 1.0) ** 2,
        control_lower=-1.0, control_upper=4.0,
    )  # fmt: skip
    solution = solve(problem, make(tolerance=1e-2, **SMALL), seed=1)
    assert solution.success and np.isfinite(solution.initial_cost)
    np.testing.assert_allclose(solution.us, np.e, atol=0.05)


@pytest.mark.parametrize("chunk", [None, 1])
def test_only_motions_that_are_not_finite(chunk):
    problem = OptimalControlProblem(
        "nan", lambda x, u, t: x + u + jnp.sqrt(0.35 - t), 6, np.zeros(1), u0=np.zeros(1), dt=0.1,
        stage_cost=lambda x, u, t: u[0] ** 2, control_lower=-1.0, control_upper=1.0,
    )  # fmt: skip
    solution = solve(problem, CEM(chunk=chunk, **SMALL))
    assert status_name(solution.status) == "non_finite" and not solution.success
    assert "at iteration 0: every motion drawn is; that of the mean is non-finite at step 4" in solution.message


@each_solver
def test_parameters_and_a_free_initial_state(make):
    """Linear in [u, p, x_0], all costs squares: the minimum is a least-squares solution. The bound on p is active."""
    T = 3
    problem = OptimalControlProblem(
        "fit", lambda x, u, t, p: 0.9 * x + u + p, T, np.zeros(1), u0=np.zeros(1),
        stage_residual=lambda x, u, t, p: jnp.concatenate([x - 1.0, 0.5 * u]), terminal_residual=lambda x, p: 2.0 * (x - 2.0),
        initial_residual=lambda x, p: x + 3.0, parameter_residual=lambda p: 0.3 * (p - 1.0), free_initial_state=True,
        control_lower=-4.0, control_upper=4.0, parameters=[0.0], parameter_lower=-0.5, parameter_upper=0.2,
    )  # fmt: skip
    p = 0.2
    # Rows of x_t in [x_0, u_0, u_1, u_2], and the constant that p = 0.2 leaves.
    states = [(np.eye(4)[0], 0.0)]
    for t in range(T):
        states.append((0.9 * states[-1][0] + np.eye(4)[1 + t], 0.9 * states[-1][1] + p))
    A = [row for row, _ in states[:T]] + [0.5 * np.eye(4)[1 + t] for t in range(T)] + [2 * states[T][0], np.eye(4)[0]]
    b = [1.0 - c for _, c in states[:T]] + [0.0] * T + [2 * (2 - states[T][1]), -3.0]
    z = np.linalg.lstsq(np.array(A), np.array(b), rcond=None)[0]
    solution = solve(problem, make(initial_state_deviation=1.0, population=200))
    assert solution.success
    np.testing.assert_allclose([solution.xs[0, 0], *solution.us[:, 0]], z, atol=0.03)
    np.testing.assert_allclose(solution.parameters, [p], atol=1e-3)
    assert solution.residuals["bound_violation"] == 0.0


def test_a_bound_on_a_state():
    """Speed below V = 1.2: ramps of t = 3/2 (1 - 1/V) with a force that falls linearly, then coasting; 8 V^2 / (3 t)."""
    problem = double_integrator(20, control_lower=-12.0, control_upper=12.0, state_upper=np.array([np.inf, 1.2]))
    solution = solve(problem, CEM(parametrisation="piecewise-constant", knots=20, population=200))
    assert solution.success and solution.xs[:, 1].max() <= 1.2 + 1e-6
    # Forces held over twentieths cost 0.6 % more than continuous ones; the rest is what the search leaves.
    assert 15.36 <= solution.cost <= 1.05 * 15.36


def test_bad_options_are_refused():
    for make, match in (
        (lambda: CEM(population=1), "CEM: population is 1; it must be at least 2"),
        (lambda: CEM(parametrisation="splines"), "parametrisation is 'splines'"),
        (lambda: CEM(elites=0.0), "elites is 0.0; it must be positive and at most 1"),
        (lambda: CEM(momentum=1.0), "momentum is 1.0"),
        (lambda: MPPI(temperature=0.0), "temperature is 0.0; it must be positive"),
        (lambda: MPPI(smoothing=1.0), "smoothing is 1.0"),
        (lambda: MPPI(smoothing=0.5, diagonal=False), "smoothing is 0.5 and diagonal False.*leave one of them out"),
        (lambda: MPPI(decay=0.0), "decay is 0.0"),
        (lambda: StochasticSearch(shape="exp"), "shape is 'exp'"),
        (lambda: StochasticSearch(step_length=2.0), "step_length is 2.0"),
        (lambda: CMAES(population=3), "population is 3; it must be at least 4"),
        (lambda: CMAES(penalty_factor=1.0), "penalty_factor is 1.0; it must be above 1"),
        (lambda: solve(linear()[0], MPPI()), "MPPI solves an OptimalControlProblem; 'linear' is a LeastSquaresProblem"),
        (lambda: solve(double_integrator(5), CMAES()), "give standard_deviation"),
    ):
        with pytest.raises(OptionError, match=match):
            make()
    assert get("cma-es", knots=3) == CMAES(knots=3) and get("stochastic-search") == StochasticSearch()
