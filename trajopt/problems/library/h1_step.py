r"""h1-step: from standing, H1 puts its left foot down `length` ahead of where it was, past the right one, and stands.

    minimise    sum_t dt 1/2 (|w_u u/u_max|^2 + |w_v v_j|^2 + |w_p (q_j - q_0)|^2 + |b|^2 + |f|^2 + |s|^2) + 1/2 |via_l|^2 + 1/2
                |r_T(x_T)|^2
    via_l       the left foot `lift` above the ground at the time `swing`

over torques within their limits. b is the pelvis's height, attitude and distance to the side, f that of the right foot from its
place, s asks for rest in the last STANDS seconds. r_T asks for the left foot `length` ahead, flat soles, the centre of mass above
the middle of both feet, an upright pelvis and rest. When the foot leaves the ground and comes down is not said.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, frame_placement
from trajopt.dynamics.system import System
from trajopt.problems.library.behaviours import (
    GENERAL_LIMITS,
    at_rest,
    damped_system,
    gaps,
    general_quantities,
    on_dofs,
    task,
    tilt,
    via,
)
from trajopt.problems.library.static_pose import certify
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import (
    CentreOfMass,
    Control,
    FrameOrientation,
    FramePosition,
    Height,
    Posture,
    Velocity,
)
from trajopt.problems.residuals.activations import Saturated
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

LEFT, RIGHT = "left_ankle_link", "right_ankle_link"
LEFT_SOLE, RIGHT_SOLE = (
    tuple(f"{side}_{point}" for point in ("heel_left", "heel_right", "toe_left", "toe_right"))
    for side in ("left", "right")
)
STANDS = 0.4  # s at the end, in which it is to stand
KNOT = 0.15  # s between two knots of the joint targets


@ranged(
    length=Real(0.05, 0.5, "m"), lift=Real(0.04, 0.2, "m"), swing=Real(0.2, 1.5, "s"), duration=Real(1.0, 4.0, "s"),
    dt=Real(1e-3, 0.01, "s"),
)
def h1_step(
    length: float = 0.3, lift: float = 0.08, swing: float = 0.6, duration: float = 1.5, dt: float = 5e-3
) -> OptimalControlProblem:
    """The left foot `length`, m, ahead; `lift`, m, above the ground at the time `swing`, s; standing at `duration`, s; steps of
    `dt`, s."""
    system = damped_system("h1", dt, max_contacts=8)
    steps, model, middle = round(duration / dt), system.model, round(swing / dt)
    home = np.asarray(model.keyframes["home"])
    joints = tuple(joint.name for joint in model.topology.joints[1:])
    left, right = (np.asarray(frame_placement(model, jnp.asarray(home), name)[1]) for name in (LEFT, RIGHT))
    ahead = np.array([length, 0.0, 0.0])
    com = np.asarray(centre_of_mass(model, jnp.asarray(home))) + 0.5 * ahead
    share = np.sqrt(dt)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    pelvis = share * np.array([0.0, 1.0, 5.0, 4.0, 4.0, 4.0])
    running = task(
        Control(weight=share / np.asarray(model.control_upper)), Velocity(joints, weight=0.1 * share, name="joint rates"),
        Posture(joints, reference=home, weight=1.0 * share, name="joints"),
        Posture(("root",), reference=home, weight=pelvis, name="pelvis"),
        FramePosition(RIGHT, reference=right, weight=10.0 * share, activation=Saturated(0.1), name="right foot"),
        Height(LEFT, reference=left[2] + lift, weight=via(steps, {middle: 40.0}), name="lift"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.2), activation=Saturated(1.0), name="standing"),
    )  # fmt: skip
    final = task(
        FramePosition(LEFT, reference=left + ahead, weight=20.0, name="left foot"),
        FramePosition(RIGHT, reference=right, weight=20.0, activation=Saturated(0.2), name="right foot"),
        FrameOrientation(LEFT, weight=5.0, name="left sole"), FrameOrientation(RIGHT, weight=5.0, name="right sole"),
        CentreOfMass(reference=com, weight=np.array([20.0, 20.0, 10.0]), activation=Saturated(0.2), name="balance"),
        Posture(("root",), reference=home, weight=np.array([0.0, 0.0, 0.0, 8.0, 8.0, 8.0]), name="upright"),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3), activation=Saturated(1.0)),
    )  # fmt: skip
    return OptimalControlProblem(
        "h1-step", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        certificate=lambda motion: step_quantities(system, motion, length), certificate_tolerances=LIMITS,
        solver="Hybrid", solver_options=search(model, duration),
    )  # fmt: skip


# The joints whose targets are searched: the legs, but for their turning.
LEGS = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in ("hip_roll", "hip_pitch", "knee", "ankle"))
STIFF, SOFT = 400.0, 60.0  # N m/rad: of hips, knees and torso; of arms; ankles in between
ANKLE = 200.0


def search(model: Model, duration: float) -> dict[str, object]:
    """CMA-ES over targets of the legs, then iLQR."""
    names, limits = model.topology.actuators, np.asarray(model.control_upper)
    stiffness = np.where(limits > 100.0, STIFF, SOFT)
    stiffness[[name.endswith("ankle") for name in names]] = ANKLE
    targets = JointTargets(
        round(duration / KNOT) + 1, stiffness, stiffness / 40.0, interpolation="cubic", deviation=0.1,
        mirror=np.array([[float(name == leg) for leg in LEGS] for name in names]),
    )  # fmt: skip
    return {
        "sampler": {"solver": "CMAES", "parametrisation": targets, "population": 64},
        "polisher": {"solver": "iLQR", "tolerance": 5e-2, "max_iterations": 300},
        "patience": 10, "improvement": 0.05, "generations": 50, "max_iterations": 600,
    }  # fmt: skip


OFF = 3e-3  # m: a sole farther from the ground than this is off it
LIFTED = 0.03  # m, of the whole left sole at once
LIMITS = GENERAL_LIMITS | {
    "length_error": 0.02,
    "right_foot_moved": 0.02,
    "lift_missing": 0.0,
    "feet_off_the_ground": OFF,
    "balance_missing": 0.0,
    "flight": 0.0,
    "other_contact": 0.0,
    "final_speed": 0.1,
    "final_tilt": 0.1,
}


def step_quantities(system: System, motion: Trajectory, length: float) -> dict[str, float]:
    """The named quantities of a step, m, s, rad, m/s and shares; LIMITS bounds those that make it one.

    step_length: of the left foot, forwards; length_error; right_foot_moved: its distance from its place at the end; lift: of the
    lowest point of the left sole, when that is highest; swing: s for which it is off the ground; flight: s with both feet off;
    feet_off_the_ground: farthest point of both soles at the end; balance: how far the centre of mass is inside the hull of both
    soles there, seen from above; other_contact: how deep any other shape came; final_speed, final_tilt; and `general_quantities`.
    """
    qs, model, dt = np.asarray(motion.xs)[:, : system.nq], system.model, float(system.dt)
    gap = gaps(model, qs)
    left, right = (np.stack([gap[name] for name in sole], 1) for sole in (LEFT_SOLE, RIGHT_SOLE))
    others = min(value.min() for name, value in gap.items() if name not in LEFT_SOLE + RIGHT_SOLE)
    moved = [
        np.asarray(frame_placement(model, jnp.asarray(qs[-1]), name)[1] - frame_placement(model, jnp.asarray(qs[0]), name)[1])
        for name in (LEFT, RIGHT)
    ]
    lift, off = float(left.min(1).max()), [sole.min(1) > OFF for sole in (left, right)]
    balance = certify(model, qs[-1], LEFT_SOLE + RIGHT_SOLE).com_offset
    return {
        "step_length": float(moved[0][0]),
        "length_error": abs(float(moved[0][0]) - length),
        "right_foot_moved": float(np.linalg.norm(moved[1])),
        "lift": lift,
        "lift_missing": max(LIFTED - lift, 0.0),
        "swing": float(off[0].sum()) * dt,
        "flight": float((off[0] & off[1]).sum()) * dt,
        "feet_off_the_ground": float(max(left[-1].max(), right[-1].max())),
        "balance": balance,
        "balance_missing": max(-balance, 0.0),
        "other_contact": max(-float(others), 0.0),
        "final_tilt": tilt(qs[-1]),
        **general_quantities(system, motion, gap, 6),
    }
