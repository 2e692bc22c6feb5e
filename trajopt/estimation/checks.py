"""What is wrong with recordings: units, clocks, quaternions, missing channels, a robot that never moves. Each message names
recording, channel and time."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import RecordingError
from trajopt.estimation.moments import free_start
from trajopt.estimation.recording import Channel, Recording
from trajopt.estimation.sensors import IMU, Encoder, Input, Pose, Sensor, errors_from

GAP = 8.0  # intervals that a time between two samples may last
DRIFT = 0.01  # by which the rate at the start and at the end may differ, relative
SLOWEST = 0.6  # s, median time between samples, above which stamps are taken for milliseconds
FARTHEST = 100.0  # m, from the origin
TOO_LARGE = 20.0  # times the limit of a control, joint or of what gravity shows
UNIT_NORM = 0.02  # by which the norm of a quaternion may differ from one
STILL = 3.0  # deviations of the noise within which a robot that never moves stays
SUNK = 0.3  # share of the body's size by which poses may lie in the ground
MISREAD = 0.05  # the same where another order of the quaternions puts the body on the ground


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
    kept = []
    for recording, moves in zip(recordings, _moving(system, recordings, sensors)):
        if moves:
            kept.append(recording)
        elif any(sensor.channel in recording.channels and not isinstance(sensor, Input) for sensor in sensors):
            notes.append(
                f"recording '{recording.name}' is left out: from {recording.start:.3f} s to {recording.end:.3f} s nothing "
                "in it moves by more than the noise"
            )
    if not kept:
        names = ", ".join(f"'{recording.name}'" for recording in recordings[:5])
        raise RecordingError(
            f"in no recording ({names}) the robot moves by more than the noise of its sensors; record a motion"
        )
    _check_ground(system, kept, sensors)
    return tuple(kept), notes


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
        labels = ", ".join(sensor.labels(system.model))
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
    if lengths[longest] - lengths[shortest] > max(0.02 * lengths[longest], slack):
        return [
            f"recording '{recording.name}': channel '{longest}' lasts {lengths[longest]:.6g} s, channel '{shortest}' "
            f"{lengths[shortest]:.6g} s (to t = {recording[shortest].t[-1]:.6g} s): does one clock run at another speed, or "
            f"does it end early?"
        ]
    return []


def _first_beyond(channel: Channel, beyond: np.ndarray) -> tuple[int, int]:
    row, column = np.argwhere(beyond)[0]
    return int(row), int(column)


def _check_values(where: str, system: System, sensor: Sensor, channel: Channel) -> None:
    model, values = system.model, channel.values
    limit = None
    advice = ""
    if isinstance(sensor, Pose):
        _check_quaternions(where, channel)
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
            f"{where}: the quaternion at t = {channel.t[row]:.6g} s has norm {norms[row]:.4g}; expected x, y, z in m, then a "
            f"unit quaternion "
            "w x y z"
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
    channels = [(r.name, r[pose.channel]) for r in recordings[:20] if pose.channel in r.channels]
    readings = {
        "": lambda q: q,
        "x y z w": lambda q: q[:, [0, 1, 2, 6, 3, 4, 5]],
        "the inverse rotation": lambda q: q * _INVERSE,
    }
    depth: dict[str, list[np.ndarray]] = {name: [] for name in readings}
    for _, channel in channels:
        rows = channel.values[~np.isnan(channel.values).any(1)]
        rows = rows[np.linspace(0, len(rows) - 1, 12).astype(int)]
        for name, read in readings.items():
            depth[name].append(_lowest(system, read(rows)))
    size = float(np.asarray(model.shape_size)[[s.node >= 0 for s in model.topology.shapes]].max())
    deepest = {name: np.array([max(0.0, -float(d.min())) for d in found]) for name, found in depth.items()}
    typical = {name: float(np.median(d)) for name, d in deepest.items()}
    better = min(typical, key=typical.__getitem__)
    misread = better and typical[better] < 0.3 * typical[""]
    if typical[""] <= (MISREAD if misread else SUNK) * size:
        return
    k = int(np.argmax(deepest[""]))
    name, channel = channels[k]
    row = channel.t[-1]
    if misread:
        raise RecordingError(
            f"recording '{name}', channel '{pose.channel}': the body lies {deepest[''][k]:.3g} m deep in the ground before t = "
            f"{row:.4g} s, "
            f"and on it if the quaternions are read as {better}; expected w x y z, from the body's axes to the world's"
        )
    raise RecordingError(
        f"recording '{name}', channel '{pose.channel}': the body lies {deepest[''][k]:.3g} m deep in the ground before t = "
        f"{row:.4g} s; are "
        "positions in m, from the origin of the model's world, with z up?"
    )


_INVERSE = np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0])


def _lowest(system: System, qs: Float[np.ndarray, "k 7"]) -> Float[np.ndarray, " k"]:
    """The least distance between shapes at configurations of a free body."""
    q = np.concatenate([qs[:, :3], qs[:, 3:] / np.linalg.norm(qs[:, 3:], axis=1, keepdims=True)], 1)
    zero = jnp.zeros(system.nv)
    step = jax.vmap(lambda q: system.step(State(q, zero), jnp.zeros(system.nu))[1].contacts.distance.min())
    return np.asarray(step(jnp.asarray(q)))
