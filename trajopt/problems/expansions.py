"""Quadratic expansions of an `OptimalControlProblem` along a motion.

An expansion at a trajectory is in the local variable z = [dx (n), du (nu), dp (np)] of each step, so that it holds on
manifolds: the dynamics give dx_{t+1} = d_t + F_t z_t with the defect d_t = f(x_t, u_t) (-) x_{t+1}, the cost gives
1/2 z^T H z + g^T z, and the constraints c + C z.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike

from trajopt.dynamics.gradients.differences import difference_quotients
from trajopt.dynamics.gradients.modes import DIFFERENCES
from trajopt.dynamics.smoothness import law_with_kinks
from trajopt.dynamics.system import System
from trajopt.errors import DerivativeError
from trajopt.problems.residuals.base import Residual, StepOutcome, Terms, is_task
from trajopt.problems.task_expansion import task_expansion, task_rows
from trajopt.problems.trajectory import ControlProblem, flat_state

HESSIANS = ("gauss-newton", "exact")
COMPLEMENTARITY = "complementarity-aware"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Expansion:
    """Quadratic model of a function at one point (or, stacked, at each step): value + g^T z + 1/2 z^T H z."""

    value: Float[Array, "*t"]
    gradient: Float[Array, "*t z"]
    hessian: Float[Array, "*t z z"]


def moved(
    problem: ControlProblem, x: Float[Array, " nx"], u: Float[Array, " nu"], p: Float[Array, " np"]
) -> Callable[[Array], tuple[Array, Array, Array]]:
    """z -> (x (+) dx, u + du, p + dp)."""
    n, nu = problem.n, problem.nu
    return lambda z: (problem.retract(x, z[:n]), u + z[n : n + nu], p + z[n + nu :])


def needs_steps(problem: ControlProblem) -> bool:
    """Whether residuals of the running cost ask for what a step finds."""
    return _stepping_task(problem) is not None


def _stepping_task(problem: ControlProblem) -> Residual | Terms | None:
    """The residuals of the running cost, where one of them asks for what a step finds."""
    task = problem.stage_residual
    return task if is_task(task) and any(term.needs_step for term in task.terms) else None


def advance(
    problem: ControlProblem, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
) -> tuple[Float[Array, " nx"], Float[Array, ""], Float[Array, ""]]:
    """(x_next, l(x, u, t), residual of the contact solve), of one step, where residuals of the cost ask for what it finds."""
    if problem.system is None:
        return problem.step(x, u, t, p), problem.running_cost(x, u, t, p), jnp.zeros((), x.dtype)
    task, system, state = _stepping_task(problem), problem.system_at(p), problem.as_state(x)
    x_next, info = system.step(state, u)
    if task is None:
        return flat_state(x_next), problem.running_cost(x, u, t, p), info.residual
    rows = task(state, u, t, StepOutcome(system, state, u, (x_next, info)))
    cost, more = 0.5 * jnp.vdot(rows, rows), problem.stage("stage_cost", x, u, t, p)
    return flat_state(x_next), cost if more is None else cost + more, info.residual


def linear_dynamics(problem: ControlProblem, gradient: str = "implicit") -> Callable[..., tuple[Array, Array]]:
    """The function (x, u, t, p) -> (x_next (nx,), F (n, n + nu + np)), F = d x_next / dz in tangent coordinates."""
    problem.check_gradient(gradient)
    if gradient == COMPLEMENTARITY and not relabels(problem, gradient):
        problem, gradient = problem.with_gradient("implicit"), "implicit"
    if gradient == COMPLEMENTARITY:
        raise DerivativeError(
            f"problem '{problem.name}': {COMPLEMENTARITY} gradients need the direction of the loss, which is not there where "
            "each step is linearised for itself; use iLQR, DDP or SingleShooting, or gradient='implicit'"
        )
    system, size = problem.system, problem.n + problem.nu + problem.n_p

    def of_steps(x: Array, u: Array, t: ScalarLike, p: Array) -> tuple[Array, Array]:
        x_next = problem.step(x, u, t, p)
        f = _displaced_step(problem, x, u, t, p, x_next)
        if gradient in DIFFERENCES:
            return x_next, difference_quotients(gradient, f, jnp.ones(size, x.dtype))
        return x_next, jax.jacfwd(f)(jnp.zeros(size, x.dtype))

    def closed_form(x: Array, u: Array, t: ScalarLike, p: Array) -> tuple[Array, Array]:
        at = problem.system_at(p)
        jac = at.linearize(problem.as_state(x), u)
        x_next = flat_state(jac.x_next)
        by_p = jax.jacfwd(lambda p: problem.local(x_next, problem.step(x, u, t, p)))(p) if problem.n_p else None
        blocks = [jac.A, jac.B] + ([] if by_p is None else [by_p])
        return x_next, jnp.concatenate(blocks, 1)

    return of_steps if system is None or gradient in DIFFERENCES else closed_form


def _displaced_step(
    problem: ControlProblem, x: Array, u: Array, t: ScalarLike, p: Array, x_next: Array
) -> Callable[[Array], Array]:
    """z -> the step from (x, u, p) displaced by z, in tangent coordinates at x_next."""
    at = moved(problem, x, u, p)

    def f(z: Array) -> Array:
        x, u, p = at(z)
        return problem.local(x_next, problem.step(x, u, t, p))

    return f


def relabels(problem: ControlProblem, gradient: str) -> bool:
    """Whether the gradient mode is complementarity-aware and there is contact to be labelled."""
    return gradient == COMPLEMENTARITY and not twice_differentiable(problem)


def aware_dynamics(problem: ControlProblem) -> Callable[..., tuple[Array, Array]]:
    """The function (x, u, t, p, d loss / d x_next (n,)) -> (x_next, F) of `linear_dynamics` where contact `relabels`.

    For a problem in that gradient mode. Raises `DerivativeError` where it has free parameters.
    """
    if problem.n_p:
        raise DerivativeError(
            f"problem '{problem.name}' has free parameters, by which {COMPLEMENTARITY} steps are not linearised; use "
            "SingleShooting, or gradient='implicit'"
        )

    def linear(x: Array, u: Array, t: ScalarLike, p: Array, adjoint: Array) -> tuple[Array, Array]:
        jac = problem.system_at(p).linearize(problem.as_state(x), u, adjoint=adjoint)
        return flat_state(jac.x_next), jnp.concatenate([jac.A, jac.B], 1)

    return linear


def stage_expansion(
    problem: ControlProblem,
    x: Float[Array, " nx"],
    u: Float[Array, " nu"],
    t: ScalarLike,
    p: Float[Array, " np"],
    hessian: str = "gauss-newton",
) -> Expansion:
    """l(x, u, t) to second order in z. "gauss-newton": J^T J for residuals, the exact Hessian for general costs."""
    at, size = moved(problem, x, u, p), problem.n + problem.nu + problem.n_p
    task, system = problem.stage_residual, problem.system
    if is_task(task) and system is not None and problem.stage_cost is None and _plain(problem, hessian):
        return Expansion(*task_expansion(system, task, problem.as_state(x), u, t, size))

    def kinds(z: Array) -> tuple[Array | None, Array | None]:
        x, u, p = at(z)
        return problem.stage("stage_residual", x, u, t, p), problem.stage("stage_cost", x, u, t, p)

    return _expansion(kinds, size, x.dtype, hessian)


def _plain(problem: ControlProblem, hessian: str) -> bool:
    """Whether J^T J is asked for, of the states of a `System` and controls alone."""
    system = problem.system
    return system is not None and problem.n == 2 * system.nv and not problem.n_p and hessian == "gauss-newton"


def final_expansion(
    problem: ControlProblem, x: Float[Array, " nx"], p: Float[Array, " np"], hessian: str = "gauss-newton"
) -> Expansion:
    """l_T(x) to second order in [dx, dp]."""
    task, system = problem.terminal_residual, problem.system
    if is_task(task) and system is not None and problem.terminal_cost is None and _plain(problem, hessian):
        return Expansion(*task_expansion(system, task, problem.as_state(x), None, problem.times[-1], problem.n))

    def kinds(z: Array) -> tuple[Array | None, Array | None]:
        x_, p_ = problem.retract(x, z[: problem.n]), p + z[problem.n :]
        return problem.terminal("terminal_residual", x_, p_), problem.terminal("terminal_cost", x_, p_)

    return _expansion(kinds, problem.n + problem.n_p, x.dtype, hessian)


def prior_expansion(
    problem: ControlProblem, x0: Float[Array, " nx"], p: Float[Array, " np"], hessian: str = "gauss-newton"
) -> Expansion:
    """The priors on x_0 and p to second order in [dx_0, dp]."""

    def kinds(z: Array) -> tuple[Array | None, Array | None]:
        return problem.prior_residual(problem.retract(x0, z[: problem.n]), p + z[problem.n :]), None

    return _expansion(kinds, problem.n + problem.n_p, x0.dtype, hessian)


def _expansion(kinds: Callable, size: int, dtype: Any, hessian: str) -> Expansion:
    zero = jnp.zeros(size, dtype)
    value, gradient, H = jnp.zeros((), dtype), zero, jnp.zeros((size, size), dtype)
    residual, cost = jax.eval_shape(kinds, zero)
    if residual is not None and residual.shape[0]:
        f = lambda z: kinds(z)[0]  # noqa: E731
        J, r = jax.jacfwd(lambda z: (f(z),) * 2, has_aux=True)(zero)
        value, gradient, H = value + 0.5 * jnp.vdot(r, r), gradient + J.T @ r, H + J.T @ J
        if hessian == "exact":
            H = H + jax.jacfwd(jax.jacrev(lambda z: jnp.vdot(jax.lax.stop_gradient(r), f(z))))(zero)
    if cost is not None:
        g = lambda z: kinds(z)[1]  # noqa: E731
        value, gradient = value + g(zero), gradient + jax.grad(g)(zero)
        H = H + jax.jacfwd(jax.jacrev(g))(zero)
    return Expansion(value, gradient, H)


def stage_constraints(
    problem: ControlProblem,
    kind: str,
    x: Float[Array, " nx"],
    u: Float[Array, " nu"],
    t: ScalarLike,
    p: Float[Array, " np"],
) -> tuple[Float[Array, " m"], Float[Array, "m z"]]:
    """(c (m,), C (m, n + nu + np)) of "equality" or "inequality" at one step; m = 0 without such constraints."""
    at, size = moved(problem, x, u, p), problem.n + problem.nu + problem.n_p
    task, system, zero = getattr(problem, kind), problem.system, jnp.zeros(size, x.dtype)
    if is_task(task) and system is not None and _plain(problem, "gauss-newton"):
        return task_rows(system, task, problem.as_state(x), u, t, size)

    def f(z: Array) -> Array:
        x, u, p = at(z)
        return rows_or_none(problem.stage(kind, x, u, t, p), x)

    return f(zero), jax.jacfwd(f)(zero)


def terminal_constraints(
    problem: ControlProblem, kind: str, x: Float[Array, " nx"], p: Float[Array, " np"]
) -> tuple[Float[Array, " m"], Float[Array, "m z"]]:
    """(c (m,), C (m, n + np)) of "terminal_equality" or "terminal_inequality"."""
    task, system, zero = getattr(problem, kind), problem.system, jnp.zeros(problem.n + problem.n_p, x.dtype)
    if is_task(task) and system is not None and _plain(problem, "gauss-newton"):
        return task_rows(system, task, problem.as_state(x), None, problem.times[-1], problem.n)

    def f(z: Array) -> Array:
        return rows_or_none(problem.terminal(kind, problem.retract(x, z[: problem.n]), p + z[problem.n :]), x)

    return f(zero), jax.jacfwd(f)(zero)


def rows_or_none(value: Float[Array, "..."] | None, like: Float[Array, "..."]) -> Float[Array, "..."]:
    """Constraint rows, none of them where there is no such constraint."""
    return jnp.zeros(0, like.dtype) if value is None else value


def twice_differentiable(problem: ControlProblem) -> bool:
    """Whether the dynamics have second derivatives."""
    return reason_not_smooth(problem) is None


def reason_not_smooth(problem: ControlProblem) -> str | None:
    """What defines no second derivative of the dynamics, as the subject of a sentence; None where they have one.

    Of a `System` its law says so, of a user's function the laws of the steps that it takes; besides, JAX cannot differentiate
    every function twice.
    """
    if problem.system is not None:
        return _steps_with_rows(problem.system)
    sizes = (problem.nx, problem.nu, problem.n_p)
    return _reason_of_function(problem.dynamics, sizes, np.dtype(problem.dtype))


def _steps_with_rows(system: System) -> str | None:
    """What rows the steps of a system have, as `reason_not_smooth`."""
    if system.smooth:
        return None
    rows_of_law = system.contact.acts or system.contact.limits or system.contact.joint_friction
    return system.contact.name if rows_of_law else "a step with equality constraints"


@functools.lru_cache(maxsize=64)
def _reason_of_function(f: Callable[..., Array], sizes: tuple[int, int, int], dtype: np.dtype) -> str | None:
    nx, nu, n_p = sizes

    def total(z: Array, t: Array) -> Array:
        p = (z[nx + nu :],) if n_p else ()
        return jnp.sum(f(z[:nx], z[nx : nx + nu], t, *p))

    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((sum(sizes),), ())]
    law = law_with_kinks(total, *arguments)
    if law is not None:
        return f"{law}, under which the dynamics take steps,"
    try:
        jax.eval_shape(lambda z, t: _hessian_at(lambda z: total(z, t), z), *arguments)
    except (NotImplementedError, DerivativeError, ValueError):  # the last of reverse mode through a `while_loop`
        return "a function without a second derivative in JAX"
    return None


def dynamics_hessian(problem: ControlProblem) -> Callable[..., Array]:
    """The function (x, u, t, p, w) -> d^2 (w . f) / dz^2 (z, z), with f in tangent coordinates about x_next.

    Raises `DerivativeError` where the dynamics have no second derivative.
    """
    reason = reason_not_smooth(problem)
    if reason is not None:
        raise DerivativeError(f"{reason} defines no second derivative of a step; use iLQR or a Gauss-Newton Hessian")

    problem = problem.with_gradient("implicit")

    def hessian(x: Array, u: Array, t: ScalarLike, p: Array, w: Array) -> Array:
        f = _displaced_step(problem, x, u, t, p, jax.lax.stop_gradient(problem.step(x, u, t, p)))
        zero = jnp.zeros(problem.n + problem.nu + problem.n_p, x.dtype)
        return _hessian_at(lambda z: jnp.vdot(w, f(z)), zero)

    return hessian


def _hessian_at(f: Callable[[Array], Array], z: Float[Array, " z"]) -> Float[Array, "z z"]:
    """That of a function of steps, at z: the gradient of each slope (forward mode twice takes the square of the directions).

    Reverse mode comes last: through a loop it leaves the steps without their derivative rules.
    """
    return jax.vmap(lambda e: jax.grad(lambda z: jax.jvp(f, (z,), (e,))[1])(z))(jnp.eye(z.size, dtype=z.dtype))
