"""Placements in which rounding must not decide: axes that cross or end on each other, touching shapes with symmetries."""

import jax
import numpy as np
import pytest
from scipy.optimize import brentq

from dynamics.collision import pair_judges as judge
from trajopt.dynamics.collision.narrowphase import PRIMITIVES
from trajopt.dynamics.model import ShapeType as T

X, Y, Z = np.eye(3)


def along(axis, turned=0.0):
    """A rotation whose z axis is `axis`, turned about it."""
    first = np.cross(axis, X) if abs(axis @ X) < 0.9 else np.cross(axis, Y)
    first, second = first / np.linalg.norm(first), np.cross(axis, first / np.linalg.norm(first))
    c, s = np.cos(turned), np.sin(turned)
    return np.stack([c * first + s * second, c * second - s * first, axis], 1)


# Offsets and sizes in tenths, whose differences leave rounding instead of zero.
PLACES = [
    (T.CAPSULE, -0.1 * X + 0.2 * Z, (0.4, 0.2)),
    (T.CAPSULE, 0.2 * X, (0.5, 0.2)),
    (T.CAPSULE, 0.1 * X, (0.3, 0.4)),
]
PLACES += [(T.CYLINDER, 0.1 * X + 0.2 * Z, (0.1, 0.4)), (T.CYLINDER, -0.1 * X + 0.1 * Z, (0.1, 0.5))]
PLACES += [(T.CYLINDER, -0.3 * X + 0.1 * Z, (0.1, 0.3))]


@pytest.mark.parametrize("kind, offset, size", PLACES)
def test_a_capsule_on_an_axis_leaves_by_its_depth(kind, offset, size):
    """Moved along the normal by the depth, the two touch: in the pose itself and in rotated and translated copies of it."""
    rng = np.random.default_rng(0)
    rows = []
    for reach in (0.1, 0.2, 0.3, 0.4):
        for turned in (0.0, np.pi / 2, 0.7):
            for copy in range(6):
                R = np.eye(3) if copy == 0 else np.linalg.qr(rng.normal(size=(3, 3)))[0]
                p = 0.0 if copy == 0 else rng.normal(size=3)
                R = R * np.sign(np.linalg.det(R))
                first, second = R @ along(X, turned), R @ along(Z)
                rows.append((first, p + R @ offset, [0.4, reach, 0.0], second, p + np.zeros(3), [*size, 0.0]))
    pose = [np.stack([np.asarray(row[k], float) for row in rows]) for k in range(6)]
    _, (distance, _, normal) = judge.evaluate((T.CAPSULE, kind), *pose)
    index = np.arange(len(rows)), distance.argmin(1)
    depth = distance[index]
    assert (depth < -0.1).all()
    pose[1] = pose[1] - depth[:, None] * normal[index]
    _, (touching, _, _) = judge.evaluate((T.CAPSULE, kind), *pose)
    np.testing.assert_allclose(touching.min(1), 0.0, atol=1e-12)


def test_a_ball_beside_an_ellipsoid_against_the_secular_equation():
    """The closest point of an ellipsoid is s^2 x / (s^2 + t), t the root of one equation."""
    kinds = T.SPHERE, T.ELLIPSOID
    pose = judge.poses_of(kinds)
    function, _ = PRIMITIVES[kinds]
    distance = np.asarray(jax.jit(jax.vmap(lambda *p: function(*p)[0]))(*pose)).min(1)
    compared = 0
    for found, (_, p1, size1, R2, p2, size2) in zip(distance, zip(*pose, strict=True), strict=True):
        x, square = R2.T @ (p1 - p2), size2**2
        if np.sum((x / size2) ** 2) <= 1:
            continue
        compared += 1
        limit = np.linalg.norm(x) * size2.max()
        t = brentq(lambda t, x=x, s=square: np.sum(s * (x / (s + t)) ** 2) - 1, 0, limit, xtol=1e-16, rtol=1e-15)
        np.testing.assert_allclose(found, np.linalg.norm(x - square * x / (square + t)) - size1[0], atol=1e-13)
    assert compared > 20
