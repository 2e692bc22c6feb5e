r"""h1-step: from standing, H1 moves its centre of mass ahead by one step of the left foot, and stands.

    minimise    sum_t dt 1/2 (|w_u u/u_max|^2 + |w_v v_j|^2 + |w_p (q_j - q_0)|^2 + |b|^2 + |f|^2 + |s|^2) + 1/2 |via_l|^2 + 1/2
                |r_T(x_T)|^2
    via_l       the left foot `lift` above the ground at the time `swing`

over torques within their limits. b is the pelvis's height, attitude and distance to the side, f the right foot's distance from
its place and its velocity; s asks for rest with the left foot down and the centre of mass `advance` ahead in the last STANDS
seconds, and r_T for that, level soles at their first height, an upright pelvis and the first angles of the joints. f, s and r_T
level off (`Saturated`): a step that ends in a fall is cheaper than standing still. When the left foot leaves the ground and comes
down is not said, nor where: at rest the centre of mass is above the soles, so that it has gone ahead too.

An answer is a motion within LIMITS. Feet that come down touch and leave the ground several times, so that the cost has many kinks
near a step, along which solvers creep: a step need not be stationary.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, frame_placement
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
    standing,
    task,
    tilt,
    via,
)
from trajopt.problems.library.hopper_hops import off_the_ground
from trajopt.problems.library.static_pose import certify
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import (
    CentreOfMass,
    Control,
    FrameOrientation,
    FramePosition,
    FrameVelocity,
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
STANDS = 0.5  # s at the end, in which it is to stand
KNOT = 0.2  # s between two knots of the joint targets
LOWER = 0.05  # m, by which the pelvis may end below its first height and stand


@ranged(
    advance=Real(0.05, 0.3, "m"), lift=Real(0.04, 0.2, "m"), swing=Real(0.3, 1.5, "s"), duration=Real(1.2, 4.0, "s"),
    dt=Real(1e-3, 0.01, "s"),
)
def h1_step(
    advance: float = 0.15, lift: float = 0.08, swing: float = 0.6, duration: float = 1.8, dt: float = 5e-3
) -> OptimalControlProblem:
    """The centre of mass `advance`, m, ahead; the left foot `lift`, m, above the ground at the time `swing`, s; standing at
    `duration`, s; steps of `dt`, s."""
    system = damped_system("h1", dt, max_contacts=8)
    steps, model, middle = round(duration / dt), system.model, round(swing / dt)
    home = np.asarray(model.keyframes["home"])
    joints = tuple(joint.name for joint in model.topology.joints[1:])
    left, right = (np.asarray(frame_placement(model, jnp.asarray(home), name)[1]) for name in (LEFT, RIGHT))
    com = np.asarray(centre_of_mass(model, jnp.asarray(home))) + np.array([advance, 0.0, 0.0])
    share = np.sqrt(dt)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    pelvis = share * np.array([0.0, 1.0, 5.0, 4.0, 4.0, 4.0])
    running = task(
        Control(weight=2.0 * share / np.asarray(model.control_upper)), Velocity(joints, weight=0.25 * share, name="joint rates"),
        Posture(joints, reference=home, weight=1.0 * share, name="joints"),
        Posture(("root",), reference=home, weight=pelvis, name="pelvis"),
        FramePosition(RIGHT, reference=right, weight=20.0 * share, activation=Saturated(0.2), name="right foot"),
        Height(LEFT, reference=left[2] + lift, weight=via(steps, {middle: 100.0}), name="lift"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.5), activation=Saturated(1.0), name="standing"),
        FrameVelocity(LEFT, weight=3.0 * share * late, activation=Saturated(1.0), name="standing left foot"),
        Height(LEFT, reference=left[2], weight=30.0 * share * late, activation=Saturated(0.1), name="left foot down"),
        FrameVelocity(RIGHT, weight=1.0 * share, activation=Saturated(1.0), name="right foot at rest"),
        CentreOfMass(reference=com, weight=share * late * np.array([30.0, 10.0, 5.0]), activation=Saturated(0.2), name="ahead"),
    )  # fmt: skip
    final = task(
        CentreOfMass(reference=com, weight=np.array([30.0, 10.0, 5.0]), activation=Saturated(0.2), name="ahead at the end"),
        Height(LEFT, reference=left[2], weight=20.0, activation=Saturated(0.1), name="left foot"),
        FramePosition(RIGHT, reference=right, weight=20.0, activation=Saturated(0.1), name="right foot at the end"),
        FrameOrientation(LEFT, weight=15.0, activation=Saturated(0.2), name="left sole"),
        FrameOrientation(RIGHT, weight=15.0, activation=Saturated(0.2), name="right sole"),
        Posture(("root",), reference=home, weight=np.array([0.0, 0.0, 0.0, 8.0, 8.0, 8.0]), activation=Saturated(0.5),
                name="upright"),
        Posture(joints, reference=home, weight=2.0, activation=Saturated(0.5), name="joints at the end"),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.5, 2.5, 2.5), 0.33), activation=Saturated(0.6)),
    )  # fmt: skip
    return OptimalControlProblem(
        "h1-step", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        goals={
            "step": Goal(CentreOfMass(reference=com, weight=(1.0, 0.0, 0.0)), LIMITS["advance_error"], "m"),
            **standing(home, LOWER),
        },
        certificate=judged(
            lambda motion: step_quantities(system, motion, advance), LIMITS, ("advance_error", "final_speed", "final_tilt")
        ),
        defaults=Defaults("Hybrid", sample_then_polish(
            leg_targets(model, duration), 64, 60, 5e-2, 120, patience=25, attempts=6, polish_patience=10
        )),
    )  # fmt: skip


# What the targets of a leg are made of: hip roll; hip pitch and ankle, which swing it with the sole as it was; hip pitch, knee
# and ankle, which shorten it.
MODES = ({"hip_roll": 1.0}, {"hip_pitch": 1.0, "ankle": -1.0}, {"hip_pitch": -1.0, "knee": 2.0, "ankle": -1.0})
LEG, ANKLE, ARM = 800.0, 600.0, 60.0  # N m/rad: of hips, knees and torso, of ankles, of arms


def leg_targets(model: Model, duration: float) -> JointTargets:
    """Targets of the legs, a knot every KNOT seconds; the other joints keep their angles."""
    names, limits = model.topology.actuators, np.asarray(model.control_upper)
    stiffness = np.where(limits > 100.0, LEG, ARM)
    stiffness[[name.endswith("ankle") for name in names]] = ANKLE
    modes = [{f"{side}_{joint}": share for joint, share in mode.items()} for side in ("left", "right") for mode in MODES]
    mirror = np.array([[mode.get(name, 0.0) for mode in modes] for name in names])
    knots = round(duration / KNOT) + 1
    return JointTargets(knots, stiffness, stiffness / 40.0, interpolation="cubic", deviation=0.12, mirror=mirror)


OFF = 3e-3  # m: a sole farther from the ground than this is off it
LIFTED = 0.03  # m, of the whole left sole at once
REACHED = 0.01  # m: a whole sole that comes so far from the ground between two times on it has swung
LIMITS = GENERAL_LIMITS | {
    "advance_error": 0.02,
    "step_missing": 0.0,
    "right_foot_moved": 0.02,
    "lift_missing": 0.0,
    "swings_error": 0.0,
    "feet_off_the_ground": OFF,
    "balance_missing": 0.0,
    "flight": 0.0,
    "other_contact": 0.0,
    "final_speed": 0.1,
    "final_tilt": 0.1,
}


def step_quantities(system: System, motion: Trajectory, advance: float) -> dict[str, float]:
    """The named quantities of a step, m, s, rad, m/s and shares; LIMITS bounds those that make it one.

    advance: of the centre of mass, forwards; step_length: of the left foot, forwards, and what it lacks to `advance`;
    right_foot_moved: its distance from its place at the end; lift: of the lowest point of the left sole, when that is highest;
    swings: of the left foot, 1 for one step; swing: s for which it is off the ground; flight: s with both feet off;
    feet_off_the_ground: farthest point of both soles at the end; balance: how far the centre of mass is inside the hull of both
    soles there, seen from above; standing_speed: largest velocity of the base in the last 0.2 s; other_contact: how deep any
    other shape came; final_speed, final_tilt; and `general_quantities`.
    """
    xs, model, dt = np.asarray(motion.xs), system.model, float(system.dt)
    qs = xs[:, : system.nq]
    gap = gaps(model, qs)
    left, right = (np.stack([gap[name] for name in sole], 1) for sole in (LEFT_SOLE, RIGHT_SOLE))
    others = min(value.min() for name, value in gap.items() if name not in LEFT_SOLE + RIGHT_SOLE)
    ends = [jnp.asarray(q) for q in (qs[0], qs[-1])]
    moved = {name: np.subtract(*(np.asarray(frame_placement(model, q, name)[1]) for q in ends[::-1])) for name in (LEFT, RIGHT)}
    ahead = float(np.subtract(*(np.asarray(centre_of_mass(model, q))[0] for q in ends[::-1])))
    length = float(moved[LEFT][0])
    lift, count, off = float(left.min(1).max()), swings(left), [sole.min(1) > OFF for sole in (left, right)]
    balance = certify(model, qs[-1], LEFT_SOLE + RIGHT_SOLE).com_offset
    return {
        "advance": ahead,
        "advance_error": abs(ahead - advance),
        "step_length": length,
        "step_missing": max(advance - length, 0.0),
        "right_foot_moved": float(np.linalg.norm(moved[RIGHT])),
        "lift": lift,
        "lift_missing": max(LIFTED - lift, 0.0),
        "swings": float(count),
        "swings_error": float(abs(count - 1)),
        "swing": float(off[0].sum()) * dt,
        "flight": float((off[0] & off[1]).sum()) * dt,
        "feet_off_the_ground": float(max(left[-1].max(), right[-1].max())),
        "balance": balance,
        "balance_missing": max(-balance, 0.0),
        "standing_speed": float(np.abs(xs[-round(0.2 / dt) :, system.nq : system.nq + 6]).max()),
        "other_contact": max(-float(others), 0.0),
        "final_tilt": tilt(qs[-1]),
        **general_quantities(system, motion, gap, 6),
    }


def swings(sole: Float[np.ndarray, "T k"]) -> int:
    """How often a whole sole leaves the ground, comes REACHED far from it and returns; the end counts as a return."""
    stretches = off_the_ground(sole.min(1))
    return sum(bool(sole[begin:end].min(1).max() >= REACHED) for begin, end in stretches)
