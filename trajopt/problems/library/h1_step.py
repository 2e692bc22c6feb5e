r"""h1-step: draft."""

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
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import (
    CentreOfMass,
    Control,
    FrameOrientation,
    FramePosition,
    Height,
    Posture,
    Saturated,
    Velocity,
)
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

LEFT, RIGHT = "left_ankle_link", "right_ankle_link"
SOLE = ("heel_left", "heel_right", "toe_left", "toe_right")
STANDS = 0.4
KNOT = 0.15


@ranged(
    length=Real(0.05, 0.5, "m"), lift=Real(0.02, 0.2, "m"), swing=Real(0.2, 1.5, "s"), duration=Real(1.0, 4.0, "s"),
    dt=Real(1e-3, 0.01, "s"),
)
def h1_step(
    length: float = 0.3, lift: float = 0.08, swing: float = 0.6, duration: float = 1.5, dt: float = 5e-3
) -> OptimalControlProblem:
    """Draft."""
    system = damped_system("h1", dt, max_contacts=8)
    steps, model = round(duration / dt), system.model
    home = np.asarray(model.keyframes["home"])
    joints = tuple(joint.name for joint in model.topology.joints[1:])
    places = {name: np.asarray(frame_placement(model, jnp.asarray(home), name)[1]) for name in (LEFT, RIGHT)}
    forward = np.array([1.0, 0.0, 0.0])
    goal = places[LEFT] + length * forward
    com = np.asarray(centre_of_mass(model, jnp.asarray(home))) + 0.5 * length * forward
    share = np.sqrt(dt)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    middle = round(swing / dt)
    running = task(
        Control(weight=0.2 * share / np.asarray(model.control_upper) * 5), Velocity(joints, weight=0.1 * share, name="joint rates"),
        Posture(joints, reference=home, weight=1.0 * share, name="joints"),
        Posture(("root",), reference=home, weight=share * np.array([0.0, 1.0, 5.0, 4.0, 4.0, 4.0]), name="upright"),
        FramePosition(RIGHT, reference=places[RIGHT], weight=10.0 * share, activation=Saturated(0.1), name="right foot"),
        Height(LEFT, reference=places[LEFT][2] + lift, weight=via(steps, {middle: 40.0}), name="lift"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.2), name="standing"),
    )  # fmt: skip
    final = task(
        FramePosition(LEFT, reference=goal, weight=20.0, name="left foot"),
        FramePosition(RIGHT, reference=places[RIGHT], weight=20.0, activation=Saturated(0.2), name="right foot"),
        FrameOrientation(LEFT, weight=3.0, name="left sole"), FrameOrientation(RIGHT, weight=3.0, name="right sole"),
        CentreOfMass(reference=com, weight=np.array([20.0, 20.0, 10.0]), activation=Saturated(0.2), name="balance"),
        Posture(("root",), reference=home, weight=np.array([0.0, 0.0, 0.0, 8.0, 8.0, 8.0]), name="upright"),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3)),
    )  # fmt: skip
    return OptimalControlProblem(
        "h1-step", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        certificate=lambda motion: step_quantities(system, motion, length), certificate_tolerances=LIMITS,
        solver="Hybrid", solver_options=search(model, duration),
    )  # fmt: skip


# Which targets are searched: a lean to one side by both hips, the legs in their planes.
SEARCHED = ("hip_roll", "left_hip_pitch", "left_knee", "left_ankle", "right_hip_pitch", "right_knee", "right_ankle")


def search(model: Model, duration: float) -> dict[str, object]:
    names = model.topology.actuators
    mirror = np.array([[float(name.endswith(mode)) for mode in SEARCHED] for name in names])
    limits = np.asarray(model.control_upper)
    stiffness = np.where(limits > 100, 400.0, np.where(limits > 30, 200.0, 60.0))
    damping = stiffness / 40.0
    targets = JointTargets(
        round(duration / KNOT) + 1, stiffness, damping, interpolation="cubic", mirror=mirror, deviation=0.1, reach=1.0
    )
    return {
        "sampler": {"solver": "CMAES", "parametrisation": targets, "population": 64},
        "polisher": {"solver": "iLQR", "tolerance": 5e-2, "max_iterations": 300},
        "patience": 10, "improvement": 0.05, "generations": 60, "max_iterations": 600,
    }  # fmt: skip


LIMITS = GENERAL_LIMITS | {
    "length_error": 0.02,
    "other_foot": 0.02,
    "lift_missing": 0.0,
    "feet_off_the_ground": 3e-3,
    "balance_missing": 0.0,
    "other_contact": 0.0,
    "final_speed": 0.1,
    "final_tilt": 0.1,
}


def step_quantities(system: System, motion: Trajectory, length: float) -> dict[str, float]:
    qs = np.asarray(motion.xs)[:, : system.nq]
    model = system.model
    gap = gaps(model, qs)
    left, right = (np.stack([gap[f"{side}_{point}"] for point in SOLE], 1) for side in ("left", "right"))
    others = min(v.min() for k, v in gap.items() if not k.endswith(SOLE))
    place = {f: [np.asarray(frame_placement(model, jnp.asarray(q), f)[1]) for q in (qs[0], qs[-1])] for f in (LEFT, RIGHT)}
    com = np.asarray(centre_of_mass(model, jnp.asarray(qs[-1])))
    moved = place[LEFT][1] - place[LEFT][0]
    lifted = float(left.min(1).max())
    ankles = [place[f][1] for f in (LEFT, RIGHT)]
    margin = min(com[0] - (min(a[0] for a in ankles) - 0.035), max(a[0] for a in ankles) + 0.14 - com[0])
    return {
        "step_length": float(moved[0]),
        "length_error": abs(float(moved[0]) - length),
        "lift": lifted,
        "lift_missing": max(0.03 - lifted, 0.0),
        "other_foot": float(np.linalg.norm(place[RIGHT][1] - place[RIGHT][0])),
        "feet_off_the_ground": float(max(left[-1].max(), right[-1].max())),
        "balance": float(margin),
        "balance_missing": max(-float(margin), 0.0),
        "other_contact": max(-float(others), 0.0),
        "final_tilt": tilt(qs[-1]),
        **general_quantities(system, motion, gap, 6),
    }
