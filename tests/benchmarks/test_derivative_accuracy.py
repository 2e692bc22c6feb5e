"""The command behind docs/notes/derivative-accuracy.md: it recognises right and wrong derivatives, and mode changes."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys

import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import RigidContact, System


@pytest.fixture(scope="module")
def command():
    folder = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module("derivative_accuracy")


@pytest.fixture(scope="module")
def states(command):
    return sys.modules["contact_states"]


def test_summary_counts_solved_states_alone(command):
    states = [
        {"solved": True, "q": 1e-9, "v": "mode"},
        {"solved": True, "q": 3e-6, "v": "contradicts: 1.0e+00"},
        {"solved": False, "q": 1.0, "v": 1.0},
    ]
    s = command.summary(states, ("q", "v"))
    assert (s["judged"], s["above"], s["mode"], s["contradicts"], s["differences"]) == (2, 1, 1, 1, 0)
    assert s["worst"] == 3e-6


def test_robots_are_put_down_to_the_gap(states):
    model = load_model("cube").to_device()
    q = states.lowered(model, model.q_default + np.r_[0, 0, 0.7, 0, 0, 0, 0], -1e-4)
    assert np.asarray(states.gaps(model, q)[0]).min() == pytest.approx(-1e-4, abs=1e-12)


@pytest.mark.slow
def test_right_and_wrong_derivatives_and_kinks_are_told_apart(command, states):
    """The drone on the ground: 0.1 mm inside it the exact derivative is right and the smoothed model's is not; at a gap of zero
    the law has a kink."""
    exact = System(load_model("drone"), 1e-3, RigidContact(max_contacts=1))
    smoothed = dataclasses.replace(exact, gradient="smoothed")
    touching = states.lowered(exact.model, exact.model.q_default, 0.0)

    def judge(system, depth):
        return command.judge(system, touching - depth, np.array([-1e-3]), np.zeros(1), np.random.default_rng(0))

    right, wrong, kink = judge(exact, 1e-4), judge(smoothed, 1e-4), judge(exact, 0.0)
    assert right["solved"] and right["touches"]
    assert right["q"] < 1e-7 and wrong["q"] > 1e-2 and kink["q"] == "mode"
