"""What every solver of optimal control problems must do, whatever its algorithm.

All of them get the same three problems; `ACCURACY` says how near the known optimum each kind must come.
"""

import functools
import time

import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import double_integrator

from trajopt import solvers
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.problems import LeastSquaresProblem, OptimalControlProblem
from trajopt.result import status_name
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.sampling.search import SamplingSolver

STEPS = 8
CONTROL = solvers.names(OptimalControlProblem)
SAMPLING = tuple(name for name in CONTROL if isinstance(solvers.get(name), SamplingSolver))
SOLVES = tuple(name for name in CONTROL if name not in SAMPLING)  # to a stationary point, not to a spread
NEWTON = tuple(name for name in SOLVES if name != "Hybrid")
ACCURACY = dict.fromkeys(SOLVES, 1e-6) | dict.fromkeys(SAMPLING, 1e-2)
each_solver = pytest.mark.parametrize("name", CONTROL)
ONE_OF_A_KIND = ("iLQR", "CEM", "MultipleShooting")  # the quick tests; the others follow the same loop
one_of_a_kind = pytest.mark.parametrize(
    "name", [name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.slow) for name in CONTROL]
)


def reach(**changes) -> OptimalControlProblem:
    """Unit distance in unit time, missed at a price; a bounded linear-quadratic problem whose optimum keeps clear of bounds."""
    options = {
        "terminal_equality": None,
        "terminal_residual": lambda x: 5.0 * (x - jnp.array([1.0, 0.0])),
        "control_lower": -20.0,
        "control_upper": 20.0,
    }
    return double_integrator(STEPS, **options | changes)


@functools.cache
def least_cost() -> float:
    """The optimum of `reach` from the dense least-squares problem in the controls."""
    problem = reach()
    zero = np.zeros((STEPS, 1))

    def residual(us):
        xs = [np.zeros(2)]
        for u in us:
            xs.append(np.asarray(problem.dynamics(jnp.asarray(xs[-1]), jnp.asarray(u), 0.0)))
        return np.concatenate([np.sqrt(2.0 / STEPS) * us.ravel(), 5.0 * (xs[-1] - [1.0, 0.0])])

    r = residual(zero)
    J = np.stack([residual(zero + np.eye(STEPS)[:, [k]]) - r for k in range(STEPS)], 1)
    return 0.5 * float(np.sum((r + J @ np.linalg.lstsq(J, -r, rcond=None)[0]) ** 2))


def solve(name: str, problem: OptimalControlProblem, **options) -> Solution:
    return solvers.solve(problem, solvers.get(name), **options)


def test_every_registered_solver_is_in_a_contract_suite():
    """`test_contract` has those of least squares, this file those of optimal control."""
    assert {*CONTROL, *solvers.names(LeastSquaresProblem)} == set(solvers.names())
    assert "GaussNewton" in CONTROL and "LBFGS" in solvers.names(LeastSquaresProblem)


@each_solver
def test_same_seed_same_result_near_the_optimum_and_a_warm_start_helps(name):
    first = solve(name, reach(), seed=1)
    again = solve(name, reach(), seed=1)
    np.testing.assert_array_equal(first.us, again.us)
    for key in ("cost", "violation", "gradient_norm", "step_size", "evaluations"):
        np.testing.assert_array_equal(first.trace[key], again.trace[key])
    assert first.cost == pytest.approx(least_cost(), rel=ACCURACY[name]) and first.cost >= least_cost() * (1 - 1e-9)
    assert np.abs(first.us).max() < 20.0
    assert first.residuals["defect"] <= 1e-6
    if name in SOLVES:
        assert first.success and status_name(first.status) == "solved"
    warm = solve(name, reach(), x0=first, seed=1)
    assert warm.initial_cost == pytest.approx(first.cost, rel=1e-9)
    assert warm.cost <= first.cost * (1 + 1e-9) and (name in SAMPLING or warm.iterations <= first.iterations)
    if name in NEWTON and name != "MultipleShooting":  # an interior point method has its barrier to lower again
        assert warm.iterations <= 1


@one_of_a_kind
def test_dynamics_that_are_not_finite_name_the_step(name):
    problem = OptimalControlProblem(
        "nan", lambda x, u, t: x + u + jnp.sqrt(0.35 - t), 6, np.zeros(1), u0=np.zeros(1), dt=0.1,
        stage_residual=lambda x, u, t: u, control_lower=-1.0, control_upper=1.0,
    )  # fmt: skip
    solution = solve(name, problem)
    assert status_name(solution.status) == "non_finite" and not solution.success
    assert "step 4" in solution.message


@each_solver
def test_contradictory_constraints_are_infeasible(name):
    """Unit distance in unit time from rest to rest needs a force above 4."""
    weak = double_integrator(STEPS, control_lower=-3.0, control_upper=3.0)
    solution = solve(name, weak)
    assert status_name(solution.status) == "infeasible" and not solution.success
    # Full thrust and full brake go 3/4 of the way; the violation returned is near the least possible, not that of rest.
    missed = max(solution.residuals["terminal_equality"], solution.residuals["defect"])
    assert 1e-2 < missed < 0.5 and "terminal_equality is" in solution.message
    assert name != "iLQR" or (0.1 < missed < 0.3 and solution.iterations < 200)
    assert ("IPOPT: 2: " in solution.message) == (name == "MultipleShooting")


@one_of_a_kind
def test_interruption_and_budgets_return_the_best_point_so_far(name, tmp_path):
    problem = double_integrator(STEPS, control_lower=-20.0, control_upper=20.0, u0=np.ones(1))

    def interrupt(row):
        if row["iteration"] == 1:
            raise KeyboardInterrupt

    part = solve(name, problem, callback=interrupt, checkpoint=tmp_path / "checkpoint.npz")
    assert (status_name(part.status), part.iterations) == ("interrupted", 1)
    assert part.violation == part.trace["violation"].min() and np.isfinite(part.us).all()
    assert (tmp_path / "checkpoint.npz").exists()
    none = solve(name, problem, time_budget=0.0)
    assert (status_name(none.status), none.iterations) == ("time_budget", 0)
    slow = solve(name, problem, time_budget=0.2, callback=lambda row: time.sleep(0.15))
    assert status_name(slow.status) in ("time_budget", "solved") and slow.iterations <= 2
    assert slow.violation <= none.violation


def forbidden(*arguments):
    raise AssertionError("compiled")


@each_solver
def test_bad_guesses_are_refused_before_compiling(name, monkeypatch):
    problem = reach()
    monkeypatch.setattr(OptimalControlProblem, "compile", forbidden)
    for x0, error, message in (
        (np.zeros((STEPS + 1, 1)), ShapeError, r"x0.us has shape \(9, 1\); expected \(8, 1\)"),
        (np.full((STEPS, 1), np.nan), NonFiniteError, "x0.us has non-finite entries"),
    ):
        with pytest.raises(error, match=message):
            solve(name, problem, x0=x0)
    with pytest.raises(OptionError, match="max_iterations is -1"):
        solvers.solve(problem, solvers.get(name), max_iterations=-1)
