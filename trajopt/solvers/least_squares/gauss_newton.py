"""Gauss-Newton with Levenberg-Marquardt damping, bounds and minimum-norm steps.

An iteration minimises the linear model |r + J dx|^2 + mu |dx / scale|^2 over the bounds (`iteration`). It starts undamped, so
that zero-residual problems converge quadratically; a step whose cost falls by less than a fraction of what the model
promised (the gain ratio) is refused and the damping raised, a good one lowers it again, down to zero. The linear
problem is solved by a singular value decomposition, so that rank-deficient Jacobians give the step of smallest norm.
Bounds are handled by an active set: variables at a bound that the gradient pushes against are held; if the step of the
others leaves the bounds, the offenders are held at theirs and the step is recomputed.

An `OptimalControlProblem` with residual costs is an estimation problem over a horizon, and its normal equations are
block-tridiagonal (with an arrow of the parameters): see `horizon`.

Nocedal and Wright, Numerical Optimization, 2006, chapter 10; gain-ratio rule after Nielsen, 1999.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from trajopt.dynamics.effort import Effort
from trajopt.names import NamedOptions
from trajopt.options import check_options
from trajopt.problems.estimates import deviations
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.result import Status, status_name
from trajopt.solvers.ddp.ilqr import iLQR
from trajopt.solvers.estimation.horizon import HorizonGaussNewton
from trajopt.solvers.least_squares.iteration import FitIteration, FitPoint, FitState, fields, measures
from trajopt.solvers.least_squares.state import ResidualState, free_variables, tolerance_of
from trajopt.solvers.loop.contract import GOING_ON, Findings, status_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GaussNewtonState(ResidualState):
    """Adds where the iteration stands."""

    fit: FitState


@dataclasses.dataclass(frozen=True)
class GaussNewton(NamedOptions):
    """Levenberg-Marquardt for `LeastSquaresProblem`, and for an `OptimalControlProblem` with residual costs.

    Options:
        tolerance: the solver stops when the part of the residual that the linearised problem can still remove is below
            $tolerance * max(|r|, 1)$. Default: 1e-10 in float64, 1e-5 in float32. A problem's own tolerance stops it too.
            Over a horizon the tolerance is that of iLQR, by default 1e-7 in float64.
        max_iterations: largest number of accepted steps.
        damping: initial damping, relative to the largest squared singular value of J * scale; 0 starts with Gauss-Newton.
            Over a horizon it is in units of the Hessian.

    Raises `OptionError` for unusable options and for a horizon with general costs.
    """

    name: ClassVar[str] = "GaussNewton"
    takes: ClassVar[tuple[type, ...]] = (LeastSquaresProblem, OptimalControlProblem)

    tolerance: float | None = None
    max_iterations: int = 50
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_options(self, tolerance="(0, inf)", damping="[0, inf)", max_iterations="[0, inf)")

    def acting_on(self, problem: Any) -> GaussNewton | HorizonGaussNewton:
        """What iterates on a problem."""
        if not isinstance(problem, OptimalControlProblem):
            return self
        iteration = iLQR(
            tolerance=self.tolerance, max_iterations=self.max_iterations, damping=self.damping, shooting="multiple",
            regularisation="state",
        )  # fmt: skip
        return HorizonGaussNewton(iteration)

    def init(self, oracle: LeastSquaresOracle, guess: Float[np.ndarray, " nx"], key: PRNGKeyArray) -> GaussNewtonState:
        """State at the guess."""
        x = np.asarray(guess, oracle.problem.x0.dtype)
        fit = self.iteration(oracle.problem, oracle.gradient).blank(x, self.damping)
        return self._passed(oracle, GaussNewtonState(guess, 0.0, 0.0, 0.0, 0.0, fit.point, fit), act=False)

    def iteration(self, problem: LeastSquaresProblem, gradient: str, batched: bool = False) -> FitIteration:
        """The rules of the iteration for a problem in a gradient mode; batched: as a batch evaluates."""
        return FitIteration(problem, gradient, tolerance_of(problem, self.tolerance), batched)

    def _passed(self, oracle: LeastSquaresOracle, state: GaussNewtonState, act: bool) -> GaussNewtonState:
        """The state after an accepted step, or, without `act`, with everything at its point evaluated anew."""
        iteration, before = self.iteration(oracle.problem, oracle.gradient), state.fit
        # Half of the time that thorough compilation takes, and steps as fast.
        fit = oracle.call(FitIteration.step, iteration, np.asarray(act), before, effort=Effort.LIGHT)
        oracle.evaluations += int(fit.residuals) - int(before.residuals)
        oracle.evaluations += (int(fit.linearizations) - int(before.linearizations)) * oracle.cost_of_linearization
        code, moved = int(fit.code), int(fit.iterations) > int(before.iterations)
        halt = "" if moved or code == GOING_ON else status_name(status_of(code))
        return dataclasses.replace(state, **fields(oracle.problem, fit.point, float(fit.step_size)), fit=fit, halt=halt)

    def step(self, oracle: LeastSquaresOracle, state: GaussNewtonState) -> GaussNewtonState:
        """One accepted step, or the same point with `halt` set when every damping was tried in vain."""
        return self._passed(oracle, state, act=True)

    def terminate(self, oracle: LeastSquaresOracle, state: GaussNewtonState) -> Status | None:
        """Solved when stationary, a failure when `step` gave up, else None."""
        code = int(state.fit.code)
        return None if code == GOING_ON else status_of(code)

    def finish(self, oracle: LeastSquaresOracle, state: GaussNewtonState) -> Findings:
        """The covariance of the estimate, (J^T J)^-1 for residuals of unit variance, `robust_covariance` under a loss."""
        at = self._passed(oracle, state, act=False).fit.point
        return findings(oracle.problem, at, measures(at))


def findings(problem: LeastSquaresProblem, at: FitPoint, values: dict[str, float]) -> Findings:
    """What is to be said of an estimate, beside measures of optimality: its covariance."""
    x, r, J = np.asarray(at.x), np.asarray(at.r, float), np.asarray(at.J, float)
    if not np.isfinite(J).all():
        return Findings(residuals=values)
    free = free_variables(problem, x, J.T @ r)
    value, rank = covariance(J, free)
    lacking = int(free.sum()) - rank
    notes = [f"{lacking} directions of x are not determined by the residual"] if lacking else []
    if value is not None and problem.loss != "linear":
        value = robust_covariance(problem, x, r, J, free)
        notes += [] if value is not None else ["the robust cost is not convex at x, which has no covariance"]
    if value is not None and problem.truth is not None:
        values = values | deviations(_error(problem, x), value)
    return Findings(residuals=values, notes=notes, fields={"covariance": value})


def _error(problem: LeastSquaresProblem, x: np.ndarray) -> np.ndarray:
    """x (-) truth."""
    if problem.integrate is None:
        return x - problem.truth
    assert problem.difference is not None
    return np.asarray(problem.difference(problem.truth, jnp.asarray(x)))


def covariance(
    J: Float[np.ndarray, "m n"], free: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n n"] | None, int]:
    """((J^T J)^-1 (n, n) over the free variables, rank); variables held at a bound have variance zero.

    None when J does not determine the free variables (rank below their number).
    """
    part = J[:, free]
    value = np.zeros((J.shape[1],) * 2)
    if part.shape[1] == 0:
        return value, 0
    size = np.linalg.norm(part, axis=0)
    size = np.where(size > 0, size, 1.0)
    _, s, Vt = np.linalg.svd(part / size, full_matrices=False)
    rank = int((s > max(part.shape) * np.finfo(float).eps * s.max(initial=0.0)).sum())
    if rank < part.shape[1]:
        return None, rank
    root = Vt.T / s / size[:, None]
    value[np.ix_(free, free)] = root @ root.T
    return value, rank


def robust_covariance(
    problem: LeastSquaresProblem,
    x: Float[np.ndarray, " nx"],
    r: Float[np.ndarray, " m"],
    J: Float[np.ndarray, "m n"],
    free: Bool[np.ndarray, " n"],
) -> Float[np.ndarray, "n n"] | None:
    """A^-1 B A^-1, A = sum psi'_i J_i J_i^T and B = sum psi_i^2 J_i J_i^T with psi the derivative of the loss; None unless A is
    positive definite.

    r and J are those of the robust residual, so that psi_i J_i = r_i J_i (rows of a prior: B has J_i J_i^T). It needs no
    assumption about the outliers, and the errors' variances drop out; it is a little small when the rows are few. Huber 1967;
    Huber and Ronchetti 2009, eq. 6.6.
    """
    bend, slope = jax.jit(lambda x: (problem.curvature(x), problem.slope(x)))(jnp.asarray(x))
    rows = len(r) - (0 if problem.prior is None else problem.prior.weight().shape[0])
    return sandwich(r, J, free, np.asarray(bend), np.asarray(slope), rows)


def sandwich(
    r: Float[np.ndarray, " m"],
    J: Float[np.ndarray, "m n"],
    free: Bool[np.ndarray, " n"],
    bend: Float[np.ndarray, " m"],
    slope: Float[np.ndarray, " m"],
    m: int,
) -> Float[np.ndarray, "n n"] | None:
    """`robust_covariance` from the curvature and the slope of the loss at each row; m: rows that are not of the prior."""
    slope = np.where(np.asarray(slope) > 0, slope, 1.0)  # a row without slope has none in J either
    score = np.concatenate([r[:m], np.ones(len(r) - m)])
    part = J[:, free]
    A = part.T @ ((np.asarray(bend) / slope**2)[:, None] * part)
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return None
    value = np.zeros((J.shape[1],) * 2)
    half = np.linalg.solve(A, (score[:, None] * part).T)
    value[np.ix_(free, free)] = half @ half.T
    return value
