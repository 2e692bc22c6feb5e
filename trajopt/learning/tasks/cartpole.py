"""cartpole-swingup: the cart-pole of Kelly (SIAM Review, 2017), whose pole begins at any angle, is swung up and held upright at
the middle.

The reward is minus the cost of the bob's distance from above the cart (2 where it hangs), of the cart's from the middle of the
track, of velocities and of effort. The track does not end; an episode is a success only where the cart stays on it.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.laws import NoContact
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.learning.draws import around
from trajopt.learning.environment import Environment, Moment
from trajopt.models.registry import load_model
from trajopt.problems.library.behaviours import task
from trajopt.problems.residuals import Control, FramePosition, Posture, SmoothAbsolute, Velocity

TRACK = 2.0  # m
LENGTH = 0.5  # m, of the pole
HELD = 1.0  # s at the end of an episode, for which the pole is to be upright
UPRIGHT = 0.2  # rad


def observe(moment: Moment) -> Float[Array, "5"]:
    """Place of the cart, cosine and sine of the pole's angle, velocities."""
    q, v = moment.x.q, moment.x.v
    return jnp.concatenate([q[:1], jnp.cos(q[1:]), jnp.sin(q[1:]), v])


def cartpole_swingup(duration: float = 5.0, dt: float = 0.02) -> Environment:
    """Episodes of `duration` s from any angle of the pole, in steps of `dt`, s."""
    model = load_model("cart-pole")
    cost = task(
        FramePosition("bob", relative_to="cart", reference=np.array([0.0, 0.0, LENGTH]), weight=2.0, name="bob"),
        Posture(("cart",), weight=0.5, activation=SmoothAbsolute(1.0), name="cart"),
        Velocity(weight=np.array([0.1, 0.1])), Control(weight=0.01),
    )  # fmt: skip
    held = round(HELD / dt)

    def success(xs: State, steps: Int[Array, ""], drawn: Float[Array, "0"]) -> Bool[Array, ""]:
        """Upright, with the cart on the track, all the time at the end."""
        return (jnp.cos(xs.q[-held:, 1]) < -np.cos(UPRIGHT)).all() & (jnp.abs(xs.q[:, 0]) <= TRACK).all()

    return Environment(
        "cartpole-swingup", System(model, dt, NoContact()), cost, round(duration / dt),
        around(model, model.keyframes["home"], position=(0.5, np.pi), velocity=(0.5, 1.0)),
        observe=observe, success=success,
    )  # fmt: skip
