"""The swing-up of a double pendulum on a cart, from hanging to upright, with the least effort (integral of u^2).

The second swing-up on which Nimble (Fig. 7) compares DDP with stochastic search; it prints no figures, so these are this
project's own: the bundled double-cart-pole (cart 1 kg, two poles of 0.3 kg at 0.5 m, |u| <= 20 N, |x| <= 2 m), 3 s, 150 steps of
RK4 with constant controls, back to where the cart started. Angles are relative to the parent: (pi, 0) is upright.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.contact.law import NoContact
from trajopt.dynamics.system import State, System
from trajopt.errors import OptionError
from trajopt.models.registry import load_model
from trajopt.problems.ocp import OptimalControlProblem

TRACK, FORCE = 2.0, 20.0  # m, N


def double_cartpole_swingup(duration: float = 3.0, steps: int = 150, distance: float = 0.0) -> OptimalControlProblem:
    """To rest upright `distance` metres away after `duration` seconds; the cost is the integral of u^2, N^2 s."""
    if not (np.isfinite(duration) and duration > 0):
        raise OptionError(f"duration is {duration}; it must be a positive number of seconds")
    if abs(distance) >= TRACK:
        raise OptionError(f"distance is {distance}; the track ends {TRACK} m from the start")
    loaded = load_model("double-cart-pole")
    system = System(loaded, duration / steps, NoContact(), integrator="rk4")
    target = np.array(loaded.keyframes["upright"])
    target[0] = distance
    start = np.concatenate([loaded.keyframes["home"], np.zeros(system.nv)])
    # The guess of the states is a straight line: solvers that need not keep to the dynamics start from it.
    guess = np.linspace(start, np.concatenate([target, np.zeros(system.nv)]), steps + 1)
    bound = np.full(2 * system.nv, np.inf)
    bound[0] = TRACK
    weight = np.sqrt(2.0 * duration / steps)  # residuals cost half their square

    def effort(x: State, u, t):
        return weight * u

    def arrival(x: State):
        return jnp.concatenate([x.q - jnp.asarray(target), x.v])

    return OptimalControlProblem(
        "double-cartpole-swingup", system, steps, start, xs0=guess, stage_residual=effort, terminal_equality=arrival,
        state_lower=-bound, state_upper=bound, control_lower=-FORCE, control_upper=FORCE, solver="MultipleShooting",
    )  # fmt: skip
