"""Residuals of frames: position, orientation, placement, velocity, height; in the world, or relative to another frame.

A frame is a body or link of the model by name, or one of its collision shapes. In the world, positions are in m and world axes;
relative to another frame, in its axes and from its origin.

Residuals of the whole body: centre of mass and centroidal momentum.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model, NodeType
from trajopt.dynamics.rigid_body.energy import centroidal_momentum
from trajopt.dynamics.rigid_body.kinematics import (
    Kinematics,
    centre_of_mass_at,
    com_jacobian,
    expand_v,
    node_velocities,
    point_jacobian_at,
)
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion, rotation_log
from trajopt.dynamics.rigid_body.spatial import cross, multiply, rotate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import UnknownNameError
from trajopt.names import closest
from trajopt.problems.residuals.base import STATIC, Residual, StepOutcome

UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
SLACK = 1e-3  # m, and share of a frame's reach, by which limits of slides may give way


@dataclasses.dataclass(frozen=True)
class Motion:
    """Rotation, position and velocity [linear; angular] of a frame, the velocity at its origin, world axes."""

    rotation: Float[Array, "3 3"]
    position: Float[Array, "3"]
    velocity: Float[Array, "6"]


def frame_motion(model: Model, kin: Kinematics, v: Float[Array, " nv"], name: str) -> Motion:
    """Where a frame or shape is, and how it moves."""
    node, rotation, position = _fixed_at(model, name)
    dtype = kin.position.dtype
    rotation, position = jnp.asarray(rotation, dtype), jnp.asarray(position, dtype)
    if node < 0:
        return Motion(rotation, position, jnp.zeros(6, dtype))
    turned = kin.position[node] + rotate(kin.rotation[node], position)
    spatial = node_velocities(kin, model.topology, expand_v(model, v))[node]
    linear = spatial[:3] + cross(spatial[3:], turned - kin.origin[node])
    return Motion(multiply(kin.rotation[node], rotation), turned, jnp.concatenate([linear, spatial[3:]]))


def _found(model: Model, name: str) -> tuple[int, Any, Any, int]:
    """Node (below zero: the world) of a frame or shape; rotations and positions of all of its kind, and its index there."""
    top = model.topology
    frames, shapes = [frame.name for frame in top.frames], [shape.name for shape in top.shapes]
    if name in frames:
        k = frames.index(name)
        return top.frames[k].node, model.frame_rotation, model.frame_position, k
    if name in shapes:
        k = shapes.index(name)
        return top.shapes[k].node, model.shape_rotation, model.shape_position, k
    raise UnknownNameError(f"model '{model.name}' has no frame or shape '{name}'{closest(name, [*frames, *shapes])}")


def _fixed_at(model: Model, name: str) -> tuple[int, Any, Any]:
    """Node of a frame or shape, and its rotation and position there."""
    node, rotations, positions, k = _found(model, name)
    return node, rotations[k], positions[k]


def reach(model: Model, name: str) -> tuple[Float[np.ndarray, "3"], float]:
    """A point of the world, m, and a distance from it that a frame or shape never exceeds; infinite where nothing bounds it.

    The point is where the first joint of its chain stands; to the offsets of the others come the ranges of slides.
    """
    top, (node, _, positions, k) = model.topology, _found(model, name)
    position = np.asarray(positions)[k]
    if node < 0:
        return position, 0.0
    chain = np.flatnonzero(top.node_mask[node])
    places, user = np.asarray(model.placement_position), {int(dof): k for k, dof in enumerate(top.user_dofs)}
    farthest = float(np.linalg.norm(places[chain[1:]], axis=1).sum() + np.linalg.norm(position))
    for i in chain:
        dof = user.get(int(top.v_starts[i]))
        if top.node_types[i] == NodeType.PRISMATIC and dof in top.limited:
            ends = np.array([np.asarray(model.lower)[dof], np.asarray(model.upper)[dof]])
            farthest += float(np.abs(ends - np.asarray(model.reference)[i]).max())
        elif top.node_types[i] in (NodeType.PRISMATIC, NodeType.TRANSLATION):
            return places[chain[0]], np.inf
    return places[chain[0]], farthest


def relative(motion: Motion, other: Motion) -> Motion:
    """A frame's motion as seen from another one that moves, in its axes."""
    turned = other.rotation.T
    offset = motion.position - other.position
    linear = motion.velocity[:3] - other.velocity[:3] - cross(other.velocity[3:], offset)
    angular = motion.velocity[3:] - other.velocity[3:]
    velocity = jnp.concatenate([rotate(turned, linear), rotate(turned, angular)])
    return Motion(multiply(turned, motion.rotation), rotate(turned, offset), velocity)


@dataclasses.dataclass(frozen=True)
class _OfFrame(Residual):
    """A residual of a frame.

    Options:
        frame: name of the frame, or of a collision shape.
        relative_to: name of another frame, in whose axes and from whose origin the error is taken. Default: the world.
    """

    frame: str = dataclasses.field(default="", metadata=STATIC, kw_only=False)
    relative_to: str = dataclasses.field(default="", metadata=STATIC, kw_only=True)
    places: ClassVar[slice | None] = None  # axes of the position that the first entries of the reference give, if they do

    def subject(self) -> tuple[str, ...]:
        return (self.frame, "in", self.relative_to) if self.relative_to else (self.frame,)

    def check(self, system: System) -> None:
        for name in filter(None, (self.frame, self.relative_to)):
            _found(system.model, name)
        if not self.frame:
            _found(system.model, self.frame)

    def out_of_reach(self, system: System, tolerance: float) -> str:
        """Why the frame cannot be where the first entries of the reference ask for it; empty where it may."""
        axes = self.places
        if axes is None or self.relative_to or np.ndim(self.reference) != 1 or np.ndim(self.weight) != 1:
            return ""
        middle, farthest = reach(system.model, self.frame)
        size = len(middle[axes])
        weight = np.broadcast_to(self.weight, max(size, len(self.weight)))[:size]
        allowed = tolerance / np.maximum(weight, np.finfo(float).tiny)
        apart = float(np.linalg.norm(np.maximum(np.abs(np.asarray(self.reference)[:size] - middle[axes]) - allowed, 0.0)))
        if apart <= (1 + SLACK) * farthest + SLACK:
            return ""
        start = ", ".join(f"{value:.3g}" for value in middle)
        return f"'{self.frame}' would have to be {apart:.3g} m away from ({start}), and reaches {farthest:.3g} m"

    def point_slope(self, x: State, step: StepOutcome) -> Float[Array, "3 nv"] | None:
        """d position / d dq in world axes: tangent coordinates are those of velocities, so it is the point's Jacobian."""
        node, _, position = _fixed_at(step.model, self.frame)
        if self.relative_to or node < 0:
            return None
        kin = step.kinematics
        point = kin.position[node] + rotate(kin.rotation[node], jnp.asarray(position, x.q.dtype))
        return point_jacobian_at(step.model, kin, node, point)

    def motion(self, x: State, step: StepOutcome) -> Motion:
        """Of the frame, in the world or relative to the other."""
        motion = frame_motion(step.model, step.kinematics, x.v, self.frame)
        if not self.relative_to:
            return motion
        return relative(motion, frame_motion(step.model, step.kinematics, x.v, self.relative_to))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FramePosition(_OfFrame):
    """Position of a frame minus the reference (3,), m; default reference: the origin."""

    depends_on = "q"
    places = slice(0, 3)
    size = 3

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, "3"]:
        return self.motion(x, step).position - reference

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "3 nv"] | None:
        """The point's Jacobian."""
        return self.point_slope(x, step)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Height(_OfFrame):
    """Height of a frame's origin minus the reference (1,), m."""

    depends_on = "q"
    places = slice(2, 3)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "1"]
    ) -> Float[Array, "1"]:
        return self.motion(x, step).position[2:] - reference

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "1 nv"] | None:
        """Of the point's Jacobian the last row."""
        whole = self.point_slope(x, step)
        return None if whole is None else whole[2:]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FrameOrientation(_OfFrame):
    """Rotation vector $log(R_ref^T R)$, rad, in the frame's own axes; reference: quaternion (w, x, y, z), default upright."""

    depends_on = "q"

    def default_reference(self, system: System) -> Float[np.ndarray, "4"]:
        return UPRIGHT

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "4"]
    ) -> Float[Array, "3"]:
        wanted = rotation_from_quaternion(reference)
        return rotation_log(multiply(wanted.T, self.motion(x, step).rotation))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FramePlacement(_OfFrame):
    """The rows of `FramePosition`, then those of `FrameOrientation`; reference (7,): position, then quaternion."""

    depends_on = "q"
    places = slice(0, 3)

    def default_reference(self, system: System) -> Float[np.ndarray, "7"]:
        return np.concatenate([np.zeros(3), UPRIGHT])

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "7"]
    ) -> Float[Array, "6"]:
        motion = self.motion(x, step)
        turned = rotation_log(multiply(rotation_from_quaternion(reference[3:]).T, motion.rotation))
        return jnp.concatenate([motion.position - reference[:3], turned])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FrameVelocity(_OfFrame):
    """Velocity [linear; angular] at the frame's origin minus the reference (6,), m/s and rad/s: in world axes, or as seen from
    the other frame, in its axes."""

    depends_on = "qv"
    size = 6

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "6"]
    ) -> Float[Array, "6"]:
        return self.motion(x, step).velocity - reference


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CentreOfMass(Residual):
    """Centre of mass in the world minus the reference (3,), m; default reference: the origin."""

    depends_on = "q"
    size = 3

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, "3"]:
        return centre_of_mass_at(step.model, step.kinematics) - reference

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "3 nv"]:
        """The Jacobian of the centre of mass."""
        return com_jacobian(step.model, x.q)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CentroidalMomentum(Residual):
    """Momentum [linear; angular] about the centre of mass minus the reference (6,), N s and N m s, world axes."""

    depends_on = "qv"
    size = 6

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "6"]
    ) -> Float[Array, "6"]:
        return centroidal_momentum(step.model, x.q, x.v) - reference
