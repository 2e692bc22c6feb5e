r"""Capsule against cylinder.

As in `boxes`, the signed distance of the capsule's axis (centre c, half vector d) and the cylinder (radius r, half length H,
axis z) is the largest separation over unit vectors,

    s(n) = n . c - |n . d| - r |n_xy| - H |n_z|.

Its maximum is at a cap (n = +-z), at the direction from the cylinder to an end of the axis, at the common normal of the two
axes, or on the circle n . d = 0 (the inside of the axis over a rim), where one equation in one angle is solved by Newton's
method; the iteration carries the derivative along.
"""

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.collision.features import Rotation, Vector, patch, take, tolerance, unit, unit_beyond
from trajopt.dynamics.collision.primitives.round import point_cylinder
from trajopt.dynamics.rigid_body.spatial import cross

_ANGLES = np.linspace(0.0, np.pi / 2, 33)
_ITERATIONS = 8


def _rim_direction(c, along, radius, half):
    """The direction n with n . along = 0 over a rim (a maximum of s inside a quadrant), and whether there is one."""
    dtype = c.dtype
    z = jnp.eye(3, dtype=dtype)[2]
    level, _ = unit(cross(z, along), jnp.eye(3, dtype=dtype)[0])
    steep = cross(along, level)
    level = jnp.where(level @ c >= 0, level, -level)
    steep = jnp.where(steep @ c >= 0, steep, -steep)
    tilt = steep[2] * steep[2]
    a, b = level @ c, steep @ c - half * jnp.abs(steep[2])

    # s(angle) = a cos + b sin - radius * sqrt(1 - tilt sin^2), from `level` to `steep`.
    angles = jnp.asarray(_ANGLES, dtype)
    sines = jnp.asarray(np.sin(_ANGLES), dtype)
    value = (
        a * jnp.asarray(np.cos(_ANGLES), dtype) + b * sines - radius * jnp.sqrt(jnp.maximum(1.0 - tilt * sines**2, 0.0))
    )
    start = take(angles, jnp.argmax(jax.lax.stop_gradient(value)))
    width = float(_ANGLES[1])

    def newton(_, carry):
        angle, _ = carry
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        flat = jnp.maximum(1.0 - tilt * sin * sin, tolerance(dtype) ** 2)
        bend = radius * tilt / jnp.sqrt(flat)
        slope = b * cos - a * sin + bend * sin * cos
        bend = bend * (cos * cos - sin * sin + tilt * (sin * cos) ** 2 / flat) - a * cos - b * sin
        angle = angle - slope / jnp.where(bend < 0, bend, -1.0)
        return jnp.minimum(jnp.maximum(angle, start - width), start + width), bend < 0

    angle, exists = jax.lax.fori_loop(0, _ITERATIONS, newton, (start, start < 0))
    exists = exists & (angle > 0) & (angle < np.pi / 2)
    angle = jnp.where(exists, angle, 0.0)
    return jnp.cos(angle) * level + jnp.sin(angle) * steep, level, exists


def capsule_cylinder(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """Two contacts: the closest points, and the farther end of the part of the capsule that lies over the cap or side.

    The points are on the cylinder.
    """
    ball, reach, radius, half = size1[0], size1[1], size2[0], size2[1]
    c, along = R2.T @ (p1 - p2), R2.T @ R1[:, 2]
    dtype = c.dtype
    z = jnp.eye(3, dtype=dtype)[2]
    ends = jnp.stack([c + reach * along, c - reach * along])
    _, towards, _, _ = point_cylinder(ends, radius, half)
    radial, _ = unit(ends * jnp.asarray([1.0, 1.0, 0.0], dtype), jnp.eye(3, dtype=dtype)[0])
    rim, level, exists = _rim_direction(c, along, radius, half)
    up = jnp.where(c[2] >= 0, z, -z)
    directions = jnp.concatenate([up[None], towards, radial, level[None], rim[None]])

    def separation(n, c, along, reach, radius, half):
        flat = jnp.sqrt(jnp.maximum(n[..., 0] ** 2 + n[..., 1] ** 2, 0.0))
        return n @ c - reach * jnp.abs(n @ along) - radius * flat - half * jnp.abs(n[..., 2])

    fixed = jax.lax.stop_gradient((directions, c, along, reach, radius, half))
    size = ball + reach + radius + half
    small = tolerance(dtype) * jax.lax.stop_gradient(size)
    score = separation(*fixed)
    score = jnp.where(jnp.arange(7) == 6, jnp.where(exists, score, -jnp.inf), score)
    best = jnp.argmax(score >= jnp.max(score) - small)
    n = take(directions, best)

    gap, at, flat = _closest(n, best, c, along, reach, radius, half)

    # The part of the axis over the cap (inside the disc) or beside the side (between the caps), and its two ends.
    low, high, empty = _overlap(c, along, reach, radius, half, over_cap := jax.lax.stop_gradient(jnp.abs(n[2])) > 0.5)
    both = jnp.stack([low, high])
    on = c + both[:, None] * along
    # From the cylinder's axis the capsule leaves along n.
    radial, rho = unit_beyond(on * jnp.asarray([1.0, 1.0, 0.0], dtype), flat, small)
    rise = jnp.where(n[2] >= 0, jnp.ones_like(half), -jnp.ones_like(half))
    over = (rise * on[:, 2] - half) / jnp.where(over_cap, jnp.abs(n[2]), jnp.ones_like(half))
    distance = jnp.concatenate([jnp.where(over_cap, over, rho - radius), gap[None]])
    normal = jnp.concatenate([jnp.where(over_cap, n, radial), n[None]])
    point = jnp.concatenate([on - distance[:2, None] * normal[:2], at[None]])
    distance = distance - ball
    valid = ~empty & (distance[:2] >= distance[2] - small)
    alone = jnp.min(jnp.where(valid, distance[:2], jnp.inf)) > distance[2] + small
    valid = jnp.append(valid, alone)
    distance, point, normal = patch(distance, point, normal, valid, n, size, 2)
    return distance, p2 + point @ R2.T, normal @ R2.T


def _closest(n, best, c, along, reach, radius, half):
    """(gap, point on the cylinder) of the capsule's axis along n, of the feature `best`, and n's part across the axis, a unit.

    Of the points of the axis that are closest along n one is taken; where the whole axis is, the ends of the overlap decide.
    """
    flat, _ = unit(n * jnp.asarray([1.0, 1.0, 0.0], n.dtype), jnp.zeros_like(n))
    side = jnp.abs(n[2]) < tolerance(n.dtype) ** 0.5
    z = jnp.eye(3, dtype=n.dtype)[2]
    corner = radius * flat + jnp.where(n[2] >= 0, half, -half) * z
    flat_c, flat_along = c[:2], along[:2]
    square = jnp.sum(flat_along * flat_along)
    beside = -(flat_c @ flat_along) / jnp.where(square > 0, square, jnp.ones_like(square))
    inner = jnp.where(best == 5, beside, (corner - c) @ along)
    slant = jax.lax.stop_gradient(n @ along)
    t = jnp.where(best >= 5, jnp.clip(inner, -reach, reach), jnp.where(slant > 0, -reach, reach))
    apex = c + t * along
    # On the rim, the gap is measured to the rim itself; else along n to the face.
    over_rim = (best == 6) | ((jnp.abs(n[2]) > 0) & ~side & (best != 0))
    face = jnp.where(best == 0, n @ apex - half, jnp.sum(apex * flat) - radius)
    gap = jnp.where(over_rim, n @ (apex - corner), face)
    at = jnp.where(over_rim, corner, apex - gap * n)
    return gap, at, flat


def _overlap(c, along, reach, radius, half, over_cap):
    """Parameters (low, high) of the part of the axis inside the cylinder's outline, and whether there is none."""
    flat_c, flat_along = c[:2], along[:2]
    square = jnp.sum(flat_along**2)
    moves = square > tolerance(c.dtype)
    square = jnp.where(moves, square, jnp.ones_like(square))
    middle = -(flat_c @ flat_along) / square
    height = radius * radius - jnp.sum((flat_c + middle * flat_along) ** 2)
    misses = height <= 0
    chord = jnp.sqrt(jnp.where(misses, jnp.ones_like(height), height) / square)
    outside = jnp.sum(flat_c**2) > radius * radius
    endless = reach + jnp.zeros_like(middle)
    disc_low, disc_high = jnp.where(moves, middle - chord, -endless), jnp.where(moves, middle + chord, endless)
    rises = jnp.abs(along[2]) > tolerance(c.dtype)
    slope = jnp.where(rises, along[2], jnp.ones_like(half))
    at = jnp.stack([(half - c[2]) / slope, (-half - c[2]) / slope])
    slab_low = jnp.where(rises, jnp.min(at), -endless)
    slab_high = jnp.where(rises, jnp.max(at), endless)
    low = jnp.clip(jnp.where(over_cap, disc_low, slab_low), -reach, reach)
    high = jnp.clip(jnp.where(over_cap, disc_high, slab_high), -reach, reach)
    none = jnp.where(over_cap, jnp.where(moves, misses, outside), ~rises & (jnp.abs(c[2]) > half))
    return low, high, none | (high < low)
