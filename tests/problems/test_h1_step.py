"""h1-step: its quantities on motions made up by hand, and costs that level off where a motion falls."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems
from trajopt.errors import OptionError
from trajopt.problems.library.behaviours import task
from trajopt.problems.library.h1_step import LEFT_SOLE, LIMITS, RIGHT_SOLE, leg_targets, step_quantities, swings
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


def test_swings_are_counted():
    heel, toe = np.zeros(40), np.zeros(40)
    heel[5:20], toe[8:22] = 0.05, 0.04
    heel[30:32] = 0.02  # the toe stays down
    assert swings(np.stack([heel, toe], 1)) == 1
    toe[29:35] = 0.02
    assert swings(np.stack([heel, toe], 1)) == 2


def test_neither_foothold_nor_contacts_are_given(problem):
    """Of the left foot the end asks for the height and a level sole alone; nothing asks for contacts or impulses."""
    names = {term.name for term in (*problem.stage_residual.terms, *problem.terminal_residual.terms)}
    assert not {name for name in names if "contact" in name or "impulse" in name}
    of_left = [term for term in problem.terminal_residual.terms if getattr(term, "frame", "") == "left_ankle_link"]
    assert {type(term).__name__ for term in of_left} == {"Height", "FrameOrientation"}


def test_falling_costs_so_much_and_no_more(problem):
    """Of an end on the ground each row costs less than half the square of weight times scale."""
    fallen = np.concatenate([problem.x0[:26], np.full(25, 50.0)])
    fallen[0], fallen[2], fallen[3:7] = 5.0, 0.05, (np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0)
    fallen[7:26] += 0.7
    outcome = problem.outcome(jnp.asarray(fallen), None, problem.parameters)
    for term in problem.terminal_residual.terms:
        rows = np.asarray(task(term)(outcome.x, None, 0.0, outcome))
        assert (np.abs(rows) <= np.asarray(term.weight) * np.asarray(term.activation.scale) + 1e-12).all(), term.name
        free = dataclasses.replace(term, activation=None)
        assert np.sum(np.asarray(task(free)(outcome.x, None, 0.0, outcome)) ** 2) > np.sum(rows**2)


def test_targets_swing_and_shorten_legs_with_level_soles(problem):
    model = problem.system.model
    targets = leg_targets(model, 1.8)
    mirror, names = np.asarray(targets.mirror), model.topology.actuators
    for side in ("left", "right"):
        pitch = [names.index(f"{side}_{joint}") for joint in ("hip_pitch", "knee", "ankle")]
        np.testing.assert_allclose(mirror[pitch].sum(0), 0.0)
    assert mirror.shape == (19, 6) and (np.abs(mirror).sum(0) > 0).all()
    assert len(LEFT_SOLE) == len(RIGHT_SOLE) == 4


def test_settings_are_checked():
    with pytest.raises(OptionError, match="advance"):
        problems.get("h1-step", advance=0.6)
