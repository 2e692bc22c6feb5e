"""The viewer: what is served and what is exported stands where the kinematics say, and every mistake gets a line of advice."""

import base64
import collections
import importlib.util
import json
import pathlib
import re
import shutil
import signal
import subprocess
import types
import urllib.request

import jax
import jax.numpy as jnp
import msgspec
import mujoco
import numpy as np
import pytest
import zstandard
from PIL import Image
from processes import python
from scipy.spatial.transform import Rotation

from trajopt import problems
from trajopt.cli import main
from trajopt.dynamics import RigidContact
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import OptionError, UnknownNameError
from trajopt.models import load_model
from trajopt.problems.parts import Display
from trajopt.solvers.loop.solution import amend_summary
from trajopt.viz import viewer
from trajopt.viz.recording import Recording, contact_forces, read_run
from trajopt.viz.shapes3d import surface
from trajopt.viz.stage import Stage

MODELS = pathlib.Path(importlib.util.find_spec("trajopt.models").origin).parent / "bundled"


def swing(name: str, count: int = 4) -> Recording:
    """A motion of a bundled model from its default pose, every coordinate another way, with a made-up force."""
    model = load_model(name)
    t = np.linspace(0.0, 0.3, count)
    q = np.asarray(model.q_default) + t[:, None] * np.linspace(-1.0, 1.0, model.nq)
    forces = np.array([[[0.0, 0.0, 50.0]]]) * np.arange(count)[:, None, None]
    return Recording(name, model, t, q, np.zeros((count, 1, 3)), forces, f"caption of {name}")


def write_run(folder: pathlib.Path, recording: Recording, **summary) -> pathlib.Path:
    folder.mkdir(parents=True)
    values = {"problem": "cartpole-swingup", "solver": "iLQR", "status": "solved", "cost": 2.5} | summary
    (folder / "summary.json").write_text(json.dumps(values))
    np.savez(folder / "trajectory.npz", t=recording.t, q=recording.q)
    return folder


BRICK = np.array(np.meshgrid([0.0, 1.0], [0.0, 2.0], [0.0, 3.0])).reshape(3, -1).T


@pytest.mark.parametrize(
    ("kind", "vertices", "exact"),
    [
        (ShapeType.BOX, None, 8 * 0.3 * 0.5 * 0.4),
        (ShapeType.SPHERE, None, 4 / 3 * np.pi * 0.3**3),
        (ShapeType.CYLINDER, None, np.pi * 0.3**2 * 1.0),
        (ShapeType.CAPSULE, None, np.pi * 0.3**2 * 1.0 + 4 / 3 * np.pi * 0.3**3),
        (ShapeType.ELLIPSOID, None, 4 / 3 * np.pi * 0.3 * 0.5 * 0.4),
        (ShapeType.MESH, np.concatenate([BRICK, [[0.5, 1.0, 1.5]]]), 6.0),  # a mesh is drawn by its hull
    ],
)
def test_surfaces_are_closed_and_of_the_right_volume(kind, vertices, exact):
    points, triangles = surface(kind, np.array([0.3, 0.5, 0.4]), vertices)
    edges = collections.Counter(tuple(t[[k, (k + 1) % 3]]) for t in triangles for k in range(3))
    assert all(count == 1 and edges[edge[::-1]] == 1 for edge, count in edges.items()), "every edge has two sides"
    a, b, c = points[triangles].swapaxes(0, 1)
    inside = float(np.einsum("ij,ij->", a, np.cross(b, c))) / 6
    # 32 facets around lose (2 pi / 32)^2 / 6 = 0.6 % of a circle, 16 along as much again of a half circle, on both axes.
    assert 0.98 * exact < inside <= exact * (1 + 1e-12)


@pytest.fixture(scope="module")
def server():
    server = viewer.start_server(18080)
    yield server
    server.stop()


def world_pose(scene, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rotation and position in the world of a node of the scene, through its ancestors."""
    rotation, position = np.eye(3), np.zeros(3)
    parts = name.strip("/").split("/")
    for end in range(len(parts), 0, -1):
        node = scene.get_handle_by_name("/" + "/".join(parts[:end]))
        R = Rotation.from_quat(np.roll(node.wxyz, -1)).as_matrix()
        rotation, position = R @ rotation, R @ position + node.position
    return rotation, position


def geoms(name: str, q: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """World placement of every geom, by MuJoCo."""
    model = mujoco.MjModel.from_xml_path(str(MODELS / f"{name}.xml"))
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    return {
        model.geom(k).name: (data.geom_xmat[k].reshape(3, 3).copy(), data.geom_xpos[k].copy())
        for k in range(model.ngeom)
    }


def test_the_scene_stands_where_mujoco_puts_it(server):
    recordings = [swing("hopper"), swing("cart-pole")]
    stage = Stage(server, recordings)
    gap = stage.offsets[1] - stage.offsets[0]
    assert gap[1] > 0.1 and gap[0] == gap[2] == 0, "side by side"
    checked = 0
    for k, moment in ((0, 0.0), (2, 0.2), (3, 0.3)):
        stage.show(moment)
        for number, recording in enumerate(recordings):
            top, expected = recording.model.topology, geoms(recording.name, recording.q[k])
            for index, shape in enumerate(top.shapes):
                if shape.node < 0 or shape.name not in expected:
                    continue
                rotation, position = world_pose(server.scene, f"/{number}/{shape.node}/shape{index}")
                np.testing.assert_allclose(rotation, expected[shape.name][0], atol=1e-6)
                np.testing.assert_allclose(position - stage.offsets[number], expected[shape.name][1], atol=1e-6)
                checked += 1
    assert checked >= 3 * 4
    assert server.scene.get_handle_by_name("/time").text == "t = 0.300 s"
    arrow = server.scene.get_handle_by_name("/0/forces")
    np.testing.assert_allclose(arrow.points[0, 1], [0, 0, 150 / stage.newtons_per_metre], rtol=1e-6)
    stage.show(0.0)
    assert not arrow.visible, "no force, no arrow"
    assert f"1 m of arrow is {stage.newtons_per_metre:g} N" in stage.legend()


def test_contact_forces_belong_to_the_contacts_of_the_step():
    model = load_model("cube").to_device()
    law, dt = RigidContact(max_contacts=3), 1e-2  # three of the cube's four
    turn = np.roll(Rotation.from_rotvec([0.1, 0.2, 0.3]).as_quat(), 1)
    q, v = np.array([[0.3, -0.2, 0.12, *turn], [0.3, -0.2, 0.13, *turn]]), jnp.zeros(6)

    @jax.jit
    def rows_of_step(row):
        kin = kinematics(model, row)
        inputs = StepInputs(law, model, row, v, jnp.zeros_like(v), jnp.asarray(dt))
        rows = assemble(inputs, kin, collide(model, kin))
        return rows.contacts.point, rows.frames

    place, frames = rows_of_step(jnp.asarray(q[0]))
    impulse = np.arange(9.0).reshape(1, 3, 3)
    points, forces = contact_forces(model, np.array([0.0, dt]), q, impulse)
    np.testing.assert_allclose(points, np.stack([place, place]), atol=1e-12)  # the last state shows the last step
    np.testing.assert_allclose(forces[1], np.einsum("cij,cj->ci", frames, impulse[0]) / dt, rtol=1e-12)
    assert np.ptp(points[0], axis=0).max() > 0.15


def embedded(page: str) -> tuple[float, list]:
    """Duration and (time, message) of the recording in an exported page."""
    data = base64.b64decode(re.search(r'__VISER_EMBED_DATA__="([^"]+)"', page).group(1))
    inner = zstandard.ZstdDecompressor().decompress(data[8:], max_output_size=int.from_bytes(data[:8], "little"))
    size = int.from_bytes(inner[:8], "little")
    content = msgspec.msgpack.decode(inner[8 : 8 + size])
    return content["durationSeconds"], content["messages"]


def test_the_export_holds_the_motion_and_loads_nothing(tmp_path):
    recording = swing("cart-pole")
    path = viewer.export([recording], tmp_path / "motion.html")
    page = path.read_text()
    duration, messages = embedded(page)
    assert duration == pytest.approx(3.0)  # a motion of 0.3 s, ten times slower
    names = {message["name"] for _, message in messages if "name" in message}
    assert {
        f"/0/{shape.node}/shape{k}" for k, shape in enumerate(recording.model.topology.shapes) if shape.node >= 0
    } <= names
    pole = next(shape for shape in recording.model.topology.shapes if shape.node == 1)
    turns = [m["wxyz"] for _, m in messages if m["type"] == "SetOrientationMessage" and m["name"] == "/0/1"]
    # The first pose is that of the frame as it is made: angle zero.
    angles = [0.0] + [2 * np.arctan2(np.linalg.norm(turn[1:]), turn[0]) for turn in turns]
    np.testing.assert_allclose(sorted(set(np.round(angles, 6))), np.round(np.abs(recording.q[:, 1]), 6), atol=2e-6)
    assert pole.name and "caption of cart-pole" in page and "10 times slower" in page
    assert not re.search(r'(src|href)="(https?:)?//', page), "nothing is fetched"


def test_settings_of_the_run_choose_its_model(tmp_path, request):
    problems.register(
        "any", lambda *, robot="cube", at=(0, 0): types.SimpleNamespace(display=Display(model=load_model(robot))), "a robot"
    )
    request.addfinalizer(lambda: problems.unregister("any"))
    folder = write_run(tmp_path / "run", swing("cart-pole"), problem="any")
    with pytest.raises(OptionError, match="does not fit the model 'cube'.*--model"):
        read_run(folder)
    amend_summary(folder, {"settings": {"robot": "cart-pole", "at": (1, 2)}})
    assert json.loads((folder / "summary.json").read_text())["settings"] == {"robot": "cart-pole", "at": [1, 2]}
    recording = read_run(folder)
    assert recording.model.topology.name == "cart-pole" and recording.caption == "any, iLQR, solved, cost 2.5"


def test_the_model_of_a_training_is_that_of_its_task(tmp_path):
    folder = write_run(tmp_path / "run", swing("hopper"), task="hopper", algorithm="PPO")
    values = json.loads((folder / "summary.json").read_text()) | {"return": 12.34}
    (folder / "summary.json").write_text(json.dumps(values))
    recording = read_run(folder)
    assert recording.model.topology.name == "hopper" and recording.caption == "hopper, PPO, return 12.34"
    amend_summary(folder, {"task": "hoper"})
    with pytest.raises(UnknownNameError, match="there is no task 'hoper'; did you mean 'hopper'.*--model"):
        read_run(folder)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "'nowhere' is not a folder; give a folder that `trajopt run` or `trajopt train` wrote"),
        (["empty"], "'empty' holds no finished run: summary.json is missing"),
        (["damaged"], "summary.json' cannot be read"),
        (["cut"], "trajectory.npz' cannot be read"),
        (["still"], "has no motion of a model"),
        (
            ["stranger"],
            "there is no problem 'cartpole-swingupp'; did you mean 'cartpole-swingup'",
        ),
        (["good", "--model", "go11"], "did you mean 'go1'"),
        (["good", "--model", "go1"], "does not fit the model 'go1': q has shape (4, 2)"),
        (["good", "--export", "no/where.html"], "there is no folder 'no'"),
        (["good", "--export", "empty"], "it is a folder"),
    ],
)
def test_bad_input_is_answered_in_one_line_with_status_two(tmp_path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("empty").mkdir()
    for name in ("good", "damaged", "cut", "still"):
        write_run(pathlib.Path(name), swing("cart-pole"))
    write_run(pathlib.Path("stranger"), swing("cart-pole"), problem="cartpole-swingupp")
    pathlib.Path("damaged/summary.json").write_text("{")
    pathlib.Path("cut/trajectory.npz").write_bytes(pathlib.Path("cut/trajectory.npz").read_bytes()[:100])
    pathlib.Path("still/trajectory.npz").unlink()
    assert main(["view", *arguments, "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.startswith("trajopt: error: ") and error.count("\n") == 1


def test_without_viser_the_line_to_install_it_is_given(tmp_path, monkeypatch, capsys):
    folder = write_run(tmp_path / "run", swing("cart-pole"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["view", str(folder)]) == 2
    assert capsys.readouterr().err == (
        "trajopt: error: the viewer needs viser; install it with: pip install 'trajopt-contact[viewer]'\n"
    )


SERVE = (
    "import sys\nfrom trajopt.cli import main\nsys.exit(main(['view', sys.argv[1], '--no-browser', '--port', '18090']))"
)


def test_it_serves_a_page_and_ctrl_c_ends_it_cleanly(tmp_path):
    folder = write_run(tmp_path / "run", swing("cart-pole"))
    with python(SERVE, str(folder)) as process:
        line = process.stdout.readline()
        assert line.endswith("  (Ctrl-C ends it)\n"), process.stderr.read()
        with urllib.request.urlopen(line.split()[0], timeout=20) as answer:
            assert answer.status == 200 and b"<html" in answer.read()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == ""


@pytest.mark.slow
def test_a_browser_without_network_draws_the_export(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs a browser: sudo apt-get install chromium"
    path = viewer.export([swing("cart-pole")], tmp_path / "motion.html")
    command = [browser, "--headless=new", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader"]
    command += ["--enable-unsafe-swiftshader", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=720,560"]
    command += [f"--user-data-dir={tmp_path / 'profile'}"]
    pictures = []
    for budget in (2500, 4000):
        picture = tmp_path / f"{budget}.png"
        arguments = [f"--virtual-time-budget={budget}", f"--screenshot={picture}", path.as_uri()]
        subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=240)
        with Image.open(picture) as image:
            pictures.append(np.asarray(image.convert("RGB"), float))
    dom = subprocess.run(
        [*command, "--virtual-time-budget=2500", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
    ).stdout
    assert "<canvas" in dom and "caption of cart-pole" in dom
    for picture in pictures:
        coloured = picture.max(axis=2) - picture.min(axis=2) > 60
        assert coloured[80:450, 200:].sum() > 500, "the robot is drawn in colours, all else in greys"
    assert np.abs(pictures[0] - pictures[1])[80:450, 200:].mean() > 0.3, "and it moves"
