"""h1-step: its quantities on motions made up by hand, and costs that level off where a motion falls."""

import numpy as np
import pytest

from trajopt import problems
from trajopt.problems.library.h1_step import LIMITS, step_quantities
from trajopt.problems.trajectory import Trajectory

LENGTH = 0.4  # m, of thigh and shank
OF_MOTION = {"replay_error", "torque_use"}  # a motion made up by hand has no torques


@pytest.fixture(scope="module")
def problem():
    return problems.get("h1-step")


def leg(home: np.ndarray, dx: float, dz: float) -> np.ndarray:
    """Hip pitch, knee and ankle of a leg whose sole stays level, its ankle (dx, dz) from where home has it below the hip."""
    hip, knee = home
    x = -LENGTH * (np.sin(hip) + np.sin(hip + knee)) + dx
    z = LENGTH * (np.cos(hip) + np.cos(hip + knee)) - dz
    bent = 2 * np.arccos(np.hypot(x, z) / (2 * LENGTH))
    first = -np.arctan2(x, z) - bent / 2
    return np.array([first, bent, -(first + bent)])


def stepping(problem, length: float, lift: float = 0.08, back: float = 0.0, steps: int = 200) -> Trajectory:
    """The pelvis goes ahead by length / 2, the left foot by `length` over an arc of height `lift`, the right one back by
    `back`; the last quarter at rest."""
    top, home = problem.system.model.topology, problem.x0[:26]
    share = np.clip(np.linspace(0.0, 4 / 3, steps + 1), 0.0, 1.0)
    qs = np.tile(home, (steps + 1, 1))
    qs[:, 0] += length / 2 * share
    at = {joint.name: 6 + k for k, joint in enumerate(top.joints)}
    for side, ahead, up in (("left", length * share, 4 * lift * share * (1 - share)), ("right", -back * share, 0 * share)):
        columns = [at[f"{side}_{name}"] for name in ("hip_pitch", "knee", "ankle")]
        qs[:, columns] = [leg(home[columns[:2]], x, z) for x, z in zip(ahead - length / 2 * share, up, strict=True)]
    xs = np.concatenate([qs, np.zeros((steps + 1, 25))], 1)
    return Trajectory(xs, np.zeros((steps, 19)), np.zeros(0))


def missed(values: dict[str, float]) -> set[str]:
    return {key for key, limit in LIMITS.items() if not values[key] <= limit} - OF_MOTION


@pytest.mark.parametrize(("length", "lift", "back", "expected"), [
    (0.3, 0.08, 0.0, set()),
    (0.0, 0.08, 0.0, {"advance_error", "step_missing"}),
    (-0.3, 0.08, 0.0, {"advance_error", "step_missing"}),
    (0.3, 0.02, 0.0, {"lift_missing"}),
    (0.3, 0.08, 0.05, {"right_foot_moved"}),
])  # fmt: skip
def test_only_a_step_is_one(problem, length, lift, back, expected):
    values = step_quantities(problem.system, stepping(problem, length, lift, back), 0.15)
    assert missed(values) == expected
    assert values["step_length"] == pytest.approx(length, abs=1e-9) and values["lift"] == pytest.approx(lift, abs=1e-4)
    assert values["right_foot_moved"] == pytest.approx(back, abs=1e-9)


def test_a_jump_or_a_fall_is_no_step(problem):
    motion = stepping(problem, 0.3)
    jump = motion.xs.copy()
    jump[60:90, 2] += 0.02
    assert missed(step_quantities(problem.system, Trajectory(jump, motion.us, motion.p), 0.15)) == {"flight"}
    fall = motion.xs.copy()
    fall[-1, 2], fall[-1, 3:7] = 0.1, (np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0)
    found = missed(step_quantities(problem.system, Trajectory(fall, motion.us, motion.p), 0.15))
    assert {"final_tilt", "other_contact"} <= found
    hover = motion.xs.copy()
    hover[-1, 2] += 0.01
    assert "feet_off_the_ground" in missed(step_quantities(problem.system, Trajectory(hover, motion.us, motion.p), 0.15))


def test_neither_foothold_nor_contacts_are_given(problem):
    """Of the left foot the end asks for the height and a level sole alone; nothing asks for contacts or impulses."""
    names = {term.name for term in (*problem.stage_residual.terms, *problem.terminal_residual.terms)}
    assert not {name for name in names if "contact" in name or "impulse" in name}
    of_left = [term for term in problem.terminal_residual.terms if getattr(term, "frame", "") == "left_ankle_link"]
    assert {type(term).__name__ for term in of_left} == {"Height", "FrameOrientation"}
