r"""go1-backflip: from standing, Go1 jumps, turns once backwards in the air, lands on its feet and stands.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v_j|^2 + |w_p (q_j - q_0)|^2 + |k|^2 + |s|^2) + 1/2 |via_a|^2 + 1/2 |l|^2
                + 1/2 |r_T(x_T)|^2
    via_a       the base upside down, `height` above where it stood, turning backwards, at the time `apex`
    l           the base turned but for SHORT_OF_UPRIGHT, LANDING seconds later, when it is about to land

over torques within `torque_share` of their limits. k keeps knees and trunk from the ground, s asks for an upright base at rest in
the last STANDS seconds, and r_T for the first pose at rest. k, l, s and r_T level off (`Saturated`): a motion that falls costs so
much and no more, so that one that turns and falls is cheaper than standing still. When feet leave the ground and come back, and
where, is not said. l is a margin: on ground that gives way the base leaves the ground turning slower than planned, by up to a
tenth in MuJoCo, and what lands on its front feet has turned far enough to come upright all the same.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.system import System
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    JUMP_LIMITS,
    at_rest,
    damped_system,
    flight_report,
    gaps,
    judged,
    jump_quantities,
    landing,
    on_dofs,
    sample_then_polish,
    standing,
    takeoff,
    task,
    via,
)
from trajopt.problems.library.go1_jump import CALVES, FEET, KNEE, LOWER, leg_targets
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults, Display
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, Height, Posture, Velocity
from trajopt.problems.residuals.activations import Barrier, Saturated
from trajopt.problems.trajectory import Trajectory

STANDS = 0.5  # s at the end, in which it is to stand
RATE = -11.0  # rad/s, of the pitch at the apex: once round takes 0.57 s
TRUNK = 0.14  # m: a height of the trunk that its barrier allows
LANDING, SHORT_OF_UPRIGHT = 0.24, 0.3  # s after the apex, rad


@ranged(
    height=Real(0.2, 0.6, "m"), apex=Real(0.4, 1.0, "s"), duration=Real(1.2, 3.0, "s"), torque_share=Real(0.7, 1.0, ""),
    dt=Real(1e-3, 0.01, "s"),
)
def go1_backflip(
    height: float = 0.45, apex: float = 0.608, duration: float = 1.5, torque_share: float = 0.9, dt: float = 4e-3
) -> OptimalControlProblem:
    """Upside down with the base `height`, m, above standing at the time `apex`, s; standing at `duration`, s; steps of `dt`, s.

    torque_share: of the motors' limits, that the motion uses; the rest is left to feedback.
    """
    system = damped_system("go1", dt, max_contacts=8)
    steps, top, model = round(duration / dt), round(apex / dt), system.model
    down = min(top + round(LANDING / dt), steps)
    home = np.asarray(model.keyframes["home"])
    inverted = home.copy()
    inverted[2] += height
    inverted[3:7] = (0.0, 0.0, -1.0, 0.0)  # half a turn backwards about y
    landing_pose = home.copy()
    landing_pose[3:7] = np.cos(SHORT_OF_UPRIGHT / 2), 0.0, np.sin(SHORT_OF_UPRIGHT / 2), 0.0
    legs = tuple(joint.name for joint in model.topology.joints[1:])
    share, limit = np.sqrt(dt), torque_share * np.asarray(model.control_upper)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    turning = RATE * (np.arange(model.nv) == 4)
    knees, trunk = Saturated(6.0, of=Barrier(KNEE)), Saturated(4.0, of=Barrier(0.1))
    running = task(
        Control(weight=0.02 * share), Velocity(legs, weight=0.03 * share, name="joint rates"),
        Posture(legs, reference=home, weight=0.3 * share, name="legs"),
        Posture(("root",), reference=inverted, weight=via(steps, {top: np.array([0, 0, 20.0, 8.0, 8.0, 8.0])}), name="inverted"),
        Velocity(reference=turning, weight=via(steps, {top: on_dofs(model, (0.0, 0.0, 2.0, 0.0, 1.0, 0.0), 0.0)}),
                 name="turning"),
        Posture(("root",), reference=landing_pose, weight=via(steps, {down: np.array([0, 0, 0, 0, 6.0, 0])}),
                activation=Saturated(3.0), name="landing"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.3), activation=Saturated(1.0), name="standing"),
        Posture(("root",), reference=home, weight=share * late * np.array([0.0, 0.0, 10.0, 6.0, 6.0, 6.0]),
                activation=Saturated(np.array([0.5, 0.5, 0.15, 0.5, 0.5, 0.5])), name="upright"),
        *(Height(name, reference=KNEE, weight=2.0 * share, activation=knees, name=f"knee {name}") for name in CALVES),
        Height("trunk", reference=TRUNK, weight=3.0 * share, activation=trunk, name="trunk"),
    )  # fmt: skip
    near = on_dofs(model, (0.5, 0.5, 0.1, 0.3, 0.3, 0.3), 0.3)  # m, rad: half of the cost's limit
    final = task(
        Posture(reference=home, weight=on_dofs(model, (1.0, 1.0, 40.0, 20.0, 20.0, 10.0), 6.0), activation=Saturated(near)),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3), activation=Saturated(1.0)),
    )  # fmt: skip
    return OptimalControlProblem(
        "go1-backflip", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        control_lower=-limit, control_upper=limit,
        goals={
            "upside down": Goal(Posture(("root",), reference=inverted, weight=(0, 0, 0, 1, 1, 1)), 0.5, "rad", "once"),
            **standing(home, LOWER),
        },
        certificate=judged(
            lambda motion: flip_quantities(system, motion), LIMITS, ("height_missing", "final_speed", "final_tilt")
        ),
        display=Display(report=lambda motion: _report(system, motion)),
        defaults=Defaults(
            "Hybrid", sample_then_polish(leg_targets(duration), 128, 100, 5e-2, 300, patience=20, attempts=3, **SAMPLER)
        ),
    )  # fmt: skip


# 128 draws renew the diagonal of a covariance of 64 numbers in 3 generations, the whole of it in 67 (CMAES's c_mu); batches of
# four motions fit the memory that the allocator keeps, larger ones return it and fetch it again in every generation.
SAMPLER: dict[str, Any] = {"diagonal": True, "chunk": 4}


LIMITS = GENERAL_LIMITS | JUMP_LIMITS | {"turn_error": 0.1, "height_missing": 0.0}
CLEARANCE = 0.1  # m, of all four feet at once


def flip_quantities(system: System, motion: Trajectory) -> dict[str, float]:
    """The named quantities of a backflip, m and rad; LIMITS bounds those that make it one.

    pitch_turned: of the base, from its first attitude, -2 pi for one turn backwards; apex: of the base, above where it stood;
    height_missing: what the base lacks at the end to stand; and `jump_quantities`.
    """
    qs = np.asarray(motion.xs)[:, : system.nq]
    pitch = float(pitch_turned(qs)[-1])
    quantities, _ = jump_quantities(system, motion, FEET, CLEARANCE)
    return {
        "pitch_turned": pitch,
        "turn_error": abs(pitch + 2 * np.pi),
        "apex": float(qs[:, 2].max() - qs[0, 2]),
        "height_missing": max(float(qs[0, 2] - qs[-1, 2]) - LOWER, 0.0),
        **quantities,
    }


def pitch_turned(qs: Float[np.ndarray, "T nq"]) -> Float[np.ndarray, " T"]:
    """The angle by which a base has turned about y since the first state, rad, backwards negative, whole turns counted.

    Of the part of its rotation that is about y; states so near to each other that it turns by less than pi in between.
    """
    angle = np.unwrap(2 * np.arctan2(qs[:, 5], qs[:, 3]), period=2 * np.pi)
    return angle - angle[0]


def _report(system: System, motion: Trajectory) -> str:
    """When the feet are off the ground, how far it has turned there, and which motors work hardest."""
    qs = np.asarray(motion.xs)[:, : system.nq]
    gap, turned = gaps(system.model, qs), pitch_turned(qs)
    feet = np.stack([gap[name] for name in FEET], 1)
    more = f", from a pitch of {turned[takeoff(feet)]:.2f} to {turned[landing(feet)]:.2f} rad"
    return flight_report(system, motion, FEET, more)
