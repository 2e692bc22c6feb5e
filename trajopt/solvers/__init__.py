"""Solvers: one contract, one loop. `solve(problem, GaussNewton())` returns a `Solution`."""

from trajopt.result import Status
from trajopt.solvers.base import solve
from trajopt.solvers.first_order import GradientDescent
from trajopt.solvers.gauss_newton import GaussNewton
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.ilqr import DDP, iLQR
from trajopt.solvers.lbfgs import LBFGS
from trajopt.solvers.moving_horizon import MovingHorizon
from trajopt.solvers.multiple_shooting import MultipleShooting
from trajopt.solvers.registry import SOLVERS, get, names
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.mppi import MPPI
from trajopt.solvers.sampling.stochastic_search import StochasticSearch
from trajopt.solvers.single_shooting import SingleShooting
from trajopt.solvers.solution import Solution

__all__ = [
    "CEM",
    "CMAES",
    "DDP",
    "SOLVERS",
    "GaussNewton",
    "GradientDescent",
    "Hybrid",
    "LBFGS",
    "MPPI",
    "MovingHorizon",
    "MultipleShooting",
    "SingleShooting",
    "Solution",
    "Status",
    "StochasticSearch",
    "get",
    "iLQR",
    "names",
    "solve",
]
