"""jump-worm (Nimble VII-D): a cube that carries a chain of three links is to be as high as possible at a given time.

The worm is dropped: its chain meets the floor after about 0.17 s, has to push off and to bring the cube up before the end.
The guess folds the lower links for a moment shortly after the landing, which makes a hop.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.dynamics.contact.law import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import Trajectory

CONTACTS = 8  # at once: a flat side of a box has four
PUSH = (-10.0, -45.0, -50.0)  # N m
PUSHING = (0.19, 0.27)  # s


def push(times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T 3"]:
    """The guess: torques `PUSH` during `PUSHING`, else none."""
    during = (times >= PUSHING[0]) & (times < PUSHING[1])
    return during[:, None] * np.array(PUSH)


def jump_worm(steps: int = 400, dt: float = 1e-3) -> OptimalControlProblem:
    """Torques within +-100 N m for the highest root (the cube) after `steps` steps; loss: -100 z |z|, z its height in m."""
    system = System(load_model("jump-worm"), dt, RigidContact(max_contacts=CONTACTS))

    def loss(x: State):
        return -100.0 * x.q[1] * jnp.abs(x.q[1])

    def report(motion: Trajectory) -> str:
        return f"height of the root at the end {float(motion.xs[-1][1]):.4f} m"

    return OptimalControlProblem(
        "jump-worm", system, steps, system.initial_state("home"), u0=push(dt * np.arange(steps)), terminal_cost=loss,
        report=report, solver="iLQR", solver_options={"max_iterations": 60},
    )  # fmt: skip
