r"""The motion behind one recording, through impacts: a sigma-point smoother on the manifold of states.

    smoothed = estimation.smooth(system, recording, [Pose("pose", noise=(2e-3, 1e-2))], offsets={"pose": (3e-4, 7.5e-3)})

Derivatives of a motion through impacts hold in a neighbourhood that is smaller than the noise. Here each step is taken by
cubature points, 2 n of them for n = 2 nv. Their mean and covariance after the step are the prediction, and their covariance with
the state before it is what the backward pass of Rauch, Tung and Striebel needs. With the covariance P = L L^T of x,

    d_i = +-sqrt(n) L_i,   x_i = f(x (+) d_i),   A^T = P^-1 mean(d_i e_i^T),   P+ = mean(e_i e_i^T) + Q,   G = P A^T P+^-1

where e_i is the deviation of x_i from their mean. The model is least right where bodies meet: besides a noise of its own the
velocity gets one that grows with the impulse J (N s) of the step's contacts, as if generalised impulses acted at random,

    Q_v = (a^2 dt + (k J / m)^2) m M^-1,       m: mass of the model,   M: its mass matrix.

A constant error of a sensor (a marker that is off, the bias of an IMU) is estimated too, as a state without a motion.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.estimation.covariances import factor, solved
from trajopt.estimation.moments import Moment
from trajopt.estimation.recording import Recording
from trajopt.estimation.samples import constants_of, first_state, held_controls, on_grid, room_for
from trajopt.estimation.sensors import IMU, Input, Sensor, check_sensors
from trajopt.names import closest


@dataclasses.dataclass(frozen=True)
class ProcessNoise:
    """How far one step may be wrong.

    Options:
        drift (m/s per square root of a second): a, that of the velocity in free motion.
        impulse_share: k, deviation of the impulses of a step, as a share of their sum.
        offset_drift (per square root of a second): of constant errors of sensors, as a share of their deviation.
    """

    drift: float = 0.03
    impulse_share: float = 0.12
    offset_drift: float = 0.02

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (np.isfinite(value) and value >= 0):
                raise OptionError(f"noise: {field.name} is {value}; expected a number that is not negative")


@dataclasses.dataclass(frozen=True)
class Smoothed:
    """The motion behind a recording.

    Attributes:
        t (s): of the states, `system.dt` apart, on the clock of the recording.
        x: the states, stacked.
        covariance: of each state, in tangent coordinates [dq, dv], (T+1, n, n).
        offsets: constant errors of sensors, by channel, in the rows of their error.
        offset_covariance: of each of them.
        chi_squared: by channel, mean square of the errors of prediction over their deviation: 1 where noise and model are right.
        impulse (N s): sum of the normal impulses of each step.
    """

    t: Float[np.ndarray, " T+1"]
    x: State
    covariance: Float[np.ndarray, "T+1 n n"]
    offsets: dict[str, Float[np.ndarray, " k"]]
    offset_covariance: dict[str, Float[np.ndarray, "k k"]]
    chi_squared: dict[str, float]
    impulse: Float[np.ndarray, " T"]

    @property
    def consistent(self) -> bool:
        """Whether every sensor's chi_squared is within a factor of two of 1."""
        return all(0.5 <= value <= 2.0 for value in self.chi_squared.values())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Belief:
    """Mean of state and constant errors, their covariance (n + k, n + k)."""

    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    offset: Float[Array, " k"]
    P: Float[Array, "N N"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Before:
    """The velocity before a step, its covariance with the belief after it, and its own."""

    v: Float[Array, " nv"]
    cross: Float[Array, "nv N"]
    P: Float[Array, "nv nv"]


def smooth(
    system: System,
    recording: Recording,
    sensors: Any,
    *,
    offsets: Mapping[str, float | tuple[float, ...]] | None = None,
    noise: ProcessNoise | None = None,
    start: State | None = None,
    start_deviation: tuple[float, float] = (0.1, 1.0),
) -> Smoothed:
    """The states of `system` behind a recording, given all of it, with their covariances.

    offsets: deviation of the constant error of a sensor, by channel: a number, or one for each part of its error, such as
        (m, rad) of a pose.
    start: a guess of the state at the recording's first time stamp; None: from its first samples.
    start_deviation: of the first state from its guess, of q (m, rad) and v (m/s, rad/s).
    Raises `RecordingError` for channels that do not fit, `OptionError` for options that do not.
    """
    noise = ProcessNoise() if noise is None else noise
    measuring, inputs = measuring_and_inputs(sensors, system, "smoothing")
    deviations = _offset_deviations(measuring, system, {} if offsets is None else offsets)
    dt = float(system.dt)
    steps = max(1, int(np.ceil((recording.end - recording.start) / dt - 1e-6)))
    room = room_for(steps)
    samples = {s.channel: on_grid(s, system, recording, dt, room) for s in measuring}
    us = held_controls(inputs, system, recording, dt, room)
    if start is None:
        start = first_state(tuple(measuring), system, recording)
    prior = np.concatenate([np.repeat(start_deviation, system.nv), *deviations.values()])
    belief = Belief(start.q, start.v, jnp.zeros(len(prior) - 2 * system.nv), jnp.diag(jnp.asarray(prior) ** 2))
    numbers = jnp.asarray([noise.drift, noise.impulse_share, noise.offset_drift])
    names = tuple(deviations)
    found, innovations, impulse = _smoothed(tuple(measuring), names, system, samples, us, belief, numbers)
    found = jax.tree.map(lambda a: a[: steps + 1], found)
    n, at, errors, spread = 2 * system.nv, 0, {}, {}
    for name in names:
        size = len(deviations[name])
        errors[name] = np.asarray(found.offset[0, at : at + size])
        spread[name] = np.asarray(found.P[0, n + at : n + at + size, n + at : n + at + size])
        at += size
    chi = {name: float(square.sum() / max(1.0, float(rows.sum()))) for name, (square, rows) in innovations.items()}
    t = recording.start + dt * np.arange(steps + 1)
    return Smoothed(t, State(found.q, found.v), np.asarray(found.P[:, :n, :n]), errors, spread, chi, np.asarray(impulse[:steps]))


def measuring_and_inputs(sensors: Any, system: System, purpose: str) -> tuple[list[Sensor], list[Sensor]]:
    """The sensors that measure, and those that hold controls. Raises `OptionError` for sensors of forces."""
    known = check_sensors(sensors, system.model)
    for sensor in known:
        if sensor.needs_contacts:
            raise OptionError(
                f"sensor '{sensor.channel}' is a {type(sensor).__name__}, which measures forces of contacts; {purpose} "
                "takes sensors of the motion: leave it out"
            )
    return [s for s in known if not isinstance(s, Input)], [s for s in known if isinstance(s, Input)]


def _offset_deviations(
    sensors: list[Sensor], system: System, offsets: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, " k"]]:
    channels = [sensor.channel for sensor in sensors]
    for name in offsets:
        if name not in channels:
            raise OptionError(f"offsets names '{name}', which no sensor measures{closest(name, channels)}")
    found = {}
    for sensor in sensors:
        if sensor.channel in offsets:
            given = offsets[sensor.channel]
            found[sensor.channel] = dataclasses.replace(sensor, noise=given).deviations(system.model)
    return found


# -- the passes --------------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=(0, 1))
def _smoothed(
    sensors: tuple[Sensor, ...], names: tuple[str, ...], system: System, samples: Any, us: Any, belief: Belief, noise: Any
) -> tuple[Belief, dict[str, tuple[Array, Array]], Array]:
    """(beliefs at every state given the whole recording, squared innovations and their rows by channel, impulses)."""
    prior = belief
    nv = system.nv
    nothing = Before(belief.v, jnp.zeros_like(belief.P[:nv]), jnp.zeros((nv, nv)))
    first = {s.channel: samples[s.channel].first for s in sensors}
    begun, squares = _corrected(sensors, names, system, belief, nothing, first, None)

    each = {name: (part.rows, part.share) for name, part in samples.items()}

    def forward(belief: Belief, inputs: Any):
        u, now = inputs
        predicted, cross, impulse = _predicted(system, belief, u, noise, prior)
        rows, share = ({name: part[k] for name, part in now.items()} for k in (0, 1))
        velocity = slice(nv, 2 * nv)
        before = Before(belief.v, cross[velocity], belief.P[velocity, velocity])
        after, squares = _corrected(sensors, names, system, predicted, before, rows, share)
        return after, (belief, predicted, cross, impulse, squares)

    last, (filtered, predicted, cross, impulse, later) = jax.lax.scan(forward, begun, (us, each))

    def backward(after: Belief, inputs: Any):
        here, ahead, cross = inputs
        gain = solved(ahead.P, cross.T).T
        miss = jnp.concatenate([_apart(system, ahead, after), after.offset - ahead.offset])
        moved = _moved(system, here, gain @ miss)
        P = here.P + gain @ (after.P - ahead.P) @ gain.T
        known = dataclasses.replace(moved, P=0.5 * (P + P.T))
        return known, known

    _, all_but_last = jax.lax.scan(backward, last, (filtered, predicted, cross), reverse=True)
    found = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), all_but_last, last)
    sums = jax.tree.map(lambda a, b: a + b.sum(0), squares, later)
    return found, sums, impulse


def _predicted(system: System, x: Belief, u: Array, noise: Array, prior: Belief):
    """(belief after a step, covariance of that before with it, impulse)."""
    model, nv, n = system.model, system.nv, 2 * system.nv
    L = factor(x.P[:n, :n]) * jnp.sqrt(float(n))
    d = jnp.concatenate([L.T, -L.T])

    def stepped(d: Array):
        y, info = system.step(State(integrate(model, x.q, d[:nv]), x.v + d[nv:]), u)
        return y, jnp.sum(jnp.maximum(info.contacts.impulse[:, 2], 0.0))

    y, impulses = jax.vmap(stepped)(jnp.concatenate([d, jnp.zeros((1, n))]))
    centre = jax.tree.map(lambda a: a[-1], y)
    e = jax.vmap(lambda q, v: jnp.concatenate([difference(model, centre.q, q), v - centre.v]))(y.q[:-1], y.v[:-1])
    mean = e.mean(0)
    e = e - mean
    impulse = jnp.sqrt(jnp.mean(impulses[:-1] ** 2))
    A = solved(x.P[:n, :n], d.T @ e / (2 * n)).T
    dt, mass = jnp.asarray(system.dt), jnp.sum(model.mass)
    Qv = (noise[0] ** 2 * dt + (noise[1] * impulse / mass) ** 2) * mass * jnp.linalg.inv(mass_matrix(model, centre.q))
    Qq = (0.5 * dt) ** 2 * Qv
    whole = jnp.eye(x.P.shape[0]).at[:n, :n].set(A)
    cross = x.P @ whole.T
    P = whole @ cross
    P = P.at[:n, :n].set(e.T @ e / (2 * n)).at[:nv, :nv].add(Qq).at[nv:n, nv:n].add(Qv)
    P = P.at[n:, n:].add(noise[2] ** 2 * dt * prior.P[n:, n:])
    after = Belief(integrate(model, centre.q, mean[:nv]), centre.v + mean[nv:], x.offset, 0.5 * (P + P.T))
    return after, cross, impulse


def _corrected(
    sensors: tuple[Sensor, ...], names: tuple[str, ...], system: System, x: Belief, before: Before, rows: Any, share: Any
) -> tuple[Belief, dict[str, tuple[Array, Array]]]:
    """(belief after the samples of a step, squared innovations and their number by channel).

    share: of the step at each sample; None: at the first state, before which there is no step.
    """
    model, nv, n, N = system.model, system.nv, 2 * system.nv, x.P.shape[0]
    dt, squares = jnp.asarray(system.dt), {}
    P = jnp.block([[x.P, before.cross.T], [before.cross, before.P]])
    v0 = before.v
    for sensor in sensors:
        constants, row = constants_of(sensor, system), rows[sensor.channel]
        at = _place(sensors, names, system, sensor)

        def error(z: Array, x: Belief = x, v0: Array = v0, sensor: Any = sensor, given: Any = (constants, row, at)) -> Array:
            constants, row, at = given
            q, v = integrate(model, x.q, z[:nv]), x.v + z[nv:n]
            if share is None:
                moment = Moment(q, v, integrate(model, q, dt * v), v, jnp.zeros(()), dt)
            else:
                moment = Moment(integrate(model, q, -dt * v), v0 + z[N:], q, v, share[sensor.channel], dt)
            predicted = sensor.predict(model, constants, moment)
            if at is not None:
                predicted = sensor.offset(predicted, x.offset[at] + z[n:N][at])
            return sensor.error(predicted, row) / sensor.deviations(model)

        zero = jnp.zeros(N + nv)
        e, H = error(zero), -jax.jacfwd(error)(zero)
        there = jnp.isfinite(e)
        if share is None and isinstance(sensor, IMU):
            there = there & (jnp.arange(len(e)) < 3)  # nothing is known of the acceleration before the first step
        e, H = jnp.where(there, e, 0.0), jnp.where(there[:, None], jnp.nan_to_num(H), 0.0)
        HP = H @ P
        white = solved(HP @ H.T + jnp.eye(len(e)), jnp.concatenate([e[:, None], HP], 1))
        squares[sensor.channel] = (e @ white[:, 0], jnp.sum(there, dtype=e.dtype))
        d, P = HP.T @ white[:, 0], P - HP.T @ white[:, 1:]
        P = 0.5 * (P + P.T)
        x, v0 = _moved(system, x, d), v0 + d[N:]
    return dataclasses.replace(x, P=P[:N, :N]), squares


def _place(sensors: tuple[Sensor, ...], names: tuple[str, ...], system: System, sensor: Sensor) -> slice | None:
    """Where the constant error of a sensor is among those that are estimated."""
    at = 0
    for other in sensors:
        size = len(other.labels(system.model)) if other.channel in names else 0
        if other is sensor:
            return slice(at, at + size) if size else None
        at += size
    return None


def _moved(system: System, x: Belief, d: Array) -> Belief:
    nv = system.nv
    offset = x.offset + d[2 * nv : 2 * nv + len(x.offset)]
    return dataclasses.replace(x, q=integrate(system.model, x.q, d[:nv]), v=x.v + d[nv : 2 * nv], offset=offset)


def _apart(system: System, x: Belief, y: Belief) -> Float[Array, " n"]:
    return jnp.concatenate([difference(system.model, x.q, y.q), y.v - x.v])
