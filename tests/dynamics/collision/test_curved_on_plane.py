"""Cylinder and ellipsoid against a plane: the signed distance is that of the lowest point, and all derivatives follow."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import ridders

from dynamics.collision import pair_judges as judge
from dynamics.contact import scenes
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.primitives.plane import cylinder_plane, ellipsoid_plane

FUNCTIONS = {"cylinder": cylinder_plane, "ellipsoid": ellipsoid_plane}
both = pytest.mark.parametrize("kind", list(FUNCTIONS))


@functools.cache
def compiled(kind):
    return jax.jit(jax.vmap(functools.partial(slope_and_value, FUNCTIONS[kind])))


def evaluate(kind, pose, dtype=np.float64):
    slope, value = compiled(kind)(*(jnp.asarray(x, dtype) for x in pose))
    return np.asarray(slope), tuple(np.asarray(x) for x in value)


def surface_height(kind, size, point):
    """Zero on the surface of the shape, for a point in its axes."""
    if kind == "ellipsoid":
        return np.linalg.norm(point / size, axis=-1) - 1
    return np.maximum(np.hypot(point[..., 0], point[..., 1]) / size[..., 0], np.abs(point[..., 2]) / size[..., 1]) - 1


@both
def test_lowest_point(kind):
    R1, p1, size, R2, p2, _ = pose = judge.poses(seed=2)
    _, (distance, point, normal) = evaluate(kind, pose)
    up = R2[:, :, 2]
    along = np.einsum("nij,ni->nj", R1, up)  # the plane's normal in the shape's axes
    if kind == "ellipsoid":
        reach = np.linalg.norm(size * along, axis=1)
    else:
        reach = size[:, 0] * np.hypot(along[:, 0], along[:, 1]) + size[:, 1] * np.abs(along[:, 2])
    np.testing.assert_allclose(distance.min(1), np.sum((p1 - p2) * up, 1) - reach, atol=1e-13)
    if kind == "cylinder":  # its points lie on the plane, under those of the rims
        np.testing.assert_allclose(np.einsum("nki,ni->nk", point - p2[:, None], up), 0, atol=1e-13)
        point = point + distance[:, :, None] * normal
    np.testing.assert_allclose(distance, np.einsum("nki,ni->nk", point - p2[:, None], up), atol=1e-13)
    local = np.einsum("nij,nki->nkj", R1, point - p1[:, None])
    np.testing.assert_allclose(surface_height(kind, size[:, None], local), 0, atol=1e-12)
    np.testing.assert_allclose(normal, np.broadcast_to(up[:, None], normal.shape))


@both
def test_derivatives(kind):
    pose = judge.poses(seed=2)
    slope, _ = evaluate(kind, pose)
    R1, p1, *others = pose
    for j in range(6):

        def f(s, j=j):
            z = s * np.eye(6)[j]
            R = scenes.rotation(scenes.about(z[3:], np.linalg.norm(z[3:]))) if j > 2 else np.eye(3)
            _, (distance, point, normal) = evaluate(kind, (R @ R1, p1 + z[:3], *others))
            return np.concatenate([distance[..., None], point, normal], -1)

        estimate = ridders(f, 1e-3, levels=4)
        tolerance = 1e-6 * np.maximum(1.0, np.abs(estimate.value))
        trusted = estimate.error < 0.1 * tolerance
        assert trusted.mean() > 0.98
        assert (np.abs(slope[..., j] - estimate.value) <= tolerance)[trusted].all()


def test_patches_of_a_cylinder():
    """Upright: four points of the lower rim; on its side: both ends of the line that touches."""
    size, up = np.array([0.2, 0.3, 0.0]), np.eye(3)
    lying = scenes.rotation(scenes.about([0, 1, 0], np.pi / 2))
    for R, height in ((up, 0.3), (scenes.rotation(scenes.about([1, 0, 0], np.pi)), 0.3), (lying, 0.2)):
        pose = [np.asarray(x, float)[None] for x in (R, [0, 0, height + 0.01], size, up, [0, 0, 0], size)]
        _, (distance, point, _) = evaluate("cylinder", pose)
        touching = np.abs(distance[0] - 0.01) < 1e-12
        assert touching.sum() == (2 if R is lying else 4)
        spread = point[0][touching] - point[0][touching].mean(0)
        if R is lying:
            np.testing.assert_allclose(np.sort(point[0][touching][:, 0]), [-0.3, 0.3], atol=1e-12)
        else:
            np.testing.assert_allclose(np.linalg.norm(spread, axis=1), 0.2, atol=1e-12)


@both
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_degenerate_cases_are_finite(kind, dtype):
    """Upright, lying and nearly so; zero sizes; the centre on the plane."""
    turns = [np.eye(3)] + [scenes.rotation(scenes.about([1, 0, 0], a)) for a in (np.pi / 2, np.pi, 1e-9, 1e-5, 1e-3)]
    sizes = [np.array([0.2, 0.3, 0.1]), np.zeros(3), np.array([0.0, 0.3, 0.0])]
    rows = [(R, np.zeros(3), s, np.eye(3), np.zeros(3), s) for R in turns for s in sizes]
    slope, value = evaluate(kind, [np.stack([row[i] for row in rows]) for i in range(6)], dtype)
    assert np.isfinite(slope).all() and all(np.isfinite(x).all() for x in value)
    assert slope.dtype == dtype
