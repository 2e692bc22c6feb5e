r"""hopper-hops: the one-legged hopper, standing, goes forward in five hops without falling.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v_j|^2 + |w_p (q_j - q_bent)|^2 + |b|^2) + sum_k 1/2 |via_k|^2
                + 1/2 |r_T(x_T)|^2
    via_k       the torso `height` above where it stood, not rising, and ahead as `speed` asks, at the time of the k-th apex

over u in [-1, 1]. b asks for an upright torso and, little, since it changes within a hop, for the forward speed. When the foot
is on the ground is not said.
"""

import numpy as np
from jax.tree_util import Partial
from jaxtyping import Bool, Float

from trajopt.dynamics.system import System
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    at_rest,
    damped_system,
    gaps,
    general_quantities,
    judged,
    on_dofs,
    sample_then_polish,
    short_of,
    task,
    via,
)
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control, Posture, Velocity
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

FIRST, PERIOD, LAST = 0.45, 0.6, 0.35  # s: of the first apex, between two, from the last to the end
TOUCHING = 2e-3  # m: a foot nearer to the ground than this is on it
SHORTEST = 0.05  # s off the ground that count as a hop
HIGHER = 0.03  # m that the foot leaves the ground by in a hop


@ranged(
    hops=Count(1, 10), speed=Real(0.0, 2.0, "m/s"), height=Real(0.02, 0.3, "m"), dt=Real(1e-3, 0.02, "s")
)
def hopper_hops(hops: int = 5, speed: float = 0.7, height: float = 0.12, dt: float = 5e-3) -> OptimalControlProblem:
    """`hops` hops with the torso `height`, m, above standing at each apex, forwards at `speed`, m/s; steps of `dt`, s."""
    system = damped_system("hopper", dt, max_contacts=4)
    model, share = system.model, np.sqrt(dt)
    home = np.asarray(model.keyframes["home"])
    apexes = FIRST + PERIOD * np.arange(hops)
    steps = round((apexes[-1] + LAST) / dt)
    times = dt * np.arange(steps + 1)
    above = np.tile(home, (steps + 1, 1))
    above[:, 0] += speed * (times - FIRST / 2)  # from FIRST on, when the speed is reached
    above[:, 1] += height
    at = [round(time / dt) for time in apexes]
    v = np.zeros((steps + 1, model.nv))
    v[:, 0] = speed * np.minimum(times / FIRST, 1.0)
    joints = tuple(joint.name for joint in model.topology.joints)[-3:]
    bent = home.copy()
    bent[-3:] = BENT
    running = task(
        Control(weight=0.3 * share), Velocity(reference=v, weight=share * on_dofs(model, (0.5, 0.0, 0.3), 0.05)),
        Posture(joints, reference=bent, weight=0.5 * share, name="leg"),
        Posture(reference=home, weight=share * on_dofs(model, (0.0, 0.0, 8.0), 0.0), name="upright"),
        Posture(reference=above, weight=via(steps, dict.fromkeys(at, on_dofs(model, (10.0, 40.0, 0.0), 0.0))), name="apexes"),
        Velocity(weight=via(steps, dict.fromkeys(at, on_dofs(model, (0.0, 2.0, 0.0), 0.0))), name="apex velocities"),
    )  # fmt: skip
    final = task(
        Posture(reference=bent, weight=on_dofs(model, (0.0, 5.0, 5.0), 1.0)),
        Velocity(reference=v[-1], weight=on_dofs(model, (1.0, 0.3, 0.5), 0.1)),
    )  # fmt: skip
    return OptimalControlProblem(
        "hopper-hops", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        goals={
            "distance": Goal(Partial(short_of, 0, home[0] + speed * steps * dt), 0.2 * speed * steps * dt, "m"),
            "upright": Goal(Posture(("rooty",), reference=home), LIMITS["largest_pitch"], "rad", "always"),
        },
        certificate=judged(
            lambda motion: hop_quantities(system, motion, hops, speed), LIMITS, ("speed_missing", "largest_pitch")
        ),
        defaults=Defaults("Hybrid", SEARCH),
    )  # fmt: skip


BENT = (-0.5, -1.0, 0.5)  # rad: a leg that can push
HOP = JointTargets(6, 400.0, 30.0, interpolation="cubic", period=PERIOD, deviation=0.4, ramp=0.2)
SEARCH = sample_then_polish(HOP, 64, 200, 1e-1, 300, patience=40, attempts=6, polish_patience=20, shooting="multiple")

LIMITS = GENERAL_LIMITS | {
    "hops_missing": 0.0,
    "other_contact": 0.0,
    "largest_pitch": 0.3,
    "speed_missing": 0.0,
    "final_speed": 3.0,
}


def hop_quantities(system: System, motion: Trajectory, hops: int, speed: float) -> dict[str, float]:
    """The named quantities, m, s, rad and m/s; LIMITS bounds those that make it a row of hops.

    hops: flights of SHORTEST or longer that reach HIGHER; clearance: the least of what the foot reaches in them;
    shortest_flight; mean_speed, and what is missing to 80 % of the one asked for; largest_pitch; other_contact: how deep any
    shape but the foot came.
    """
    qs, dt = np.asarray(motion.xs)[:, : system.nq], float(system.dt)
    gap = gaps(system.model, qs)
    flights = [(begin, end) for begin, end in off_the_ground(gap["foot"]) if (end - begin) * dt >= SHORTEST]
    heights = [float(gap["foot"][begin:end].max()) for begin, end in flights]
    kept = [k for k, height in enumerate(heights) if height >= HIGHER]
    others = min(value.min() for name, value in gap.items() if name != "foot")
    mean = float((qs[-1, 0] - qs[0, 0]) / (dt * (len(qs) - 1)))
    return {
        "hops": float(len(kept)),
        "hops_missing": float(max(hops - len(kept), 0)),
        "clearance": min((heights[k] for k in kept), default=0.0),
        "shortest_flight": min(((flights[k][1] - flights[k][0]) * dt for k in kept), default=0.0),
        "mean_speed": mean,
        "speed_missing": max(0.8 * speed - mean, 0.0),
        "largest_pitch": float(np.abs(qs[:, 2]).max()),
        "other_contact": max(-float(others), 0.0),
        **general_quantities(system, motion, gap, 3),
    }


def off_the_ground(gap: Float[np.ndarray, " T"]) -> list[tuple[int, int]]:
    """(first, one beyond the last) state of each stretch that something is off the ground."""
    off: Bool[np.ndarray, " T"] = np.concatenate([[False], gap > TOUCHING, [False]])
    edges = np.flatnonzero(np.diff(off.astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
