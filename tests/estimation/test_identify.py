"""Identification of small systems from simulated recordings: values, intervals, what is not determined, what is said."""

import contextlib
import dataclasses

import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import State, System
from trajopt.errors import OptionError, RecordingError, UnknownNameError
from trajopt.estimation import Encoder, Input, Parameter, Pose, Recording, RobustLoss, identify
from trajopt.estimation.checks import checked
from trajopt.models import load_model_from_string

DT, T, NOISE = 0.01, 40, 1e-3
PENDULUM = """<mujoco model="pendulum"><worldbody><body name="rod"><joint name="hinge" axis="0 1 0" damping="0.05"/>
<inertial pos="0 0 -0.4" mass="1" diaginertia="0.02 0.02 0.01"/></body></worldbody>
<actuator><motor name="motor" joint="hinge"/></actuator></mujoco>"""


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "pendulum.xml"
    path.write_text(PENDULUM)
    return System(load_model(str(path)), DT)


def record(system, name, seed, gain=1.0, noise=NOISE):
    """A recording of the pendulum under a random torque; the log has the torque before the gain."""
    rng = np.random.default_rng(seed)
    us = np.repeat(rng.uniform(-3, 3, T // 5), 5)[:, None]
    states, _ = system.rollout(State(rng.uniform(-1, 1, 1), rng.uniform(-2, 2, 1)), gain * us)
    t = DT * np.arange(T + 1)
    q = np.asarray(states.q) + noise * rng.normal(size=(T + 1, 1))
    return Recording(name, {"q": (t, q), "torque": (t[:-1], us)})


@pytest.fixture(scope="module")
def truth(system):
    model = system.model
    return dataclasses.replace(system, model=model.replace(damping=model.damping * 1.4))


@pytest.fixture(scope="module")
def recordings(truth):
    return [record(truth, f"run {k}", k, gain=1.1) for k in range(10)]


SENSORS = (Encoder("q", noise=NOISE), Input("torque"))
ASKED = ("damping", "torque.gain")


@pytest.fixture(scope="module")
def fit(system, recordings):
    return identify(system, recordings, ASKED, SENSORS)


def test_values_intervals_and_noise(fit):
    assert fit.method == "gauss-newton" and fit.reason == "no contact can act" and fit.converged
    assert fit.labels == ("damping of hinge, N m s/rad", "torque.gain")
    error = np.abs(fit.values - [0.07, 1.1])
    assert np.all(error < 4 * fit.deviations) and np.all(fit.deviations < [0.01, 0.02])
    assert 0.7 < fit.chi_squared["q"] < 1.4 and not fit.warnings
    np.testing.assert_allclose(fit.intervals.mean(1), fit.values)
    np.testing.assert_allclose(np.diag(fit.correlation), 1.0)
    assert fit["torque.gain"] == fit.values[1] and float(fit.model.damping[0]) == fit.values[0]
    assert fit.sensors[1].gain == fit.values[1]
    assert "damping of hinge" in fit.describe()


def test_predictions_of_other_recordings(fit, truth):
    other = record(truth, "other", 99, gain=1.1)
    (mine,), (nominal,) = (fit.predict(other, "estimated", nominal=flag) for flag in (False, True))
    assert mine.name == "other" and mine.errors["q"].shape == (T + 1, 1)
    assert np.sqrt(np.mean(mine.errors["q"] ** 2)) < 1.3 * NOISE < np.sqrt(np.mean(nominal.errors["q"] ** 2))


@pytest.mark.slow
def test_bootstrap_agrees_with_the_sandwich(system, recordings, fit):
    drawn = identify(system, recordings, ASKED, SENSORS, bootstrap=500)
    width = np.diff(drawn.intervals)[:, 0] / np.diff(fit.intervals)[:, 0]
    assert np.all((0.4 < width) & (width < 1.3))  # Student's t has heavier tails than ten recordings drawn


@pytest.mark.slow
def test_what_is_not_determined_is_named_and_left_out(system, recordings):
    """Of ten inertial parameters a pendulum about y shows the inertia about its axis and the first moment along x and z."""
    found = identify(system, recordings, ("inertial:rod", "torque.gain"), SENSORS)
    assert len(found.undetermined) >= 7
    assert any("inertial:rod" in text for text in found.undetermined)
    assert any("directions of the parameters are not determined" in text for text in found.warnings)
    assert np.isnan(found.deviations[found.labels.index("centre of mass y of rod, m")])


def test_long_recordings_are_cut_into_segments(system, recordings):
    cut = identify(system, recordings, ASKED, SENSORS, segment=0.2)
    assert len(cut.recording_chi_squared) == 2 * len(recordings)
    assert np.all(np.abs(cut.values - [0.07, 1.1]) < 4 * cut.deviations)


def test_noise_that_is_stated_wrongly_is_told(system, recordings):
    found = identify(system, recordings, ASKED, (Encoder("q", noise=NOISE / 4), Input("torque")))
    (said,) = found.warnings
    assert said.startswith("the residuals of channel 'q' are") and "times larger than its noise says" in said


@pytest.mark.slow
def test_an_outlier_is_listed_and_a_robust_loss_ignores_it(system, recordings, fit):
    wrong = record(system, "wrong", 5, gain=0.3)
    plain = identify(system, [*recordings, wrong], ASKED, SENSORS)
    robust = identify(system, [*recordings, wrong], ASKED, SENSORS, loss=RobustLoss("cauchy", by="recording"))
    assert plain.outliers == robust.outliers == ("wrong",)
    assert abs(plain.values[1] - 1.1) > 5 * abs(robust.values[1] - 1.1)


@pytest.mark.slow
def test_a_bound_that_is_touched(system, recordings):
    """The damping, bounded below by more than it is, stays at the bound; the gain keeps its interval."""

    def apply(model, x):
        return model.replace(damping=x)

    bounded = Parameter("damping", np.array([0.2]), 0.02, apply, ("damping",), lower=0.15)
    found = identify(system, recordings, (bounded, "torque.gain"), SENSORS)
    assert found.at_bound == ("damping",) and found.values[0] == pytest.approx(0.15)
    assert np.isnan(found.deviations[0]) and found.deviations[1] > 0
    assert any("'damping' ended at a bound" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": ("dampin",)}, "no parameter 'dampin'; did you mean 'damping'"),
        ({"parameters": ()}, "parameters is empty"),
        ({"parameters": ("damping", "damping")}, "asks for 'damping:hinge' twice"),
        ({"parameters": ("torque.bias",)}, "channel 'torque' has no constant 'bias'"),
        ({"parameters": ("friction",)}, "no two shapes of model 'pendulum' can touch"),
        ({"parameters": ("mass:road",)}, "no body 'road'; did you mean 'rod'"),
        ({"method": "newton"}, "method is 'newton'"),
        ({"segment": 0.0}, "segment is 0.0"),
        ({"loss": "tukay"}, "there is no loss 'tukay'"),
        ({"recordings": []}, "recordings is empty"),
        (
            {"sensors": (Encoder("angle"), Input("torque"))},
            "channel 'angle' of sensor Encoder is missing in recording 'run 0'",
        ),
    ],
)
def test_bad_arguments(system, recordings, change, message):
    given = {"recordings": recordings, "parameters": ASKED, "sensors": SENSORS} | change
    with pytest.raises((OptionError, RecordingError, UnknownNameError), match=message):
        identify(system, given.pop("recordings"), given.pop("parameters"), given.pop("sensors"), **given)


def changed(recording, channel, t=None, values=None):
    old = recording[channel]
    new = (old.t if t is None else t(old.t), old.values if values is None else values(old.values))
    return Recording(recording.name, {**recording.channels, channel: new})


def with_gap(t):
    return np.where(t > 0.2, t + 0.5, t)


@pytest.mark.parametrize(
    ("channel", "change", "message"),
    [
        (
            "q",
            {"t": lambda t: 1000 * t},
            "recording 'run 0', channel 'q': samples are 10 s apart from t = 0 s.*milliseconds",
        ),
        ("q", {"values": lambda q: 1e5 * q}, "channel 'q' is .* at t = 0 s, column 0: angles are expected in rad"),
        ("q", {"values": lambda q: np.hstack([q, q])}, "has 2 columns; Encoder expects 1: hinge"),
        (
            "q",
            {"values": lambda q: 0 * q},
            "no recording holds a motion: recording 'run 0'.*from 0.000 s.*'q' moves by",
        ),
    ],
)
def test_recordings_that_are_wrong(system, recordings, channel, change, message):
    with pytest.raises(RecordingError, match=message):
        identify(system, changed(recordings[0], channel, **change), ASKED, SENSORS)


def spiked(q):
    q = np.array(q)
    q[12] += 0.5
    return q


@pytest.mark.parametrize(
    ("t", "values", "message"),
    [
        (lambda t: t, spiked, "recording 'run 1', channel 'q': single samples jump away and back, at t = 0.12 s"),
        (lambda t: 1.02 * t, lambda q: q, "recording 'run 1', channel 'q': samples are 0.0102 s apart from t = 0 s"),
        (lambda t: t + 0.05 * t**2, lambda q: q, "recording 'run 1', channel 'q': the clock drifts"),
    ],
)
def test_single_samples_that_jump_and_clocks(system, recordings, t, values, message):
    doubtful = [recordings[0], changed(recordings[1], "q", t, values), *recordings[2:]]
    kept, notes = checked(system, doubtful, SENSORS)
    assert any(message in note for note in notes), notes
    assert np.isnan(kept[1]["q"].values).sum() == (values is spiked)
    assert not checked(system, recordings, SENSORS)[1]


def test_velocities_in_other_units_and_time_stamps_that_are_too_small(system, recordings):
    angle = recordings[0]["q"]
    rate = np.gradient(angle.values[:, 0], angle.t)
    sensors = (*SENSORS, Encoder("rate", noise=0.1, velocity=True))
    for size, message in ((1.0, None), (1e3, "'rate': from t = 0 s on the root mean square"), (1e-3, "'rate': from t")):
        log = Recording("run 0", {**recordings[0].channels, "rate": (angle.t, size * rate)})
        with pytest.raises(RecordingError, match=message) if message else contextlib.nullcontext():
            checked(system, [log], sensors)
    with pytest.raises(RecordingError, match="samples are 1e-05 s apart from t = 0 s on"):
        checked(system, [changed(recordings[0], "q", lambda t: 1e-3 * t)], SENSORS)


@pytest.mark.slow
def test_recordings_that_are_doubtful(system, recordings):
    still = changed(recordings[1], "q", values=lambda q: 0 * q)
    gap = changed(recordings[2], "q", t=with_gap)
    drifting = changed(recordings[3], "q", t=lambda t: t + 0.2 * t**2)
    found = identify(system, [*recordings[4:], still, gap, drifting], ("torque.gain",), SENSORS)
    said = "\n".join(found.warnings)
    assert "recording 'run 1' is left out: from 0.000 s" in said
    assert "recording 'run 2', channel 'q': no sample from t = 0.2 s to 0.71 s" in said
    assert "recording 'run 3', channel 'q': the clock drifts" in said


def test_poses_in_millimetres_and_quaternions_in_another_order():
    system = System(load_model("cube"), DT)
    t = DT * np.arange(60)
    angle = np.linspace(0.0, 1.0, 60)
    row = np.stack([0.5 * t, 0 * t, 0.1 + 0 * t, np.cos(angle), 0 * t, 0 * t, np.sin(angle)], 1)

    def fit(rows):
        return identify(system, Recording("slide", {"pose": (t, rows)}), "friction", Pose("pose"))

    with pytest.raises(RecordingError, match="in mm"):
        fit(row * np.array([1e3] * 3 + [1.0] * 4))
    with pytest.raises(RecordingError, match="channel 'pose': from t = 0 s on the positions change by 150 per s"):
        fit(row * np.array([300.0] * 3 + [1.0] * 4))
    with pytest.raises(RecordingError, match="expects 7: x, y, z in m, then a unit quaternion"):
        fit(row[:, :6])
    with pytest.raises(
        RecordingError, match="channel 'pose' has 1 samples without missing entries; a motion takes two"
    ):
        fit(np.where(np.arange(60)[:, None] > 0, np.nan, row))
    with pytest.raises(
        RecordingError, match="'slide' is left out: from 0.000 s to 0.590 s nothing in channels 'pose' moves"
    ):
        fit(row[:1] + 0 * row)
    with pytest.raises(RecordingError, match="on it if the quaternions are read as x y z w"):
        fit(row[:, [0, 1, 2, 4, 5, 6, 3]])
    with pytest.raises(RecordingError, match="norm 2; expected x, y, z in m"):
        fit(row * np.array([1.0] * 3 + [2.0] * 4))
    tipped = np.stack([0.5 * t, 0 * t, 0.1 + 0 * t, np.cos(angle), np.sin(angle), 0 * t, 0 * t], 1)
    with pytest.raises(RecordingError, match="deep in the ground before t = 0.59 s"):
        fit(tipped + np.array([0, 0, -0.08, 0, 0, 0, 0]))


def test_a_fall_by_the_noise_of_a_pose_is_no_impact():
    """A disc slides; noise of 0.5 mm and 5 mrad lifts its first poses, from which it would fall in steps of 1 ms."""
    scene = """<mujoco><worldbody><geom type="plane" size="5 5 0.1" friction="0.3"/><body name="disc" pos="0 0 0.01"><freejoint/>
      <geom type="cylinder" size="0.05 0.01" mass="0.1" friction="0.3"/></body></worldbody></mujoco>"""
    disc, rng, made = System(load_model_from_string(scene), 1e-3), np.random.default_rng(3), []
    for k in range(2):
        states, _ = disc.rollout(
            State(np.array(disc.model.q_default), np.array([0.8, 0.2, 0, 0, 0, 10.0])), np.zeros((150, 0))
        )
        pose = np.array(states.q)[::10]
        pose[:, :3] += 5e-4 * rng.normal(size=(16, 3))
        pose[:, 4:6] += 2.5e-3 * rng.normal(size=(16, 2))
        pose[:, 3:] /= np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
        made.append(Recording(f"{k}", {"pose": (0.01 * np.arange(16), pose)}))
    found = identify(disc, made, ["friction"], [Pose("pose", noise=(5e-4, 5e-3))])
    assert found.method == "gauss-newton" and found.reason == "no impact in the predicted motions"
    assert found.chi_squared["pose"] < 1.3 and found.intervals[0, 0] < 0.3 < found.intervals[0, 1]
