r"""push-box: a finger pushes a box over a table to a pose, from behind, from beside, or from the wrong side.

    minimise    sum_t dt 1/2 (|w (p - p_goal)|^2 + 0.05^2 (|v|^2 + |u|^2) + 0.3^2 |d|^2)
                + 1/2 (|W (p_T - p_goal)|^2 + 0.3^2 |v_T|^2)

p = (x, y, yaw) of the box, d from its middle to the finger. When and where the finger touches the box is not said.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Choice, Count, Real, ranged

STARTS = {"behind": (-0.15, 0.0), "beside": (0.0, 0.15), "in-front": (0.15, 0.0)}  # m, of the finger from the box
WEIGHT = np.array([3.0, 3.0, 1.0])  # 1/m, 1/m, 1/rad
TOLERANCES = 0.01, 0.05  # m, rad: of the box's position and yaw
FINAL = np.array([30.0, 30.0, 10.0])


@ranged(
    start=Choice(tuple(STARTS)), x=Real(-0.5, 0.5, "m"), y=Real(-0.5, 0.5, "m"), yaw=Real(-np.pi, np.pi, "rad"),
    duration=Real(0.2, 20.0, "s"), dt=Real(5e-3, 0.1, "s"), seed=Count(0, 2**31 - 1),
)  # fmt: skip
def push_box(
    start: str = "behind", x: float = 0.15, y: float = 0.1, yaw: float = 0.5, duration: float = 2.0, dt: float = 0.02,
    seed: int = 0,
) -> OptimalControlProblem:  # fmt: skip
    """The box at (x, y), m, turned by `yaw`, rad, after `duration`, s, with steps of `dt`, s.

    start: where the finger is. seed: 0 that start, else one that is drawn, 12 to 20 cm from the middle of the box on any side.
    """
    system = System(load_model("push-box"), dt, RigidContact(), implicit_damping=True)
    steps = round(duration / dt)
    finger = random_start(seed) if seed else STARTS[start]
    goal, share = np.array([x, y, yaw]), np.sqrt(dt)

    def running(state: State, u, t):
        p, finger = state.q[:3], state.q[3:]
        return jnp.concatenate(
            [share * WEIGHT * (p - goal), 0.05 * share * state.v, 0.05 * share * u, 0.3 * share * (finger - p[:2])]
        )

    def final(state: State):
        return jnp.concatenate([FINAL * (state.q[:3] - goal), 0.3 * state.v])

    return OptimalControlProblem(
        "push-box", system, steps, at_rest(system.model, np.array([0.0, 0.0, 0.0, *finger])), u0=np.zeros((steps, 2)),
        stage_residual=running, terminal_residual=final,
        goals={
            "box position": Goal(lambda x: x.q[:2] - goal[:2], TOLERANCES[0], "m"),
            "box yaw": Goal(lambda x: x.q[2:3] - goal[2], TOLERANCES[1], "rad"),
        },
    )  # fmt: skip


def random_start(seed: int) -> tuple[float, float]:
    """The finger 12 to 20 cm from the middle of the box, on any side."""
    generator = np.random.default_rng(seed)
    angle, distance = generator.uniform(-np.pi, np.pi), generator.uniform(0.12, 0.2)
    return distance * np.cos(angle), distance * np.sin(angle)
