"""Many starts of one problem: `solve_batch`."""

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any

from trajopt.errors import OptionError
from trajopt.options import check_number
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.batch.fits import BatchedGaussNewton, FitMethod, solve_fits
from trajopt.solvers.batch.jaxopt_lbfgs import JaxoptFit
from trajopt.solvers.batch.motions import solve_motions
from trajopt.solvers.batch.samples import samples_of
from trajopt.solvers.batch.solution import BatchSolution
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.least_squares.gauss_newton import GaussNewton
from trajopt.solvers.least_squares.lbfgs import LBFGS
from trajopt.solvers.loop.base import check_solver


def solve_batch(
    problem: LeastSquaresProblem | OptimalControlProblem,
    solver: Any,
    *,
    guesses: Any = None,
    data: Any = None,
    x0: Any = None,
    start_time: Any = None,
    references: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    gradient: str | None = None,
    max_iterations: int | None = None,
) -> BatchSolution:
    """Solve `problem` from many starts, or with many data, at once, in one compiled program.

    Arrays have one more axis, the first, for the B samples; what is not given is the problem's own in all of them.

    Arguments:
        solver: for least squares `GaussNewton`, or `LBFGS` (here jaxopt's L-BFGS, without bounds);
            for optimal control `iLQR` or `DDP`.
        guesses: where each sample starts: (B, nx), or controls (B, T, nu), or a `Trajectory` of stacked arrays.
        data: of least squares, what stands for the problem's own `data`.
        x0, start_time, references, weights: of optimal control, as of `OptimalControlProblem.replace`: initial states (B, nx), s
            (B,), {name: (B, ...)}.
        gradient: as of `solve`. max_iterations: of each sample; default the solver's own.

    Every sample has a status of its own; values that are not finite stay in their sample. On a CPU the program takes one sample
    after the other, elsewhere all in lockstep, where those that are done wait for the slowest. Raises, before anything is
    compiled, what the problem's validation finds wrong with a sample, naming it, `ShapeError` for first axes of different
    lengths, and `OptionError` for what this kind of problem or solver does not take.
    """
    if type(problem) not in (LeastSquaresProblem, OptimalControlProblem):
        raise OptionError(
            f"solve_batch: problem is {problem!r}; expected a LeastSquaresProblem or an OptimalControlProblem"
        )
    check_solver(problem, solver)
    check_number("solve_batch: max_iterations", max_iterations, "[0, inf)", int, NoneType)
    changes = {"data": data, "x0": x0, "start_time": start_time, "references": references, "weights": weights}
    samples = samples_of(problem, guesses, changes)
    mode = problem.defaults.gradient if gradient is None else gradient
    assert mode is not None  # validation of a problem sets its own
    problem.check_gradient(mode)
    if max_iterations is not None:
        solver = dataclasses.replace(solver, max_iterations=max_iterations)
    if isinstance(problem, OptimalControlProblem):
        if not isinstance(solver, iLQR | DDP):
            raise OptionError(f"solve_batch: {solver.name} does not solve optimal control in batches; use iLQR or DDP")
        return solve_motions(samples, solver, problem, mode)
    return solve_fits(samples, _fit_method(problem, solver, mode))


def _fit_method(problem: LeastSquaresProblem, solver: Any, gradient: str) -> FitMethod:
    """What solves a least-squares problem in batches."""
    if isinstance(solver, GaussNewton):
        return BatchedGaussNewton(solver.iteration(problem, gradient, batched=True), solver)
    if isinstance(solver, LBFGS):
        return JaxoptFit(problem, solver, gradient)
    raise OptionError(f"solve_batch: {solver.name} does not run in batches; use GaussNewton or LBFGS")
