"""Rigid-body dynamics and contact."""

from trajopt.dynamics.contact.compliant import CompliantContact, SpringDamperContact
from trajopt.dynamics.contact.law import BoxedLCP, NoContact, RigidContact, SmoothedContact
from trajopt.dynamics.contact.smoothed import kappa_schedule
from trajopt.dynamics.contact.solve_boxed_lcp import solve_boxed_lcp
from trajopt.dynamics.contact.solve_ncp import NCPResult, solve_ncp
from trajopt.dynamics.gradients import GRADIENTS, GradientOptions
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import Linearization, State, StepInfo
from trajopt.dynamics.system import System

__all__ = [
    "GRADIENTS", "BoxedLCP", "CompliantContact", "GradientOptions", "Linearization", "Model", "NCPResult", "NoContact",
    "RigidContact", "SmoothedContact", "SpringDamperContact", "State", "StepInfo", "System", "kappa_schedule",
    "solve_boxed_lcp", "solve_ncp",
]  # fmt: skip
