"""Problems: optimal control, least squares with bounds and priors, and the library by name (`problems.get("go1-stand")`).

A problem validates its arguments and compiles itself to an oracle, the functions that solvers call.
"""

from trajopt.problems import guesses, residuals
from trajopt.problems.goals import Goal
from trajopt.problems.least_squares import LeastSquaresProblem, Prior
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.parts import Certificate, Defaults, Display
from trajopt.problems.periodic import periodic
from trajopt.problems.ranges import Choice, Count, Real, ranged
from trajopt.problems.registry import get, names, parse_settings, register, settings, unregister
from trajopt.problems.targets import JointTargets

__all__ = [
    "Certificate",
    "Choice",
    "Count",
    "Defaults",
    "Display",
    "Goal",
    "JointTargets",
    "LeastSquaresProblem",
    "OptimalControlProblem",
    "Prior",
    "Real",
    "Trajectory",
    "get",
    "guesses",
    "names",
    "parse_settings",
    "periodic",
    "ranged",
    "register",
    "residuals",
    "settings",
    "unregister",
]
