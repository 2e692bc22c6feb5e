"""The SDF reader: against the URDF reader on the same robot, and against poses worked out by hand."""

import functools

import jax
import numpy as np
import pytest

from trajopt import models
from trajopt.dynamics.model import WORLD, ShapeType
from trajopt.dynamics.rigid_body.kinematics import frame_placement
from trajopt.errors import ModelError

pytestmark = pytest.mark.check


def link(name: str, pose: str = "", extra: str = "") -> str:
    return (
        f'\n<link name="{name}">{pose}<inertial><mass>2</mass><pose>0.1 0 0 0 0 0.3</pose><inertia><ixx>0.1</ixx>'
        f"<iyy>0.2</iyy><izz>0.25</izz></inertia></inertial>{extra}</link>"
    )


def joint(name: str, kind: str, parent: str, child: str, extra: str = "") -> str:
    return f'\n<joint name="{name}" type="{kind}"><parent>{parent}</parent><child>{child}</child>{extra}</joint>'


def sdf(*parts: str, attributes: str = 'name="m"') -> str:
    return f'<sdf version="1.9"><model {attributes}>' + "".join(parts) + "</model></sdf>"


AXIS = (
    "<axis><xyz>0 1 1</xyz><limit><lower>-1</lower><upper>2</upper><effort>5</effort></limit>"
    "<dynamics><damping>0.5</damping><friction>0.25</friction><spring_stiffness>3</spring_stiffness>"
    "<spring_reference>0.1</spring_reference></dynamics></axis>"
)


def test_same_robot_as_urdf():
    urdf_link = (
        '<link name="{0}"><inertial><origin xyz="0.1 0 0" rpy="0 0 0.3"/><mass value="2"/>'
        '<inertia ixx="0.1" iyy="0.2" izz="0.25"/></inertial><collision name="{0}::box"><origin xyz="0 0 1"/>'
        '<geometry><box size="1 2 3"/></geometry></collision></link>'
    )
    urdf = (
        '<robot name="m">'
        + "".join(urdf_link.format(name) for name in "abc")
        + '<joint name="j" type="revolute"><parent link="a"/><child link="b"/><origin xyz="1 2 3" rpy="0.1 0.2 0.3"/>'
        '<axis xyz="0 1 1"/><limit lower="-1" upper="2" effort="5"/><dynamics damping="0.5" friction="0.25"/></joint>'
        '<joint name="k" type="prismatic"><parent link="b"/><child link="c"/><origin xyz="0 1 0" rpy="1 0 0"/>'
        '<axis xyz="1 0 0"/><limit lower="0" upper="1" effort="2"/></joint></robot>'
    )
    box = '<collision name="box"><pose>0 0 1 0 0 0</pose><geometry><box><size>1 2 3</size></box></geometry></collision>'
    text = sdf(
        link("a", extra=box),
        link("b", '<pose relative_to="a">1 2 3 0.1 0.2 0.3</pose>', box),
        link("c", '<pose relative_to="b">0 1 0 1 0 0</pose>', box),
        joint("world", "fixed", "world", "a"),
        joint("j", "revolute", "a", "b", AXIS.replace("<spring_stiffness>3</spring_stiffness>", "")),
        joint(
            "k",
            "prismatic",
            "b",
            "c",
            "<axis><xyz>1 0 0</xyz><limit><lower>0</lower><upper>1</upper><effort>2</effort></limit></axis>",
        ),
        "<self_collide>1</self_collide>",
    )
    one, two = models.load_model_from_string(text), models.load_model_from_string(urdf)
    assert one.topology.joints == two.topology.joints and one.topology.shapes == two.topology.shapes
    assert one.topology.pairs == two.topology.pairs
    for name in (
        "placement_rotation placement_position axis mass com inertia damping frictionloss lower upper actuation "
        "control_lower control_upper shape_rotation shape_position shape_size frame_rotation frame_position"
    ).split():
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-14, err_msg=name)


def test_models_float_unless_they_are_static():
    box = '<collision name="c"><geometry><box><size>1 1 1</size></box></geometry></collision>'
    plane = '<collision name="c"><geometry><plane><normal>0 1 0</normal></plane></geometry></collision>'
    text = (
        '<sdf version="1.9"><world name="w"><gravity>0 0 -1.6</gravity>'
        f'<model name="ground"><static>true</static><link name="l">{plane}</link></model>'
        f'<model name="cube"><pose>1 2 3 0 0 1.5707963267948966</pose>{link("l", extra=box)}</model></world></sdf>'
    )
    with pytest.warns(models.ModelWarning, match="no <inertial>; the format's default of 1 kg"):
        model = models.load_model_from_string(text)
    assert model.name == "w" and [j.kind for j in model.topology.joints] == ["free"]
    np.testing.assert_allclose(model.q_default, [1, 2, 3, np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    np.testing.assert_array_equal(model.gravity, [0, 0, -1.6])
    plane, cube = model.topology.shapes
    assert (plane.name, plane.kind, plane.node) == ("ground::l::c", ShapeType.PLANE, WORLD)
    np.testing.assert_allclose(model.shape_rotation[0][:, 2], [0, 1, 0])
    assert model.topology.pairs == ((1, 0),) and cube.name == "cube::l::c"


def test_poses_follow_frames_joints_and_nested_models():
    quarter = "1.5707963267948966"
    text = sdf(
        f"<pose>0 0 10 0 0 {quarter}</pose>",
        link("base", "<pose>1 0 0 0 0 0</pose>"),
        f'<frame name="f" attached_to="base"><pose>0 1 0 0 0 {quarter}</pose></frame>',
        link("arm", '<pose relative_to="f">2 0 0 0 0 0</pose>'),
        joint(
            "j", "revolute", "base", "arm", '<pose>0 0 -1 0 0 0</pose><axis><xyz expressed_in="base">1 0 0</xyz></axis>'
        ),
        f'<model name="tool"><pose relative_to="arm">0 0 5 0 0 0</pose>{link("tip")}</model>',
        joint("weld", "fixed", "arm", "tool::tip"),
        '<static>0</static><link name="spare"><pose degrees="true" relative_to="j">0 0 0 0 0 90</pose>'
        "<inertial><mass>1</mass></inertial></link>",
        joint("s", "ball", "tool::tip", "spare"),
    )
    model = models.load_model_from_string(text)
    assert [(j.name, j.kind) for j in model.topology.joints] == [
        ("base_free", "free"),
        ("j", "revolute"),
        ("s", "ball"),
    ]
    place = functools.partial(jax.jit(frame_placement, static_argnums=2), model.to_device(), model.q_default)

    # By hand, in the model's frame: base (1,0,0); f (1,1,0) turned by 90 degrees; arm (1,3,0); joint 1 below the arm.
    turned = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    for name, expected in {
        "base": (1, 0, 0),
        "f": (1, 1, 0),
        "arm": (1, 3, 0),
        "tool::tip": (1, 3, 5),
        "spare": (1, 3, -1),
    }.items():
        np.testing.assert_allclose(place(name)[1], turned @ expected + [0, 0, 10], atol=1e-14, err_msg=name)
    np.testing.assert_allclose(place("arm")[0], turned @ turned, atol=1e-14)
    np.testing.assert_allclose(place("spare")[0], turned @ turned @ turned, atol=1e-14)
    node = model.topology.joint("j").nodes[0]
    # The axis is the base's x: -y in the arm, which is turned by 90 degrees; the anchor is 1 m below the arm's origin.
    np.testing.assert_allclose(model.axis[node], [0, -1, 0], atol=1e-15)
    np.testing.assert_allclose(model.frame_position[model.topology.frame_index("arm")], [0, 0, 1], atol=1e-15)


def test_joint_details():
    text = sdf(
        *map(link, "abcd"),
        joint("j", "revolute", "a", "b", AXIS),
        joint("u", "universal", "b", "c", "<axis><xyz>1 0 0</xyz></axis><axis2><xyz>0 1 0</xyz></axis2>"),
        joint(
            "m",
            "continuous",
            "c",
            "d",
            '<axis><xyz>0 0 1</xyz><limit><lower>-1e16</lower><effort>-1</effort></limit><mimic joint="j">'
            "<multiplier>2</multiplier><offset>0.5</offset><reference>0.25</reference></mimic></axis>",
        ),
        attributes='name="m" canonical_link="a"',
    )
    model = models.load_model_from_string(text)
    assert [j.name for j in model.topology.joints] == ["a_free", "j", "u_axis1", "u_axis2"]
    j = model.topology.joint("j").v_start
    assert (model.stiffness[j], model.spring_reference[j], model.damping[j], model.upper[j]) == (3, 0.1, 0.5, 2)
    np.testing.assert_allclose(model.axis[2], np.array([0, 1, 1]) / np.sqrt(2))
    assert (model.mimic_multiplier[0], model.mimic_offset[0]) == (2, 0)  # 0.5 - 2 * 0.25
    assert not model.topology.pairs  # no self collision unless the model asks for it


def test_surfaces():
    surface = (
        "<surface><friction><ode><mu>0.3</mu></ode></friction>"
        "<bounce><restitution_coefficient>0.6</restitution_coefficient></bounce></surface>"
    )
    ball = f'<collision name="c"><geometry><sphere><radius>1</radius></sphere></geometry>{surface}</collision>'
    model = models.load_model_from_string(sdf(link("a", extra=ball)), ground=True)
    assert model.pair_friction[0] == 1.0 and model.pair_restitution[0] == 0.6


def test_include_is_expanded(tmp_path):
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "model.sdf").write_text(sdf(link("l"), attributes='name="inner"'))
    world = tmp_path / "w.sdf"
    world.write_text(
        '<sdf version="1.9"><world name="w"><include><uri>model://box</uri><name>one</name><pose>1 0 0 0 0 0</pose>'
        "</include><include><uri>model://box</uri><name>two</name><static>true</static></include></world></sdf>"
    )
    model = models.load_model(world)
    assert [f.name for f in model.topology.frames] == ["one::l", "two::l"] and model.nv == 6
    np.testing.assert_array_equal(model.q_default[:3], [1, 0, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<sdf version="1.9"/>', "<sdf>: there is no <model>"),
        (sdf(), "the model has no <link>"),
        (
            sdf(link("a"), link("a")),
            r"line 3, <link name=\"a\">: the name is used twice in this model, first in line 2",
        ),
        (
            sdf(link("a"), link("b"), joint("j", "revolute", "a", "bb")),
            "there is no link or frame 'bb'; did you mean 'b'",
        ),
        (sdf(link("a"), link("b"), joint("j", "screw", "a", "b")), "the joint type 'screw' is not supported; expected one of"),
        (sdf(link("a"), link("b"), joint("j", "revolute", "a", "b")), "child element <axis> is missing"),
        (
            sdf(link("a"), link("b"), joint("j", "revolute", "a", "b", "<axis><xyz>0 0 0</xyz></axis>")),
            "the joint axis is",
        ),
        (sdf(link("a"), link("b"), joint("j", "ball", "a", "b"), joint("k", "ball", "b", "a")), "bodies form a loop"),
        (
            sdf(link("a", '<pose relative_to="b"/>'), link("b", '<pose relative_to="a"/>')),
            "poses refer to each other in a loop: a -> b -> a",
        ),
        (sdf(link("a", '<pose relative_to="c">0 0 0 0 0 0</pose>')), "there is no frame 'c'"),
        (sdf(link("a", "<pose>0 0 inf 0 0 0</pose>")), "line 2, <pose>: the pose is '0 0 inf 0 0 0'"),
        (sdf(link("a", "<pose>0 0 0</pose>")), "the pose has 3 numbers"),
        (sdf('<link name="a"><inertial><mass>-2</mass></inertial></link>'), "mass is -2.0; expected 0 or more"),
        (sdf(link("a"), joint("j", "ball", "a", "world")), "its child is the world"),
        (sdf('<link name="a"/>', "<include><uri>model://nothing</uri></include>"), "'model://nothing' is not found"),
    ],
)
def test_bad_sdf_is_named(text, message):
    with pytest.raises(ModelError, match=message):
        models.load_model_from_string(text)
