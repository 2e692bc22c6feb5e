"""Recordings and their readers: what is written is read, in every format, and what is malformed is named."""

import json

import numpy as np
import pytest

from trajopt.errors import MissingExtraError, RecordingError, UnknownNameError
from trajopt.estimation import Recording, from_columns, read, read_tosses

T = np.linspace(0.0, 1.0, 6)
POSE = np.arange(42.0).reshape(6, 7)


def test_channels_have_their_own_rates_and_missing_entries():
    recording = Recording("a", {"pose": (T, POSE), "u": (np.array([0.1, 0.2]), np.array([1.0, np.nan]))})
    assert recording["u"].values.shape == (2, 1) and recording["pose"].interval == pytest.approx(0.2)
    assert (recording.start, recording.end) == (0.0, 1.0)
    part = recording.between(0.3, 0.7)
    assert set(part.channels) == {"pose"} and part["pose"].t.tolist() == pytest.approx([0.4, 0.6])
    assert "50.0% missing" in recording.describe()
    assert set(recording.renamed({"u": "torque"}).channels) == {"pose", "torque"}


@pytest.mark.parametrize(
    ("t", "values", "message"),
    [
        (
            [0.0, 0.2, 0.1],
            np.zeros(3),
            r"recording 'a', channel 'q': time runs backwards, from 0.2 s \(sample 1\) to 0.1 s",
        ),
        ([0.0, 0.2, 0.2], np.zeros(3), "'q': samples 1 and 2 have the same time stamp, 0.2 s"),
        ([0.0, np.nan], np.zeros(2), "time stamp of sample 1 is not finite"),
        ([0.0, 0.1], np.zeros(3), r"time stamps of shape \(2,\) and values of shape \(3, 1\)"),
        ([0.0, 0.1], [0.0, np.inf], "is infinite at t = 0.1 s, column 0"),
        ([0.0, 0.1], ["a", "b"], "entries that are no numbers"),
    ],
)
def test_malformed_channels_name_recording_channel_and_time(t, values, message):
    with pytest.raises(RecordingError, match=message):
        Recording("a", {"q": (t, values)})


def test_archive_of_a_recording_is_read_back(tmp_path):
    recording = Recording("run", {"pose": (T, POSE), "u": (T[:2], POSE[:2, :1])})
    recording.save(tmp_path / "run.npz")
    again = read(tmp_path / "run.npz")
    assert again.name == "run" and set(again.channels) == {"pose", "u"}
    np.testing.assert_array_equal(again["pose"].values, POSE)
    np.savez(tmp_path / "plain.npz", t=T, pose=POSE, other=np.zeros((2, 2)))
    np.testing.assert_array_equal(read(tmp_path / "plain.npz")["pose"].values, POSE)


def test_a_table_holds_channels_of_several_rates(tmp_path):
    text = "t,q.a,q.b,u\n0,1000,2,\n0.1,,,5\n0.2,3000,,6\n"
    (tmp_path / "run.csv").write_text(text)
    recording = read(tmp_path / "run.csv")
    np.testing.assert_array_equal(recording["q"].values, [[1000, 2], [3000, np.nan]])
    np.testing.assert_array_equal(recording["u"].t, [0.1, 0.2])
    (tmp_path / "map.yaml").write_text("angle: {columns: [q.b, q.a], scale: [1, 0.001]}\n")
    mapped = read(tmp_path / "run.csv", tmp_path / "map.yaml", name="x")
    np.testing.assert_array_equal(mapped["angle"].values, [[2, 1], [np.nan, 3]])
    milliseconds = {"u": {"columns": "u", "time_scale": 1e-3}}
    np.testing.assert_allclose(read(tmp_path / "run.csv", milliseconds)["u"].t, [1e-4, 2e-4])


@pytest.mark.parametrize(
    ("text", "channels", "message"),
    [
        ("t,a\n0,1\n1,x\n", None, "line 3, column 'a': 'x' is no number"),
        ("t,a\n0,1,2\n", None, "line 2: 3 entries, but the header names 2"),
        ("a,b\n0,1\n", None, "no column of time stamps"),
        ("t,a\n0,1\n", {"q": ["b"]}, "no column 'b', which channel 'q' asks for"),
        ("t,a\n0,\n", {"q": ["a"]}, "recording 'run', channel 'q': no row"),
        ("t,a\n0,1\n", {"q": {"column": ["a"]}}, "expected columns"),
        ("t\n", None, "expected a header line and samples"),
    ],
)
def test_bad_tables(tmp_path, text, channels, message):
    (tmp_path / "run.csv").write_text(text)
    with pytest.raises((RecordingError, UnknownNameError), match=message):
        read(tmp_path / "run.csv", channels)


def test_files_that_are_not_there_or_of_unknown_kind(tmp_path):
    with pytest.raises(RecordingError, match="there is no file"):
        read(tmp_path / "none.csv")
    (tmp_path / "run.xyz").write_text("")
    with pytest.raises(RecordingError, match="recordings are read from"):
        read(tmp_path / "run.xyz")


def test_columns_of_a_table_make_a_recording():
    columns = {"time": T, "a": T, "b": 2 * T}
    np.testing.assert_array_equal(from_columns(columns, {"q": ["a", "b"]}, "x")["q"].values[:, 1], 2 * T)


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table({"t": T, "q": [0.0, None, 2.0, 3.0, 4.0, 5.0]}), tmp_path / "run.parquet")
    assert read(tmp_path / "run.parquet")["q"].t.size == 5


def test_mcap_with_json_messages(tmp_path):
    writer_module = pytest.importorskip("mcap.writer")
    with open(tmp_path / "run.mcap", "wb") as stream:
        writer = writer_module.Writer(stream)
        writer.start()
        schema = writer.register_schema("joints", "jsonschema", b"{}")
        channel = writer.register_channel("/joints", "json", schema)
        for k in range(3):
            message = {"header": {"stamp": {"sec": 5, "nanosec": k * 10**8}}, "position": [k, 10 + k], "x": {"y": -k}}
            writer.add_message(channel, k * 10**9, json.dumps(message).encode(), k * 10**9)
        writer.finish()
    channels = {
        "q": {"topic": "/joints", "fields": ["position", "x.y"]},
        "u": {"topic": "/joints", "fields": ["position[1]"], "stamp": "log"},
    }
    recording = read(tmp_path / "run.mcap", {"q": channels["q"]})
    np.testing.assert_array_equal(recording["q"].values, [[0, 10, 0], [1, 11, -1], [2, 12, -2]])
    np.testing.assert_allclose(recording["q"].t, [0, 0.1, 0.2], atol=1e-9)
    np.testing.assert_allclose(read(tmp_path / "run.mcap", {"u": channels["u"]})["u"].t, [0, 1, 2])
    with pytest.raises(UnknownNameError, match="no message of topic '/joint'.*'/joints'"):
        read(tmp_path / "run.mcap", {"q": {"topic": "/joint", "fields": ["position"]}})
    with pytest.raises(UnknownNameError, match="has no field 'positions'"):
        read(tmp_path / "run.mcap", {"q": {"topic": "/joints", "fields": ["positions"]}})
    with pytest.raises(RecordingError, match="give channels"):
        read(tmp_path / "run.mcap")


def test_ros_2_bag(tmp_path):
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.LATEST)
    kind = store.types["sensor_msgs/msg/JointState"]
    header, stamp = store.types["std_msgs/msg/Header"], store.types["builtin_interfaces/msg/Time"]
    with rosbag2.Writer(tmp_path / "bag", version=9) as writer:
        connection = writer.add_connection("/joint_states", kind.__msgtype__, typestore=store)
        for k in range(4):
            empty = np.zeros(0)
            message = kind(header(stamp(1, k * 10**7), ""), ["a"], np.array([0.5 * k]), empty, empty)
            writer.write(connection, k, store.serialize_cdr(message, kind.__msgtype__))
    recording = read(tmp_path / "bag", {"q": {"topic": "/joint_states", "fields": ["position"]}})
    np.testing.assert_allclose(recording["q"].values[:, 0], [0, 0.5, 1.0, 1.5])
    np.testing.assert_allclose(recording["q"].t, [0, 0.01, 0.02, 0.03], atol=1e-9)


def test_the_archive_of_tosses(tmp_path):
    rng = np.random.default_rng(0)
    quaternion = rng.normal(size=(5, 4))
    arrays = {
        "offsets": np.array([0, 2, 5]), "position": rng.normal(size=(5, 3)), "quaternion_wxyz": quaternion,
        "velocity": rng.normal(size=(5, 3)), "angular_velocity_body": rng.normal(size=(5, 3)), "rate": np.array(100.0),
    }  # fmt: skip
    np.savez(tmp_path / "tosses.npz", **arrays)
    (toss,) = read_tosses(tmp_path / "tosses.npz", [1])
    assert toss.name == "toss 1"
    np.testing.assert_allclose(toss["pose"].t, [0, 0.01, 0.02])
    np.testing.assert_allclose(np.linalg.norm(toss["pose"].values[:, 3:], axis=1), 1.0)
    with pytest.raises(RecordingError, match="tosses 0 to 1"):
        read_tosses(tmp_path / "tosses.npz", [2])
    np.savez(tmp_path / "other.npz", offsets=arrays["offsets"])
    with pytest.raises(RecordingError, match="lacks the arrays position"):
        read_tosses(tmp_path / "other.npz")


def test_the_repositorys_own_files_need_torch(tmp_path):
    try:
        import torch
    except ImportError:
        with pytest.raises(MissingExtraError, match="PyTorch"):
            read_tosses(tmp_path)
        return
    torch.save(torch.ones((1, 4, 19)), tmp_path / "3.pt")
    (toss,) = read_tosses(tmp_path)
    np.testing.assert_allclose(toss["pose"].values[0, :3], 0.0524)
