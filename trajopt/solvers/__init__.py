"""Solvers: one contract, one loop. `solve(problem, GaussNewton())` returns a `Solution`."""

from trajopt.result import Status
from trajopt.solvers.base import solve
from trajopt.solvers.first_order import GradientDescent
from trajopt.solvers.gauss_newton import GaussNewton
from trajopt.solvers.ilqr import DDP, iLQR
from trajopt.solvers.lbfgs import LBFGS
from trajopt.solvers.multiple_shooting import MultipleShooting
from trajopt.solvers.registry import SOLVERS, get, names
from trajopt.solvers.single_shooting import SingleShooting
from trajopt.solvers.solution import Solution

__all__ = [
    "DDP",
    "SOLVERS",
    "GaussNewton",
    "GradientDescent",
    "LBFGS",
    "MultipleShooting",
    "SingleShooting",
    "Solution",
    "Status",
    "get",
    "iLQR",
    "names",
    "solve",
]
