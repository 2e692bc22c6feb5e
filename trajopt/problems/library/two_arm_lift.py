r"""two-arm-lift: two arms lift a ball of half a metre, which neither can hold alone.

    minimise    sum_t dt 1/2 (|w_p (p - p_ref(t))|^2 + |w_d (h - p)|^2 + |w_v v|^2 + |w_q (q - q_0)|^2 + |w_u (u - q_0)|^2)
                + 1/2 (|W_p (p_T - p_goal)|^2 + |W_v v_T|^2)

p is the centre of the ball, p_ref rises smoothly from where it lies to where it is to be; h are the places of both hands, u are
angles that the arms' servos are told. Where the arms touch the ball, and when, is not said.
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
from trajopt.problems.residuals import Control, FramePosition, Posture, Velocity

TOLERANCES = 0.03, 0.2  # m, m/s: of the ball's place and velocity
WAITS = 0.2  # share of the time before the ball is to rise, and after it
JOINTS = tuple(
    f"{side}_{joint}" for side in ("left", "right")
    for joint in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
)  # fmt: skip
SPREAD = 0.05, 0.03  # rad, m: of a start that is drawn, each joint and the ball


@ranged(height=Real(0.05, 0.6, "m"), duration=Real(0.5, 10.0, "s"), dt=Real(2e-3, 0.05, "s"), seed=Count(0, 2**31 - 1))
def two_arm_lift(height: float = 0.3, duration: float = 1.5, dt: float = 0.02, seed: int = 0) -> OptimalControlProblem:
    """The ball `height`, m, above where it lay after `duration`, s, at rest, with steps of `dt`, s.

    seed: 0 the usual start, else one that is drawn: other angles of the arms, another place of the ball.
    """
    system = System(load_model("two-arms"), dt, RigidContact(), implicit_damping=True)
    model, share, steps = system.model, np.sqrt(dt), round(duration / dt)
    start = random_start(seed) if seed else np.asarray(model.keyframes["home"])
    wanted = start[12:15] + [0.0, 0.0, height]
    pace = np.clip((np.arange(steps + 1) / steps - WAITS) / (1.0 - 2.0 * WAITS), 0.0, 1.0)
    way = start[12:15] + (3 * pace**2 - 2 * pace**3)[:, None] * [0.0, 0.0, height]
    running = task(
        FramePosition("ball", reference=way, weight=10.0 * share),
        *(FramePosition(f"{side}_tool", relative_to="ball", weight=2.0 * share) for side in ("left", "right")),
        Velocity(weight=share * np.concatenate([np.full(12, 0.1), np.full(6, 0.5)])),
        Posture(JOINTS, reference=start, weight=0.1 * share),
        Control(reference=start[:12], weight=0.3 * share),
    )  # fmt: skip
    final = task(
        FramePosition("ball", reference=wanted, weight=50.0),
        Velocity(weight=np.concatenate([np.full(12, 0.1), np.full(3, 3.0), np.full(3, 0.3)])),
    )  # fmt: skip

    return OptimalControlProblem(
        "two-arm-lift", system, steps, at_rest(model, start), u0=np.tile(start[:12], (steps, 1)), stage_residual=running,
        terminal_residual=final,
        goals={
            "place": Goal(FramePosition("ball", reference=wanted), TOLERANCES[0], "m"),
            "speed": Goal(Velocity(("ball",), weight=np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])), TOLERANCES[1], "m/s"),
        },
    )  # fmt: skip


def random_start(seed: int) -> Float[np.ndarray, " 19"]:
    """Each joint and the ball moved a little."""
    generator = np.random.default_rng(seed)
    start = np.array(load_model("two-arms").keyframes["home"])
    start[:12] += generator.uniform(-1.0, 1.0, 12) * SPREAD[0]
    start[12:14] += generator.uniform(-1.0, 1.0, 2) * SPREAD[1]
    return start
