"""Pairs of shapes that could touch within a step although the narrow phase has not seen them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.broadphase import Culled
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import Kinematics, relative_motion


def count_missed_pairs(
    model: Model, kin: Kinematics, culled: Culled | None, v: Float[Array, " nv"], dt: Float[Array, ""]
) -> Int[Array, ""]:
    """Pairs that the narrow phase has not seen and that could touch within the step.

    The distance of two shapes changes no faster than |v12(c)| + |w12| r, the relative velocity of the bodies at the centre c of
    a ball of radius r around either shape and their relative angular velocity.
    """
    if culled is None:
        return jnp.zeros((), int)
    kin, v, dt = jax.lax.stop_gradient((kin, v, dt))

    def fastest(centre, reach):
        parts = relative_motion(model, kin, v, culled.node1, culled.node2, centre)
        linear, angular = (jnp.sqrt(jnp.sum(part * part, -1)) for part in parts)
        return linear + angular * reach

    closing = jnp.minimum(fastest(culled.centre1, culled.reach1), fastest(culled.centre2, culled.reach2))
    return jnp.sum(~culled.taken & (culled.bound < dt * closing))
