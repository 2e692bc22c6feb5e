"""go1-backflip: its quantities on motions made up by hand, and a cost that levels off where a motion falls."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems
from trajopt.errors import OptionError
from trajopt.problems import residuals
from trajopt.problems.library.behaviours import task
from trajopt.problems.library.go1_backflip import LANDING, LIMITS, SHORT_OF_UPRIGHT, flip_quantities, pitch_turned
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


@pytest.mark.parametrize("turns", [-2.0, -1.0, -0.5, 0.0, 1.0])
def test_whole_turns_are_counted(problem, turns):
    qs = turning(problem.x0[:19], turns)
    qs[100:200, 3:7] *= -1  # the same rotations
    assert pitch_turned(qs)[-1] == pytest.approx(2 * np.pi * turns, abs=1e-12)


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


def test_the_motion_is_planned_below_the_limits_of_the_motors(problem):
    np.testing.assert_allclose(problem.control_upper, 0.9 * np.asarray(problem.system.model.control_upper))
    assert problem.certificate.tolerances["torque_use"] > 0.9
    with pytest.raises(OptionError, match="torque_share"):
        problems.get("go1-backflip", torque_share=1.2)


def test_a_base_that_lands_has_nearly_turned(problem):
    """0.3 rad before upright as it comes from a turn backwards, nose down: the row of the pitch is zero there alone."""
    (term,) = (term for term in problem.stage_residual.terms if term.name == "landing")
    step = round(0.608 / problem.dt) + round(LANDING / problem.dt)
    assert np.flatnonzero(np.asarray(term.weight).any(1)).tolist() == [step]
    for beyond in (0.0, -SHORT_OF_UPRIGHT, 1.0):
        pitch, expected = -2 * np.pi + SHORT_OF_UPRIGHT + beyond, 6.0 * beyond
        x = problem.x0.copy()
        x[3], x[5] = np.cos(pitch / 2), np.sin(pitch / 2)
        outcome = problem.outcome(jnp.asarray(x), jnp.zeros(12), problem.parameters)
        rows = np.asarray(task(term)(outcome.x, jnp.zeros(12), problem.times[step], outcome))
        free = expected / np.sqrt(1 + (expected / 6.0 / 3.0) ** 2)
        assert np.abs(rows).max() == pytest.approx(abs(free), abs=1e-9) and rows.sum() * expected >= 0


def test_falling_costs_so_much_and_no_more(problem):
    """Of a terminal pose upside down on the ground each row costs less than half the square of weight times scale."""
    end = np.concatenate([problem.x0[:19], np.full(18, 5.0)])
    end[2], end[3:7] = 0.05, (0.0, 0.0, -1.0, 0.0)
    posture, velocity = problem.terminal_residual.terms
    for term, scale in ((posture, np.asarray(posture.activation.scale)), (velocity, 1.0)):
        rows = _rows(problem, task(term), end)
        assert (np.abs(rows) <= np.asarray(term.weight) * scale + 1e-12).all()
    free = residuals.Posture(reference=posture.reference, weight=posture.weight)
    assert np.sum(_rows(problem, task(free), end) ** 2) > 10 * np.sum(_rows(problem, task(posture), end) ** 2)


def _rows(problem, terms, x):
    outcome = problem.outcome(jnp.asarray(x), None, problem.parameters)
    return np.asarray(terms(outcome.x, None, 0.0, outcome))
