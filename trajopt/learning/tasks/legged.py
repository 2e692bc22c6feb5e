"""What tasks of robots with a free base and torque motors share: targets of the joints as actions, beginnings with the feet on
the ground, what is felt, forces on the base."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.state import State
from trajopt.learning.environment import Moment

BASE_Q, BASE_V = 7, 6  # entries of a free base
Body = tuple[Float[Array, "3"], Float[Array, "3"], Float[Array, "3"]]


def joint_targets(
    model: Model,
    q: Float[np.ndarray, " nq"],
    scale: float,
    stiffness: Float[np.ndarray, " nu"] | float,
    damping: Float[np.ndarray, " nu"] | float,
) -> Callable[[Moment], Float[Array, " nu"]]:
    """moment -> u = clip((kp (q_0 + scale action - q) - kd v) / arm), for motors that drive one joint each.

    stiffness, damping: N m/rad and N m s/rad. In the units of the motors' controls, cut at their limits.
    """
    arms = np.asarray(model.actuation)
    driven = np.abs(arms).argmax(0)
    arm = arms[driven, np.arange(model.nu)]
    centre = np.asarray(q)[driven - BASE_V + BASE_Q]

    def control(moment: Moment) -> Float[Array, " nu"]:
        now, rate = moment.x.q[driven - BASE_V + BASE_Q], moment.x.v[driven]
        torque = stiffness * (centre + scale * moment.action - now) - damping * rate
        return jnp.clip(torque / arm, jnp.asarray(moment.model.control_lower), jnp.asarray(moment.model.control_upper))

    return control


def put_down(model: Model, draw: Callable[[UInt32[Array, "2"]], State]) -> Callable[[UInt32[Array, "2"]], State]:
    """key -> the state that `draw` gives, with the base raised or lowered until the lowest foot touches level ground.

    Where a foot begins inside the ground, laws of contact differ in what follows: some throw the robot up, some leave it there.
    """

    def initial(key: UInt32[Array, "2"]) -> State:
        x = draw(key)
        gap = collide(model, kinematics(model, x.q)).distance.min()
        return dataclasses.replace(x, q=x.q.at[2].add(-gap))

    return initial


def felt(moment: Moment) -> Body:
    """Velocity, rate and gravity's direction (unit) as felt on the base, in its axes."""
    turned = rotation_from_quaternion(moment.x.q[3:7]).T
    return turned @ moment.x.v[:3], moment.x.v[3:6], -turned[:, 2]


def force_on_base(model: Model, moment: Moment, force: Float[Array, "3"]) -> Float[Array, " nv"]:
    """The generalised force of a force, N, world axes, at the centre of mass of the body that the free joint carries."""
    own = rotation_from_quaternion(moment.x.q[3:7]).T @ force
    node = model.topology.joints[0].nodes[-1]
    torque = jnp.cross(jnp.asarray(model.com)[node], own)
    return jnp.concatenate([force, torque, jnp.zeros(model.nv - BASE_V, force.dtype)])
