"""First-order descent on 1/2 |r(x)|^2: steepest descent with a line search, or any optax transformation."""

import dataclasses
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.names import NamedOptions
from trajopt.options import check_options
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.result import Status
from trajopt.solvers.least_squares.iteration import fields, measured, measures
from trajopt.solvers.least_squares.state import ResidualState, ended, free_variables
from trajopt.solvers.loop.contract import Findings
from trajopt.solvers.subproblems.linesearch import armijo


def _optax_promotion() -> AbstractContextManager:
    """optax counts iterations in integers and multiplies them with floats, which strict promotion forbids."""
    return jax.numpy_dtype_promotion("standard")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientDescentState(ResidualState):
    """Adds the last step length and the optimiser's own state."""

    length: float
    optimizer_state: Any

    @property
    def gradient(self) -> Float[np.ndarray, " n"]:
        """J^T r (n,)."""
        return np.asarray(self.point.J, float).T @ np.asarray(self.point.r, float)


@dataclasses.dataclass(frozen=True)
class GradientDescent(NamedOptions):
    """Gradient descent, the gradient being $J^T r$ in the problem's gradient mode. Points are projected into the bounds.

    Without `optimizer` and `learning_rate` it is steepest descent in units of the problem's `scale`. A backtracking line
    search finds each step by Armijo's condition; it starts at the minimiser of the linear model along the gradient, and
    from the second step on at twice the last length.

    Options:
        optimizer: any optax transformation; excludes `learning_rate`.
        learning_rate: a fixed rate in place of the line search.
        tolerance: as for `GaussNewton`.
        max_iterations: largest number of steps.
    """

    name: ClassVar[str] = "GradientDescent"
    takes: ClassVar[tuple[type, ...]] = (LeastSquaresProblem,)

    optimizer: optax.GradientTransformation | None = None
    learning_rate: float | None = None
    tolerance: float | None = None
    max_iterations: int = 500

    def __post_init__(self) -> None:
        check_options(self, learning_rate="(0, inf)", tolerance="(0, inf)", max_iterations="[0, inf)")
        if self.optimizer is not None and self.learning_rate is not None:
            raise OptionError("GradientDescent: give either optimizer or learning_rate, not both")

    @property
    def _transformation(self) -> optax.GradientTransformation | None:
        return optax.sgd(self.learning_rate) if self.learning_rate is not None else self.optimizer

    def init(
        self, oracle: LeastSquaresOracle, guess: Float[np.ndarray, " nx"], key: PRNGKeyArray
    ) -> GradientDescentState:
        """State at the guess; the first step length minimises the linear model along the gradient."""
        state = self._state(oracle, guess, 0.0, 0.0, None)
        transformation = self._transformation
        if transformation is not None:
            zero = jnp.zeros(state.gradient.shape, oracle.problem.x0.dtype)
            with _optax_promotion():
                return dataclasses.replace(state, optimizer_state=transformation.init(zero))
        direction = self._direction(oracle, guess, state.gradient)
        curvature = float(np.sum((np.asarray(state.point.J, float) @ direction) ** 2))
        length = float(-state.gradient @ direction) / curvature if curvature > 0 else 1.0
        return dataclasses.replace(state, length=length)

    def _state(
        self, oracle: LeastSquaresOracle, x: np.ndarray, step_size: float, length: float, optimizer_state: Any
    ) -> GradientDescentState:
        shared = fields(oracle.problem, measured(oracle, x), step_size)
        return GradientDescentState(**shared, length=length, optimizer_state=optimizer_state)

    def _direction(self, oracle: LeastSquaresOracle, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Steepest descent in the metric of `scale`, over the free variables."""
        return np.where(free_variables(oracle.problem, x, gradient), -gradient * oracle.problem.scale**2, 0.0)

    def step(self, oracle: LeastSquaresOracle, state: GradientDescentState) -> GradientDescentState:
        """One step, or the same point with `halt` set when the line search found no decrease."""
        transformation = self._transformation
        if transformation is not None:
            gradient = jnp.asarray(state.gradient, oracle.problem.x0.dtype)
            with _optax_promotion():
                updates, optimizer_state = transformation.update(gradient, state.optimizer_state, jnp.asarray(state.x))
            dx = np.asarray(updates, float)
            x, length = oracle.move(state.x, dx), 0.0
        else:
            optimizer_state = None
            direction = self._direction(oracle, state.x, state.gradient)
            result = armijo(
                lambda t: oracle.move(state.x, t * direction),
                lambda point: 0.5 * float(np.sum(oracle.residual(point) ** 2)),
                state.cost,
                lambda point, t: float(-state.gradient @ self._moved(oracle, state.x, point, t * direction)),
                state.length,
            )
            if not result.found:
                return dataclasses.replace(state, halt="line_search_failed")
            x, length = result.x, 2.0 * result.step
            dx = self._moved(oracle, state.x, x, result.step * direction)
        return self._state(oracle, x, float(np.linalg.norm(dx)), length, optimizer_state)

    @staticmethod
    def _moved(oracle: LeastSquaresOracle, x: np.ndarray, point: np.ndarray, dx: np.ndarray) -> np.ndarray:
        """The tangent step made, after projection."""
        return np.asarray(point - x, float) if oracle.problem.integrate is None else dx

    def terminate(self, oracle: LeastSquaresOracle, state: GradientDescentState) -> Status | None:
        """Solved when stationary, a failure when the line search gave up, else None."""
        return ended(oracle.problem, state, self.tolerance)

    def finish(self, oracle: LeastSquaresOracle, state: GradientDescentState) -> Findings:
        """The measures of optimality, recomputed."""
        return Findings(residuals=measures(measured(oracle, state.x)))
