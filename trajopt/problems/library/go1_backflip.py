r"""go1-backflip: draft."""

from __future__ import annotations

import numpy as np

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
from trajopt.problems.library.go1_jump import CALVES, FEET, KNEE, SAGITTAL, TOUCHING, landing, takeoff
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Control, Height, Posture, Velocity
from trajopt.problems.residuals.activations import Barrier, Saturated
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

STANDS = 0.3
KNOT = 0.1
RATE = -11.0


@ranged(height=Real(0.05, 0.6, "m"), apex=Real(0.3, 1.0, "s"), duration=Real(0.8, 3.0, "s"), torque_share=Real(0.5, 1.0, ""), dt=Real(1e-3, 0.01, "s"))
def go1_backflip(height: float = 0.4, apex: float = 0.6, duration: float = 1.5, torque_share: float = 0.9, dt: float = 4e-3) -> OptimalControlProblem:
    """Draft."""
    system = damped_system("go1", dt, max_contacts=8)
    steps, top, model = round(duration / dt), round(apex / dt), system.model
    home = np.asarray(model.keyframes["home"])
    inverted = home.copy()
    inverted[2] += height
    inverted[3:7] = (0.0, 0.0, -1.0, 0.0)
    legs = tuple(joint.name for joint in model.topology.joints[1:])
    share = np.sqrt(dt)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    turning = np.zeros(model.nv)
    turning[4] = RATE
    running = task(
        Control(weight=0.02 * share), Velocity(legs, weight=0.03 * share, name="joint rates"),
        Posture(legs, reference=home, weight=0.3 * share, name="legs"),
        Posture(("root",), reference=inverted, weight=via(steps, {top: np.array([0, 0, 20.0, 8.0, 8.0, 8.0])}), name="inverted"),
        Velocity(reference=turning, weight=via(steps, {top: on_dofs(model, (0.0, 0.0, 2.0, 0.0, 1.0, 0.0), 0.0)}), name="turning"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.3), activation=Saturated(np.full(18, 1.0)), name="standing"),
        *(Height(name, reference=KNEE, weight=2.0 * share, activation=Saturated(2.0, Barrier(KNEE)), name=f"knee {name}") for name in CALVES),
        Height("trunk", reference=0.1, weight=3.0 * share, activation=Saturated(4.0, Barrier(0.1)), name="trunk"),
    )  # fmt: skip
    scale = on_dofs(model, (0.5, 0.5, 0.1, 0.3, 0.3, 0.3), 0.3)
    final = task(
        Posture(reference=home, weight=on_dofs(model, (1.0, 1.0, 40.0, 20.0, 20.0, 10.0), 6.0), activation=Saturated(scale)),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 5.0, 2.0, 2.0, 2.0), 0.3), activation=Saturated(np.full(18, 1.0))),
    )  # fmt: skip
    return OptimalControlProblem(
        "go1-backflip", system, steps, at_rest(model, home), stage_residual=running, terminal_residual=final,
        control_lower=torque_share * np.asarray(model.control_lower), control_upper=torque_share * np.asarray(model.control_upper),
        certificate=lambda motion: flip_quantities(system, motion), certificate_tolerances=LIMITS,
        solver="Hybrid", solver_options=search(duration),
    )  # fmt: skip


def search(duration: float) -> dict[str, object]:
    targets = JointTargets(round(duration / KNOT) + 1, 80.0, 1.0, mirror=SAGITTAL, deviation=0.5)
    return {
        "sampler": {"solver": "CMAES", "parametrisation": targets, "population": 96},
        "polisher": {"solver": "iLQR", "tolerance": 5e-2, "max_iterations": 300},
        "patience": 10, "improvement": 0.05, "generations": 80, "max_iterations": 600,
    }  # fmt: skip


LIMITS = GENERAL_LIMITS | {
    "turn_missing": 0.05,
    "feet_off_the_ground": TOUCHING,
    "other_contact": 0.0,
    "final_speed": 0.1,
    "final_tilt": 0.1,
}


def turned(qs):
    """Angle by which the base has turned about the world's y, nose down positive, rad, at each state."""
    w, y = qs[:, 3], qs[:, 5]
    return np.unwrap(2 * np.arctan2(y, w), period=2 * np.pi)


def flip_quantities(system: System, motion: Trajectory) -> dict[str, float]:
    qs = np.asarray(motion.xs)[:, : system.nq]
    gap = gaps(system.model, qs)
    feet = np.stack([gap[name] for name in FEET], 1)
    others = {name: value.min() for name, value in gap.items() if name not in FEET}
    pitch = float(turned(qs)[-1])
    landed = landing(feet)
    return {
        "pitch_turned": pitch,
        "turn_missing": abs(pitch + 2 * np.pi),
        "apex": float(qs[:, 2].max() - qs[0, 2]),
        "flight": (landed - takeoff(feet)) * float(system.dt),
        "drift": float(np.linalg.norm(qs[-1, :2] - qs[landed, :2])),
        "feet_off_the_ground": float(feet[-1].max()),
        "other_contact": max(-float(min(others.values())), 0.0),
        "final_tilt": tilt(qs[-1]),
        **general_quantities(system, motion, gap, 6),
    }
