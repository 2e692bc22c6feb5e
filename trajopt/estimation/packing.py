"""Recordings as arrays of equal shapes, in few groups of similar length, with the simulation's time steps and first guesses of
states."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.estimation.moments import free_start
from trajopt.estimation.recording import Channel, Recording
from trajopt.estimation.sensors import Encoder, Input, Pose, Sensor, Velocity

MOST_GROUPS = 3  # programs that are compiled for recordings of different lengths
WORTH_A_GROUP = 0.85  # default share of the padded steps that remains where another group is made
STEPS_OF_A_PROGRAM = (
    8  # lengths are rounded up to a multiple, so that recordings of about the same length share a program
)
FIRST_SAMPLES = 5  # by whose slope a first velocity is guessed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """One channel of R recordings: time stamps (R, N), rows (R, N, w), and which rows of the error count, (R, N, rows)."""

    t: Float[Array, "R N"]
    values: Float[Array, "R N w"]
    present: Float[Array, "R N rows"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Commands:
    """The input channel of R recordings: time stamps (R, N) and the integral of the held commands up to each, (R, N, nu)."""

    t: Float[Array, "R N"]
    integral: Float[Array, "R N nu"]
    last: Float[Array, "R nu"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    """The arrays of R recordings. q, v: reference states at the time t0 of each; T steps are simulated of all."""

    t0: Float[Array, " R"]
    q: Float[Array, "R nq"]
    v: Float[Array, "R nv"]
    measured: dict[str, Samples]
    commands: Commands | None
    T: int = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Group:
    """R recordings of similar length: their arrays, which of all recordings they are, and how many steps each needs."""

    data: Data
    index: Int[np.ndarray, " R"]
    steps: Int[np.ndarray, " R"]


@dataclasses.dataclass(frozen=True)
class First:
    """The state at which the simulation of a recording begins."""

    q: Float[np.ndarray, " nq"]
    v: Float[np.ndarray, " nv"]


def first_time(recording: Recording, sensors: Sequence[Sensor]) -> float:
    """The first time stamp of what is measured, s."""
    return float(
        min(recording[s.channel].t[0] for s in sensors if not isinstance(s, Input) and s.channel in recording.channels)
    )


def last_time(recording: Recording, sensors: Sequence[Sensor]) -> float:
    """The last time stamp of what is measured, s."""
    return float(
        max(recording[s.channel].t[-1] for s in sensors if not isinstance(s, Input) and s.channel in recording.channels)
    )


def cut(recording: Recording, sensors: Sequence[Sensor], length: float) -> list[Recording]:
    """Pieces of a recording of about this length, s; one where it is not much longer. Inputs are not cut: they act later."""
    begin, end = first_time(recording, sensors), last_time(recording, sensors)
    count = int((end - begin) / length + 0.5)
    if count < 2:
        return [recording]
    edges = np.linspace(begin, end, count + 1)
    inputs = {s.channel for s in sensors if isinstance(s, Input)}
    pieces = []
    for k in range(count):
        kept = {}
        for name, channel in recording.channels.items():
            inside = (channel.t >= edges[k]) & ((channel.t < edges[k + 1]) | (k == count - 1))
            if name in inputs or inside.any():
                kept[name] = channel if name in inputs else Channel(channel.t[inside], channel.values[inside])
        if set(kept) - inputs:
            pieces.append(Recording(f"{recording.name}, {edges[k]:.3g} to {edges[k + 1]:.3g} s", kept))
    return pieces


def guessed_first(system: System, recording: Recording, sensors: Sequence[Sensor]) -> First:
    """Configuration of the first rows of poses and encoders, the model's default elsewhere; velocities of a velocity channel's
    first row, of encoders of velocity, or the slope of the first samples."""
    model = system.model
    q, v = np.array(model.q_default, float), np.zeros(model.nv)
    at = first_time(recording, sensors)
    for sensor in sensors:
        if sensor.channel not in recording.channels:
            continue
        channel = recording[sensor.channel]
        start = free_start(model, sensor.frame(model)) if isinstance(sensor, Pose) else None
        if start is not None:
            rows = channel.values[~np.isnan(channel.values).any(1)][:FIRST_SAMPLES]
            t = channel.t[~np.isnan(channel.values).any(1)][:FIRST_SAMPLES]
            if len(rows):
                v0 = next(j.v_start for j in model.topology.joints if j.q_start == start)
                q[start : start + 7] = rows[0]
                q[start + 3 : start + 7] /= np.linalg.norm(rows[0, 3:])
                v[v0 : v0 + 6] = _slope_of_poses(t, rows)
        elif isinstance(sensor, Encoder) and not sensor.velocity:
            for k, name in enumerate(sensor.labels(model)):
                joint = model.topology.joint(name)
                good = ~np.isnan(channel.values[:, k])
                t, x = channel.t[good][:FIRST_SAMPLES], channel.values[good, k][:FIRST_SAMPLES] / sensor.gain
                if x.size:
                    slope = np.polyfit(t - at, x, 1)[0] if x.size > 1 else 0.0
                    q[joint.q_start], v[joint.v_start] = x[0], slope
    for sensor in sensors:  # velocities that are measured come last: they are better than slopes
        if sensor.channel not in recording.channels:
            continue
        rows = recording[sensor.channel].values
        if isinstance(sensor, Velocity):
            row = _first_whole_row(recording[sensor.channel])
            v = v if row is None else rows[row] / sensor.gain
        elif isinstance(sensor, Encoder) and sensor.velocity:
            for k, name in enumerate(sensor.labels(model)):
                good = rows[~np.isnan(rows[:, k]), k]
                v[model.topology.joint(name).v_start] = good[0] / sensor.gain if good.size else 0.0
    return First(q, v)


def guessed_firsts(system: System, recordings: Sequence[Recording], sensors: Sequence[Sensor]) -> list[First]:
    """`guessed_first` of each recording. A velocity whose first time stamp is after the start of the motion is taken back to
    it: by the acceleration of a body that touches nothing, where no control acts."""
    firsts = [guessed_first(system, recording, sensors) for recording in recordings]
    late = np.array([_lateness(recording, sensors) for recording in recordings])
    if system.nu or not late.any():
        return firsts
    none = jnp.zeros(system.nu)

    def falling(q: Array, v: Array) -> Array:
        x, info = system.step(State(q, v), none)
        return jnp.where((jnp.abs(info.contacts.impulse) > 0.0).any(), 0.0, (x.v - v) / jnp.asarray(system.dt))

    q, v = (jnp.asarray(np.stack([getattr(first, name) for first in firsts])) for name in "qv")
    acceleration = np.asarray(jax.jit(jax.vmap(falling))(q, v))
    return [First(first.q, first.v - by * a) for first, by, a in zip(firsts, late, acceleration)]


def _lateness(recording: Recording, sensors: Sequence[Sensor]) -> float:
    """The time from the start of the motion to the row of velocities that `guessed_first` takes, s; 0 where it takes a slope."""
    found = 0.0
    for sensor in sensors:
        if isinstance(sensor, Velocity) and sensor.channel in recording.channels:
            channel = recording[sensor.channel]
            row = _first_whole_row(channel)
            found = found if row is None else float(channel.t[row]) - first_time(recording, sensors)
    return found


def _first_whole_row(channel: Channel) -> int | None:
    """The first row without a missing entry."""
    whole = np.flatnonzero(~np.isnan(channel.values).any(1))
    return int(whole[0]) if whole.size else None


def _slope_of_poses(t: Float[np.ndarray, " n"], rows: Float[np.ndarray, "n 7"]) -> Float[np.ndarray, "6"]:
    """Mean velocity of a free body over poses: m/s in world axes, rad/s in the body's."""
    if len(rows) < 2:
        return np.zeros(6)
    a, b = rows[0, 3:] * np.array([1.0, -1.0, -1.0, -1.0]), rows[-1, 3:]
    w = a[0] * b[0] - a[1:] @ b[1:]
    u = a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])
    w, u = (w, u) if w >= 0 else (-w, -u)
    size = np.linalg.norm(u)
    turn = 2.0 * np.arctan2(size, w) * u / size if size > 1e-12 else np.zeros(3)
    return np.concatenate([rows[-1, :3] - rows[0, :3], turn]) / (t[-1] - t[0])


def pack(
    system: System,
    recordings: Sequence[Recording],
    sensors: Sequence[Sensor],
    firsts: Sequence[First],
    until: Float[np.ndarray, " R"] | None = None,
    groups: int = MOST_GROUPS,
    worth: float = WORTH_A_GROUP,
) -> list[Group]:
    """The recordings in groups, at most `groups`. until: times, s, after which nothing counts, and nothing is simulated. worth:
    share of the padded steps that remains where another group is made."""
    ends = np.array([last_time(r, sensors) for r in recordings])
    ends = ends if until is None else np.minimum(ends, until)
    starts = np.array([first_time(r, sensors) for r in recordings])
    steps = np.maximum(1, np.ceil((ends - starts) / float(system.dt) - 1e-9).astype(int)) + 1
    return [
        _group(system, recordings, sensors, firsts, starts, ends, steps, chosen)
        for chosen in _split(steps, groups, worth)
    ]


def _split(steps: Int[np.ndarray, " R"], most: int, worth: float) -> list[Int[np.ndarray, " k"]]:
    """Indices by length, cut where that leaves out most of the padding."""
    parts = [np.argsort(steps, kind="stable")]
    while len(parts) < most:
        best = None
        total = sum(part.size * steps[part].max() for part in parts)
        for k, part in enumerate(parts):
            sizes = steps[part]
            counts = np.arange(1, part.size)
            costs = counts * sizes[:-1] + (part.size - counts) * sizes[-1] if part.size > 1 else np.zeros(0)
            if costs.size:
                cut = int(np.argmin(costs))
                cost = total - part.size * sizes[-1] + costs[cut]
                best = (cost, k, cut + 1) if best is None or cost < best[0] else best
        if best is None or best[0] > worth * total:
            break
        _, k, cut = best
        parts[k : k + 1] = [parts[k][:cut], parts[k][cut:]]
    return [np.sort(part) for part in parts]


def _group(system, recordings, sensors, firsts, starts, ends, steps, chosen) -> Group:
    measured = {}
    for sensor in sensors:
        if not isinstance(sensor, Input):
            measured[sensor.channel] = _samples(
                system, sensor, [recordings[k] for k in chosen], starts[chosen], ends[chosen]
            )
    command = next((sensor for sensor in sensors if isinstance(sensor, Input)), None)
    commands = None if command is None else _commands([recordings[k][command.channel] for k in chosen])
    q, v = (np.stack([getattr(firsts[k], name) for k in chosen]) for name in "qv")
    longest = -(-int(steps[chosen].max()) // STEPS_OF_A_PROGRAM) * STEPS_OF_A_PROGRAM
    data = Data(jnp.asarray(starts[chosen]), jnp.asarray(q), jnp.asarray(v), measured, commands, longest)
    return Group(data, chosen, steps[chosen])


def _samples(system: System, sensor: Sensor, recordings: list[Recording], starts, ends) -> Samples:
    model = system.model
    width, rows = sensor.width(model), len(sensor.labels(model))
    kept = []
    for recording, end in zip(recordings, ends):
        channel = recording.channels.get(sensor.channel)
        if channel is None:
            kept.append((np.zeros(0), np.zeros((0, width))))
        else:
            count = int(np.searchsorted(channel.t, end + 1e-9))
            kept.append((channel.t[:count], channel.values[:count]))
    longest = max(1, max(t.size for t, _ in kept))
    t = np.repeat(np.asarray(starts)[:, None], longest, 1)
    values, present = np.zeros((len(kept), longest, width)), np.zeros((len(kept), longest, rows))
    if isinstance(sensor, Pose):
        values[:, :, 3] = 1.0
    for k, (times, measured) in enumerate(kept):
        n = times.size
        t[k, :n] = times
        good = np.asarray(~np.isnan(measured))
        if isinstance(sensor, Pose):
            whole = np.asarray(good[:, 3:].all(1))
            present[k, :n] = np.concatenate([good[:, :3], np.repeat(whole[:, None], 3, 1)], 1)
            values[k, :n, :3] = np.where(good[:, :3], measured[:, :3], 0.0)
            turned = measured[whole, 3:]
            values[k, np.flatnonzero(whole), 3:] = turned / np.linalg.norm(turned, axis=1, keepdims=True)
        else:
            present[k, :n] = good
            values[k, :n] = np.where(good, measured, 0.0)
    return Samples(jnp.asarray(t), jnp.asarray(values), jnp.asarray(present))


def _commands(channels: list[Channel]) -> Commands:
    """The integral of each command, held from its time stamp to the next; entries that are missing hold the last one."""
    longest, nu = max(c.t.size for c in channels) + 1, channels[0].values.shape[1]
    t, integral, last = (
        np.zeros((len(channels), longest)),
        np.zeros((len(channels), longest, nu)),
        np.zeros((len(channels), nu)),
    )
    for k, channel in enumerate(channels):
        held = channel.values.copy()
        for j in range(nu):
            seen = np.where(np.isnan(held[:, j]), 0, np.arange(len(held)))
            held[:, j] = np.nan_to_num(held[np.maximum.accumulate(seen), j])
        n = channel.t.size
        step = channel.interval if n > 1 else 1.0
        times = np.append(channel.t, channel.t[-1] + step)
        t[k] = np.concatenate([times, times[-1] + step * np.arange(1, longest - n)])
        added = np.cumsum(held * np.diff(times)[:, None], 0)
        integral[k, 1 : n + 1] = added
        integral[k, n + 1 :] = added[-1] + held[-1] * (t[k, n + 1 :] - times[-1])[:, None]
        last[k] = held[-1]
    return Commands(jnp.asarray(t), jnp.asarray(integral), jnp.asarray(last))


def moved(system: System, first: First, dx: Float[np.ndarray, " ndx"]) -> First:
    """A first state moved in tangent coordinates."""
    nv = system.nv
    q = integrate(system.model, jnp.asarray(first.q), jnp.asarray(dx[:nv]))
    return First(np.asarray(q), first.v + np.asarray(dx[nv:]))
