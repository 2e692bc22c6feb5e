"""Robots of the package robot_descriptions by name, with a stand-in for it: its modules fetch files from a network."""

import importlib
import sys

import pytest

from trajopt import load_model
from trajopt.errors import MissingExtraError, ModelError, UnknownNameError

ARM = """<mujoco model="arm"><worldbody>
<body><joint axis="0 1 0"/><geom type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""
MESH = """<robot name="leg"><link name="base">
<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><geometry><mesh filename="package://leg_package/tetrahedron.obj"/></geometry></collision></link></robot>"""
TETRAHEDRON = "v 0 0 0\nv 0.2 0 0\nv 0 0.2 0\nv 0 0 0.2\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package with an MJCF robot, a URDF robot with a mesh, one without files and one that cannot be fetched."""
    folder = tmp_path / "robot_descriptions"
    (tmp_path / "leg_package").mkdir()
    folder.mkdir()
    (tmp_path / "arm.xml").write_text(ARM)
    (tmp_path / "leg_package" / "leg.urdf").write_text(MESH)
    (tmp_path / "leg_package" / "tetrahedron.obj").write_text(TETRAHEDRON)
    modules = {
        "__init__": "",
        "_cache": "",
        "arm_mj_description": f"MJCF_PATH = {str(tmp_path / 'arm.xml')!r}\n",
        "leg_description": f"URDF_PATH = {str(tmp_path / 'leg_package' / 'leg.urdf')!r}\n"
        f"PACKAGE_PATH = {str(tmp_path / 'leg_package')!r}\n",
        "empty_description": "",
        "lost_description": "raise OSError('no network')\n",
    }
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "robot_descriptions"]:
        del sys.modules[name]


def test_a_robot_is_loaded_by_the_name_of_its_module(package):
    assert load_model("robot_descriptions:arm_mj_description").nq == 1


def test_meshes_are_found_in_the_folder_of_its_package(package):
    model = load_model("robot_descriptions:leg_description", floating_base=True)
    assert [mesh.shape for mesh in model.meshes] == [(4, 3)]


def test_a_mistyped_name_is_told_the_closest(package):
    with pytest.raises(UnknownNameError, match="no robot 'arm_mj_descripton'; did you mean 'arm_mj_description'"):
        load_model("robot_descriptions:arm_mj_descripton")


def test_a_robot_that_has_no_file_or_cannot_be_fetched_says_so(package):
    with pytest.raises(ModelError, match="names neither an MJCF nor a URDF file"):
        load_model("robot_descriptions:empty_description")
    with pytest.raises(ModelError, match="cannot fetch 'lost_description': OSError: no network"):
        load_model("robot_descriptions:lost_description")


def test_without_the_package_the_line_to_install_it_is_given(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trajopt-contact\[descriptions\]'"):
        load_model("robot_descriptions:go2_mj_description")
