"""jaxopt's L-BFGS inside a batch: the one file that knows jaxopt, which is an extra.

What is taken of it are single iterations (`init_state`, `update`); when to stop is decided here, by the measure that all
least-squares solvers share.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.errors import MissingExtraError, OptionError
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.programs import subject
from trajopt.solvers.least_squares.iteration import FitIteration, FitState, limited
from trajopt.solvers.least_squares.lbfgs import LBFGS, LINE_SEARCH
from trajopt.solvers.loop.contract import CODES, GOING_ON, default_tolerance
from trajopt.solvers.subproblems.batching import iterate

UNREACHABLE = 1e12  # stands for residuals that are not finite, so that a trial there is refused
TOLERANCE_EXPONENT = 0.8  # default tolerance 1e-8 in float64, 1e-4 in float32: costs tell no more
IDLE = 5  # iterations in a row without a lower cost that end a run


@subject("problem")
@dataclasses.dataclass(frozen=True)
class JaxoptFit:
    """The iteration of jaxopt's L-BFGS for one problem, whose data may be traced.

    Raises `OptionError` for a problem that the method cannot take.
    """

    problem: LeastSquaresProblem
    solver: LBFGS
    gradient: str

    def __post_init__(self) -> None:
        problem, name = self.problem, self.solver.name
        if problem.integrate is not None:
            raise OptionError(f"{name}: problem '{problem.name}' has points on a manifold; use GaussNewton")
        if problem.bounded:
            raise OptionError(f"{name}: problem '{problem.name}' has bounds, which it does not keep in batches; use GaussNewton")
        _jaxopt()

    def on(self, problem: LeastSquaresProblem) -> JaxoptFit:
        """The iteration for the problem on other data."""
        return dataclasses.replace(self, problem=problem)

    @property
    def _judge(self) -> FitIteration:
        """What measures optimality, as of all least-squares solvers."""
        tolerance = self.solver.tolerance or default_tolerance(self.problem.x0.dtype) ** TOLERANCE_EXPONENT
        return FitIteration(self.problem, self.gradient, tolerance)

    def solve(self, x: Float[Array, " nx"]) -> FitState:
        """The state in which the iteration from x ends."""
        judge = self._judge
        with jax.numpy_dtype_promotion("standard"):  # jaxopt mixes integers and floats
            start = self._begun(x)
            first = judge.started(x, 0.0)

            def step(carry: tuple[Array, Any, Array, FitState], _: Array) -> tuple[Any, Bool[Array, ""]]:
                x, own, idle, state = carry
                x, own_next = self._updated(x, own)
                own_next = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), own_next, own)
                point = judge.evaluated(x)
                better = point.cost < state.point.cost
                idle = jnp.where(better, 0, idle + 1)
                keep = better | ((point.cost == state.point.cost) & (point.removable < state.point.removable))
                kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), point, state.point)
                gave_up = jnp.where(idle > IDLE, CODES["stalled"], GOING_ON)
                gave_up = jnp.where(jnp.all(jnp.isfinite(x)), gave_up, CODES["non_finite"])
                state = dataclasses.replace(state, point=kept, iterations=state.iterations + 1)
                state = limited(judge.judged(state, gave_up), self.solver.max_iterations)
                return (x, own_next, idle, state), state.code != GOING_ON

            def unless_done(carry: Any, k: Array) -> tuple[Any, Bool[Array, ""]]:
                done = carry[3].code != GOING_ON
                after, last = step(carry, k)
                return jax.tree.map(lambda old, new: jnp.where(done, old, new), carry, after), done | last

            carry = (x, start, jnp.zeros((), jnp.int32), first)
            return iterate(unless_done, carry, self.solver.max_iterations + 1)[0][3]

    def _value_and_grad(self, x: Array) -> tuple[Array, Array]:
        r, J = self.problem.linearization(self.gradient)(x)
        r = jnp.where(jnp.isfinite(r), r, UNREACHABLE)
        return 0.5 * jnp.vdot(r, r), jnp.where(jnp.isfinite(J), J, 0.0).T @ r

    @property
    def _method(self) -> Any:
        return _jaxopt().LBFGS(
            self._value_and_grad, value_and_grad=True, maxiter=self.solver.max_iterations, tol=0.0,
            maxls=LINE_SEARCH, history_size=self.solver.memory, implicit_diff=False,
        )  # fmt: skip

    def _begun(self, x: Array) -> Any:
        """The method's first state, its numbers of the types that an iteration returns."""
        state = self._method.init_state(x)
        after = jax.eval_shape(lambda x, s: self._method.update(x, s).state, x, state)
        return jax.tree.map(
            lambda value, like: jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape), state, after
        )

    def _updated(self, x: Array, state: Any) -> tuple[Array, Any]:
        found = self._method.update(x, state)
        return found.params, found.state


@functools.cache
def _jaxopt() -> Any:
    """The module jaxopt, imported at first use, its warning that nobody maintains it left out.

    Raises `MissingExtraError` with the line that installs it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import jaxopt
        except ImportError as error:
            raise MissingExtraError(
                "LBFGS in batches needs jaxopt; install it with: pip install 'trajopt-contact[jaxopt]', or use GaussNewton"
            ) from error
    return jaxopt
