r"""atlas-jump-landing: Atlas jumps from a crouch, lands on both feet and stands for half a second.

    minimise    sum_t dt 1/2 (|w_u u/u_max|^2 + |w_v v_j|^2 + |w_p (q_j - q_crouch)|^2 + |w_o o|^2 + |l|^2 + |s|^2) + 1/2
                |via_a|^2 + 1/2 |r_T|^2
    via_a       the pelvis at `height`, not rising, at the time `apex`

over torques within their limits. o is the pelvis's rotation from the crouch's, l keeps joints from their limits, s asks for
rest in the last half second and r_T for the crouch at rest, wherever it has come down. No contact is scheduled. The guess is
that of `atlas-jump`, which ends at the apex, and the way up taken backwards; it breaks the dynamics, and iLQR in multiple
shooting closes its gaps.
"""

import warnings

import numpy as np
from jax.tree_util import Partial

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.damping import DampingWarning
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.atlas_jump import CLEARANCE, SOLES, crouch, guess, highest_standing
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    JUMP_LIMITS,
    at_rest,
    judged,
    jump_quantities,
    on_dofs,
    short_of,
    task,
    via,
)
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, LimitMargin, Posture, Velocity
from trajopt.problems.trajectory import Trajectory

STANDS = 0.5  # s at the end, in which it is to stand


@ranged(
    height=Real(highest_standing() + CLEARANCE, 1.4, "m"), wait=Real(0.0, 2.0, "s"), stand=Real(STANDS, 3.0, "s"),
    dt=Real(1e-3, 0.01, "s"),
)
def atlas_jump_landing(
    height: float = 1.2, wait: float = 0.1, stand: float = 0.7, dt: float = 5e-3
) -> OptimalControlProblem:
    """Pelvis at `height`, m, at the apex; for `stand` s after the guess's landing it comes to rest and stands; steps of `dt`, s.

    wait: s, for which the guess stays in the crouch; the horizon is that of the guess.
    """
    model = load_model("atlas")
    with warnings.catch_warnings():
        # dt times damping is 1.03 of the wrists' inertia at 5 ms: their rate is damped out within a step, and feedback gains for
        # an Atlas whose ankles carry more armature do not hold another simulator's.
        warnings.simplefilter("ignore", DampingWarning)
        system = System(model, dt, RigidContact(max_contacts=8, erp=1.0))
    share, start = np.sqrt(dt), crouch(model)
    xs, us = guess(model, start, height, wait, dt, stand)
    steps, top = len(us), int(np.argmax(xs[:, 2]))
    joints = tuple(joint.name for joint in model.topology.joints[1:])
    above = start + (height - start[2]) * (np.arange(len(start)) == 2)
    late = (np.arange(steps + 1) > steps - round(STANDS / dt))[:, None]
    pelvis = on_dofs(model, (0.0, 0.0, 0.0, 3.0, 3.0, 3.0), 0.0)
    running = task(
        Control(weight=2.0 * share / np.asarray(model.control_upper)), Velocity(joints, weight=0.1 * share, name="joint rates"),
        Posture(joints, reference=start, weight=1.0 * share, name="joints"),
        Posture(reference=start, weight=share * pelvis, name="upright"), LimitMargin(weight=0.3 * share),
        Posture(reference=above, weight=via(steps, {top: on_dofs(model, (0.0, 0.0, 60.0, 0.0, 0.0, 0.0), 0.0)}), name="apex"),
        Velocity(weight=via(steps, {top: on_dofs(model, (0.0, 0.0, 5.0, 0.0, 0.0, 0.0), 0.0)}), name="apex velocity"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.2), name="standing"),
    )  # fmt: skip
    final = task(
        Posture(reference=start, weight=on_dofs(model, (1.0, 1.0, 30.0, 15.0, 15.0, 10.0), 3.0)),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3)),
    )  # fmt: skip
    return OptimalControlProblem(
        "atlas-jump-landing", system, steps, at_rest(model, start), u0=us, xs0=xs, stage_residual=running,
        terminal_residual=final,
        goals={"apex": Goal(Partial(short_of, 2, height), LIMITS["apex_error"], "m", "once")},
        certificate=judged(lambda motion: landing_quantities(system, motion, height), LIMITS),
        defaults=Defaults("iLQR", {"shooting": "multiple", "max_iterations": 300}),
    )  # fmt: skip


# Standing on constant torques is unstable: rounding becomes centimetres before the end, so that no rollout repeats the motion
# without feedback, and `replay_error` has no limit. Its steps obey the dynamics one by one (`defect`).
LIMITS = {key: limit for key, limit in (GENERAL_LIMITS | JUMP_LIMITS).items() if key != "replay_error"} | {
    "apex_error": 0.02,
    "feet_off_the_ground": 3e-3,
    "standing_speed": 0.3,
    "final_tilt": 0.15,
}


def landing_quantities(system: System, motion: Trajectory, height: float) -> dict[str, float]:
    """The named quantities of a jump with landing, m, m/s; LIMITS bounds those that make it one.

    apex: of the pelvis; standing_speed: largest of the pelvis's velocities in the last 0.4 s; and `jump_quantities`.
    """
    nq, xs = system.nq, np.asarray(motion.xs)
    apex = float(xs[:, 2].max())
    standing = np.abs(xs[-round(0.4 / float(system.dt)) :, nq : nq + 6])
    quantities, _ = jump_quantities(system, motion, SOLES, CLEARANCE)
    return {"apex": apex, "apex_error": abs(apex - height), "standing_speed": float(standing.max())} | quantities
