"""Names, formats, caching, hostile files, and the description of a model."""

import os

import numpy as np
import pytest

from trajopt import models
from trajopt.errors import ModelError, OptionError, ShapeError, UnknownNameError
from trajopt.models.describe import describe, model_facts
from trajopt.models.registry import load_model_with_report
from trajopt.names import closest

pytestmark = pytest.mark.check

MJCF = "<mujoco model='ball'><worldbody><body name='b'><freejoint/><geom size='0.1'/></body></worldbody></mujoco>"


def test_bundled_names_and_closest_names():
    names = models.bundled_models()
    assert names == sorted(names) and {"go1", "cube"} <= set(names)
    with pytest.raises(UnknownNameError, match="there is no bundled model 'go-1' and no such file; did you mean 'go1'"):
        models.load_model("go-1")


def test_a_name_that_several_things_have_is_listed_once():
    assert closest("zzz", ["tip", "palm", "tip"]) == "; known are: palm, tip"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no/such/robot.urdf", ModelError, "model file 'no/such/robot.urdf' does not exist"),
        ("nothing.xml", ModelError, "'nothing.xml' does not exist; expected the path of"),
        ("robot.xacro", ModelError, "'robot.xacro' does not exist; expected the path of"),
    ],
)
def test_bad_names(name, error, message):
    with pytest.raises(error, match=message):
        models.load_model(name)


def test_a_printed_model_is_one_line():
    assert repr(models.load_model("go1")).startswith("<Model 'go1': nq 19, nv 18, nu 12, ")


def test_leaves_of_a_model_keep_their_shapes():
    model = models.load_model("cube")
    assert model.replace(mass=2.0 * model.mass).total_mass == 2.0 * model.total_mass
    assert model.replace(mass=np.ones((5, len(model.mass)))).mass.shape == (5, len(model.mass))  # a batch
    with pytest.raises(ShapeError, match=r"mass has shape \(3,\), expected \(2,\)"):
        model.replace(mass=np.ones(3))
    with pytest.raises(UnknownNameError, match="no field 'weight'"):
        model.replace(weight=1.0)


def test_format_is_told_by_the_root_element(tmp_path):
    urdf = tmp_path / "robot.xml"
    urdf.write_text(
        '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"/>'
        '</inertial></link><joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    assert models.load_model(urdf).name == "r"
    assert models.load_model_from_string(MJCF, "mjcf").name == "ball"
    with pytest.raises(ModelError, match="format is 'urdf', but the root element <mujoco> says 'mjcf'"):
        models.load_model_from_string(MJCF, "urdf")
    with pytest.raises(OptionError, match="format is 'usd'; expected"):
        models.load_model_from_string(MJCF, "usd")


def test_files_are_read_once_and_again_when_they_change(tmp_path):
    path = tmp_path / "m.xml"
    path.write_text(MJCF)
    one, two = models.load_model(path), models.load_model(path)
    assert one.topology is two.topology and one.mass is not two.mass
    one.mass[:] = 7
    assert models.load_model(path).mass[1] == two.mass[1]
    path.write_text(MJCF.replace("0.1", "0.2"))
    os.utime(path, ns=(1, 1))
    np.testing.assert_allclose(models.load_model(path).mass[1], 8 * two.mass[1])
    assert models.load_model(path, floating_base=False).nv == 0
    assert models.load_model(path, ground=True).topology.pairs == ((1, 0),)


def billion_laughs(root: str) -> str:
    entities = "".join(f'<!ENTITY l{k} "' + f"&l{k - 1};" * 10 + '">' if k else '<!ENTITY l0 "lol">' for k in range(12))
    return f'<?xml version="1.0"?><!DOCTYPE x [{entities}]><{root} name="&l11;">&l11;</{root}>'


@pytest.mark.parametrize("root", ["mujoco", "robot", "sdf"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (billion_laughs, "declares XML entities or external references"),
        (
            lambda root: f'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><{root}>&e;</{root}>',
            "declares XML entities or external references",
        ),
        (lambda root: f"<{root}>\n<a", "line 2, column 0: not well-formed XML: unclosed token"),
        (lambda root: f"<{root}>\n\n<a></b></{root}>", "line 3, column 5: not well-formed XML: mismatched tag"),
        (lambda root: "   ", "the file is empty"),
        (lambda root: "<html/>", "the root element is <html>; expected <robot>"),
        (lambda root: f"<{root}>\0</{root}>", "not well-formed"),
    ],
)
def test_hostile_files_are_refused_at_once(tmp_path, root, make, message):
    path = tmp_path / "bad.xml"
    path.write_text(make(root))
    with pytest.raises(ModelError, match=message) as caught:
        models.load_model(path)
    assert "bad.xml" in str(caught.value)


def test_binary_rubbish_is_refused(tmp_path):
    path = tmp_path / "bad.urdf"
    path.write_bytes(np.random.default_rng(0).bytes(100_000))
    with pytest.raises(ModelError, match="bad.urdf.*not"):
        models.load_model(path)


def test_description_of_a_bundled_robot():
    model, messages = load_model_with_report("go1")[0], ()
    facts = model_facts(model, messages)
    assert (facts["nq"], facts["nv"], facts["nu"]) == (19, 18, 12)
    np.testing.assert_allclose(sum(body["mass"] for body in facts["bodies"]), model.mass.sum())
    assert [j["kind"] for j in facts["joints"]] == ["free"] + 12 * ["revolute"]
    text = describe(model, messages)
    for name in (*model.topology.actuators, *(s.name for s in model.topology.shapes), "not actuated", "12.7434 kg"):
        assert name in text


def test_description_names_base_ground_and_frames_and_groups_many_pairs():
    model, report = load_model_with_report("go1")
    messages = report.warnings
    facts, page = model_facts(model, messages), describe(model, messages)
    assert facts["base"] == "floating" and facts["ground"] == ["floor"] and "Base: floating (" in page
    ends = {frame["name"] for frame in facts["frames"] if frame["end"]}
    assert {frame["body"] for frame in facts["frames"] if frame["end"]} == {"FR_calf", "FL_calf", "RR_calf", "RL_calf"}
    assert ends < {frame.name for frame in model.topology.frames}
    one = '<body pos="{} 0 1"><freejoint/><geom size="0.1"/></body>'
    bodies = "".join(one.format(k) for k in range(10))
    scene = models.load_model_from_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    assert "Contact pairs: 45, by bodies" in describe(scene) and "body10 (1)" in describe(scene)
    assert "by bodies" not in describe(scene, most_pairs=45)
    assert "Base: no joints" in describe(models.load_model_from_string(MJCF, floating_base=False))


def test_errors_name_the_link_or_joint_around_the_element():
    text = '<robot name="r">\n<link name="upper"><inertial>\n<mass value="x"/></inertial></link></robot>'
    with pytest.raises(ModelError, match="<model>, line 3, <mass>: attribute 'value' is 'x'; expected 1 number .in link 'upper'"):
        models.load_model_from_string(text)
