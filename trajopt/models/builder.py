"""From descriptions of bodies to a `Model`: what every reader has in common.

- Bodies without joints are fused into their parent: inertia, shapes and children move over, the name stays as a frame.
  What is fixed to the world becomes scenery (node WORLD) and its mass, which moves nothing, is left out.
- A joint becomes one or several nodes (see `trajopt.dynamics.model`). The node's frame has the body's axes and sits at
  the joint's anchor. A free joint whose parent is the world is placed at the identity and keeps the body's pose in
  `q_default`.
- Nodes are depth first, siblings in file order, which is the order of MuJoCo's qpos and qvel.
- A mimic joint's armature, damping, spring, friction and limits are folded into the joint it follows.
"""

import collections
import dataclasses
from collections.abc import Collection
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from trajopt.dynamics.model import (
    NODE_NV,
    WORLD,
    ClosureSpec,
    FrameSpec,
    JointSpec,
    MimicSpec,
    Model,
    ShapeSpec,
    ShapeType,
    Surface,
    Topology,
)
from trajopt.dynamics.validation import validate_model
from trajopt.errors import ModelError
from trajopt.models.closures import closed
from trajopt.models.coordinates import assemble_coordinates
from trajopt.models.descriptions import (
    ActuatorDescription,
    BodyDescription,
    ClosureDescription,
    CouplingDescription,
    FrameDescription,
    JointDescription,
    PairDescription,
    ShapeDescription,
    matrix_to_quaternion,
)
from trajopt.models.inertias import impossible_inertias, joined
from trajopt.models.limits import BODIES, SHAPES, refuse
from trajopt.models.meshes import hull_triangles
from trajopt.models.nodes import FIXED, Node, Pose, elementary_joints
from trajopt.models.pairs import PairFilters, PlacedShape, contact_pairs
from trajopt.models.self_collision import SelfCollision, overlap_warning, overlapping_links
from trajopt.models.xml import located


class ModelWarning(UserWarning):
    """Something in a model file is not supported, missing or doubtful; the model was built without it."""


class ModelBuilder:
    """Collects descriptions of bodies and builds the `Model`: what every reader of a file format uses.

    After `build`, `warnings` holds, in plain sentences, what was dropped or doubtful, and `overlaps` names the links that
    overlap from the start. `excludes` takes pairs of bodies that never collide, `self_excludes` those that collide under
    `self_collision="all"` only.

    Options:
        name: what the model is called.
        source: what messages call the origin.
        filter_parent: whether a body and the one that carries it make no contact pair.
        filter_world_parent: whether the same holds for bodies carried by a part of their tree that is fixed to the world.
        format_leaves_collisions_open: whether links of one robot that overlap from the start do not collide unless
            `self_collision` asks for it.
    """

    def __init__(
        self,
        name: str,
        source: str = "",
        *,
        filter_parent: bool = True,
        filter_world_parent: bool = True,
        format_leaves_collisions_open: bool = False,
    ):
        self.name = name
        self.source = source or f"model '{name}'"
        self.filter_parent = filter_parent
        self.filter_world_parent = filter_world_parent
        self.format_leaves_collisions_open = format_leaves_collisions_open
        self.bodies: dict[str, BodyDescription] = {}
        self.world_shapes: list[ShapeDescription] = []
        self.world_frames: list[FrameDescription] = []
        self.actuators: list[ActuatorDescription] = []
        self.closures: list[ClosureDescription] = []
        self.couplings: list[CouplingDescription] = []
        self.pairs: list[PairDescription] = []
        self.excludes: set[frozenset[str | None]] = set()
        self.self_excludes: set[frozenset[str | None]] = set()
        self.self_collision = SelfCollision()
        self.overlaps: list[tuple[str, str]] = []
        self.keyframes: dict[str, dict[str, np.ndarray]] = {}
        self.gravity = np.array([0.0, 0.0, -9.81])
        self.warnings: list[str] = []

    def warn(self, message: str, at: Element | None = None) -> None:
        """Add a sentence to `warnings`, with the origin, and the element `at` of the file, in front."""
        message = message if at is None else located(at, message)
        self.warnings.append(message if message.startswith(self.source) else f"{self.source}: {message}")

    def add_body(self, body: BodyDescription) -> BodyDescription:
        """Add a body; its parent may be added later."""
        if body.name in self.bodies:
            raise ModelError(f"{self.source}: two bodies are called '{body.name}'; names must be unique")
        if len(self.bodies) == BODIES:
            refuse(self.source, BODIES + 1, BODIES, "bodies and more", "leave out those that do not matter")
        self.bodies[body.name] = body
        return body

    def set_floating_base(self, floating: bool) -> None:
        """Give the base that is fixed to the world a free joint, or take the free joints of bases away.

        With `floating`, nothing happens if some base floats already; else every body fixed to the world that carries
        moving bodies is freed (if none carries any: every one that has mass).
        """
        children = self._children()
        bases = children[None]
        if not floating:
            for body in bases:
                body.joints = [joint for joint in body.joints if joint.kind != "free"]
            return
        if any(joint.kind == "free" for body in bases for joint in body.joints):
            return
        fixed = [body for body in bases if not body.joints]
        subtrees = [self._preorder(children, body) for body in fixed]
        chosen = [b for b, tree in zip(fixed, subtrees, strict=True) if any(member.joints for member in tree)]
        chosen = chosen or [b for b, tree in zip(fixed, subtrees, strict=True) if any(m.mass > 0 for m in tree)]
        if not chosen:
            raise ModelError(
                f"{self.source}: floating_base=True, but no body is fixed to the world; the bases are "
                + ", ".join(f"'{b.name}' ({'+'.join(j.kind for j in b.joints)})" for b in bases)
                + "; load it without floating_base"
            )
        for body in chosen:
            name = "root_joint" if len(chosen) == 1 else f"{body.name}_root_joint"
            body.joints = [JointDescription(self._unused(name, {j.name for j in self._joints()}), "free")]

    def build(self) -> Model:
        """The model. Raises `ModelError` for broken trees, dangling names, massless moving bodies, bad numbers."""
        self._check_names()
        self._named_pairs, warnings = self.self_collision.left_out(self.bodies, self.source)
        for warning in warnings:
            self.warn(warning)
        placed = self._place_bodies()
        leaves, topology = self._assemble_joints()
        shapes, shape_leaves = self._assemble_shapes(placed)
        pairs, friction, restitution = self._contact_pairs(shapes)
        frames = self._assemble_frames(placed)
        mass, com, inertia = self._assemble_inertias()
        closures, closure_leaves = self._assemble_closures(placed)
        topology = dataclasses.replace(
            topology,
            closures=closures,
            frames=tuple(FrameSpec(name, pose.node) for name, pose in frames),
            shapes=shape_leaves.pop("specs"),
            pairs=pairs,
        )
        nodes = self._nodes
        arrays: dict[str, Any] = dict(
            placement_rotation=_stack([n.rotation for n in nodes], (3, 3)),
            placement_position=_stack([n.position for n in nodes], (3,)),
            axis=_stack([n.axis for n in nodes], (3,)),
            reference=np.array([n.reference for n in nodes], float),
            mass=mass,
            com=com,
            inertia=inertia,
            gravity=np.asarray(self.gravity, float),
            frame_rotation=_stack([pose.rotation for _, pose in frames], (3, 3)),
            frame_position=_stack([pose.position for _, pose in frames], (3,)),
            pair_friction=friction,
            pair_restitution=restitution,
            pair_impact_friction=np.ones_like(friction),
            **closure_leaves,
            **shape_leaves,
            **leaves,
        )
        model = Model(topology=topology, **arrays)
        validate_model(model, self.source)
        model = closed(model, self.source, self.warn)
        doubt = impossible_inertias(model)
        if doubt is not None:
            self.warn(doubt)
        return self._without_overlaps(model, shapes)

    def _contact_pairs(self, shapes: list[PlacedShape]) -> tuple[tuple[tuple[int, int], ...], np.ndarray, np.ndarray]:
        choice = self.self_collision.choice
        filters = PairFilters(
            self.excludes | self._named_pairs | (set() if choice == "all" else self.self_excludes),
            self.filter_parent,
            self.filter_world_parent,
            within_robots=choice != "none",
        )
        return contact_pairs(shapes, self.pairs, filters, self.source)

    def _without_overlaps(self, model: Model, shapes: list[PlacedShape]) -> Model:
        """The model without pairs of links that overlap from the start, where the format does not say what collides."""
        if not self.format_leaves_collisions_open or self.self_collision.choice != "auto":
            return model
        self.overlaps = overlapping_links(model, shapes)
        if not self.overlaps:
            return model
        self.warn(overlap_warning(self.overlaps))
        self.excludes |= {frozenset(pair) for pair in self.overlaps}
        pairs, friction, restitution = self._contact_pairs(shapes)
        topology = dataclasses.replace(model.topology, pairs=pairs)
        leaves = {"pair_friction": friction, "pair_restitution": restitution, "pair_impact_friction": np.ones_like(friction)}
        return dataclasses.replace(model, topology=topology, **leaves)

    def _joints(self) -> list[JointDescription]:
        return [joint for body in self.bodies.values() for joint in body.joints]

    @staticmethod
    def _unused(name: str, taken: Collection[str]) -> str:
        candidate, k = name, 2
        while candidate in taken:
            candidate, k = f"{name}_{k}", k + 1
        return candidate

    def _check_names(self) -> None:
        for name, count in collections.Counter(joint.name for joint in self._joints()).items():
            if count > 1:
                raise ModelError(f"{self.source}: two joints are called '{name}'; names must be unique")
        for body in self.bodies.values():
            if body.parent is not None and body.parent not in self.bodies:
                raise ModelError(f"{self.source}: body '{body.name}' has the unknown parent '{body.parent}'")

    def _children(self) -> dict[str | None, list[BodyDescription]]:
        children: dict[str | None, list[BodyDescription]] = {None: []} | {name: [] for name in self.bodies}
        for body in self.bodies.values():
            children[body.parent].append(body)
        return children

    @staticmethod
    def _preorder(children, *roots: BodyDescription) -> list[BodyDescription]:
        order, stack = [], list(reversed(roots))
        while stack:
            body = stack.pop()
            order.append(body)
            stack.extend(reversed(children[body.name]))
        return order

    def _place_bodies(self) -> list[tuple[BodyDescription, Pose, int, str]]:
        """Make the nodes; for every body, depth first: pose, moving group (0: the world), root of its tree."""
        self._nodes: list[Node] = []
        self._joint_nodes: dict[str, tuple[int, ...]] = {}
        self._joint_order: list[JointDescription] = []
        self._group_parent = [0]
        children = self._children()
        order = self._preorder(children, *children[None])
        if len(order) < len(self.bodies):
            reached = {body.name for body in order}
            loop = [name for name in self.bodies if name not in reached]
            raise ModelError(f"{self.source}: bodies form a loop and are not connected to the world: {', '.join(loop)}")
        poses: dict[str | None, Pose] = {None: FIXED}
        groups: dict[str | None, int] = {None: 0}
        trees: dict[str, str] = {}
        placed = []
        for body in order:
            pose = poses[body.parent].at(body.rotation, body.position)
            group = groups[body.parent]
            if body.joints:
                self._group_parent.append(group)
                group = len(self._group_parent) - 1
                for joint in body.joints:
                    pose = self._add_joint(body, joint, pose)
                self._nodes[pose.node].name = body.name
            poses[body.name], groups[body.name] = pose, group
            trees[body.name] = body.name if body.parent is None else trees[body.parent]
            if pose.node != WORLD and (body.mass or np.any(body.inertia)):
                r = pose.rotation
                self._nodes[pose.node].inertials.append((body.mass, pose.position + r @ body.com, r @ body.inertia @ r.T))
            placed.append((body, pose, group, trees[body.name]))
        return placed

    def _add_joint(self, body: BodyDescription, joint: JointDescription, pose: Pose) -> Pose:
        """Append the nodes of a joint; returns the body's pose after it."""
        first = len(self._nodes)
        start = pose.at(np.eye(3), joint.anchor)
        if joint.kind == "free" and pose.node == WORLD:
            if joint.initial is None:
                joint.initial = np.concatenate([pose.position, matrix_to_quaternion(pose.rotation)])
            start = FIXED
        for kind, direction in elementary_joints(joint, self.source):
            name = f"{body.name}:{joint.name}:{len(self._nodes) - first}"
            reference = joint.reference if joint.kind in ("revolute", "prismatic") else 0.0
            self._nodes.append(Node(name, kind, start.node, start.rotation, start.position, direction, reference))
            start = Pose(len(self._nodes) - 1, np.eye(3), np.zeros(3))
        self._joint_nodes[joint.name] = tuple(range(first, len(self._nodes)))
        self._joint_order.append(joint)
        return Pose(start.node, np.eye(3), -np.asarray(joint.anchor, float) if joint.kind != "free" else np.zeros(3))

    def _assemble_joints(self) -> tuple[dict, Topology]:
        nodes = self._nodes
        first_dof = np.cumsum([0, *(NODE_NV[node.type] for node in nodes)])
        dofs = {name: int(first_dof[chain[0]]) for name, chain in self._joint_nodes.items()}
        coordinates = assemble_coordinates(
            self._joint_order, dofs, self.actuators, self.couplings, self.keyframes, self.source, self.warn
        )
        joints = tuple(
            JointSpec(j.name, j.kind, self._joint_nodes[j.name], q0, j.nq, v0, j.nv)
            for j, q0, v0 in coordinates.user_joints
        )
        topology = Topology(
            name=self.name,
            parents=tuple(n.parent for n in nodes),
            node_types=tuple(n.type for n in nodes),
            node_names=tuple(n.name for n in nodes),
            joints=joints,
            frames=(),
            actuators=coordinates.actuators,
            mimics=tuple(MimicSpec(*m) for m in coordinates.mimics),
            limited=coordinates.limited,
            friction_dofs=coordinates.friction_dofs,
            couplings=tuple(coupling.name for coupling in self.couplings),
        )
        return coordinates.leaves, topology

    def _assemble_closures(self, placed) -> tuple[tuple[ClosureSpec, ...], dict]:
        poses = {None: FIXED} | {body.name: pose for body, pose, _, _ in placed}
        ends = [
            [poses[name].at(*frame) for name, frame in ((c.body1, c.frame1), (c.body2, c.frame2))] for c in self.closures
        ]
        specs = tuple(
            ClosureSpec(c.name, c.kind, one.node, two.node) for c, (one, two) in zip(self.closures, ends, strict=True)
        )
        return specs, {
            "closure_rotation": _stack([np.stack([end.rotation for end in pair]) for pair in ends], (2, 3, 3)),
            "closure_position": _stack([np.stack([end.position for end in pair]) for pair in ends], (2, 3)),
        }

    def _assemble_inertias(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [joined(node.inertials) for node in self._nodes]
        mass = np.array([m for m, _, _ in parts], float)
        return mass, _stack([c for _, c, _ in parts], (3,)), _stack([inertia for _, _, inertia in parts], (3, 3))

    def _assemble_shapes(self, placed) -> tuple[list[PlacedShape], dict]:
        entries = [(shape, None, FIXED, 0, None, None) for shape in self.world_shapes]
        entries += [
            (shape, body.name, pose, group, tree, body.robot or tree)
            for body, pose, group, tree in placed
            for shape in body.shapes
        ]
        if len(entries) > SHAPES:
            refuse(self.source, len(entries), SHAPES, "shapes", "leave out those that do not matter")
        taken: set[str] = set()
        shapes: list[PlacedShape] = []
        specs: list[ShapeSpec] = []
        meshes: list[np.ndarray] = []
        poses: list[Pose] = []
        terrain: list[np.ndarray] = []
        for shape, body_name, pose, group, tree, robot in entries:
            mesh, surface = -1, None
            if shape.kind is ShapeType.HEIGHTFIELD and shape.vertices is not None:
                columns = int(np.sum(shape.vertices[:, 1] == shape.vertices[0, 1]))
                start = sum(map(len, terrain))
                terrain.append(shape.vertices[:, 2])
                surface = Surface(start, len(terrain[-1]), len(terrain[-1]) // columns, columns)
            elif shape.vertices is not None:
                mesh = len(meshes)
                meshes.append(np.ascontiguousarray(shape.vertices, float))
            shape.name = self._unused(shape.name, taken)
            taken.add(shape.name)
            triangles = hull_triangles(meshes[mesh], shape.name) if shape.kind is ShapeType.MESH else ()
            specs.append(ShapeSpec(shape.name, shape.kind, pose.node, mesh, triangles, surface))
            poses.append(pose.at(shape.rotation, shape.position))
            shapes.append(PlacedShape(shape, body_name, group, self._group_parent[group], tree, robot))
        leaves = {
            "specs": tuple(specs),
            "shape_rotation": _stack([p.rotation for p in poses], (3, 3)),
            "shape_position": _stack([p.position for p in poses], (3,)),
            "shape_size": _stack([np.asarray(shape.size, float) for shape, *_ in entries], (3,)),
            "meshes": tuple(meshes),
            "terrain": np.concatenate([np.zeros(0), *terrain]),
        }
        return shapes, leaves

    def _assemble_frames(self, placed) -> list[tuple[str, Pose]]:
        frames = {body.name: pose for body, pose, _, _ in placed}
        extra = [(frame, FIXED) for frame in self.world_frames]
        extra += [(frame, pose) for body, pose, _, _ in placed for frame in body.frames]
        for frame, pose in extra:
            frames[self._unused(frame.name, frames)] = pose.at(frame.rotation, frame.position)
        return list(frames.items())


def _stack(items: list, shape: tuple[int, ...]) -> np.ndarray:
    return np.stack(items).astype(float) if items else np.zeros((0, *shape))
