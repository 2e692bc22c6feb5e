r"""go1-trot: from standing, Go1 trots at a speed; diagonal legs are lifted in turn, to a phase that is given.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v_j|^2 + |w_p (q_j - q_0)|^2 + |b|^2 + sum_feet |w_z (z_f - z_f(t))|^2) + terminal

over torques within their limits. b asks for the velocity, and for the base's height and upright attitude; z_f(t), the height of
a foot, is that of a swing for a `SHARE` of each period and that of the ground for the rest. Where feet are put down and how
they push is found.
"""

import numpy as np
from jax.tree_util import Partial
from jaxtyping import Bool, Float

from trajopt.dynamics.system import System
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    TOUCHING,
    at_rest,
    damped_system,
    gaps,
    general_quantities,
    judged,
    on_dofs,
    sample_then_polish,
    short_of,
    task,
)
from trajopt.problems.library.go1_jump import FEET, SAGITTAL
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, Height, Posture, Velocity
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

PERIOD, SHARE = 0.5, 0.47  # s; of it, for which a leg is lifted
DIAGONAL = (0.0, 0.5, 0.5, 0.0)  # phases of FR, FL, RR, RL
LIFTED, STANDING = 30.0, 60.0  # 1/m: weights of a foot's height
RADIUS = 0.0226  # m: a foot's centre above the ground it stands on
RAMP = 0.25  # s, in which the gait begins
CLEARANCE = 0.03  # m, that every foot reaches in every swing
ALONE = 0.8  # share of the time with one diagonal alone on the ground


@ranged(
    speed=Real(0.1, 1.0, "m/s"), lift=Real(0.03, 0.12, "m"), duration=Real(1.0, 6.0, "s"), dt=Real(1e-3, 0.01, "s")
)
def go1_trot(speed: float = 0.5, lift: float = 0.06, duration: float = 2.0, dt: float = 5e-3) -> OptimalControlProblem:
    """Forwards at `speed`, m/s; feet lifted by `lift`, m; `duration` s in steps of `dt`, s."""
    system = damped_system("go1", dt, max_contacts=8)
    steps, model, share = round(duration / dt), system.model, np.sqrt(dt)
    home = np.asarray(model.keyframes["home"])
    legs = tuple(joint.name for joint in model.topology.joints[1:])
    times = dt * np.arange(steps + 1)
    v = np.zeros((steps + 1, model.nv))
    v[:, 0] = speed * np.minimum(times / RAMP, 1.0)
    feet = []
    for name, offset in zip(FEET, DIAGONAL, strict=True):
        phase, up = lifted(times, offset)
        height = RADIUS + np.where(up, lift * np.sin(np.pi * phase / SHARE), 0.0)
        weight = share * np.where(up, LIFTED, STANDING)
        feet.append(Height(name, reference=height[:, None], weight=weight[:, None], name=f"lift {name}"))
    base = on_dofs(model, (4.0, 2.0, 1.0, 0.3, 0.3, 1.0), 0.03)
    place = on_dofs(model, (0.0, 1.0, 15.0, 4.0, 4.0, 4.0), 0.0)
    running = task(
        Control(weight=0.015 * share), Posture(legs, reference=home, weight=0.7 * share, name="legs"),
        Posture(reference=home, weight=share * place, name="base"), Velocity(reference=v, weight=share * base), *feet,
    )  # fmt: skip
    final = task(
        Posture(reference=home, weight=0.5 * place, name="base"), Velocity(reference=v[-1], weight=0.3 * base),
    )  # fmt: skip
    return OptimalControlProblem(
        "go1-trot", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        goals={
            "distance": Goal(Partial(short_of, 0, home[0] + 0.95 * speed * max(duration - PERIOD, 0.0)), 0.05, "m"),
            "upright": Goal(Posture(("root",), reference=home, weight=(0.0, 0.0, 0.0, 1.0, 1.0, 0.0)), 0.2, "rad", "always"),
        },
        certificate=judged(lambda motion: trot_quantities(system, motion, speed), LIMITS),
        defaults=Defaults("Hybrid", SEARCH),
    )  # fmt: skip


def lifted(times: Float[np.ndarray, " T"], offset: float) -> tuple[Float[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """(phase of a leg, whether it is to be lifted); nothing is lifted before half the ramp."""
    phase = (times / PERIOD + offset) % 1.0
    return phase, (phase < SHARE) & (times >= (0.0 if offset == 0.0 else 0.5 * PERIOD))


GAIT = JointTargets(
    6, 80.0, 1.0, interpolation="cubic", mirror=SAGITTAL, period=PERIOD, shift=np.repeat(DIAGONAL, 3), ramp=RAMP,
    deviation=0.25,
)  # fmt: skip
SEARCH = sample_then_polish(GAIT, 32, 30, 1e-2, 200, attempts=5, polish_patience=15)

LIMITS = GENERAL_LIMITS | {
    "speed_missing": 0.0,
    "alone_missing": 0.0,
    "clearance_missing": 0.0,
    "other_contact": 0.0,
    "largest_tilt": 0.2,
}


def trot_quantities(system: System, motion: Trajectory, speed: float) -> dict[str, float]:
    """The named quantities of a trot, after its first period; m/s, m, rad and shares; LIMITS bounds those that make it one.

    mean_speed: forwards, and what is missing to 95 % of the one asked for; alone: share of the time in which the feet of one
    diagonal, and no others, are on the ground; clearance: the least of all swings of all feet of how high it goes;
    stride_drift: sideways, m; other_contact; largest_tilt; and `general_quantities`.
    """
    qs, dt = np.asarray(motion.xs)[:, : system.nq], float(system.dt)
    gap = gaps(system.model, qs)
    first = round(PERIOD / dt)
    feet = np.stack([gap[name] for name in FEET], 1)[first:]
    down = feet < TOUCHING
    one, other = down[:, 0] | down[:, 3], down[:, 1] | down[:, 2]
    alone = float((one ^ other).mean())
    others = min(value.min() for name, value in gap.items() if name not in FEET)
    mean = float((qs[-1, 0] - qs[first, 0]) / (dt * (len(qs) - 1 - first)))
    clearance = least_swing(feet, dt * (first + np.arange(len(feet))))
    return {
        "mean_speed": mean,
        "speed_missing": max(0.95 * speed - mean, 0.0),
        "alone": alone,
        "alone_missing": max(ALONE - alone, 0.0),
        "clearance": clearance,
        "clearance_missing": max(CLEARANCE - clearance, 0.0),
        "stride_drift": float(qs[-1, 1] - qs[0, 1]),
        "other_contact": max(-float(others), 0.0),
        "largest_tilt": float(2 * np.arcsin(np.linalg.norm(qs[:, 4:6], axis=1)).max()),
        **general_quantities(system, motion, gap, 6),
    }


def least_swing(feet: Float[np.ndarray, "T 4"], times: Float[np.ndarray, " T"]) -> float:
    """The least, over all feet and all whole swings within the times, of the highest that a foot goes, m."""
    heights = []
    for k, offset in enumerate(DIAGONAL):
        _, up = lifted(times, offset)
        edges = np.flatnonzero(np.diff(up.astype(int)))
        for begin, end in zip(edges[:-1], edges[1:], strict=True):
            if up[begin + 1]:
                heights.append(feet[begin + 1 : end + 1, k].max())
    return float(min(heights))
