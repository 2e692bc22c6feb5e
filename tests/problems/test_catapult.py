"""catapult and jump-worm (Nimble VII-D): the definitions against closed forms, and (slow) what their solver reaches."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.dynamics.kinematics import kinematics
from trajopt.problems.library import catapult, jump_worm
from trajopt.result import Status

G, LINK = 9.81, 0.25


def joints(angles, start):
    """Lower ends of the links: zero angle points up, positive ones lean towards -x."""
    tilt = np.cumsum(angles)
    steps = LINK * np.stack([-np.sin(tilt), 0 * tilt, np.cos(tilt)], 1)
    return np.array(start) + np.concatenate([np.zeros((1, 3)), np.cumsum(steps[:-1], 0)])


@pytest.mark.parametrize(
    "name, degrees, start",
    [("catapult", (45, 0, 45), (0.5, 0, -0.45)), ("jump-worm", (90, 90, 45), (0, 0, 0))],
)
def test_the_models_are_those_of_the_design(name, degrees, start):
    problem = problems.get(name)
    model = problem.system.model
    assert problem.horizon == {"catapult": 500, "jump-worm": 400}[name] and problem.dt == 1e-3
    np.testing.assert_allclose(problem.x0[2:5], np.radians(degrees))
    assert not problem.x0[5:].any()
    kin = kinematics(model, problem.x0[:5])
    np.testing.assert_allclose(np.asarray(kin.position)[-3:], joints(np.radians(degrees), start), atol=1e-12)
    np.testing.assert_allclose(np.asarray(model.mass)[-3:], 1.0)
    limit = {"catapult": 1000.0, "jump-worm": 100.0}[name]
    assert (problem.control_upper == limit).all() and (problem.control_lower == -limit).all()
    floor = next(k for k, shape in enumerate(model.topology.shapes) if shape.name == "floor")
    top = np.asarray(model.shape_position)[floor, 2] + np.asarray(model.shape_size)[floor, 2]
    np.testing.assert_allclose(top, -0.7 + 0.125)
    np.testing.assert_allclose(np.asarray(model.pair_friction), 1.0)


def test_losses():
    throw, hop = problems.get("catapult"), problems.get("jump-worm")
    x = np.array([1.0, 3.0, *np.zeros(8)])
    np.testing.assert_allclose(throw.final_cost(x, np.zeros(0)), 1.2**2 + 0.8**2)
    for z in (0.4, -0.4):
        loss = hop.final_cost(np.array([0.0, z, *np.zeros(8)]), np.zeros(0))
        np.testing.assert_allclose(loss, -np.sign(z) * 16.0)


def test_the_guess_holds_the_arm_and_throws_the_cube_near_the_target():
    problem = problems.get("catapult")
    tilt = np.cumsum(problem.x0[2:5])
    reach = LINK * np.sin(tilt)  # of each link towards -x
    weight = -G * np.array([sum(reach[i:k].sum() + reach[k] / 2 for k in range(i, 3)) for i in range(3)])
    np.testing.assert_allclose(catapult.HOLD, weight, atol=0.05)
    motion = jax.jit(problem.rollout)(problem.x0, problem.u0, problem.parameters)
    q = np.asarray(motion.xs)[:, :5]
    k = np.arange(round(catapult.CATCH / problem.dt) + 1)
    np.testing.assert_allclose(q[k, 1], 0.1 - G * problem.dt**2 * k * (k + 1) / 2, atol=1e-12)
    np.testing.assert_allclose(q[k[-1], 2:], q[0, 2:], atol=0.06)
    distance = np.linalg.norm(q[-1, :2] - catapult.TARGET)
    assert 0.1 < distance < 0.3  # the solver has something to do
    np.testing.assert_allclose(problem.certificate(motion)["distance"], distance)


@pytest.mark.slow
def test_the_cube_arrives():
    problem = problems.get("catapult")
    solution = solvers.solve(problem, solvers.get(problem.solver, **problem.solver_options), max_iterations=60)
    assert solution.success and solution.status == Status.solved
    assert solution.residuals["distance"] < 1e-3 and solution.residuals["defect"] < 1e-6


def test_the_push_and_the_rates_of_the_worm():
    pushed = jump_worm.push(np.array([0.0, 0.2, 0.27]))
    np.testing.assert_array_equal(pushed, [[0.0] * 3, list(jump_worm.PUSH), [0.0] * 3])
    problem = problems.get("jump-worm", rate=20.0)
    x = np.array([*np.zeros(7), 10.0, -25.0, 40.0])
    np.testing.assert_allclose(
        problem.stage("stage_residual", x, np.zeros(3), np.zeros(()), np.zeros(0)), [0.0, 0.25, 1.0]
    )


@pytest.mark.slow
def test_the_worm_jumps():
    """Higher than 0.4 m, the same at a quarter of the time step within 5 %, and not out of nothing."""
    problem = problems.get("jump-worm")
    solution = solvers.solve(problem, solvers.get(problem.solver, **problem.solver_options))
    found = solution.residuals
    assert found["final_height"] == solution.xs[-1, 1] > 0.4 and found["defect"] < 1e-6
    assert found["replay_error"] < 0.05 and found["energy_gained"] <= found["work"]
