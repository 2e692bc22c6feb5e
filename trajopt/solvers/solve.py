"""`solve`: the loop with the solver that a problem asks for, and with contact smoothed where the solver asks for that."""

import dataclasses
import inspect
from typing import Any

from trajopt.errors import OptionError
from trajopt.names import closest
from trajopt.solvers.continuation import Continuation, applies
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.loop import base
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.registry import chosen_solver
from trajopt.solvers.sampling.cem import CEM

# Of the draws where smoothed contact alone leaves a goal missed.
SEARCH = {"attempts": 3, "generations": 100, "patience": 15, "polish_patience": 20}
KEYWORDS = tuple(inspect.signature(base.solve).parameters)[2:]


def solve(problem: Any, solver: Any = None, **arguments: Any) -> Solution:
    """Solve `problem` with `solver` and return the best point found, a `Solution` whose residuals are recomputed.

    Arguments:
        solver: such as `iLQR()`. Default: the problem's own (`Defaults`); with contact and goals also sampling, if that misses
            a goal.
        arguments: keywords. x0: a guess, or a `Solution` to start from. gradient: the name of a gradient mode. callback: called
            after every iteration with a row of the trace; a true answer stops the run. seed: of all random numbers.
            time_budget (s): of solving, without compiling. max_iterations: of this call. checkpoint: path of a file that keeps
            the state. resume: path of such a file to continue from.

    Ctrl-C returns the best point so far with the status `interrupted`. Raises, before anything is compiled, `OptionError`,
    `ShapeError` or `NonFiniteError`, naming the argument.
    """
    for name in arguments.keys() - KEYWORDS:
        raise OptionError(f"solve got an unexpected keyword argument '{name}'{closest(name, KEYWORDS)}")
    if getattr(problem, "defaults", None) is None:
        kinds = "OptimalControlProblem or LeastSquaresProblem, or problems.get(NAME)"
        raise OptionError(f"problem is a {type(problem).__name__}; expected an {kinds}")
    return base.solve(problem, default_solver(problem) if solver is None else continued(problem, solver), **arguments)


def default_solver(problem: Any) -> Any:
    """What `solve` takes where no solver is named."""
    solver = continued(problem, chosen_solver(problem, problem.defaults.solver))
    if not isinstance(solver, Continuation) or not problem.goals:
        return solver
    search = Hybrid(CEM(), solver.solver, **SEARCH)
    return dataclasses.replace(solver, search=search, max_iterations=solver.max_iterations + search.max_iterations)


def continued(problem: Any, solver: Any) -> Any:
    """The solver, or for a problem with rigid contact its `Continuation` where the option `smoothing` asks for one."""
    if not applies(problem, solver):
        return solver
    alone = dataclasses.replace(solver, smoothing=None)
    return Continuation(alone, solver.smoothing, max_iterations=3 * solver.max_iterations)
