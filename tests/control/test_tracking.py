"""Gains about a motion: those of the dense linear-quadratic problem, and a disturbed flight comes back."""

import dataclasses

import numpy as np
import pytest
from control_cases import Answer, hopper_flight

from trajopt import problems
from trajopt.control.replay import replay_motion
from trajopt.control.tracking import joint_gains, tracking_gains
from trajopt.dynamics import State
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.guesses import quasi_static

DT, STEPS = 0.01, 12
ERRORS = np.array([0.1, 0.1, 0.2, 0.3, 0.3, 0.3, 1.0, 1.0, 2.0, 5.0, 5.0, 5.0])


@pytest.fixture(scope="module")
def flight():
    return hopper_flight(DT, STEPS)


def test_the_first_gain_is_that_of_the_dense_problem(flight):
    """Errors are a linear function of e_0 and of all changes of the controls; the least squares of both are solved at once. A and
    B are central differences of the step, good to 1e-8 of their largest entries, which are some 30."""
    problem, motion = flight
    n, m = problem.n, problem.nu
    A, B, h = [], [], 1e-5
    for x, u in zip(motion.xs[:-1], motion.us, strict=True):
        z = np.concatenate([x, u])
        step = lambda z: np.asarray(problem.step(z[:n], z[n:], 0.0, problem.parameters))  # noqa: E731
        J = np.stack([(step(z + h * e) - step(z - h * e)) / (2 * h) for e in np.eye(n + m)], 1)
        A.append(J[:, :n])
        B.append(J[:, n:])
    error, by_control = np.eye(n), np.zeros((n, STEPS * m))
    controls = np.array([0.5, 1.0, 2.0])
    rows_e, rows_u = [], []
    for t in range(STEPS + 1):
        weight = (np.sqrt(DT) if t < STEPS else 1.0) / ERRORS[:, None]
        rows_e.append(weight * error)
        rows_u.append(weight * by_control)
        if t < STEPS:
            error, by_control = A[t] @ error, A[t] @ by_control
            by_control[:, t * m : (t + 1) * m] += B[t]
    effort = np.sqrt(DT) * np.diag(np.tile(1 / controls, STEPS))
    full = np.concatenate([*rows_u, effort])
    expected = -np.linalg.lstsq(full, np.concatenate([*rows_e, np.zeros((STEPS * m, n))]), rcond=None)[0][:m]
    found = tracking_gains(problem, motion, ERRORS, controls)
    assert found.shape == (STEPS, m, n)
    np.testing.assert_allclose(found[0], expected, atol=1e-5 * np.abs(expected).max())


def test_a_disturbed_flight_comes_back(flight):
    problem, motion = flight
    wrong = dataclasses.replace(motion, us=motion.us + 0.2)
    K = tracking_gains(problem, motion, ERRORS)
    _, _, alone, followed = replay_motion(problem, wrong, gains=K)
    assert not alone.feedback and followed.feedback
    legs = [np.abs(replay.xs[-1, 3:6] - motion.xs[-1, 3:6]).max() for replay in (alone, followed)]
    assert legs[1] < 0.5 * legs[0]


def test_gains_of_joints_act_on_the_driven_joints_alone(flight):
    problem, _ = flight
    model = problem.system.model
    K = joint_gains(model, 400.0, 30.0)
    gear = np.asarray(model.actuation)[3:]
    np.testing.assert_allclose(gear @ K[:, 3:6], -400.0 * np.eye(3))
    np.testing.assert_allclose(gear @ K[:, 9:], -30.0 * np.eye(3))
    assert not K[:, [0, 1, 2, 6, 7, 8]].any()


def test_a_held_motion_ends_at_rest(flight):
    problem, motion = flight
    held = replay_motion(problem, motion, hold=3 * DT)[0]
    assert held.xs.shape == (STEPS + 4, 12) and held.us.shape == (STEPS + 3, 3)
    np.testing.assert_array_equal(held.us[STEPS:], np.tile(motion.us[-1], (3, 1)))
    assert held.drift[STEPS] == 0 and held.drift[-1] > 0  # nothing holds it in the air


def test_a_standing_pose_is_held_by_its_own_torques():
    """What a motion ends with, here nothing at all, does not hold it."""
    backflip = problems.get("go1-backflip")
    system, stand = backflip.system, np.asarray(backflip.x0)
    pose, us = State(stand[:19], stand[19:]), np.zeros((STEPS, 12))
    problem = OptimalControlProblem("stand", system, STEPS, pose, u0=us, stage_residual=lambda x, u, t: u)
    held = replay_motion(problem, Answer(np.tile(stand, (STEPS + 1, 1)), us), hold=2 * problem.dt)[0]
    assert held.xs.shape == (STEPS + 3, stand.size)
    torque = quasi_static(system, pose).torque
    assert np.abs(torque).max() > 1.0
    np.testing.assert_array_equal(held.us, np.concatenate([us, np.tile(torque, (2, 1))]))


def test_wrong_arguments_are_named(flight):
    problem, motion = flight
    with pytest.raises(ShapeError, match="errors has shape"):
        tracking_gains(problem, motion, np.ones(5))
    with pytest.raises(OptionError, match="positive"):
        tracking_gains(problem, motion, 0.0)
    with pytest.raises(OptionError, match="gains has shape"):
        replay_motion(problem, motion, gains=np.zeros((2, 3, 12)))
