"""Recordings as arrays: pieces, groups of similar length, first guesses of states."""

import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import System
from trajopt.estimation import Encoder, Input, Pose, Recording, Velocity
from trajopt.estimation.packing import cut, guessed_first, guessed_firsts, last_time, pack

DT = 0.01
POSE = (Pose("pose"),)


@pytest.fixture(scope="module")
def cube():
    return System(load_model("cube"), DT)


def sliding(name, samples):
    """A cube that slides along x at 2 m/s and turns about z at 3 rad/s."""
    t = DT * np.arange(samples)
    zero = 0.0 * t
    return Recording(
        name, {"pose": (t, np.stack([2 * t, zero, zero + 0.1, np.cos(1.5 * t), zero, zero, np.sin(1.5 * t)], 1))}
    )


def test_first_states_are_read_from_the_first_samples(cube):
    first = guessed_first(cube, sliding("a", 20), POSE)
    np.testing.assert_allclose(first.q, [0, 0, 0.1, 1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(first.v, [2, 0, 0, 0, 0, 3], atol=1e-9)
    hopper = System(load_model("hopper"), DT)
    t = np.array([0.0, 0.1, 0.2])
    log = Recording("h", {"q": (t, np.stack([t, 1 - t], 1)), "rate": (t, np.full((3, 1), 7.0))})
    sensors = (
        Encoder("q", joints=("thigh_joint", "leg_joint")),
        Encoder("rate", joints=("foot_joint",), velocity=True),
    )
    first = guessed_first(hopper, log, sensors)
    np.testing.assert_allclose(first.q[3:5], [0, 1])
    np.testing.assert_allclose(first.v[3:], [1, -1, 7], atol=1e-9)


def test_a_velocity_between_poses_is_taken_back_to_the_start(cube):
    """A backward difference belongs to the middle of its step: a body that falls was slower, one on the floor was not."""
    sensors, log = (*POSE, Velocity("velocity")), sliding("a", 10)
    t, rows = log["pose"].t, np.tile([2.0, 0, 0, 0, 0, 0], (9, 1))
    both = []
    for name, height in (("falls", 1.0), ("lies", 0.0)):
        pose = log["pose"].values + np.array([0, 0, height + float(cube.model.q_default[2]) - 0.1, 0, 0, 0, 0])
        both.append(Recording(name, {"pose": (t, pose), "velocity": (t[1:] - 0.5 * DT, rows)}))
    falls, lies = guessed_firsts(cube, both, sensors)
    np.testing.assert_allclose(falls.v, [2, 0, 9.81 * 0.5 * DT, 0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(lies.v, rows[0], atol=1e-12)
    at_once = Recording("b", {"pose": both[0]["pose"], "velocity": (t[:9], rows)})
    np.testing.assert_allclose(guessed_firsts(cube, [at_once], sensors)[0].v, rows[0])


def test_recordings_of_very_different_lengths_go_into_groups(cube):
    recordings = [sliding(str(k), n) for k, n in enumerate((20, 200, 22, 21, 19))]
    firsts = [guessed_first(cube, r, POSE) for r in recordings]
    groups = pack(cube, recordings, POSE, firsts)
    assert [group.index.tolist() for group in groups] == [[0, 2, 3, 4], [1]]
    assert groups[0].data.T < 40 <= groups[1].data.T
    present = np.asarray(groups[0].data.measured["pose"].present)
    assert present.sum((1, 2)).tolist() == [6 * n for n in (20, 22, 21, 19)]
    (short,) = pack(cube, recordings[1:2], POSE, firsts[1:2], until=np.array([0.5]))
    assert short.data.measured["pose"].t.shape == (1, 51)


def test_missing_entries_of_a_pose(cube):
    log = sliding("a", 10)
    values = log["pose"].values.copy()
    values[2, 4], values[3, 0] = np.nan, np.nan
    (group,) = pack(cube, [Recording("a", {"pose": (log["pose"].t, values)})], POSE, [guessed_first(cube, log, POSE)])
    present = np.asarray(group.data.measured["pose"].present[0])
    assert present[2].tolist() == [1, 1, 1, 0, 0, 0] and present[3].tolist() == [0, 1, 1, 1, 1, 1]
    assert np.isfinite(np.asarray(group.data.measured["pose"].values)).all()


def test_pieces_keep_the_inputs_whole():
    t = np.linspace(0.0, 3.1, 63)
    log = Recording("a", {"q": (t, t), "u": (t[::10], t[::10])})
    sensors = (Encoder("q"), Input("u"))
    pieces = cut(log, sensors, 1.0)
    assert [piece["q"].t.size for piece in pieces] == [21, 21, 21] and all(piece["u"].t.size == 7 for piece in pieces)
    assert pieces[1].name.startswith("a, 1.03 to 2.07 s") and last_time(pieces[2], sensors) == pytest.approx(3.1)
    assert cut(log, sensors, 10.0) == [log]
