"""The model: one or several kinematic trees, their shapes and the fixed world around them.

A `Model` is a pytree: its `topology` is static and hashable (two models loaded from the same file share compiled functions).

The forest is stored as *nodes*, parents first: one elementary joint (`NodeType`) and one rigid body each, the frame at the
joint's anchor. A BALL has a unit quaternion (w x y z) and its velocity in the body frame, a TRANSLATION three slides along
the axes of the parent. A free joint is a (massless) TRANSLATION and a BALL, a planar joint two PRISMATIC nodes and a REVOLUTE
one, an MJCF body with several joints a chain, all but the last massless. Fixed joints are fused; what they carried survives
as a *frame*.

DoFs, in the order of the nodes, are the *tree* DoFs (`nv_tree`). Without mimic joints they are the DoFs of the user
(`nv`). A mimic joint follows another: v_tree = T v, q_tree = T q + offset, with constant T (`mimic_matrix`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from trajopt.errors import ShapeError, UnknownNameError
from trajopt.names import closest

WORLD = -1


class NodeType(enum.IntEnum):
    """Elementary joint of a kinematic node."""

    REVOLUTE = 0
    PRISMATIC = 1
    BALL = 2
    TRANSLATION = 3


NODE_NV = {NodeType.REVOLUTE: 1, NodeType.PRISMATIC: 1, NodeType.BALL: 3, NodeType.TRANSLATION: 3}
NODE_NQ = {NodeType.REVOLUTE: 1, NodeType.PRISMATIC: 1, NodeType.BALL: 4, NodeType.TRANSLATION: 3}


class ShapeType(enum.IntEnum):
    """Collision shapes; `size` as in MJCF (half extents and radii, metres)."""

    PLANE = 0  # z axis of the shape's frame is the normal; size unused
    SPHERE = 1  # size[0] radius
    CAPSULE = 2  # size[0] radius, size[1] half length along z
    BOX = 3  # size half extents
    CYLINDER = 4  # size[0] radius, size[1] half length along z
    ELLIPSOID = 5  # size semi-axes
    MESH = 6  # convex hull: vertices in Model.meshes
    HEIGHTFIELD = 7  # smooth ground z = h(x, y), see Surface; size: half extents along x and y, unused for a function
    POINTS = 8  # zero-radius contact points in Model.meshes


@dataclasses.dataclass(frozen=True)
class JointSpec:
    """A joint as the user sees it. kind: revolute, prismatic, ball, free or planar. q and v start at q_start, v_start."""

    name: str
    kind: str
    nodes: tuple[int, ...]
    q_start: int
    nq: int
    v_start: int
    nv: int


@dataclasses.dataclass(frozen=True)
class FrameSpec:
    """A named frame (a body, or a link or site fused into it) fixed to node `node`; its offset is a leaf of the model."""

    name: str
    node: int


@dataclasses.dataclass(frozen=True)
class Surface:
    """The ground z = h(x, y) of a height field; its numbers are Model.terrain[start : start + count].

    Heights (m) of a grid of `rows` along y and `columns` along x, x fastest, over the shape's half extents; or, where
    `function` is given, the parameters of z = function(x, y, parameters), written with jax.numpy.
    """

    start: int
    count: int
    rows: int = 0
    columns: int = 0
    function: Callable[..., Array] | None = None


@dataclasses.dataclass(frozen=True)
class ShapeSpec:
    """A collision shape fixed to node `node` (WORLD for static scenery); `mesh` indexes Model.meshes, or -1.

    triangles: of a convex mesh, indices of its vertices, wound outwards; surface: of a height field.
    """

    name: str
    kind: ShapeType
    node: int
    mesh: int = -1
    triangles: tuple[tuple[int, int, int], ...] = ()
    surface: Surface | None = None


@dataclasses.dataclass(frozen=True)
class MimicSpec:
    """Tree DoF `dof` follows user DoF `source` (multiplier and offset are leaves of the model)."""

    name: str
    dof: int
    source: int


@dataclasses.dataclass(frozen=True)
class ClosureSpec:
    """A frame on `node1` tied to one on `node2` (WORLD for the fixed world). kind: connect (origins), weld, hinge or slide (about
    or along the third axis); the frames are leaves of the model."""

    name: str
    kind: str
    node1: int
    node2: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """Everything about a model that is not a number: static, hashable, compared by value."""

    name: str
    parents: tuple[int, ...]
    node_types: tuple[NodeType, ...]
    node_names: tuple[str, ...]
    joints: tuple[JointSpec, ...]
    frames: tuple[FrameSpec, ...]
    shapes: tuple[ShapeSpec, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    actuators: tuple[str, ...] = ()
    mimics: tuple[MimicSpec, ...] = ()
    limited: tuple[int, ...] = ()
    friction_dofs: tuple[int, ...] = ()
    closures: tuple[ClosureSpec, ...] = ()
    couplings: tuple[str, ...] = ()

    @property
    def constrained(self) -> bool:
        """Whether the model has equality constraints: closed loops or coupled coordinates."""
        return bool(self.closures or self.couplings)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))

    @property
    def n_nodes(self) -> int:
        return len(self.parents)

    @functools.cached_property
    def nv_tree(self) -> int:
        return sum(NODE_NV[t] for t in self.node_types)

    @functools.cached_property
    def nq_tree(self) -> int:
        return sum(NODE_NQ[t] for t in self.node_types)

    @property
    def nv(self) -> int:
        return self.nv_tree - len(self.mimics)

    @property
    def nq(self) -> int:
        return self.nq_tree - len(self.mimics)

    @property
    def nu(self) -> int:
        return len(self.actuators)

    # Index tables: NumPy constants, computed once per topology.

    @functools.cached_property
    def v_starts(self) -> Int[np.ndarray, " n"]:
        """First tree DoF of every node."""
        return np.concatenate([[0], np.cumsum([NODE_NV[t] for t in self.node_types])]).astype(int)[:-1]

    @functools.cached_property
    def q_starts(self) -> Int[np.ndarray, " n"]:
        """First tree coordinate of every node."""
        return np.concatenate([[0], np.cumsum([NODE_NQ[t] for t in self.node_types])]).astype(int)[:-1]

    @functools.cached_property
    def dof_node(self) -> Int[np.ndarray, " nv_tree"]:
        """Node of every tree DoF."""
        return np.repeat(np.arange(self.n_nodes), [NODE_NV[t] for t in self.node_types])

    @functools.cached_property
    def dof_axis(self) -> Int[np.ndarray, " nv_tree"]:
        """Index 0..2 of a tree DoF inside its BALL or TRANSLATION node, 0 for scalar joints."""
        return np.concatenate([np.arange(NODE_NV[t]) for t in self.node_types] or [np.zeros(0, int)]).astype(int)

    @functools.cached_property
    def node_mask(self) -> Float[np.ndarray, "n n"]:
        """(n_nodes, n_nodes): 1 where column j is i itself or an ancestor of i."""
        mask = np.eye(self.n_nodes)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                mask[i] += mask[parent]
        return mask

    @functools.cached_property
    def dof_mask(self) -> Float[np.ndarray, "rows nv_tree"]:
        """(n_nodes + 1, nv_tree): 1 where tree DoF j moves node i; the last row is the world's (zeros)."""
        mask = self.node_mask[:, self.dof_node]
        return np.concatenate([mask, np.zeros((1, self.nv_tree))])

    @functools.cached_property
    def ancestor_mask(self) -> Bool[np.ndarray, "nv_tree nv_tree"]:
        """(nv_tree, nv_tree) bool: DoF j is an ancestor of DoF i or belongs to the same joint."""
        return self.dof_mask[self.dof_node] > 0

    @functools.cached_property
    def roots(self) -> Int[np.ndarray, " n"]:
        """Root node of the tree that every node belongs to."""
        return np.array([int(np.flatnonzero(row)[0]) for row in self.node_mask], int)

    @functools.cached_property
    def depth(self) -> int:
        return int(self.node_mask.sum(1).max()) if self.n_nodes else 0

    @functools.cached_property
    def mimic_dofs(self) -> Int[np.ndarray, " k"]:
        return np.array([m.dof for m in self.mimics], int)

    @functools.cached_property
    def user_dofs(self) -> Int[np.ndarray, " nv"]:
        """Tree DoFs that are the user's, in order."""
        return np.array([j for j in range(self.nv_tree) if j not in set(self.mimic_dofs.tolist())], int)

    @functools.cached_property
    def user_coordinates(self) -> Int[np.ndarray, " nq"]:
        """Tree coordinates that are the user's, in order."""
        dof_to_q = {int(self.v_starts[i]): int(self.q_starts[i]) for i in range(self.n_nodes)}
        hidden = {dof_to_q[int(d)] for d in self.mimic_dofs}
        return np.array([j for j in range(self.nq_tree) if j not in hidden], int)

    @functools.cached_property
    def scalar_q_of_dof(self) -> Int[np.ndarray, " nv"]:
        """User coordinate of every user DoF (for DoFs of ball joints: -1)."""
        tree_q = np.full(self.nv_tree, -1)
        for i, t in enumerate(self.node_types):
            if t != NodeType.BALL:
                for k in range(NODE_NV[t]):
                    tree_q[self.v_starts[i] + k] = self.q_starts[i] + k
        to_user = np.full(self.nq_tree + 1, -1)
        to_user[self.user_coordinates] = np.arange(self.nq)
        return to_user[tree_q[self.user_dofs]]

    @functools.cached_property
    def ball_starts(self) -> tuple[tuple[int, int], ...]:
        """(first user coordinate, first user DoF) of every BALL node."""
        to_user_q = np.full(self.nq_tree, -1)
        to_user_q[self.user_coordinates] = np.arange(self.nq)
        to_user_v = np.full(self.nv_tree, -1)
        to_user_v[self.user_dofs] = np.arange(self.nv)
        return tuple(
            (int(to_user_q[self.q_starts[i]]), int(to_user_v[self.v_starts[i]]))
            for i, t in enumerate(self.node_types)
            if t == NodeType.BALL
        )

    def frame_index(self, name: str) -> int:
        names = [f.name for f in self.frames]
        if name not in names:
            raise UnknownNameError(f"model '{self.name}' has no frame '{name}'{closest(name, names)}")
        return names.index(name)

    def joint(self, name: str) -> JointSpec:
        for spec in self.joints:
            if spec.name == name:
                return spec
        raise UnknownNameError(f"model '{self.name}' has no joint '{name}'{closest(name, [j.name for j in self.joints])}")


def _empty(*shape: int) -> Any:
    """A leaf that most models have no rows of."""
    return dataclasses.field(default_factory=lambda: np.zeros(shape))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    """A scene: its structure, which compiled functions depend on, and its physical parameters, which can be differentiated.

    A model consists of n nodes, each an elementary joint followed by a rigid body, parents first. nv counts the degrees of
    freedom, ns the shapes, np the contact pairs. For joints that slide m takes the place of rad, and N that of N m.

    Attributes:
        topology: the structure: nodes, joints, frames, shapes, contact pairs, names.
        placement_rotation, placement_position: joint frames in their parent nodes' frames, (n, 3, 3) and (n, 3), m.
        axis, reference: unit axes of scalar joints in the joint frames, (n, 3), and coordinates at the placements, (n,).
        mass, com: masses of the bodies, kg, (n,), and their centres of mass in the nodes' frames, m, (n, 3).
        inertia, armature (kg m^2): about the centres of mass, node axes, (n, 3, 3); of the rotors as their joints feel it, (nv,).
        damping, frictionloss: viscous damping of the joints, N m s/rad, and their dry friction, N m, (nv,).
        stiffness, spring_reference: springs of the joints, N m/rad, and where they are relaxed, rad, (nv,).
        lower, upper (rad): joint limits, (nv,), infinite where there are none.
        actuation: tau = actuation @ u, (nv, nu).
        control_lower, control_upper: limits of the controls, (nu,).
        gravity (m/s^2): acceleration of gravity, (3,), world axes.
        frame_rotation, frame_position, shape_rotation, shape_position: frames and shapes in their nodes' frames, m.
        shape_size, meshes (m): half extents and radii as in MJCF, (ns, 3), and vertices of each convex mesh, (k, 3).
        pair_friction, pair_restitution, pair_impact_friction: coefficients, the last a factor of friction in bounces, (np,).
        mimic_multiplier, mimic_offset: of the mimic joints.
        q_default, keyframes: configuration at rest, (nq,), and named ones.
        terrain: heights or parameters of all height fields, one after the other.
        closure_rotation, closure_position: the frames of closed loops in their nodes' frames, (nk, 2, 3, 3) and (nk, 2, 3), m.
        coupling_arms, coupling_reference, coupling_polynomial: coupled coordinates $y - y_0 = p(x - x_0)$: (y, x) = arms @
            coordinates of hinges and slides, (nc, 2, nv); y_0 and x_0, (nc, 2); coefficients of p in rising powers, (nc, 5).
        actuator_gain, actuator_bias: law of servos and of motors with a force range (`rigid_body.actuation`), (nu, 3) where the
            model has any; `actuation` then holds their lever arms.
        actuator_range, joint_force_range (N m): of the force of each of these actuators, (nu, 2), and of all at a joint, (nv, 2).
    """

    topology: Topology = dataclasses.field(metadata={"static": True})
    placement_rotation: Float[Array, "n 3 3"]
    placement_position: Float[Array, "n 3"]
    axis: Float[Array, "n 3"]
    reference: Float[Array, " n"]
    mass: Float[Array, " n"]
    com: Float[Array, "n 3"]
    inertia: Float[Array, "n 3 3"]
    armature: Float[Array, " nv"]
    damping: Float[Array, " nv"]
    frictionloss: Float[Array, " nv"]
    stiffness: Float[Array, " nv"]
    spring_reference: Float[Array, " nv"]
    lower: Float[Array, " nv"]
    upper: Float[Array, " nv"]
    actuation: Float[Array, "nv nu"]
    control_lower: Float[Array, " nu"]
    control_upper: Float[Array, " nu"]
    gravity: Float[Array, "3"]
    frame_rotation: Float[Array, "nf 3 3"]
    frame_position: Float[Array, "nf 3"]
    shape_rotation: Float[Array, "ns 3 3"]
    shape_position: Float[Array, "ns 3"]
    shape_size: Float[Array, "ns 3"]
    meshes: tuple[Float[Array, "_ 3"], ...]
    pair_friction: Float[Array, " np"]
    pair_restitution: Float[Array, " np"]
    pair_impact_friction: Float[Array, " np"]
    mimic_multiplier: Float[Array, " nm"]
    mimic_offset: Float[Array, " nm"]
    q_default: Float[Array, " nq"]
    keyframes: dict[str, Float[Array, " nq"]]
    terrain: Float[Array, " nt"] = _empty(0)
    closure_rotation: Float[Array, "nk 2 3 3"] = _empty(0, 2, 3, 3)
    closure_position: Float[Array, "nk 2 3"] = _empty(0, 2, 3)
    coupling_arms: Float[Array, "nc 2 _"] = _empty(0, 2, 0)
    coupling_reference: Float[Array, "nc 2"] = _empty(0, 2)
    coupling_polynomial: Float[Array, "nc 5"] = _empty(0, 5)
    actuator_gain: Float[Array, "_ 3"] = _empty(0, 3)
    actuator_bias: Float[Array, "_ 3"] = _empty(0, 3)
    actuator_range: Float[Array, "_ 2"] = _empty(0, 2)
    joint_force_range: Float[Array, "_ 2"] = _empty(0, 2)

    def __repr__(self) -> str:
        return f"<Model '{self.name}': nq {self.nq}, nv {self.nv}, nu {self.nu}, {len(self.topology.shapes)} shapes>"

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def nq(self) -> int:
        return self.topology.nq

    @property
    def nv(self) -> int:
        return self.topology.nv

    @property
    def nu(self) -> int:
        return self.topology.nu

    @property
    def total_mass(self) -> float | Float[Array, ""]:
        """Sum of all masses, kg."""
        return self.mass.sum()

    def to_device(self, dtype: DTypeLike | None = None) -> Model:
        """The same model with JAX arrays of `dtype` (default: JAX's current float) as leaves."""
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.zeros(()).dtype if dtype is None else dtype), self)

    def replace(self, **leaves: Any) -> Model:
        """A copy with some leaves replaced, by name. Leaves keep their shapes; axes in front of them are those of a batch."""
        known = {f.name for f in dataclasses.fields(self)}
        for name, value in leaves.items():
            if name not in known:
                raise UnknownNameError(f"a Model has no field '{name}'{closest(name, known)}")
            given, expected = (getattr(leaf, "shape", None) for leaf in (value, getattr(self, name)))
            if "topology" not in leaves and given is not None and expected and given[-len(expected) :] != expected:
                raise ShapeError(f"{name} has shape {given}, expected {expected}: one entry for each that the model has")
        return dataclasses.replace(self, **leaves)

    def mimic_matrix(self) -> Float[Array, "nv_tree nv"] | None:
        """T with v_tree = T v; None when there are no mimic joints."""
        if not (top := self.topology).mimics:
            return None
        base, sources = np.eye(top.nv_tree)[:, top.user_dofs], np.array([m.source for m in top.mimics])
        multiplier = jnp.asarray(self.mimic_multiplier)
        return jnp.asarray(base, multiplier.dtype).at[top.mimic_dofs, sources].set(multiplier)
