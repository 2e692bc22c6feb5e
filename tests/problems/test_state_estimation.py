"""go1-state-estimation: the recording against itself, what it cannot know, and the moving horizon on it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics.rigid_body.lie import quaternion_product
from trajopt.errors import OptionError
from trajopt.estimation import MovingHorizon, examples
from trajopt.models.descriptions import roll_pitch_yaw
from trajopt.problems.library import state_estimation as se
from trajopt.result import Status
from trajopt.solvers import GaussNewton, solve

STEPS = 6


@pytest.fixture(scope="module")
def walk() -> se.Walk:
    return se.walk(STEPS)


def test_the_inertial_unit_without_errors_gives_the_truth_back(walk):
    """The step's own integration: v += dt a, q (+)= dt v with the new velocity. Joints are read, so they are exact as well."""
    true = jax.vmap(lambda x: se.readings(walk.system, x))(jnp.asarray(walk.truth))
    exact = dataclasses.replace(walk, measurements=np.asarray(true))
    np.testing.assert_allclose(exact.errors(exact.dead_reckoning(walk.truth[0])), 0.0, atol=1e-11)


def test_the_recording_is_what_its_deviations_say(walk):
    """Readings are off by unit variance in deviations (30 of 7 readings: 99.9 % of their mean square is within 0.68 to 1.38),
    the prior by less than 4 deviations, its highest foot touching; the recording starts at the origin, unturned."""
    errors = (jax.vmap(lambda x: se.readings(walk.system, x))(jnp.asarray(walk.truth)) - walk.measurements) / se.NOISE
    assert 0.68 < float(jnp.mean(errors**2)) < 1.38
    off = se.local(walk.system.model, jnp.asarray(walk.mean), jnp.asarray(walk.truth[0])) / se.PRIOR
    assert 0.3 < float(jnp.abs(off).max()) < 4.0
    np.testing.assert_allclose(walk.truth[0, :2], 0.0, atol=1e-15)
    np.testing.assert_allclose(roll_pitch_yaw(walk.truth[:1, 3:7])[0, 2], 0.0, atol=1e-15)
    np.testing.assert_allclose(se.highest_foot(walk.system.model, walk.mean[: se.NQ]), 0.0, atol=1e-15)
    model = walk.system.model
    dx = jnp.asarray(np.random.default_rng(0).normal(size=se.N))
    x = jnp.asarray(walk.truth[1])
    np.testing.assert_allclose(se.local(model, x, se.retract(model, x, 0.1 * dx)), 0.1 * dx, atol=1e-12)


def test_place_and_heading_cannot_be_seen(walk):
    """Moved along the floor and turned about the vertical, the robot reads the same and moves the same."""
    turn, away = 0.7, np.array([1.0, -2.0])
    c, s = np.cos(turn), np.sin(turn)
    half = jnp.array([np.cos(turn / 2), 0.0, 0.0, np.sin(turn / 2)])

    def placed(x):
        plane = lambda a: jnp.stack([c * a[0] - s * a[1], s * a[0] + c * a[1]])  # noqa: E731
        x = x.at[3:7].set(quaternion_product(half, x[3:7])).at[:2].set(plane(x[:2]) + away)
        for at in (se.NQ, se.NQ + se.NV):
            x = x.at[at : at + 2].set(plane(x[at : at + 2]))
        return x

    x, u = jnp.asarray(walk.truth[2]), jnp.asarray(walk.us[2])
    np.testing.assert_allclose(se.readings(walk.system, placed(x)), se.readings(walk.system, x), atol=1e-11)
    step = jax.jit(lambda x: se.step(walk.system, x, u, jnp.zeros(se.NV)))
    np.testing.assert_allclose(step(placed(x)), placed(step(x)), atol=1e-8)


def test_bad_settings_are_named():
    with pytest.raises(OptionError, match="steps is 0; it must be at least 1"):
        se.walk(0)
    with pytest.raises(OptionError, match="dt is 0.02; the gait's controller is stable"):
        se.walk(5, dt=0.02)


@pytest.mark.slow
def test_the_whole_motion_is_found():
    """From dead reckoning; the cost is half of what 51 x 30 readings and the prior leave beside the unknowns."""
    answer = solve(se.go1_state_estimation(), GaussNewton())
    assert answer.status == Status.solved
    np.testing.assert_allclose(answer.cost, 800, rtol=0.05)


def followed(robot):
    """Errors and their claimed deviations from the eleventh reading on, and errors of the inertial unit alone."""
    horizon = MovingHorizon(
        robot.system, robot.sensors, 0.1, start=robot.start, start_deviation=robot.start_deviation,
        disturbance=robot.disturbance,
    )  # fmt: skip
    errors, spread = [], []
    for k, rows in enumerate(robot.rows()):
        now = horizon.update(rows)
        errors.append(robot.errors(now.x, now.offsets, k))
        spread.append(np.sqrt(np.diag(now.covariance)))
    return np.array(errors)[10:], np.array(spread)[10:], robot.walk.errors(robot.walk.dead_reckoning())[10:]


@pytest.mark.slow
def test_the_moving_horizon_follows_the_base():
    """100 readings each. Once the prior is overcome, tilt is known to 3 mrad and velocity to 2 cm/s (rms), the inertial unit
    alone is at least 5 times worse, and nine in ten errors are within two claimed deviations. Errors of neighbouring states
    are much the same, so that one recording alone says little of that."""
    tilt, velocity = slice(3, 5), slice(se.NV, se.NV + 3)
    runs = [followed(examples.walking_robot(100, seed=seed)) for seed in range(4)]
    rms = lambda e, part: np.sqrt(np.mean(e[:, part] ** 2))  # noqa: E731
    for error, _, blind in runs:
        assert rms(error, tilt) < 3e-3 and rms(error, velocity) < 0.02
        assert rms(blind, tilt) > 5 * rms(error, tilt) and rms(blind, velocity) > 5 * rms(error, velocity)
    inside = np.concatenate([np.abs(error) < 2 * spread for error, spread, _ in runs])
    assert np.mean(inside[:, tilt]) > 0.9 and np.mean(inside[:, velocity]) > 0.9
