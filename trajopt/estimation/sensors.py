"""Sensors: what each channel of a recording measures, as a function of the motion, with noise, delay and gain.

A sensor predicts the row that its channel should hold at a time stamp t: the quantity at t - delay, times gain, plus bias.
Between two states of the simulated motion the prediction moves as the step does: q along the new velocity, v linearly. What of
delay, gain, bias and mounting is unknown, `identify` finds: its parameter "imu.gyro_bias" is the constant "gyro_bias" of the
sensor of channel "imu".
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import frame_placement
from trajopt.dynamics.rigid_body.lie import (
    quaternion_conjugate,
    quaternion_exp,
    quaternion_from_rotation,
    quaternion_log,
    quaternion_product,
    rotation_exp,
)
from trajopt.errors import OptionError
from trajopt.estimation.moments import Moment, contact_forces, frame_motion, frame_of, free_start
from trajopt.names import NamedOptions

Constants = dict[str, Float[Array, "..."]]


@dataclasses.dataclass(frozen=True)
class Sensor(NamedOptions):
    """Base of all sensors.

    Options:
        channel: name of the channel of the recordings.
        noise: standard deviation of a sample, in the unit of the channel: a number, or one for each row of the error.
        delay (s): by which the time stamp is later than what was measured.
        gain: by which the measured quantity is multiplied.
        static_noise: standard deviation of an error that stays the same during a recording, as that of a marker that was stuck
        on
            askew: a number, or one for each row of the error; None for no such error.
    """

    channel: str
    noise: float | tuple[float, ...] = 1.0
    delay: float = 0.0
    gain: float = 1.0
    static_noise: float | tuple[float, ...] | None = None

    needs_contacts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.channel, str) or not self.channel:
            raise OptionError(
                f"{type(self).__name__}: channel is {self.channel!r}; expected the name of a channel, such as 'pose'"
            )
        if not np.all(np.isfinite(np.asarray(self.noise, float))) or np.any(np.asarray(self.noise, float) <= 0):
            raise OptionError(
                f"sensor '{self.channel}': noise is {self.noise}; expected positive deviations in the unit of the channel"
            )
        for name in ("delay", "gain"):
            if not np.isfinite(getattr(self, name)):
                raise OptionError(f"sensor '{self.channel}': {name} is {getattr(self, name)}; expected a finite number")

    def width(self, model: Model) -> int:
        """Columns of the channel."""
        return len(self.labels(model))

    def labels(self, model: Model) -> tuple[str, ...]:
        """Names of the rows of the error."""
        raise NotImplementedError(f"{type(self).__name__} defines no labels")

    @property
    def of_configuration(self) -> bool:
        """Whether configurations are measured: errors that say how far a predicted motion is off."""
        return False

    def quantities(self, model: Model) -> list[slice]:
        """Rows of the error that have one unit and belong together, as the three of a position."""
        return [slice(0, len(self.labels(model)))]

    @property
    def has_offset(self) -> bool:
        """Whether each recording has a static error of its own."""
        return self.static_noise is not None

    def offset_deviations(self, model: Model) -> Float[np.ndarray, " rows"]:
        """`static_noise` of each row of the error."""
        return self._by_row(model, "static_noise", self.static_noise)

    def deviations(self, model: Model) -> Float[np.ndarray, " rows"]:
        """The noise of each row of the error."""
        return self._by_row(model, "noise", self.noise)

    def _by_row(self, model: Model, name: str, value: Any) -> Float[np.ndarray, " rows"]:
        rows, given = len(self.labels(model)), np.asarray(value, float)
        if given.ndim == 0:
            return np.full(rows, float(given))
        if given.ndim != 1 or rows % given.size:
            raise OptionError(
                f"sensor '{self.channel}': {name} has {given.size} entries; expected one, or one for each of "
                f"{self.labels(model)}"
            )
        return np.repeat(given, rows // given.size)

    def constants(self, model: Model) -> dict[str, Float[np.ndarray, "..."]]:
        """What `identify` can find of the sensor, by name, with the values that it has now."""
        return {"delay": np.asarray(float(self.delay)), "gain": np.asarray(float(self.gain))}

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        """The row of the channel."""
        raise NotImplementedError(f"{type(self).__name__} defines no prediction")

    def error(self, predicted: Float[Array, " w"], measured: Float[Array, " w"]) -> Float[Array, " rows"]:
        """Measured minus predicted, in tangent coordinates where the row is a pose."""
        return measured - predicted

    def offset(self, predicted: Float[Array, " w"], offset: Float[Array, " rows"]) -> Float[Array, " w"]:
        """The row moved by an error: `error(predicted, offset(predicted, e))` is e."""
        return predicted + offset

    def check(self, model: Model) -> None:
        """Raise the error of a body, joint or noise that does not fit the model."""
        self.deviations(model)


@dataclasses.dataclass(frozen=True)
class Pose(Sensor):
    """Pose of a body in the world, as from motion capture: x, y, z (m) and a unit quaternion w x y z.

    Options:
        body: a frame of the model; None is the first free body.

    noise: one deviation for positions (m) and one for rotations (rad).
    """

    noise: float | tuple[float, ...] = (1e-3, 1e-2)
    body: str | None = None

    def frame(self, model: Model) -> str:
        """The frame whose pose it is."""
        return frame_of(self, model)

    def width(self, model: Model) -> int:
        return 7

    def labels(self, model: Model) -> tuple[str, ...]:
        return ("x, m", "y, m", "z, m", "turn about x, rad", "turn about y, rad", "turn about z, rad")

    @property
    def of_configuration(self) -> bool:
        return True

    def quantities(self, model: Model) -> list[slice]:
        return [slice(0, 3), slice(3, 6)]

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        q = moment.q(model)
        start = free_start(model, self.frame(model))
        if start is None:
            rotation, position = frame_placement(model, q, self.frame(model))
            return jnp.concatenate([constants["gain"] * position, quaternion_from_rotation(rotation)])
        return jnp.concatenate([constants["gain"] * q[start : start + 3], q[start + 3 : start + 7]])

    def error(self, predicted: Float[Array, " w"], measured: Float[Array, " w"]) -> Float[Array, " rows"]:
        turn = quaternion_log(quaternion_product(quaternion_conjugate(predicted[3:]), measured[3:]))
        return jnp.concatenate([measured[:3] - predicted[:3], turn])

    def offset(self, predicted: Float[Array, " w"], offset: Float[Array, " rows"]) -> Float[Array, " w"]:
        return jnp.concatenate(
            [predicted[:3] + offset[:3], quaternion_product(predicted[3:], quaternion_exp(offset[3:]))]
        )

    def check(self, model: Model) -> None:
        super().check(model)
        self.frame(model)


@dataclasses.dataclass(frozen=True)
class Encoder(Sensor):
    """Coordinates of joints with one degree of freedom, rad or m.

    Options:
        joints: names of the joints, in the order of the columns; None is all of them.
        velocity: whether their velocities are measured in place of their positions.
        bias: added to each column.
    """

    noise: float | tuple[float, ...] = 1e-3
    joints: tuple[str, ...] | None = None
    velocity: bool = False
    bias: tuple[float, ...] | None = None

    @property
    def of_configuration(self) -> bool:
        return not self.velocity

    def _joints(self, model: Model) -> list[Any]:
        scalar = [joint for joint in model.topology.joints if joint.nv == 1]
        if self.joints is None:
            return scalar
        found = [model.topology.joint(name) for name in self.joints]
        for joint in found:
            if joint.nv != 1:
                raise OptionError(
                    f"sensor '{self.channel}': joint '{joint.name}' is {joint.kind}; an encoder measures one coordinate"
                )
        return found

    def labels(self, model: Model) -> tuple[str, ...]:
        return tuple(joint.name for joint in self._joints(model))

    def constants(self, model: Model) -> dict[str, Float[np.ndarray, "..."]]:
        bias = np.zeros(self.width(model)) if self.bias is None else np.asarray(self.bias, float)
        return super().constants(model) | {"bias": bias}

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        joints = self._joints(model)
        if self.velocity:
            x = moment.v[np.array([joint.v_start for joint in joints])]
        else:
            x = moment.q(model)[np.array([joint.q_start for joint in joints])]
        return constants["gain"] * x + constants["bias"]


@dataclasses.dataclass(frozen=True)
class Velocity(Sensor):
    """The whole velocity v of the model, as MuJoCo's qvel: for a free body m/s in world axes and rad/s in its own."""

    noise: float | tuple[float, ...] = 0.1

    def labels(self, model: Model) -> tuple[str, ...]:
        return tuple(f"v{k}" for k in range(model.nv))

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        return constants["gain"] * moment.v


@dataclasses.dataclass(frozen=True)
class IMU(Sensor):
    """Gyroscope (rad/s, three columns) and accelerometer (m/s^2, three columns: acceleration minus gravity), in its own axes.

    Options:
        body: the frame that it is mounted on; None is the first body.
        position (m): of the IMU in that frame.
        rotation (rad): of the IMU in that frame, a rotation vector.
        gyro_bias (rad/s): added to the columns of the gyroscope.
        accelerometer_bias (m/s^2): added to the columns of the accelerometer.
        noise: one deviation for the gyroscope and one for the accelerometer.

    The acceleration is that over a simulated step.
    """

    noise: float | tuple[float, ...] = (0.01, 0.1)
    body: str | None = None
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rotation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gyro_bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    accelerometer_bias: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def labels(self, model: Model) -> tuple[str, ...]:
        return tuple(f"gyro {a}, rad/s" for a in "xyz") + tuple(f"acceleration {a}, m/s^2" for a in "xyz")

    def constants(self, model: Model) -> dict[str, Float[np.ndarray, "..."]]:
        names = ("position", "rotation", "gyro_bias", "accelerometer_bias")
        return super().constants(model) | {name: np.asarray(getattr(self, name), float) for name in names}

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        frame = frame_of(self, model)
        mounting, point = rotation_exp(constants["rotation"]), constants["position"]
        _, before, _ = frame_motion(model, moment.q0, moment.v0, frame, point)
        _, after, _ = frame_motion(model, moment.q1, moment.v1, frame, point)
        acceleration = (after - before) / moment.dt - jnp.asarray(model.gravity)
        rotation, _, omega = frame_motion(model, moment.q(model), moment.v, frame, point)
        axes = (rotation @ mounting).T
        gyro = axes @ omega + constants["gyro_bias"]
        return constants["gain"] * jnp.concatenate([gyro, axes @ acceleration + constants["accelerometer_bias"]])

    def check(self, model: Model) -> None:
        super().check(model)
        frame_of(self, model)


@dataclasses.dataclass(frozen=True)
class ForceTorque(Sensor):
    """Force (N) and moment (N m, about the frame's origin) that contacts exert on a body, in the frame's axes.

    Options:
        body: a frame of the model; None is the first free body.
        bias: added to the six columns.
    """

    noise: float | tuple[float, ...] = (1.0, 0.1)
    body: str | None = None
    bias: tuple[float, ...] = (0.0,) * 6

    needs_contacts: ClassVar[bool] = True

    def labels(self, model: Model) -> tuple[str, ...]:
        return tuple(f"force {a}, N" for a in "xyz") + tuple(f"moment {a}, N m" for a in "xyz")

    def constants(self, model: Model) -> dict[str, Float[np.ndarray, "..."]]:
        return super().constants(model) | {"bias": np.asarray(self.bias, float)}

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        frame = frame_of(self, model)
        rotation, position = frame_placement(model, moment.q1, frame)
        forces, points = contact_forces(model, moment, frame)
        moments = jnp.cross(points - position, forces).sum(0)
        wrench = jnp.concatenate([rotation.T @ forces.sum(0), rotation.T @ moments])
        return constants["gain"] * wrench + constants["bias"]

    def check(self, model: Model) -> None:
        super().check(model)
        frame_of(self, model)


@dataclasses.dataclass(frozen=True)
class ContactSwitch(Sensor):
    """Whether a body is in contact, 0 or 1 (one column).

    Options:
        body: a frame of the model.
        threshold (N): force at which the switch closes.
        width_of_switching (N): over which it closes, in the smooth curve that stands for it.
    """

    noise: float | tuple[float, ...] = 0.2
    body: str | None = None
    threshold: float = 1.0
    width_of_switching: float = 0.5

    needs_contacts: ClassVar[bool] = True

    def labels(self, model: Model) -> tuple[str, ...]:
        return ("contact",)

    def constants(self, model: Model) -> dict[str, Float[np.ndarray, "..."]]:
        return super().constants(model) | {"threshold": np.asarray(float(self.threshold))}

    def predict(self, model: Model, constants: Constants, moment: Moment) -> Float[Array, " w"]:
        forces, _ = contact_forces(model, moment, frame_of(self, model))
        size = jnp.sqrt((forces.sum(0) ** 2).sum() + 1e-12)
        return constants["gain"] * jax.nn.sigmoid((size - constants["threshold"]) / self.width_of_switching)[None]

    def check(self, model: Model) -> None:
        super().check(model)
        frame_of(self, model)


@dataclasses.dataclass(frozen=True)
class Input(Sensor):
    """Known controls u of the system: commands or measured torques, one column for each control.

    Between time stamps the last row holds. delay: from the command to its action; gain: the action of a unit of the command.
    """

    def labels(self, model: Model) -> tuple[str, ...]:
        return model.topology.actuators


def check_sensors(sensors: Any, model: Model) -> tuple[Sensor, ...]:
    """`sensors` as a tuple whose channels are unique and that fit the model."""
    found = (sensors,) if isinstance(sensors, Sensor) else tuple(sensors)
    for k, sensor in enumerate(found):
        if not isinstance(sensor, Sensor):
            raise OptionError(f"sensors[{k}] is {sensor!r}; expected a sensor such as Pose('pose') or Encoder('q')")
        sensor.check(model)
    channels = [sensor.channel for sensor in found]
    if len(set(channels)) < len(channels):
        twice = next(c for c in channels if channels.count(c) > 1)
        raise OptionError(f"two sensors measure channel '{twice}'; rename a column in the recordings")
    if not any(not isinstance(sensor, Input) for sensor in found):
        raise OptionError("sensors holds no measurement; give one such as Pose('pose') or Encoder('q')")
    return found


def errors_from(sensor: Sensor, series: list[Float[np.ndarray, "_ w"]], place: int) -> list[Float[np.ndarray, "_ rows"]]:
    """The errors of the rows of each series against its row `place`. One program: what has a length of its own compiles again."""
    if not sum(map(len, series)):
        return [np.zeros((0, 1))] * len(series)
    rows = np.concatenate(series)
    base = np.concatenate([np.repeat(one[place:][:1], len(one), 0) for one in series])
    errors = np.asarray(jax.jit(jax.vmap(sensor.error))(jnp.asarray(base), jnp.asarray(rows)))
    return np.split(errors, np.cumsum([len(one) for one in series])[:-1])
