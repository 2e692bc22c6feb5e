r"""in-hand-rotation: an Allegro hand on its back turns a ball on its palm about the vertical.

    minimise    sum_t dt 1/2 (|w_R log(R_goal^T R)|^2 + |w_p (p - p_0)|^2 + |w_v v|^2 + |w_q (q - q_0)|^2 + |w_u (u - q_0)|^2)
                + 1/2 (|W_R log(R_goal^T R_T)|^2 + |W_p (p_T - p_0)|^2 + |W_v v_T|^2)

R, p are rotation and place of the ball, u are angles that the hand's servos are told. Which finger touches the ball,
where and when is not said.
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
from trajopt.problems.residuals import Control, FrameOrientation, FramePosition, Posture, Velocity

TOLERANCES = np.radians(10.0), 0.02  # rad, m: of the ball's rotation and position
FINGERS = ("first", "middle", "ring", "thumb")
JOINTS = tuple(f"{finger}_{k}" for finger in FINGERS for k in range(4))
SPREAD = 0.05, 0.003  # rad, m: of a start that is drawn, each joint and the ball

# Angles of the joints before and after a stroke, whose fingertips go 12 degrees around the ball, 5 degrees above its middle: the
# first finger from -36 degrees on, the middle one -1, the ring 82, the thumb -114. Tips are 1 mm inside a ball that lies where it
# usually does, or 12 mm away from it.
GRASP = np.array([
    [-0.05, 0.63, 1.16, 1.07, 0.02, 0.55, 1.02, 1.19, -0.35, 1.26, 1.02, 0.80, 0.67, 1.16, 0.09, 1.72],
    [-0.22, 0.59, 1.11, 1.05, -0.17, 0.58, 1.01, 1.18, -0.37, 1.49, 0.89, 0.67, 0.42, 1.15, 0.58, 1.38],
])  # fmt: skip
AWAY = np.array([
    [0.03, 0.53, 1.10, 1.06, 0.02, 0.46, 0.92, 1.15, -0.47, 1.27, 0.93, 0.74, 0.71, 1.16, -0.19, 1.72],
    [-0.17, 0.48, 1.04, 1.03, -0.20, 0.50, 0.91, 1.13, -0.47, 1.54, 0.78, 0.58, 0.39, 1.16, 0.47, 1.29],
])  # fmt: skip
STROKE = ((AWAY[0], 0.4), (GRASP[0], 0.35), (GRASP[0], 0.1), (GRASP[1], 0.8), (GRASP[1], 0.15), (AWAY[1], 0.35))
TURNING = 3  # which part of a stroke turns the ball


@ranged(turn=Real(-2.0, 2.0, "rad"), duration=Real(0.2, 10.0, "s"), dt=Real(2e-3, 0.05, "s"), seed=Count(0, 2**31 - 1))
def in_hand_rotation(turn: float = np.pi / 3, duration: float = 1.0, dt: float = 0.02, seed: int = 0) -> OptimalControlProblem:
    """The ball turned by `turn`, rad, about the vertical in `duration`, s, with steps of `dt`, s.

    seed: 0 the usual start, else one that is drawn: other angles of the fingers, another place of the ball.
    """
    system = System(load_model("allegro-ball"), dt, RigidContact(), implicit_damping=True)
    model, share, steps = system.model, np.sqrt(dt), round(duration / dt)
    start = random_start(seed) if seed else np.asarray(model.keyframes["home"])
    wanted, there = np.array([np.cos(turn / 2), 0.0, 0.0, np.sin(turn / 2)]), start[16:19]
    running = task(
        FrameOrientation("object", reference=wanted, weight=3.0 * share),
        FramePosition("object", reference=there, weight=20.0 * share),
        Velocity(weight=0.1 * share),
        Posture(JOINTS, reference=start, weight=0.1 * share),
        Control(reference=start[:16], weight=0.5 * share),
    )  # fmt: skip
    final = task(
        FrameOrientation("object", reference=wanted, weight=30.0),
        FramePosition("object", reference=there, weight=100.0),
        Velocity(weight=np.concatenate([np.full(16, 0.1), np.full(6, 0.3)])),
    )  # fmt: skip

    return OptimalControlProblem(
        "in-hand-rotation", system, steps, at_rest(model, start), u0=np.tile(start[:16], (steps, 1)), stage_residual=running,
        terminal_residual=final,
        goals={
            "turn": Goal(FrameOrientation("object", reference=wanted), TOLERANCES[0], "rad"),
            "drift": Goal(FramePosition("object", reference=there), TOLERANCES[1], "m"),
        },
    )  # fmt: skip


def random_start(seed: int) -> Float[np.ndarray, " 23"]:
    """Each joint and the ball moved a little."""
    generator = np.random.default_rng(seed)
    start = np.array(load_model("allegro-ball").keyframes["home"])
    start[:16] += generator.uniform(-1.0, 1.0, 16) * SPREAD[0]
    start[16:18] += generator.uniform(-1.0, 1.0, 2) * SPREAD[1]
    return start


def strokes(dt: float, count: int = 3) -> tuple[Float[np.ndarray, "n 16"], Float[np.ndarray, " n"]]:
    """(angles of the joints, share of the turn) once in `dt`, s: so many strokes from the usual start, then the ball is held.

    Within each part of a stroke (`STROKE`: angles at its end, s) the angles change evenly.
    """
    parts = [*STROKE * count][:-1]
    angles = np.array([load_model("allegro-ball").keyframes["home"][:16], *(end for end, _ in parts)])
    times = np.cumsum([0.0, *(seconds for _, seconds in parts)])
    turning = np.arange(len(parts)) % len(STROKE) == TURNING
    t = np.arange(0.0, times[-1] + dt, dt)
    return np.stack([np.interp(t, times, row) for row in angles.T], 1), np.interp(t, times, np.cumsum([0, *turning]) / count)
