"""The simulated motion about one time stamp, and what of it belongs to a body: frames, poses, contact forces."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.kinematics import frame_jacobian, frame_placement
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.state import ContactInfo
from trajopt.errors import UnknownNameError
from trajopt.names import closest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moment:
    """The simulated motion about one time stamp: the states before and after a step and where between them it is.

    Attributes:
        q0, v0: configuration and velocity before the step.
        q1, v1: after it.
        share: of the step that has passed, 0 to 1.
        dt (s): of the step.
        contacts: of the step; None where no sensor asks for forces.
    """

    q0: Float[Array, " nq"]
    v0: Float[Array, " nv"]
    q1: Float[Array, " nq"]
    v1: Float[Array, " nv"]
    share: Float[Array, ""]
    dt: Float[Array, ""]
    contacts: ContactInfo | None = None

    def q(self, model: Model) -> Float[Array, " nq"]:
        """The configuration at the time stamp."""
        return integrate(model, self.q0, self.share * self.dt * self.v1)

    @property
    def v(self) -> Float[Array, " nv"]:
        """The velocity at the time stamp."""
        return (1.0 - self.share) * self.v0 + self.share * self.v1


def frame_of(sensor: Any, model: Model) -> str:
    """The frame that `sensor.body` names; None is the first body, a free one if there is any. Raises `UnknownNameError`."""
    names = [frame.name for frame in model.topology.frames]
    if sensor.body is not None:
        if sensor.body not in names:
            raise UnknownNameError(
                f"sensor '{sensor.channel}': model '{model.name}' has no body '{sensor.body}'{closest(sensor.body, names)}"
            )
        return sensor.body
    joints = model.topology.joints
    chosen = next((joint for joint in joints if joint.kind == "free"), joints[0])
    return next(frame.name for frame in model.topology.frames if frame.node == chosen.nodes[-1])


def free_start(model: Model, frame: str) -> int | None:
    """Where the pose of a frame begins in q, if it is that of the body of a free joint; else None."""
    top = model.topology
    node = top.frames[top.frame_index(frame)].node
    joint = next((joint for joint in top.joints if joint.kind == "free" and joint.nodes[-1] == node), None)
    return joint.q_start if joint is not None and top.node_names[node] == frame else None


def frame_motion(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], frame: str, point: Float[Array, "3"]
) -> tuple[Float[Array, "3 3"], Float[Array, "3"], Float[Array, "3"]]:
    """Rotation of a frame, velocity of a point that is fixed in it (m/s) and angular velocity (rad/s), in world axes."""
    start = free_start(model, frame)
    if start is None:
        rotation, _ = frame_placement(model, q, frame)
        twist = frame_jacobian(model, q, frame, "local-world-aligned") @ v
        linear, omega = twist[:3], twist[3:]
    else:  # that of a free body stands in q and v; the whole tree's kinematics would take 20 times as long
        at = next(j.v_start for j in model.topology.joints if j.kind == "free" and j.q_start == start)
        rotation = rotation_from_quaternion(q[start + 3 : start + 7])
        linear, omega = v[at : at + 3], rotation @ v[at + 3 : at + 6]
    return rotation, linear + jnp.cross(omega, rotation @ point), omega


def contact_forces(model: Model, moment: Moment, frame: str) -> tuple[Float[Array, "nc 3"], Float[Array, "nc 3"]]:
    """Forces (N, world axes) of the step's contacts on the body of a frame, and the points at which they act."""
    contacts = moment.contacts
    assert contacts is not None
    node = model.topology.frames[model.topology.frame_index(frame)].node
    sign = (contacts.node1 == node).astype(moment.v0.dtype) - (contacts.node2 == node).astype(moment.v0.dtype)
    forces = jnp.einsum("cij,cj->ci", contacts.frame, contacts.impulse) / moment.dt
    return sign[:, None] * forces, contacts.point
