r"""Box against box and capsule against box: separating axes, closest edges, and a patch of up to four contacts.

With s(n) = n . (c1 - c2) - h1(n) - h2(n), h the support functions, the signed distance of two convex bodies is the largest
s over unit vectors n, apart or overlapping. For two boxes the maximum is at one of the six face normals, the nine products
of edges, or, when they are apart, the direction between a vertex of one box and the closest point of the other. All are
evaluated and the largest s decides.

The patch: the faces of both boxes that look most along the normal are projected along it; the corners of their intersection
are vertices of one face inside the other and crossings of edges (Nimble, app. C-1), and each has its own distance, measured
along the normal between the two face planes. The smallest of them is the signed distance. Points lie on the face whose
normal it is, so that all of them can stick while one box turns against the other (docs/contact-semantics.md, Where a contact
acts); between two edges, midway. A capsule is the box (0, 0, half
length) with its radius taken off the distance.
"""

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.collision.features import (
    BOX_CORNERS,
    FACE_CORNERS,
    Rotation,
    Vector,
    cross_with,
    limit,
    patch,
    products,
    take,
    tolerance,
    unit,
)

# Middles of the four edges of a face, two along each of its axes.
_FACE_EDGES = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
_ENDS = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
_CLOSEST = 15  # index of the direction between the closest vertex and box, after 3 + 3 faces and 9 products of edges


def box_box(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """Four contacts, on the face whose normal is theirs, or midway between crossing edges."""
    return _core(R1, p1, size1, None, R2, p2, size2)


def capsule_box(R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector):
    """Two contacts, on the box."""
    half = jnp.stack([jnp.zeros_like(size1[1]), jnp.zeros_like(size1[1]), size1[1]])
    return _core(R1, p1, half, size1[0], R2, p2, size2)


def _closest_vertex(c, axes1, half1, axes2, half2, signs1):
    """(point on 1, vector from 2 to 1) for the closest pair of a vertex of one box and the other box, from centre 2."""
    vertex1 = c + (jnp.asarray(signs1, c.dtype) * half1) @ axes1
    vertex2 = (jnp.asarray(BOX_CORNERS, c.dtype) * half2) @ axes2
    x1, x2 = vertex1 @ axes2.T, (vertex2 - c) @ axes1.T
    gap1, gap2 = (x1 - limit(x1, half2)) @ axes2, (limit(x2, half1) - x2) @ axes1
    rows = jnp.concatenate([jnp.concatenate([vertex1, gap1], 1), jnp.concatenate([vertex2 + gap2, gap2], 1)])
    row = take(rows, jnp.argmin(jnp.sum(jax.lax.stop_gradient(rows[:, 3:]) ** 2, 1)))
    return row[:3], row[3:]


def _face(axes, half, n):
    """The face most along n: middle, its two axes (2, 3) and half extents (2,), the outward normal."""
    along = jax.lax.stop_gradient(axes @ n)
    first = jnp.argmax(jnp.abs(along))
    rows = jnp.concatenate([axes, half[:, None], along[:, None]], 1)
    rows = take(jnp.concatenate([rows, rows[:2]]), first + jnp.arange(3))
    outward = jnp.where(rows[0, 4] >= 0, rows[0, :3], -rows[0, :3])
    return rows[0, 3] * outward, rows[1:, :3], rows[1:, 3], outward


def _crossings(n, face1, face2, small):
    """Edges of face 1 over edges of face 2: points on edges of 2 (16, 3), gap along n (16,), whether they cross."""
    (middle1, axes1, half1, _), (middle2, axes2, half2, _) = face1, face2
    signs = jnp.asarray(_FACE_EDGES, n.dtype)
    from1, from2 = middle1 + (signs * half1) @ axes1, middle2 + (signs * half2) @ axes2
    r = from2[None] - from1[:, None]
    product = products(axes1, axes2)
    sine = product @ n
    skew = jnp.abs(sine) > float(jnp.finfo(n.dtype).eps) ** 0.375
    sine = jnp.where(skew, sine, 1.0)
    # Along edge 1 by (r, e2, n) / sine, along edge 2 by (r, e1, n) / sine, apart by -(r, e1, e2) / sine.
    by1 = jnp.broadcast_to(cross_with(axes2, n), (2, 2, 3)) / sine[..., None]
    by2 = jnp.broadcast_to(cross_with(axes1, n)[:, None], (2, 2, 3)) / sine[..., None]
    solved = jnp.stack([by1, by2, product / -sine[..., None]], 2)  # (2, 2, 3, 3)
    r = r.reshape(2, 2, 2, 2, 3)  # axis of edge 1, which one, axis of edge 2, which one
    s, t, gap = jnp.moveaxis(jnp.einsum("aibjc,abkc->aibjk", r, solved), -1, 0)
    reach = jnp.stack([jnp.broadcast_to(half1[:, None], (2, 2)), jnp.broadcast_to(half2, (2, 2))])[:, :, None, :, None]
    crosses = skew[:, None, :, None] & (jnp.abs(jnp.stack([s, t])) <= reach + small).all(0)
    on2 = from2[None] + t.reshape(4, 4, 1) * jnp.repeat(axes2, 2, 0)[None]
    return on2.reshape(16, 3), gap.reshape(16), crosses.reshape(16)


def _normal(c, axes1, half1, axes2, half2, closest, small):
    """(normal, signed distance, index of the direction that decides); `closest`: vector to or from the closest vertex."""
    edges = jnp.concatenate([products(axes1, axes2).reshape(9, 3), closest[None]])
    edges, length = unit(edges, jnp.zeros_like(c))
    directions = jnp.concatenate([axes1, axes2, edges])
    fixed, offset, box1, box2 = jax.lax.stop_gradient((directions, c, axes1 * half1[:, None], axes2 * half2[:, None]))
    along = fixed @ offset
    separation = jnp.abs(along) - jnp.sum(jnp.abs(fixed @ jnp.concatenate([box1, box2]).T), 1)
    defined = length > float(jnp.finfo(c.dtype).eps) ** 0.375
    separation = jnp.where(jnp.concatenate([jnp.ones(6, bool), defined]), separation, -jnp.inf)
    # The first one where several tie: faces before edges, so that rounding does not decide.
    best = jnp.argmax(separation >= jnp.max(separation) - small)
    n = take(directions, best)
    n = jnp.where(take(along, best) >= 0, n, -n)
    support = c @ n - jnp.abs(axes1 @ n) @ half1 - jnp.abs(axes2 @ n) @ half2
    return n, jnp.where(best == _CLOSEST, length[9], support), best


def _core(R1, p1, half1, radius, R2, p2, half2):
    c, axes1, axes2 = p1 - p2, R1.T, R2.T
    size = jnp.sum(half1) + jnp.sum(half2)
    size = size if radius is None else size + radius
    small = tolerance(c.dtype) * jax.lax.stop_gradient(size)
    a, gap = _closest_vertex(c, axes1, half1, axes2, half2, BOX_CORNERS if radius is None else _ENDS)
    n, signed_distance, decides = _normal(c, axes1, half1, axes2, half2, gap, small)

    # Corners of the intersection of the two faces, projected along n. Positions are relative to centre 2.
    face1, face2 = _face(axes1, half1, -n), _face(axes2, half2, n)
    face1 = (c + face1[0], *face1[1:])
    (middle1, tangents1, reach1, m1), (middle2, tangents2, reach2, m2) = face1, face2
    corners = jnp.asarray(FACE_CORNERS, c.dtype)
    vertex1, vertex2 = middle1 + (corners * reach1) @ tangents1, middle2 + (corners * reach2) @ tangents2
    gap1 = (vertex1 - middle2) @ m2 / (n @ m2)
    gap2 = (middle1 - vertex2) @ m1 / (n @ m1)
    inside1 = jnp.abs((vertex1 - gap1[:, None] * n - middle2) @ tangents2.T) <= reach2 + small
    inside2 = jnp.abs((vertex2 + gap2[:, None] * n - middle1) @ tangents1.T) <= reach1 + small
    on2, gap3, crosses = _crossings(n, face1, face2, small)

    # The closest vertex and its counterpart where they decide; else a last resort, should rounding hide the deepest corner.
    distance = jnp.concatenate([gap1, gap2, gap3])
    valid = jnp.concatenate([inside1.all(1), inside2.all(1), crosses])
    hidden = ~jnp.any(valid & (distance <= signed_distance + 2 * small))
    valid = jnp.concatenate([valid, ((decides == _CLOSEST) | hidden)[None]])
    on_box2 = jnp.concatenate([vertex1 - gap1[:, None] * n, vertex2, on2, (a - gap)[None]])
    if radius is None:
        # From box 2 towards box 1: all the way to a face of box 1, halfway for edges and vertices.
        share = jnp.where(decides < 3, 1.0, jnp.where(decides < 6, 0.0, 0.5)).astype(c.dtype)
        point = on_box2 + share * jnp.append(distance[:, None] * n, gap[None], 0)
        distance = jnp.append(distance, signed_distance)
    else:
        point = on_box2
        distance = jnp.append(distance, signed_distance) - radius
    normal = jnp.broadcast_to(n, point.shape)
    distance, point, normal = patch(distance, point, normal, valid, n, size, 4 if radius is None else 2)
    return distance, p2 + point, normal
