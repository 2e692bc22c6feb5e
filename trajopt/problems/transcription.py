"""From an `OptimalControlProblem` to compiled functions: quadratic expansions of a motion, and its certificate.

An expansion at a trajectory is in the local variable z = [dx (n), du (nu), dp (np)] of each step, so that it holds on
manifolds: the dynamics give dx_{t+1} = d_t + F_t z_t with the defect d_t = f(x_t, u_t) (-) x_{t+1}, the cost gives
1/2 z^T H z + g^T z, and the constraints c + C z.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.law import NoContact
from trajopt.dynamics.differences import RIDDERS_LEVELS, RIDDERS_STEP, central_differences, central_step, ridders
from trajopt.dynamics.gradients import DIFFERENCES
from trajopt.dynamics.system import State, System
from trajopt.errors import DerivativeError
from trajopt.problems.trajectory import CONSTRAINTS, ControlProblem, Trajectory, flat_state

HESSIANS = ("gauss-newton", "exact")
COMPLEMENTARITY = "complementarity-aware"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Expansion:
    """Quadratic model of a function at one point (or, stacked, at each step): value + g^T z + 1/2 z^T H z."""

    value: Float[Array, "*t"]
    gradient: Float[Array, "*t z"]
    hessian: Float[Array, "*t z z"]


def moved(problem: ControlProblem, x, u, p) -> Callable[[Array], tuple[Array, Array, Array]]:
    """z -> (x (+) dx, u + du, p + dp)."""
    n, nu = problem.n, problem.nu
    return lambda z: (problem.retract(x, z[:n]), u + z[n : n + nu], p + z[n + nu :])


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

    def difference_quotient(x, u, t, p):
        x_next, at = problem.step(x, u, t, p), moved(problem, x, u, p)

        def f(z):
            x, u, p = at(z)
            return problem.local(x_next, problem.step(x, u, t, p))

        step = central_step(x.dtype) if gradient == "finite-difference" else RIDDERS_STEP
        method = central_differences if gradient == "finite-difference" else ridders
        return x_next, method(f, jnp.full(size, step, x.dtype))

    def automatic(x, u, t, p):
        at, zero = moved(problem, x, u, p), jnp.zeros(size, x.dtype)
        x_next = problem.step(x, u, t, p)

        def f(z):
            x, u, p = at(z)
            return problem.local(x_next, problem.step(x, u, t, p))

        return x_next, jax.jacfwd(f)(zero)

    def closed_form(x, u, t, p):
        at = problem.system_at(p)
        jac = at.linearize(problem.as_state(x), u)
        x_next = flat_state(jac.x_next)
        by_p = jax.jacfwd(lambda p: problem.local(x_next, problem.step(x, u, t, p)))(p) if problem.n_p else None
        blocks = [jac.A, jac.B] + ([] if by_p is None else [by_p])
        return x_next, jnp.concatenate(blocks, 1)

    if gradient in DIFFERENCES:
        return difference_quotient
    return automatic if system is None else closed_form


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

    def linear(x, u, t, p, adjoint):
        jac = problem.system_at(p).linearize(problem.as_state(x), u, adjoint=adjoint)
        return flat_state(jac.x_next), jnp.concatenate([jac.A, jac.B], 1)

    return linear


def stage_expansion(problem: ControlProblem, x, u, t, p, hessian: str = "gauss-newton") -> Expansion:
    """l(x, u, t) to second order in z. "gauss-newton": J^T J for residuals, the exact Hessian for general costs."""
    at = moved(problem, x, u, p)

    def kinds(z):
        x, u, p = at(z)
        return problem.stage("stage_residual", x, u, t, p), problem.stage("stage_cost", x, u, t, p)

    return _expansion(kinds, problem.n + problem.nu + problem.n_p, x.dtype, hessian)


def final_expansion(problem: ControlProblem, x, p, hessian: str = "gauss-newton") -> Expansion:
    """l_T(x) to second order in [dx, dp]."""

    def kinds(z):
        x_, p_ = problem.retract(x, z[: problem.n]), p + z[problem.n :]
        return problem.terminal("terminal_residual", x_, p_), problem.terminal("terminal_cost", x_, p_)

    return _expansion(kinds, problem.n + problem.n_p, x.dtype, hessian)


def prior_expansion(problem: ControlProblem, x0, p, hessian: str = "gauss-newton") -> Expansion:
    """The priors on x_0 and p to second order in [dx_0, dp]."""

    def kinds(z):
        return problem.prior_residual(problem.retract(x0, z[: problem.n]), p + z[problem.n :]), None

    return _expansion(kinds, problem.n + problem.n_p, x0.dtype, hessian)


def _expansion(kinds: Callable, size: int, dtype, hessian: str) -> Expansion:
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


def stage_constraints(problem: ControlProblem, kind: str, x, u, t, p) -> tuple[Array, Array]:
    """(c (m,), C (m, n + nu + np)) of "equality" or "inequality" at one step; m = 0 without such constraints."""
    at = moved(problem, x, u, p)
    zero = jnp.zeros(problem.n + problem.nu + problem.n_p, x.dtype)

    def f(z):
        x, u, p = at(z)
        return _or_none(problem.stage(kind, x, u, t, p), x.dtype)

    return f(zero), jax.jacfwd(f)(zero)


def terminal_constraints(problem: ControlProblem, kind: str, x, p) -> tuple[Array, Array]:
    """(c (m,), C (m, n + np)) of "terminal_equality" or "terminal_inequality"."""
    zero = jnp.zeros(problem.n + problem.n_p, x.dtype)

    def f(z):
        return _or_none(problem.terminal(kind, problem.retract(x, z[: problem.n]), p + z[problem.n :]), x.dtype)

    return f(zero), jax.jacfwd(f)(zero)


def _or_none(value: Array | None, dtype) -> Array:
    return jnp.zeros(0, dtype) if value is None else value


def twice_differentiable(problem: ControlProblem) -> bool:
    """Whether the dynamics have second derivatives: user-written functions and systems without contact."""
    return problem.system is None or isinstance(problem.system.contact, NoContact)


def dynamics_hessian(problem: ControlProblem) -> Callable[..., Array]:
    """The function (x, u, t, p, w) -> d^2 (w . f) / dz^2 (z, z), with f in tangent coordinates about x_next.

    Raises `DerivativeError` where the dynamics have no second derivative.
    """
    if not twice_differentiable(problem):
        assert problem.system is not None
        law = type(problem.system.contact).__name__
        raise DerivativeError(f"{law} defines no second derivative of a step; use iLQR or a Gauss-Newton Hessian")

    def hessian(x, u, t, p, w):
        at, x_next = moved(problem, x, u, p), jax.lax.stop_gradient(problem.step(x, u, t, p))

        def f(z):
            x, u, p = at(z)
            return jnp.vdot(w, problem.local(x_next, problem.step(x, u, t, p)))

        # Forward over reverse: one gradient per direction, where forward mode twice takes the square of the directions.
        return jax.jacfwd(jax.grad(f))(jnp.zeros(problem.n + problem.nu + problem.n_p, x.dtype))

    return hessian


def residual_parts(problem: ControlProblem, trajectory: Trajectory) -> dict[str, Array]:
    """Largest violation of each kind of constraint, recomputed: defect, bounds, and the constraints there are."""
    xs, us, p = trajectory.xs, trajectory.us, trajectory.p
    times = jnp.asarray(problem.times)
    x_next = jax.vmap(lambda x, u, t: problem.step(x, u, t, p))(xs[:-1], us, times[:-1])
    parts = {"defect": _largest(jax.vmap(problem.local)(xs[1:], x_next))}
    bounded = [
        (us, problem.control_lower, problem.control_upper),
        (p, problem.parameter_lower, problem.parameter_upper),
    ]
    first = 0 if problem.free_initial_state else 1
    bounded.append((xs[first:], problem.state_lower, problem.state_upper))
    excess = [
        jnp.maximum(jnp.max(jnp.maximum(low.astype(a.dtype) - a, a - high.astype(a.dtype)), initial=0.0), 0.0)
        for a, low, high in bounded
    ]
    parts["bound_violation"] = jnp.max(jnp.stack(excess))
    if not problem.free_initial_state:
        parts["initial_state_error"] = _largest(problem.local(jnp.asarray(problem.x0), xs[0]))
    for kind in CONSTRAINTS:
        if getattr(problem, kind) is None:
            continue
        if kind.startswith("terminal"):
            value: Any = problem.terminal(kind, xs[-1], p)
        else:
            value = jax.vmap(lambda x, u, t, kind=kind: problem.stage(kind, x, u, t, p))(xs[:-1], us, times[:-1])
        parts[kind] = _largest(jnp.maximum(value, jnp.zeros_like(value)) if kind.endswith("inequality") else value)
    return parts


def _largest(value: Any) -> Array:
    return jnp.max(jnp.abs(value), initial=jnp.zeros((), value.dtype))


class OptimalControlOracle:
    """The compiled functions of an optimal control problem, and how often the dynamics were evaluated.

    Functions are compiled ahead of time when first called; `compile_time_s` sums that up. `evaluations` counts motions: one
    for a rollout or an implicit linearisation of all steps, one more for every difference quotient's evaluation.
    """

    def __init__(self, problem: ControlProblem, gradient: str = "implicit") -> None:
        self.problem, self.gradient = problem.with_gradient(gradient), gradient
        self.evaluations, self.compile_time_s = 0, 0.0
        self.out_of_time: Callable[[], bool] = lambda: False
        self._compiled: dict[tuple, Any] = {}
        columns = problem.n + problem.nu + problem.n_p
        self.cost_of_linearization = {
            "finite-difference": 2 * columns + 1,
            "ridders": 2 * columns * RIDDERS_LEVELS + 1,
        }.get(gradient, 1)

    def call(self, name: str, fn: Callable, *arguments: Any) -> Any:
        """fn(*arguments), compiled once for `name` and the arguments' shapes; blocks until it is done."""
        arguments = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.asarray(a), arguments)
        key = (name, *((a.shape, a.dtype) for a in jax.tree.leaves(arguments)))
        if key not in self._compiled:
            start = time.perf_counter()
            self._compiled[key] = jax.jit(fn).lower(*arguments).compile()
            self.compile_time_s += time.perf_counter() - start
        return jax.block_until_ready(self._compiled[key](*arguments))

    def rollout(self, x0, us, p) -> Trajectory:
        """The motion from x0 under the controls us."""
        self.evaluations += 1
        return self.call("rollout", self.problem.rollout, x0, us, p)

    def cost(self, trajectory: Trajectory) -> float:
        return float(self.call("cost", self.problem.cost, trajectory))

    def violations(self, trajectory: Trajectory) -> dict[str, float]:
        """Recomputed violations by kind, see `residual_parts`."""
        parts = self.call("violations", lambda x: residual_parts(self.problem, x), trajectory)
        return {key: float(value) for key, value in parts.items()}

    def residuals(self, trajectory: Trajectory) -> dict[str, float]:
        """What a `Solution` reports: violations, and with contact the contact law's residual along the motion."""
        values = self.violations(trajectory)
        if self.problem.system is not None and not isinstance(self.problem.system.contact, NoContact):
            infos = self.call("infos", self._infos, trajectory)
            values["contact_residual"] = float(np.max(infos.residual))
            values["dropped_contacts"] = float(np.sum(infos.dropped))
        if self.problem.certificate is not None:
            values |= {key: float(value) for key, value in self.problem.certificate(trajectory).items()}
        return values

    def _infos(self, trajectory: Trajectory) -> Any:
        problem = self.problem
        system = problem.system_at(trajectory.p)
        return jax.lax.map(lambda a: system.step(problem.as_state(a[0]), a[1])[1], (trajectory.xs[:-1], trajectory.us))

    def shortfalls(self, values: dict[str, float]) -> list[str]:
        """What keeps recomputed `values` from counting as feasible: sentences, empty when nothing does."""
        return [
            f"{key} is {values.get(key, float('nan')):.3g}, allowed {limit:.3g}"
            for key, limit in self.problem.limits.items()
            if not values.get(key, float("nan")) <= limit
        ]

    def fields(self, trajectory: Trajectory) -> dict[str, Any]:
        """Fields of the `Solution`: x (controls and parameters, flat), xs, us, parameters and the arrays to plot."""
        problem, system = self.problem, self.problem.system
        xs, us, p = (np.asarray(a) for a in (trajectory.xs, trajectory.us, trajectory.p))
        motion: dict[str, Any] = {"t": problem.times, "u": us}
        if isinstance(system, System):
            states = [problem.as_state(x) for x in xs]
            motion["q"] = np.stack([np.asarray(s.q) for s in states if isinstance(s, State)])
            motion["v"] = np.stack([np.asarray(s.v) for s in states if isinstance(s, State)])
            if not isinstance(system.contact, NoContact):
                motion["impulse"] = np.asarray(self.call("infos", self._infos, trajectory).contacts.impulse)
        else:
            motion["x"] = xs
        x = np.concatenate([us.ravel(), p])
        return {"x": x, "xs": xs, "us": us, "parameters": p if p.size else None, "trajectory": motion}
