r"""The direction of least penetration of two convex shapes: the expanding polytope.

A polytope inside M = {x1 - x2} grows from a tetrahedron: its face of smallest signed offset from the origin is pushed out to
the point of M farthest along the outward normal o, until M reaches no farther. That offset is a lower bound on the depth,
the farthest point along any o an upper bound, so the search ends with the global minimum of the depth over all directions, or
with the best direction found when `iterations` run out. Offsets are signed, so the tetrahedron need not hold the origin: any
four points of M that span a volume will do, which makes touching and coincident shapes ordinary cases.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.features import take, unit
from trajopt.dynamics.rigid_body.spatial import cross

_TETRAHEDRON = np.array([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]])
HORIZON = 40  # edges of the hole that a new point closes; a larger hole ends the search


def deepest_direction(
    farthest: Callable[[Float[Array, "3"]], Float[Array, "3"]],
    start: Float[Array, "3"],
    scale: Float[Array, ""],
    accuracy: float,
    iterations: int,
    needed: Bool[Array, ""],
) -> Float[Array, "3"]:
    """The unit vector n from shape 2 to shape 1 along which they are least deep; anything where `needed` is false.

    farthest(n): the point of M with the smallest n . w. start: unit vector of a first direction. `accuracy` of the depth,
    relative to `scale`.
    """
    dtype = start.dtype
    n_points, n_faces = 4 + iterations, 2 * (4 + iterations)
    small = 16 * float(jnp.finfo(dtype).eps) * scale
    points = jnp.zeros((n_points, 3), dtype).at[:4].set(_tetrahedron(farthest, start))
    faces = jnp.zeros((n_faces, 3), jnp.int32).at[:4].set(jnp.asarray(_TETRAHEDRON, jnp.int32))
    normals, offsets = _planes(points, faces[:4])
    outward = jnp.zeros((n_faces, 3), dtype).at[:4].set(normals)
    offset = jnp.full(n_faces, jnp.inf, dtype).at[:4].set(offsets)

    def searching(carry):
        return ~carry[-1]

    def step(carry):
        count, points, faces, outward, offset, alive, best, depth, _ = carry
        lowest = jnp.argmin(offset)
        o = take(outward, lowest)
        w = farthest(-o)
        reach = o @ w
        best, depth = jnp.where(reach < depth, o, best), jnp.minimum(reach, depth)
        found = depth - take(offset, lowest) <= jnp.maximum(accuracy * scale, small)
        visible = alive & (outward @ w - offset > small)
        tail, head, used, edges = _horizon(faces, visible, n_points)
        spare = jnp.cumsum(~alive | visible)
        slot = jnp.searchsorted(spare, jnp.arange(1, HORIZON + 1))
        points = points.at[count].set(w)
        new = jnp.stack([tail, head, jnp.full(HORIZON, count, jnp.int32)], 1)
        new_outward, new_offset = _planes(points, new)
        slot = jnp.where(used, slot, n_faces)
        offset = jnp.where(visible, jnp.inf, offset).at[slot].set(new_offset, mode="drop")
        outward = outward.at[slot].set(new_outward, mode="drop")
        faces = faces.at[slot].set(new, mode="drop")
        alive = (alive & ~visible).at[slot].set(True, mode="drop")
        full = (edges > HORIZON) | (count + 1 >= n_points) | ~jnp.any(visible)
        return count + 1, points, faces, outward, offset, alive, best, depth, found | full

    alive = jnp.arange(n_faces) < 4
    depth = jnp.asarray(jnp.inf, dtype)
    carry = (jnp.asarray(4, jnp.int32), points, faces, outward, offset, alive, -start, depth, ~needed)
    return -jax.lax.while_loop(searching, step, carry)[-3]


def _horizon(
    faces: Int[Array, "f 3"], visible: Bool[Array, " f"], n_points: int
) -> tuple[Int[Array, " h"], Int[Array, " h"], Bool[Array, " h"], Int[Array, ""]]:
    """The edges around the hole that the `visible` faces leave: (tails, heads, which of the places are used, how many there are).

    They are the edges of visible faces whose reverse does not belong to such a face.
    """
    tail, head = faces.reshape(-1), faces[:, (np.arange(3) + 1) % 3].reshape(-1)
    seen = jnp.repeat(visible, 3, total_repeat_length=3 * faces.shape[0])
    table = jnp.zeros(n_points * n_points, bool).at[jnp.where(seen, tail * n_points + head, 0)].max(seen)
    rim = seen & ~table[head * n_points + tail]
    rank = jnp.cumsum(rim)
    edge = jnp.searchsorted(rank, jnp.arange(1, HORIZON + 1))
    used = jnp.arange(HORIZON) < rank[-1]
    edge = jnp.where(used, edge, 0)
    return tail[edge], head[edge], used, rank[-1]


def _planes(points, faces):
    """Outward unit normals and offsets of triangles; infinitely far for those without area, so that they are left alone."""
    a, b, c = (take(points, faces[:, k]) for k in range(3))
    normal, area = unit(cross(b - a, c - a), jnp.zeros(3, points.dtype))
    return normal, jnp.where(area > 0, jnp.sum(normal * a, -1), jnp.inf)


def _tetrahedron(farthest, start):
    """Four points of M that span a volume if M does, wound so that the faces of `_TETRAHEDRON` look outwards."""

    def farther(n, measure):
        one, other = farthest(-n), farthest(n)
        return jnp.where(measure(one) >= measure(other), one, other)

    a, b = farthest(start), farthest(-start)
    along, _ = unit(b - a, start)
    helper = jnp.eye(3, dtype=start.dtype)[jnp.argmin(jnp.abs(along))]
    across, _ = unit(cross(along, helper), helper)

    def from_line(x):
        return jnp.sum(cross(x - a, along) ** 2)

    one, other = farther(across, from_line), farther(cross(along, across), from_line)
    c = jnp.where(from_line(one) >= from_line(other), one, other)
    up, _ = unit(cross(b - a, c - a), helper)
    d = farther(up, lambda x: jnp.abs((x - a) @ up))
    above = (d - a) @ up > 0
    # The triangle (a, b, c) looks outwards when d is below it.
    return jnp.stack([a, jnp.where(above, c, b), jnp.where(above, b, c), d])
