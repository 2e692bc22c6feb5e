r"""half-cheetah-sprint: the half-cheetah, standing, is to run at 3 m/s.

    minimise    sum_t dt 1/2 (|w_f (v_x - speed)|^2 + |w_b b|^2 + |w_v v_j|^2 + |l|^2 + |w_u u|^2) + terminal

over u in [-1, 1]. b is the torso's height and pitch and their rates, l keeps joints from their limits. Neither a gait nor a
contact is prescribed; the search is told a period, with which targets of the joints repeat.
"""

import numpy as np
from jax.tree_util import Partial

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
)
from trajopt.problems.library.hopper_hops import TOUCHING
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, LimitMargin, Posture, Velocity
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

PERIOD = 0.36  # s, of the first guess
FEET = ("bfoot", "ffoot")
FALLEN = 0.6  # rad: a torso pitched beyond it counts as fallen


@ranged(speed=Real(0.1, 6.0, "m/s"), duration=Real(0.5, 6.0, "s"), dt=Real(1e-3, 0.02, "s"))
def half_cheetah_sprint(speed: float = 3.0, duration: float = 2.0, dt: float = 5e-3) -> OptimalControlProblem:
    """Forwards at `speed`, m/s, for `duration` s in steps of `dt`, s, from standing."""
    system = damped_system("half-cheetah", dt, max_contacts=8)
    model, share, steps = system.model, np.sqrt(dt), round(duration / dt)
    home = np.asarray(model.keyframes["home"])
    v = on_dofs(model, (speed, 0.0, 0.0), 0.0)
    place, rate = on_dofs(model, (0.0, 1.0, 2.0), 0.1), on_dofs(model, (2.0, 0.2, 0.1), 0.02)
    running = task(
        Control(weight=0.3 * share), Velocity(reference=v, weight=share * rate), Posture(reference=home, weight=share * place),
        LimitMargin(weight=0.5 * share),
    )  # fmt: skip
    final = task(Posture(reference=home, weight=0.2 * place), Velocity(reference=v, weight=0.2 * rate))
    return OptimalControlProblem(
        "half-cheetah-sprint", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        goals={
            "distance": Goal(Partial(short_of, 0, home[0] + speed * duration), 0.525 * speed * duration, "m"),
            "upright": Goal(Posture(("rooty",), reference=home), FALLEN, "rad", "always"),
        },
        certificate=judged(lambda motion: sprint_quantities(system, motion, speed), LIMITS, ("largest_pitch",)),
        defaults=Defaults("Hybrid", SEARCH),
    )  # fmt: skip


STRIDE = JointTargets(6, 100.0, 4.0, interpolation="cubic", period=PERIOD, deviation=0.3, reach=0.8, ramp=0.2)
SEARCH = sample_then_polish(STRIDE, 64, 40, 1e-1, 300, improvement=0.03, attempts=6, polish_patience=15)

LIMITS = GENERAL_LIMITS | {
    "speed_missing": 0.0,
    "largest_pitch": FALLEN,
    "other_contact": 0.0,
    "final_speed": 10.0,
}


def sprint_quantities(system: System, motion: Trajectory, speed: float) -> dict[str, float]:
    """The named quantities of a run, m, m/s, rad and shares; LIMITS bounds those that make it one.

    late_speed: mean of the second half, and what is missing to 95 % of the one asked for; distance; flight: share of the time
    off the ground; strides: landings of the hind foot; largest_pitch; other_contact: how deep any shape but the feet came.
    """
    qs, dt = np.asarray(motion.xs)[:, : system.nq], float(system.dt)
    gap = gaps(system.model, qs)
    half = (len(qs) - 1) // 2
    late = float((qs[-1, 0] - qs[half, 0]) / (dt * (len(qs) - 1 - half)))
    least = np.min(list(gap.values()), axis=0)
    others = min(value.min() for name, value in gap.items() if name not in FEET)
    down = gap[FEET[0]] < TOUCHING
    return {
        "late_speed": late,
        "speed_missing": max(0.95 * speed - late, 0.0),
        "distance": float(qs[-1, 0] - qs[0, 0]),
        "flight": float((least > TOUCHING).mean()),
        "strides": float((np.diff(down.astype(int)) == 1).sum()),
        "largest_pitch": float(np.abs(qs[:, 2]).max()),
        "other_contact": max(-float(others), 0.0),
        **general_quantities(system, motion, gap, 3),
    }
