"""Readers: recordings from CSV, NumPy archives, Parquet, MCAP files and ROS bags, by the ending of the path.

    estimation.read("run7.csv", channels={"pose": ["x", "y", "z", "qw", "qx", "qy", "qz"], "torque": ["tau1", "tau2"]})

The map of channels is a dictionary or a YAML file with the same content. An entry is a list of columns, or

    columns:  the columns, in the order of the channel
    time:     the column of its time stamps (default: the first of `TIME_COLUMNS` that the file has)
    scale:    by which the values are multiplied: 0.001 for a file in mm, 0.0174533 for degrees; one number, or one for each
    column time_scale: by which time stamps are multiplied: 1e-9 for nanoseconds

Without a map, columns `pose.x`, `pose.y` make the channel `pose`, and any other column is a channel of its own. Rows in which a
channel has no entry are not samples of it, so that one table may hold several rates. For MCAP and ROS bags see
`trajopt.estimation.bags`.
"""

import csv
import importlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt import files
from trajopt.errors import MissingExtraError, RecordingError, UnknownNameError
from trajopt.estimation import bags
from trajopt.estimation.recording import Recording
from trajopt.names import closest

TIME_COLUMNS = ("t", "time", "timestamp", "time_s", "stamp")
ENDINGS = (".csv", ".txt", ".tsv", ".npz", ".parquet", ".mcap", ".bag", ".db3")

Columns = dict[str, Float[np.ndarray, " n"]]


def read(
    path: str | os.PathLike, channels: Mapping[str, Any] | str | os.PathLike | None = None, *, name: str | None = None
) -> Recording:
    """The recording in a file, or in the folder of a ROS 2 bag.

    channels: which columns make which channel, a dictionary or the path of a YAML file; None: by the names of the columns.
    name: of the recording; None is the file's own.
    Raises `RecordingError`, `UnknownNameError` for a column that is not there, `MissingExtraError` where a reader is not
    installed.
    """
    place = pathlib.Path(path)
    name = place.stem if name is None else name
    described = _channel_map(channels)
    ending = place.suffix.lower()
    if not place.exists():
        raise RecordingError(f"there is no file '{place}'")
    if place.is_dir() or ending in (".mcap", ".bag", ".db3"):
        return bags.read_bag(place, described, name)
    if ending == ".npz":
        arrays = files.read_arrays(place, "write it with Recording.save or numpy.savez")
        return _from_archive(place, arrays, described, name)
    if ending == ".parquet":
        return from_columns(_parquet(place), described, name, where=os.fspath(place))
    if ending in (".csv", ".txt", ".tsv"):
        return from_columns(_table(place), described, name, where=os.fspath(place))
    raise RecordingError(
        f"'{place}' ends in '{ending}'; recordings are read from {', '.join(ENDINGS)} and from folders of ROS 2 bags"
    )


def from_columns(
    columns: Columns, channels: Mapping[str, Any] | None, name: str, where: str = "the table"
) -> Recording:
    """A recording from columns of equal length by name, among them that of the time stamps; NaN is a missing entry."""
    if channels is None:
        channels = _grouped(columns)
    made = {}
    for channel, entry in channels.items():
        entry = {"columns": entry} if isinstance(entry, str | Sequence) else dict(entry)
        unknown = set(entry) - {"columns", "time", "scale", "time_scale"}
        if unknown or "columns" not in entry:
            raise RecordingError(
                f"channel '{channel}' of the map has {sorted(entry)}; expected columns, and perhaps time, scale, time_scale"
            )
        named = [entry["columns"]] if isinstance(entry["columns"], str) else list(entry["columns"])
        for column in named:
            if column not in columns:
                raise UnknownNameError(
                    f"{where} has no column '{column}', which channel '{channel}' asks for{closest(column, columns)}"
                )
        t = columns[_time_column(columns, entry.get("time"), where)] * float(entry.get("time_scale", 1.0))
        values = np.stack([columns[column] for column in named], 1) * np.asarray(entry.get("scale", 1.0), float)
        present = ~np.isnan(values).all(1)
        if not present.any():
            raise RecordingError(
                f"recording '{name}', channel '{channel}': no row of {where} has an entry in columns {named}"
            )
        made[channel] = (t[present], values[present])
    return Recording(name, made)


def _channel_map(channels: Any) -> Mapping[str, Any] | None:
    if channels is None or isinstance(channels, Mapping):
        return channels
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise MissingExtraError("a map of channels in YAML needs PyYAML: pip install 'trajopt-contact[recordings]'") from error
    try:
        content = yaml.safe_load(pathlib.Path(channels).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RecordingError(f"'{channels}' is no YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise RecordingError(
            f"'{channels}' holds {type(content).__name__}; expected channels with their columns, such as 'pose: [x, y, z, qw, "
            f"qx, qy, qz]'"
        )
    return content


def _time_column(columns: Columns, asked: str | None, where: str) -> str:
    if asked is not None:
        if asked not in columns:
            raise UnknownNameError(f"{where} has no column '{asked}' of time stamps{closest(asked, columns)}")
        return asked
    found = next((column for column in columns if column.lower() in TIME_COLUMNS), None)
    if found is None:
        raise RecordingError(
            f"{where} has no column of time stamps ({', '.join(TIME_COLUMNS)}); name it in the map: time: COLUMN"
        )
    return found


def _grouped(columns: Columns) -> dict[str, list[str]]:
    """Channels by the names of columns: those with the same part before the last dot belong together."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        if column.lower() not in TIME_COLUMNS:
            groups.setdefault(column.rpartition(".")[0] or column, []).append(column)
    return groups


def _table(path: pathlib.Path) -> Columns:
    """The columns of a text table with a header line; commas, semicolons or tabs; entries that are empty or 'nan' are NaN."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        first = stream.readline()
        delimiter = max(",;\t", key=first.count)
        stream.seek(0)
        rows = list(csv.reader(stream, delimiter=delimiter))
    rows = [row for row in rows if row and not row[0].startswith("#")]
    if len(rows) < 2:
        raise RecordingError(f"'{path}' has {len(rows)} lines; expected a header line and samples")
    header = [cell.strip() for cell in rows[0]]
    values = np.full((len(rows) - 1, len(header)), np.nan)
    for k, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise RecordingError(
                f"'{path}', line {k + 2}: {len(row)} entries, but the header names {len(header)} columns"
            )
        for j, cell in enumerate(row):
            text = cell.strip()
            try:
                values[k, j] = float(text) if text else np.nan
            except ValueError:
                raise RecordingError(f"'{path}', line {k + 2}, column '{header[j]}': '{text}' is no number") from None
    return {column: values[:, j] for j, column in enumerate(header)}


def _parquet(path: pathlib.Path) -> Columns:
    for module in ("pyarrow.parquet", "pandas"):
        try:
            reader = importlib.import_module(module)
        except ImportError:
            continue
        table = reader.read_table(path).to_pydict() if module != "pandas" else reader.read_parquet(path).to_dict("list")
        return {
            str(column): np.array([np.nan if x is None else x for x in values], float)
            for column, values in table.items()
        }
    raise MissingExtraError("Parquet files need pyarrow: pip install 'trajopt-contact[recordings]'")


def _from_archive(
    path: pathlib.Path, arrays: dict[str, Any], channels: Mapping[str, Any] | None, name: str
) -> Recording:
    """An archive of `Recording.save`, or of arrays with the time stamps among them; arrays (n, w) are channels of w columns."""
    saved = [key.removesuffix(".values") for key in arrays if key.endswith(".values")]
    if saved and channels is None:
        return Recording(name, {channel: (arrays[f"{channel}.t"], arrays[f"{channel}.values"]) for channel in saved})
    columns: Columns = {}
    groups: dict[str, list[str]] = {}
    for key, array in arrays.items():
        if array.ndim == 1:
            columns[key] = np.asarray(array, float)
            groups[key] = [key]
        elif array.ndim == 2:
            groups[key] = [f"{key}.{j}" for j in range(array.shape[1])]
            columns |= {column: np.asarray(array[:, j], float) for j, column in enumerate(groups[key])}
    time = next((key for key in columns if key.lower() in TIME_COLUMNS), None)
    if channels is None:
        length = 0 if time is None else columns[time].size
        channels = {
            key: list(group) for key, group in groups.items() if key != time and columns[group[0]].size == length
        }
    else:
        channels = {
            key: groups.get(entry, entry) if isinstance(entry, str) else entry for key, entry in channels.items()
        }
    return from_columns(columns, channels, name, where=os.fspath(path))
