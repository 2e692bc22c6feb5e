"""`GaussNewton` of least-squares problems as one pure function of arrays, so that `vmap` makes a batch of it.

The rules are those of `least_squares.gauss_newton`: undamped first steps, damping by the gain ratio, least-norm steps from a
singular value decomposition, bounds by an active set, and steps that drown in rounding accepted while they bring the point nearer
to stationary. One pass of the loop is one trial step, accepted or not, so that the samples of a batch need not agree on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.dynamics.linear_algebra import svd
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.solvers.least_squares.gauss_newton import (
    ACCEPT,
    FIRST_DAMPING,
    FIRST_GROWTH,
    MAX_TRIALS,
    SMALLEST_DAMPING,
    GaussNewton,
)
from trajopt.solvers.least_squares.state import RELAXED_EXPONENT
from trajopt.solvers.loop.codes import CODES, GOING_ON
from trajopt.solvers.loop.contract import default_tolerance
from trajopt.solvers.subproblems.bounds import held_at_bound
from trajopt.solvers.subproblems.iterate import iterate

ROUNDING = 100.0  # in units of rounding: relative differences of the cost below it say nothing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FitPoint:
    """A point x, r and J there, the cost, the norm of what the linearised problem can still remove of r, and the largest free
    component of J^T r."""

    x: Float[Array, " nx"]
    r: Float[Array, " m"]
    J: Float[Array, "m n"]
    cost: Float[Array, ""]
    removable: Float[Array, ""]
    gradient_norm: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FitState:
    """The point, the damping and by how much it grows, trials since the last accepted step, whether one of them was finite,
    accepted steps, how it ended (`loop.codes`), and the cost at the guess."""

    point: FitPoint
    damping: Array
    growth: Array
    trials: Array
    finite_trial: Array
    iterations: Array
    code: Array
    initial_cost: Array


@dataclasses.dataclass(frozen=True)
class BatchedGaussNewton:
    """The iteration for one problem, whose data may be traced."""

    problem: LeastSquaresProblem
    solver: GaussNewton
    gradient: str

    def on(self, problem: LeastSquaresProblem) -> BatchedGaussNewton:
        """The iteration for the problem on other data."""
        return dataclasses.replace(self, problem=problem)

    @property
    def _tolerance(self) -> float:
        return self.solver.tolerance or default_tolerance(self.problem.x0.dtype)

    def solve(self, x: Float[Array, " nx"]) -> FitState:
        """The state in which the iteration from x ends."""

        def go_on(state: FitState, _: Array) -> tuple[FitState, Array]:
            done = state.code != GOING_ON
            after, last = self._pass(state)
            return jax.tree.map(lambda old, new: jnp.where(done, old, new), state, after), done | last

        return iterate(go_on, self.started(x), (self.solver.max_iterations + 1) * MAX_TRIALS)[0]

    def started(self, x: Float[Array, " nx"]) -> FitState:
        """The state at a guess."""
        point, none = self.evaluated(x), jnp.zeros((), jnp.int32)
        one, going_on = jnp.ones((), x.dtype), jnp.full((), GOING_ON, jnp.int32)
        damping, growth = one * self.solver.damping, one * FIRST_GROWTH
        state = FitState(point, damping, growth, none, jnp.zeros((), bool), none, going_on, point.cost)
        return self.judged(state, going_on)

    def judged(self, state: FitState, gave_up: Int[Array, ""]) -> FitState:
        """The state with its code; gave_up: of the failure of the last trial, or GOING_ON."""
        return dataclasses.replace(state, code=self._ended(state, gave_up))

    def evaluated(self, x: Float[Array, " nx"]) -> FitPoint:
        """Residual, Jacobian and the measures of optimality at x."""
        r, J = self.problem.linearization(self.gradient)(x)
        g = J.T @ r
        free = self._free(x, g)
        column = jnp.sqrt(jnp.sum(J**2, 0))
        U, s, _ = svd(_finite(jnp.where(free, J / jnp.where(column > 0, column, 1.0), 0.0)))
        kept = s > s[0] * max(J.shape) * jnp.finfo(J.dtype).eps
        removable = jnp.sqrt(jnp.sum(jnp.where(kept, U.T @ r, 0.0) ** 2))
        good = jnp.all(jnp.isfinite(J)) & jnp.all(jnp.isfinite(r))
        nan = jnp.full((), jnp.nan, r.dtype)
        largest = jnp.max(jnp.where(free, jnp.abs(g), 0.0))
        return FitPoint(x, r, J, 0.5 * jnp.vdot(r, r), jnp.where(good, removable, nan), jnp.where(good, largest, nan))

    def _free(self, x: Array, gradient: Array) -> Array:
        """Variables that no bound holds."""
        problem = self.problem
        if not problem.bounded:
            return jnp.ones(gradient.shape, bool)
        return ~held_at_bound(x, gradient, problem.lower.astype(x.dtype), problem.upper.astype(x.dtype))

    def _moved(self, x: Array, dx: Array) -> Array:
        problem = self.problem
        if problem.integrate is not None:
            return problem.integrate(x, dx)
        return jnp.clip(x + dx, problem.lower.astype(x.dtype), problem.upper.astype(x.dtype))

    def _model_step(self, at: FitPoint, damping: ScalarLike) -> tuple[Array, Array]:
        """(dx (n,), the fall of the cost that the linear model predicts): the minimiser of the damped model over the bounds."""
        problem, r, J = self.problem, at.r, at.J
        scale = jnp.asarray(problem.scale, r.dtype)
        threshold = max(J.shape) * float(jnp.finfo(J.dtype).eps)
        threshold = threshold if self.solver.rank_tolerance is None else self.solver.rank_tolerance
        whole = svd(_finite(J * scale))
        size = whole[1][0] ** 2  # the unit of the damping

        def free_step(parts: tuple[Array, Array, Array], r: Array) -> Array:
            U, s, Vt = parts
            kept = s > threshold * s[0]
            share = jnp.where(kept, s / jnp.where(kept, s**2 + damping * size, 1.0), 0.0)
            return -(Vt.T @ (share * (U.T @ r))) * scale

        if problem.bounded:
            dx = self._bounded_step(
                at, lambda free, r: jnp.where(free, free_step(svd(_finite(jnp.where(free, J * scale, 0.0))), r), 0.0)
            )
        else:
            dx = free_step(whole, r)
        Jdx = J @ dx
        return dx, -jnp.vdot(Jdx, r + 0.5 * Jdx)

    def _bounded_step(self, at: FitPoint, free_step: Callable[[Array, Array], Array]) -> Array:
        """The step of an active set: variables whose step leaves the bounds are held at theirs, and the step is recomputed."""
        problem, r, J = self.problem, at.r, at.J
        low, high = problem.lower.astype(r.dtype) - at.x, problem.upper.astype(r.dtype) - at.x

        def round_(carry: tuple[Array, Array], _: Array) -> tuple[tuple[Array, Array], Array]:
            dx, free = carry
            dx = jnp.where(free, free_step(free, r + J @ jnp.where(free, 0.0, dx)), dx)
            outside = free & ((dx < low) | (dx > high))
            dx = jnp.where(outside, jnp.clip(dx, low, high), dx)
            return (dx, free & ~outside), ~jnp.any(outside) | ~jnp.any(free & ~outside)

        first = jnp.zeros_like(at.x), self._free(at.x, J.T @ r)
        return iterate(round_, first, at.x.shape[0])[0][0]

    def _pass(self, state: FitState) -> tuple[FitState, Bool[Array, ""]]:
        """(the state after one trial step, whether it was the last)."""
        at, eps = state.point, float(jnp.finfo(state.point.r.dtype).eps)
        dx, predicted = self._model_step(at, state.damping)
        new = self.evaluated(self._moved(at.x, dx))
        rounded = predicted <= ROUNDING * eps * at.cost
        finite = jnp.isfinite(new.cost) & jnp.isfinite(new.gradient_norm)
        gain = (at.cost - new.cost) / jnp.where(rounded, 1.0, predicted)
        steady = (new.cost <= at.cost * (1 + ROUNDING * eps)) & (new.removable < at.removable)
        accepted = finite & jnp.where(rounded, steady, gain > ACCEPT)
        relaxed = state.damping * jnp.where(gain > 0.75, 0.1, 0.5)
        relaxed = jnp.where(relaxed > SMALLEST_DAMPING, relaxed, 0.0)
        relaxed = jnp.where(gain < 0.25, jnp.maximum(2.0 * state.damping, FIRST_DAMPING), relaxed)
        raised = jnp.maximum(state.damping * state.growth, FIRST_DAMPING)
        trials, finite_trial = state.trials + 1, state.finite_trial | finite
        why = jnp.where(rounded | finite_trial, CODES["stalled"], CODES["non_finite"])
        vain = ~accepted & (rounded | (trials >= MAX_TRIALS))
        after = FitState(
            point=jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, at),
            damping=jnp.where(accepted, jnp.where(rounded, state.damping, relaxed), raised),
            growth=jnp.where(accepted, FIRST_GROWTH, 2.0 * state.growth).astype(state.growth.dtype),
            trials=jnp.where(accepted, 0, trials).astype(jnp.int32),
            finite_trial=finite_trial & ~accepted,
            iterations=state.iterations + accepted.astype(jnp.int32),
            code=state.code,
            initial_cost=state.initial_cost,
        )
        after = self.judged(after, jnp.where(vain, why, GOING_ON))
        return after, after.code != GOING_ON

    def _ended(self, state: FitState, gave_up: Array) -> Array:
        """The code of `state.ended`; gave_up: of the failure of the last trial, or GOING_ON."""
        at, problem = state.point, self.problem
        size = jnp.maximum(jnp.sqrt(2.0 * at.cost), 1.0)

        def stationary(tolerance: float) -> Array:
            threshold = tolerance * size
            if problem.tolerance is not None:
                threshold = jnp.minimum(threshold, 0.1 * problem.tolerance)
            return at.removable <= threshold

        done = stationary(self._tolerance)
        if problem.tolerance is not None:
            done = done | (jnp.max(jnp.abs(at.r)) <= problem.tolerance)
        nearly = stationary(self._tolerance**RELAXED_EXPONENT) & (gave_up == CODES["stalled"])
        nearly = nearly & (problem.tolerance is None)
        bad = ~(jnp.isfinite(at.cost) & jnp.isfinite(at.gradient_norm))
        code = jnp.where(state.iterations >= self.solver.max_iterations, CODES["max_iterations"], GOING_ON)
        code = jnp.where(gave_up != GOING_ON, jnp.where(nearly, CODES["acceptable"], gave_up), code)
        return jnp.where(bad, CODES["non_finite"], jnp.where(done, CODES["solved"], code)).astype(jnp.int32)


def _finite(A: Any) -> Any:
    """A with zeros for what is not finite: LAPACK may not return from such a matrix."""
    return jnp.where(jnp.isfinite(A), A, 0.0)
