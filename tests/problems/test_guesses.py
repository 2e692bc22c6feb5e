"""Guesses: torques that hold a posture through contact, interpolated states, shifted solutions, and who is told of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import dynamics, load_model, models, problems, solvers
from trajopt.dynamics import State, System
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import OptimalControlProblem, guesses
from trajopt.problems import residuals as r


@functools.cache
def ur5() -> System:
    return System(load_model("ur5"), 0.02, dynamics.NoContact())


@functools.cache
def standing():
    """Go1 in the static pose of go1-stand: a System and its state."""
    pose = problems.get("go1-stand").display.motion(jnp.zeros(12))["q"][0]
    return System(load_model("go1"), 1e-3), State(jnp.asarray(pose), jnp.zeros(18))


def test_an_arm_is_held_by_its_gravity_torques():
    system = ur5()
    x = State(jnp.asarray([0.3, -1.0, 0.8, 0.1, 0.2, -0.4]), jnp.zeros(6))
    found = guesses.quasi_static(system, x)
    gravity = dynamics.generalised_gravity(system.model, x.q)
    np.testing.assert_allclose(found.torque, gravity, atol=1e-5)  # but for the weight of small torques, 1e-8 of their limits
    after, _ = system.step(x, jnp.asarray(found.torque))
    assert found.held and float(jnp.abs(after.v).max()) < 1e-5


def test_a_quadruped_is_held_through_its_feet():
    """The step, which knows nothing of the guess, finds the same: it stays where it is."""
    system, x = standing()
    found = guesses.quasi_static(system, x)
    assert found.held and found.force.shape == (4, 3)
    weight = 9.81 * float(np.asarray(system.model.mass).sum())
    np.testing.assert_allclose(found.force[:, 2].sum(), weight, rtol=1e-6)
    friction = np.asarray(system.model.pair_friction).max()
    assert (np.linalg.norm(found.force[:, :2], axis=1) <= friction * found.force[:, 2] + 1e-9).all()
    after, _ = system.step(x, jnp.asarray(found.torque))
    limp, _ = system.step(x, jnp.zeros(12))
    assert float(jnp.abs(after.v).max()) < 1e-3 * float(jnp.abs(limp.v).max())


def test_what_cannot_be_held_is_said():
    system, x = standing()
    high = State(x.q.at[2].add(1.0), x.v)
    found = guesses.quasi_static(system, high)
    weight = 9.81 * float(np.asarray(system.model.mass).sum())
    assert not found.held and not found.robot_held and found.imbalance > 0.5 * weight and found.force.shape == (0, 3)


ARM_AND_BALL = """<mujoco><worldbody>
  <body name="ball" pos="1 0 1"><freejoint/><geom type="sphere" size="0.05" mass="0.2"/></body>
  <body name="arm"><joint name="shoulder" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.02" mass="1"/></body>
</worldbody><actuator><motor joint="shoulder"/></actuator></mujoco>"""


def test_an_arm_is_held_while_what_it_is_to_catch_falls():
    """Of what no motor moves nothing is asked; the torque is the weight of the arm times its lever."""
    system = System(models.load_model_from_string(ARM_AND_BALL), 0.02)
    x = system.initial_state()
    found = guesses.quasi_static(system, x)
    assert found.robot_held and not found.held
    problem = OptimalControlProblem("catch", system, 4, x, stage_residual=lambda x, u, t: u)
    gravity = dynamics.generalised_gravity(system.model, x.q)
    np.testing.assert_allclose(problem.u0, np.tile(gravity[-1:], (4, 1)), rtol=1e-6)
    assert "1.96 N or N m are left unbalanced" in problem.meta["guess"]


def arm_problem(**options):
    return OptimalControlProblem(
        "reach", ur5(), 4, ur5().initial_state("home"), stage_residual=r.Control(weight=1e-2),
        terminal_residual=r.FramePosition("tool", reference=[0.4, 0.2, 0.5], weight=10.0), **options,
    )  # fmt: skip


def test_a_system_at_rest_starts_from_the_controls_that_hold_it():
    problem = arm_problem()
    assert problem.meta["guess"] == "controls that hold x0 at rest"
    expected = guesses.quasi_static(ur5(), ur5().initial_state("home")).torque
    np.testing.assert_allclose(problem.u0, np.tile(expected, (4, 1)))
    np.testing.assert_array_equal(arm_problem(u0="quasi-static").u0, problem.u0)
    moving = np.concatenate([np.asarray(ur5().initial_state("home").q), np.ones(6)])
    still = OptimalControlProblem("moving", ur5(), 4, moving, stage_residual=r.Control())
    assert not np.any(still.u0) and "guess" not in still.meta
    with pytest.raises(OptionError, match="u0 is 'hold'"):
        arm_problem(u0="hold")


def test_another_initial_state_gets_the_controls_that_hold_it():
    problem, home = arm_problem(), ur5().initial_state("home")
    there = State(home.q + 0.3, home.v)
    other = problem.replace(x0=there)
    np.testing.assert_allclose(other.u0, np.tile(guesses.quasi_static(ur5(), there).torque, (4, 1)))
    assert other.meta == problem.meta and np.abs(other.u0 - problem.u0).max() > 1.0
    moving = other.replace(x0=State(home.q, home.v + 1.0))
    assert moving.u0 is other.u0
    again = moving.replace(x0=home)
    np.testing.assert_array_equal(again.u0, problem.u0)
    given = arm_problem(u0=np.ones(6))
    assert given.replace(x0=there).u0 is given.u0
    assert problem.replace(u0=np.ones(6)).replace(x0=there).u0[0, 0] == 1.0


def test_interpolated_states_have_no_defects_of_position_and_end_at_rest():
    system, x = standing()
    turn = dynamics.integrate(system.model, x.q, 0.5 * jax.random.normal(jax.random.key(0), (18,)))
    found = guesses.interpolated(system, x, State(turn, x.v), 20)
    assert found.shape == (21, 37)
    q, v = jnp.asarray(found[:, :19]), jnp.asarray(found[:, 19:])
    np.testing.assert_array_equal(q[0], x.q)
    end = jax.vmap(lambda a, b: dynamics.difference(system.model, a, b))(q[-1:], turn[None])
    np.testing.assert_allclose(end, np.zeros((1, 18)), atol=1e-12)
    led = jax.vmap(lambda q, v: dynamics.integrate(system.model, q, 1e-3 * v))(q[:-1], v[1:])
    np.testing.assert_allclose(led, q[1:], atol=1e-12)
    assert np.abs(v[-1]).max() < 0.15 * np.abs(v).max()  # slowing down: r (1 - r) at the last step
    with pytest.raises(OptionError, match="steps is 0"):
        guesses.interpolated(system, x, x, 0)


def test_a_shifted_solution_is_the_later_part_and_is_solved_sooner():
    problem = arm_problem()
    found = solvers.solve(problem, solvers.iLQR())
    assert found.success
    moved = guesses.shifted(found, 1)
    np.testing.assert_array_equal(moved.us[:-1], found.us[1:])
    np.testing.assert_array_equal(moved.us[-1], found.us[-1])
    np.testing.assert_array_equal(moved.xs[0], found.xs[1])
    later = problem.replace(x0=found.xs[1])
    warm, cold = (solvers.solve(later, solvers.iLQR(), x0=start) for start in (moved, None))
    assert warm.success and abs(warm.cost - cold.cost) < 1e-6 * cold.cost and warm.initial_cost < cold.initial_cost
    with pytest.raises(ShapeError, match="steps is 5; the solution has 4"):
        guesses.shifted(found, 5)


def test_a_run_that_did_not_converge_says_what_else_to_start_from():
    problem = arm_problem(u0=np.zeros(6))
    found = solvers.solve(problem, solvers.iLQR(max_iterations=1))
    assert not found.success
    for word in ("other guesses to try", "u0='quasi-static'", "guesses.interpolated", "guesses.shifted"):
        assert word in found.message
    held = solvers.solve(arm_problem(), solvers.iLQR(max_iterations=1))
    assert "other guesses" in held.message and "quasi-static" not in held.message
