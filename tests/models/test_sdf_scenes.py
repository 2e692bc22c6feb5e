"""SDF as it is published: automatic inertia, frames of poses, placement frames, worlds, includes, what is left out."""

import re
import warnings

import mujoco
import numpy as np
import pytest

from trajopt import models
from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelWarning
from trajopt.models.descriptions import rpy_to_matrix
from trajopt.models.placements import node_placements
from trajopt.models.registry import load_model_with_report

pytestmark = pytest.mark.check

INERTIAL = "<inertial><mass>2</mass></inertial>"


def sdf(content: str, version: str = "1.9") -> str:
    return f'<sdf version="{version}">{content}</sdf>'


def link(name: str, extra: str = "", inertial: str = INERTIAL) -> str:
    return f'<link name="{name}">{inertial}{extra}</link>'


def collision(geometry: str, extra: str = "", name: str = "c") -> str:
    return f'<collision name="{name}">{extra}<geometry>{geometry}</geometry></collision>'


def hinge(name: str, parent: str, child: str, kind: str = "revolute") -> str:
    axis = "<axis><xyz>0 0 1</xyz></axis>" + ("<axis2><xyz>1 0 0</xyz></axis2>" if kind in ("universal", "revolute2") else "")
    return f'<joint name="{name}" type="{kind}"><parent>{parent}</parent><child>{child}</child>{axis}</joint>'


def load(text: str):
    """The model and its warnings as one text."""
    with pytest.warns(ModelWarning) as caught:
        model = models.load_model_from_string(text)
    return model, "\n".join(str(w.message) for w in caught)


def placed(model) -> dict[str, np.ndarray]:
    """Positions of all frames in the world at the default configuration, by name."""
    rotation, position = node_placements(model, model.q_default)
    return {
        frame.name: position[frame.node] + rotation[frame.node] @ model.frame_position[k]
        for k, frame in enumerate(model.topology.frames)
    }


GEOMS = [
    ("<box><size>0.2 0.4 0.6</size></box>", 'type="box" size="0.1 0.2 0.3"'),
    ("<sphere><radius>0.3</radius></sphere>", 'type="sphere" size="0.3"'),
    ("<cylinder><radius>0.2</radius><length>0.6</length></cylinder>", 'type="cylinder" size="0.2 0.3"'),
    ("<capsule><radius>0.2</radius><length>0.6</length></capsule>", 'type="capsule" size="0.2 0.3"'),
    ("<ellipsoid><radii>0.1 0.2 0.3</radii></ellipsoid>", 'type="ellipsoid" size="0.1 0.2 0.3"'),
    ("<mesh><uri>hull.obj</uri></mesh>", 'type="mesh" mesh="hull"'),
]


@pytest.mark.parametrize(("geometry", "geom"), GEOMS)
def test_automatic_inertia_is_mujocos(tmp_path, geometry, geom):
    points = np.random.default_rng(0).normal(size=(12, 3)) * 0.2
    (tmp_path / "hull.obj").write_text("".join(f"v {x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in points))
    vertices = " ".join(f"{x:.6f}" for x in points.ravel())
    place = "<pose>0.1 0.2 0.3 0.4 0.5 0.6</pose>"
    extra = collision(geometry, place + "<density>500</density>") + collision("<box/>", "<pose>1 0 0 0 0 0</pose>", "d")
    inertial = '<inertial auto="true"><density>300</density></inertial>'
    path = tmp_path / "m.sdf"
    path.write_text(sdf(f'<model name="m">{link("l", extra, inertial)}</model>'))
    model = models.load_model(path)
    turn = np.zeros(4)
    mujoco.mju_mat2Quat(turn, rpy_to_matrix(np.array([0.4, 0.5, 0.6])).ravel())
    quat = " ".join(map(repr, turn.tolist()))
    peer = mujoco.MjModel.from_xml_string(
        f'<mujoco><asset><mesh name="hull" vertex="{vertices}" inertia="convex"/></asset><worldbody><body><freejoint/>'
        f'<geom pos="0.1 0.2 0.3" quat="{quat}" {geom} density="500"/>'
        '<geom pos="1 0 0" type="box" size="0.5 0.5 0.5" density="300"/></body></worldbody></mujoco>'
    )
    np.testing.assert_allclose(model.mass[-1], peer.body_mass[1], rtol=1e-6)  # MuJoCo's meshes are in single precision
    np.testing.assert_allclose(model.com[-1], peer.body_ipos[1], atol=1e-6)
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, peer.body_iquat[1])
    turned = turn.reshape(3, 3)
    np.testing.assert_allclose(model.inertia[-1], turned @ np.diag(peer.body_inertia[1]) @ turned.T, atol=1e-5)


def test_automatic_inertia_needs_a_solid():
    bare = sdf(f'<model name="m">{link("l", "", "<inertial auto=" + chr(34) + "true" + chr(34) + "/>")}</model>')
    with pytest.raises(ModelError, match="line 1, <inertial>: link 'l' has automatic inertia, but no collision shape"):
        models.load_model_from_string(bare)
    with pytest.raises(ModelError, match="a plane has no volume"):
        models.load_model_from_string(bare.replace('auto="true"/>', 'auto="true"/>' + collision("<plane/>")))


def test_poses_name_their_frames():
    """`frame` of versions 1.5 and 1.6 is `relative_to`; collisions may be placed in other frames than their link's."""
    inner = (
        link("a", "<pose>1 0 0 0 0 1.5707963267948966</pose>")
        + link("b", '<pose frame="a">1 0 0 0 0 0</pose>' + collision("<sphere/>", '<pose relative_to="a">0 3 0 0 0 0</pose>'))
        + link("c", '<pose relative_to="b">1 0 0 0 0 0</pose>')
    )
    model = models.load_model_from_string(sdf(f'<model name="m"><static>true</static>{inner}</model>', "1.6"))
    where = placed(model)
    np.testing.assert_allclose(where["b"], [1, 1, 0], atol=1e-12)
    np.testing.assert_allclose(where["c"], [1, 2, 0], atol=1e-12)
    np.testing.assert_allclose(model.shape_position[0], [-2, 0, 0], atol=1e-12)  # three along a's y axis, which is -x
    assert model.shape_size[0, 0] == 1.0  # a sphere without a radius


def test_models_are_placed_by_frames_of_the_world_and_by_frames_of_their_own():
    """`placement_frame`: the pose of the model is that of one of its frames."""
    shelf = '<frame name="shelf"><pose>0 0 2 0 0 0</pose></frame>'
    one = f'<model name="one"><pose relative_to="shelf">1 0 0 0 0 0</pose>{link("l")}</model>'
    grip = '<frame name="grip"><pose>0 0.5 0 0 0 0</pose></frame>'
    turned = '<pose relative_to="one">0 0 1 0 0 3.141592653589793</pose>'
    two = f'<model name="two" placement_frame="grip">{turned}{grip}{link("l")}</model>'
    where = placed(models.load_model_from_string(sdf(f'<world name="w">{shelf}{one}{two}</world>')))
    np.testing.assert_allclose(where["shelf"], [0, 0, 2])
    np.testing.assert_allclose(where["one::l"], [1, 0, 2])
    np.testing.assert_allclose(where["two::grip"], [1, 0, 3], atol=1e-12)
    np.testing.assert_allclose(where["two::l"], [1, 0.5, 3], atol=1e-12)


def test_joints_of_the_world_join_models():
    one, two = (f'<model name="{name}"><pose>{x} 0 0 0 0 0</pose>{link("l")}</model>' for name, x in (("one", 0), ("two", 1)))
    text = sdf(f'<world name="w">{one}{two}{hinge("j", "one::l", "two::l")}{hinge("k", "world", "one::l")}</world>')
    model = models.load_model_from_string(text)
    assert [(j.name, j.kind) for j in model.topology.joints] == [("k", "revolute"), ("j", "revolute")]
    np.testing.assert_allclose(placed(model)["two::l"], [1, 0, 0])


def test_gravity_of_links():
    off = "<gravity>false</gravity>"
    both = models.load_model_from_string(sdf(f'<model name="m">{link("a", off)}{link("b", off)}</model>'))
    np.testing.assert_array_equal(both.gravity, 0)
    one, messages = load(sdf(f'<model name="m">{link("a", off)}{link("b")}</model>'))
    assert "of single links is not supported, gravity acts on them: a" in messages and one.gravity[2] == -9.81


def test_collision_bits_decide_the_pairs():
    def ball(name: str, bits: str) -> str:
        surface = f"<surface><contact><collide_bitmask>{bits}</collide_bitmask></contact></surface>" if bits else ""
        return f'<model name="{name}">{link("l", collision("<sphere/>", surface))}</model>'

    text = sdf(f'<world name="w">{ball("a", "")}{ball("b", "0x01")}{ball("c", "0x02")}{ball("d", "0")}</world>')
    model = models.load_model_from_string(text)
    names = [shape.name[0] for shape in model.topology.shapes]
    assert {names[i] + names[j] for i, j in model.topology.pairs} == {"ab", "ac"}
    with pytest.raises(ModelError, match="<collide_bitmask> is 'x'; expected a whole number"):
        models.load_model_from_string(text.replace("0x02", "x"))


def test_what_is_left_out_is_said():
    friction = "<ode><mu>0.5</mu><mu2>0.1</mu2></ode><torsional><coefficient>1</coefficient></torsional>"
    friction = f"<surface><friction>{friction}</friction></surface>"
    extra = collision("<sphere/>", friction) + collision("<heightmap/>", name="h") + "<kinematic>true</kinematic>"
    model, messages = load(sdf(f'<model name="m">{link("l", extra + "<velocity_decay/>")}</model>'))
    said = ["<friction/ode/mu2> 0.1) is not supported; the first is taken", "torsional friction", "<kinematic>", "velocity_decay"]
    for words in (*said, "this geometry is not supported; it is dropped (in link 'l')"):
        assert words in messages, words
    assert [shape.kind for shape in model.topology.shapes] == [ShapeType.SPHERE]
    with pytest.raises(ModelError, match="the joint type 'gearbox' is not supported"):
        models.load_model_from_string(sdf(f'<model name="m">{link("a")}{link("b")}{hinge("j", "a", "b", "gearbox")}</model>'))


def test_cones_and_joints_with_two_axes():
    cone = collision("<cone><radius>0.3</radius><length>0.8</length></cone>")
    inertial = '<inertial auto="true"/>'
    model = models.load_model_from_string(sdf(f'<model name="m">{link("l", cone, inertial)}</model>'))
    np.testing.assert_allclose(model.mass[-1], 1000 * np.pi * 0.3**2 * 0.8 / 3, rtol=0.01)  # 32 sides: 0.6 % less
    np.testing.assert_allclose(model.com[-1], [0, 0, -0.2], atol=1e-12)
    two = models.load_model_from_string(sdf(f'<model name="m">{link("a")}{link("b")}{hinge("j", "a", "b", "revolute2")}</model>'))
    assert [j.name for j in two.topology.joints] == ["a_free", "j_axis1", "j_axis2"]


def part(name: str = "arm") -> str:
    mesh = collision("<mesh><uri>meshes/tip.obj</uri></mesh>")
    frames = '<frame name="flange" attached_to="l2"><pose>0 0 1 0 0 0</pose></frame>'
    return sdf(
        f'<model name="{name}">{link("l1")}{link("l2", "<pose>1 0 0 0 0 0</pose>" + mesh)}'
        f"{hinge('j', 'l1', 'l2')}{frames}</model>"
    )


def write_arm(folder) -> None:
    (folder / "meshes").mkdir(parents=True)
    (folder / "meshes" / "tip.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\n")
    (folder / "arm.sdf").write_text(part())
    (folder / "model.config").write_text("<model><name>arm</name><sdf version='1.9'>arm.sdf</sdf></model>")


@pytest.mark.parametrize("uri", ["arm", "model://arm", "arm/arm.sdf"])
def test_included_models_bring_their_meshes(tmp_path, monkeypatch, uri):
    """The model lies beside the world, in `package_dirs` or in GZ_SIM_RESOURCE_PATH; its meshes lie beside it."""
    write_arm(tmp_path / "store" / "arm")
    world = sdf(f'<world name="w"><include><uri>{uri}</uri><pose>0 0 5 0 0 0</pose></include></world>')
    (tmp_path / "store" / "w.sdf").write_text(world)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w.sdf").write_text(world)
    for model in (
        models.load_model(tmp_path / "store" / "w.sdf"),
        models.load_model(tmp_path / "elsewhere" / "w.sdf", package_dirs=(tmp_path / "store",)),
    ):
        assert len(model.topology.shapes) == 1 and model.nv == 7
        np.testing.assert_allclose(placed(model)["l2"], [1, 0, 5])
    with pytest.raises(ModelError, match="w.sdf, line 1, <include>: the included model .* is not found; name the folder"):
        models.load_model(tmp_path / "elsewhere" / "w.sdf")
    monkeypatch.setenv("GZ_SIM_RESOURCE_PATH", str(tmp_path / "store"))
    (tmp_path / "elsewhere" / "w.sdf").write_text(world + "\n")
    assert len(models.load_model(tmp_path / "elsewhere" / "w.sdf").topology.shapes) == 1


def test_errors_name_the_included_file(tmp_path):
    write_arm(tmp_path / "arm")
    (tmp_path / "arm" / "arm.sdf").write_text(part().replace("<mass>2</mass>", "\n<mass>two</mass>", 1))
    (tmp_path / "w.sdf").write_text(sdf('<world name="w"><include><uri>arm</uri></include></world>'))
    with pytest.raises(ModelError, match=r"arm/arm.sdf, line 2, <mass>: its text is 'two'"):
        models.load_model(tmp_path / "w.sdf")


def test_merged_models_become_part_of_the_other(tmp_path):
    write_arm(tmp_path / "arm")
    base = link("base", "<pose>0 0 1 0 0 0</pose>")
    include = '<include merge="true"><uri>arm</uri><pose relative_to="base">0 2 0 0 0 1.5707963267948966</pose></include>'
    fixed = '<joint name="mount" type="fixed"><parent>base</parent><child>l1</child></joint>'
    (tmp_path / "m.sdf").write_text(sdf(f'<model name="m">{base}{include}{fixed}</model>'))
    model, report = load_model_with_report(tmp_path / "m.sdf")
    messages = report.warnings
    assert not messages and [j.name for j in model.topology.joints] == ["base_free", "j"]
    where = placed(model)
    np.testing.assert_allclose(where["l1"], [0, 2, 1], atol=1e-12)
    np.testing.assert_allclose(where["l2"], [0, 3, 1], atol=1e-12)
    np.testing.assert_allclose(where["flange"], [0, 3, 2], atol=1e-12)
    placed_by_frame = include.replace("<pose", "<placement_frame>flange</placement_frame><pose")
    (tmp_path / "m.sdf").write_text(sdf(f'<model name="m">{base}{placed_by_frame}{fixed}</model>'))
    where = placed(models.load_model(tmp_path / "m.sdf"))
    np.testing.assert_allclose(where["flange"], [0, 2, 1], atol=1e-12)
    np.testing.assert_allclose(where["l1"], [0, 1, 0], atol=1e-12)
    (tmp_path / "w.sdf").write_text(sdf('<world name="w"><include merge="true"><uri>arm</uri></include></world>'))
    with pytest.raises(ModelError, match="merge is supported for models included in models only"):
        models.load_model(tmp_path / "w.sdf")


def test_margins_of_mjcf_and_extensions_of_urdf_are_named():
    text = """<mujoco><worldbody><geom type="plane" size="1 1 1" margin="0.01"/>
      <body><freejoint/><geom size="0.1" gap="0.02"/></body></worldbody></mujoco>"""
    _, messages = load(text)
    assert "margin of 1 geoms or pairs is not supported" in messages and "gap of 1 geoms or pairs" in messages
    urdf = (
        '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/></inertial></link>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
        '<gazebo reference="b"><turnGravityOff>true</turnGravityOff><mu1>1</mu1><mu2>0.5</mu2></gazebo></robot>'
    )
    _, messages = load(urdf)
    assert "<turnGravityOff> of link 'b' is left out" in messages and "mu2 0.5) is not supported; mu1 is taken" in messages


def test_sun_and_ground_plane_need_no_files():
    include = "<include><uri>model://{}</uri></include>"
    ball = f'<model name="m"><pose>0 0 2 0 0 0</pose>{link("l", collision("<sphere/>"))}</model>'
    text = sdf(f'<world name="w">{include.format("sun")}{include.format("ground_plane")}{ball}</world>')
    model = models.load_model_from_string(text)
    assert [s.kind for s in model.topology.shapes] == [ShapeType.PLANE, ShapeType.SPHERE] and len(model.topology.pairs) == 1
    with pytest.raises(ModelError, match="the included model 'model://moon' is not found"):
        models.load_model_from_string(text.replace("sun", "moon"))


SURFACES = {
    "ode": "<friction><ode><mu>0.3</mu></ode></friction>",
    "bullet": "<friction><bullet><friction>0.3</friction></bullet></friction>",
    "equal": "<friction><ode><mu>0.3</mu></ode><bullet><friction>0.3</friction></bullet></friction>",
    "both": "<friction><bullet><friction>0.7</friction></bullet><ode><mu>0.3</mu></ode></friction>",
    "across": "<friction><bullet><friction>0.3</friction><friction2>0.1</friction2></bullet></friction>",
    "rolling": "<friction><bullet><friction>0.3</friction><rolling_friction>0.2</rolling_friction></bullet></friction>",
    "slip": "<friction><ode><mu>0.3</mu><slip2>0.1</slip2></ode></friction>",
    "torsional": "<friction><ode><mu>0.3</mu></ode><torsional><coefficient>0.2</coefficient></torsional></friction>",
}
SAID = {
    "both": r"twice \(<friction/ode/mu> 0.3, <friction/bullet/friction> 0.7\) is not supported; the first is taken",
    "across": r"differs with the direction \(<friction/bullet/friction> 0.3, <friction/bullet/friction2> 0.1\)",
    "rolling": r"line 2, <collision name=\"c\">: <friction><bullet><rolling_friction>, rolling friction, is not supported",
    "slip": r"<friction><ode><slip2>, slip, is not supported",
    "torsional": r"<friction><torsional><coefficient>, torsional friction, is not supported",
}


def two_balls(first: str, second: str) -> str:
    """Two free balls with these surfaces; the line of the collisions is 2."""
    inertial = "<inertial><mass>1</mass><inertia><ixx>1</ixx><iyy>1</iyy><izz>1</izz></inertia></inertial>"
    ball = f'<link name="l">{inertial}\n<collision name="c"><geometry><sphere><radius>1</radius></sphere></geometry><surface>'
    models_ = (
        f'<model name="{name}"><pose>{x} 0 0 0 0 0</pose>{ball}{surface}</surface></collision></link></model>'
        for name, x, surface in (("a", 0, first), ("b", 5, second))
    )
    return f'<sdf version="1.11" xmlns:trajopt="trajopt"><world name="w">{"".join(models_)}</world></sdf>'


@pytest.mark.parametrize("kind", SURFACES)
def test_frictions_of_every_engine_are_read_or_named(kind):
    text = two_balls(SURFACES[kind], "<friction><ode><mu>0</mu></ode></friction>")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = models.load_model_from_string(text)
    assert model.pair_friction.tolist() == [0.3]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (kind in SAID) and all(re.search(SAID[kind], message) for message in messages)


def test_a_shape_with_priority_decides_alone():
    ice = "<friction><bullet><friction>0</friction></bullet></friction><trajopt:priority>{}</trajopt:priority>"
    bouncy = "<friction><ode><mu>0.8</mu></ode></friction><bounce><restitution_coefficient>0.5</restitution_coefficient></bounce>"
    for priority, expected in (("1", (0.0, 0.0)), ("0", (0.8, 0.5)), ("-1", (0.8, 0.5))):
        model = models.load_model_from_string(two_balls(bouncy, ice.format(priority)))
        assert (model.pair_friction[0], model.pair_restitution[0]) == expected
    with pytest.raises(ModelError, match="priority"):
        models.load_model_from_string(two_balls(bouncy, ice.format("high")))
