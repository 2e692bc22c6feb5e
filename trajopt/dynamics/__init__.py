"""Rigid-body dynamics and contact."""

from trajopt.dynamics.contact.law import NoContact, RigidContact
from trajopt.dynamics.contact.solve_ncp import NCPResult, solve_ncp
from trajopt.dynamics.model import Model
from trajopt.dynamics.system import Linearization, State, StepInfo, System

__all__ = ["Linearization", "Model", "NCPResult", "NoContact", "RigidContact", "State", "StepInfo", "System", "solve_ncp"]
