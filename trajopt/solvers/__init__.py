"""Solvers: one contract, one loop. `solve(problem, GaussNewton())` returns a `Solution`.

`loop` has the contract and the loop, `registry` the solvers by name; every kind of method has a folder. `sweeps` solves many
problems at once.
"""

from trajopt.result import Status
from trajopt.solvers.batch import BatchSolution, solve_batch
from trajopt.solvers.continuation import Continuation
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.derivatives import Change, Optimum, Sensitivity, differentiable, sensitivity
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.least_squares.first_order import GradientDescent
from trajopt.solvers.least_squares.gauss_newton import GaussNewton
from trajopt.solvers.least_squares.lbfgs import LBFGS
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.registry import SOLVERS, get, names
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.mppi import MPPI
from trajopt.solvers.sampling.predictive import PredictiveSampling
from trajopt.solvers.sampling.stochastic_search import StochasticSearch
from trajopt.solvers.shooting.multiple import MultipleShooting
from trajopt.solvers.shooting.single import SingleShooting
from trajopt.solvers.solve import solve
from trajopt.solvers.sweeps import Comparison, Outcome, Processes, Task, compare, solve_many, solve_tasks

__all__ = [
    "BatchSolution",
    "CEM",
    "Change",
    "CMAES",
    "DDP",
    "SOLVERS",
    "Comparison",
    "Continuation",
    "GaussNewton",
    "GradientDescent",
    "Hybrid",
    "LBFGS",
    "MPPI",
    "Outcome",
    "PredictiveSampling",
    "Processes",
    "MultipleShooting",
    "Optimum",
    "Sensitivity",
    "SingleShooting",
    "Solution",
    "Status",
    "StochasticSearch",
    "Task",
    "compare",
    "differentiable",
    "get",
    "iLQR",
    "names",
    "sensitivity",
    "solve",
    "solve_batch",
    "solve_many",
    "solve_tasks",
]
