"""catapult (Nimble VII-D): a three-link arm is to bat a falling cube so that it is at a given point at a given time.

The cube has to be caught, swung and let go in time. The guess does that roughly: torques that hold the arm at rest until the
cube comes down on its last link, then one constant torque per joint. Its throw misses by 0.2 m. Without torques the cube
ends on the floor.
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

TARGET = (2.2, 2.2)  # x, z, m
CONTACTS = 8  # at once: a flat side of a box has four
HOLD = (-8.2, -3.8, -1.2)  # N m, against the arm's own weight
SWING = (-210.0, -120.0, -30.0)  # N m
CATCH = 0.15  # s, just before the cube lands


def swing(times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T 3"]:
    """The guess: torques `HOLD` until `CATCH`, then `SWING`."""
    return np.where((times < CATCH)[:, None], np.array(HOLD), np.array(SWING))


def catapult(steps: int = 500, dt: float = 1e-3) -> OptimalControlProblem:
    """Torques within +-1000 N m whose throw has the cube at `TARGET` after `steps` steps; loss: squared distance, m^2."""
    system = System(load_model("catapult"), dt, RigidContact(max_contacts=CONTACTS))

    def miss(x: State):
        # Half the square of a residual is the cost: sqrt(2) makes it the squared distance.
        return jnp.sqrt(jnp.asarray(2.0, x.q.dtype)) * (x.q[:2] - jnp.asarray(TARGET, x.q.dtype))

    def certificate(motion: Trajectory):
        return {"distance": float(np.linalg.norm(np.asarray(motion.xs)[-1, :2] - TARGET))}

    return OptimalControlProblem(
        "catapult", system, steps, system.initial_state("home"), u0=swing(dt * np.arange(steps)), terminal_residual=miss,
        certificate=certificate, certificate_tolerances={"distance": 1e-3},
        solver="MultipleShooting",
        solver_options={"interval": 20, "damping": 1e-3, "tolerance": 1e-6, "ipopt_options": {"mu_init": 1e-2}},
    )  # fmt: skip
