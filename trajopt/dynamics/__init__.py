"""Rigid-body dynamics and contact."""

from trajopt.dynamics.contact.compliant import CompliantContact, SpringDamperContact
from trajopt.dynamics.contact.law import BoxedLCP, NoContact, RigidContact
from trajopt.dynamics.contact.solve_boxed_lcp import solve_boxed_lcp
from trajopt.dynamics.contact.solve_ncp import NCPResult, solve_ncp
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import Linearization, State, StepInfo
from trajopt.dynamics.system import System

__all__ = [
    "BoxedLCP", "CompliantContact", "Linearization", "Model", "NCPResult", "NoContact", "RigidContact", "SpringDamperContact",
    "State", "StepInfo", "System", "solve_boxed_lcp", "solve_ncp",
]  # fmt: skip
