r"""Broad phase: lower bounds of the distances of many pairs, and which of them deserve the narrow phase.

Every shape is enclosed in an oriented box, in its own axes, with a radius around it (spheres and capsules: their core and
their radius). With c the vector between the centres, h1, h2 the support functions of the boxes and r1, r2 the radii,

    s(n) = n . c - h1(-n) - h2(n) - r1 - r2

is a lower bound of the signed distance for every unit vector n. It is evaluated at the fifteen axes of two boxes, faces and
products of edges (Gottschalk, Lin and Manocha, *OBBTree*, 1996, section 5), which separate any two boxes that are apart, and
at the direction that a few projections from box to box lead to, where it comes close to their distance. `exact_bounds`
do without the boxes.

Nothing here carries a derivative: the broad phase chooses.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.convex.gjk import separating_direction
from trajopt.dynamics.collision.convex.shapes import Convex, Hull
from trajopt.dynamics.collision.features import limit, unit
from trajopt.dynamics.model import Model, ShapeType
from trajopt.dynamics.rigid_body.spatial import multiply_columns, rotate_columns

FEWEST = 8  # pairs of a group that are always taken
MARGIN = 2  # candidates of the pairs taken, relative to the contacts kept
SHORTLIST = 4  # pairs whose bound is made exact, relative to the pairs taken
PROJECTIONS = 4
# Of many pairs, the narrow phase of the first takes 1 us each, of the second 10 to 20 us, of others from 50 us on.
QUICK = (
    (ShapeType.SPHERE, ShapeType.SPHERE),
    (ShapeType.SPHERE, ShapeType.CAPSULE),
    (ShapeType.SPHERE, ShapeType.BOX),
    (ShapeType.SPHERE, ShapeType.CYLINDER),
    (ShapeType.CAPSULE, ShapeType.CAPSULE),
)
CLOSED = ((ShapeType.CAPSULE, ShapeType.BOX), (ShapeType.BOX, ShapeType.BOX), (ShapeType.CAPSULE, ShapeType.CYLINDER))
WORTHWHILE = 4
GJK_ITERATIONS, GJK_ACCURACY = 16, 0.02
_NEXT, _LAST = np.array([1, 2, 0]), np.array([2, 0, 1])


@dataclasses.dataclass(frozen=True)
class PairLimit:
    """How many pairs of a group of equal kinds go on to the narrow phase.

    pairs; where it is None, as many as have twice `contacts` candidates, and at least 8; but all where the narrow phase takes
    no longer than the broad phase: of kinds with short formulas (`QUICK`), and of other closed forms up to four times as many.
    No pairs at all with pairs=0.
    """

    contacts: int
    pairs: int | None = None

    def taken(self, kinds: tuple[ShapeType, ShapeType], per_pair: int, total: int) -> int:
        """How many of `total` pairs of these kinds, with `per_pair` contacts each."""
        if self.pairs is not None:
            return min(total, self.pairs)
        count = max(FEWEST, -(-MARGIN * self.contacts // per_pair))
        every = kinds in QUICK or total <= (WORTHWHILE * count if kinds in CLOSED else count)
        return total if every else count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Culled:
    """What is known of the np pairs of all groups that went through the broad phase.

    candidate (k,): for each contact found, of any group, its index in the list of all candidates; taken (np,): the narrow
    phase has seen the pair; bound (np,): lower bound of its distance, m; node1, node2 (np,): the bodies' nodes; centre1,
    centre2 (np, 3), world axes, and reach1, reach2 (np,): balls around the shapes, m.
    """

    candidate: Int[Array, " k"]
    taken: Bool[Array, " np"]
    bound: Float[Array, " np"]
    node1: Int[Array, " np"]
    node2: Int[Array, " np"]
    centre1: Float[Array, "np 3"]
    centre2: Float[Array, "np 3"]
    reach1: Float[Array, " np"]
    reach2: Float[Array, " np"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Boxes:
    """n boxes with a radius around them: axes (3, 3, n) as columns, centre (3, n), world axes; half (3, n) extents, radius (n,).

    Components in front: the loops run over pairs.
    """

    axes: Float[Array, "3 3 n"]
    centre: Float[Array, "3 n"]
    half: Float[Array, "3 n"]
    radius: Float[Array, " n"]

    @property
    def reach(self) -> Float[Array, " n"]:
        """Radius of a ball around each."""
        return jnp.sqrt(jnp.sum(self.half * self.half, 0)) + self.radius

    def __getitem__(self, index) -> Boxes:
        return jax.tree.map(lambda x: x[..., index], self)


def bounding_boxes(model: Model, rotation: Float[Array, "ns 3 3"], position: Float[Array, "ns 3"]) -> Boxes:
    """Boxes of all shapes at their world placements. Those of planes, height fields and point sets mean nothing."""
    shapes, dtype = model.topology.shapes, position.dtype
    extents, round_ = np.zeros((3, 3, len(shapes))), np.zeros(len(shapes))
    for k, spec in enumerate(shapes):
        # Half extents as combinations of the sizes.
        if spec.kind in (ShapeType.BOX, ShapeType.ELLIPSOID):
            extents[:, :, k] = np.eye(3)
        elif spec.kind in (ShapeType.CAPSULE, ShapeType.CYLINDER):
            extents[2, 1, k] = 1.0
            extents[:2, 0, k] = spec.kind == ShapeType.CYLINDER
        round_[k] = spec.kind in (ShapeType.SPHERE, ShapeType.CAPSULE)
    size = jax.lax.stop_gradient(jnp.asarray(model.shape_size, dtype)).T
    half = rotate_columns(jnp.asarray(extents, dtype), size)
    axes, centre = jnp.moveaxis(jax.lax.stop_gradient(rotation), 0, -1), jax.lax.stop_gradient(position).T
    hulls = [k for k, spec in enumerate(shapes) if spec.kind == ShapeType.MESH]
    if hulls:
        used = sorted({shapes[k].mesh for k in hulls})
        vertices = [jax.lax.stop_gradient(jnp.asarray(model.meshes[mesh], dtype)) for mesh in used]
        low, high = (jnp.stack([of(x, 0) for x in vertices], 1) for of in (jnp.min, jnp.max))
        at, mesh = np.array(hulls), np.array([used.index(shapes[k].mesh) for k in hulls])
        half = half.at[:, at].set(((high - low) / 2)[:, mesh])
        centre = centre.at[:, at].add(rotate_columns(axes[..., at], ((high + low) / 2)[:, mesh]))
    return Boxes(axes, centre, half, jnp.asarray(round_, dtype) * size[0])


def box_bounds(one: Boxes, two: Boxes) -> Float[Array, " p"]:
    """Lower bounds of the signed distances of pairs of shapes, from their boxes."""
    h1, h2, apart = one.half, two.half, one.centre - two.centre
    C = multiply_columns(jnp.swapaxes(one.axes, 0, 1), two.axes)  # axes of 2 in those of 1
    c1, c2 = (rotate_columns(jnp.swapaxes(x.axes, 0, 1), apart) for x in (one, two))
    across = jnp.abs(C)
    face1 = jnp.abs(c1) - h1 - rotate_columns(across, h2)
    face2 = jnp.abs(c2) - h2 - rotate_columns(jnp.swapaxes(across, 0, 1), h1)

    along = c1[_LAST, None] * C[_NEXT] - c1[_NEXT, None] * C[_LAST]
    span1 = h1[_NEXT, None] * across[_LAST] + h1[_LAST, None] * across[_NEXT]
    span2 = h2[_NEXT] * across[:, _LAST] + h2[_LAST] * across[:, _NEXT]
    length = jnp.sqrt(C[_NEXT] * C[_NEXT] + C[_LAST] * C[_LAST])
    skew = length > float(jnp.finfo(C.dtype).eps) ** 0.375
    edges = jnp.where(skew, (jnp.abs(along) - span1 - span2) / jnp.where(skew, length, 1.0), -jnp.inf)

    on2 = -c1  # a point of box 2 in the axes of box 1, from its centre
    for _ in range(PROJECTIONS):
        on1 = limit(on2, h1)
        on2 = rotate_columns(C, limit(c2 + rotate_columns(jnp.swapaxes(C, 0, 1), on1), h2)) - c1
    gap = limit(on2, h1) - on2
    square = jnp.sum(gap * gap, 0)
    n = gap / jnp.sqrt(jnp.where(square > 0, square, 1.0))
    on_axes2 = jnp.abs(rotate_columns(jnp.swapaxes(C, 0, 1), n))
    direct = jnp.sum(n * c1, 0) - jnp.sum(jnp.abs(n) * h1, 0) - jnp.sum(on_axes2 * h2, 0)
    direct = jnp.where(square > 0, direct, -jnp.inf)
    all_axes = jnp.concatenate([face1, face2, edges.reshape(9, -1), direct[None]])
    return jnp.max(all_axes, 0) - one.radius - two.radius


def exact_bounds(
    kinds: tuple[ShapeType, ShapeType], one: tuple, two: tuple, hull1: Hull | None, hull2: Hull | None
) -> Float[Array, " p"]:
    """Lower bounds of the signed distances of pairs of two kinds, within 2 % of the distance of the cores that are apart.

    one, two: (rotations (p, 3, 3), positions, sizes (p, 3)) of the shapes; hull1, hull2: of meshes, stacked.
    """

    def single(one, two, hull1, hull2):
        (R1, p1, size1), (R2, p2, size2) = one, two
        first = Convex(kinds[0], R1, p1 - p2, size1, hull1)
        return _exact_bound(first, Convex(kinds[1], R2, jnp.zeros_like(p2), size2, hull2))

    return jax.vmap(single)(*jax.lax.stop_gradient((one, two, hull1, hull2)))


def _exact_bound(one: Convex, two: Convex) -> Float[Array, ""]:
    def farthest(n):
        return one.support(-n) - two.support(n)

    start, _ = unit(one.centre - two.centre, two.rotation[:, 2])
    v, _ = separating_direction(farthest, start, one.extent + two.extent, GJK_ACCURACY, GJK_ITERATIONS)
    n, _ = unit(v, start)
    return n @ farthest(n) - one.radius - two.radius


def nearest(bound: Float[Array, " n"], count: int) -> Int[Array, " k"]:
    """Indices of the `count` smallest bounds, to single precision (several times faster), in ascending order of the index."""
    return jnp.sort(jax.lax.top_k(-bound.astype(jnp.float32), count)[1]).astype(int)


def verdict(
    nodes: Int[np.ndarray, " ns"],
    boxes: Boxes,
    index: Int[Array, " k"],
    bound: Float[Array, " p"],
    one: Int[np.ndarray, " p"],
    two: Int[np.ndarray, " p"],
) -> Culled:
    """What there is to say of the pairs of shapes (one, two) of a group when those at `index` go on; without `candidate`."""
    ends = boxes[one], boxes[two]
    taken = jnp.zeros(len(one), bool).at[index].set(True)
    return Culled(
        jnp.zeros(0, int), taken, bound, *(jnp.asarray(nodes[shape]) for shape in (one, two)),
        *(end.centre.T for end in ends), *(end.reach for end in ends),
    )  # fmt: skip
