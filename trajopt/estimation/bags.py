"""MCAP files and ROS bags: channels from the fields of messages.

A map of channels is needed, a dictionary or a YAML file:

    q:       {topic: /joint_states, fields: [position]}
    torque:  {topic: /joint_states, fields: ["effort[0]", "effort[1]"]}
    imu:     {topic: /imu, fields: [angular_velocity.x, angular_velocity.y, angular_velocity.z, linear_acceleration.x, ...]}

fields: paths of numbers or arrays, one after the other; `scale` multiplies them, one number or one for each column. Time stamps
are those of `header.stamp` where a message has one, else the times at which it was logged (`stamp: log` asks for these); they
count from the first of the recording. Quaternions of ROS are x y z w: name w first.
"""

import importlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from trajopt.errors import MissingExtraError, RecordingError, UnknownNameError
from trajopt.estimation.recording import Recording
from trajopt.names import closest

EXTRA = "pip install 'trajopt-contact[recordings]'"
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def read_bag(path: pathlib.Path, channels: Mapping[str, Any] | None, name: str) -> Recording:
    """The recording in an MCAP file, a ROS 1 bag, or the folder or database of a ROS 2 bag.

    Raises `RecordingError` without a map of channels, `UnknownNameError` for a topic or field that is not there,
    `MissingExtraError`.
    """
    if channels is None:
        raise RecordingError(
            f"'{path}' holds messages: give channels, such as {{'q': {{'topic': '/joint_states', 'fields': ['position']}}}}"
        )
    entries = {channel: _entry(channel, entry) for channel, entry in channels.items()}
    wanted = {entry["topic"] for entry in entries.values()}
    stamps: dict[str, list[float]] = {channel: [] for channel in entries}
    rows: dict[str, list[Any]] = {channel: [] for channel in entries}
    seen: set[str] = set()
    for topic, logged, message in _messages(path, wanted, seen):
        for channel, entry in entries.items():
            if entry["topic"] == topic:
                where = f"recording '{name}', channel '{channel}', message {len(rows[channel])} of topic '{topic}'"
                parts = [np.atleast_1d(np.asarray(_field(message, field, where), float)) for field in entry["fields"]]
                rows[channel].append(np.concatenate(parts) * np.asarray(entry["scale"], float))
                stamps[channel].append(_stamp(message, logged, entry["stamp"]))
    for channel, entry in entries.items():
        if not rows[channel]:
            raise UnknownNameError(
                f"'{path}' has no message of topic '{entry['topic']}' (channel '{channel}'){closest(entry['topic'], seen)}"
            )
        widths = {row.size for row in rows[channel]}
        if len(widths) > 1:
            raise RecordingError(
                f"recording '{name}', channel '{channel}': messages have {sorted(widths)} numbers; expected as many in each"
            )
    first = min(min(times) for times in stamps.values())
    return Recording(
        name, {channel: (np.array(stamps[channel]) - first, np.stack(rows[channel])) for channel in entries}
    )


def _entry(channel: str, entry: Any) -> dict[str, Any]:
    known = {"topic", "fields", "scale", "stamp"}
    if not isinstance(entry, Mapping) or not {"topic", "fields"} <= set(entry) or set(entry) - known:
        raise RecordingError(
            f"channel '{channel}' of the map is {entry!r}; expected {{topic: NAME, fields: [PATH, ...]}}, and perhaps scale "
            f"and stamp"
        )
    fields = [entry["fields"]] if isinstance(entry["fields"], str) else list(entry["fields"])
    return {
        "topic": entry["topic"],
        "fields": fields,
        "scale": entry.get("scale", 1.0),
        "stamp": entry.get("stamp", "header"),
    }


def _messages(path: pathlib.Path, wanted: set[str], seen: set[str]) -> Iterator[tuple[str, float, Any]]:
    """(topic, time at which it was logged, message) of the wanted topics; `seen` collects the names of all."""
    if path.is_file() and path.suffix.lower() == ".mcap":
        yield from _mcap_messages(path, wanted, seen)
        return
    try:
        highlevel = importlib.import_module("rosbags.highlevel")
        typesys = importlib.import_module("rosbags.typesys")
    except ImportError as error:
        raise MissingExtraError(f"ROS bags need rosbags: {EXTRA}") from error
    folder = path.parent if path.suffix.lower() == ".db3" else path
    store = typesys.get_typestore(typesys.Stores.LATEST)
    with highlevel.AnyReader([folder], default_typestore=store) as reader:
        seen.update(connection.topic for connection in reader.connections)
        chosen = [connection for connection in reader.connections if connection.topic in wanted]
        for connection, logged, raw in reader.messages(connections=chosen) if chosen else ():
            yield connection.topic, logged * 1e-9, reader.deserialize(raw, connection.msgtype)


def _mcap_messages(path: pathlib.Path, wanted: set[str], seen: set[str]) -> Iterator[tuple[str, float, Any]]:
    try:
        make_reader = importlib.import_module("mcap.reader").make_reader
    except ImportError as error:
        raise MissingExtraError(f"MCAP files need mcap: {EXTRA}") from error
    decoders: dict[int, Any] = {}
    with open(path, "rb") as stream:
        reader = make_reader(stream)
        summary = reader.get_summary()
        seen.update(channel.topic for channel in (summary.channels.values() if summary else ()))
        for schema, channel, message in reader.iter_messages(topics=sorted(wanted)):
            if channel.id not in decoders:
                decoders[channel.id] = _decoder(channel.message_encoding, schema, path)
            yield channel.topic, message.log_time * 1e-9, decoders[channel.id](message.data)


def _decoder(encoding: str, schema: Any, path: pathlib.Path) -> Any:
    """What makes messages of bytes: JSON, or ROS 2's CDR by the definition that the file holds."""
    if encoding == "json":
        return lambda data: json.loads(data, object_hook=lambda fields: SimpleNamespace(**fields))
    if encoding == "cdr" and schema is not None and schema.encoding == "ros2msg":
        try:
            typesys = importlib.import_module("rosbags.typesys")
        except ImportError as error:
            raise MissingExtraError(f"ROS 2 messages in MCAP files need rosbags: {EXTRA}") from error
        store = typesys.get_typestore(typesys.Stores.LATEST)
        name = schema.name if "/msg/" in schema.name else schema.name.replace("/", "/msg/", 1)
        store.register(typesys.get_types_from_msg(schema.data.decode(), name)) if name not in store.types else None
        return lambda data: store.deserialize_cdr(data, name)
    raise RecordingError(f"'{path}' has messages encoded as '{encoding}'; JSON and ROS 2 (cdr) are read")


def _field(message: Any, path: str, where: str) -> Any:
    """The number or array at a path such as pose.position.x or effort[2]."""
    value = message
    for name, index in _PART.findall(path):
        if name:
            fields = (
                vars(value)
                if isinstance(value, SimpleNamespace)
                else dict.fromkeys(getattr(value, "__dataclass_fields__", {}))
            )
            if name not in fields:
                raise UnknownNameError(f"{where} has no field '{path}'{closest(name, fields)}")
            value = getattr(value, name)
        elif int(index) >= len(value):
            raise RecordingError(f"{where}: field '{path}' has {len(value)} entries")
        else:
            value = value[int(index)]
    return value


def _stamp(message: Any, logged: float, kind: str) -> float:
    header = getattr(message, "header", None)
    stamp = getattr(header, "stamp", None) if kind == "header" else None
    if stamp is None:
        return logged
    nanoseconds = getattr(stamp, "nanosec", getattr(stamp, "nsec", 0))
    return float(stamp.sec) + 1e-9 * float(nanoseconds)
