r"""Any two convex shapes: the direction of separation, its derivative from the features it depends on, and a patch.

With h the support functions, the signed distance is the largest s(n) = n . (c1 - c2) - h1(-n) - h2(n) over unit vectors n,
apart or overlapping. GJK finds the direction of shapes that are apart, the expanding polytope that of shapes that overlap;
both without derivative. The direction is then recomputed from the features that carry it:

- a face of shape 2 or of shape 1: its normal;
- an edge (or straight line of a surface) of each: the product of the edges;
- an edge of one and a point or curved surface of the other: the direction across the edge at which s is stationary;
- points and curved surfaces: the direction at which s is stationary.

The last two are roots of x1(-n) - x2(n) = s n, x the support points, projected across the edges; Newton's method finds them,
and its step at the root, differentiated, *is* the derivative of the implicit function: d normal / dq of curved surfaces, and
zero curvature for vertices. Of all these directions the one with the largest s is taken, faces first where several tie.

For GJK and EPA see van den Bergen, *Collision Detection in Interactive 3D Environments* (2003), chapter 4.

Contacts of two flat convex polygons that face each other: the corners of their overlap, seen along the normal.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.convex.epa import deepest_direction
from trajopt.dynamics.collision.convex.gjk import separating_direction
from trajopt.dynamics.collision.convex.shapes import CURVED, WITH_EDGES, WITH_FACES, Convex, Polygon
from trajopt.dynamics.collision.features import patch, products, take, tolerance, unit
from trajopt.dynamics.model import ShapeType
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


GJK_ITERATIONS = 64
EPA_ITERATIONS = 60
ROUNDS = 5  # of choosing features and solving for the direction of curved shapes; that of polyhedra is known by then
# Of curved shapes, at which the searches leave the rest to Newton's method: the distance between shapes that are apart, relative
# to it, and the depth of those that overlap, relative to their size. Of polyhedra both are exact.
APART, DEEP = 1e-4, 1e-7
# Share of its own distance that a direction of GJK must separate the shapes by.
TRUSTED = 0.99
# Distance, relative to size, below which the direction between curved shapes is searched for as if they overlapped, too.
CLOSE = 1e-2


def convex_pair(one: Convex, two: Convex, count: int):
    """`count` (1, 2 or 4) contacts of two shapes: distance (count,), point (count, 3), normal (count, 3).

    Points lie on the face whose normal it is, else midway between the closest points. A capsule's lie on shape 2; a single
    sphere's on the sphere, or on the edge or vertex that it touches.
    """
    scale = one.extent + two.extent
    n, s, best = _direction(one, two, jax.lax.stop_gradient(scale))
    point = _closest_points(one, two, n, s, best)
    radius = one.radius + two.radius
    if one.kind == ShapeType.SPHERE:
        on_face = best == 0 if two.kind in WITH_FACES else True
        point = jnp.where(on_face, one.centre - radius * n, point)
    if count == 1:
        return (s - radius)[None], point[None], n[None]
    small = tolerance(n.dtype) * jax.lax.stop_gradient(scale)
    gap, on2, valid = overlap(one.polygon(-n), two.polygon(n), n, small)
    valid = valid & (gap >= s - 2 * small)
    hidden = ~jnp.any(valid & (gap <= s + 2 * small))
    on2 = on2 + _share(one, two, best, n.dtype) * gap[:, None] * n
    gap, on2, valid = jnp.append(gap, s), jnp.concatenate([on2, point[None]]), jnp.append(valid, hidden)
    return patch(gap - radius, on2, jnp.broadcast_to(n, on2.shape), valid, n, scale, count)


def _share(one: Convex, two: Convex, best, dtype):
    """Where between shape 2 (0) and shape 1 (1) the contacts lie."""
    if one.kind not in CURVED and one.kind not in WITH_FACES:
        return jnp.zeros((), dtype)  # a radius around a point or segment: on shape 2
    return jnp.where(best == 0, 0.0, jnp.where(best == 1, 1.0, 0.5)).astype(dtype)


def _separation(one: Convex, two: Convex, n):
    """s(n) and x1 - x2 for directions n (..., 3)."""
    apart = one.support(-n) - two.support(n)
    return jnp.sum(n * apart, -1), apart


def _direction(one: Convex, two: Convex, scale):
    """(normal, separation of the cores, which feature decides); see `_features`."""
    fixed = jax.lax.stop_gradient((one, two))

    def farthest(n):
        return fixed[0].support(-n) - fixed[1].support(n)

    start, _ = unit(fixed[0].centre - fixed[1].centre, fixed[1].rotation[:, 2])
    curved = one.kind in CURVED or two.kind in CURVED
    v, overlapping = separating_direction(farthest, start, scale, APART if curved else 0.0, GJK_ITERATIONS)
    away, length = unit(v, start)
    near = overlapping | (length <= (CLOSE if curved else float(jnp.finfo(v.dtype).eps) ** 0.5) * scale)
    # Rounding in a flat simplex can end GJK early; its direction then separates less than its distance says.
    near = near | (_separation(*fixed, away)[0] < TRUSTED * length)
    deep = deepest_direction(farthest, start, scale, DEEP if curved else 0.0, EPA_ITERATIONS, near)
    rough = jnp.stack([away, jnp.where(near, deep, away)])
    rough = take(rough, jnp.argmax(_separation(*fixed, rough)[0]))
    small = tolerance(v.dtype) * scale

    edges = one.kind in WITH_EDGES, two.kind in WITH_EDGES
    exists = np.array([two.kind in WITH_FACES, one.kind in WITH_FACES, all(edges), edges[1], edges[0], True, True])
    features = _features(one, two)

    def choose(rows):
        score = jnp.where(exists[features], _separation(*fixed, rows)[0], -jnp.inf)
        return jnp.argmax(score >= jnp.max(score) - small)

    def improve(_, n):
        rows = _candidates(*fixed, n)
        return take(rows, choose(rows))

    rows = _candidates(one, two, jax.lax.fori_loop(0, ROUNDS if curved else 1, improve, rough))
    best = choose(jax.lax.stop_gradient(rows))
    n = take(rows, best)
    return n, _separation(one, two, n)[0], take(jnp.asarray(features), best)


def _features(one: Convex, two: Convex) -> np.ndarray:
    """What carries each of the candidates: face of 2 (0), of 1 (1), two edges (2), edge of 2 (3), of 1 (4), points (5), n (6)."""
    return np.array([0, 1, 2] + [3] * _edge_rows(two, one) + [4] * _edge_rows(one, two) + [5, 6])


def _edge_rows(shape: Convex, other: Convex) -> int:
    """How many edges are tried: of a mesh, against a curved surface, those of the face too, where n may have come to lie."""
    return 4 if shape.kind == ShapeType.MESH and other.kind in CURVED else 1


def _candidates(one: Convex, two: Convex, n):
    """Directions next to n at which s may have its maximum, in the order of `_features`; n where a shape has no such feature."""
    face2 = two.face(n) if two.kind in WITH_FACES else n
    face1 = -one.face(-n) if one.kind in WITH_FACES else n
    edge1 = one.edge(-n) if one.kind in WITH_EDGES else None
    edge2 = two.edge(n) if two.kind in WITH_EDGES else None
    both = n
    if edge1 is not None and edge2 is not None:
        both, _ = unit(cross(edge1, edge2), n)
        both = jnp.where(both @ n >= 0, both, -both)
    axes = []
    for edge, shape, other, outward in ((edge2, two, one, n), (edge1, one, two, -n)):
        axes.append((n if edge is None else edge)[None])
        if _edge_rows(shape, other) > 1:
            axes.append(shape.edges_of_face(outward))
    return jnp.concatenate([jnp.stack([face2, face1, both]), _stationary(one, two, n, jnp.concatenate(axes)), n[None]])


def _stationary(one: Convex, two: Convex, n, axes):
    """Newton's step from n towards stationary s: across each of the k axes, and among all directions, (k + 1, 3)."""
    helper = jnp.eye(3, dtype=n.dtype)[jnp.argmin(jnp.abs(n))]
    axes, _ = unit(jnp.concatenate([axes, helper[None]]), helper)
    bound = jnp.asarray(np.arange(len(axes)) < len(axes) - 1, n.dtype)
    start, _ = unit(n - (bound * (axes @ n))[:, None] * axes, n)
    a, _ = unit(cross(axes, start), n)
    b = cross(start, a)
    tangents = jnp.stack([a, b], 1)
    s, apart = _separation(one, two, start)
    aa, ab, bb = s, jnp.zeros_like(s), s
    for part in (one.curvature(-start, tangents), two.curvature(start, tangents)):
        if part is not None:
            aa, ab, bb = aa + part[0], ab + part[1], bb + part[2]
    # At the root the derivative of this matrix is multiplied by zero.
    aa, ab, bb = jax.lax.stop_gradient((aa, ab, bb))
    ga, gb = jnp.sum(a * apart, -1), jnp.sum(b * apart, -1)
    # Across an axis the direction turns along a alone.
    free = bound == 0
    ab, gb, bb = jnp.where(free, ab, 0.0), jnp.where(free, gb, 0.0), jnp.where(free, bb, 1.0)
    determinant = aa * bb - ab * ab
    smallest = jax.lax.stop_gradient(tolerance(n.dtype) * (jnp.abs(s) + one.extent + two.extent))
    regular = (aa > smallest) & (determinant > jnp.where(free, smallest, 1.0) * smallest)
    determinant = jnp.where(regular, determinant, jnp.ones_like(determinant))
    along = jnp.stack([bb * ga - ab * gb, aa * gb - ab * ga], -1) / determinant[:, None]
    length = jnp.max(jnp.abs(jax.lax.stop_gradient(along)), -1)
    along = jnp.where(regular[:, None], along / jnp.maximum(1.0, 4 * length)[:, None], 0.0)
    return unit(start + along[:, :1] * a + along[:, 1:] * b, start)[0]


def _closest_points(one: Convex, two: Convex, n, s, best):
    """The point of contact for the direction n of candidate `best`, from the support points that are unique."""
    share = _share(one, two, best, n.dtype)
    x1, x2 = one.support(-n), two.support(n)
    from1, from2 = x1 - s * n, x2
    # The other shape's feature is a face or an edge: the point belongs to the shape that has a unique support point.
    on2 = jnp.where((best == 1) | (best == 4), from2, from1)
    if one.kind in WITH_EDGES and two.kind in WITH_EDGES:
        edge1, edge2 = one.edge(-n), two.edge(n)
        product = cross(edge1, edge2)
        square = jnp.sum(product * product)
        lengths = jnp.sum(edge1 * edge1) * jnp.sum(edge2 * edge2)
        skew = square > float(jnp.finfo(n.dtype).eps) ** 1.5 * jax.lax.stop_gradient(lengths)
        # x2 + t edge2 is where the edges pass each other along n.
        t = jnp.sum(cross(edge1, x1 - x2) * product) / jnp.where(skew, square, jnp.ones_like(square))
        on2 = jnp.where((best == 2) & skew, x2 + t * edge2, on2)
    return on2 + share * s * n
