"""Residuals: the words in which a task is stated.

    from trajopt.problems import residuals as r

    stage = sum([r.Posture(weight=0.1), r.Control(weight=1e-2), r.ContactImpulse("FL_foot", name="left foot")])
    problem = OptimalControlProblem("reach", system, 50, x0, stage_residual=stage, terminal_residual=r.FramePosition("tool"))

Each is a small object with a name, a weight, a reference and an activation (`base`); they add up.
"""

from trajopt.problems.residuals.activations import Activation, Barrier, Saturated, SmoothAbsolute
from trajopt.problems.residuals.base import Function, Residual, StepOutcome, Terms
from trajopt.problems.residuals.contact import (
    CentreOfPressure,
    Clearance,
    ContactImpulse,
    Distance,
    FrictionShare,
    Slip,
)
from trajopt.problems.residuals.frames import (
    CentreOfMass,
    CentroidalMomentum,
    FrameOrientation,
    FramePlacement,
    FramePosition,
    FrameVelocity,
    Height,
)
from trajopt.problems.residuals.joints import Acceleration, Control, LimitMargin, Posture, Velocity

__all__ = [
    "Acceleration", "Activation", "Barrier", "CentreOfMass", "CentreOfPressure", "CentroidalMomentum", "Clearance",
    "ContactImpulse", "Control", "Distance", "FrameOrientation", "FramePlacement", "FramePosition", "FrameVelocity",
    "FrictionShare", "Function", "Height", "LimitMargin", "Posture", "Residual", "Saturated", "Slip", "SmoothAbsolute",
    "StepOutcome", "Terms", "Velocity",
]  # fmt: skip
