"""Kinematic nodes while a model is built: see `trajopt.dynamics.model` for what they are."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import WORLD, NodeType
from trajopt.errors import ModelError
from trajopt.models.descriptions import JointDescription, perpendicular_axes
from trajopt.models.inertias import Inertial


@dataclasses.dataclass
class Node:
    """An elementary joint, placed in its parent node's frame, and the rigid parts that move with it."""

    name: str
    type: NodeType
    parent: int
    rotation: np.ndarray
    position: np.ndarray
    axis: np.ndarray
    reference: float = 0.0
    inertials: list[Inertial] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Pose:
    """A frame fixed to node `node`."""

    node: int
    rotation: np.ndarray
    position: np.ndarray

    def at(self, rotation: Float[np.ndarray, "3 3"], position: Float[np.ndarray, "3"]) -> Pose:
        """The frame placed in this one."""
        return Pose(self.node, self.rotation @ rotation, self.position + self.rotation @ position)


FIXED = Pose(WORLD, np.eye(3), np.zeros(3))  # the frame of the world


def elementary_joints(joint: JointDescription, source: str) -> list[tuple[NodeType, Float[np.ndarray, "3"]]]:
    """Type and axis of the nodes that a joint becomes, in order. `ModelError` for an unknown kind."""
    axis = np.asarray(joint.axis, float)
    if joint.kind == "revolute":
        return [(NodeType.REVOLUTE, axis)]
    if joint.kind == "prismatic":
        return [(NodeType.PRISMATIC, axis)]
    if joint.kind == "ball":
        return [(NodeType.BALL, np.zeros(3))]
    if joint.kind == "planar":
        t1, t2 = perpendicular_axes(axis)
        return [(NodeType.PRISMATIC, t1), (NodeType.PRISMATIC, t2), (NodeType.REVOLUTE, axis)]
    if joint.kind == "free":
        return [(NodeType.TRANSLATION, np.zeros(3)), (NodeType.BALL, np.zeros(3))]
    raise ModelError(f"{source}: joint '{joint.name}' has the unknown kind '{joint.kind}'")
