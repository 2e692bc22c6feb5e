"""Least squares of many samples: one program of a method, and what is recomputed at the answers."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.problems.goals import shortfalls_of
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.oracle import Linearization
from trajopt.problems.programs import compiled, subject
from trajopt.solvers.batch.jaxopt_lbfgs import JaxoptFit
from trajopt.solvers.batch.samples import Samples, with_numbers
from trajopt.solvers.batch.solution import BatchSolution, by_name, verdicts
from trajopt.solvers.least_squares.gauss_newton import GaussNewton, covariance, sandwich
from trajopt.solvers.least_squares.iteration import FitIteration, FitState
from trajopt.solvers.least_squares.state import free_variables
from trajopt.solvers.subproblems.batching import each_sample


@subject("iteration")
@dataclasses.dataclass(frozen=True)
class BatchedGaussNewton:
    """`GaussNewton` for one problem, whose data may be traced."""

    iteration: FitIteration
    solver: GaussNewton

    @property
    def problem(self) -> LeastSquaresProblem:
        return self.iteration.problem

    @property
    def gradient(self) -> str:
        return self.iteration.gradient

    def on(self, problem: LeastSquaresProblem) -> BatchedGaussNewton:
        """The same for the problem on other data."""
        return dataclasses.replace(self, iteration=self.iteration.on(problem))

    def solve(self, x: Float[Array, " nx"]) -> FitState:
        """The state in which the iteration from x ends."""
        return self.iteration.solve(x, self.solver.damping, self.solver.max_iterations)


FitMethod = BatchedGaussNewton | JaxoptFit


def solve_fits(samples: Samples, method: FitMethod) -> BatchSolution:
    """The answers of all samples by one program, their covariances where the method is Gauss-Newton."""
    problem, solver = method.problem, method.solver
    points, numbers = jax.tree.map(jnp.asarray, (samples.points, samples.numbers))
    program, compiling = compiled(_solved, method, points, numbers)
    judge, judging = compiled(_judged, Linearization(problem, method.gradient), points, numbers)
    start = time.perf_counter()
    states = jax.tree.map(np.asarray, jax.block_until_ready(program(points, numbers)))
    seconds = time.perf_counter() - start
    found = jax.tree.map(np.asarray, judge(jnp.asarray(states.point.x), numbers))
    values = [
        own.residuals(states.point.x[k], np.asarray(found["r"][k], float))
        | {"gradient_norm": float(states.point.gradient_norm[k]), "removable_residual": float(states.point.removable[k])}
        for k, own in enumerate(samples.problems)
    ]
    missing = [shortfalls_of(own, row) for own, row in zip(samples.problems, values, strict=True)]
    statuses, success = verdicts(samples.problems, states.code, missing, states.point.cost)
    residuals = by_name(values)
    return BatchSolution(
        problem=problem.name,
        solver=solver.name,
        gradient=method.gradient,
        status=statuses,
        success=success,
        x=states.point.x,
        cost=states.point.cost,
        initial_cost=states.initial_cost,
        violation=residuals["bound_violation"],
        iterations=states.iterations,
        residuals=residuals,
        compile_time_s=compiling + judging,
        wall_time_s=seconds,
        covariance=_covariances(problem, solver, states, found) if isinstance(solver, GaussNewton) else None,
    )


def _solved(method: FitMethod, points: Array, numbers: Any) -> FitState:
    return each_sample(lambda own, x: method.on(with_numbers(method.problem, own)).solve(x), numbers, points)


def _judged(linearization: Linearization, points: Array, numbers: Any) -> dict[str, Array]:
    """Residual and Jacobian at each point, and what the covariance of a robust loss needs, anew."""

    def at(own: Any, x: Array) -> dict[str, Array]:
        problem = with_numbers(linearization.problem, own)
        r, J = problem.linearization(linearization.gradient)(x)
        return {"r": r, "J": J, "bend": problem.curvature(x), "slope": problem.slope(x)}

    return each_sample(at, numbers, points)


def _covariances(
    problem: LeastSquaresProblem, solver: GaussNewton, states: FitState, found: dict[str, np.ndarray]
) -> Float[np.ndarray, "b n n"]:
    """Of every sample as `GaussNewton.finish` states it; not a number where x is not determined."""
    J, r = np.asarray(found["J"], float), np.asarray(found["r"], float)
    values = np.full((len(J), J.shape[2], J.shape[2]), np.nan)
    m = r.shape[1] - (0 if problem.prior is None else problem.prior.weight().shape[0])
    for k in range(len(J)):
        if not np.isfinite(J[k]).all():
            continue
        free = free_variables(problem, np.asarray(states.point.x[k]), J[k].T @ r[k])
        value, _ = covariance(J[k], free)
        if value is not None and problem.loss != "linear":
            value = sandwich(r[k], J[k], free, found["bend"][k], found["slope"][k], m)
        values[k] = np.nan if value is None else value
    return values
