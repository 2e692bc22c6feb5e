"""Contacts of two flat convex polygons that face each other: the corners of their overlap, seen along the normal."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.convex.shapes import Polygon
from trajopt.dynamics.collision.features import products
from trajopt.dynamics.rigid_body.spatial import cross

STEEPEST = 0.02  # cosine between the normal and that of a polygon, below which its plane gives no distance


def overlap(
    one: Polygon, two: Polygon, n: Float[Array, "3"], small: Float[Array, ""]
) -> tuple[Float[Array, " m"], Float[Array, "m 3"], Bool[Array, " m"]]:
    """(distance between the polygons' planes along n, point on polygon 2, whether it is part of the overlap).

    Candidates are the corners of polygon 1 over polygon 2, those of 2 under 1, and the crossings of their edges. n points
    from polygon 2 to polygon 1.
    """
    slope1, slope2 = jnp.minimum(n @ one.normal, -STEEPEST), jnp.maximum(n @ two.normal, STEEPEST)
    gap1 = (one.points - two.points[0]) @ two.normal / slope2
    gap2 = (one.points[0] - two.points) @ one.normal / slope1
    foot1, foot2 = one.points - gap1[:, None] * n, two.points + gap2[:, None] * n
    gap3, on2, crosses = _crossings(one, two, n, small)
    return (
        jnp.concatenate([gap1, gap2, gap3]),
        jnp.concatenate([foot1, two.points, on2]),
        jnp.concatenate([_inside(foot1, two, small), _inside(foot2, one, small), crosses]),
    )


def _inside(points, polygon: Polygon, small):
    level = points @ polygon.outward.T - jnp.sum(polygon.points * polygon.outward, -1)
    return (level <= small).all(1)


def _crossings(one: Polygon, two: Polygon, n, small):
    edges1, edges2 = (jnp.roll(p.points, -1, 0) - p.points for p in (one, two))
    r = two.points[None] - one.points[:, None]
    normal = products(edges1, edges2)
    sine = normal @ n
    length1, length2 = (jnp.sum(e * e, -1) for e in (edges1, edges2))
    flat = float(jnp.finfo(n.dtype).eps) ** 0.75
    skew = sine * sine > flat * length1[:, None] * length2[None]
    sine = jnp.where(skew, sine, jnp.ones_like(sine))
    s = jnp.sum(r * cross(edges2, n)[None], -1) / sine
    t = jnp.sum(r * cross(edges1, n)[:, None], -1) / sine
    gap = -jnp.sum(r * normal, -1) / sine
    slack1, slack2 = (small / jnp.sqrt(jnp.where(square > 0, square, 1.0)) for square in (length1, length2))
    crosses = skew & (jnp.abs(s - 0.5) <= 0.5 + slack1[:, None]) & (jnp.abs(t - 0.5) <= 0.5 + slack2[None])
    on2 = two.points[None] + t[..., None] * edges2[None]
    return gap.reshape(-1), on2.reshape(-1, 3), crosses.reshape(-1)
