"""A recording: what was measured and commanded during one run of a robot, each channel with its own time stamps.

    recording = Recording("toss 3", {"pose": (t, poses), "torque": (t_u, torques)})

Channels may have different rates and lengths; entries that are missing are NaN. What a channel means is said by the sensor of
the same name (`trajopt.estimation.sensors`), not by the recording.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt import files
from trajopt.errors import RecordingError, UnknownNameError
from trajopt.names import closest


@dataclasses.dataclass(frozen=True)
class Channel:
    """Samples of one instrument.

    Attributes:
        t (s): time stamps, (n,), which rise.
        values: one row a sample, (n, w); NaN where an entry is missing.
    """

    t: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "n w"]

    @property
    def interval(self) -> float:
        """The median time between two samples, s; infinite for a single one."""
        return float(np.median(np.diff(self.t))) if self.t.size > 1 else float("inf")


@dataclasses.dataclass(frozen=True)
class Recording:
    """One run: a name and its channels.

    Options:
        name: by which messages and reports call it.
        channels: by name, a `Channel` or a pair (time stamps in s, values); values (n,) are one column.

    Raises `RecordingError` for a channel whose time stamps do not rise or are not finite, or whose arrays do not fit together.
    """

    name: str
    channels: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.channels:
            raise RecordingError(f"recording '{self.name}' has no channels; give channels={{'pose': (t, values)}}")
        made = {
            name: _channel(f"recording '{self.name}', channel '{name}'", given) for name, given in self.channels.items()
        }
        object.__setattr__(self, "channels", made)

    @property
    def start(self) -> float:
        """The first time stamp of any channel, s."""
        return float(min(channel.t[0] for channel in self.channels.values()))

    @property
    def end(self) -> float:
        """The last time stamp of any channel, s."""
        return float(max(channel.t[-1] for channel in self.channels.values()))

    def __getitem__(self, name: str) -> Channel:
        if name not in self.channels:
            raise UnknownNameError(f"recording '{self.name}' has no channel '{name}'{closest(name, self.channels)}")
        return self.channels[name]

    def between(self, start: float, end: float) -> Recording:
        """The samples from time `start` to time `end`, both included; channels without samples there are left out."""
        inside = {name: (channel.t >= start) & (channel.t <= end) for name, channel in self.channels.items()}
        kept = {
            name: Channel(c.t[inside[name]], c.values[inside[name]])
            for name, c in self.channels.items()
            if inside[name].any()
        }
        if not kept:
            raise RecordingError(
                f"recording '{self.name}' lasts from {self.start:.6g} s to {self.end:.6g} s: no sample lies between "
                f"{start:.6g} s and {end:.6g} s"
            )
        return Recording(self.name, kept)

    def renamed(self, names: Mapping[str, str]) -> Recording:
        """The same with channels of other names: `names` from old to new."""
        for name in names:
            _ = self[name]
        return Recording(self.name, {names.get(name, name): channel for name, channel in self.channels.items()})

    def save(self, path: str | os.PathLike) -> None:
        """As a NumPy archive that `read` reads; .npz is added to a path that does not end so."""
        arrays: dict[str, np.ndarray] = {}
        for name, channel in self.channels.items():
            arrays |= {f"{name}.t": channel.t, f"{name}.values": channel.values}
        name = os.fspath(path)
        files.write_arrays(name if name.endswith(".npz") else name + ".npz", arrays)

    def describe(self) -> str:
        """A line for each channel: columns, samples, rate, span, missing entries."""
        lines = [f"recording '{self.name}': {self.start:.3f} s to {self.end:.3f} s"]
        width = max(len(name) for name in self.channels)
        for name, c in self.channels.items():
            missing = f", {np.isnan(c.values).mean():.1%} missing" if np.isnan(c.values).any() else ""
            rate = f"{1 / c.interval:.4g} Hz" if c.t.size > 1 else "one sample"
            lines.append(f"  {name:<{width}}  {c.values.shape[1]} columns, {c.t.size} samples, {rate}{missing}")
        return "\n".join(lines)


def _channel(where: str, given: Any) -> Channel:
    if isinstance(given, Channel):
        t, values = given.t, given.values
    elif isinstance(given, Sequence) and len(given) == 2:
        t, values = given
    else:
        raise RecordingError(f"{where} is {type(given).__name__}; expected a Channel or a pair (time stamps, values)")
    try:
        t, values = np.asarray(t, float), np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise RecordingError(f"{where} holds entries that are no numbers: {error}") from error
    values = values[:, None] if values.ndim == 1 else values
    if t.ndim != 1 or values.ndim != 2 or len(t) != len(values) or len(t) == 0:
        raise RecordingError(
            f"{where} has time stamps of shape {t.shape} and values of shape {values.shape}; expected (n,) and (n, w), n at "
            f"least 1"
        )
    _check_stamps(where, t)
    infinite = np.argwhere(np.isinf(values))
    if infinite.size:
        row, column = infinite[0]
        raise RecordingError(
            f"{where} is infinite at t = {t[row]:.6g} s, column {column}; write NaN where an entry is missing"
        )
    return Channel(t, values)


def _check_stamps(where: str, t: Float[np.ndarray, " n"]) -> None:
    if not np.isfinite(t).all():
        raise RecordingError(
            f"{where}: the time stamp of sample {np.flatnonzero(~np.isfinite(t))[0]} is not finite; leave the sample out"
        )
    steps = np.diff(t)
    backwards, repeated = np.flatnonzero(steps < 0), np.flatnonzero(steps == 0)
    if backwards.size:
        k = int(backwards[0])
        raise RecordingError(
            f"{where}: time runs backwards, from {t[k]:.9g} s (sample {k}) to {t[k + 1]:.9g} s ({backwards.size} such places); "
            f"sort the "
            "samples, or make two recordings where the clock was set back"
        )
    if repeated.size:
        k = int(repeated[0])
        raise RecordingError(
            f"{where}: samples {k} and {k + 1} have the same time stamp, {t[k]:.9g} s ({repeated.size} such places); keep one "
            f"of them, or "
            "average them"
        )


def check_recordings(recordings: Any) -> tuple[Recording, ...]:
    """`recordings` as a tuple with unique names. Raises `RecordingError`."""
    given = (recordings,) if isinstance(recordings, Recording) else recordings
    if not isinstance(given, Iterable):
        raise RecordingError(f"recordings is {type(recordings).__name__}; expected a Recording or a list of them")
    found = tuple(given)
    for k, recording in enumerate(found):
        if not isinstance(recording, Recording):
            raise RecordingError(
                f"recordings[{k}] is {type(recording).__name__}; expected a Recording; estimation.read makes one of a file"
            )
    names = [recording.name for recording in found]
    if not names:
        raise RecordingError("recordings is empty; expected at least one Recording")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordingError(f"two recordings are called '{twice}'; names tell them apart in messages and reports")
    return found
