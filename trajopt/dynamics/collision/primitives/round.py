"""Spheres, capsules and cylinders against each other, and a sphere against a box.

Each function returns `(distance (k,), point (k, 3), normal (k, 3))` as in `shapes`; the normal points from shape 2 to shape 1
and turns with the configuration where a surface is curved. Contact points as in Nimble, app. C: the radius-weighted point
on the line of centres for spheres and capsules; on the sphere for a sphere over a face; on the edge or vertex otherwise.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.collision.features import (
    Rotation,
    Vector,
    patch,
    segment_parameters,
    tolerance,
    unit,
    unit_beyond,
    weighted_point,
)
from trajopt.dynamics.rigid_body.spatial import cross


def _balls(centre1, radius1, centre2, radius2, fallback, size):
    """Contacts of balls, one each row; `fallback` is the normal where the centres coincide (`size`: of the shapes)."""
    small = tolerance(centre1.dtype) * jax.lax.stop_gradient(size)
    normal, apart = unit_beyond(centre1 - centre2, fallback, small)
    return apart - radius1 - radius2, weighted_point(centre1, radius1, centre2, radius2), normal


def sphere_sphere(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """One contact. Where the centres coincide the normal is the z axis of shape 2."""
    return _balls(p1[None], size1[0], p2[None], size2[0], R2[:, 2], size1[0] + size2[0])


def sphere_capsule(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """One contact, with the ball around the closest point of the capsule's axis."""
    axis = R2[:, 2]
    nearest = p2 + jnp.clip((p1 - p2) @ axis, -size2[1], size2[1]) * axis
    return _balls(p1[None], size1[0], nearest[None], size2[0], R2[:, 0], size1[0] + size2[0] + size2[1])


def capsule_capsule(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """Two contacts: the closest points of the axes, and the end that spreads the contact most.

    The candidates are the four ends, each with its closest point on the other axis, and the crossing of the axes; every one
    has its own distance and normal. For nearly parallel capsules the two ends of the overlap result.
    """
    axis1, axis2, half1, half2 = R1[:, 2], R2[:, 2], size1[1], size2[1]
    c = p1 - p2
    s, t = segment_parameters(c, axis1, half1, axis2, half2)
    ends = jnp.stack([jnp.ones_like(s), -jnp.ones_like(s)])
    s, t = (
        jnp.concatenate([ends * half1, jnp.clip((ends * half2 * (axis1 @ axis2)) - c @ axis1, -half1, half1), s[None]]),
        jnp.concatenate([jnp.clip((ends * half1 * (axis1 @ axis2)) + c @ axis2, -half2, half2), ends * half2, t[None]]),
    )
    on1, on2 = c + s[:, None] * axis1, t[:, None] * axis2
    across, _ = unit(cross(axis1, axis2), R2[:, 0])
    size = size1[0] + half1 + size2[0] + half2
    distance, point, normal = _balls(on1, size1[0], on2, size2[0], across, size)
    first = normal[jnp.argmin(jax.lax.stop_gradient(distance))]
    distance, point, normal = patch(distance, point, normal, jnp.ones(5, bool), first, size, 2)
    return distance, p2 + point, normal


def _beyond(x: Float[Array, "..."], limit: Float[Array, "..."], small: Float[Array, ""]) -> Float[Array, "..."]:
    """What |x| has more than `limit`, with the sign of x; nothing below `small`, so that rounding does not choose between a face
    and its edge."""
    return jnp.where(jnp.abs(x) > limit + small, x - jnp.clip(x, -limit, limit), jnp.zeros_like(x))


def sphere_box(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """One contact; a centre inside the box leaves through the closest face."""
    x = R2.T @ (p1 - p2)
    outside = _beyond(x, size2, tolerance(x.dtype) * (jnp.sum(size2) + size1[0]))
    away, apart = unit(outside, jnp.zeros_like(x))
    depth = size2 - jnp.abs(x)
    axis = jnp.argmin(jax.lax.stop_gradient(depth))
    face = jnp.eye(3, dtype=x.dtype)[axis]
    face = jnp.where(x[axis] >= 0, face, -face)
    inside = apart == 0
    normal = R2 @ jnp.where(inside, face, away)
    distance = jnp.where(inside, -depth[axis], apart) - size1[0]
    over_face = jnp.sum((outside != 0).astype(int)) <= 1
    point = jnp.where(over_face, p1 - size1[0] * normal, p2 + R2 @ (x - outside))
    return distance[None], point[None], normal[None]


def point_cylinder(x: Float[Array, "*b 3"], radius: Float[Array, ""], half: Float[Array, ""]):
    """Signed distance, outward normal and closest rim of points in the cylinder's axes, and whether the rim is closest."""
    flat, height = x[..., :2], x[..., 2]
    radial, rho = unit(flat, jnp.asarray([1.0, 0.0], x.dtype))
    small = tolerance(x.dtype) * (radius + half)
    beyond = jnp.stack([_beyond(rho, radius, small), _beyond(height, half, small)], -1)
    away, apart = unit(beyond, jnp.zeros_like(beyond))
    through_side = jax.lax.stop_gradient(radius - rho < half - jnp.abs(height))
    up = jnp.where(height >= 0, jnp.ones_like(height), -jnp.ones_like(height))
    zero = jnp.zeros_like(height)
    out = jnp.where(through_side[..., None], jnp.stack([zero + 1.0, zero], -1), jnp.stack([zero, up], -1))
    inside = apart == 0
    direction = jnp.where(inside[..., None], out, away)
    distance = jnp.where(inside, -jnp.minimum(radius - rho, half - jnp.abs(height)), apart)
    normal = jnp.concatenate([direction[..., :1] * radial, direction[..., 1:]], -1)
    rim = jnp.concatenate([radius * radial, (up * half)[..., None]], -1)
    return distance, normal, rim, jnp.all(beyond != 0, -1)


def sphere_cylinder(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """One contact; a centre inside the cylinder leaves through the side or a cap, whichever is closer."""
    x = R2.T @ (p1 - p2)
    distance, normal, rim, on_rim = point_cylinder(x, size2[0], size2[1])
    point = jnp.where(on_rim, rim, x - size1[0] * normal)
    return (distance - size1[0])[None], (p2 + R2 @ point)[None], (R2 @ normal)[None]
