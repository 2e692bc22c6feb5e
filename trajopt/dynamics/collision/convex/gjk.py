r"""The direction between two convex shapes that are apart, after Gilbert, Johnson and Keerthi.

The shapes are apart by the distance of the origin from M = {x1 - x2}. A simplex of points of M moves towards the origin: its
point v closest to the origin is found, the corners that do not carry v are dropped, and the point of M farthest along -v
is added. n = v / |v| separates the shapes by n . w, w that farthest point, and |v| is an upper bound on their distance.
All sub-simplices are evaluated at once, so repeated corners (which fill the empty slots) do no harm.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.features import take
from trajopt.dynamics.rigid_body.spatial import cross

_EDGES = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
_FACES = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]])
_KEPT = np.concatenate([_EDGES[:, [0, 1, 1]], _FACES])
_SUPPORT = Callable[[Float[Array, "3"]], Float[Array, "3"]]


def separating_direction(
    farthest: _SUPPORT, start: Float[Array, "3"], scale: Float[Array, ""], accuracy: float, iterations: int
) -> tuple[Float[Array, "3"], Bool[Array, ""]]:
    """(v, whether the shapes overlap): v the point of M closest to the origin, n = v / |v| from shape 2 to shape 1.

    farthest(n): the point of M with the smallest n . w. start: a first direction. scale: size of the shapes. accuracy: of the
    distance, relative to it; rounding is added. v is zero where the shapes overlap or touch.
    """
    first = farthest(start)
    rounding = 32 * float(jnp.finfo(first.dtype).eps) * scale
    points = jnp.broadcast_to(first, (4, 3))

    def searching(carry):
        count, _, _, _, done = carry
        return ~done & (count < iterations)

    def step(carry):
        count, points, v, overlap, _ = carry
        length = jnp.sqrt(jnp.sum(v * v))
        away = v / jnp.where(length > 0, length, jnp.ones_like(length))
        w = farthest(away)
        settled = length - away @ w <= accuracy * length + rounding
        closest, kept, inside = _closest_to_origin(points.at[3].set(w))
        # Rounding ends the search too: no progress.
        stalled = jnp.sum(closest * closest) >= length * length
        accept = ~settled & (inside | ~stalled)
        points = jnp.where(accept, kept, points)
        v = jnp.where(accept, jnp.where(inside, jnp.zeros_like(v), closest), v)
        overlap = accept & inside
        touching = jnp.sum(v * v) <= (float(jnp.finfo(v.dtype).eps) * scale) ** 2
        return count + 1, points, v, overlap | touching, ~accept | inside | touching

    touching = jnp.sum(first * first) <= (float(jnp.finfo(first.dtype).eps) * scale) ** 2
    _, _, v, overlap, _ = jax.lax.while_loop(searching, step, (0, points, first, touching, touching))
    return v, overlap


def _closest_to_origin(points: Float[Array, "4 3"]):
    """(point of the tetrahedron closest to the origin, corners that carry it with a spare slot, whether it is inside)."""
    tiny = float(jnp.finfo(points.dtype).tiny)
    a, b = points[_EDGES[:, 0]], points[_EDGES[:, 1]]
    along = b - a
    square = jnp.sum(along * along, -1)
    t = jnp.clip(-jnp.sum(a * along, -1) / jnp.maximum(square, tiny), 0.0, 1.0)
    on_edge = a + t[:, None] * along
    a, b, c = (points[_FACES[:, k]] for k in range(3))
    normal = cross(b - a, c - a)
    square = jnp.sum(normal * normal, -1)
    share = jnp.stack([jnp.sum(normal * cross(p, q), -1) for p, q in ((b, c), (c, a), (a, b))])
    flat = square > tiny
    over = (share >= 0).all(0) & flat
    on_face = normal * (jnp.sum(a * normal, -1) / jnp.where(flat, square, 1.0))[:, None]
    candidates = jnp.concatenate([on_edge, on_face])
    distance = jnp.sum(candidates * candidates, -1)
    distance = jnp.where(jnp.concatenate([jnp.ones(6, bool), over]), distance, jnp.inf)
    best = jnp.argmin(distance)
    # Inside: the origin lies on the same side of every face as the corner across it.
    opposite = points[np.array([3, 2, 1, 0])]
    volume = jnp.sum(normal * (opposite - a), -1)
    inside = (jnp.sum(normal * -a, -1) * volume > 0).all()
    kept = take(jnp.asarray(_KEPT), best)
    kept = take(points, jnp.concatenate([kept, kept[:1]]))
    return take(candidates, best), kept, inside
