"""catapult and jump-worm (Nimble VII-D): a three-link arm throws a cube, or leaps with it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.contact.law import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import Trajectory

TARGET = (2.2, 2.2)


def catapult(steps: int = 500, dt: float = 1e-3) -> OptimalControlProblem:
    """Torques within +-1000 N m whose throw has the cube at (2.2, 2.2) after `steps` steps; loss: squared distance, m^2."""
    system = System(load_model("catapult"), dt, RigidContact())

    def miss(x: State):
        # Half the square of a residual is the cost: sqrt(2) makes it the squared distance.
        return jnp.sqrt(jnp.asarray(2.0, x.q.dtype)) * (x.q[:2] - jnp.asarray(TARGET, x.q.dtype))

    def certificate(motion: Trajectory):
        return {"distance": float(np.linalg.norm(np.asarray(motion.xs)[-1, :2] - TARGET))}

    return OptimalControlProblem(
        "catapult", system, steps, system.initial_state("home"), terminal_residual=miss,
        certificate=certificate, certificate_tolerances={"distance": 1e-3},
        solver="MultipleShooting", solver_options={"interval": 20},
    )  # fmt: skip


def jump_worm(steps: int = 400, dt: float = 1e-3) -> OptimalControlProblem:
    """Torques within +-100 N m for the highest root (the cube) after `steps` steps; loss: -100 z |z|."""
    system = System(load_model("jump-worm"), dt, RigidContact())

    def height(x: State):
        return -100.0 * x.q[1] * jnp.abs(x.q[1])

    def report(trajectory) -> str:
        return f"root's height at the end {float(np.asarray(trajectory.xs)[-1, 1]):.4f} m"

    return OptimalControlProblem(
        "jump-worm", system, steps, system.initial_state("home"), terminal_cost=height, report=report,
        solver="MultipleShooting", solver_options={"interval": 20},
    )  # fmt: skip
