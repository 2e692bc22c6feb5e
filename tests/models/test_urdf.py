"""The URDF reader: what each element becomes, and every malformed input it must name."""

import struct

import numpy as np
import pytest

from trajopt import models
from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError

pytestmark = pytest.mark.check


def link(name: str, mass: float = 1.0, extra: str = "") -> str:
    return (
        f'<link name="{name}"><inertial><origin xyz="0.1 0 0" rpy="0 0 0.3"/><mass value="{mass}"/>'
        f'<inertia ixx="0.1" iyy="0.2" izz="0.25" ixy="0" ixz="0" iyz="0"/></inertial>{extra}</link>'
    )


def joint(name: str, parent: str, child: str, kind: str = "continuous", extra: str = "") -> str:
    return f'\n<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{extra}</joint>'


def robot(*parts: str) -> str:
    return '<robot name="r">' + "".join(parts) + "</robot>"


def test_joint_types_limits_and_dynamics():
    text = robot(
        *(link(name) for name in "abcdefg"),
        joint(
            "rev",
            "a",
            "b",
            "revolute",
            '<axis xyz="0 0 2"/><limit lower="-1" upper="2" effort="30"/><dynamics damping="0.5" friction="0.1"/>',
        ),
        joint("pris", "b", "c", "prismatic", '<axis xyz="0 1 0"/><limit lower="0" upper="1" effort="0" velocity="1"/>'),
        joint("float", "c", "d", "floating", '<origin xyz="1 0 0"/>'),
        joint("plane", "d", "e", "planar", '<axis xyz="0 1 0"/>'),
        joint("weld", "e", "f", "fixed", '<origin xyz="0 0 1"/>'),
        joint("follow", "f", "g", "continuous", '<mimic joint="rev" multiplier="-2" offset="0.5"/>'),
    )
    model = models.load_model_from_string(text)
    top = model.topology
    assert [(j.name, j.kind, j.q_start, j.v_start) for j in top.joints] == [
        ("rev", "revolute", 0, 0),
        ("pris", "prismatic", 1, 1),
        ("float", "free", 2, 2),
        ("plane", "planar", 9, 8),
    ]
    assert (model.nq, model.nv, model.mass.sum()) == (12, 11, 6.0)
    np.testing.assert_array_equal(model.axis[0], [0, 0, 1])
    np.testing.assert_array_equal([model.lower[0], model.upper[0], model.upper[1]], [-1, 2, 1])
    assert top.limited == (0, 1) and top.friction_dofs == (0,)
    assert model.damping[0] == 0.5 and model.frictionloss[0] == 0.1
    assert top.actuators == ("rev", "pris", "plane:x", "plane:y", "plane:z")
    np.testing.assert_array_equal(model.control_upper, [30, np.inf, np.inf, np.inf, np.inf])
    assert [(m.name, m.source) for m in top.mimics] == [("follow", 0)]
    np.testing.assert_array_equal([model.mimic_multiplier[0], model.mimic_offset[0]], [-2, 0.5])
    frame = top.frames[top.frame_index("f")]
    assert frame.node == top.frames[top.frame_index("e")].node  # fused
    np.testing.assert_array_equal(model.frame_position[top.frame_index("f")], [0, 0, 1])
    np.testing.assert_array_equal(model.placement_position[2], [1, 0, 0])  # the floating joint below a link


def test_degrees_of_freedom_follow_the_file():
    text = robot(*(link(name) for name in "abcd"), joint("z", "a", "b"), joint("y", "a", "c"), joint("x", "b", "d"))
    assert [j.name for j in models.load_model_from_string(text).topology.joints] == ["z", "x", "y"]


def test_floating_base_on_request():
    text = robot(link("base", extra=""), link("arm"), joint("j", "base", "arm"))
    fixed = models.load_model_from_string(text)
    free = models.load_model_from_string(text, floating_base=True)
    assert (fixed.nv, free.nv) == (1, 7)
    assert free.topology.joints[0].name == "root_joint" and free.topology.actuators == ("j",)
    assert (fixed.mass.sum(), free.mass.sum()) == (1.0, 2.0)
    np.testing.assert_array_equal(free.q_default, [0, 0, 0, 1, 0, 0, 0, 0])


def test_massless_fixed_frames_are_fused():
    text = robot(
        '<link name="world"/><link name="mount"/>',
        link("arm"),
        '<link name="tool"/>',
        joint("m", "world", "mount", "fixed", '<origin xyz="0 0 1"/>'),
        joint("j", "mount", "arm"),
        joint("t", "arm", "tool", "fixed", '<origin xyz="0 2 0" rpy="0 0 1.5707963267948966"/>'),
    )
    model = models.load_model_from_string(text)
    assert model.nv == 1 and {f.name for f in model.topology.frames} == {"world", "mount", "arm", "tool"}
    np.testing.assert_array_equal(model.placement_position[0], [0, 0, 1])
    np.testing.assert_allclose(model.frame_rotation[model.topology.frame_index("tool")][:, 0], [0, 1, 0], atol=1e-15)


def test_massless_body_with_a_joint_is_named():
    text = robot(link("a"), '<link name="ghost"/>', joint("j", "a", "ghost"))
    with pytest.raises(
        ModelError, match="body 'ghost' is moved by a joint but neither it nor its descendants have mass"
    ):
        models.load_model_from_string(text)
    carrier = robot(link("a"), '<link name="ghost"/>', link("b"), joint("j", "a", "ghost"), joint("k", "ghost", "b"))
    assert models.load_model_from_string(carrier).nv == 2


def collision(geometry: str) -> str:
    return f'<collision><origin xyz="0 0 0.5"/><geometry>{geometry}</geometry></collision>'


def test_shapes_friction_and_pairs():
    text = robot(
        link("a", extra=collision('<box size="1 2 3"/>')),
        link("b", extra=collision('<cylinder radius="0.1" length="2"/>') + collision('<sphere radius="0"/>')),
        link(
            "c",
            extra=collision('<sphere radius="0.3"/>') + '<contact><lateral_friction value="0.4"/></contact>',
        ),
        joint("j", "a", "b"),
        joint("k", "b", "c"),
        '<gazebo reference="a"><mu1>0.2</mu1></gazebo>',
    )
    model = models.load_model_from_string(text, ground=True, self_collision="all")
    shapes = model.topology.shapes
    assert [s.kind for s in shapes] == [
        ShapeType.PLANE,
        ShapeType.BOX,
        ShapeType.CYLINDER,
        ShapeType.POINTS,
        ShapeType.SPHERE,
    ]
    np.testing.assert_array_equal(model.shape_size[1:3], [[0.5, 1, 1.5], [0.1, 1, 0]])
    named = {
        (shapes[i].name, shapes[j].name): mu
        for (i, j), mu in zip(model.topology.pairs, model.pair_friction, strict=True)
    }
    # Neighbours never touch, the base fixed to the world included; the fixed base does not touch the ground.
    assert named == {
        ("b_collision0", "ground"): 1.0,
        ("b_collision1", "ground"): 1.0,
        ("c_collision0", "ground"): 1.0,
        ("c_collision0", "a_collision0"): 0.4,
    }


def visual(geometry: str) -> str:
    return collision(geometry).replace("collision>", "visual>")


def test_primitive_visuals_are_drawn_where_nothing_collides():
    box, rod = visual('<box size="1 2 3"/>'), visual('<cylinder radius="0.1" length="2"/>')
    text = robot(
        link("a", extra=box + rod + visual('<mesh filename="none.stl"/>')),
        link("b", extra=box + collision('<sphere radius="0.3"/>')),
        link("c", extra=visual('<sphere radius="-1"/>') + visual('<sphere radius="0"/>') + rod),
        joint("j", "a", "b"),
        joint("k", "b", "c"),
    )
    with pytest.warns(models.ModelWarning, match="expected positive numbers .in link 'c'.; it is for display only and dropped"):
        model = models.load_model_from_string(text, ground=True)
    shapes = model.topology.shapes
    assert [s.name for s in shapes] == ["ground", "a_visual0", "a_visual1", "b_collision0", "c_visual2"]
    np.testing.assert_array_equal(model.shape_size[1], [0.5, 1, 1.5])
    np.testing.assert_array_equal(model.shape_position[1], [0, 0, 0.5])
    assert model.topology.pairs == ((3, 0),)


def write_stl(path, points) -> None:
    triangles = np.asarray(points, "<f4").reshape(-1, 3, 3)
    facets = b"".join(struct.pack("<3f", 0, 0, 0) + t.tobytes() + b"\0\0" for t in triangles)
    path.write_bytes(b"\0" * 80 + struct.pack("<I", len(triangles)) + facets)


CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)


def test_meshes_are_found_through_packages(tmp_path, monkeypatch):
    folder = tmp_path / "stuff" / "my_robot"
    (folder / "urdf").mkdir(parents=True)
    (folder / "meshes").mkdir()
    write_stl(folder / "meshes" / "box.STL", np.concatenate([CUBE, [[0.5, 0.5, 0.5]]]))
    mesh = '<mesh filename="package://my_robot/meshes/box.STL" scale="1 2 3"/>'
    text = robot(link("a"), link("b", extra=collision(mesh)), joint("j", "a", "b"))
    (folder / "urdf" / "r.urdf").write_text(text)
    model = models.load_model(folder / "urdf" / "r.urdf")
    assert model.topology.shapes[0].kind == ShapeType.MESH
    assert sorted(map(tuple, model.meshes[0])) == sorted(map(tuple, CUBE * [1, 2, 3]))
    with pytest.warns(
        models.ModelWarning, match=r"mesh files not found.*'package://my_robot/meshes/box.STL' \(line 2\)"
    ):
        assert not models.load_model_from_string(text.replace('<link name="b"', '\n<link name="b"')).topology.shapes
    monkeypatch.setenv("ROS_PACKAGE_PATH", f"/nowhere:{tmp_path / 'stuff'}")
    assert len(models.load_model_from_string(text).meshes) == 1
    monkeypatch.delenv("ROS_PACKAGE_PATH")
    assert len(models.load_model_from_string(text, package_dirs=(tmp_path / "stuff",)).meshes) == 1


def test_unreadable_mesh_is_dropped_with_a_warning(tmp_path):
    (tmp_path / "broken.stl").write_bytes(b"\0" * 80 + struct.pack("<I", 1000) + b"x" * 10)
    text = robot(link("a"), link("b", extra=collision('<mesh filename="broken.stl"/>')), joint("j", "a", "b"))
    (tmp_path / "r.urdf").write_text(text)
    with pytest.warns(models.ModelWarning, match="broken.stl' is malformed: 1000 triangles announced"):
        assert not models.load_model(tmp_path / "r.urdf").topology.shapes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (robot(), r"line 1, <robot name=\"r\">: the robot has no <link>"),
        (robot(link("a"), link("a")), r"<link name=\"a\">: the name is used twice, first in line 1"),
        (robot(link("a"), link("b"), link("c"), joint("j", "a", "b"), joint("j", "b", "c")), "joint.*is used twice"),
        (robot(link("a"), link("arm"), joint("j", "a", "arn")), r"line 2, .*child link 'arn' does not exist.*'arm'"),
        (robot(link("a"), link("b"), joint("j", "aa", "b")), "parent link 'aa' does not exist; did you mean 'a'"),
        (
            robot(link("a"), link("b"), link("c"), joint("j", "a", "c"), joint("k", "b", "c")),
            "link 'c' has two parents: joint 'j' already carries it",
        ),
        (
            robot(link("a"), link("b"), joint("j", "a", "b"), joint("k", "b", "a")),
            "the joints form a loop: b -> a -> b",
        ),
        (
            robot(*map(link, "abcd"), joint("i", "a", "b"), joint("j", "c", "d"), joint("k", "d", "c")),
            "the joints form a loop: c -> d -> c|the joints form a loop: d -> c -> d",
        ),
        (robot(link("a"), joint("j", "a", "a")), "link 'a' is its own parent"),
        (robot(link("a"), link("b")), "the robot has 2 root links"),
        (robot(link("a"), link("b"), joint("j", "a", "b", "helical")), "the joint type is 'helical'; expected one of"),
        (
            robot(link("a"), link("b"), joint("j", "a", "b", extra='<axis xyz="0 0 0"/>')),
            r"<axis>: the joint axis is \[0.0, 0.0, 0.0\]",
        ),
        (robot(link("a"), link("b"), joint("j", "a", "b", extra='<axis xyz="0 0"/>')), "has 2 numbers.*expected 3"),
        (
            robot(link("a"), link("b"), joint("j", "a", "b", extra='<origin xyz="0 nan 0"/>')),
            "line 2, <origin>: attribute 'xyz' is '0 nan 0'; every number must be finite",
        ),
        (
            robot(link("a"), link("b"), joint("j", "a", "b", extra='<origin xyz="0 x 0"/>')),
            "'0 x 0'; expected 3 numbers",
        ),
        (robot(link("a", mass=-1)), "<mass>: attribute .value. is -1.0; expected 0 or more"),
        (robot("<link/>"), "<link>: attribute 'name' is missing"),
        (
            robot(link("a"), '<joint name="j" type="fixed"><parent link="a"/></joint>'),
            "child element <child> is missing",
        ),
        (robot(link("a", extra=collision('<box size="-1 1 1"/>'))), "<box>: its dimensions are"),
        (robot(link("a", extra="<collision/>")), "<collision>: child element <geometry> is missing"),
        (robot(link("a", extra="<collision><geometry/></collision>")), "<geometry>: no shape inside"),
        (
            robot(
                *map(link, "abc"),
                joint("i", "a", "b", extra='<mimic joint="j"/>'),
                joint("j", "b", "c", extra='<mimic joint="i"/>'),
            ),
            "mimic joints follow each other in a loop: i -> j -> i",
        ),
        (
            robot(
                *map(link, "abc"), joint("i", "a", "b", "floating"), joint("j", "b", "c", extra='<mimic joint="i"/>')
            ),
            "must both be revolute or prismatic; 'i' is free",
        ),
    ],
)
def test_bad_urdf_is_named(text, message):
    with pytest.raises(ModelError, match=message):
        models.load_model_from_string(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (robot(link("a"), link("b"), joint("j", "a", "b", "revolute")), "without <limit> counts as unlimited"),
        (
            robot(link("a"), link("b"), joint("j", "a", "b", "prismatic", '<limit effort="3"/>')),
            "neither lower nor upper",
        ),
        (
            robot(link("a"), link("b"), joint("finger", "a", "b", extra='<mimic joint="fingr"/>')),
            "mimics the joint 'fingr', which does not exist; did you mean 'finger'.*moves on its own",
        ),
        (
            robot(link("a"), link("b").replace('ixx="0.1"', 'ixx="-0.1"'), joint("j", "a", "b")),
            "no rigid body can have these principal moments of inertia.*'b'",
        ),
        (
            robot(link("a"), link("b").replace('ixx="0.1"', 'ixx="9"'), joint("j", "a", "b")),
            r"no rigid body .* 'b' \(0.2, 0.25, 9\)",
        ),
        (robot(link("a", extra=collision("<torus/>")), link("b"), joint("j", "a", "b")), "<torus>: this geometry"),
        (robot(link("a", extra=collision('<box size="0 1 1"/>'))), "the shape has no volume"),
    ],
)
def test_doubtful_urdf_warns(text, message):
    with pytest.warns(models.ModelWarning, match=message):
        models.load_model_from_string(text)


def test_mimic_terms_act_on_the_leader():
    text = robot(
        *map(link, "abc"),
        joint(
            "i", "a", "b", "revolute", '<limit lower="-5" upper="5" effort="1"/><dynamics damping="1" friction="1"/>'
        ),
        joint(
            "j",
            "b",
            "c",
            "revolute",
            '<limit lower="-1" upper="2" effort="1"/><dynamics damping="2" friction="3"/>'
            '<mimic joint="i" multiplier="-0.5" offset="1"/>',
        ),
    )
    model = models.load_model_from_string(text)
    assert (model.damping[0], model.frictionloss[0]) == (1.5, 2.5)
    assert (model.lower[0], model.upper[0]) == (-2, 4)  # -1 <= 1 - q/2 <= 2
    assert model.topology.actuators == ("i",)
