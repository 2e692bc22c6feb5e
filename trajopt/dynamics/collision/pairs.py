"""Contacts of all shape pairs of a model.

Pairs are static (`Topology.pairs`), grouped by the kinds of their shapes; each group is one vectorised call. The first
body of a pair is the one that the normal points to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.boxes import box_box, capsule_box
from trajopt.dynamics.collision.capsule_cylinder import capsule_cylinder
from trajopt.dynamics.collision.round import (
    capsule_capsule,
    sphere_box,
    sphere_capsule,
    sphere_cylinder,
    sphere_sphere,
)
from trajopt.dynamics.collision.shapes import (
    box_plane,
    capsule_plane,
    cylinder_plane,
    ellipsoid_plane,
    sphere_plane,
    vertices_plane,
)
from trajopt.dynamics.kinematics import Kinematics
from trajopt.dynamics.model import Model, ShapeType, Topology
from trajopt.dynamics.spatial import multiply, rotate, skew
from trajopt.errors import ModelError

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
}
VERTEX_KINDS = (ShapeType.MESH, ShapeType.POINTS)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contacts:
    """Candidate contacts, world axes.

    distance (k,) m, negative when penetrating; point (k, 3) where the impulse acts; normal (k, 3) from body 2 to body 1;
    centre (k, 3) origin of the shape of body 1; node1, node2 (k,) indices of the bodies' nodes (n_nodes: the world);
    pair (k,) index into `Topology.pairs`.
    """

    distance: Float[Array, " k"]
    point: Float[Array, "k 3"]
    normal: Float[Array, "k 3"]
    centre: Float[Array, "k 3"]
    node1: Int[Array, " k"]
    node2: Int[Array, " k"]
    pair: Int[Array, " k"]


@dataclasses.dataclass(frozen=True)
class _Group:
    """Pairs that one vectorised call serves: `call(R1, p1, size1, R2, p2, size2, vertices)` for a single pair.

    per_pair: number of contacts of a pair, None where it depends on the number of vertices; mesh: index, or -1.
    """

    call: Callable
    per_pair: int | None
    pairs: tuple[int, ...]
    mesh: int


@functools.lru_cache(maxsize=128)
def _groups(top: Topology) -> tuple[_Group, ...]:
    found: dict[tuple, list[int]] = {}
    for index, (one, two) in enumerate(top.pairs):
        kinds = top.shapes[one].kind, top.shapes[two].kind
        swapped = kinds not in PRIMITIVES and not (kinds[0] in VERTEX_KINDS and kinds[1] == ShapeType.PLANE)
        first, second = (top.shapes[two], top.shapes[one]) if swapped else (top.shapes[one], top.shapes[two])
        if (first.kind, second.kind) in PRIMITIVES:
            mesh = -1
        elif first.kind in VERTEX_KINDS and second.kind == ShapeType.PLANE:
            mesh = first.mesh
        else:
            raise ModelError(_unsupported(top, one, two))
        found.setdefault((first.kind, second.kind, swapped, mesh), []).append(index)
    return tuple(_Group(*_caller(*key), tuple(pairs), key[3]) for key, pairs in found.items())


def _unsupported(top: Topology, one: int, two: int) -> str:
    kinds = [top.shapes[k].kind.name.lower() for k in (one, two)]
    names = [
        f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ('{top.shapes[k].name}')"
        for k, kind in zip((one, two), kinds, strict=True)
    ]
    return (
        f"model '{top.name}': no contact between {names[0]} and {names[1]}; exclude this pair or use other shapes "
        "(spheres, capsules, boxes, cylinders, ellipsoids, meshes and points against a plane; spheres, capsules and boxes "
        "against each other; spheres and capsules against a cylinder)"
    )


def _caller(kind1: ShapeType, kind2: ShapeType, swapped: bool, mesh: int) -> tuple[Callable, int | None]:
    """The function of one pair in the model's order, and its number of contacts."""
    if mesh < 0:
        function, count = PRIMITIVES[kind1, kind2]

        def call(R1, p1, size1, R2, p2, size2, vertices):
            return function(R1, p1, size1, R2, p2, size2)
    else:
        count, most = None, None if kind1 == ShapeType.POINTS else 4

        def call(R1, p1, size1, R2, p2, size2, vertices):
            return vertices_plane(vertices, R1, p1, R2, p2, most)

    def reversed_call(R1, p1, size1, R2, p2, size2, vertices):
        distance, point, normal = call(R2, p2, size2, R1, p1, size1, vertices)
        return distance, point, -normal

    return (reversed_call if swapped else call), count


def check_pairs(top: Topology) -> None:
    """Raise `ModelError`, naming the shapes, when a pair of the model has no contact function."""
    _groups(top)


def contact_count(model: Model) -> int:
    """Number of candidate contacts of a model."""
    total = 0
    for group in _groups(model.topology):
        per_pair = group.per_pair
        if per_pair is None:
            vertices = model.meshes[group.mesh].shape[0]
            kinds = {model.topology.shapes[k].kind for k in model.topology.pairs[group.pairs[0]]}
            per_pair = vertices if ShapeType.POINTS in kinds else min(4, vertices)
        total += per_pair * len(group.pairs)
    return total


def shape_placements(model: Model, kin: Kinematics):
    """World rotations (ns, 3, 3) and positions (ns, 3) of all shapes."""
    dtype = kin.position.dtype
    node = np.array([s.node for s in model.topology.shapes], int) % (model.topology.n_nodes + 1)
    eye = jnp.eye(3, dtype=dtype)[None]
    rotation = jnp.concatenate([kin.rotation, eye])[node]
    position = jnp.concatenate([kin.position, jnp.zeros((1, 3), dtype)])[node]
    local = jnp.asarray(model.shape_rotation, dtype)
    return multiply(rotation, local), position + rotate(rotation, jnp.asarray(model.shape_position, dtype))


def collide(model: Model, kin: Kinematics) -> Contacts:
    """All candidate contacts of the model at the given kinematics, in a fixed order."""
    contacts, _ = _collide(model, kin, derivatives=False)
    return contacts


def collide_with_derivatives(model: Model, kin: Kinematics) -> tuple[Contacts, Float[Array, "k 7 6"]]:
    """Contacts and their derivative [distance; point; normal] with respect to the motion of body 1 alone.

    The motion is (translation, rotation vector), world axes, about `Contacts.centre`. The derivative for body 2 follows,
    since a common rigid motion of both bodies carries point and normal along and leaves the distance unchanged.
    """
    contacts, derivative = _collide(model, kin, derivatives=True)
    assert derivative is not None
    return contacts, derivative


def _collide(model: Model, kin: Kinematics, derivatives: bool):
    top = model.topology
    dtype = kin.position.dtype
    rotation, position = shape_placements(model, kin)
    size = jnp.asarray(model.shape_size, dtype)
    nodes = np.array([s.node for s in top.shapes], int) % (top.n_nodes + 1)
    parts: list[Contacts] = []
    slopes: list[Array] = []
    for group in _groups(top):
        one = np.array([top.pairs[k][0] for k in group.pairs], int)
        two = np.array([top.pairs[k][1] for k in group.pairs], int)
        vertices = jnp.asarray(model.meshes[group.mesh], dtype) if group.mesh >= 0 else jnp.zeros((0, 3), dtype)
        arguments = (rotation[one], position[one], size[one], rotation[two], position[two], size[two])

        def single(R1, p1, size1, R2, p2, size2, call=group.call, vertices=vertices):
            return call(R1, p1, size1, R2, p2, size2, vertices)

        if derivatives:
            slope, (distance, point, normal) = jax.vmap(functools.partial(_slope_and_value, single))(*arguments)
            slopes.append(slope.reshape(-1, 7, 6))
        else:
            distance, point, normal = jax.vmap(single)(*arguments)
        k = distance.shape[1]
        parts.append(
            Contacts(
                distance.reshape(-1),
                point.reshape(-1, 3),
                normal.reshape(-1, 3),
                jnp.repeat(position[one], k, 0),
                jnp.asarray(np.repeat(nodes[one], k)),
                jnp.asarray(np.repeat(nodes[two], k)),
                jnp.asarray(np.repeat(np.array(group.pairs), k)),
            )
        )
    if not parts:
        none3, none, index = jnp.zeros((0, 3), dtype), jnp.zeros(0, dtype), jnp.zeros(0, int)
        parts = [Contacts(none, none3, none3, none3, index, index, index)]
        slopes = [jnp.zeros((0, 7, 6), dtype)]
    merged = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    return merged, (jnp.concatenate(slopes) if derivatives else None)


def _slope(single: Callable, R1, p1, *others):
    """d [distance; point; normal] / d (motion of body 1), (k, 7, 6)."""
    return _slope_and_value(single, R1, p1, *others)[0]


def _slope_and_value(single: Callable, R1, p1, *others):
    """The slope, by forward differentiation of the pair function, and the pair's contacts."""

    def moved(motion):
        turn = motion[3:]
        contacts = single(R1 + multiply(skew(turn), R1), p1 + motion[:3], *others)
        distance, point, normal = contacts
        return jnp.concatenate([distance[:, None], point, normal], 1), contacts

    return jax.jacfwd(moved, has_aux=True)(jnp.zeros(6, p1.dtype))
