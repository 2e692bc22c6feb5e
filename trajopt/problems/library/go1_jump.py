r"""go1-jump: from standing, the base of Go1 rises 0.25 m, and the robot lands on its four feet and stands.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v_j|^2 + |w_p (q_j - q_0)|^2 + |w_o o|^2 + |k|^2 + |s|^2) + 1/2 |via_a|^2 + 1/2
                |r_T(x_T)|^2
    via_a       the base `height` above where it stood, with no vertical velocity, at the time `apex`

over torques within their limits; o is the base's rotation from upright, k a barrier that keeps the knees from the ground, s the
velocities in the last STANDS seconds, and r_T asks for the first pose at rest. When the feet leave the ground and when they
come back is not said.
"""

import numpy as np
from jax.tree_util import Partial

from trajopt.dynamics.system import System
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    JUMP_LIMITS,
    at_rest,
    damped_system,
    flight_report,
    judged,
    jump_quantities,
    on_dofs,
    sample_then_polish,
    short_of,
    standing,
    task,
    via,
)
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults, Display
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, Height, Posture, Velocity
from trajopt.problems.residuals.activations import Barrier
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
CALVES = ("FR_calf", "FL_calf", "RR_calf", "RL_calf")  # frames whose origins are the knees
KNEE = 0.025  # m: a knee's height that the barrier allows, and how far above it it is felt
# Left and right legs move alike, hips do not abduct: front thigh, front calf, rear thigh, rear calf (legs FR, FL, RR, RL).
SAGITTAL = np.zeros((12, 4))
for leg, first in enumerate((0, 0, 2, 2)):
    SAGITTAL[3 * leg + 1, first] = SAGITTAL[3 * leg + 2, first + 1] = 1.0
STANDS = 0.2  # s at the end, in which it is to stand
LOWER = 0.05  # m, by which the base may end below its first height and stand
KNOT = 0.1  # s between two knots of the joint targets


@ranged(
    height=Real(0.05, 0.6, "m"), apex=Real(0.3, 1.0, "s"), duration=Real(0.8, 3.0, "s"), dt=Real(1e-3, 0.01, "s")
)
def go1_jump(height: float = 0.25, apex: float = 0.5, duration: float = 1.2, dt: float = 4e-3) -> OptimalControlProblem:
    """Base `height`, m, above standing at the time `apex`, s; standing at `duration`, s; steps of `dt`, s."""
    system = damped_system("go1", dt, max_contacts=8)
    steps, top, model = round(duration / dt), round(apex / dt), system.model
    home = np.asarray(model.keyframes["home"])
    above = home + height * (np.arange(len(home)) == 2)
    legs = tuple(joint.name for joint in model.topology.joints[1:])
    share = np.sqrt(dt)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    running = task(
        Control(weight=0.02 * share), Velocity(legs, weight=0.05 * share, name="joint rates"),
        Posture(legs, reference=home, weight=0.5 * share, name="legs"),
        Posture(("root",), reference=home, weight=share * np.array([0.0, 0.0, 0.0, 3.0, 3.0, 3.0]), name="upright"),
        Posture(("root",), reference=above, weight=via(steps, {top: np.array([0, 0, 80.0, 0, 0, 0])}), name="apex"),
        Velocity(weight=via(steps, {top: on_dofs(model, (0.0, 0.0, 3.0, 0.0, 0.0, 0.0), 0.0)}), name="apex velocity"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.3), name="standing"),
        *(Height(name, reference=KNEE, weight=2.0 * share, activation=Barrier(KNEE)) for name in CALVES),
    )  # fmt: skip
    final = task(
        Posture(reference=home, weight=on_dofs(model, (1.0, 1.0, 40.0, 20.0, 20.0, 10.0), 10.0)),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3)),
    )  # fmt: skip
    return OptimalControlProblem(
        "go1-jump", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        goals={
            "apex": Goal(Partial(short_of, 2, home[2] + height), SHORT, "m", "once"),
            **standing(home, LOWER),
        },
        certificate=judged(lambda motion: examine(system, motion, height), LIMITS, ("apex_missing", "final_speed", "final_tilt")),
        display=Display(report=lambda motion: flight_report(system, motion, FEET)),
        defaults=Defaults("Hybrid", sample_then_polish(
            leg_targets(duration), 48, 24, 1e-2, 200, patience=6, improvement=0.1, attempts=5, polish_patience=10
        )),
    )  # fmt: skip


def leg_targets(duration: float) -> JointTargets:
    """Targets of the legs, both sides alike, a knot every KNOT seconds."""
    return JointTargets(round(duration / KNOT) + 1, 80.0, 1.0, mirror=SAGITTAL, deviation=0.5)


LIMITS = GENERAL_LIMITS | JUMP_LIMITS | {"apex_missing": 0.0}
CLEARANCE = 0.05  # m, of all four feet at once
SHORT = 0.01  # m, by which an apex may miss the height


def examine(system: System, motion: Trajectory, height: float) -> dict[str, float]:
    """The apex of the base, m, above where it stood, and `jump_quantities`; LIMITS bounds those that make it a jump."""
    z = np.asarray(motion.xs)[:, 2]
    apex = float(z.max() - z[0])
    quantities, _ = jump_quantities(system, motion, FEET, CLEARANCE)
    return {"apex": apex, "apex_missing": max(height - SHORT - apex, 0.0)} | quantities
