"""MJCF with other files: meshes, height fields, includes; and files that are missing or malformed."""

import numpy as np
import pytest

from trajopt import models
from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError


def test_mesh_hull_and_height_field(tmp_path):
    rng = np.random.default_rng(1)
    cube = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 2) for z in (-1, 3)], float)
    points = np.concatenate([cube, rng.uniform(-0.5, 0.5, (30, 3))])
    vertices = " ".join(f"{x:.5f}" for x in points.ravel())
    xml = f"""<mujoco><asset><mesh name="m" vertex="{vertices}"/>
      <hfield name="h" nrow="3" ncol="4" size="2 1 0.5 0.1" elevation="0 0 0 0 0 1 0.5 0 0 0 0 0"/></asset>
      <worldbody><geom name="terrain" type="hfield" hfield="h"/>
      <body><freejoint/><geom name="hull" type="mesh" mesh="m"/></body></worldbody></mujoco>"""
    model = models.load_model_from_string(xml)
    (terrain, hull) = model.topology.shapes
    assert (terrain.kind, hull.kind) == (ShapeType.HEIGHTFIELD, ShapeType.MESH)
    assert model.topology.pairs == ((1, 0),)
    place = model.meshes[hull.mesh] @ model.shape_rotation[1].T + model.shape_position[1]
    # mesh vertices are float32 in MuJoCo
    assert sorted(map(tuple, np.round(place, 5) + 0.0)) == sorted(map(tuple, cube))
    assert (terrain.surface.rows, terrain.surface.columns) == (3, 4)
    np.testing.assert_allclose(model.terrain, [0, 0, 0, 0, 0, 0.5, 0.25, 0, 0, 0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(model.shape_size[0], [2, 1, 0.5])


def test_missing_meshes_are_dropped(tmp_path):
    xml = """<mujoco><compiler meshdir="assets"/><asset><mesh name="a" file="a.stl"/>
      <texture type="2d" name="t" file="t.png"/><material name="m" texture="t"/></asset>
      <worldbody><body name="x"><freejoint/><inertial pos="1 2 3" mass="4" diaginertia="1 1 1"/>
      <geom type="mesh" mesh="a" material="m"/><geom size="0.2" mass="50"/></body>
      <body name="y"><freejoint/><geom size="0.2" mass="2"/><geom type="mesh" mesh="a"/></body></worldbody></mujoco>"""
    path = tmp_path / "robot.xml"
    path.write_text(xml)
    model, report = models.load_model_with_report(path)
    messages = report.warnings
    assert model.mass.sum() == 6 and len(model.topology.shapes) == 2
    np.testing.assert_array_equal(model.com[1], [1, 2, 3])
    assert len(messages) == 2
    assert "asset files not found, their geoms are dropped: 'a.stl'" in messages[0]
    assert "lose the mass of their dropped geoms: 'y'" in messages[1]


def test_includes_are_read_and_checked(tmp_path):
    (tmp_path / "inner.xml").write_text("<mujocoinclude><body><freejoint/><geom size='0.1'/></body></mujocoinclude>")
    outer = tmp_path / "outer.xml"
    outer.write_text("<mujoco><worldbody><include file='inner.xml'/></worldbody></mujoco>")
    assert models.load_model(outer).nv == 6
    (tmp_path / "inner.xml").write_text("<mujocoinclude><body pos='nan 0 0'/></mujocoinclude>")
    outer.write_text("<mujoco><worldbody><include file='inner.xml'/> </worldbody></mujoco>")
    with pytest.raises(ModelError, match=r"inner.xml, line 1, <body>: attribute 'pos' is 'nan 0 0'"):
        models.load_model(outer)
    outer.write_text("<mujoco>\n<include file='gone.xml'/></mujoco>")
    with pytest.raises(
        ModelError, match=r"outer.xml, line 2, <include>: the included file '.*gone.xml' does not exist"
    ):
        models.load_model(outer)
    outer.write_text("<mujoco><include file='outer.xml'/></mujoco>")
    with pytest.raises(ModelError, match="already included"):
        models.load_model(outer)
    with pytest.raises(ModelError, match="a model given as text cannot include files"):
        models.load_model_from_string(outer.read_text())


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<mujoco><worldbody><body>\n<geom size='.1'/><joint foo='1'/></body></worldbody></mujoco>", "foo.*line 2"),
        ("<mujoco><worldbody><body name='thin'><joint/></body></worldbody></mujoco>", "mass and inertia.*thin"),
        ("<mujoco><worldbody>\n<body pos='0 inf 0'/></worldbody></mujoco>", "line 2, <body>: attribute 'pos'"),
        ("<mujoco><worldbody>" + "<body>" * 2000 + "</body>" * 2000 + "</worldbody></mujoco>", "nesting is too deep"),
        ("<mujoco><worldbody><body><joint/><geom size='.1'/></body></worldbody>", "no element found|not well-formed"),
    ],
)
def test_bad_mjcf(xml, message):
    with pytest.raises(ModelError, match=message):
        models.load_model_from_string(xml)
