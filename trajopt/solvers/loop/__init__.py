"""The loop that drives every solver: its contract with problems and solvers, the solution it returns, options, checkpoints,
interrupts. Those who write a solver of their own import from here."""

from trajopt.options import check_options
from trajopt.solvers.loop.base import solve
from trajopt.solvers.loop.contract import (
    Findings,
    LibrarySolver,
    Oracle,
    Problem,
    Solver,
    SolverState,
    default_tolerance,
    ended_by,
)
from trajopt.solvers.loop.solution import Solution

__all__ = [
    "Findings",
    "LibrarySolver",
    "Oracle",
    "Problem",
    "Solution",
    "Solver",
    "SolverState",
    "check_options",
    "default_tolerance",
    "ended_by",
    "solve",
]
