"""Replays: in the air MuJoCo takes the very same steps; a motion that its controls do not give is found out; feedback follows."""

import dataclasses

import numpy as np
import pytest
from control_cases import hopper_flight

from trajopt.control.replay import replay_motion, table
from trajopt.models import bundled_file

DT, STEPS = 0.004, 25


@pytest.fixture(scope="module")
def flight():
    return hopper_flight(DT, STEPS)


def test_mujoco_takes_the_same_steps_in_the_air(flight):
    """Damping is implicit in both: coordinates differ by rounding, of velocities up to 10 and 25 steps."""
    found = replay_motion(*flight, model_file=str(bundled_file("hopper")), steps=(DT,))
    one, *_, mujoco, followed = found
    assert one.error == 0 and mujoco.plant == "MuJoCo" and not mujoco.feedback and followed.feedback
    assert mujoco.error < 1e-9 and followed.error < 1e-9 and mujoco.follows == pytest.approx(DT * STEPS)
    assert table(found).count("\n") == len(found) - 1


def test_half_the_step_is_near(flight):
    """A step of first order: half of it is off by about dt times the accelerations, some 50 rad/s^2, over the time."""
    half = replay_motion(*flight)[1]
    assert half.plant == "half the step" and 1e-6 < half.error < 0.2


def test_another_motion_is_found_out(flight):
    problem, answer = flight
    wrong = dataclasses.replace(answer, us=answer.us + 0.2)
    alone = replay_motion(problem, wrong)[0]
    assert alone.error > 0.1


def test_feedback_brings_a_disturbed_motion_closer(flight):
    problem, answer = flight
    wrong = dataclasses.replace(answer, us=answer.us + 0.2)
    _, alone, followed = replay_motion(problem, wrong, stiffness=400.0, damping=30.0)
    joints = [np.abs(replay.xs[-1, 3:6] - answer.xs[-1, 3:6]).max() for replay in (alone, followed)]
    assert joints[1] < 0.5 * joints[0]
