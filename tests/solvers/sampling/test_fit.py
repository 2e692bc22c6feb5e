"""Least squares by sampling: the minimum that Gauss-Newton misses, within bounds, in every form that a problem may have."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import LeastSquaresProblem
from trajopt.result import status_name

TIMES = np.linspace(0.0, 3.0, 40)
TRUTH = np.array([1.5, 7.0])  # amplitude and angular frequency
SAMPLERS = (solvers.CMAES(), solvers.CEM())
each_sampler = pytest.mark.parametrize("solver", SAMPLERS, ids=lambda solver: solver.name)


def oscillation(x):
    """The cost has a minimum about every half turn over the whole recording that the frequency is off by."""
    t = jnp.asarray(TIMES, x.dtype)
    return x[0] * jnp.sin(x[1] * t) - x.dtype.type(TRUTH[0]) * jnp.sin(x.dtype.type(TRUTH[1]) * t)


def frequency(dtype=np.float64, **options) -> LeastSquaresProblem:
    bounds = {"lower": [0.0, 0.5], "upper": [4.0, 12.0]} | options
    return LeastSquaresProblem("frequency", oscillation, np.array([1.0, 3.0], dtype), **bounds)


@each_sampler
def test_the_minimum_that_gauss_newton_misses(solver):
    """From 3 rad/s Gauss-Newton is stationary where the cost is not zero; the draws find the data's own frequency."""
    wrong = solvers.solve(frequency(), solvers.GaussNewton())
    assert wrong.success and abs(wrong.x[1] - TRUTH[1]) > 1.0 and wrong.cost > 5.0
    for seed in range(3):
        found = solvers.solve(frequency(), solver, seed=seed)
        assert found.success and status_name(found.status) == "solved"
        assert (np.diff(found.trace["cost"]) <= 0.0).all()
        np.testing.assert_allclose(found.x, TRUTH, atol=1e-5)  # a spread of 1e-6 of deviations of 1 and 3
        right = solvers.solve(frequency(), solvers.GaussNewton(), x0=found)
        np.testing.assert_allclose(found.covariance, right.covariance, rtol=1e-4)


@each_sampler
@pytest.mark.parametrize("truth", [6.0, 7.0, 8.0])
def test_a_success_is_a_minimum_and_no_lucky_draw(solver, truth):
    """The best draw may fall near one minimum while the search collapses in another."""
    t = np.linspace(0.0, 2.0, 9)
    problem = LeastSquaresProblem("pitch", lambda x: jnp.sin(x * t) - np.sin(truth * t), np.array([3.0]), lower=0.0, upper=9.0)
    found = [solvers.solve(problem, solver, seed=seed) for seed in range(6)]
    for solution in found:
        held = solution.x[0] in (0.0, 9.0)
        assert solution.success and (held or solution.residuals["removable_residual"] < 1e-4)
    assert min(solution.cost for solution in found) < 1e-9


@each_sampler
def test_single_precision_and_an_active_bound(solver):
    """With the amplitude held below the true one, the best frequency stays near its own."""
    found = solvers.solve(frequency(np.float32), solver)
    assert found.success and found.x.dtype == np.float32
    np.testing.assert_allclose(found.x, TRUTH, rtol=1e-4)
    held = solvers.solve(frequency(upper=[1.25, 12.0]), solver)
    assert held.success and held.x[0] == 1.25 and abs(held.x[1] - TRUTH[1]) < 0.05
    assert held.residuals["bound_violation"] == 0.0 and held.covariance[0, 0] == 0.0


def test_the_same_seed_and_any_chunk_give_the_same_draws():
    """For five generations, over which rounding does not grow; another seed gives others."""
    first, *others = (
        solvers.solve(frequency(), solvers.CMAES(chunk=chunk), seed=5, max_iterations=5) for chunk in (None, 5, 1)
    )
    for solution in others:
        np.testing.assert_allclose(solution.trace["cost"], first.trace["cost"], rtol=1e-9)
        np.testing.assert_allclose(solution.trace["step_size"], first.trace["step_size"], rtol=1e-9)
    other = solvers.solve(frequency(), solvers.CMAES(), seed=6, max_iterations=5)
    assert (other.trace["step_size"][1:] != first.trace["step_size"][1:]).all()


def test_an_unbounded_problem_is_searched_about_its_guess():
    """Deviations of the size of the guess, and of `scale` where it is zero: a kilometre and a micrometre are both found."""
    size = np.array([1e3, 1e-6, 1e-6])
    problem = LeastSquaresProblem(
        "sizes", lambda x: (x / size - jnp.array([3.0, -2.0, 5.0])), np.array([1e3, 1e-6, 0.0]), scale=[1.0, 1e-6, 1e-6]
    )
    solution = solvers.solve(problem, solvers.CMAES())
    assert solution.success
    np.testing.assert_allclose(solution.x / size, [3.0, -2.0, 5.0], atol=1e-5)


def test_what_the_residual_does_not_determine_is_said():
    problem = LeastSquaresProblem("sum", lambda x: jnp.sum(x, keepdims=True) - 1.0, np.zeros(2))
    solution = solvers.solve(problem, solvers.CMAES())
    assert solution.success and solution.covariance is None
    assert "1 directions of x are not determined" in solution.message


def test_points_on_a_manifold():
    """An angle as a point on the circle, x (nx = 2) and its tangent (n = 1)."""

    def integrate(x, dx):
        c, s = jnp.cos(dx[0]), jnp.sin(dx[0])
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])

    problem = LeastSquaresProblem(
        "angle", lambda x: x - jnp.array([0.6, -0.8]), np.array([1.0, 0.0]), integrate=integrate, tangent_size=1
    )
    solution = solvers.solve(problem, solvers.CMAES())
    assert solution.success
    np.testing.assert_allclose(solution.x, [0.6, -0.8], atol=1e-5)


def test_draws_that_are_not_finite_do_not_count():
    """The logarithm of what is negative: half of the first draws."""
    problem = LeastSquaresProblem("log", lambda x: jnp.log(x) - 2.0, np.array([0.5]))
    solution = solvers.solve(problem, solvers.CMAES())
    assert solution.success and solution.x[0] == pytest.approx(np.exp(2.0), rel=1e-5)


def test_a_residual_of_the_host_has_differences():
    """A function of NumPy has no exact derivative: refused before it is searched, with the remedy."""

    def called(x):
        return jax.pure_callback(lambda x: np.cos(x) - 0.5, x, x, vmap_method="sequential")

    problem = LeastSquaresProblem("host", called, np.ones(1), lower=0.0, upper=3.0)
    with pytest.raises(OptionError, match="CMAES: 'host' has no derivative .*; give gradient='finite-difference'"):
        solvers.solve(problem, solvers.CMAES())
    solution = solvers.solve(problem, solvers.CMAES(), gradient="finite-difference")
    assert solution.success and solution.x[0] == pytest.approx(np.pi / 3, abs=1e-5)
    assert solution.covariance[0, 0] == pytest.approx(4 / 3, rel=1e-4)  # 1 / sin^2


def test_several_starts():
    outcomes = solvers.solve_many(frequency(), solvers.CMAES(), starts=[np.array([1.0, w]) for w in (2.0, 11.0)], seeds=[1])
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.solution.x, TRUTH, atol=1e-5)


@pytest.mark.parametrize(
    ("solver", "error", "match"),
    [
        (solvers.CMAES(standard_deviation=np.ones(3)), ShapeError, r"CMAES: standard_deviation has shape \(3,\); expected a n"),
        (solvers.CEM(standard_deviation=-1.0), OptionError, "CEM: standard_deviation is -1.0; it must be positive"),
        (solvers.MPPI(), OptionError, "MPPI solves an OptimalControlProblem; 'frequency' is a LeastSquaresProblem; use CMAES"),
    ],
)
def test_what_cannot_be_is_refused_before_compiling(solver, error, match, monkeypatch):
    monkeypatch.setattr(problems.oracle.LeastSquaresOracle, "call", functools.partial(pytest.fail, "compiled"))
    with pytest.raises(error, match=match):
        solvers.solve(frequency(), solver)


def test_a_library_problem_as_gauss_newton_solves_it():
    problem = problems.get("friction-identification")
    reference = solvers.solve(problem)
    found = solvers.solve(problem, solvers.get("CMAES"))
    assert found.success and found.cost == pytest.approx(reference.cost, rel=1e-6)
    np.testing.assert_allclose(found.x, reference.x, atol=0.01 * np.sqrt(np.diag(reference.covariance)).min())
    np.testing.assert_allclose(found.covariance, reference.covariance, rtol=1e-2)


def test_deviations_of_its_own():
    """A search that begins narrow about a good guess needs fewer generations."""
    problem = frequency()
    near = dataclasses.replace(solvers.CMAES(), standard_deviation=[0.01, 0.01])
    wide, narrow = (solvers.solve(problem, solver, x0=TRUTH + 0.005) for solver in (solvers.CMAES(), near))
    assert wide.success and narrow.success and narrow.iterations < wide.iterations
    np.testing.assert_allclose(narrow.x, TRUTH, atol=1e-7)
