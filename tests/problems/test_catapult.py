"""catapult and jump-worm (Nimble VII-D): the definitions against closed forms, and (slow) what their solver reaches."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.problems.library import catapult
from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status

G, LINK = 9.81, 0.25


@pytest.mark.parametrize("name, steps, limit", [("catapult", 500, 1000.0), ("jump-worm", 400, 100.0)])
def test_the_motion_begins_at_rest_at_home(name, steps, limit):
    """Whose links, masses, floor and friction test_bundled.py judges."""
    problem = problems.get(name)
    assert problem.horizon == steps and problem.dt == 1e-3
    np.testing.assert_allclose(problem.x0, [*problem.system.model.keyframes["home"], *np.zeros(5)], atol=1e-15)
    assert (problem.control_upper == limit).all() and (problem.control_lower == -limit).all()


def test_losses():
    throw, hop = problems.get("catapult"), problems.get("jump-worm")
    x = np.array([1.0, 3.0, *np.zeros(8)])
    np.testing.assert_allclose(throw.final_cost(x, np.zeros(0)), 1.2**2 + 0.8**2)
    for z in (0.4, -0.4):
        loss = hop.final_cost(np.array([0.0, z, *np.zeros(8)]), np.zeros(0))
        np.testing.assert_allclose(loss, -np.sign(z) * 16.0)


@functools.cache
def thrown():
    """The problem and the states of its guess."""
    problem = problems.get("catapult")
    return problem, np.asarray(jax.jit(problem.rollout)(problem.x0, problem.u0, problem.parameters).xs)


def test_the_guess_holds_the_arm_and_throws_the_cube_near_the_target():
    problem, xs = thrown()
    starts, torques = zip(*catapult.PHASES, strict=True)
    assert len(np.unique(problem.u0, axis=0)) == len(torques)
    for start, torque in catapult.PHASES:
        np.testing.assert_array_equal(problem.u0[round(start / problem.dt)], torque)
    tilt = np.cumsum(problem.x0[2:5])
    reach = LINK * np.sin(tilt)  # of each link towards -x
    weight = -G * np.array([sum(reach[i:k].sum() + reach[k] / 2 for k in range(i, 3)) for i in range(3)])
    np.testing.assert_allclose(torques[0], np.where([True, False, True], weight, torques[0]), atol=0.1)
    q = xs[:, :5]
    k = np.arange(115)  # steps of free fall, before the last link comes up to the cube
    np.testing.assert_allclose(q[k, 1], 0.1 - G * problem.dt**2 * k * (k + 1) / 2, atol=1e-12)
    np.testing.assert_allclose(q[k[-1], 2], q[0, 2], atol=0.01)
    distance = np.linalg.norm(q[-1, :2] - catapult.TARGET)
    assert 0.1 < distance < 0.3  # the solver has something to do
    motion = Trajectory(xs, problem.u0, np.zeros(0))
    np.testing.assert_allclose(problem.certificate.function(motion)["distance"], distance)


def test_ilqr_hits():
    """Whatever rounding does: a thousandth of a newton metre of noise on the guess changes nothing."""
    problem, _ = thrown()
    noise = 1e-3 * np.random.default_rng(0).normal(size=problem.u0.shape)
    for us in (problem.u0, problem.u0 + noise):
        guess = dataclasses.replace(problem.initial_point, us=us)
        solution = solvers.solve(problem, solvers.get("iLQR"), x0=guess, max_iterations=8)
        assert solution.success and solution.residuals["distance"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.5, 2.0])
def test_the_cube_arrives(noise):
    """Multiple shooting, from the guess and from guesses with noise on every torque (N m)."""
    problem = problems.get("catapult")
    us = problem.u0 + noise * np.random.default_rng(1).normal(size=problem.u0.shape)
    solver = solvers.get(problem.defaults.solver, **problem.defaults.options)
    guess = dataclasses.replace(problem.initial_point, us=us)
    solution = solvers.solve(problem, solver, x0=guess, max_iterations=40)
    assert solution.success and solution.status == Status.solved
    assert solution.residuals["distance"] < 1e-3 and solution.residuals["defect"] < 1e-6


@pytest.mark.slow
def test_the_worm_jumps():
    """Solved; higher than 0.4 m, the same at a quarter of the time step within 5 %, and not out of nothing.

    IPOPT relaxes bounds by 1e-8: times curvatures of some hundreds and multipliers of some tens that is 1e-5 at most.
    """
    problem = problems.get("jump-worm")
    solution = solvers.solve(problem, solvers.get(problem.defaults.solver, **problem.defaults.options))
    assert solution.success and solution.status == Status.solved
    found = solution.residuals
    assert found["kkt_residual"] < 1e-5 and found["complementarity"] < 1e-5
    assert found["final_height"] == solution.xs[-1, 1] > 0.4 and found["defect"] < 1e-6
    assert found["replay_error"] < 0.05 and found["energy_gained"] <= found["work"]
    assert np.abs(solution.xs[:, 7:]).max() <= 20.0 + 1e-6
