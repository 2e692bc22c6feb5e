"""The iteration of `GaussNewton` for least-squares problems, as a pure function of arrays.

One pass is one trial step: the minimiser of |r + J dx|^2 + mu |dx / scale|^2 over the bounds, accepted or refused by what it does
to the cost. A batch (`solvers.batch`) makes all passes inside one program, mapped over its samples, which need not agree on what
a pass does; `gauss_newton` makes those up to the next accepted step, which the loop that drives it reports.

The rules: the first steps are undamped, the damping follows the gain ratio (Nielsen 1999), the step is the one of least norm
from a singular value decomposition, bounds are kept by an active set, and steps that drown in rounding are accepted while they
bring the point nearer to stationary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.dynamics.effort import Effort
from trajopt.dynamics.linear_algebra import svd
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.problems.programs import subject
from trajopt.solvers.least_squares.state import ending, tolerance_of
from trajopt.solvers.loop.contract import CODES, GOING_ON
from trajopt.solvers.subproblems.batching import iterate
from trajopt.solvers.subproblems.box_qp import held_at_bound

ACCEPT = 1e-4  # least gain ratio of an accepted step
SMALLEST_DAMPING = 1e-8  # relative to the largest singular value squared; below it, none
FIRST_DAMPING = 1e-4
MAX_TRIALS = 25
FIRST_GROWTH = 4.0  # of the damping, by the first step that is refused; twice as much by every next one
ROUNDING = 100.0  # in units of rounding: relative differences of the cost below it say nothing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FitPoint:
    """A point x, r and J there, the cost, the norm of what the linearised problem can still remove of r, and the largest free
    component of J^T r."""

    x: Any
    r: Any
    J: Any
    cost: Any
    removable: Any
    gradient_norm: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FitState:
    """The point, the damping and by how much it grows, trials since the last accepted step, whether one of them was finite,
    accepted steps, the norm of the last one, how it ended (`loop.codes`), and the cost at the guess.

    chosen: an accepted trial point whose Jacobian the next pass evaluates, where there is one (`choosing`) beside `point`;
    residuals, linearizations: how often each was evaluated.
    """

    point: FitPoint
    damping: Any
    growth: Any
    trials: Any
    finite_trial: Any
    iterations: Any
    step_size: Any
    code: Any
    initial_cost: Any
    chosen: Any
    choosing: Any
    residuals: Any
    linearizations: Any


@subject("problem")
@dataclasses.dataclass(frozen=True)
class FitIteration:
    """The iteration for one problem, whose data may be traced.

    tolerance: as of `GaussNewton`, not None. batched: a batch evaluates whatever one of its samples
    needs.

    Implicit Jacobians come with every trial: a residual by itself takes as long to compile as thousands of them to evaluate.
    Difference quotients are made at the trials that are accepted.
    """

    problem: LeastSquaresProblem
    gradient: str
    tolerance: float
    batched: bool = False

    @property
    def _together(self) -> bool:
        return self.batched or self.gradient == "implicit"

    def on(self, problem: LeastSquaresProblem) -> FitIteration:
        """The iteration for the problem on other data."""
        return dataclasses.replace(self, problem=problem)

    def solve(self, x: Float[Array, " nx"], damping: float, limit: int) -> FitState:
        """The state in which the iteration from x ends, after at most `limit` accepted steps."""

        def go_on(state: FitState, _: Array) -> tuple[FitState, Array]:
            done = state.code != GOING_ON
            after = limited(self.make(state), limit)
            after = jax.tree.map(lambda old, new: jnp.where(done, old, new), state, after)
            return after, after.code != GOING_ON

        return iterate(go_on, limited(self.started(x, damping), limit), (limit + 1) * MAX_TRIALS)[0]

    def step(self, act: Bool[Array, ""], state: FitState) -> FitState:
        """The state after passes up to an accepted step or the end; without `act` only what belongs to the point is evaluated."""

        def one(at: FitState, _: Array) -> tuple[FitState, Bool[Array, ""]]:
            new = self.make(at, act)
            return new, (new.iterations > state.iterations) | (new.code != GOING_ON) | ~act

        return iterate(one, state, 2 * MAX_TRIALS)[0]

    def blank(self, x: Float[Array, " nx"] | Float[np.ndarray, " nx"], damping: float) -> FitState:
        """The state at a guess where nothing has been evaluated."""
        r, dtype = self.problem.residual_type, x.dtype
        zero, none, no = np.zeros((), dtype), np.zeros((), np.int32), np.zeros((), bool)
        nothing = np.zeros(r.shape, r.dtype), np.zeros((*r.shape, self.problem.tangent_size), r.dtype)
        return FitState(
            point=FitPoint(x, *nothing, zero, zero, zero),
            damping=np.asarray(damping, dtype),
            growth=np.asarray(FIRST_GROWTH, dtype),
            trials=none,
            finite_trial=no,
            iterations=none,
            step_size=zero,
            code=np.full((), GOING_ON, np.int32),
            initial_cost=zero,
            chosen=x,
            choosing=no,
            residuals=none,
            linearizations=none,
        )

    def started(self, x: Float[Array, " nx"], damping: float) -> FitState:
        """The state at a guess."""
        point, blank = self.evaluated(x), jax.tree.map(jnp.asarray, self.blank(x, damping))
        state = dataclasses.replace(blank, point=point, initial_cost=point.cost)
        return self.judged(state, jnp.full((), GOING_ON, jnp.int32))

    def judged(self, state: FitState, gave_up: Int[Array, ""]) -> FitState:
        """The state with its code; gave_up: of the failure of the last trial, or GOING_ON."""
        at, problem = state.point, self.problem
        code = ending(at.r, at.cost, at.removable, gave_up, tolerance=self.tolerance, allowed=problem.tolerance)
        bad = ~(jnp.isfinite(at.cost) & jnp.isfinite(at.gradient_norm))
        return dataclasses.replace(state, code=jnp.where(bad, CODES["non_finite"], code))

    def evaluated(self, x: Float[Array, " nx"]) -> FitPoint:
        """Residual, Jacobian and the measures of optimality at x."""
        r, J = self.problem.linearization(self.gradient)(x)
        g = J.T @ r
        free = self._free(x, g)
        column = jnp.sqrt(jnp.sum(J**2, 0))
        U, s, _ = svd(_finite(jnp.where(free, J / jnp.where(column > 0, column, 1.0), 0.0)))
        kept = s > jnp.max(s, initial=0.0) * max(J.shape) * jnp.finfo(J.dtype).eps
        removable = jnp.sqrt(jnp.sum(jnp.where(kept, U.T @ r, 0.0) ** 2))
        good = jnp.all(jnp.isfinite(J)) & jnp.all(jnp.isfinite(r))
        nan = jnp.full((), jnp.nan, r.dtype)
        largest = jnp.max(jnp.where(free, jnp.abs(g), 0.0), initial=0.0)
        return FitPoint(x, r, J, 0.5 * jnp.vdot(r, r), jnp.where(good, removable, nan), jnp.where(good, largest, nan))

    def _residual_alone(self, x: Float[Array, " nx"], like: FitPoint) -> FitPoint:
        """The residual at x; the Jacobian and its measures are those of another point."""
        r = self.problem.full_residual(x)
        return dataclasses.replace(like, x=x, r=r, cost=0.5 * jnp.vdot(r, r))

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

    def make(self, state: FitState, act: Bool[Array, ""] | bool = True) -> FitState:
        """The state after one pass; without `act` with everything that belongs to its point evaluated anew."""
        at, eps, stays = state.point, float(jnp.finfo(state.point.r.dtype).eps), ~jnp.asarray(act)
        given = stays | state.choosing
        if self._together:
            dx, predicted = self._model_step(at, state.damping)
        else:
            n, zero = self.problem.tangent_size, jnp.zeros((), at.r.dtype)
            nothing = lambda *_: (jnp.zeros(n, at.r.dtype), zero)  # noqa: E731
            dx, predicted = jax.lax.cond(given, nothing, self._model_step, at, state.damping)
        trial = jnp.where(state.choosing, state.chosen, jnp.where(stays, at.x, self._moved(at.x, dx)))
        rounded = predicted <= ROUNDING * eps * at.cost
        if self._together:
            whole, new = jnp.ones((), bool), self.evaluated(trial)
        else:
            whole = given | rounded
            new = jax.lax.cond(whole, lambda x, _: self.evaluated(x), self._residual_alone, trial, at)
        finite = jnp.isfinite(new.cost) & (~whole | jnp.isfinite(new.gradient_norm))
        gain = (at.cost - new.cost) / jnp.where(rounded, 1.0, predicted)
        steady = (new.cost <= at.cost * (1 + ROUNDING * eps)) & (new.removable < at.removable)
        good = state.choosing | jnp.where(rounded, steady, gain > ACCEPT)
        accepted = finite & good & ~stays
        taken, chosen = accepted & whole, accepted & ~whole
        refused = ~accepted & ~stays
        rounded = rounded & ~given
        trials, finite_trial = state.trials + 1, state.finite_trial | finite
        size = jnp.where(state.choosing, state.step_size, jnp.sqrt(jnp.sum(dx**2)))
        vain = refused & (rounded | (trials >= MAX_TRIALS))
        why = jnp.where(rounded | finite_trial, CODES["stalled"], CODES["non_finite"])
        judged = accepted & ~state.choosing & ~rounded
        kept = jnp.where(judged, _relaxed(state, gain), state.damping)
        raised = jnp.maximum(state.damping * state.growth, FIRST_DAMPING)
        growth = jnp.where(refused, 2.0 * state.growth, jnp.where(accepted, FIRST_GROWTH, state.growth))
        after = FitState(
            point=jax.tree.map(lambda a, b: jnp.where(taken | stays, a, b), new, at),
            damping=jnp.where(refused, raised, kept),
            growth=growth.astype(state.growth.dtype),
            trials=jnp.where(taken, 0, jnp.where(stays, state.trials, trials)).astype(jnp.int32),
            finite_trial=jnp.where(stays, state.finite_trial, finite_trial & ~taken),
            iterations=state.iterations + taken.astype(jnp.int32),
            step_size=jnp.where(accepted, size, state.step_size),
            code=state.code,
            initial_cost=state.initial_cost,
            chosen=jnp.where(chosen, trial, state.chosen),
            choosing=chosen,
            residuals=state.residuals + (~whole).astype(jnp.int32),
            linearizations=state.linearizations + whole.astype(jnp.int32),
        )
        return self.judged(after, jnp.where(vain, why, GOING_ON))


def measured(oracle: LeastSquaresOracle, x: Float[np.ndarray, " nx"]) -> FitPoint:
    """x with residual, Jacobian and the measures of optimality."""
    problem = oracle.problem
    oracle.evaluations += oracle.cost_of_linearization
    iteration = FitIteration(problem, oracle.gradient, tolerance_of(problem, None))
    return oracle.call(FitIteration.evaluated, iteration, np.asarray(x, problem.x0.dtype), effort=Effort.LIGHT)


def fields(problem: LeastSquaresProblem, at: FitPoint, step_size: float) -> dict[str, Any]:
    """The fields of a `ResidualState` at a point."""
    x = np.asarray(at.x)
    return {
        "x": x,
        "cost": float(at.cost),
        "violation": problem.bound_violation(x),
        "gradient_norm": float(at.gradient_norm),
        "step_size": step_size,
        "point": at,
    }


def measures(at: FitPoint) -> dict[str, float]:
    """The measures of optimality to report of a point."""
    return {"gradient_norm": float(at.gradient_norm), "removable_residual": float(at.removable)}


def limited(state: FitState, limit: int) -> FitState:
    """The state, which goes on no longer after `limit` iterations."""
    over = (state.code == GOING_ON) & (state.iterations >= limit)
    return dataclasses.replace(state, code=jnp.where(over, CODES["max_iterations"], state.code))


def _relaxed(state: FitState, gain: Array) -> Array:
    """The damping after an accepted step of this gain ratio."""
    relaxed = state.damping * jnp.where(gain > 0.75, 0.1, 0.5)
    relaxed = jnp.where(relaxed > SMALLEST_DAMPING, relaxed, 0.0)
    return jnp.where(gain < 0.25, jnp.maximum(2.0 * state.damping, FIRST_DAMPING), relaxed)


def _finite(A: Any) -> Any:
    """A with zeros for what is not finite: LAPACK may not return from such a matrix."""
    return jnp.where(jnp.isfinite(A), A, 0.0)
