"""Sensors predict what they would measure: against closed forms of simple motions."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import RigidContact, State, System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.estimation import IMU, ContactSwitch, Encoder, ForceTorque, Input, Moment, Pose, Velocity
from trajopt.estimation.sensors import check_sensors

DT = 1e-3


@pytest.fixture(scope="module")
def cube():
    return System(load_model("cube"), DT, RigidContact(max_contacts=4))


def moment(system, x, share=0.0):
    after, info = system.step(x, np.zeros(system.nu))
    return Moment(x.q, x.v, after.q, after.v, jnp.asarray(share), jnp.asarray(DT), info.contacts)


def predicted(sensor, model, at):
    constants = {name: jnp.asarray(value) for name, value in sensor.constants(model).items()}
    return sensor.predict(model, constants, at)


def test_imu_in_free_fall_and_at_rest(cube):
    model = cube.model
    falling = State(jnp.asarray(model.q_default).at[2].set(1.0), jnp.array([0.3, 0.0, 0.0, 0.0, 0.0, 2.0]))
    lever = (0.05, 0.0, 0.0)
    seen = predicted(IMU("imu", position=lever, gyro_bias=(0.1, 0.0, 0.0)), model, moment(cube, falling))
    np.testing.assert_allclose(seen[:3], [0.1, 0.0, 2.0], atol=1e-12)
    np.testing.assert_allclose(seen[3:], [-4.0 * 0.05, 0.0, 0.0], atol=1e-3)  # centripetal; of first order in dt w
    resting = State(jnp.asarray(model.q_default), jnp.zeros(6))
    turned = IMU("imu", rotation=(np.pi / 2, 0.0, 0.0))  # its y axis is the body's z
    np.testing.assert_allclose(predicted(turned, model, moment(cube, resting))[3:], [0.0, 9.81, 0.0], atol=1e-6)


def test_forces_of_contacts_carry_the_weight(cube):
    model = cube.model
    at = moment(cube, State(jnp.asarray(model.q_default), jnp.zeros(6)))
    np.testing.assert_allclose(predicted(ForceTorque("ft"), model, at), [0, 0, 9.81, 0, 0, 0], atol=1e-6)
    assert float(predicted(ContactSwitch("foot", body="cube"), model, at)[0]) > 0.99
    air = moment(cube, State(jnp.asarray(model.q_default).at[2].set(1.0), jnp.zeros(6)))
    assert float(predicted(ContactSwitch("foot", body="cube"), model, air)[0]) < 0.2


def test_pose_and_velocity_between_two_states(cube):
    model = cube.model
    x = State(jnp.asarray(model.q_default).at[2].set(1.0), jnp.array([1.0, 0.0, 0.0, 0.0, 0.0, 3.0]))
    at = moment(cube, x, share=0.5)
    pose = predicted(Pose("pose"), model, at)
    np.testing.assert_allclose(pose[0], 0.5 * DT, rtol=1e-9)
    np.testing.assert_allclose(pose[3:], [np.cos(0.75 * DT), 0, 0, np.sin(0.75 * DT)], atol=1e-12)
    np.testing.assert_allclose(predicted(Velocity("v"), model, at)[2], -0.5 * DT * 9.81, rtol=1e-9)
    sensor = Pose("pose")
    e = jnp.array([0.1, -0.2, 0.3, 0.02, 0.01, -0.03])
    np.testing.assert_allclose(sensor.error(pose, sensor.offset(pose, e)), e, atol=1e-12)
    np.testing.assert_allclose(
        sensor.error(pose, -pose)[3:], 0.0, atol=1e-12
    )  # a quaternion and its negative are one rotation


def test_encoders_with_gain_and_bias():
    model = load_model("hopper").to_device()
    q, v = jnp.arange(6.0), 10.0 + jnp.arange(6.0)
    at = Moment(q, v, q, v, jnp.asarray(0.0), jnp.asarray(DT))
    sensor = Encoder("q", joints=("leg_joint", "thigh_joint"), gain=2.0, bias=(0.5, 0.0))
    np.testing.assert_allclose(predicted(sensor, model, at), [2 * 4 + 0.5, 2 * 3])
    rates = Encoder("rate", joints=("foot_joint",), velocity=True)
    np.testing.assert_allclose(predicted(rates, model, at), [15.0])


def test_noise_of_rows():
    model = load_model("cube").to_device()
    np.testing.assert_array_equal(Pose("pose", noise=(1e-3, 1e-2)).deviations(model), [1e-3] * 3 + [1e-2] * 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pose("pose", body="cub"), "has no body 'cub'; did you mean 'cube'"),
        (lambda: Pose(""), "expected the name of a channel"),
        (lambda: Pose("pose", noise=(1.0, 0.0)), "expected positive deviations"),
        (lambda: Pose("pose", noise=(1.0,) * 4), "noise has 4 entries"),
        (lambda: Pose("pose", delay=np.nan), "delay is nan"),
        (lambda: Encoder("q", joints=("root",)), "joint 'root' is free"),
        (lambda: [Pose("a"), Pose("a")], "two sensors measure channel 'a'"),
        (lambda: [Input("u")], "no measurement"),
        (lambda: ["pose"], "expected a sensor"),
    ],
)
def test_bad_sensors(make, message):
    model = load_model("cube").to_device()
    with pytest.raises((OptionError, UnknownNameError), match=message):
        check_sensors(make(), model)
