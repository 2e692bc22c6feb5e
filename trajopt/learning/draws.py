"""What episodes begin with: states about a configuration, numbers within bounds, pushes."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import State

Bounds = float | Sequence[float] | Float[np.ndarray, " n"]


def around(
    model: Model, q: Float[np.ndarray, " nq"] | Float[Array, " nq"], position: Bounds = 0.0, velocity: Bounds = 0.0
) -> Callable[[UInt32[Array, "2"]], State]:
    """key -> a state about a configuration at rest.

    position, velocity: tangent coordinates and velocities are uniform within plus and minus these, a number or one a DoF.
    """
    spread = [np.broadcast_to(np.asarray(bound, float), (model.nv,)) for bound in (position, velocity)]
    centre = np.asarray(q)

    def draw(key: UInt32[Array, "2"]) -> State:
        dtype = jnp.asarray(model.mass).dtype
        at, along = jax.random.uniform(key, (2, model.nv), dtype, -1.0, 1.0)
        q0 = jnp.asarray(centre, dtype)
        return State(integrate(model, q0, at * jnp.asarray(spread[0], dtype)), along * jnp.asarray(spread[1], dtype))

    return draw


def within(lower: Sequence[float], upper: Sequence[float]) -> Callable[[UInt32[Array, "2"]], Float[Array, " nd"]]:
    """key -> numbers, each uniform within its bounds."""
    low, high = np.asarray(lower, float), np.asarray(upper, float)

    def draw(key: UInt32[Array, "2"]) -> Float[Array, " nd"]:
        share = jax.random.uniform(key, low.shape)
        return jnp.asarray(low, share.dtype) + share * jnp.asarray(high - low, share.dtype)

    return draw
