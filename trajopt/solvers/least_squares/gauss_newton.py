"""Gauss-Newton with Levenberg-Marquardt damping, bounds and minimum-norm steps.

An iteration minimises the linear model |r + J dx|^2 + mu |dx / scale|^2 over the bounds. It starts undamped, so that
zero-residual problems converge quadratically; a step whose cost falls by less than a fraction of what the model
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

from trajopt.errors import OptionError
from trajopt.problems.estimates import deviations
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.result import Status
from trajopt.solvers.estimation.horizon import HorizonGaussNewton
from trajopt.solvers.least_squares.state import (
    COST_ROUNDING,
    ResidualState,
    ended,
    evaluated,
    free_variables,
    recomputed,
)
from trajopt.solvers.loop.contract import Findings
from trajopt.solvers.loop.options import check_options

ACCEPT = 1e-4  # least gain ratio of an accepted step
SMALLEST_DAMPING = 1e-8  # relative to the largest singular value squared; below it, none
FIRST_DAMPING = 1e-4
MAX_TRIALS = 25
FIRST_GROWTH = 4.0  # of the damping, by the first step that is refused; twice as much by every next one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GaussNewtonState(ResidualState):
    """Adds the damping relative to the largest squared singular value of J * scale."""

    damping: float


@dataclasses.dataclass(frozen=True)
class GaussNewton:
    """Levenberg-Marquardt for `LeastSquaresProblem`, and for an `OptimalControlProblem` with residual costs.

    Options:
        tolerance: the solver stops when the part of the residual that the linearised problem can still remove is below
            tolerance * max(|r|, 1). Default: 1e-10 in float64, 1e-5 in float32. A problem's own tolerance stops it too.
            Over a horizon the tolerance is that of iLQR, by default 1e-7 in float64.
        max_iterations: largest number of accepted steps.
        damping: initial damping, relative to the largest squared singular value of J * scale; 0 starts with Gauss-Newton.
            Over a horizon it is in units of the Hessian.
        rank_tolerance: singular values below this fraction of the largest count as zero. Default: max(m, n) * eps.

    Raises `OptionError` for unusable options and for a horizon with general costs.
    """

    takes: ClassVar[tuple[type, ...]] = (LeastSquaresProblem, OptimalControlProblem)

    tolerance: float | None = None
    max_iterations: int = 50
    damping: float = 0.0
    rank_tolerance: float | None = None

    def __post_init__(self) -> None:
        check_options(self)
        for key in ("tolerance", "rank_tolerance"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise OptionError(f"GaussNewton: {key} is {value}; it must be positive")
        for key in ("damping", "max_iterations"):
            if not getattr(self, key) >= 0:
                raise OptionError(f"GaussNewton: {key} is {getattr(self, key)}; it must not be negative")

    @property
    def name(self) -> str:
        return "GaussNewton"

    def _horizon(self, oracle: Any) -> HorizonGaussNewton | None:
        """What solves a problem over a horizon, None for plain least squares."""
        if not isinstance(oracle.problem, OptimalControlProblem):
            return None
        return HorizonGaussNewton(self.tolerance, self.max_iterations, self.damping, self.rank_tolerance)

    def init(self, oracle: Any, guess: Any, key: PRNGKeyArray) -> Any:
        """State at the guess."""
        if (horizon := self._horizon(oracle)) is not None:
            return horizon.init(oracle, guess, key)
        r, J = oracle.linearize(guess)
        return self._state(oracle, guess, r, J, self.damping, 0.0)

    def _state(
        self, oracle: LeastSquaresOracle, x: np.ndarray, r: np.ndarray, J: np.ndarray, damping: float, step_size: float
    ) -> GaussNewtonState:
        return GaussNewtonState(**evaluated(oracle, x, r, J, step_size), damping=damping)

    def step(self, oracle: Any, state: Any) -> Any:
        """One accepted step, or the same point with `halt` set when every damping was tried in vain."""
        if (horizon := self._horizon(oracle)) is not None:
            return horizon.step(oracle, state)
        damping, growth, finite_trial = state.damping, FIRST_GROWTH, False
        model = _LinearModel(oracle.problem, state.x, state.residual, state.jacobian, self.rank_tolerance)
        # The Jacobian comes nearly free with an implicit linearisation: evaluate it with the first trial.
        together = oracle.cost_of_linearization == 1
        for _ in range(MAX_TRIALS):
            dx, predicted = model.step(damping)
            if predicted <= COST_ROUNDING * state.cost:
                return self._rounded_step(oracle, state, dx)
            x = oracle.move(state.x, dx)
            r, J = oracle.linearize(x) if together else (oracle.residual(x), None)
            cost = 0.5 * float(r @ r)
            gain = (state.cost - cost) / predicted if np.isfinite(cost) else -np.inf
            finite_trial |= bool(np.isfinite(cost))
            if gain > ACCEPT:
                J = oracle.linearize(x)[1] if J is None else J
                return self._state(oracle, x, r, J, _relaxed(damping, gain), float(np.linalg.norm(dx)))
            together = False
            damping = max(damping * growth, FIRST_DAMPING)
            growth *= 2.0
        return dataclasses.replace(state, halt="stalled" if finite_trial else "non_finite")

    def _rounded_step(self, oracle: LeastSquaresOracle, state: GaussNewtonState, dx: np.ndarray) -> GaussNewtonState:
        """A step whose effect on the cost drowns in rounding: accepted while it brings the point nearer to stationary.

        The cost resolves the removable part of the residual to sqrt(eps) |r| only; the gradient goes on to eps |r|.
        """
        x = oracle.move(state.x, dx)
        r, J = oracle.linearize(x)
        new = self._state(oracle, x, r, J, state.damping, float(np.linalg.norm(dx)))
        steady = new.cost <= state.cost * (1 + COST_ROUNDING)
        return new if steady and new.removable < state.removable else dataclasses.replace(state, halt="stalled")

    def terminate(self, oracle: Any, state: Any) -> Status | None:
        """Solved when stationary, a failure when `step` gave up, else None."""
        if (horizon := self._horizon(oracle)) is not None:
            return horizon.terminate(oracle, state)
        return ended(oracle.problem, state, self.tolerance)

    def finish(self, oracle: Any, state: Any) -> Findings:
        """The covariance of the estimate, (J^T J)^-1 for residuals of unit variance, `robust_covariance` under a loss."""
        if (horizon := self._horizon(oracle)) is not None:
            return horizon.finish(oracle, state)
        problem = oracle.problem
        r, J, measures = recomputed(oracle, state)
        if not np.isfinite(J).all():
            return Findings(residuals=measures)
        free = free_variables(problem, state.x, J.T @ r)
        value, rank = covariance(J, free, self.rank_tolerance)
        lacking = int(free.sum()) - rank
        notes = [f"{lacking} directions of x are not determined by the residual"] if lacking else []
        if value is not None and problem.loss != "linear":
            value = robust_covariance(problem, state.x, r, J, free)
            notes += [] if value is not None else ["the robust cost is not convex at x, which has no covariance"]
        if value is not None and problem.truth is not None:
            measures |= deviations(_error(problem, state.x), value)
        return Findings(residuals=measures, notes=notes, fields={"covariance": value})


def _error(problem: LeastSquaresProblem, x: np.ndarray) -> np.ndarray:
    """x (-) truth."""
    if problem.integrate is None:
        return x - problem.truth
    assert problem.difference is not None
    return np.asarray(problem.difference(problem.truth, jnp.asarray(x)))


def covariance(
    J: Float[np.ndarray, "m n"], free: Bool[np.ndarray, " n"], rank_tolerance: float | None = None
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
    threshold = max(part.shape) * np.finfo(float).eps if rank_tolerance is None else rank_tolerance
    rank = int((s > threshold * s.max(initial=0.0)).sum())
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


def _relaxed(damping: float, gain: float) -> float:
    """Damping after an accepted step of this gain ratio."""
    if gain < 0.25:
        return max(2.0 * damping, FIRST_DAMPING)
    damping = damping * (0.1 if gain > 0.75 else 0.5)
    return damping if damping > SMALLEST_DAMPING else 0.0


class _LinearModel:
    """|r + J dx|^2 + damping * smax^2 |dx / scale|^2 over the bounds; decompositions are kept between dampings."""

    def __init__(
        self, problem: LeastSquaresProblem, x: np.ndarray, r: np.ndarray, J: np.ndarray, rank_tolerance: float | None
    ) -> None:
        self.r, self.J, self.scale = r, J, problem.scale
        self.bounded = problem.bounded
        if self.bounded:
            self.lower, self.upper = problem.lower - x, problem.upper - x
        self.free = free_variables(problem, x, J.T @ r)
        self.threshold = max(J.shape) * np.finfo(float).eps if rank_tolerance is None else rank_tolerance
        self.size = float(np.linalg.norm(J * self.scale, 2)) ** 2
        self._decompositions: dict[bytes, tuple] = {}

    def _decomposition(self, free: np.ndarray) -> tuple:
        key = free.tobytes()
        if key not in self._decompositions:
            self._decompositions[key] = np.linalg.svd((self.J * self.scale)[:, free], full_matrices=False)
        return self._decompositions[key]

    def _free_step(self, free: np.ndarray, r: np.ndarray, damping: float) -> np.ndarray:
        """Minimum-norm minimiser over the free variables."""
        U, s, Vt = self._decomposition(free)
        kept = s > self.threshold * s.max(initial=0.0)
        s = s[kept]
        z = -Vt[kept].T @ (s / (s**2 + damping * self.size) * (U[:, kept].T @ r))
        return z * self.scale[free]

    def step(self, damping: float) -> tuple[np.ndarray, float]:
        """(dx (n,), the fall of 1/2 |r|^2 that the linear model predicts for it)."""
        dx, free = np.zeros(self.J.shape[1]), self.free.copy()
        while free.any():
            dx[free] = self._free_step(free, self.r + self.J[:, ~free] @ dx[~free], damping)
            if not self.bounded:
                break
            outside = free & ((dx < self.lower) | (dx > self.upper))
            if not outside.any():
                break
            dx[outside] = np.clip(dx, self.lower, self.upper)[outside]
            free &= ~outside
        predicted = -float((self.J @ dx) @ (self.r + 0.5 * (self.J @ dx)))
        return dx, predicted
