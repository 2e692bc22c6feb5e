"""Contacts of convex shapes against a plane or half space.

Each function takes the placements of the two shapes and returns k contacts (k fixed per kind of shape) as
`(distance (k,), point (k, 3), normal (k, 3))` in world axes: signed distance (negative: penetration), the point where
the impulse acts, and the unit normal from the plane towards the shape. Of shapes with several contacts a point is where the
vertex, or the lowest point of a rounded end, meets the plane along the normal: Nimble's appendix C places it there at the
moment of touching. Before and after, it stays on the plane: points of one body at different heights could not all stick while
the body turns about an axis in the plane (docs/contact-semantics.md, Where a contact acts). The point of shapes with one
contact is their lowest. The size of the plane, the last argument, is not used.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.features import BOX_CORNERS, Rotation, Vector, unit
from trajopt.dynamics.rigid_body.spatial import rotate

PATCH = 4


def _on_plane(points, radius, normal, p2):
    """Contacts of balls of `radius` about `points` (k, 3): distances, feet of the perpendiculars on the plane, normals."""
    height = (points - p2) @ normal
    return height - radius, points - height[:, None] * normal, jnp.broadcast_to(normal, points.shape)


def sphere_plane(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector | None = None):
    """One contact, at the sphere's lowest point."""
    normal = R2[:, 2]
    return ((p1 - p2) @ normal - size1[0])[None], (p1 - size1[0] * normal)[None], normal[None]


def capsule_plane(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector | None = None):
    """Two contacts, one below each end of the axis."""
    axis = R1[:, 2] * size1[1]
    return _on_plane(jnp.stack([p1 + axis, p1 - axis]), size1[0], R2[:, 2], p2)


def vertices_plane(vertices: Float[Array, "n 3"], R1: Rotation, p1: Vector, R2: Rotation, p2: Vector, patch: int | None = PATCH):
    """The `patch` vertices closest to the plane (all of them with patch=None)."""
    normal = R2[:, 2]
    points = p1 + rotate(R1, vertices)
    if patch is not None and vertices.shape[0] > patch:
        _, index = jax.lax.top_k(-jax.lax.stop_gradient((points - p2) @ normal), patch)
        points = points[jnp.sort(index)]
    return _on_plane(points, 0.0, normal, p2)


def box_plane(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector | None = None):
    """The four corners closest to the plane."""
    return vertices_plane(jnp.asarray(BOX_CORNERS, p1.dtype) * size1, R1, p1, R2, p2)


def cylinder_plane(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector | None = None):
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
    return _on_plane(points, 0.0, normal, p2)


def ellipsoid_plane(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector | None = None):
    """One contact, where the ellipsoid's tangent plane is parallel to the plane."""
    normal = R2[:, 2]
    direction, reach = unit(size1 * (R1.T @ normal), jnp.zeros_like(size1))
    lowest = p1 - R1 @ (size1 * direction)
    return ((p1 - p2) @ normal - reach)[None], lowest[None], normal[None]
