"""The survey of model files: its mass matrix is MuJoCo's, and it tells what loads and what is apart."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import model_survey

URDF = (
    '<robot name="r"><link name="a"/><link name="b"><inertial><origin xyz="0.1 0 0.2"/><mass value="2"/>'
    '<inertia ixx="0.3" iyy="0.3" izz="0.4" ixy="0.01" ixz="0" iyz="0"/></inertial></link>'
    '<joint name="j" type="planar"><parent link="a"/><child link="b"/><origin rpy="0.3 0.1 0"/><axis xyz="0 0 1"/></joint>'
    "</robot>"
)
MJCF = """<mujoco><worldbody><body pos="0 0 1"><freejoint/><geom size="0.1 0.2" type="capsule"/>
  <body pos="0.1 0 0"><joint type="ball"/><geom size="0.1" pos="0 0 0.3"/><body><joint axis="1 1 0" pos="0 0.1 0"/>
  <geom type="box" size="0.1 0.2 0.3"/></body></body></body></worldbody></mujoco>"""


def test_files_are_loaded_and_compared(tmp_path):
    (tmp_path / "tree.xml").write_text(MJCF)
    row = model_survey.survey_file(tmp_path / "tree.xml", tmp_path)
    assert row["result"] == "loaded" and row["mujoco"]["apart"] < 1e-12
    (tmp_path / "bad.xml").write_text(MJCF.replace("box", "boxes"))
    row = model_survey.survey_file(tmp_path / "bad.xml", tmp_path)
    assert row["result"] == "clear" and not row["mujoco"]["loaded"]
    assert model_survey.reason("/x/f.xml, line 3, <geom>: mass is -2.5 of 'b'") == "mass is N of '_'"


def test_planar_joints_are_those_of_pinocchio(tmp_path):
    pytest.importorskip("pinocchio")
    (tmp_path / "r.urdf").write_text(URDF)
    row = model_survey.survey_file(tmp_path / "r.urdf", tmp_path)
    assert row["result"] == "loaded" and row["pinocchio"]["apart"] < 1e-12


def test_a_wrong_mass_is_seen(tmp_path):
    from trajopt.models.registry import load_model

    path = tmp_path / "tree.xml"
    path.write_text(MJCF)
    model = load_model(path)
    wrong = model.replace(mass=model.mass * (1 + 1e-6 * np.arange(model.mass.size)))
    assert model_survey.with_mujoco(path, wrong, True)["apart"] > model_survey.TOLERANCE
