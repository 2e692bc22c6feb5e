r"""push-box and push-t: a finger pushes a thing over a table to a pose, from wherever it is.

    minimise    sum_t dt 1/2 (|w (p - p_goal)|^2 + |w_v v|^2 + 0.05^2 |u|^2 + 0.3^2 |d|^2)
                + 1/2 (|W (p_T - p_goal)|^2 + 0.3^2 |v_T|^2)

p = (x, y, yaw) of the thing, d from its centre of mass to the finger. When and where the finger touches it is not said.
"""

import numpy as np
from jaxtyping import Array, Float, ScalarLike

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest, task
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Choice, Count, Range, Real, ranged
from trajopt.problems.residuals import Control, Function, Posture, Velocity

STARTS = {"behind": (-0.15, 0.0), "beside": (0.0, 0.15), "in-front": (0.15, 0.0)}  # m, of the finger from the box
WEIGHT = np.array([3.0, 3.0, 1.0])  # 1/m, 1/m, 1/rad
BRISK, GENTLE = (1.0, 0.05), (0.33, 0.3)  # factor of WEIGHT, weight of velocities; gentle pushes are kept better elsewhere
TOLERANCES = 0.01, 0.05  # m, rad: of the thing's position and yaw
FINAL = np.array([30.0, 30.0, 10.0])
RADIUS = 0.02  # m, of the finger
CLEAR = 0.01  # m, the least distance of the finger from the T at the start
T = ((0.0, 0.0342857, 0.08, 0.02), (0.0, -0.0457143, 0.02, 0.06))  # m: middle x, y and half lengths of bar and stem

Finger = tuple[float, float] | Float[np.ndarray, " 2"]
POSES: dict[str, Range] = {
    "x": Real(-0.5, 0.5, "m"), "y": Real(-0.5, 0.5, "m"), "yaw": Real(-np.pi, np.pi, "rad"), "duration": Real(0.2, 20.0, "s"),
    "dt": Real(5e-3, 0.1, "s"), "seed": Count(0, 2**31 - 1),
}  # fmt: skip


@ranged(start=Choice(tuple(STARTS)), **POSES)
def push_box(
    start: str = "behind", x: float = 0.15, y: float = 0.1, yaw: float = 0.5, duration: float = 2.0, dt: float = 0.02,
    seed: int = 0,
) -> OptimalControlProblem:  # fmt: skip
    """The box at (x, y), m, turned by `yaw`, rad, after `duration`, s, with steps of `dt`, s.

    start: where the finger is. seed: 0 that start, else one that is drawn, 12 to 20 cm from the middle of the box on any side.
    """
    finger = around_the_box(seed) if seed else STARTS[start]
    return pushing("push-box", "box", finger, (x, y, yaw), duration, dt, BRISK)


@ranged(**POSES)
def push_t(
    x: float = 0.1, y: float = 0.1, yaw: float = 0.5, duration: float = 2.0, dt: float = 0.02, seed: int = 0
) -> OptimalControlProblem:
    """The T at (x, y), m, turned by `yaw`, rad, after `duration`, s, with steps of `dt`, s.

    seed: 0 the finger beside the stem, else anywhere that is clear of the T, within 20 cm of its centre of mass.
    """
    finger = around_the_t(seed) if seed else np.asarray(load_model("push-t").keyframes["home"])[3:]
    return pushing("push-t", "T", finger, (x, y, yaw), duration, dt, GENTLE)


def pushing(
    name: str, thing: str, finger: Finger, pose: tuple[float, float, float], duration: float, dt: float, pace: tuple[float, float]
) -> OptimalControlProblem:  # fmt: skip
    """The thing of the model `name` from the origin to a pose; the finger is at `finger`, m, at first. pace: BRISK or GENTLE."""
    system = System(load_model(name), dt, RigidContact(), implicit_damping=True)
    steps = round(duration / dt)
    share, (pose_factor, speed) = np.sqrt(dt), pace
    target = np.array([*pose, *finger])
    joints = tuple(joint.name for joint in system.model.topology.joints[:3])
    running = task(
        Posture(joints, reference=target, weight=share * pose_factor * WEIGHT), Velocity(weight=share * speed),
        Control(weight=0.05 * share),
        Function(to_the_finger, weight=0.3 * share),
    )  # fmt: skip
    final = task(Posture(joints, reference=target, weight=FINAL), Velocity(weight=0.3))
    return OptimalControlProblem(
        name, system, steps, at_rest(system.model, np.array([0.0, 0.0, 0.0, *finger])), u0=np.zeros((steps, 2)),
        stage_residual=running, terminal_residual=final,
        goals={
            f"{thing} position": Goal(Posture(joints[:2], reference=target), TOLERANCES[0], "m"),
            f"{thing} yaw": Goal(Posture(joints[2:], reference=target), TOLERANCES[1], "rad"),
        },
    )  # fmt: skip


def to_the_finger(x: State, u: Float[Array, " 2"], t: ScalarLike) -> Float[Array, " 2"]:
    """From the thing's centre of mass, m."""
    return x.q[3:] - x.q[:2]


def around_the_box(seed: int) -> tuple[float, float]:
    """The finger 12 to 20 cm from the middle of the box, on any side."""
    generator = np.random.default_rng(seed)
    angle, distance = generator.uniform(-np.pi, np.pi), generator.uniform(0.12, 0.2)
    return distance * np.cos(angle), distance * np.sin(angle)


def around_the_t(seed: int) -> Float[np.ndarray, " 2"]:
    """The finger anywhere within 20 cm of the T's centre of mass, `CLEAR` of it; the inner corners too."""
    generator = np.random.default_rng(seed)
    while True:
        finger = generator.uniform(-0.2, 0.2, 2)
        outside = [np.maximum(np.abs(finger - part[:2]) - part[2:], 0.0) for part in T]
        if np.hypot(*finger) <= 0.2 and min(np.hypot(*gap) for gap in outside) >= RADIUS + CLEAR:
            return finger
