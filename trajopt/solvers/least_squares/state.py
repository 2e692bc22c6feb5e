"""What the solvers of least-squares problems share: their state, and when a point is stationary."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.result import Status
from trajopt.solvers.loop.contract import CODES, GOING_ON, SolverState, default_tolerance, status_of
from trajopt.solvers.subproblems.box_qp import held_at_bound

COST_ROUNDING = 100 * np.finfo(float).eps  # relative differences of the cost below it say nothing
RELAXED_EXPONENT = 0.6  # `acceptable` asks for tolerance^0.6: 1e-6 in float64, 1e-3 in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ResidualState(SolverState):
    """Adds x with all that was evaluated there, a `FitPoint`. `gradient_norm` is the largest |J^T r| over the free variables."""

    point: Any

    def better_than(self, other: Any, tolerance: float) -> bool:
        """Lower cost, or the same to rounding and closer to stationary."""
        closer = bool(self.point.removable < other.point.removable)
        return bool(self.cost < other.cost or (closer and self.cost <= other.cost * (1.0 + COST_ROUNDING)))

    def non_finite_place(self) -> str:
        """The first entry of the residual that is not finite."""
        return non_finite_row(np.asarray(self.point.r))


def non_finite_row(r: Float[np.ndarray, " m"]) -> str:
    """Which entry of a residual is not finite, for a message; begins with ": "."""
    bad = np.flatnonzero(~np.isfinite(r))
    return f": residual[{bad[0]}] is {r[bad[0]]}" if bad.size else ": in the derivative or at every trial point"


def free_variables(
    problem: LeastSquaresProblem, x: Float[np.ndarray, " nx"], gradient: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """(n,) bool: variables not held at a bound that the descent direction -gradient pushes against."""
    if not problem.bounded:
        return np.ones(gradient.shape, bool)
    return ~held_at_bound(x, gradient, problem.lower, problem.upper)


@functools.partial(jax.jit, static_argnames=("tolerance", "allowed"))
def ending(
    r: Float[Array, " m"],
    cost: ScalarLike,
    removable: ScalarLike,
    gave_up: ScalarLike,
    *,
    tolerance: float,
    allowed: float | None,
) -> Int[Array, ""]:
    """How a run ends at a point, as a code (`loop.codes`): solved, given up (acceptable when nearly stationary), or going on.

    It is solved where the residual's removable part is within tolerance * max(|r|, 1), and well within `allowed`, the problem's
    own tolerance of the residual; or where no entry of the residual is above that. gave_up: the code of a failure, or GOING_ON.
    """
    size = jnp.maximum(jnp.sqrt(2.0 * jnp.asarray(cost)), 1.0)

    def stationary(tolerance: float) -> Array:
        threshold = tolerance * size
        return jnp.asarray(removable) <= (threshold if allowed is None else jnp.minimum(threshold, 0.1 * allowed))

    done, gave_up = stationary(tolerance), jnp.asarray(gave_up, jnp.int32)
    if allowed is not None:
        done = done | (jnp.max(jnp.abs(r), initial=jnp.zeros((), r.dtype)) <= allowed)
    nearly = stationary(tolerance**RELAXED_EXPONENT) & (gave_up != CODES["non_finite"]) & (allowed is None)
    failed = jnp.where(nearly, CODES["acceptable"], gave_up)
    return jnp.where(done, CODES["solved"], jnp.where(gave_up == GOING_ON, GOING_ON, failed)).astype(jnp.int32)


def tolerance_of(problem: LeastSquaresProblem, tolerance: float | None) -> float:
    """A solver's option, or what stands for None."""
    return tolerance or default_tolerance(problem.x0.dtype)


def ended(problem: LeastSquaresProblem, state: ResidualState, tolerance: float | None) -> Status | None:
    """The status that `ending` gives a state, None to go on."""
    gave_up = CODES[state.halt] if state.halt else GOING_ON
    least, allowed = tolerance_of(problem, tolerance), problem.tolerance
    code = ending(state.point.r, state.cost, state.point.removable, gave_up, tolerance=least, allowed=allowed)
    return None if int(code) == GOING_ON else status_of(int(code))
