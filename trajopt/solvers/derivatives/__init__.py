"""The derivative of a solution by the numbers of its problem."""

from trajopt.solvers.derivatives.differentiable import Optimum, differentiable
from trajopt.solvers.derivatives.sensitivity import Change, Sensitivity, sensitivity

__all__ = ["Change", "Optimum", "Sensitivity", "differentiable", "sensitivity"]
