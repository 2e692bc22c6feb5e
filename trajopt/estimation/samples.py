"""The samples of a recording on the grid of a system's steps, and a first state that explains the first of them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError, RecordingError
from trajopt.estimation.moments import Moment
from trajopt.estimation.packing import guessed_first
from trajopt.estimation.recording import Recording
from trajopt.estimation.sensors import Sensor

START_SAMPLES = 6  # of each channel, from which the first state is guessed
START_ITERATIONS = 12  # of Gauss-Newton for it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """A sensor's samples on the grid of the steps: row k holds what was measured within step k, at `share` of it; NaN elsewhere.

    first: the row measured at the first state, NaN where there is none.
    """

    rows: Float[Array, "T w"]
    share: Float[Array, " T"]
    first: Float[Array, " w"]


def room_for(steps: int) -> int:
    """Steps of the compiled program: at least `steps`, two sizes to an octave, so that recordings share programs."""
    unit = 2 ** max(4, int(np.log2(steps)) - 1)
    return unit * -(-steps // unit)


def on_grid(sensor: Sensor, system: System, recording: Recording, dt: float, steps: int) -> Samples:
    """The samples of a sensor by step."""
    channel = recording[sensor.channel]
    where = f"recording '{recording.name}', channel '{sensor.channel}'"
    width = sensor.width(system.model)
    if channel.values.shape[1] != width:
        raise RecordingError(f"{where} has {channel.values.shape[1]} columns; sensor {type(sensor).__name__} expects {width}")
    place = (channel.t - float(sensor.delay) - recording.start) / dt
    step = np.ceil(place - 1e-6).astype(int) - 1
    inside = (step >= 0) & (step < steps)
    if np.unique(step[inside]).size < inside.sum():
        raise OptionError(
            f"{where} has two samples within one step of dt = {dt:.4g} s; they come every {channel.interval:.4g} s: make the "
            "system with a smaller dt"
        )
    rows, share = np.full((steps, width), np.nan), np.ones(steps)
    rows[step[inside]], share[step[inside]] = channel.values[inside], np.clip(place - step, 0.0, 1.0)[inside]
    first = channel.values[step == -1]
    return Samples(jnp.asarray(rows), jnp.asarray(share), jnp.asarray(first[-1] if len(first) else np.full(width, np.nan)))


def held_controls(inputs: list[Sensor], system: System, recording: Recording, dt: float, steps: int) -> Float[Array, "T nu"]:
    """What the controls hold at the start of each step."""
    if not inputs:
        return jnp.zeros((steps, system.nu))
    [sensor] = inputs
    channel = recording[sensor.channel]
    if channel.values.shape[1] != system.nu:
        raise RecordingError(
            f"recording '{recording.name}', channel '{sensor.channel}' has {channel.values.shape[1]} columns; the system has "
            f"{system.nu} controls"
        )
    t = recording.start + dt * np.arange(steps) - float(sensor.delay) + 1e-6 * dt
    last = np.clip(np.searchsorted(channel.t, t, side="right") - 1, 0, len(channel.t) - 1)
    return jnp.asarray(float(sensor.gain) * np.nan_to_num(channel.values[last]))


def first_state(sensors: tuple[Sensor, ...], system: System, recording: Recording) -> State:
    """A state and its velocity, taken as constant, that explain the first samples of every channel."""
    first = [recording[s.channel] for s in sensors]
    t = tuple(jnp.asarray(c.t[:START_SAMPLES] - recording.start) for c in first)
    rows = tuple(jnp.asarray(c.values[:START_SAMPLES]) for c in first)
    near = guessed_first(system, recording, sensors)  # the error of a rotation by half a turn has no direction
    return _explained(sensors, system, t, rows, jnp.asarray(near.q))


@functools.partial(jax.jit, static_argnums=0)
def _explained(sensors: tuple[Sensor, ...], system: System, t: Any, rows: Any, near: Float[Array, " nq"]) -> State:
    model, nv = system.model, system.nv
    start = State(near, jnp.zeros(nv))

    def residual(d: Array, at: State) -> Array:
        q, v = integrate(model, at.q, d[:nv]), at.v + d[nv:]
        parts = [1e-3 * jnp.concatenate([difference(model, start.q, q), v])]  # decides what nothing determines
        for sensor, times, values in zip(sensors, t, rows, strict=True):
            constants = constants_of(sensor, system)

            def error(time: Array, row: Array, sensor: Sensor = sensor, constants: Any = constants) -> Array:
                there = integrate(model, q, time * v)
                moment = Moment(there, v, integrate(model, there, system.dt * v), v, jnp.zeros(()), jnp.asarray(system.dt))
                return sensor.error(sensor.predict(model, constants, moment), row) / sensor.deviations(model)

            every = jax.vmap(error)(times, values)
            parts.append(jnp.nan_to_num(every).reshape(-1))
        return jnp.concatenate(parts)

    def turn(at: State, _: None) -> tuple[State, None]:
        zero = jnp.zeros(2 * nv)
        J, r = jax.jacfwd(residual)(zero, at), residual(zero, at)
        J = jnp.nan_to_num(J)
        d = -jnp.linalg.lstsq(J, r)[0]
        return State(integrate(model, at.q, d[:nv]), at.v + d[nv:]), None

    return jax.lax.scan(turn, start, None, START_ITERATIONS)[0]


def constants_of(sensor: Sensor, system: System) -> Any:
    return {name: jnp.asarray(value) for name, value in sensor.constants(system.model).items()}
