"""URDF files as they are published: xacro, XML that is not well-formed, links without mass, odd limits, against Pinocchio."""

import re
import sys
import types
import xml.dom.minidom

import numpy as np
import pytest

from trajopt import models
from trajopt.errors import ModelError
from trajopt.models.builder import ModelWarning
from trajopt.models.messages import grouped
from trajopt.models.registry import load_model_with_report

pytestmark = pytest.mark.check


def inertial(mass: float = 2.0) -> str:
    return (
        f'<inertial><origin xyz="0.1 0.2 0.3"/><mass value="{mass}"/>'
        '<inertia ixx="0.3" iyy="0.2" izz="0.4" ixy="0.01" ixz="0" iyz="0"/></inertial>'
    )


def joint(name: str, parent: str, child: str, kind: str = "revolute", extra: str = "") -> str:
    limit = '<limit lower="-1" upper="2" effort="3" velocity="1"/>' if "<limit" not in extra and kind == "revolute" else ""
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0.1 0 0.5" rpy="0.1 0.2 0.3"/><axis xyz="0 0.6 0.8"/>{limit}{extra}</joint>'
    )


ARM = (
    f'<robot name="arm"><link name="base"/><link name="upper">{inertial()}</link><link name="lower">{inertial(1.0)}</link>'
    + joint("shoulder", "base", "upper")
    + joint("elbow", "upper", "lower")
    + "</robot>"
)


def load(text: str):
    """The model and its warnings as one text."""
    with pytest.warns(ModelWarning) as caught:
        model = models.load_model_from_string(text)
    return model, "\n".join(str(w.message) for w in caught)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('\n<?xml version="1.0"?>\n' + ARM, "an XML declaration that is not in front"),
        ('<!-- 2018 -->\n<?xml version="1.0"?>\n' + ARM, "an XML declaration that is not in front"),
        ("made by a script\n" + ARM, "text outside the root element"),
        (ARM + "\n\x0c ;", "text outside the root element"),
        (ARM.replace("<link", "<!-- a -- b --- --><link", 1), "'--' inside a comment"),
        (ARM.replace("<limit", '<limit drake:acceleration="2"', 1), "prefixes without a declaration: drake"),
        (
            ARM.replace("</robot>", "<controller:sim>x</controller:sim><!-- q:a --></robot>"),
            "prefixes without a declaration: controller",
        ),
    ],
)
def test_xml_that_peers_read_is_mended(tmp_path, text, note):
    pinocchio = pytest.importorskip("pinocchio")
    model, messages = load(text)
    assert "not well-formed XML and read all the same: " + note in messages
    np.testing.assert_allclose(model.mass, [2, 1])
    path = tmp_path / "arm.urdf"
    path.write_text(text)
    try:
        peer = pinocchio.buildModelFromUrdf(str(path))
    except ValueError:
        return  # MuJoCo's parser reads some of these, urdfdom others
    np.testing.assert_allclose([i.mass for i in peer.inertias[1:]], model.mass)


def test_joints_that_move_no_mass_are_held(tmp_path):
    pinocchio = pytest.importorskip("pinocchio")
    hand = "".join(f'<link name="finger{k}"/>' + joint(f"finger{k}", "lower", f"finger{k}") for k in range(8))
    hand += '<link name="carried"/>' + joint("free", "carried", "tip").replace("<parent", "<parent", 1)
    hand += f'<link name="tip">{inertial(0.5)}</link>' + joint("wrist", "lower", "carried")
    text = ARM.replace("</robot>", hand + "</robot>")
    model, messages = load(text)
    assert "8 joints move no mass and are taken as fixed: 'finger0', 'finger1', " in messages and "and 2 more" in messages
    assert [j.name for j in model.topology.joints] == ["shoulder", "elbow", "wrist", "free"]
    path = tmp_path / "arm.urdf"
    path.write_text(text)
    peer = pinocchio.buildModelFromUrdf(str(path))
    assert peer.nv == model.nv + 8 and peer.existJointName("finger0")
    np.testing.assert_allclose(sum(i.mass for i in peer.inertias[1:]), model.mass.sum())


def test_followers_without_mass_are_held_and_leaders_of_masses_are_not():
    follower = '<link name="f"/>' + joint("f", "lower", "f", extra='<mimic joint="elbow"/>')
    model, messages = load(ARM.replace("</robot>", follower + "</robot>"))
    assert "1 joint moves no mass and is taken as fixed: 'f'" in messages and model.nv == 2
    leader = '<link name="l"/>' + joint("lead", "lower", "l") + f'<link name="m">{inertial()}</link>'
    leader += joint("m", "lower", "m", extra='<mimic joint="lead"/>')
    with pytest.raises(ModelError, match="body 'l' is moved by a joint but neither it nor its descendants have mass"):
        models.load_model_from_string(ARM.replace("</robot>", leader + "</robot>"))


def test_odd_values_are_read_with_a_warning(tmp_path):
    odd = ARM.replace('<mass value="1.0"/>', "").replace('lower="-1" upper="2"', 'lower="1" upper="-1"', 1)
    model, messages = load(odd.replace("</robot>", f'<link name="t">{inertial()}</link>' + joint("t", "lower", "t") + "</robot>"))
    assert "<inertial>: there is no <mass>; the link is taken as massless (in link 'lower')" in messages
    assert "the lower limit 1 is above the upper limit -1; it counts as unlimited (in joint 'shoulder')" in messages
    assert np.isinf(model.lower[0]) and np.isinf(model.upper[0]) and model.lower[1] == -1
    np.testing.assert_allclose(model.mass, [2, 0, 2])


def test_a_flat_mesh_costs_its_shape_only(tmp_path):
    (tmp_path / "flat.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\nf 1 2 3\nf 2 4 3\n")
    (tmp_path / "solid.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n")
    meshes = '<collision><geometry><mesh filename="{}"/></geometry></collision>'
    text = ARM.replace('<link name="lower">', '<link name="lower">' + meshes.format("flat.obj") + meshes.format("solid.obj"))
    path = tmp_path / "arm.urdf"
    path.write_text(text)
    model, report = load_model_with_report(path)
    messages = report.warnings
    assert len(model.topology.shapes) == 1 and model.nv == 2
    assert len(messages) == 1 and "flat.obj' spans no volume" in messages[0] and "is dropped" in messages[0]
    path.write_text(text.replace('filename="solid.obj"', 'filename="solid.obj" scale="2 2 2 1"'))
    model, report = load_model_with_report(path)
    messages = report.warnings
    assert np.max(model.meshes[0]) == 2 and any("attribute 'scale' has 4 numbers" in m for m in messages)


def test_spherical_joints(tmp_path):
    text = ARM.replace('name="elbow" type="revolute"', 'name="elbow" type="spherical"').replace(
        '<limit lower="-1" upper="2" effort="3"', '<limit effort="3"'
    )
    with pytest.warns(ModelWarning, match="neither lower nor upper"):
        model = models.load_model_from_string(text)
    assert [j.kind for j in model.topology.joints] == ["revolute", "ball"] and model.nu == 4
    assert model.control_upper[1] == 3.0
    _, messages = load(text.replace('<limit effort="3"', '<limit twist="0.3" effort="3"'))
    assert "the range of a spherical joint is not supported" in messages


XACRO = (
    '<robot name="arm" xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:property name="m" value="2"/>'
    + ARM.partition(">")[2].replace('value="2.0"', 'value="${m}"')
)


def test_xacro_without_the_expander_is_refused_by_name(tmp_path, monkeypatch):
    path = tmp_path / "arm.urdf.xacro"
    path.write_text(XACRO)
    monkeypatch.setitem(sys.modules, "xacro", None)
    refusal = r'arm.urdf.xacro, line 1, <property name="m">: this is a xacro file.*`pip install xacro`'
    with pytest.raises(ModelError, match=refusal):
        models.load_model(path, xacro=True)
    with pytest.raises(ModelError, match="`xacro arm.urdf.xacro > arm_expanded.urdf`"):
        models.load_model(path, xacro=True)
    with pytest.raises(ModelError, match="this is a xacro file.*expand it first, or load it from the path of a .xacro file"):
        models.load_model_from_string(XACRO)
    with pytest.raises(ModelError, match=r"<mass>.* is left to expand"):
        models.load_model_from_string(ARM.replace('value="2.0"', 'value="${m}"'))


def test_xacro_is_expanded_by_the_package(tmp_path, monkeypatch):
    """A stand-in for the package: it asks for a folder as `$(find NAME)` does, and answers with a document."""
    path = tmp_path / "arm_description" / "urdf" / "arm.xacro"
    path.parent.mkdir(parents=True)
    path.write_text(XACRO)
    package, arguments = types.ModuleType("xacro"), types.ModuleType("xacro.substitution_args")
    arguments._eval_find = original = lambda name: "from the ROS index"

    def process_file(name: str):
        assert name == str(path) and arguments._eval_find("arm_description") == str(path.parent.parent)
        return xml.dom.minidom.parseString(ARM)

    package.process_file = process_file
    monkeypatch.setitem(sys.modules, "xacro", package)
    monkeypatch.setitem(sys.modules, "xacro.substitution_args", arguments)
    np.testing.assert_allclose(models.load_model(path, xacro=True).mass, [2, 1])
    assert arguments._eval_find is original

    def refuse(name: str):
        return arguments._eval_find("hand_description")

    package.process_file = refuse
    path.write_text(XACRO + "\n")
    with pytest.raises(ModelError, match="xacro refuses the file.*there is no folder 'hand_description'; name the one above it"):
        models.load_model(path, xacro=True)


@pytest.mark.parametrize(
    ("name", "options", "refusal"),
    [
        ("arm.urdf", {}, "its name does not end in .xacro: files of other names are never expanded"),
        ("arm.urdf", {"xacro": True}, "its name does not end in .xacro: files of other names are never expanded"),
        ("arm.xml", {"xacro": True}, "its name does not end in .xacro: files of other names are never expanded"),
        ("arm.xacro", {}, "expanding it runs the code in it: if you trust it, load it with xacro=True"),
        ("arm.urdf.xacro", {"xacro": False}, "expanding it runs the code in it: if you trust it, load it with xacro=True"),
    ],
)
def test_a_model_file_runs_no_code_unless_asked(tmp_path, monkeypatch, name, options, refusal):
    """Expanding is running: a stand-in for the package that does what `${...}` may do, and must never be called."""
    path, trace = tmp_path / name, tmp_path / "trace"
    path.write_text(ARM.replace('value="2.0"', f"value=\"${{open('{trace}', 'w')}}\""))
    package, arguments = types.ModuleType("xacro"), types.ModuleType("xacro.substitution_args")

    def process_file(name: str):
        trace.write_text("ran")
        return xml.dom.minidom.parseString(ARM)

    package.process_file = process_file
    monkeypatch.setitem(sys.modules, "xacro", package)
    monkeypatch.setitem(sys.modules, "xacro.substitution_args", arguments)
    for load in (models.load_model, load_model_with_report):
        with pytest.raises(ModelError, match=refusal):
            load(path, **options)
    assert not trace.exists()
    text = path.read_text()
    with pytest.raises(ModelError, match="this is a xacro file"):
        models.load_model_from_string(text)
    assert not trace.exists()


def test_xacro_package_itself(tmp_path):
    pytest.importorskip("xacro")
    path = tmp_path / "arm.xacro"
    path.write_text(XACRO)
    np.testing.assert_allclose(models.load_model(path, xacro=True).mass, [2, 1])


def test_warnings_of_one_kind_are_one_line():
    messages = [f"f.urdf, line {k}, <joint name=\"j{k}\">: the limit {k}.5 is odd" for k in range(9)] + ["f.urdf: another"]
    lines = grouped(messages)
    assert lines == [messages[0] + " (and 8 more of this kind: j1, j2, j3, j4, j5, j6 and 2 more)", "f.urdf: another"]
    assert grouped(["a: 'x' 1", "a: 'x' 1"]) == ["a: 'x' 1"]


def test_the_contact_of_a_link_is_read_or_named():
    ball = '<collision><geometry><sphere radius="0.1"/></geometry></collision>'
    contact = (
        '<contact>\n<lateral_friction value="0.4"/><restitution value="0.3"/>\n<rolling_friction value="0.03"/>\n'
        '<spinning_friction value="0"/><contact_cfm value="0"/></contact>'
    )
    text = f'<robot name="ball"><link name="ball">{inertial()}{ball}{contact}</link></robot>'

    def read(text: str, **options):
        with pytest.warns(ModelWarning) as caught:
            model = models.load_model_from_string(text, floating_base=True, **options)
        return model, [str(w.message) for w in caught]

    model, messages = read(text, ground=True)
    assert (model.pair_friction[0], model.pair_restitution[0]) == (1.0, 0.3)  # the ground's friction is the larger one
    assert len(messages) == 2 and "line 4, <contact_cfm>: it is not supported; it is left out (in link 'ball')" in messages[1]
    assert "line 3, <rolling_friction>: it is not supported; it is left out (in link 'ball')" in messages[0]
    _, messages = read(text.replace('<spinning_friction value="0"/>', '<spinning_friction value="1e-3"/>'))
    assert sum("<spinning_friction>: " in message for message in messages) == 1
    for wrong, expected in (
        ('restitution value="1.5"', "expected 0 to 1"),
        ('lateral_friction value="-1"', "expected 0 or more"),
    ):
        element = wrong.partition(" ")[0]
        with pytest.raises(ModelError, match=f"<{element}>: attribute 'value' is .*; {expected}"):
            models.load_model_from_string(re.sub(f'{element} value="[^"]*"', wrong, text))


@pytest.mark.parametrize("largest", ["1.79769e+308", "1e16"])
def test_limits_that_stand_for_none(largest):
    """Exporters write the largest number that there is."""
    limit = f'<limit lower="-{largest}" upper="{largest}" effort="{largest}" velocity="{largest}"/>'
    inertial = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    model = models.load_model_from_string(
        f'<robot name="r"><link name="a"/><link name="b">{inertial}</link><joint name="j" type="revolute"><parent link="a"/>'
        f'<child link="b"/><axis xyz="0 0 1"/>{limit}</joint></robot>'
    )
    assert model.topology.limited == () and np.isneginf(model.lower).all() and np.isposinf(model.upper).all()
