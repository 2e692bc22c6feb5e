"""go1-backflip: its quantities on motions made up by hand, and a cost that levels off where a motion falls."""

import numpy as np
import pytest

from trajopt import problems
from trajopt.problems.library.go1_backflip import LIMITS, flip_quantities
from trajopt.problems.trajectory import Trajectory


@pytest.fixture(scope="module")
def problem():
    return problems.get("go1-backflip")


def turning(home: np.ndarray, turns: float, rise: float = 0.5) -> np.ndarray:
    """Configurations of a base that goes up and down and turns about y, its legs as they were, at rest for the last third."""
    share = np.clip(np.linspace(0.0, 1.5, 376), 0.0, 1.0)
    qs = np.tile(home, (376, 1))
    qs[:, 2] += 4 * rise * share * (1 - share)
    angle = 2 * np.pi * turns * share
    qs[:, 3], qs[:, 5] = np.cos(angle / 2), np.sin(angle / 2)
    return qs


@pytest.mark.parametrize(("turns", "rise", "missed"), [
    (-1.0, 0.5, set()), (0.0, 0.5, {"turn_error"}), (1.0, 0.5, {"turn_error"}),
    (-1.0, 0.0, {"other_contact", "penetration"}),
])  # fmt: skip
def test_only_a_backflip_is_one(problem, turns, rise, missed):
    qs = turning(problem.x0[:19], turns, rise)
    motion = Trajectory(np.concatenate([qs, np.zeros((376, 18))], 1), np.zeros((375, 12)), np.zeros(0))
    values = flip_quantities(problem.system, motion)
    assert {key for key, limit in LIMITS.items() if not values[key] <= limit} - {"replay_error"} == missed
    if not missed:
        assert values["apex"] == pytest.approx(0.5, abs=1e-4) and values["drift"] == 0
        assert values["other_clearance"] > 0 and values["flight"] == pytest.approx(1.0, abs=0.02)
