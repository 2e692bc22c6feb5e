"""Contacts of all shape pairs of a model.

Pairs are static (`Topology.pairs`), grouped by the kinds of their shapes; each group is one vectorised call, for all of its
pairs or for those that the broad phase finds nearest. The first body of a pair is the one that the normal points to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.broadphase import (
    SHORTLIST,
    Boxes,
    Culled,
    PairLimit,
    bounding_boxes,
    box_bounds,
    exact_bounds,
    nearest,
    verdict,
)
from trajopt.dynamics.collision.convex.general import convex_pair
from trajopt.dynamics.collision.convex.hulls import hulls_of, mesh_plane
from trajopt.dynamics.collision.convex.shapes import Convex
from trajopt.dynamics.collision.evaluation import Pairs, extent, past_each_other
from trajopt.dynamics.collision.primitives.boxes import box_box, capsule_box
from trajopt.dynamics.collision.primitives.capsule_cylinder import capsule_cylinder
from trajopt.dynamics.collision.primitives.plane import (
    box_plane,
    capsule_plane,
    cylinder_plane,
    ellipsoid_plane,
    sphere_plane,
    vertices_plane,
)
from trajopt.dynamics.collision.primitives.round import (
    capsule_capsule,
    sphere_box,
    sphere_capsule,
    sphere_cylinder,
    sphere_sphere,
)
from trajopt.dynamics.collision.terrain import GROUND, ground_contacts
from trajopt.dynamics.model import Model, ShapeType, Topology
from trajopt.dynamics.rigid_body.kinematics import Kinematics, relative_motion
from trajopt.dynamics.rigid_body.spatial import multiply, rotate
from trajopt.errors import ModelError


def _convex(kind1: ShapeType, kind2: ShapeType, count: int) -> tuple[Callable, int]:
    """The general function for two kinds, with this number of contacts."""

    def call(R1, p1, size1, R2, p2, size2, hull1=None, hull2=None):
        distance, point, normal = convex_pair(
            Convex(kind1, R1, p1 - p2, size1, hull1), Convex(kind2, R2, jnp.zeros_like(p2), size2, hull2), count
        )
        return distance, p2 + point, normal

    return call, count


_GENERAL = {
    (ShapeType.BOX, ShapeType.CYLINDER): 4,
    (ShapeType.CYLINDER, ShapeType.CYLINDER): 4,
    **{(ShapeType(kind), ShapeType.ELLIPSOID): 1 for kind in range(ShapeType.SPHERE, ShapeType.ELLIPSOID + 1)},
}
# Contact function of two kinds, in this order, and its number of contacts.
PRIMITIVES: dict[tuple[ShapeType, ShapeType], tuple[Callable, int]] = {
    (ShapeType.SPHERE, ShapeType.PLANE): (sphere_plane, 1),
    (ShapeType.CAPSULE, ShapeType.PLANE): (capsule_plane, 2),
    (ShapeType.BOX, ShapeType.PLANE): (box_plane, 4),
    (ShapeType.CYLINDER, ShapeType.PLANE): (cylinder_plane, 4),
    (ShapeType.ELLIPSOID, ShapeType.PLANE): (ellipsoid_plane, 1),
    (ShapeType.SPHERE, ShapeType.SPHERE): (sphere_sphere, 1),
    (ShapeType.SPHERE, ShapeType.CAPSULE): (sphere_capsule, 1),
    (ShapeType.SPHERE, ShapeType.BOX): (sphere_box, 1),
    (ShapeType.SPHERE, ShapeType.CYLINDER): (sphere_cylinder, 1),
    (ShapeType.CAPSULE, ShapeType.CAPSULE): (capsule_capsule, 2),
    (ShapeType.CAPSULE, ShapeType.BOX): (capsule_box, 2),
    (ShapeType.CAPSULE, ShapeType.CYLINDER): (capsule_cylinder, 2),
    (ShapeType.BOX, ShapeType.BOX): (box_box, 4),
    **{kinds: _convex(*kinds, count) for kinds, count in _GENERAL.items()},
}
# The same for pairs with a convex mesh, whose functions take the polyhedra too (None for the other kinds).
HULLS: dict[tuple[ShapeType, ShapeType], tuple[Callable, int]] = {
    (kind, ShapeType.MESH): _convex(kind, ShapeType.MESH, count) for kind, count in GROUND.items() if count is not None
}
VERTEX_KINDS = (ShapeType.MESH, ShapeType.POINTS)
SCENERY = (ShapeType.PLANE, ShapeType.HEIGHTFIELD)
SINGLE = ((ShapeType.SPHERE, ShapeType.PLANE), (ShapeType.ELLIPSOID, ShapeType.PLANE))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contacts:
    """Candidate contacts, world axes.

    distance (k,) m, negative when penetrating; point (k, 3) where the impulse acts; normal (k, 3) from body 2 to body 1;
    centre (k, 3) origin of the shape of body 1; node1, node2 (k,) indices of the bodies' nodes (n_nodes: the world);
    pair (k,) index into `Topology.pairs`. culled: the pairs that the broad phase has judged, None where it had none to.
    """

    distance: Float[Array, " k"]
    point: Float[Array, "k 3"]
    normal: Float[Array, "k 3"]
    centre: Float[Array, "k 3"]
    node1: Int[Array, " k"]
    node2: Int[Array, " k"]
    pair: Int[Array, " k"]
    culled: Culled | None = None

    def __getitem__(self, index) -> Contacts:
        """Some of the contacts."""
        return jax.tree.map(lambda leaf: leaf[index], dataclasses.replace(self, culled=None))


@dataclasses.dataclass(frozen=True)
class PairGroup:
    """Pairs that one vectorised call serves: `call(R1, p1, size1, R2, p2, size2, more)` for a single pair.

    per_pair: number of contacts of a pair, None where it is that of the vertices; swapped: `kinds`, those of the function,
    are in the opposite order of the model's pairs. Against a plane or the ground the vertices of the first shape are those
    of mesh `mesh` (else -1); `ground`: index of the height field (else -1); more: vertices and heights, or polyhedra. on_face:
    the point of a sphere or ellipsoid is moved onto the plane, where the points of its body's other shapes are.
    """

    call: Callable
    per_pair: int | None
    pairs: tuple[int, ...]
    kinds: tuple[ShapeType, ShapeType]
    swapped: bool
    mesh: int
    ground: int
    on_face: bool

    def candidates(self, model: Model) -> int:
        """Contacts of a pair."""
        return model.meshes[self.mesh].shape[0] if self.per_pair is None else self.per_pair

    def taken(self, limit: PairLimit | None) -> int:
        """Pairs that the narrow phase takes; all against planes and height fields."""
        everything = len(self.pairs)
        if limit is None or self.kinds[1] in SCENERY or self.per_pair is None:
            return everything
        return limit.taken(self.kinds, self.per_pair, everything)


@functools.lru_cache(maxsize=128)
def pair_groups(top: Topology) -> tuple[PairGroup, ...]:
    """The pairs of a topology by what serves them, in the order in which their candidates are listed.

    Raises `ModelError`, naming the shapes, for a pair that has no contact function.
    """
    found: dict[tuple, list[int]] = {}
    for index, (one, two) in enumerate(top.pairs):
        swapped = not _known(top, one, two) and _known(top, two, one)
        first, second = (two, one) if swapped else (one, two)
        if not _known(top, first, second):
            raise ModelError(_unsupported(top, one, two))
        kinds = top.shapes[first].kind, top.shapes[second].kind
        mesh = top.shapes[first].mesh if kinds[1] in SCENERY and kinds[0] in VERTEX_KINDS else -1
        ground = second if kinds[1] == ShapeType.HEIGHTFIELD else -1
        on_face = kinds in SINGLE and _touches_elsewhere(top, first, second)
        found.setdefault((kinds, swapped, mesh, ground, on_face), []).append(index)
    return tuple(PairGroup(*_caller(top, *key), tuple(pairs), *key) for key, pairs in found.items())


def _touches_elsewhere(top: Topology, shape: int, plane: int) -> bool:
    """Whether another shape of the shape's body meets the plane too: several spheres make a foot."""
    others = (one if two == plane else two for one, two in top.pairs if plane in (one, two))
    return any(other != shape and top.shapes[other].node == top.shapes[shape].node for other in others)


def _known(top: Topology, one: int, two: int) -> bool:
    kinds = top.shapes[one].kind, top.shapes[two].kind
    if kinds[1] == ShapeType.HEIGHTFIELD:
        return kinds[0] in GROUND and top.shapes[two].surface is not None
    return kinds in PRIMITIVES or kinds in HULLS or (kinds[0] in VERTEX_KINDS and kinds[1] == ShapeType.PLANE)


def _unsupported(top: Topology, one: int, two: int) -> str:
    plain = {ShapeType.POINTS: "point set", ShapeType.HEIGHTFIELD: "height field"}
    kinds = [plain.get(top.shapes[k].kind, top.shapes[k].kind.name.lower()) for k in (one, two)]
    names = [
        f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ('{top.shapes[k].name}')"
        for k, kind in zip((one, two), kinds, strict=True)
    ]
    return (
        f"model '{top.name}': no contact between {names[0]} and {names[1]}; exclude this pair or use other shapes "
        "(spheres, capsules, boxes, cylinders, ellipsoids and meshes against each other, a plane or a height field; points "
        "against a plane or a height field)"
    )


def _caller(top: Topology, kinds, swapped: bool, mesh: int, ground: int, on_face: bool) -> tuple[Callable, int | None]:
    """The function of one pair in the model's order, and its number of contacts."""
    count: int | None
    if ground >= 0:
        count, surface = GROUND[kinds[0]], top.shapes[ground].surface
        assert surface is not None

        def call(R1, p1, size1, R2, p2, size2, more):
            vertices, numbers = more
            return ground_contacts(kinds[0], surface, R1, p1, size1, R2, p2, size2, numbers, vertices)
    elif mesh >= 0:
        count = 4 if kinds[0] == ShapeType.MESH else None

        def call(R1, p1, size1, R2, p2, size2, more):
            if kinds[0] == ShapeType.MESH:
                return mesh_plane(more[0], R1, p1, R2, p2)
            return vertices_plane(more[0], R1, p1, R2, p2, None)
    elif kinds in HULLS:
        general, count = HULLS[kinds]

        def call(R1, p1, size1, R2, p2, size2, more):
            return general(R1, p1, size1, R2, p2, size2, *more)
    else:
        function, count = PRIMITIVES[kinds]

        def call(R1, p1, size1, R2, p2, size2, more):
            distance, point, normal = function(R1, p1, size1, R2, p2, size2)
            return distance, (point - distance[:, None] * normal if on_face else point), normal

    def reversed_call(R1, p1, size1, R2, p2, size2, more):
        distance, point, normal = call(R2, p2, size2, R1, p1, size1, more)
        return distance, point, -normal

    return (reversed_call if swapped else call), count


def check_pairs(top: Topology) -> None:
    """Raise `ModelError`, naming the shapes, when a pair of the model has no contact function."""
    pair_groups(top)


def contact_count(model: Model, limit: PairLimit | None = None) -> int:
    """Number of candidate contacts of a model, of all pairs or of those that `collide` takes under `limit`."""
    return sum(group.candidates(model) * group.taken(limit) for group in _limited(model.topology, limit))


def _limited(top: Topology, limit: PairLimit | None) -> tuple[PairGroup, ...]:
    return () if limit is not None and limit.pairs == 0 else pair_groups(top)


def shape_placements(model: Model, kin: Kinematics):
    """World rotations (ns, 3, 3) and positions (ns, 3) of all shapes."""
    dtype = kin.position.dtype
    node = np.array([s.node for s in model.topology.shapes], int) % (model.topology.n_nodes + 1)
    eye = jnp.eye(3, dtype=dtype)[None]
    rotation = jnp.concatenate([kin.rotation, eye])[node]
    position = jnp.concatenate([kin.position, jnp.zeros((1, 3), dtype)])[node]
    local = jnp.asarray(model.shape_rotation, dtype)
    return multiply(rotation, local), position + rotate(rotation, jnp.asarray(model.shape_position, dtype))


def collide(
    model: Model, kin: Kinematics, limit: PairLimit | None = None, travel: Float[Array, " nv"] | None = None
) -> Contacts:
    """All candidate contacts of the model at the given kinematics, in a fixed order.

    limit: candidates of the nearest pairs only, in the same order; `Contacts.culled` says what was left out. travel: dt v, by
    which pairs that pass each other are seen along the direction that separates them all the way (`evaluation`).
    """
    contacts, _ = _collide(model, kin, limit, travel, derivatives=False)
    return contacts


def collide_with_derivatives(
    model: Model, kin: Kinematics, limit: PairLimit | None = None, travel: Float[Array, " nv"] | None = None
) -> tuple[Contacts, Float[Array, "k 7 6"]]:
    """Contacts and their derivative [distance; point; normal] with respect to the motion of body 1 alone.

    The motion is (translation, rotation vector), world axes, about `Contacts.centre`. The derivative for body 2 follows,
    since a common rigid motion of both bodies carries point and normal along and leaves the distance unchanged.
    """
    contacts, derivative = _collide(model, kin, limit, travel, derivatives=True)
    assert derivative is not None
    return contacts, derivative


def _collide(model: Model, kin: Kinematics, limit: PairLimit | None, travel: Array | None, derivatives: bool):
    top, dtype = model.topology, kin.position.dtype
    rotation, position = shape_placements(model, kin)
    size = jnp.asarray(model.shape_size, dtype)
    groups = _limited(top, limit)
    culling = any(group.taken(limit) < len(group.pairs) for group in groups)
    boxes = bounding_boxes(model, rotation, position) if culling else None
    judged: list[Culled] = []
    order: list[Array | np.ndarray] = []
    nodes = np.array([s.node for s in top.shapes], int) % (top.n_nodes + 1)
    parts: list[Contacts] = []
    slopes: list[Array] = []
    listed = 0
    for group in groups:
        k = group.candidates(model)
        table: Any = np.concatenate([np.array(top.pairs, int)[list(group.pairs)], np.array(group.pairs)[:, None]], 1)
        index: Any = np.arange(len(table))
        ends = table[:, 1::-1].T if group.swapped else table[:, :2].T
        if boxes is not None and group.taken(limit) < len(table):
            index, bound = _nearest(model, group, group.taken(limit), boxes, (rotation, position, size), ends)
            judged.append(verdict(nodes, boxes, index, bound, table[:, 0], table[:, 1]))
            table = jnp.asarray(table)[index]
        one, two = table[:, 0], table[:, 1]
        more, axis = _more(model, dtype, group, ends, index)
        arguments = (rotation[one], position[one], size[one], rotation[two], position[two], size[two], more)
        pairs = Pairs(group.call, group.kinds[::-1] if group.swapped else group.kinds, arguments, axis, derivatives)
        found = pairs.contacts()
        if travel is not None and group.kinds[1] not in SCENERY:
            size1, size2 = (size[jnp.asarray(end)[index]] for end in ends)
            sizes = _extent(group, size1, size2, more)
            nodes1, nodes2 = (jnp.asarray(nodes)[end][:, None] for end in (one, two))
            moved = functools.partial(_displacement, model, kin, travel, nodes1, nodes2)
            found = past_each_other(pairs, found, sizes, moved)
        distance, point, normal, slope = found
        if slope is not None:
            slopes.append(slope.reshape(-1, 7, 6))
        numbers = np if isinstance(table, np.ndarray) else jnp
        node1, node2, pair = (numbers.repeat(x, k) for x in (*numbers.asarray(nodes)[table[:, :2].T], table[:, 2]))
        parts.append(
            Contacts(
                distance.reshape(-1),
                point.reshape(-1, 3),
                normal.reshape(-1, 3),
                jnp.repeat(position[one], k, 0),
                jnp.asarray(node1),
                jnp.asarray(node2),
                jnp.asarray(pair),
            )
        )
        order.append((listed + k * index[:, None] + np.arange(k, dtype=index.dtype)).reshape(-1))
        listed += k * len(group.pairs)
    if not parts:
        none3, none, index = jnp.zeros((0, 3), dtype), jnp.zeros(0, dtype), jnp.zeros(0, int)
        parts = [Contacts(none, none3, none3, none3, index, index, index)]
        slopes = [jnp.zeros((0, 7, 6), dtype)]
    merged = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    if judged:
        culled = jax.tree.map(lambda *x: jnp.concatenate(x), *judged)
        merged = dataclasses.replace(merged, culled=dataclasses.replace(culled, candidate=jnp.concatenate(order)))
    return merged, (jnp.concatenate(slopes) if derivatives else None)


def _displacement(model: Model, kin: Kinematics, travel, node1, node2, point):
    """Of bodies 1 relative to bodies 2 within the step, at `point`; carries no derivative."""
    return jax.lax.stop_gradient(relative_motion(model, kin, travel, node1, node2, point)[0])


def _extent(group: PairGroup, size1, size2, more):
    """Length scale of both shapes of pairs, in the order of the group's function."""
    hulls = more if group.kinds in HULLS else (None, None)
    return sum(extent(kind, size, hull) for kind, size, hull in zip(group.kinds, (size1, size2), hulls, strict=True))


def _nearest(model: Model, group: PairGroup, count: int, boxes: Boxes, placed, ends):
    """Places in the group of the `count` pairs with the smallest bounds, and the bounds of all.

    ends: shapes of all pairs, in the order of the group's function; placed: rotations, positions and sizes of all shapes.
    """
    bound = box_bounds(boxes[ends[0]], boxes[ends[1]])
    if group.kinds not in HULLS and group.kinds not in _GENERAL:
        return nearest(bound, count), bound
    short = nearest(bound, min(len(group.pairs), SHORTLIST * count))
    more, _ = _more(model, placed[1].dtype, group, ends, short)
    hulls = more if group.kinds in HULLS else (None, None)
    one, two = (tuple(x[jnp.asarray(end)[short]] for x in placed) for end in ends)
    bound = bound.at[short].max(exact_bounds(group.kinds, one, two, *hulls))
    return short[nearest(bound[short], count)], bound


def _more(model: Model, dtype, group: PairGroup, ends, index):
    """What the group's function needs besides placements and sizes, and the axis of it that runs over the pairs at `index`."""
    if group.kinds in HULLS:
        return tuple(_hulls(model, dtype, shapes, index) for shapes in ends), 0
    vertices = jnp.asarray(model.meshes[group.mesh], dtype) if group.mesh >= 0 else None
    numbers = None
    if group.ground >= 0:
        surface = model.topology.shapes[group.ground].surface
        assert surface is not None
        numbers = jnp.asarray(model.terrain, dtype)[surface.start : surface.start + surface.count]
    return (vertices, numbers), None


def _hulls(model: Model, dtype, shapes, index):
    """Polyhedra of the shapes at `index`, which may be known only when the program runs."""
    if isinstance(index, np.ndarray):
        return hulls_of(model, dtype, tuple(shapes[index].tolist()))
    distinct, place = np.unique(shapes, return_inverse=True)
    table = hulls_of(model, dtype, tuple(distinct.tolist()))
    return jax.tree.map(lambda x: x[jnp.asarray(place)[index]], table)
