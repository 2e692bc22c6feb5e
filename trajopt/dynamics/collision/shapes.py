"""Contacts of convex shapes against a plane or half space.

Each function takes the placements of the two shapes and returns k contacts (k fixed per kind of shape) as
`(distance (k,), point (k, 3), normal (k, 3))` in world axes: signed distance (negative: penetration), the point where
the impulse acts, and the unit normal from the plane towards the shape. Points lie where Nimble's appendix C places them,
so that they are differentiable: on a vertex, or on the surface of a sphere below its centre. The size of the plane, the
last argument, is not used.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.features import unit
from trajopt.dynamics.spatial import rotate

PATCH = 4
_CORNERS = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))


def _balls(centres, radius, R2, p2):
    normal = R2[:, 2]
    distance = (centres - p2) @ normal - radius
    points = centres - radius * normal
    return distance, points, jnp.broadcast_to(normal, points.shape)


def sphere_plane(R1, p1, size1, R2, p2, size2=None):
    """One contact, at the sphere's lowest point."""
    return _balls(p1[None], size1[0], R2, p2)


def capsule_plane(R1, p1, size1, R2, p2, size2=None):
    """Two contacts, one below each end of the axis."""
    axis = R1[:, 2] * size1[1]
    return _balls(jnp.stack([p1 + axis, p1 - axis]), size1[0], R2, p2)


def vertices_plane(vertices: Float[Array, "n 3"], R1, p1, R2, p2, patch: int | None = PATCH):
    """The `patch` vertices closest to the plane (all of them with patch=None)."""
    normal = R2[:, 2]
    points = p1 + rotate(R1, vertices)
    distance = (points - p2) @ normal
    if patch is not None and vertices.shape[0] > patch:
        _, index = jax.lax.top_k(-jax.lax.stop_gradient(distance), patch)
        index = jnp.sort(index)
        distance, points = distance[index], points[index]
    return distance, points, jnp.broadcast_to(normal, points.shape)


def box_plane(R1, p1, size1, R2, p2, size2=None):
    """The four corners closest to the plane."""
    return vertices_plane(jnp.asarray(_CORNERS, p1.dtype) * size1, R1, p1, R2, p2)


def cylinder_plane(R1, p1, size1, R2, p2, size2=None):
    """Four contacts on the rims: the lowest point, the one above it on the other rim, and two that make it a triangle.

    A cylinder that stands upright (to about 1e-6 rad in float64, where the lowest point is not defined) has four points of
    the lower rim that are fixed in the cylinder.
    """
    normal = R2[:, 2]
    down = -(R1.T @ normal)
    x = jnp.asarray([1.0, 0.0], p1.dtype)
    lowest, tilt = unit(down[:2], x)
    upright = jax.lax.stop_gradient(tilt) < float(jnp.finfo(p1.dtype).eps) ** 0.375
    near = jnp.where(down[2] >= 0, size1[1], -size1[1])
    u = jnp.where(upright, x, lowest)
    v = jnp.stack([-u[1], u[0]])
    sides = [-u / 2 + np.sqrt(0.75).item() * v, -u / 2 - np.sqrt(0.75).item() * v]
    rim = jnp.where(upright, jnp.stack([u, v, -u, -v]), jnp.stack([u, u, *sides]))
    height = jnp.stack([near, jnp.where(upright, near, -near), near, near])
    points = p1 + rotate(R1, jnp.concatenate([size1[0] * rim, height[:, None]], 1))
    return (points - p2) @ normal, points, jnp.broadcast_to(normal, points.shape)


def ellipsoid_plane(R1, p1, size1, R2, p2, size2=None):
    """One contact, where the ellipsoid's tangent plane is parallel to the plane."""
    normal = R2[:, 2]
    direction, reach = unit(size1 * (R1.T @ normal), jnp.zeros_like(size1))
    point = p1 - R1 @ (size1 * direction)
    return ((p1 - p2) @ normal - reach)[None], point[None], normal[None]
