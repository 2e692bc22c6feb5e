"""Kinks of the cost, and curvature through contact: the hull's least element, minima on kinks, rough landscapes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from trajopt import problems
from trajopt.dynamics import RigidContact, State, System
from trajopt.models import load_model_from_string
from trajopt.problems import OptimalControlProblem
from trajopt.problems.contact_curvature import curvature_along, motion_curvature, one_mode
from trajopt.problems.expansions import linear_dynamics, moved
from trajopt.solvers import DDP, iLQR, solve
from trajopt.solvers.ddp import kinks
from trajopt.solvers.ddp.curvature import with_curvature
from trajopt.solvers.ddp.passes import CONFIRMED
from trajopt.solvers.ddp.reports import Iterate

MASS = """<mujoco><option gravity="0 0 0"/><worldbody><geom name="floor" type="plane" size="5 5 1"/>
<body name="mass" pos="0 0 2"><joint name="height" type="slide" axis="0 0 1"/><geom type="sphere" size="0.2" mass="1"/></body>
</worldbody><actuator><motor joint="height"/></actuator></mujoco>"""
STEPS, DT = 10, 0.1
LEVER = DT**2 * (STEPS - np.arange(STEPS))  # of the controls on the last height, semi-implicit Euler


def mass(**changes) -> OptimalControlProblem:
    """A free mass of 1 kg, two metres above a floor that it never reaches: contact is in the model, and nothing touches."""
    system = System(load_model_from_string(MASS), DT, RigidContact(max_contacts=1, limits=False))
    return OptimalControlProblem("mass", system, STEPS, State(np.zeros(1), np.zeros(1)), u0=np.zeros(1), **changes)


def hull(rows: np.ndarray) -> kinks.Cuts:
    """Cuts with these gradients, of one control over len(rows[0]) steps."""
    cuts = kinks.Cuts.at(jnp.zeros((rows.shape[1], 1)), jnp.asarray(rows[0])[:, None])
    for row in rows[1:]:
        cuts = cuts.with_cut(jnp.zeros((rows.shape[1], 1)), jnp.asarray(row)[:, None])
    return cuts


FREE = jnp.array([-jnp.inf]), jnp.array([jnp.inf])


def test_least_element_against_a_quadratic_program():
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 1 + kinks.MOST_CUTS):
        rows = rng.normal(size=(count, 6)) + 0.5
        found = np.asarray(hull(rows).least_element(*FREE))[:, 0]
        simplex = {"type": "eq", "fun": lambda w: w.sum() - 1.0}
        best = scipy.optimize.minimize(
            lambda w, rows=rows: np.sum((w @ rows) ** 2), np.full(count, 1 / count), bounds=[(0, 1)] * count,
            constraints=simplex, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(np.sum(found**2), best.fun, rtol=1e-6)
        # Optimality: no gradient of the hull has a smaller product with v than v itself.
        assert (rows @ found).min() >= np.sum(found**2) - 1e-9


def test_the_hull_of_the_sides_of_a_kink_holds_zero():
    sides = np.array([[1.0, 2.0, 0.0], [-0.5, -1.0, 0.0]])
    cuts = hull(sides)
    assert float(cuts.stationarity(*FREE)) < 1e-9 and np.abs(sides).max(1).min() > 0.5
    held = float(
        cuts.stationarity(jnp.array([0.0]), jnp.array([jnp.inf]))
    )  # at its lower bound a control cannot follow -g
    assert held < 1e-9


def test_a_minimum_on_a_kink_is_solved():
    """effort + |z_T - 1|: the mass ends exactly at 1, where the gradient jumps from -lever to +lever."""
    problem = mass(stage_residual=lambda x, u, t: u, terminal_cost=lambda x: 100.0 * jnp.abs(x.q[0] - 1.0))
    solution = solve(problem, iLQR())
    assert solution.success, solution.message
    radius = solution.residuals["kink_radius"]
    assert radius <= kinks.NEAR * np.abs(solution.us).max()
    np.testing.assert_allclose(solution.us[:, 0], LEVER / np.sum(LEVER**2), atol=radius)
    one_sided = solution.residuals["one_sided_stationarity"]
    np.testing.assert_allclose(solution.cost, 0.5 / np.sum(LEVER**2), atol=STEPS * one_sided * radius)
    assert one_sided > 0.1 > 1e-6 > solution.residuals["stationarity"]


def test_one_small_gradient_on_a_rough_landscape_is_not_solved():
    """r(z) falls to its zero in ripples, so that its slope nearly vanishes twice in each: there the gradient is small by luck.

    The first such motion, with which the run would have ended, costs twice as much as the answer.
    """
    period, tolerance = 0.11, 0.03

    def ripples(x: State):
        return 5.0 * (1.0 - x.q) + 4.5 * period / (2 * jnp.pi) * jnp.sin(2 * jnp.pi * x.q / period + 3.0)

    problem = mass(stage_residual=lambda x, u, t: 0.05 * u, terminal_residual=ripples)
    solution = solve(problem, iLQR(tolerance=tolerance))
    gradients, costs = (np.asarray(solution.trace[key]) for key in ("gradient_norm", "cost"))
    lucky = int(np.flatnonzero(gradients <= tolerance)[0])
    assert gradients[lucky + 1] > 3 * tolerance  # it was luck
    assert solution.success and (gradients[-CONFIRMED:] <= tolerance).all()
    assert solution.cost < 0.6 * costs[lucky]


def test_curvature_of_a_step_through_contact_against_central_differences():
    """d/dz (F^T lambda) column after column, from steps ten times as large, where the worm's chain is on the floor; and its
    product with one direction.

    Quotients of smooth columns are good to the square of the step and to rounding over it; where a contact opens within the
    larger step the two sides of its quotient differ, and nothing is compared.
    """
    problem = problems.get("jump-worm", steps=240)
    motion = problem.rollout(jnp.asarray(problem.initial_point.xs[0]), jnp.asarray(problem.u0), jnp.zeros(0))
    rng, size = np.random.default_rng(0), problem.n + problem.nu
    costates, directions = rng.normal(size=(241, problem.n)), rng.normal(size=(240, size))
    M = np.asarray(motion_curvature(problem, motion, jnp.asarray(costates)))
    products = np.asarray(curvature_along(problem, motion, jnp.asarray(costates), jnp.asarray(directions)))
    linear = jax.jit(linear_dynamics(problem))
    at = jax.jit(lambda x, u, z: moved(problem, x, u, jnp.zeros(0))(z)[:2])
    xs, us = np.asarray(motion.xs), np.asarray(motion.us)
    step, compared = 1e-6, 0
    np.testing.assert_allclose(M, np.swapaxes(M, 1, 2), atol=1e-12 * np.abs(M).max())
    for t in range(166, 240, 12):

        def pulled(z, t=t):
            x, u = at(xs[t], us[t], z)
            return np.asarray(linear(x, u, 0.0, jnp.zeros(0))[1]).T @ costates[t + 1]

        here, sides = pulled(np.zeros(size)), [[pulled(s * e) for e in step * np.eye(size)] for s in (1.0, -1.0)]
        ahead, behind = (np.stack(sides[0]) - here) / step, (here - np.stack(sides[1])) / step
        largest = np.abs(M[t]).max()
        if np.abs(ahead - behind).max() > 1e-2 * largest:
            continue
        expected = 0.5 * (ahead + behind)
        np.testing.assert_allclose(M[t], 0.5 * (expected + expected.T), atol=1e-6 * largest)
        np.testing.assert_allclose(products[t], expected.T @ directions[t], atol=1e-5 * largest)
        compared += 1
    assert compared >= 4 and np.abs(M[166:]).max() > 1e3


def test_a_quotient_across_a_mode_is_left_out():
    ahead, behind = jnp.array([1e5, 2e5]), jnp.array([1.0, 2.0])
    np.testing.assert_array_equal(one_mode(ahead, behind), behind)
    np.testing.assert_array_equal(one_mode(behind, ahead), behind)
    np.testing.assert_allclose(one_mode(behind, 1.1 * behind), 1.05 * behind)


SEEDS = 6  # of the noise that moves the worm's torques about the floor of the valley


@pytest.fixture(scope="module")
def worm():
    """jump-worm with a cost of joint rates from 30 rad/s, in place of bounds and of the torques' cost."""

    def excess(x, u, t):
        return jnp.maximum(jnp.abs(x.v[2:]) / 30.0 - 1.0, 0.0)

    return dataclasses.replace(
        problems.get("jump-worm"), stage_residual=excess, state_lower=-np.inf, state_upper=np.inf
    )


def valley(problem, seed: int) -> np.ndarray:
    """Torques on the floor of the valley at a height of 0.26 m: the guess, -0.13 N m at the last joint that fade until the chain
    lands, and noise of 1e-3 N m. Along these torques the cost has a curvature of 50, and Gauss-Newton's model none."""
    ramp = np.maximum(1.0 - np.arange(problem.horizon) * problem.dt / 0.15, 0.0)
    noise = 1e-3 * np.random.default_rng(seed).normal(size=problem.u0.shape)
    return np.asarray(problem.u0) + noise - 0.13 * ramp[:, None] * np.array([0.0, 0.0, 1.0])


@pytest.mark.slow
def test_curvature_through_contact_knows_how_far_a_step_holds(worm):
    """Full steps from the valley's floor, damped by 1. With the curvature a fall of 0.05 is promised, and the cost falls by
    0.08 (third derivatives); without it a fall of 1 is promised, and the cost rises by thousands."""
    iteration = DDP().iteration_of(worm, "implicit")
    multipliers, damping = iteration.modeller.constraints.initial(1.0), jnp.ones(())

    @jax.jit
    def full_step(us, share):
        at = worm.rollout(jnp.asarray(worm.x0), us, jnp.zeros(0))
        model = iteration.modeller.expand(at, multipliers)
        M = motion_curvature(worm, at, model.costates)
        bent = dataclasses.replace(model, lq=with_curvature(model.lq, share * M))
        direction = iteration.backward_pass(at, bent, damping)
        _, cost = iteration.forward_pass(Iterate(at, model, damping, 0.0), direction, jnp.ones(()), multipliers)
        return at.xs[-1, 1], direction.total, cost - model.cost

    for seed in range(SEEDS):
        us = jnp.asarray(valley(worm, seed))
        height, predicted, change = map(float, full_step(us, 1.0))
        assert height == pytest.approx(0.26, abs=2e-3)
        assert -0.1 < predicted < 0.0 and 0.5 < change / predicted < 3.0
        _, predicted, change = map(float, full_step(us, 0.0))
        assert predicted < -0.5 and change > 100.0


@pytest.mark.slow
def test_the_worm_leaves_the_valley_where_gauss_newton_creeps(worm):
    """One iteration of DDP from the valley's floor: the cost falls by 0.68 in the mean, by 0.07 without curvature, whose steps
    along the one stiff direction have to be short. Many iterations are chaotic, and cannot be compared."""
    gains = {}
    for curvature in ("secant", "none"):
        solver = DDP(damping=0.1, curvature=curvature)
        runs = [solve(worm, solver, x0=valley(worm, seed), max_iterations=1) for seed in range(SEEDS)]
        gains[curvature] = np.array([run.initial_cost - run.cost for run in runs])
    assert (gains["none"] > 0).all() and (gains["secant"] > gains["none"]).all()
    assert gains["secant"].mean() > 4.0 * gains["none"].mean()


@pytest.mark.slow
def test_damped_states_bring_the_bounded_worm_off_the_ground():
    """The library's problem, whose rates are bounded and whose guess is far beyond the bounds. With damped controls and cuts iLQR
    is at a cost of 12 after 97 iterations; the optimum of multiple shooting is at -13.8."""
    solution = solve(problems.get("jump-worm"), iLQR(regularisation="state"), max_iterations=150)
    assert solution.cost < -5.0 and solution.residuals["missing_height"] == 0.0
    assert solution.violation < 0.1 and solution.residuals["replay_error"] < 0.05
