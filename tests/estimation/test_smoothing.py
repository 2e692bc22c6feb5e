"""Smoothing of a recording: a linear motion against the dense least-squares solution, and a bouncing ball against the truth."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics import NoContact, State, System
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.errors import OptionError, RecordingError
from trajopt.estimation import ContactSwitch, Encoder, Pose, ProcessNoise, Recording, smooth
from trajopt.estimation.samples import first_state
from trajopt.models import load_model, load_model_from_string

SCENE = """<mujoco><worldbody><geom type="plane" size="5 5 1"/><body name="ball"><joint name="height" type="slide" axis="0 0 1"/>
<geom type="sphere" size="0.1" mass="2"/></body></worldbody></mujoco>"""
DT, SIGMA = 0.02, 0.01


@pytest.fixture(scope="module")
def model():
    return load_model_from_string(SCENE)


def test_a_linear_motion_is_the_least_squares_solution(model):
    """Free fall with missing samples and a constant error: mean and covariance of the whole trajectory's normal equations."""
    system = System(model, DT, contact=NoContact())
    rng, drift, steps = np.random.default_rng(0), 0.5, 12
    y = 0.3 - 4.9 * (DT * np.arange(steps + 1)) ** 2 + SIGMA * rng.normal(size=steps + 1)
    y[[3, 4, 9]] = np.nan
    start, deviation, offset = State(jnp.array([0.28]), jnp.array([0.1])), (0.05, 0.4), 0.02
    found = smooth(
        system, Recording("fall", {"height": (DT * np.arange(steps + 1), y)}), [Encoder("height", noise=SIGMA)],
        offsets={"height": offset}, noise=ProcessNoise(drift=drift, offset_drift=0.0), start=start, start_deviation=deviation,
    )  # fmt: skip
    # Unknowns: the states (q, v) of every step, then the constant error.
    unknown = 2 * (steps + 1) + 1
    rows, right = [], []

    def add(weights, value, information):
        row = np.zeros(unknown)
        for place, weight in weights.items():
            row[place] = weight
        rows.append(np.sqrt(information) * row), right.append(np.sqrt(information) * value)

    add({0: 1.0}, 0.28, deviation[0] ** -2), add({1: 1.0}, 0.1, deviation[1] ** -2), add({unknown - 1: 1.0}, 0.0, offset**-2)
    velocity = drift**2 * DT  # m M^-1 is 1
    for k in range(steps):
        at = 2 * k
        add({at + 3: 1.0, at + 1: -1.0}, -9.81 * DT, 1 / velocity)
        add({at + 2: 1.0, at: -1.0, at + 1: -DT}, -9.81 * DT**2, 1 / (velocity * (0.5 * DT) ** 2))
    for k in np.flatnonzero(np.isfinite(y)):
        # The sample lies at the end of step k - 1.
        add({2 * k: 1.0, unknown - 1: 1.0}, y[k], SIGMA**-2)
    A, b = np.array(rows), np.array(right)
    covariance = np.linalg.inv(A.T @ A)
    expected = covariance @ A.T @ b
    states = np.stack([found.x.q[:, 0], found.x.v[:, 0]], 1)
    # The factorised covariances have 1e-12 on their unit diagonals.
    np.testing.assert_allclose(states, expected[:-1].reshape(-1, 2), atol=1e-7)
    np.testing.assert_allclose(found.offsets["height"], expected[-1:], atol=1e-7)
    dense = np.array([covariance[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] for k in range(steps + 1)])
    np.testing.assert_allclose(found.covariance, dense, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.offset_covariance["height"], covariance[-1:, -1:], rtol=1e-5)


def test_a_bouncing_ball_is_found_through_its_impacts(model):
    system = System(model.replace(pair_restitution=jnp.array([0.6])), dt=0.01)
    motion, _ = system.rollout(State(np.array([0.6]), np.zeros(1)), np.zeros((100, 1)))
    height = np.asarray(motion.q) + SIGMA * np.random.default_rng(0).normal(size=(101, 1))
    recording = Recording("ball", {"height": (3.0 + 0.01 * np.arange(101), height)})
    found = smooth(system, recording, [Encoder("height", noise=SIGMA)])
    error = np.asarray(found.x.q - motion.q)[:, 0]
    assert found.consistent and np.sqrt(np.mean(error**2)) < 0.6 * SIGMA
    assert found.t[0] == 3.0 and np.count_nonzero(found.impulse > 1.0) >= 2
    assert np.mean(error**2 / found.covariance[:, 0, 0]) < 3.0


def test_what_cannot_be_smoothed_is_named(model):
    system = System(model, DT)
    recording = Recording("r", {"height": (DT * np.arange(5), np.zeros(5)), "touch": (DT * np.arange(5), np.zeros(5))})
    with pytest.raises(OptionError, match="'touch' is a ContactSwitch, which measures forces"):
        smooth(system, recording, [Encoder("height"), ContactSwitch("touch", body="ball")])
    with pytest.raises(OptionError, match="offsets names 'hight', which no sensor measures"):
        smooth(system, recording, [Encoder("height")], offsets={"hight": 0.1})
    with pytest.raises(OptionError, match="two samples within one step of dt = 0.05 s"):
        smooth(System(model, 0.05), recording, [Encoder("height")])
    two = Recording("r", {"height": (DT * np.arange(5), np.zeros((5, 2)))})
    with pytest.raises(RecordingError, match="has 2 columns; sensor Encoder expects 1"):
        smooth(system, two, [Encoder("height")])
    with pytest.raises(OptionError, match="noise: drift is -1.0"):
        ProcessNoise(drift=-1.0)


def test_a_first_state_half_a_turn_from_the_default():
    """The error of a rotation by half a turn has no direction: the first state is sought near the first row."""
    system = System(load_model("cube"), dt=0.01)
    rng, t = np.random.default_rng(0), 0.01 * np.arange(6)
    turns = np.stack([0.0 * t, np.cos(0.5 * t), np.sin(0.5 * t), 0.0 * t], 1)  # about the vertical, upside down
    rows = np.concatenate([np.stack([0.3 * t, 0.0 * t, 0.5 + 0.0 * t], 1), turns], 1)
    noise = np.concatenate([2e-3 * rng.normal(size=(6, 3)), 1e-2 * rng.normal(size=(6, 3))], 1)
    noisy = np.stack([np.asarray(integrate(system.model, jnp.asarray(q), jnp.asarray(d))) for q, d in zip(rows, noise)])
    first = first_state((Pose("pose", noise=(2e-3, 1e-2)),), system, Recording("upside down", {"pose": (t, noisy)}))
    error = np.asarray(difference(system.model, jnp.asarray(rows[0]), first.q))
    # Deviations of a line through six samples: 0.72 of the noise at its end, 0.24 of it a sample in its slope; three of them.
    assert np.abs(error[:3]).max() < 5e-3 and np.abs(error[3:]).max() < 2.2e-2
    off = np.asarray(first.v) - [0.3, 0, 0, 0, 0, -1]
    assert np.abs(off[:3]).max() < 0.15 and np.abs(off[3:]).max() < 0.75
