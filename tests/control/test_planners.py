"""Planners in a receding horizon: plans are the model's motions, warm starts are shifted splines, nothing is compiled anew."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from trajopt import control, load_model, solvers
from trajopt.control.warned import warn_of
from trajopt.dynamics import NoContact, State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.problems import JointTargets, OptimalControlProblem
from trajopt.problems import residuals as r
from trajopt.solvers.ddp.braking import braking_plan, can_brake
from trajopt.solvers.plan import row_names
from trajopt.solvers.planners import in_fine_time
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints

DT, T = 0.05, 16
SAMPLING = {
    "PredictiveSampling": solvers.PredictiveSampling(knots=4), "MPPI": solvers.MPPI(knots=4), "CEM": solvers.CEM(knots=4),
    "CMAES": solvers.CMAES(knots=4), "StochasticSearch": solvers.StochasticSearch(knots=4),
}  # fmt: skip
ALL = SAMPLING | {"iLQR": solvers.iLQR(), "DDP": solvers.DDP(), "Hybrid": solvers.Hybrid(solvers.CEM(knots=4))}


@functools.cache
def problem(integrator: str = "moreau") -> OptimalControlProblem:
    """The cart goes to 0.3 m, the pole stays down; by midpoint steps, which plans without contact take."""
    system = System(load_model("cart-pole"), DT, NoContact(), integrator=integrator)
    stage = sum([r.Posture(reference=[0.3, 0.0]), r.Velocity(weight=0.3), r.Control(weight=0.03)])
    return OptimalControlProblem(
        "cart", system, T, State(np.zeros(2), np.zeros(2)), stage_residual=stage,
        terminal_residual=r.Posture(reference=[0.3, 0.0]), control_lower=-3.0, control_upper=3.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_planner_brings_the_cart_to_its_place_and_compiles_once(name):
    horizon = control.RecedingHorizon(problem(), ALL[name], problem().system, 2 * DT, time_budget=60.0, max_iterations=2)
    found = horizon.run(4.0)
    np.testing.assert_allclose(found.xs[-1, :2], [0.3, 0.0], atol=0.05)
    assert found.accepted.all() and (np.abs(found.us) <= 3.0).all() and found.violation.shape == (len(found.latency), 0)
    with compilations() as count:
        horizon.set(references={"posture": [0.1, 0.0]})
        again = horizon.run(1.0)
    assert count.programs == 0, count.names
    assert np.mean(again.cost) < np.mean(found.cost[:10])  # nearer


@pytest.mark.parametrize("name", ["CEM", "Hybrid", "iLQR"])
def test_a_plan_is_the_models_motion_from_the_measured_state(name):
    controller = control.Controller(problem(), ALL[name], DT, max_iterations=1)
    x = np.array([0.1, 0.2, 0.0, -0.1])
    found = controller.replan(x, 0.0).result
    plan = controller.plan
    motion = problem().rollout(x, np.asarray(plan.us), problem().parameters)
    np.testing.assert_allclose(plan.xs, motion.xs, atol=1e-12)
    np.testing.assert_allclose(found.cost, problem().cost(motion), rtol=1e-12)
    again = controller.replan(np.asarray(plan.xs[2]), 2 * DT).result
    assert float(again.cost) <= float(again.cost_before) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["PredictiveSampling", "iLQR"])
def test_without_contact_plans_go_where_a_finer_plant_goes(name):
    """A step of 50 ms of first order is 25 ms times the change of velocity off, a midpoint step of that order squared."""
    first_order = problem("semi-implicit")
    controller = control.Controller(first_order, ALL[name], DT)
    x = np.array([0.0, 0.3, 0.4, -0.5])
    us = np.asarray(controller.replan(x, 0.0).result.plan.us)
    plan, short = np.asarray(controller.plan.xs), np.asarray(first_order.rollout(x, us, first_order.parameters).xs)
    fine = dataclasses.replace(first_order.system, dt=DT / 50)
    found, _ = fine.rollout(State(x[:2], x[2:]), jnp.asarray(us.repeat(50, 0)))
    there = np.asarray(found.q)[::50]
    missed, missed_before = (np.abs(xs[:, :2] - there).max() for xs in (plan, short))
    assert missed < 0.15 * missed_before and missed_before > 1e-3


@functools.cache
def balance() -> OptimalControlProblem:
    """The pole stays up."""
    system = System(load_model("cart-pole"), DT, NoContact())
    upright = np.array([0.0, np.pi])
    stage = sum([r.Posture(reference=upright), r.Velocity(weight=0.1), r.Control(weight=0.03)])
    final = sum([r.Posture(reference=upright, weight=10.0), r.Velocity(weight=2.0)])
    return OptimalControlProblem(
        "balance", system, 30, State(upright, np.zeros(2)), stage_residual=stage, terminal_residual=final
    )


def test_a_first_plan_from_another_state_keeps_to_the_guess():
    """Under the controls of the guess alone the pole falls; iterations from there swing it up again, at a cost of 78."""
    found = control.Controller(balance(), solvers.iLQR(), DT).replan(np.array([0.0, np.pi - 0.1, 0.0, 0.0]), 0.0)
    assert float(found.result.cost) < 0.2


def test_after_a_rest_a_plan_acts_at_once():
    """At rest an iteration changes the controls by rounding alone, at whatever damping; the next plan is not damped so."""
    controller = control.Controller(balance(), solvers.iLQR(), DT, max_iterations=1)
    for k in range(20):
        assert controller.replan(np.array([0.0, np.pi, 0.0, 0.0]), k * DT).result.accepted
    rested, leaning = controller.plan, np.array([0.0, np.pi - 0.1, 0.0, 0.0])
    controller.replan(leaning, 20 * DT)
    assert abs(controller.control(leaning, 20 * DT)[0]) > 5.0 and np.abs(np.asarray(rested.us)).max() < 1e-9


@pytest.mark.parametrize(("kind", "knots"), [("linear", 5), ("cubic", 6), ("piecewise-constant", 8)])
def test_knots_are_shifted_as_the_controls_that_they_give(kind, knots):
    """A shift of the spline is the spline shifted: of straight lines everywhere, of held controls by whole stretches; beyond the
    end the last knot is held."""
    solver = solvers.CEM(knots=knots, parametrisation=kind)
    planner = control.Controller(problem(), solver, DT).planner
    W = np.asarray(planner.space.data["basis"])
    values = np.linspace(-1.0, 0.5, knots) if kind != "piecewise-constant" else np.sin(np.arange(knots))
    shift = (T - 1) / (knots - 1) if kind != "piecewise-constant" else T / knots
    later = planner.shifted(values, shift)
    np.testing.assert_allclose(later[:-1], values[1:], atol=1e-12)
    np.testing.assert_allclose(later[-1], values[-1])
    half = planner.shifted(values, 0.5 * shift)
    if kind == "linear":
        times = np.arange(float(T))
        np.testing.assert_allclose((W @ half)[:-5], np.interp(times + 0.5 * shift, times, W @ values)[:-5], atol=1e-12)
    np.testing.assert_allclose(planner.shifted(values, 0.0), values, atol=1e-12)


def test_the_best_draw_is_taken_and_a_seed_gives_the_same_plan():
    controllers = [control.Controller(problem(), SAMPLING["PredictiveSampling"], DT, max_iterations=1) for _ in "ab"]
    first, second = (one.replan(np.zeros(4), 0.0).result.plan.us for one in controllers)
    np.testing.assert_array_equal(first, second)


def test_predictive_sampling_keeps_the_best_and_tries_near_and_far():
    solver = solvers.PredictiveSampling(least_scale=0.01)
    space = control.Controller(problem(), solver, DT).planner.space
    first = solver.first_distribution(np.zeros(space.size))
    draws = solver.draw(np.random.default_rng(0), first, 400, space)
    spread = [np.std(part) for part in np.split(draws, 4)]
    assert spread[0] > 2 * spread[1] > 4 * spread[2] > 8 * spread[3]
    better = Generation(draws, np.where(np.arange(400) == 7, -1.0, 1.0), 0.0)
    new, weights = solver.updated_distribution(first, better, space)
    np.testing.assert_array_equal(new.mean, draws[7])
    assert weights[7] == 1 == weights.sum()
    same, _ = solver.updated_distribution(new, Generation(draws, np.ones(400), 0.0), space)
    np.testing.assert_array_equal(same.mean, draws[7])
    np.testing.assert_allclose(same.deviation, 0.9)


def test_predictive_sampling_as_an_optimiser():
    point = OptimalControlProblem(
        "point", lambda x, u, t: x + u, 3, np.zeros(1), u0=np.zeros((3, 1)), dt=1.0, control_lower=-1.0, control_upper=1.0,
        stage_residual=lambda x, u, t: u, terminal_residual=lambda x: 10 * (x - 0.9),
    )  # fmt: skip
    found = solvers.solve(point, solvers.PredictiveSampling(), seed=1)
    np.testing.assert_allclose(found.us, 0.3 * 100 / 100.333333, atol=0.01)
    with pytest.raises(OptionError, match="least_scale is 0"):
        solvers.PredictiveSampling(least_scale=0)


# -- from outside ---------------------------------------------------------------------------------------------------------


def test_a_controller_drives_what_others_simulate():
    controller, system = control.Controller(problem(), solvers.iLQR(), 2 * DT, max_iterations=1), problem().system
    plant = control.SystemPlant(system)
    plant.reset(np.zeros(4))
    for k in range(80):
        if k % 2 == 0:
            controller.replan(plant.state, k * DT)
        plant.step(controller.control(plant.state, k * DT), {})
    expected = control.RecedingHorizon(problem(), solvers.iLQR(), system, 2 * DT, max_iterations=1).run(4.0)
    np.testing.assert_allclose(plant.state, expected.xs[-1], atol=2e-3)  # which iterates on its first plan at once


def test_a_thread_plans_while_the_plant_goes_on():
    with control.Controller(problem(), solvers.iLQR(), DT) as controller:
        controller.replan(np.zeros(4), 0.0, wait=False)
        first = controller.plan_begun
        controller.replan(np.array([0.1, 0.0, 0.0, 0.0]), 1.0, wait=False)
        deadline = time.monotonic() + 60
        while controller.plan_begun == first and time.monotonic() < deadline:
            assert np.isfinite(controller.control(np.zeros(4), 0.3)).all()
        assert controller.plan_begun == 1.0
        np.testing.assert_allclose(controller.plan.xs[0], [0.1, 0.0, 0.0, 0.0])
        with pytest.raises(ShapeError, match=r"x has shape \(3,\)"):
            while time.monotonic() < deadline:  # until the thread has met it
                controller.replan(np.zeros(3), 2.0, wait=False)
                time.sleep(0.01)


def test_what_is_not_finite_is_warned_of_and_the_last_plan_goes_on():
    controller = control.Controller(problem(), solvers.iLQR(), DT)
    with pytest.raises(NonFiniteError, match="there is no plan yet"):
        controller.replan(np.full(4, np.nan), 0.0)
    controller.replan(np.zeros(4), 0.0)
    plan = controller.plan
    with pytest.warns(UserWarning, match="measured at 0.5 s is not finite; the last plan goes on"):
        assert controller.replan(np.full(4, np.nan), 0.5) is None
    assert controller.plan is plan
    np.testing.assert_allclose(controller.control(np.full(4, np.nan), DT), plan.us[1])


def test_what_cannot_be_set_changes_nothing():
    controller = control.Controller(problem(), solvers.iLQR(), DT)
    with pytest.raises(UnknownNameError, match="no term 'postrue'.*posture"):
        controller.set(references={"postrue": [0.0, 0.0]})
    with pytest.raises(OptionError, match="negative"):
        controller.set(weights={"velocity": -1.0})
    assert controller.problem is problem()
    with pytest.raises(OptionError, match="there is no plan yet; call replan"):
        controller.control(np.zeros(4), 0.0)
    with pytest.raises(ShapeError, match=r"x has shape \(3,\); expected \(4,\)"):
        controller.replan(np.zeros(3), 0.0)
    with pytest.raises(OptionError, match="JointTargets; a receding horizon shifts knots"):
        control.Controller(problem(), solvers.CEM(parametrisation=JointTargets(2, 1.0, 1.0)), DT)


def test_a_batch_is_its_runs():
    horizon = control.RecedingHorizon(problem(), SAMPLING["CEM"], problem().system, 2 * DT, max_iterations=1)
    starts = [np.zeros(4), np.array([0.1, 0.0, 0.0, 0.0]), np.zeros(4)]
    pushes = [[], [], [control.Push("pole", (2.0, 0.0, 0.0), 0.2)]]
    found = horizon.run_batch(0.6, starts=starts, pushes=pushes, seeds=[0, 0, 0])
    for recording, start, push in zip(found, starts, pushes, strict=True):
        np.testing.assert_array_equal(recording.xs, horizon.run(0.6, x0=start, pushes=push).xs)
    other = horizon.run_batch(0.6, seeds=[0, 1], workers=1)
    np.testing.assert_array_equal(other[0].xs, found[0].xs)
    assert np.abs(other[1].us - other[0].us).max() > 1e-3
    with pytest.raises(OptionError, match="one length, at least 1; received {'starts': 3, 'seeds': 2}"):
        horizon.run_batch(0.1, starts=starts, seeds=[0, 1])
    with pytest.raises(OptionError, match="received none of them"):
        horizon.run_batch(0.1)


# -- constraints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iLQR", "PredictiveSampling"])
def test_constraints_are_kept_in_the_loop(name):
    """The cart may not pass 0.2 m nor be faster than 0.2 m/s on its way to 0.3 m."""
    limited = problem().replace(
        inequality=lambda x, u, t: x.q[:1] - 0.2, state_lower=[-np.inf, -np.inf, -0.2, -np.inf],
        state_upper=[np.inf, np.inf, 0.2, np.inf],
    )  # fmt: skip
    found = control.RecedingHorizon(limited, ALL[name], limited.system, DT, time_budget=60.0, max_iterations=4).run(4.0)
    assert found.violation.shape[1] == 5
    assert found.xs[:, 0].max() < 0.2 + 2e-3 and np.abs(found.xs[:, 2]).max() < 0.2 + 1e-2
    assert found.xs[-1, 0] > 0.15
    free = control.RecedingHorizon(problem(), ALL[name], limited.system, DT, time_budget=60.0, max_iterations=4).run(4.0)
    assert np.abs(free.xs[:, 2]).max() > 0.25 and free.xs[:, 0].max() > 0.25


def test_inequalities_hold_midway_between_knots_too():
    """At a knot and half a step later; their derivative is that by differences."""
    bound = r.CentreOfMass().at_most([1.0, 1.0, -0.3])
    limited = problem("semi-implicit").replace(inequality=bound)
    planner = control.Controller(limited, solvers.iLQR(), DT).planner
    rows, x, u = Constraints(planner.problem), np.array([0.1, 0.6, 0.3, 2.0]), np.zeros(1)
    at = lambda x: np.asarray(rows.stage(jnp.asarray(x), jnp.asarray(u), 0.0, jnp.zeros(0)))  # noqa: E731
    alone = lambda x: np.asarray(Constraints(limited).stage(jnp.asarray(x), jnp.asarray(u), 0.0, jnp.zeros(0)))  # noqa: E731
    later = np.concatenate([x[:2] + 0.5 * DT * x[2:], x[2:]])
    np.testing.assert_allclose(at(x), np.concatenate([alone(x), alone(later)]), atol=1e-14)
    found = rows.stage_slopes(jnp.asarray(x), jnp.asarray(u), 0.0, jnp.zeros(0))[1]
    by_differences = np.stack([(at(x + e) - at(x - e)) / 2e-6 for e in 1e-6 * np.eye(4)], 1)
    np.testing.assert_allclose(found[:, :4], by_differences, atol=1e-8)  # 1e-16 / 1e-6 of rounding, 1e-12 of the third derivative
    assert abs(found[5, 3]) > 1e-3  # of the height midway by the pole's speed
    changed = planner.on(in_fine_time(limited.replace(references={"posture": [0.1, 0.0]})))
    assert Constraints(changed.problem).inequality()[0].size == 6
    assert row_names(planner.problem, 6, 0) == ["inequality 'centre of mass'"] * 6


def test_an_end_that_must_be_reached_is():
    arriving = problem().replace(terminal_equality=lambda x: x.v)
    planner = control.Controller(arriving, solvers.iLQR(), DT).first_plan(np.array([0.0, 0.0, 0.5, 0.0])).result
    assert float(np.max(planner.violation)) < 1e-3
    np.testing.assert_allclose(planner.plan.xs[-1, 2:], 0.0, atol=1e-3)


def test_a_constraint_that_cannot_be_kept_is_named():
    wrong = problem().replace(inequality=r.Height("pole").at_most(-10.0))
    with pytest.warns(UserWarning, match="100% of the plans violate 'inequality 'height pole'', by up to"):
        found = control.RecedingHorizon(wrong, solvers.iLQR(), wrong.system, DT, max_iterations=1).run(0.5)
    assert np.isfinite(found.xs).all()


# -- time -------------------------------------------------------------------------------------------------------------------


def ur5_reach() -> OptimalControlProblem:
    system = System(load_model("ur5"), 0.02, NoContact())
    place = r.FramePosition("tool", reference=[0.4, 0.3, 0.5], weight=10.0)
    stage = sum([r.Control(weight=1e-3), r.Velocity(weight=0.1), place])
    final = sum([r.Velocity(weight=1.0), r.FramePosition("tool", reference=[0.4, 0.3, 0.5], weight=30.0)])
    return OptimalControlProblem("reach", system, 25, system.initial_state("home"), stage_residual=stage, terminal_residual=final)


@pytest.mark.slow
@pytest.mark.parametrize("period", [0.1, 0.04, 0.02])
def test_an_arm_does_not_whirl_with_default_options(period):
    reach = ur5_reach()
    found = control.RecedingHorizon(reach, solvers.iLQR(), System(reach.system.model, 0.01, NoContact()), period).run(3.0)
    assert np.abs(found.xs[:, 6:]).max() < 12.0 and np.abs(found.xs[-1, 6:]).max() < 0.1
    assert found.accepted.mean() > 0.8


def test_late_and_rejected_solves_are_warned_of():
    found = control.RecedingHorizon(problem(), solvers.iLQR(), problem().system, DT).run(1.0)
    controller = control.Controller(problem(), solvers.iLQR(), DT)
    late = dataclasses.replace(found, latency=np.full_like(found.latency, 0.2))
    with pytest.warns(UserWarning, match="100% of the solves took longer than their period of 50 ms, 200 ms at the median"):
        warn_of(late, controller)
    rejected = dataclasses.replace(found, latency=np.full_like(found.latency, 0.01), accepted=np.zeros_like(found.accepted))
    with pytest.warns(UserWarning, match="100% of the solves found no better plan"):
        warn_of(rejected, controller)


def test_a_period_shorter_than_a_solve_is_warned_of_once_in_a_loop_of_ones_own():
    controller = control.Controller(problem(), solvers.iLQR(), 1e-7, max_iterations=1)
    words = "problem 'cart': 100% of the solves took longer than their period of 0.0001 ms"
    with pytest.warns(UserWarning, match=words) as found:
        for k in range(120):
            controller.replan(np.zeros(4), k * DT)
    assert len(found) == 1
    assert np.isfinite(controller.control(np.zeros(4), 120 * DT)).all()


def test_braking_stops_an_arm():
    """By its own policy velocities fall to a third in five steps, to 2 % in twenty; what is left is gravity, which changes on the
    way."""
    reach = ur5_reach()
    assert can_brake(reach) and not can_brake(problem())
    v = np.array([1.0, -1.0, 0.5, 2.0, -1.0, 1.0])
    x0 = jnp.asarray(np.concatenate([np.asarray(reach.x0)[:6], v]))
    plan = jax.jit(lambda x: braking_plan(reach, x))(x0)
    x = x0
    for u, K in zip(plan.us[:20], plan.gains, strict=False):
        x = reach.step(x, u + K @ reach.local(plan.xs[0], x), 0.0, reach.parameters)
    assert np.abs(np.asarray(x)[6:]).max() < 0.4
