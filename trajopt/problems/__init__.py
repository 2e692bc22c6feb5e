"""Problems: least squares with bounds and priors, and the library by name (`problems.get("go1-stand")`)."""

from trajopt.problems.least_squares import LeastSquaresProblem, Prior
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.registry import get, names, parse_settings, register, settings

__all__ = [
    "LeastSquaresProblem",
    "OptimalControlProblem",
    "Prior",
    "Trajectory",
    "get",
    "names",
    "parse_settings",
    "register",
    "settings",
]
