"""What is wrong with recordings: units, clocks, quaternions, missing channels, a robot that never moves. Each message names
recording, channel and time."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import RecordingError
from trajopt.estimation.moments import free_start
from trajopt.estimation.recording import Channel, Recording
from trajopt.estimation.sensors import IMU, Encoder, Input, Pose, Sensor, Velocity, errors_from

GAP = 8.0  # intervals that a time between two samples may last
DRIFT = 0.01  # by which clocks may differ, relative: at the start and at the end, two channels, two recordings
OTHER_RATE = 0.1  # difference, relative, from which on it is another rate and not a clock that runs wrongly
JUMP = 2.0  # times the steps beside it, from which on a single sample that lies elsewhere is no motion
JUMP_NOISE = 20.0  # deviations of the noise that it must lie off, too
SLOWEST = 0.6  # s, median time between samples, above which stamps are taken for milliseconds
FASTEST = 2e-5  # s, below which they are taken for thousands of seconds
FARTHEST = 100.0  # m, from the origin
TOO_LARGE = 20.0  # times the limit of a control, joint or of what gravity shows
UNIT_NORM = 0.02  # by which the norm of a quaternion may differ from one
STILL = 3.0  # deviations of the noise within which a robot that never moves stays
SUNK = 0.3  # share of the body's size by which poses may lie in the ground
MISREAD = 0.05  # the same, in the typical recording, where another order of the quaternions puts the body on the ground
MISREAD_ALONE = 0.15  # the same in a single one
LOOKED_AT = 12  # rows of each recording
PARTS = 20  # of a recording, over which the slope of positions is taken
FASTEST_BODY = 100.0  # m/s, above which poses are not in m, or time stamps not in s
POSE_COLUMNS = "x, y, z in m, then a unit quaternion w x y z"
UNITS = 30.0  # factor between measured velocities and the slope of positions, either way, from which on units are wrong


def checked(
    system: System, recordings: Sequence[Recording], sensors: Sequence[Sensor]
) -> tuple[tuple[Recording, ...], list[str]]:
    """The recordings that can be used, and warnings. Raises `RecordingError` for what makes every answer wrong."""
    notes: list[str] = []
    for sensor in sensors:
        notes += _missing(sensor, recordings)
    for recording in recordings:
        for sensor in sensors:
            if sensor.channel in recording.channels:
                where = f"recording '{recording.name}', channel '{sensor.channel}'"
                channel = recording[sensor.channel]
                _check_width(where, system, sensor, channel)
                notes += _clock(where, channel)
                _check_values(where, system, sensor, channel)
        notes += _spans(recording, sensors)
        _check_speeds(system, recording, sensors)
    for sensor in sensors:
        notes += _rates(sensor, recordings)
        recordings, found = _without_jumps(system, recordings, sensor)
        notes += found
    kept = []
    for recording, moves in zip(recordings, _moving(system, recordings, sensors)):
        if moves:
            kept.append(recording)
        elif measured := [s.channel for s in sensors if s.channel in recording.channels and not isinstance(s, Input)]:
            notes.append(_left_out(recording, measured))
    if not kept:
        raise RecordingError("no recording holds a motion: " + "; ".join(notes[-len(recordings) :][:5]))
    _check_ground(system, kept, sensors)
    return tuple(kept), notes


def _left_out(recording: Recording, measured: Sequence[str]) -> str:
    """Why a recording in which nothing moves cannot be used."""
    whole = {c: int((~np.isnan(recording[c].values).any(1)).sum()) for c in measured}
    few = [f"channel '{c}' has {rows} samples without missing entries" for c, rows in whole.items() if rows < 2]
    why = ", ".join(few) + "; a motion takes two"
    if len(few) < len(measured):
        names = ", ".join(f"'{c}'" for c in measured)
        why = f"nothing in channels {names} moves by more than the noise; record a motion"
    return f"recording '{recording.name}' is left out: from {recording.start:.3f} s to {recording.end:.3f} s {why}"


def _missing(sensor: Sensor, recordings: Sequence[Recording]) -> list[str]:
    lacking = [r.name for r in recordings if sensor.channel not in r.channels]
    if not lacking:
        return []
    shown = ", ".join(f"'{name}'" for name in lacking[:5]) + (
        f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
    )
    if len(lacking) == len(recordings) or isinstance(sensor, Input):
        known = ", ".join(f"'{name}'" for name in recordings[0].channels)
        raise RecordingError(
            f"channel '{sensor.channel}' of sensor {type(sensor).__name__} is missing in recording {shown}; recording "
            f"'{recordings[0].name}' has {known}: rename a channel, or leave the sensor out"
        )
    return [f"channel '{sensor.channel}' is missing in recording {shown}: these are fitted without it"]


def _check_width(where: str, system: System, sensor: Sensor, channel: Channel) -> None:
    expected = sensor.width(system.model)
    if channel.values.shape[1] != expected:
        labels = POSE_COLUMNS if isinstance(sensor, Pose) else ", ".join(sensor.labels(system.model))
        raise RecordingError(
            f"{where} has {channel.values.shape[1]} columns; {type(sensor).__name__} expects {expected}: {labels}"
        )


def _clock(where: str, channel: Channel) -> list[str]:
    if channel.t.size < 2:
        return []
    steps, notes = np.diff(channel.t), []
    if channel.interval > SLOWEST and channel.t.size > 5:
        raise RecordingError(
            f"{where}: samples are {channel.interval:.3g} s apart from t = {channel.t[0]:.6g} s on; time stamps are expected "
            f"in s, and "
            "these look like milliseconds or smaller units (time_scale of the map of channels)"
        )
    if channel.interval < FASTEST:
        raise RecordingError(
            f"{where}: samples are {channel.interval:.3g} s apart from t = {channel.t[0]:.6g} s on; time stamps are expected in "
            "s, and these look too small by a factor such as 1000 (time_scale of the map of channels)"
        )
    wide = np.flatnonzero(steps > GAP * channel.interval)
    if wide.size:
        k = int(wide[np.argmax(steps[wide])])
        notes.append(
            f"{where}: no sample from t = {channel.t[k]:.6g} s to {channel.t[k + 1]:.6g} s ({wide.size} gaps of more than "
            f"{GAP:.0f} "
            "intervals); the motion is predicted across it"
        )
    quarter = steps.size // 4
    if quarter >= 5:
        first, last = float(np.median(steps[:quarter])), float(np.median(steps[-quarter:]))
        scatter = (np.std(steps[:quarter]) + np.std(steps[-quarter:])) / (first * np.sqrt(quarter))
        if abs(last / first - 1.0) > DRIFT + 3.0 * scatter:
            notes.append(
                f"{where}: the clock drifts: samples are {first:.6g} s apart at t = {channel.t[0]:.6g} s and {last:.6g} s at t "
                f"= "
                f"{channel.t[-1]:.6g} s"
            )
    return notes


def _spans(recording: Recording, sensors: Sequence[Sensor]) -> list[str]:
    """Channels that end far from each other: clocks of different speed."""
    used = [s.channel for s in sensors if s.channel in recording.channels and recording[s.channel].t.size > 10]
    if len(used) < 2:
        return []
    lengths = {c: float(np.ptp(recording[c].t)) for c in used}
    longest, shortest = max(lengths, key=lengths.__getitem__), min(lengths, key=lengths.__getitem__)
    slack = 3 * max(recording[longest].interval, recording[shortest].interval)
    if lengths[longest] - lengths[shortest] > max(DRIFT * lengths[longest], slack):
        return [
            f"recording '{recording.name}': channel '{longest}' lasts {lengths[longest]:.6g} s, channel '{shortest}' "
            f"{lengths[shortest]:.6g} s (to t = {recording[shortest].t[-1]:.6g} s): does one clock run at another speed, or "
            f"does it end early?"
        ]
    return []


def _rates(sensor: Sensor, recordings: Sequence[Recording]) -> list[str]:
    """Recordings whose samples are a little closer to each other, or farther, than in most: clocks of different speed."""
    regular = {}
    for recording in recordings:
        steps = np.diff(recording[sensor.channel].t) if sensor.channel in recording.channels else np.zeros(0)
        if steps.size > 10:
            regular[recording.name] = (float(np.ptp(recording[sensor.channel].t)) / steps.size, recording)
    if len(regular) < 3:
        return []
    typical = float(np.median([rate for rate, _ in regular.values()]))
    spread = 1.4826 * float(np.median([abs(rate / typical - 1.0) for rate, _ in regular.values()]))
    return [
        f"recording '{name}', channel '{sensor.channel}': samples are {rate:.6g} s apart from t = {recording.start:.6g} s to "
        f"{recording.end:.6g} s, and {typical:.6g} s in most recordings: does its clock drift?"
        for name, (rate, recording) in regular.items()
        if DRIFT + 3.0 * spread < abs(rate / typical - 1.0) < OTHER_RATE
    ]


def _without_jumps(
    system: System, recordings: Sequence[Recording], sensor: Sensor
) -> tuple[list[Recording], list[str]]:
    """The recordings without single samples of a configuration that lie far from both samples beside them, where those agree."""
    if not sensor.of_configuration:
        return list(recordings), []
    notes, cleaned = [], []
    rows = [r[sensor.channel].values if sensor.channel in r.channels else np.zeros((0, 1)) for r in recordings]
    deviations = sensor.deviations(system.model)
    for recording, values, jumps in zip(recordings, rows, _jumps(sensor, rows, deviations)):
        if not jumps.size:
            cleaned.append(recording)
            continue
        channel = recording[sensor.channel]
        times = ", ".join(f"{channel.t[k]:.6g}" for k in jumps[:5]) + (" and others" if jumps.size > 5 else "")
        notes.append(
            f"recording '{recording.name}', channel '{sensor.channel}': single samples jump away and back, at t = {times} s; "
            "they are left out"
        )
        kept = np.array(values)
        kept[jumps] = np.nan
        cleaned.append(Recording(recording.name, {**recording.channels, sensor.channel: Channel(channel.t, kept)}))
    return cleaned, notes


def _jumps(
    sensor: Sensor, rows: list[Float[np.ndarray, "_ w"]], deviations: Float[np.ndarray, " k"]
) -> list[Int[np.ndarray, "..."]]:
    """Places of single samples that jump, in each series: the steps to and from them are large, and neither the step across nor
    those before and after are. The noise is that which second differences show, at least the deviations."""
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    whole = np.concatenate([r for r in rows if len(r)])
    program = jax.jit(jax.vmap(sensor.error))

    def steps(by: int) -> Float[np.ndarray, "n k"]:
        """From each row to that `by` rows later; NaN where that belongs to another series."""
        there = (owner == np.roll(owner, -by)) & (np.arange(len(whole)) < len(whole) - by)
        return np.where(there[:, None], program(jnp.asarray(whole), jnp.asarray(np.roll(whole, -by, 0))), np.nan)

    step, across = steps(1), np.abs(np.roll(steps(2), 1, 0))
    bends = np.abs(step - np.roll(step, 1, 0))
    if not np.isfinite(bends).any():
        return [np.zeros(0, int) for _ in rows]
    noise = np.maximum(deviations, 1.4826 * np.nanmedian(bends, 0) / np.sqrt(6.0))
    size = np.abs(step)
    beside = np.nan_to_num(np.fmax(np.roll(size, 2, 0), np.roll(size, -1, 0)))
    jumping = np.minimum(size, np.roll(size, 1, 0)) > JUMP * np.maximum(across, beside) + JUMP_NOISE * noise
    begins = np.cumsum([0, *(len(r) for r in rows)])
    return [np.flatnonzero(jumping[a:b].any(1)) for a, b in zip(begins[:-1], begins[1:])]


def _first_beyond(channel: Channel, beyond: np.ndarray) -> tuple[int, int]:
    row, column = np.argwhere(beyond)[0]
    return int(row), int(column)


def _check_values(where: str, system: System, sensor: Sensor, channel: Channel) -> None:
    model, values = system.model, channel.values
    limit = None
    advice = ""
    if isinstance(sensor, Pose):
        _check_quaternions(where, channel)
        _check_speed_of_poses(where, channel)
        limit, values = np.full(3, FARTHEST), values[:, :3]
        advice = "positions are expected in m; are these in mm (scale: 0.001)?"
    elif isinstance(sensor, Encoder) and not sensor.velocity:
        joints = [model.topology.joint(name) for name in sensor.labels(model)]
        ranges = [max(abs(float(model.lower[j.v_start])), abs(float(model.upper[j.v_start]))) for j in joints]
        limit = np.array([TOO_LARGE * r if np.isfinite(r) and r > 0 else FARTHEST for r in ranges])
        advice = "angles are expected in rad and lengths in m; are these in degrees, mrad or mm?"
    elif isinstance(sensor, Input):
        ranges = np.maximum(
            np.abs(np.asarray(model.control_lower, float)), np.abs(np.asarray(model.control_upper, float))
        )
        limit = np.where(np.isfinite(ranges) & (ranges > 0), TOO_LARGE * ranges, np.inf)
        advice = "controls are expected in the units of the model; are these in thousandths?"
    elif isinstance(sensor, IMU):
        _check_accelerometer(where, system, channel)
    if limit is not None:
        beyond = np.abs(np.nan_to_num(values)) > limit
        if beyond.any():
            row, column = _first_beyond(channel, beyond)
            raise RecordingError(
                f"{where} is {values[row, column]:.6g} at t = {channel.t[row]:.6g} s, column {column}: {advice}"
            )


def _speeds(system: System, sensor: Sensor, channel: Channel) -> dict[int, float]:
    """The root mean square of each velocity that a channel measures, or shows as the slope of what it measures where that is far
    above the noise."""
    model, values = system.model, channel.values
    start = free_start(model, sensor.frame(model)) if isinstance(sensor, Pose) else None
    if isinstance(sensor, Encoder):
        places = [model.topology.joint(name).v_start for name in sensor.labels(model)]
    elif start is not None:
        first = next(j.v_start for j in model.topology.joints if j.q_start == start)
        places = list(range(first, first + 6))
    else:
        places = list(range(model.nv)) if isinstance(sensor, Velocity) else []
    by = max(1, len(values) // PARTS)
    if not places or len(values) <= by:
        return {}
    least = np.zeros(len(places))
    if sensor.of_configuration:
        time = (channel.t[by:] - channel.t[:-by])[:, None]
        values = np.asarray(jax.vmap(sensor.error)(jnp.asarray(values[:-by]), jnp.asarray(values[by:]))) / time
        least = STILL * sensor.deviations(model) / float(np.median(time))
    sizes = np.sqrt(np.mean(np.nan_to_num(values) ** 2, 0))
    return {place: float(size) for place, size, enough in zip(places, sizes, sizes > least) if enough}


def _check_speeds(system: System, recording: Recording, sensors: Sequence[Sensor]) -> None:
    """Velocities have the unit of the slope of positions."""
    given = [(s, _speeds(system, s, recording[s.channel])) for s in sensors if s.channel in recording.channels]
    for sensor, speeds in given:
        for other, slopes in given:
            both = set(speeds) & set(slopes)
            if sensor.of_configuration or not other.of_configuration or not both:
                continue
            measured, slope = (float(np.sqrt(sum(x[k] ** 2 for k in both))) for x in (speeds, slopes))
            if not 1.0 / UNITS < measured / max(slope, 1e-300) < UNITS:
                raise RecordingError(
                    f"recording '{recording.name}', channel '{sensor.channel}': from t = {recording.start:.6g} s on the root "
                    f"mean square of the velocities is {measured:.3g}, and channel '{other.channel}' changes by {slope:.3g} per "
                    "s; expected rad/s and m/s, with time stamps in s"
                )


def _check_accelerometer(where: str, system: System, channel: Channel) -> None:
    """The median size of the acceleration is near that of gravity, whatever a robot does."""
    g = float(np.linalg.norm(np.asarray(system.model.gravity)))
    size = np.linalg.norm(channel.values[:, 3:], axis=1)
    size = size[~np.isnan(size)]
    if not size.size or g == 0.0:
        return
    ratio = float(np.median(size)) / g
    if ratio > TOO_LARGE or ratio < 1.0 / 5.0:
        raise RecordingError(
            f"{where}: the acceleration is {np.median(size):.4g} in the median from t = {channel.t[0]:.6g} s on, and gravity "
            f"is {g:.4g} m/s^2; "
            "expected m/s^2 with gravity in it (in g: scale 9.81; in mm/s^2: scale 0.001)"
        )


def _check_quaternions(where: str, channel: Channel) -> None:
    norms = np.linalg.norm(channel.values[:, 3:], axis=1)
    wrong = np.abs(norms - 1.0) > UNIT_NORM
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise RecordingError(
            f"{where}: the quaternion at t = {channel.t[row]:.6g} s has norm {norms[row]:.4g}; expected {POSE_COLUMNS}"
        )


def _check_speed_of_poses(where: str, channel: Channel) -> None:
    by = max(1, channel.t.size // PARTS)
    moved = np.linalg.norm(channel.values[by:, :3] - channel.values[:-by, :3], axis=1)
    speeds = (moved / (channel.t[by:] - channel.t[:-by]))[np.isfinite(moved)]
    if speeds.size and np.median(speeds) > FASTEST_BODY:
        raise RecordingError(
            f"{where}: from t = {channel.t[0]:.6g} s on the positions change by {np.median(speeds):.4g} per s; they "
            "are expected in m, with time stamps in s; are these in mm (scale: 0.001)?"
        )


def _moving(system: System, recordings: Sequence[Recording], sensors: Sequence[Sensor]) -> Bool[np.ndarray, " R"]:
    """Which recordings hold samples that differ by more than the noise."""
    found = np.zeros(len(recordings), bool)
    for sensor in sensors:
        if isinstance(sensor, Input):
            continue
        rows = {}
        for k, recording in enumerate(recordings):
            if sensor.channel in recording.channels:
                values = recording[sensor.channel].values
                rows[k] = values[~np.isnan(values).any(1)]
        for k, errors in zip(rows, errors_from(sensor, list(rows.values()), 0)):
            if len(errors) > 1 and np.ptp(errors / sensor.deviations(system.model), axis=0).max() > 2 * STILL:
                found[k] = True
    return found


def _check_ground(system: System, recordings: Sequence[Recording], sensors: Sequence[Sensor]) -> None:
    """Poses of a free body that lie deep in the ground or, read in another way, on it: units and the order of quaternions."""
    pose = next((s for s in sensors if isinstance(s, Pose)), None)
    model = system.model
    start = None if pose is None else free_start(model, pose.frame(model))
    if start is None or model.nq != 7 or not model.topology.pairs:
        return
    assert pose is not None
    channels = [(r.name, r[pose.channel]) for r in recordings if pose.channel in r.channels]
    readings = {
        "": lambda q: q,
        "x y z w": lambda q: q[:, [0, 1, 2, 6, 3, 4, 5]],
        "the inverse rotation": lambda q: q * _INVERSE,
    }
    picked = [c.values[~np.isnan(c.values).any(1)] for _, c in channels]
    picked = [rows[np.linspace(0, len(rows) - 1, LOOKED_AT).astype(int)] for rows in picked]
    size = float(np.asarray(model.shape_size)[[s.node >= 0 for s in model.topology.shapes]].max())
    deepest = {
        name: np.maximum(0.0, -_lowest(system, read(np.concatenate(picked))).reshape(-1, LOOKED_AT).min(1))
        for name, read in readings.items()
    }
    typical = {name: float(np.median(depth)) for name, depth in deepest.items()}
    k = int(np.argmax(deepest[""]))
    for limit, depth in ((MISREAD, typical), (MISREAD_ALONE, {name: float(d[k]) for name, d in deepest.items()})):
        better = min(depth, key=depth.__getitem__)
        misread = better and depth[better] < 0.3 * depth[""]
        if depth[""] > (limit if misread else SUNK) * size:
            break
    else:
        return
    name, channel = channels[k]
    where, before = f"recording '{name}', channel '{pose.channel}'", f"before t = {channel.t[-1]:.4g} s"
    problem = f"{where}: the body lies {deepest[''][k]:.3g} m deep in the ground {before}"
    if misread:
        raise RecordingError(
            f"{problem}, and on it if the quaternions are read as {better}; expected w x y z, from the body's axes to the world's"
        )
    raise RecordingError(f"{problem}; are positions in m, from the origin of the model's world, with z up?")


_INVERSE = np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0])


def _lowest(system: System, qs: Float[np.ndarray, "k 7"]) -> Float[np.ndarray, " k"]:
    """The least distance between shapes at configurations of a free body."""
    q = np.concatenate([qs[:, :3], qs[:, 3:] / np.linalg.norm(qs[:, 3:], axis=1, keepdims=True)], 1)
    zero = jnp.zeros(system.nv)
    step = jax.vmap(lambda q: system.step(State(q, zero), jnp.zeros(system.nu))[1].contacts.distance.min())
    return np.asarray(step(jnp.asarray(q)))
