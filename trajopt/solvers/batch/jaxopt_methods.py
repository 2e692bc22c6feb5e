"""jaxopt's Levenberg-Marquardt and L-BFGS-B inside a batch: the one file that knows jaxopt.

jaxopt is no longer developed. What is taken of it are single iterations (`init_state`, `update`); when to stop is decided here,
by the measure that all least-squares solvers share. While its functions are traced, their calls of `jax.numpy.linalg` go to
`dynamics.linear_algebra`, whose batches cannot stop a program on a CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import jax.scipy
from jaxtyping import Array, Bool, Float

from trajopt.dynamics import linear_algebra
from trajopt.errors import OptionError
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.solvers.least_squares.iteration import FitIteration, FitState, limited
from trajopt.solvers.least_squares.lbfgs import LBFGS
from trajopt.solvers.loop.codes import CODES, GOING_ON
from trajopt.solvers.loop.contract import default_tolerance
from trajopt.solvers.loop.options import check_options
from trajopt.solvers.subproblems.iterate import iterate

UNREACHABLE = 1e12  # stands for residuals that are not finite, so that a trial there is refused
TOLERANCE_EXPONENT = 0.8  # default tolerance 1e-8 in float64, 1e-4 in float32: normal equations and costs tell no more
IDLE = 5  # iterations in a row without a lower cost that end a run


@dataclasses.dataclass(frozen=True)
class LevenbergMarquardt:
    """jaxopt's Levenberg-Marquardt (Madsen, Nielsen 2010, algorithm 6.18), for `solve_batch`: least squares without bounds.

    Options:
        tolerance: as for `GaussNewton`, but by default 1e-8 in float64.
        max_iterations: largest number of iterations.
        damping: the first one, relative to the largest entry of the diagonal of $J^T J$.

    Raises `OptionError` for unusable options.
    """

    takes: ClassVar[tuple[type, ...]] = (LeastSquaresProblem,)

    tolerance: float | None = None
    max_iterations: int = 100
    damping: float = 1e-6

    def __post_init__(self) -> None:
        check_options(self)
        for key in ("tolerance", "damping"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise OptionError(f"LevenbergMarquardt: {key} is {value}; it must be positive")
        if self.max_iterations < 0:
            raise OptionError(f"LevenbergMarquardt: max_iterations is {self.max_iterations}; it must not be negative")

    @property
    def name(self) -> str:
        return "LevenbergMarquardt"


@dataclasses.dataclass(frozen=True)
class JaxoptFit:
    """The iteration of one of jaxopt's methods for one problem, whose data may be traced.

    Raises `OptionError` for a problem that the method cannot take.
    """

    problem: LeastSquaresProblem
    solver: LevenbergMarquardt | LBFGS
    gradient: str

    def __post_init__(self) -> None:
        problem, name = self.problem, self.solver.name
        if problem.integrate is not None:
            raise OptionError(f"{name}: problem '{problem.name}' has points on a manifold; use GaussNewton")
        if problem.bounded and isinstance(self.solver, LevenbergMarquardt):
            raise OptionError(f"{name}: problem '{problem.name}' has bounds; use GaussNewton or LBFGS")

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
        with _traced():
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

    def _residual(self, x: Array) -> Array:
        r = self.problem.full_residual(x)
        return jnp.where(jnp.isfinite(r), r, UNREACHABLE)

    def _value_and_grad(self, x: Array) -> tuple[Array, Array]:
        r, J = self.problem.linearization(self.gradient)(x)
        r = jnp.where(jnp.isfinite(r), r, UNREACHABLE)
        return 0.5 * jnp.vdot(r, r), jnp.where(jnp.isfinite(J), J, 0.0).T @ r

    @property
    def _method(self) -> Any:
        jaxopt, _ = _jaxopt()
        if isinstance(self.solver, LBFGS):
            return jaxopt.LBFGSB(
                self._value_and_grad, value_and_grad=True, maxiter=self.solver.max_iterations, tol=0.0,
                maxls=self.solver.max_line_search, history_size=self.solver.memory,
            )  # fmt: skip
        method = jaxopt.LevenbergMarquardt(
            self._residual, maxiter=self.solver.max_iterations, damping_parameter=self.solver.damping, tol=0.0,
            solver="cholesky", materialize_jac=True,
        )  # fmt: skip
        method._jac_fun = self._jacobian  # jaxopt 0.8.5 forgets `jac_fun` where the Jacobian is a matrix
        return method

    def _jacobian(self, x: Array) -> Array:
        J = self.problem.linearization(self.gradient)(x)[1]
        return jnp.where(jnp.isfinite(J), J, 0.0)

    @property
    def _bounds(self) -> tuple[Any, ...]:
        if isinstance(self.solver, LevenbergMarquardt):
            return ()
        return ((self.problem.lower.astype(self.problem.x0.dtype), self.problem.upper.astype(self.problem.x0.dtype)),)

    def _begun(self, x: Array) -> Any:
        """The method's first state, its numbers of the types that an iteration returns."""
        state = self._method.init_state(x, *self._bounds)
        after = jax.eval_shape(lambda x, s: self._method.update(x, s, *self._bounds).state, x, state)
        return jax.tree.map(
            lambda value, like: jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape), state, after
        )

    def _updated(self, x: Array, state: Any) -> tuple[Array, Any]:
        found = self._method.update(x, state, *self._bounds)
        return found.params, found.state


@functools.cache
def _jaxopt() -> tuple[Any, tuple[Any, Any]]:
    """jaxopt, and its modules that call LAPACK; imported at first use, its warning that nobody maintains it left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import jaxopt
        from jaxopt._src import lbfgsb, levenberg_marquardt
    return jaxopt, (lbfgsb, levenberg_marquardt)


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    """jaxopt mixes integers and floats, which strict promotion forbids, and calls LAPACK in batches."""
    lbfgsb, levenberg_marquardt = _jaxopt()[1]
    numpy = _standing_in(jnp, linalg=_standing_in(jnp.linalg, inv=linear_algebra.inverse, solve=_solve))
    scipy = _standing_in(jax.scipy, linalg=_standing_in(jax.scipy.linalg, solve=_solve))
    with (
        jax.numpy_dtype_promotion("standard"),
        mock.patch.object(lbfgsb, "jnp", numpy),
        mock.patch.object(levenberg_marquardt, "jsp", scipy),
    ):
        yield


def _standing_in(module: Any, **instead: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**(vars(module) | instead))


def _solve(A: Array, b: Array, assume_a: str = "gen") -> Array:
    """x of A x = b for a matrix and a vector."""
    if assume_a == "pos":
        factor = linear_algebra.symmetric_cholesky(A)
        return linear_algebra.cho_solve_vector(factor, b)
    return linear_algebra.solve_vector(A, b)
