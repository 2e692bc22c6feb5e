"""Solvers: one contract, one loop. `solve(problem, GaussNewton())` returns a `Solution`."""

from trajopt.result import Status
from trajopt.solvers.base import solve
from trajopt.solvers.first_order import GradientDescent
from trajopt.solvers.gauss_newton import GaussNewton
from trajopt.solvers.registry import SOLVERS, get, names
from trajopt.solvers.solution import Solution

__all__ = ["SOLVERS", "GaussNewton", "GradientDescent", "Solution", "Status", "get", "names", "solve"]
