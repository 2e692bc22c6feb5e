"""Forward kinematics of a forest, frames and their Jacobians.

Motions are expressed in world axes at the *origin of their tree*: the position of the tree's root node at the given
configuration. Every formula of rigid-body dynamics holds at any instantaneously fixed origin, and this one avoids
cancellation far away from the world's origin; the origin is therefore not differentiated.

There is no recursion over bodies. Placements are composed by pointer doubling, in ceil(log2(depth)) rounds over all
nodes at once, and everything else is a product with the constant ancestor mask of the topology:

    node velocities = dof_mask @ (S v),      sums over subtrees = node_mask^T @ (...).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from trajopt.dynamics.model import Model, NodeType, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.rigid_body.spatial import (
    cross,
    cross_motion,
    materialise,
    multiply,
    multiply_columns,
    pack_inertia,
    rotate,
    rotate_columns,
)
from trajopt.errors import OptionError

REFERENCES = ("world", "local", "local-world-aligned")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kinematics:
    """Placements of all nodes and motion subspace of all tree DoFs at one configuration (world axes, SI).

    - `rotation` (n, 3, 3), `position` (n, 3): node frames in the world;
    - `origin` (n, 3): origin of the tree of every node, where its spatial vectors are expressed;
    - `S` (nv_tree, 6): motion of unit velocity of every DoF, [linear; angular] at the origin of its tree.
    """

    rotation: Float[Array, "n 3 3"]
    position: Float[Array, "n 3"]
    origin: Float[Array, "n 3"]
    S: Float[Array, "nvt 6"]


def expand_q(model: Model, q: Float[Array, " nq"]) -> Float[Array, " nqt"]:
    """Tree coordinates of the user's coordinates: mimic joints follow their source."""
    top = model.topology
    q = check_vector("q", q, top.nq)
    if not top.mimics:
        return q
    index, slot = mimic_coordinates(top)
    ones, zeros = jnp.ones(1, q.dtype), jnp.zeros(1, q.dtype)
    multiplier = jnp.concatenate([jnp.asarray(model.mimic_multiplier, q.dtype), ones])[slot]
    offset = jnp.concatenate([jnp.asarray(model.mimic_offset, q.dtype), zeros])[slot]
    return q[index] * multiplier + offset


def expand_v(model: Model, v: Float[Array, " nv"]) -> Float[Array, " nvt"]:
    """Tree velocities (or accelerations, or tangent vectors) of the user's: T v."""
    v = check_vector("v", v, model.nv)
    matrix = mimic_matrix(model, v.dtype)
    return v if matrix is None else matrix @ v


def mimic_matrix(model: Model, dtype: DTypeLike) -> Float[Array, "nvt nv"] | None:
    """T in `dtype`; None without mimic joints."""
    matrix = model.mimic_matrix()
    return None if matrix is None else jnp.asarray(matrix, dtype)


def to_user_dofs(model: Model, rows: Float[Array, "*b nvt"]) -> Float[Array, "*b nv"]:
    """Rows of Jacobians, or generalised forces, in the user's DoFs: rows T."""
    matrix = mimic_matrix(model, rows.dtype)
    return rows if matrix is None else rows @ matrix


@in_full_precision
def kinematics(model: Model, q: Float[Array, " nq"]) -> Kinematics:
    """Placements and motion subspaces at the configuration q (user coordinates, MuJoCo's conventions).

    Quaternions need not be normalised: the rotation of $q / |q|$ is used. Computed in the dtype of q.
    """
    top = model.topology
    rotation, position = _compose(top, *_local_placements(model, expand_q(model, q)))
    origin = jax.lax.stop_gradient(position)[:, top.roots]
    S = _motion_subspace(model, rotation, position - origin)
    return Kinematics(jnp.moveaxis(rotation, -1, 0), position.T, origin.T, S.T)


def node_velocities(kin: Kinematics, top: Topology, v: Float[Array, " nvt"]) -> Float[Array, "n 6"]:
    """Spatial velocity of every node at its tree's origin, from tree velocities v."""
    return dof_mask(top, v.dtype) @ (kin.S * v[:, None])


def relative_motion(
    model: Model,
    kin: Kinematics,
    v: Float[Array, " nv"],
    node1: Int[Array, "*#b"],
    node2: Int[Array, "*#b"],
    point: Float[Array, "*#b 3"],
) -> tuple[Float[Array, "*#b 3"], Float[Array, "*#b 3"]]:
    """(velocity at the points, angular velocity) of bodies 1 relative to bodies 2; node n_nodes is the world."""
    twist = jnp.concatenate([node_velocities(kin, model.topology, expand_v(model, v)), jnp.zeros((1, 6), v.dtype)])
    origin = jnp.concatenate([kin.origin, jnp.zeros((1, 3), v.dtype)])

    def velocity(node):
        return twist[node, :3] + cross(twist[node, 3:], point - origin[node])

    return velocity(node1) - velocity(node2), twist[node1, 3:] - twist[node2, 3:]


def node_inertias(model: Model, kin: Kinematics) -> Float[Array, "n 10"]:
    """Packed spatial inertia (see `spatial`) of every node, world axes, about its tree's origin."""
    dtype = kin.position.dtype
    rotation = jnp.moveaxis(kin.rotation, 0, -1)
    com = (kin.position - kin.origin).T + rotate_columns(rotation, jnp.asarray(model.com, dtype).T)
    turned = multiply_columns(rotation, jnp.moveaxis(jnp.asarray(model.inertia, dtype), 0, -1))
    rows, columns = (0, 0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2)
    pairs = [turned[i] * rotation[j] for i, j in zip(rows, columns, strict=True)]
    inertia = jnp.concatenate([pair[0:1] + pair[1:2] + pair[2:3] for pair in pairs])
    return materialise(pack_inertia(jnp.asarray(model.mass, dtype)[None], com, inertia, 0))[0].T


def dof_mask(top: Topology, dtype: DTypeLike) -> Float[Array, "n nvt"]:
    """1 where tree DoF j moves node i."""
    return jnp.asarray(top.dof_mask[:-1], dtype)


def subtree_mask(top: Topology, dtype: DTypeLike) -> Float[Array, "n nvt"]:
    """1 where node i belongs to the subtree of DoF j's node: rows of nodes times this are sums over subtrees."""
    return jnp.asarray(top.node_mask[:, top.dof_node], dtype)


@in_full_precision
def frame_placement(model: Model, q: Float[Array, " nq"], name: str) -> tuple[Float[Array, "3 3"], Float[Array, "3"]]:
    """Rotation and position of a named frame in the world."""
    return _place(model, kinematics(model, q), name)[:2]


@in_full_precision
def frame_jacobian(model: Model, q: Float[Array, " nq"], name: str, reference: str = "world") -> Float[Array, "6 nv"]:
    """Jacobian of a frame's spatial velocity [linear; angular] with respect to v.

    `reference`: "world" (velocity of the point of the body at the world's origin, world axes), "local" (at the frame's
    origin, frame axes) or "local-world-aligned" (at the frame's origin, world axes).
    """
    _check_reference(reference)
    kin = kinematics(model, q)
    rotation, position, columns, origin, _ = _frame_columns(model, kin, name)
    return to_user_dofs(model, _refer(reference, columns, origin, rotation, position).T)


@in_full_precision
def frame_jacobian_derivative(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], name: str, reference: str = "world"
) -> Float[Array, "6 nv"]:
    """Time derivative of `frame_jacobian` along the velocity v, for the same `reference`.

    The columns change as $dS/dt = V x S$ with V the velocity of the column's own node; the moving reference adds the
    convective term of its own motion.
    """
    _check_reference(reference)
    top = model.topology
    kin = kinematics(model, q)
    rotation, position, columns, origin, mask = _frame_columns(model, kin, name)
    velocities = node_velocities(kin, top, expand_v(model, v))
    rates = cross_motion(velocities[top.dof_node], kin.S) * mask[:, None]
    node = top.frames[top.frame_index(name)].node
    velocity = velocities[node] if node >= 0 else jnp.zeros(6, kin.S.dtype)
    result = _refer(reference, rates, origin, rotation, position)
    if reference == "local":
        moved = _refer(reference, cross_motion(velocity, columns), origin, rotation, position)
        return to_user_dofs(model, (result - moved).T)
    if reference == "local-world-aligned":
        point = velocity[:3] + cross(velocity[3:], position - origin)
        angular = columns[:, 3:]
        return to_user_dofs(model, (result + jnp.concatenate([cross(angular, point), jnp.zeros_like(angular)], -1)).T)
    return to_user_dofs(model, result.T)


@in_full_precision
def point_jacobian(model: Model, q: Float[Array, " nq"], node: int, point: Float[Array, "3"]) -> Float[Array, "3 nv"]:
    """Jacobian of the world velocity of the point of `node` that is now at `point` (world coordinates)."""
    top = model.topology
    kin = kinematics(model, q)
    if not -1 <= node < top.n_nodes:
        raise OptionError(f"node is {node}, expected an index in 0..{top.n_nodes - 1}, or -1 for the world")
    return point_jacobian_at(model, kin, node, jnp.asarray(point, kin.S.dtype))


def point_jacobian_at(model: Model, kin: Kinematics, node: int, point: Float[Array, "3"]) -> Float[Array, "3 nv"]:
    """`point_jacobian` at kinematics already computed."""
    mask = jnp.asarray(model.topology.dof_mask[node], kin.S.dtype)
    return to_user_dofs(model, (point_columns(kin, model.topology, point[None])[0] * mask[:, None]).T)


def point_columns(kin: Kinematics, top: Topology, point: Float[Array, "k 3"]) -> Float[Array, "k nvt 3"]:
    """World velocity of the point `point` (k, 3) of a body moved by unit velocity of each tree DoF (not masked)."""
    origin = kin.origin[top.dof_node]
    return kin.S[None, :, :3] + cross(kin.S[None, :, 3:], point[:, None, :] - origin[None])


@in_full_precision
def centre_of_mass(model: Model, q: Float[Array, " nq"]) -> Float[Array, "3"]:
    """Centre of mass of the whole model, world coordinates."""
    return centre_of_mass_at(model, kinematics(model, q))


def centre_of_mass_at(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """`centre_of_mass` at kinematics already computed."""
    mass = jnp.asarray(model.mass, kin.position.dtype)
    com = kin.position + rotate(kin.rotation, jnp.asarray(model.com, kin.position.dtype))
    return (mass[:, None] * com).sum(0) / mass.sum()


@in_full_precision
def com_jacobian(model: Model, q: Float[Array, " nq"]) -> Float[Array, "3 nv"]:
    """Jacobian of the centre of mass: $sum_i m_i J_i(c_i) / sum_i m_i$."""
    top = model.topology
    kin = kinematics(model, q)
    dtype = kin.position.dtype
    mass = jnp.asarray(model.mass, dtype)
    lever = kin.position - kin.origin + rotate(kin.rotation, jnp.asarray(model.com, dtype))
    moments = jnp.concatenate([mass[:, None], mass[:, None] * lever], -1)
    subtree = subtree_mask(top, dtype).T @ moments
    columns = subtree[:, :1] * kin.S[:, :3] + cross(kin.S[:, 3:], subtree[:, 1:])
    return to_user_dofs(model, (columns / mass.sum()).T)


# --- private: placements (components in front, nodes last) ---------------------------------------------------------


def _local_placements(model: Model, qt):
    """Rotation (3, 3, n) and translation (3, n) of every node in its parent, from tree coordinates."""
    top, dtype = model.topology, qt.dtype
    types = np.asarray(top.node_types)
    axis = jnp.asarray(model.axis, dtype).T
    scalar = qt[top.q_starts] - jnp.asarray(model.reference, dtype)

    half = jnp.where(types == NodeType.REVOLUTE, scalar / 2, jnp.zeros_like(scalar))
    quaternion = jnp.concatenate([jnp.cos(half)[None], jnp.sin(half) * axis])
    if np.any(types == NodeType.BALL):
        index = np.where(types == NodeType.BALL, top.q_starts + np.arange(4)[:, None], 0)
        quaternion = jnp.where(types == NodeType.BALL, qt[index], quaternion)

    shift = jnp.where(types == NodeType.PRISMATIC, scalar * axis, jnp.zeros_like(axis))
    if np.any(types == NodeType.TRANSLATION):
        index = np.where(types == NodeType.TRANSLATION, top.q_starts + np.arange(3)[:, None], 0)
        shift = jnp.where(types == NodeType.TRANSLATION, qt[index], shift)

    placement = jnp.moveaxis(jnp.asarray(model.placement_rotation, dtype), 0, -1)
    rotation = multiply_columns(placement, rotation_from_quaternion(quaternion, 0))
    return rotation, jnp.asarray(model.placement_position, dtype).T + rotate_columns(placement, shift)


def _compose(top: Topology, rotation, position):
    """World placements by pointer doubling: after round k every node is placed in its 2^k-th ancestor."""
    pose = jnp.concatenate([rotation, position[:, None]], 1)  # (3, 4, n): [R | p]
    world = jnp.eye(3, 4, dtype=pose.dtype)[:, :, None]
    pose = jnp.concatenate([pose, world], -1)
    for ancestor in _ancestor_tables(top):
        above = pose[:, :, ancestor]
        turned = multiply_columns(above, pose)
        pose = jnp.concatenate([turned[:, :3], turned[:, 3:] + above[:, 3:]], 1)
    return pose[:, :3, :-1], pose[:, 3, :-1]


def _ancestor_tables(top: Topology) -> list[np.ndarray]:
    n = top.n_nodes
    ancestor = np.append(np.where(np.asarray(top.parents, int) < 0, n, top.parents), n).astype(int)
    tables = []
    while np.any(ancestor < n):
        tables.append(ancestor)
        ancestor = ancestor[ancestor]
    return tables


def _motion_subspace(model: Model, rotation, lever):
    """S (6, nv_tree): [r x a; a] for turning joints, [a; 0] for sliding ones, a in world axes."""
    top, dtype = model.topology, rotation.dtype
    types = np.asarray(top.node_types)[top.dof_node]
    scalar = (types == NodeType.REVOLUTE) | (types == NodeType.PRISMATIC)
    turning = (types == NodeType.REVOLUTE) | (types == NodeType.BALL)
    unit = jnp.asarray(np.eye(3)[top.dof_axis], dtype)
    local = jnp.where(scalar[:, None], jnp.asarray(model.axis, dtype)[top.dof_node], unit).T
    axis = rotate_columns(rotation[:, :, top.dof_node], local)
    linear = jnp.where(turning, cross(lever[:, top.dof_node], axis, 0), axis)
    return jnp.concatenate([linear, jnp.where(turning, axis, jnp.zeros_like(axis))])


def mimic_coordinates(top: Topology) -> tuple[Int[np.ndarray, " nqt"], Int[np.ndarray, " nqt"]]:
    """For every tree coordinate: user coordinate it reads, and its slot in the mimic tables (last: none)."""
    index = np.zeros(top.nq_tree, int)
    slot = np.full(top.nq_tree, len(top.mimics))
    index[top.user_coordinates] = np.arange(top.nq)
    coordinate = {int(v): int(q) for v, q in zip(top.v_starts, top.q_starts, strict=True)}
    for k, mimic in enumerate(top.mimics):
        index[coordinate[mimic.dof]] = top.scalar_q_of_dof[mimic.source]
        slot[coordinate[mimic.dof]] = k
    return index, slot


# --- private: frames ----------------------------------------------------------------------------------------------


def _place(model: Model, kin: Kinematics, name: str):
    top, dtype = model.topology, kin.position.dtype
    k = top.frame_index(name)
    node = top.frames[k].node
    rotation, position = jnp.asarray(model.frame_rotation[k], dtype), jnp.asarray(model.frame_position[k], dtype)
    if node < 0:
        return rotation, position, node
    return multiply(kin.rotation[node], rotation), kin.position[node] + rotate(kin.rotation[node], position), node


def _frame_columns(model: Model, kin: Kinematics, name: str):
    """Placement of a frame, the columns S of the DoFs that move it, their origin and the mask."""
    rotation, position, node = _place(model, kin, name)
    mask = jnp.asarray(model.topology.dof_mask[node], kin.S.dtype)
    origin = kin.origin[node] if node >= 0 else jnp.zeros_like(position)
    return rotation, position, kin.S * mask[:, None], origin, mask


def _refer(reference, columns, origin, rotation, position):
    """Rows [linear; angular] at `origin`, world axes, expressed in the reference asked for."""
    point = jnp.zeros_like(origin) if reference == "world" else position
    linear = columns[:, :3] + cross(columns[:, 3:], point - origin)
    angular = columns[:, 3:]
    if reference == "local":
        linear, angular = linear @ rotation, angular @ rotation
    return jnp.concatenate([linear, angular], -1)


def _check_reference(reference: str) -> None:
    if reference not in REFERENCES:
        raise OptionError(f"reference is '{reference}', expected one of {', '.join(REFERENCES)}")
