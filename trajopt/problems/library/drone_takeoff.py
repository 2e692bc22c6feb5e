"""drone-takeoff (Nimble VII-C): a drone at rest on the ground is to be at a height after 500 steps.

Contact holds the drone as long as its thrust is below its weight, so that from zero thrust the exact gradient of the loss is
zero and descent stays where it is. Complementarity-aware gradients see the drone in the air.
"""

import jax.numpy as jnp
import optax
from jax.tree_util import Partial
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

LEARNING_RATE = 10.0  # of plain gradient descent
SINKING = -1e-4  # m/s, initial velocity


def miss(target: float, x: State) -> Float[Array, ""]:
    """The squared error of the height, m^2."""
    return (target - x.q[0]) ** 2


@ranged(target=Real(0.0, 1e3, "m"), steps=Count(1, 10_000), dt=Real(1e-5, 1e-2, "s"))
def drone_takeoff(target: float = 5.0, steps: int = 500, dt: float = 1e-3) -> OptimalControlProblem:
    """Thrust within +-10 N, zero at first, that brings the drone's centre to the height `target`, m; loss: squared error."""
    model = load_model("drone")
    system = System(model, dt, RigidContact(max_contacts=1, limits=False))
    start = State(model.keyframes["home"], jnp.array([SINKING]))

    def certificate(motion: Trajectory):
        return {"height_error": abs(float(motion.xs[-1][0]) - target)}

    return OptimalControlProblem(
        "drone-takeoff", system, steps, start, terminal_cost=Partial(miss, target),
        goals={"height": Goal(Posture(("height",), reference=[target]), 1e-2, "m")},
        certificate=Certificate(certificate, {"height_error": 1e-2}),
        defaults=Defaults(
            "SingleShooting", {"optimizer": optax.sgd(LEARNING_RATE), "max_iterations": 200}, gradient="complementarity-aware"
        ),
    )  # fmt: skip
