"""catapult (Nimble VII-D): a three-link arm is to bat a falling cube so that it is at a given point at a given time.

The cube has to be caught, swung and let go in time. The guess does that roughly, with torques that are constant in each of six
phases; its throw misses by 0.16 m. Without torques the cube ends on the floor.

The guess keeps to one order of events: its second joint stays pressed on its stop, and the arm is braked before it reaches the
others, so that the cube leaves when the arm slows down, not when a link hits a stop. A throw by such hits jumps with the step
in which they happen, and no derivative tells.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Certificate, Defaults
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Posture
from trajopt.problems.trajectory import Trajectory

TARGET = (2.2, 2.2)  # x, z, m
CONTACTS = 8  # at once: a flat side of a box has four
# From which time (s) on, torques (N m).
PHASES = (
    (0.0, (-8.2, -400.0, -1.3)),  # against the arm's weight; the last link rises slowly and meets the cube at its tip
    (0.150, (-240.0, -400.0, -50.0)),  # swing
    (0.193, (-450.0, -400.0, -150.0)),  # with the last link
    (0.201, (420.0, -400.0, 180.0)),  # brake: the cube leaves
    (0.207, (420.0, -400.0, 0.0)),
    (0.214, (-5.1, -400.0, -0.75)),  # stand
)


def swing(times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T 3"]:
    """The guess: the torques of `PHASES`."""
    starts, torques = np.array([start for start, _ in PHASES]), np.array([torque for _, torque in PHASES])
    return torques[np.searchsorted(starts, times + 1e-9, side="right") - 1]


def miss(x: State) -> Float[Array, " 2"]:
    """Half the square of a residual is the cost: sqrt(2) makes it the squared distance."""
    return jnp.sqrt(jnp.asarray(2.0, x.q.dtype)) * (x.q[:2] - jnp.asarray(TARGET, x.q.dtype))


@ranged(steps=Count(1, 10_000), dt=Real(1e-5, 1e-2, "s"))
def catapult(steps: int = 500, dt: float = 1e-3) -> OptimalControlProblem:
    """Torques within +-1000 N m whose throw has the cube at `TARGET` after `steps` steps; loss: squared distance, m^2."""
    system = System(load_model("catapult"), dt, RigidContact(max_contacts=CONTACTS))

    def certificate(motion: Trajectory):
        return {"distance": float(np.linalg.norm(np.asarray(motion.xs)[-1, :2] - TARGET))}

    return OptimalControlProblem(
        "catapult", system, steps, system.initial_state("home"), u0=swing(dt * np.arange(steps)), terminal_residual=miss,
        goals={"cube": Goal(Posture(("cube_x", "cube_z"), reference=[*TARGET, 0.0, 0.0, 0.0]), 1e-3, "m")},
        certificate=Certificate(certificate),
        defaults=Defaults(
            "MultipleShooting", {"interval": 20, "damping": 1e-4, "tolerance": 1e-6, "ipopt_options": {"mu_init": 1e-2}}
        ),
    )  # fmt: skip
