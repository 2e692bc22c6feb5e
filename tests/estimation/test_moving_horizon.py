"""The moving horizon against the Kalman filter, and what it says of bad input."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics import NoContact, State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.estimation import Encoder, Input
from trajopt.estimation.moving_horizon import FLOOR, MovingHorizon
from trajopt.models import load_model_from_string

SLIDE = """<mujoco><option gravity="0 0 0"/><worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="0.4"/>
<geom type="sphere" size="0.1" mass="2"/></body></worldbody>
<actuator><motor name="push" joint="x"/></actuator></mujoco>"""
DT, STEPS = 0.05, 24
NOISE, BIAS, DISTURBANCE, DRIFT = {"x": 0.02, "v": 0.1}, 0.05, 1.5, 0.3
MISSING = {"x": (4, 9, 10), "v": tuple(range(0, STEPS, 3))}  # the rates of the sensors differ
START, SPREAD = np.array([0.3, -0.2]), np.array([0.2, 0.5])


def slide() -> System:
    return System(load_model_from_string(SLIDE), DT, NoContact())


def horizon(window: float, **options) -> MovingHorizon:
    sensors = (
        Encoder("x", noise=NOISE["x"], static_noise=BIAS), Encoder("v", noise=NOISE["v"], velocity=True), Input("push", gain=2.0)
    )  # fmt: skip
    given = {
        "start": State(jnp.asarray(START[:1]), jnp.asarray(START[1:])), "start_deviation": tuple(SPREAD),
        "disturbance": DISTURBANCE, "drift": DRIFT,
    }  # fmt: skip
    return MovingHorizon(slide(), sensors, window, **given | options)


def stream() -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {"push": rng.normal(size=1)} | {c: rng.normal(size=1) for c in "xv" if k not in MISSING[c]} for k in range(STEPS)
    ]


def kalman(window: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and covariances of (x, v, bias), with what the horizon adds to the prior when a step leaves its window."""
    system = slide()
    found = system.linearize(State(jnp.zeros(1), jnp.zeros(1)), jnp.zeros(1))
    A = np.block([[np.asarray(found.A), np.zeros((2, 1))], [np.zeros((1, 2)), np.eye(1)]])
    B = np.append(np.asarray(found.B)[:, 0], 0.0)
    added = np.diag([FLOOR**2, FLOOR**2, FLOOR**2 + DRIFT**2 * DT * BIAS**2])
    m0, P0 = np.append(START, 0.0), np.diag([*SPREAD**2, BIAS**2])
    rows, means, data = {"x": np.array([1.0, 0.0, 1.0]), "v": np.array([0.0, 1.0, 0.0])}, [], stream()

    def through(m, P, row):
        m, P = A @ m + B * 2.0 * row["push"][0], A @ P @ A.T + DISTURBANCE**2 * np.outer(B, B)
        for c, h in rows.items():
            if c in row:
                gain = P @ h / (h @ P @ h + NOISE[c] ** 2)
                m, P = m + gain * (row[c][0] - h @ m), P - np.outer(gain, h @ P)
        return m, P

    for k in range(STEPS):
        m, P = m0, P0
        for j in range(k + 1):
            m, P = through(m, P, data[j])
            if j <= k - window:
                P = P + added
        means.append((m, P))
    return means


@pytest.mark.parametrize("window", [1, 5])
def test_for_a_linear_system_it_is_the_kalman_filter(window):
    """Before and after the window is full, with readings that are missing: means and covariances."""
    mhe = horizon(window * DT)
    for row, (m, P) in zip(stream(), kalman(window), strict=True):
        now = mhe.update(row)
        np.testing.assert_allclose(np.concatenate([now.x.q, now.x.v, now.offsets["x"]]), m, atol=3e-7)
        np.testing.assert_allclose(now.covariance, P, atol=3e-8)
    assert mhe._advance._cache_size() == 1  # one program for all windows
    mhe.reset()
    first = mhe.update(stream()[0])
    np.testing.assert_allclose(first.x.q, kalman(window)[0][0][:1], atol=3e-7)


def test_a_late_reading_counts_where_it_belongs():
    """A sensor that is two steps late, fed two steps later, ends at what one without delay finds for then."""
    sensors = (Encoder("x", noise=0.02), Input("push"))
    late = (Encoder("x", noise=0.02, delay=2 * DT), Input("push"))
    now, later = (MovingHorizon(slide(), s, 6 * DT, start_deviation=(0.3, 0.3)) for s in (sensors, late))
    rng = np.random.default_rng(1)
    readings, pushes = rng.normal(size=(4, 1)), rng.normal(size=(4, 1))
    for k in range(4):
        seen = now.update({"push": pushes[k]} | ({"x": readings[k]} if k < 2 else {}))
        then = later.update({"push": pushes[k]} | ({"x": readings[k - 2]} if k >= 2 else {}))
    np.testing.assert_allclose(then.x.q, seen.x.q, atol=1e-9)


def test_bad_input_is_named():
    with pytest.raises(OptionError, match="window is 0.0; expected a time of at least one step"):
        horizon(0.0)
    with pytest.raises(ShapeError, match=r"disturbance has shape \(3,\); expected \(1,\)"):
        horizon(0.2, disturbance=np.ones(3))
    with pytest.raises(OptionError, match="delay is 1.0; expected less than the window"):
        MovingHorizon(slide(), Encoder("x", delay=1.0), 0.2)
    mhe = horizon(0.2)
    with pytest.raises(UnknownNameError, match="no sensor measures 'y'"):
        mhe.update({"y": np.zeros(1)})
    with pytest.raises(ShapeError, match="the row of 'x' has shape"):
        mhe.update({"x": np.zeros(2)})
    with pytest.raises(NonFiniteError, match="the row of 'push'"):
        mhe.update({"push": np.array([np.nan])})
