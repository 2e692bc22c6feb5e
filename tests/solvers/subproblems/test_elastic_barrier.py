"""The elastic barrier: its minimiser, its derivatives, its limits, and problems solved with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from trajopt import problems
from trajopt.errors import OptionError, UnknownNameError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.solvers import DDP, iLQR, solve, solve_batch
from trajopt.solvers.registry import chosen_solver
from trajopt.solvers.subproblems import augmented_lagrangian as al
from trajopt.solvers.subproblems import elastic_barrier as eb

CS = np.array([-30.0, -1.0, -1e-6, 0.0, 1e-6, 0.3, 40.0])
ALL = np.ones(CS.size, bool)


def pairs(y):
    """Without multipliers that are kept."""
    return jnp.stack([y, jnp.zeros_like(y)], -1)


@pytest.mark.parametrize(("mu", "nu"), [(0.1, 10.0), (1e-8, 10.0), (1e-8, 1e6), (5.0, 0.1)])
def test_slacks_are_on_the_central_path(mu, nu):
    z, s, e = (np.asarray(a) for a in eb.central(np.full(CS.size, mu), np.full(CS.size, nu), CS))
    assert (s > 0).all() and (e > 0).all() and (z > 0).all() and (z <= nu).all()
    np.testing.assert_allclose(s * z, mu, rtol=1e-12)
    np.testing.assert_allclose(e - s, CS, rtol=1e-12, atol=1e-12 * np.maximum(e, s).max())
    cancels = e * nu > 1e3 * mu * (1 + z / nu)  # in nu - z, where z is nu but for rounding
    assert not cancels.all()
    np.testing.assert_allclose((e * (nu - z))[~cancels], mu, rtol=1e-9)


def test_the_term_is_the_least_over_the_slacks():
    mu, nu = 0.3, 4.0
    for c in (-2.0, 0.1, 1.5):
        def value(log_s, c=c):
            s = np.exp(log_s)
            return np.inf if c + s <= 0 else nu * (c + s) - mu * np.log(s) - mu * np.log(c + s)

        low = np.log(max(-c, 0.0) + 1e-12)
        found = scipy.optimize.minimize_scalar(value, bounds=(low, 5.0), method="bounded", options={"xatol": 1e-10})
        offset = -2 * mu * np.log(nu / mu)
        term = eb.term(pairs(jnp.full(1, mu)), jnp.full(1, nu), jnp.full(1, c), np.ones(1, bool))
        np.testing.assert_allclose(term, found.fun + offset, rtol=1e-8)


@pytest.mark.parametrize("mu", [0.1, 1e-8])
def test_derivatives(mu):
    y, w = pairs(jnp.full(CS.size, mu)), jnp.full(CS.size, 10.0)
    slope = jax.grad(lambda c: eb.term(y, w, c, ALL))
    np.testing.assert_allclose(eb.estimate(y, w, CS, ALL), slope(jnp.asarray(CS)), rtol=1e-9, atol=1e-14)
    bend = jnp.diag(jax.jacfwd(lambda c: eb.estimate(y, w, c, ALL))(jnp.asarray(CS)))
    np.testing.assert_allclose(eb.weight(y, w, CS, ALL)[:5], bend[:5], rtol=1e-7)  # beyond, bend cancels
    assert np.isfinite(bend).all() and (eb.weight(y, w, CS, ALL) > 0).all()


def test_rows_that_are_no_inequalities_or_do_not_count():
    c, y, w = jnp.array([0.3, -0.2, 0.5]), jnp.array([2.0, 0.1, 0.1]), jnp.array([10.0, 0.0, 0.0])
    kinds, none = np.array([False, False, True]), np.zeros(3, bool)
    for name in ("term", "estimate", "weight", "excess"):
        mine, theirs = getattr(eb, name)(pairs(y), w, c, kinds), getattr(al, name)(y, w, c.at[2].set(0.0), none)
        np.testing.assert_allclose(mine[:2] if jnp.ndim(mine) else mine, theirs[:2] if jnp.ndim(theirs) else theirs)
    assert float(eb.estimate(pairs(y), w, c, kinds)[2]) == float(eb.weight(pairs(y), w, c, kinds)[2]) == 0.0


def corridor(**changes):
    """A unit mass from 0 to 1 in 1 s, at most 1.2 m/s fast: without the bound it is 1.5 m/s in the middle."""

    def step(x, u, t):
        return jnp.stack([x[0] + 0.05 * x[1] + 0.00125 * u[0], x[1] + 0.05 * u[0]])

    fields = {
        "name": "corridor", "dynamics": step, "horizon": 20, "x0": np.zeros(2), "dt": 0.05, "u0": np.zeros((20, 1)),
        "stage_residual": lambda x, u, t: 0.1 * u, "terminal_equality": lambda x: x - jnp.array([1.0, 0.0]),
        "state_upper": np.array([np.inf, 1.2]),
    } | changes  # fmt: skip
    return OptimalControlProblem(**fields)


@pytest.mark.parametrize("solver", [iLQR, DDP])
def test_the_answer_is_that_of_the_augmented_lagrangian(solver):
    """Bounds by the barrier beside an equality by its augmented Lagrangian; multipliers are the same, too."""
    problem = corridor()
    one, other = solve(problem, solver()), solve(problem, solver(inequalities="barrier"))
    assert one.success and other.success, (one.message, other.message)
    np.testing.assert_allclose(other.us, one.us, atol=2e-4)
    np.testing.assert_allclose(other.cost, one.cost, rtol=1e-5)
    np.testing.assert_allclose(other.multipliers["stage"], one.multipliers["stage"], atol=2e-3)
    assert float(np.max(other.xs[:, 1])) <= 1.2 + problem.tolerance and np.max(other.multipliers["stage"]) > 0.01


def test_a_slope_below_the_multipliers_is_raised():
    problem = corridor()
    weak = solve(problem, DDP(inequalities="barrier", penalty=1e-3))
    assert weak.success, weak.message
    np.testing.assert_allclose(weak.cost, solve(problem, DDP()).cost, rtol=1e-5)


def test_what_cannot_be_is_not_solved():
    problem = corridor(state_upper=np.array([np.inf, 0.5]))  # 1 m in 1 s is faster on average
    solution = solve(problem, DDP(inequalities="barrier", max_iterations=200))
    assert not solution.success and "terminal_equality is" in solution.message, solution.message


def test_a_batch():
    """Many starts in one program, each with its own mu and nu."""
    problem, solver, x0 = corridor(), DDP(inequalities="barrier"), np.array([[0.0, 0.0], [0.2, 0.1]])
    found = solve_batch(problem, solver, x0=x0)
    assert found.success.all(), found.describe()
    for k in range(2):
        np.testing.assert_allclose(found.us[k], solve(problem.replace(x0=x0[k]), solver).us, atol=1e-5)


def test_a_receding_horizon_has_one_program():
    """It has no inequalities, and its program is the same."""
    oracle = OptimalControlOracle(corridor(terminal_equality=None, state_upper=None), "implicit")
    assert iLQR(inequalities="barrier").replanning(oracle) == iLQR().replanning(oracle)


def test_bad_options():
    with pytest.raises(OptionError, match="inequalities is 'barier'; did you mean 'barrier'"):
        DDP(inequalities="barier")
    with pytest.raises(OptionError, match="barrier is 0.0; it must be positive"):
        iLQR(barrier=0.0)


def test_a_problem_names_the_options_of_other_solvers():
    """As jump-worm does for DDP: `trajopt run jump-worm --solver DDP` has them, iLQR its defaults."""
    problem = problems.get("jump-worm")
    assert chosen_solver(problem, "ddp") == DDP(**problem.other_options["DDP"]) != DDP()
    assert chosen_solver(problem, "iLQR") == iLQR()
    assert chosen_solver(problem, problem.solver).interval == problem.solver_options["interval"]
    with pytest.raises(UnknownNameError, match="barier"):
        chosen_solver(dataclasses.replace(problem, other_options={"DDP": {"barier": 0.3}}), "DDP")


@pytest.mark.slow
def test_jump_worm_from_its_guess():
    problem = problems.get("jump-worm")
    solution = solve(problem, chosen_solver(problem, "DDP"))
    assert solution.success, solution.message
    assert solution.residuals["stationarity"] < 1e-6 and solution.residuals["fastest_joint"] < 20.0 + 1e-5
