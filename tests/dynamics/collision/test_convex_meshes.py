"""Convex meshes against each other and against primitives: `coal`, boxes as meshes, patches, derivatives, whole steps."""

import functools

import coal
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.collision import pair_judges as judge
from trajopt.dynamics.collision.convex.hulls import edges_of
from trajopt.dynamics.collision.convex.shapes import Hull, hull
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.narrowphase import HULLS
from trajopt.dynamics.model import ShapeType as T
from trajopt.models.meshes import convex_hull, hull_triangles

FEW = 40


def no_warning(message):
    raise AssertionError(message)


@functools.cache
def polyhedron(name):
    """(vertices, triangles): random points on an ellipsoid, or a link with round flat ends and 200 vertices."""
    if name.startswith("random"):
        points = np.random.default_rng(int(name[-1])).normal(size=(500, 3))
        points = points / np.linalg.norm(points, axis=1, keepdims=True) * [0.3, 0.2, 0.15]
    else:
        angle = np.linspace(0, 2 * np.pi, 50, endpoint=False)
        ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
        points = np.concatenate(
            [ring * [a, a, 1] + [0, 0, z] for a, z in ((0.05, -0.2), (0.07, -0.15), (0.07, 0.1), (0.04, 0.2))]
        )
    vertices = convex_hull(points, name, no_warning)
    return vertices, hull_triangles(vertices)


def as_hull(vertices, triangles, dtype=np.float64) -> Hull:
    return hull(jnp.asarray(vertices, dtype), jnp.asarray(np.array(triangles)), jnp.asarray(edges_of(triangles)))


@functools.cache
def compiled(kinds, two_hulls):
    """(slopes, contacts) of many placements of one pair; the arguments after the sizes are polyhedra."""
    function, _ = HULLS[kinds]
    axes = (0,) * 6 + ((None, None) if two_hulls else (None,))
    call = function if two_hulls else functools.partial(_after_none, function)
    return jax.jit(jax.vmap(functools.partial(slope_and_value, call), in_axes=axes))


def _after_none(function, R1, p1, size1, R2, p2, size2, hull2):
    return function(R1, p1, size1, R2, p2, size2, None, hull2)


def evaluate(kinds, pose, *hulls):
    slope, value = compiled(kinds, len(hulls) == 2)(*(jnp.asarray(x) for x in pose), *hulls)
    return np.asarray(slope), tuple(np.asarray(x) for x in value)


def against_coal(names, n):
    """Our distance and normal of n random poses of two polyhedra, about half overlapping, and those of `coal`."""
    R1, p1, _, R2, p2, _ = (x[:n] for x in judge.poses(seed=7, n=1000))
    p1 = p2 + (p1 - p2) * 0.6
    solid = []
    for name in names:
        points, corners = coal.StdVec_Vec3s(), coal.StdVec_Triangle()
        for x in polyhedron(name)[0]:
            points.append(x)
        for t in polyhedron(name)[1]:
            corners.append(coal.Triangle(*t))
        solid.append(coal.Convex(points, corners))
    size = np.zeros((FEW, 3))
    hulls = [as_hull(*polyhedron(name)) for name in names]
    distance, normal, expected, direction = [], [], [], []
    for k in range(0, n, FEW):
        part = (R1[k : k + FEW], p1[k : k + FEW], size, R2[k : k + FEW], p2[k : k + FEW], size)
        _, (d, _, m) = evaluate((T.MESH, T.MESH), part, *hulls)
        distance.append(d.min(1)), normal.append(m[np.arange(FEW), d.argmin(1)])
    for k in range(n):
        d, m = judge.distance_of(solid, ((R1[k], p1[k]), (R2[k], p2[k])))
        expected.append(d), direction.append(m)
    return np.concatenate(distance), np.concatenate(normal), np.array(expected), np.array(direction)


@pytest.mark.parametrize(
    ("names", "n"),
    [
        (("link", "link"), FEW),
        pytest.param(("random0", "random1"), 1000, marks=pytest.mark.slow),
        pytest.param(("link", "link"), 1000, marks=pytest.mark.slow),
    ],
)
def test_distance_and_normal_against_coal(names, n):
    distance, normal, expected, direction = against_coal(names, n)
    assert 0.2 < (expected < 0).mean() < 0.8
    # Both searches end at a face, an edge pair or a vertex pair of the polyhedra, which give the distance to rounding.
    np.testing.assert_allclose(distance, expected, atol=1e-9)
    differs = np.linalg.norm(normal - direction, axis=1) > 1e-6
    assert differs.mean() <= 0.002  # two directions of equal depth


ORDINARY = [T.SPHERE, T.CAPSULE, T.BOX, T.CYLINDER, T.ELLIPSOID, T.MESH]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == T.MESH else pytest.mark.slow) for k in ORDINARY])
def test_derivatives_by_the_motion_of_body_1(kind):
    R1, p1, size1, R2, p2, size2 = pose = tuple(x[:FEW] for x in judge.poses(seed=3))
    p1 = p2 + 0.6 * (p1 - p2)
    hulls = [as_hull(*polyhedron("link"))]
    hulls += [as_hull(*polyhedron("link"))] if kind == T.MESH else []
    pose = (R1, p1, 0.5 * size1, R2, p2, size2)
    # Rounding 1e-15 over a step of 2e-6: 1e-9, times a curvature of 1 / (1e-3 m) of closest points.
    call = lambda pose: evaluate((kind, T.MESH), pose, *hulls)  # noqa: E731
    judge.check_motion_slopes(call, pose, 1e-5, 3, 1e-5, 0.9, coordinates=(1, 4, 5))
