"""Mesh files and hulls."""

import builtins
import struct

import numpy as np
import pytest
import trimesh
from scipy.spatial import ConvexHull

from trajopt.errors import MissingExtraError, ModelError
from trajopt.models.meshes import MAX_HULL_VERTICES, convex_hull, hull_triangles, load_triangles, load_vertices

CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)


def rows(points) -> list[tuple[float, ...]]:
    return sorted(map(tuple, np.round(points, 12) + 0.0))


def no_warning(message: str) -> None:
    raise AssertionError(message)


def test_hull_keeps_the_extreme_points_only():
    inside = np.random.default_rng(0).uniform(0.1, 0.9, (50, 3))
    assert rows(convex_hull(np.concatenate([inside, CUBE, CUBE]), "cube", no_warning)) == rows(CUBE)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (CUBE[:1], "'thin.stl' spans no volume: it has only 1 distinct vertices"),
        (CUBE[:3], "only 3 distinct vertices"),
        (CUBE[:4], r"all its vertices in one plane \(extent 0 x 1 x 1 m\); check its scale, or use a thin box"),
        (np.zeros((5, 3)), "only 1 distinct vertices"),
        (CUBE * [1, 1, 1e-9], "all its vertices in one plane"),
        (CUBE * 0.0, "only 1 distinct vertices"),
    ],
)
def test_meshes_without_volume_are_refused(points, message):
    with pytest.raises(ModelError, match=message):
        convex_hull(points, "thin.stl", no_warning)


def test_triangles_of_a_hull_look_outwards():
    points = convex_hull(np.random.default_rng(1).normal(size=(60, 3)), "ball", no_warning)
    triangles = np.array(hull_triangles(points))
    assert len(triangles) == 2 * len(points) - 4  # Euler
    a, b, c = (points[triangles[:, k]] for k in range(3))
    heights = np.einsum("fi,fvi->fv", np.cross(b - a, c - a), points[None] - a[:, None])
    assert heights.max() < 1e-12


def test_meshes_that_are_not_convex_are_told_by_their_volume(tmp_path):
    """An L of three of the four cells of a 2 x 2 x 1 block: its hull is 3.5 cells, so it fills 6/7 of it."""
    outline = np.array([[0, 0], [2, 0], [2, 1], [1, 1], [1, 2], [0, 2]], float)
    solid = trimesh.creation.extrude_triangulation(outline, [[0, 1, 2], [0, 2, 3], [0, 3, 5], [3, 4, 5]], 1.0)
    for name in ("l.stl", "l.obj"):
        solid.export(tmp_path / name)
        said = []
        convex_hull(load_vertices(tmp_path / name), name, said.append, load_triangles(tmp_path / name))
        assert f"mesh '{name}' is not convex: it fills 86 % of its convex hull" in said[0]
    cube = trimesh.creation.box((1, 2, 3))
    cube.export(tmp_path / "cube.stl")
    convex_hull(load_vertices(tmp_path / "cube.stl"), "cube", no_warning, load_triangles(tmp_path / "cube.stl"))
    open_surface = load_triangles(tmp_path / "l.stl")[:-1]
    convex_hull(open_surface.reshape(-1, 3), "open", no_warning, open_surface)
    (tmp_path / "m.dae").write_text("<COLLADA/>")
    assert load_triangles(tmp_path / "m.dae") is None


def test_no_or_broken_vertices_are_dropped_with_a_warning():
    said = []
    assert convex_hull(np.zeros((0, 3)), "empty", said.append) is None
    assert convex_hull(np.array([[0, 0, np.nan]]), "broken", said.append) is None
    assert "'empty' has no vertices" in said[0] and "'broken' has non-finite vertices" in said[1]


def test_large_hulls_are_thinned_out_and_the_warning_tells_by_how_much():
    points = np.random.default_rng(0).normal(size=(5000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    said = []
    kept = convex_hull(points, "ball", said.append)
    assert 500 < len(kept) <= MAX_HULL_VERTICES
    facets = ConvexHull(kept).equations
    inwards = (points @ facets[:, :3].T + facets[:, 3]).max()
    assert f"at most {inwards:.2g} m" in said[0] and "has 5000 vertices, more than 1000" in said[0]


TRIANGLES = np.array([[CUBE[0], CUBE[1], CUBE[2]], [CUBE[3], CUBE[4], CUBE[7]]])


def test_stl_both_kinds(tmp_path):
    body = b"".join(struct.pack("<12fH", 0, 0, 1, *triangle.ravel(), 0) for triangle in TRIANGLES)
    (tmp_path / "binary.stl").write_bytes(b"solid but binary".ljust(80, b"\0") + struct.pack("<I", 2) + body)
    facets = "".join(
        "facet normal 0 0 1\nouter loop\n" + "".join(f"vertex {x} {y} {z}\n" for x, y, z in t) + "endloop\nendfacet\n"
        for t in TRIANGLES
    )
    (tmp_path / "text.STL").write_text(f"solid x\n{facets}endsolid x\n")
    for name in ("binary.stl", "text.STL"):
        np.testing.assert_array_equal(load_vertices(tmp_path / name), TRIANGLES.reshape(-1, 3))


def test_obj(tmp_path):
    (tmp_path / "m.obj").write_text("# v 9 9 9\nv 0 0 0\nv 1.5 0 -2 1\nvn 0 0 1\nf 1 2 1\n")
    np.testing.assert_array_equal(load_vertices(tmp_path / "m.obj"), [[0, 0, 0], [1.5, 0, -2]])


def test_dae_applies_unit_and_nodes(tmp_path):
    (tmp_path / "m.dae").write_text(
        '<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema"><asset><unit meter="0.1"/></asset>'
        '<library_geometries><geometry id="g"><mesh><source id="p"><float_array>1 0 0 0 2 0</float_array></source>'
        '<source id="n"><float_array>7 7 7</float_array></source>'
        '<vertices id="v"><input semantic="POSITION" source="#p"/></vertices></mesh></geometry></library_geometries>'
        "<library_visual_scenes><visual_scene><node><translate>0 0 3</translate><node><rotate>0 0 1 90</rotate>"
        '<scale>2 2 2</scale><instance_geometry url="#g"/></node></node></visual_scene></library_visual_scenes>'
        "</COLLADA>"
    )
    np.testing.assert_allclose(load_vertices(tmp_path / "m.dae"), [[0, 0.2, 0.3], [-0.4, 0, 0.3]], atol=1e-15)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.stl", b"\0" * 80 + struct.pack("<I", 9), "9 triangles announced, the file ends before"),
        ("a.stl", b"solid nothing", "it holds no vertices"),
        ("a.obj", b"v 1 2 x\n", "could not convert"),
        ("a.obj", b"v 1 2\nv 1 2 3\n", "malformed"),
        ("a.stl", b"solid\nvertex 1e999 0 0\nvertex x 0 0\n", "is malformed"),
        ("a.dae", b"<COLLADA>", "not well-formed"),
        ("a.dae", b"<COLLADA><geometry/></COLLADA>", "holds no vertices"),
        ("a.zip", b"PK", "unknown ending '.zip'"),
        ("a", b"v 0 0 0\n", "unknown ending ''"),
    ],
)
def test_malformed_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_vertices(tmp_path / name)


def test_other_formats_need_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_trimesh(name, *args, **kwargs):
        if name == "trimesh":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    (tmp_path / "m.ply").write_text("ply\n")
    monkeypatch.setattr(builtins, "__import__", without_trimesh)
    with pytest.raises(MissingExtraError, match=r"pip install 'trajopt-contact\[mesh\]'"):
        load_vertices(tmp_path / "m.ply")


def test_other_formats_through_trimesh(tmp_path):
    trimesh.creation.box((1, 2, 3)).export(tmp_path / "m.ply")
    assert rows(load_vertices(tmp_path / "m.ply")) == rows((CUBE - 0.5) * [1, 2, 3])
    (tmp_path / "bad.ply").write_text("ply\nnot really\n")
    with pytest.raises(ModelError, match="bad.ply' cannot be read"):
        load_vertices(tmp_path / "bad.ply")
