"""hopper and half-cheetah: forward at a speed, from standing, with little effort; where feet are put down is not said.

The reward is a bonus for going on minus the cost of residuals: the velocity of the torso, its pitch and height, the controls. A
hopper that leans or sinks too far has fallen, and its episode ends; the half-cheetah's goes on.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.state import State
from trajopt.learning.draws import around
from trajopt.learning.environment import Environment, Moment
from trajopt.problems.library.behaviours import damped_system, on_dofs, task
from trajopt.problems.residuals import Control, Posture, SmoothAbsolute, Velocity

FALLEN = 0.5, 0.35  # rad that the hopper's torso may lean, m that it may sink
SHARE = 0.5  # of the distance at the asked speed, that makes an episode a success
SPIN = 0.1  # of velocities in observations, so that they are of the size of angles


def observe(moment: Moment) -> Float[Array, " no"]:
    """Everything but the place along the way; rates of the joints a tenth."""
    v = moment.x.v
    return jnp.concatenate([moment.x.q[1:], v[:2], SPIN * v[2:]])


def went_far(speed: float, duration: float, limit: int) -> Callable[[State, Int[Array, ""], Float[Array, "0"]], Bool[Array, ""]]:
    """Success: the episode was not ended, and half the distance was covered."""

    def success(xs: State, steps: Int[Array, ""], drawn: Float[Array, "0"]) -> Bool[Array, ""]:
        return (steps == limit) & (xs.q[-1, 0] - xs.q[0, 0] >= SHARE * speed * duration)

    return success


def hopper(speed: float = 1.0, duration: float = 4.0, dt: float = 0.01) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, at `speed`, m/s."""

    def fallen(moment: Moment) -> Bool[Array, ""]:
        home = jnp.asarray(moment.model.keyframes["home"])
        return (jnp.abs(moment.x.q[2]) > FALLEN[0]) | (moment.x.q[1] < home[1] - FALLEN[1])

    return _runner("hopper", speed, duration, dt, 0.02, (0.0, 1.5, 2.0), 0.2, 0.2, bonus=2.0, terminated=fallen)


def half_cheetah(speed: float = 2.0, duration: float = 4.0, dt: float = 0.01) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, at `speed`, m/s."""
    return _runner("half-cheetah", speed, duration, dt, 0.01, (0.0, 0.5, 1.0), 0.1, 0.1)


def _runner(
    name: str, speed: float, duration: float, dt: float, rates: float, torso: tuple[float, float, float], joints: float,
    effort: float, **options: Any,
) -> Environment:  # fmt: skip
    """rates, torso, joints, effort: weights of the joints' rates, the torso's place and pitch, the joints, the controls."""
    system = damped_system(name, dt, 8)
    model, limit = system.model, round(duration / dt)
    home = np.asarray(model.keyframes["home"])
    v = on_dofs(model, (speed, 0.0, 0.0), 0.0)
    cost = task(
        Velocity(reference=v, weight=on_dofs(model, (1.0, 0.1, 0.1), rates), activation=SmoothAbsolute(0.5)),
        Posture(reference=home, weight=on_dofs(model, torso, joints)), Control(weight=effort),
    )  # fmt: skip
    initial = around(model, home, position=on_dofs(model, (0.0, 0.0, 0.02), 0.05), velocity=0.05)
    success = went_far(speed, duration, limit)
    return Environment(name, system, cost, limit, initial, observe=observe, success=success, **options)
