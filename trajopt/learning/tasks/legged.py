"""What tasks of robots with a free base and torque motors share: targets of the joints as actions, what is felt, forces on the
base."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
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
