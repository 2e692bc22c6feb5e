r"""spinner: a finger of two links turns a disc by friction, from a start 8 cm away from it.

    minimise    sum_t dt 1/2 (|q - q_ref(t)|^2 + 0.1 |v|^2 + 0.1 |u|^2) + 1/2 (|W (q_T - q_goal)|^2 + 0.1 |v_T|^2)

q_ref goes from the start to the goal at an even pace: the finger back to where it was, the disc by `turn`. When and where the
finger touches the disc is not said. The task is that of Kurtz et al., "Inverse dynamics trajectory optimization for
contact-implicit model predictive control", 2023; the weights are this project's own.
"""

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest, task
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control, Posture, Velocity

FINAL = np.array([3.0, 3.0, 10.0])  # W
TOLERANCE = 0.1  # rad, of the turn
SPREAD = (0.2, 0.2, np.pi)  # rad, of a start that is drawn
CLEAR = 0.02  # m, the least distance of the tip from the disc at the start


@ranged(turn=Real(-2.5, 2.5, "rad"), duration=Real(0.2, 20.0, "s"), dt=Real(5e-3, 0.1, "s"), seed=Count(0, 2**31 - 1))
def spinner(turn: float = 2.0, duration: float = 2.0, dt: float = 0.05, seed: int = 0) -> OptimalControlProblem:
    """The disc turned by `turn`, rad, in `duration`, s, with steps of `dt`, s; seed: 0 the usual start, else a drawn one."""
    system = System(load_model("spinner"), dt, RigidContact(), implicit_damping=True)
    steps = round(duration / dt)
    start = random_start(seed) if seed else np.asarray(system.model.keyframes["home"])
    goal = start + [0.0, 0.0, turn]
    reference = start + np.linspace(0.0, 1.0, steps + 1)[:, None] * (goal - start)
    share = np.sqrt(dt)
    running = task(
        Posture(reference=reference, weight=share), Velocity(weight=np.sqrt(0.1) * share), Control(weight=np.sqrt(0.1) * share)
    )  # fmt: skip
    final = task(Posture(reference=goal, weight=FINAL), Velocity(weight=np.sqrt(0.1)))

    return OptimalControlProblem(
        "spinner", system, steps, at_rest(system.model, start), u0=np.zeros((steps, 2)), stage_residual=running,
        terminal_residual=final, goals={"turn": Goal(Posture(("spinner",), reference=goal), TOLERANCE, "rad")},
    )  # fmt: skip


def random_start(seed: int) -> Float[np.ndarray, " 3"]:
    """A configuration near the usual one whose tip is clear of the disc: the finger by up to 0.2 rad a joint, the disc anyhow."""
    generator = np.random.default_rng(seed)
    home = np.array([0.3, 1.5, 0.0])
    while True:
        q = home + generator.uniform(-1.0, 1.0, 3) * SPREAD
        tip = np.array([np.sin(q[0]) + 0.95 * np.sin(q[0] + q[1]), np.cos(q[0]) + 0.95 * np.cos(q[0] + q[1])])
        if np.hypot(*(tip - [1.5, 1.0])) - 0.30 >= CLEAR:
            return q
