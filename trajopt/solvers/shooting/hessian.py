"""The exact Hessian of the Lagrangian of a multiple-shooting transcription.

Inside an interval the adjoints of the motion, l_t = A_t^T l_{t+1} + (gradient of the stage's Lagrangian), carry the multiplier of
its defect back. With H_t the Hessian of the stage's Lagrangian and of l_{t+1} . f_t, and Z_t = d(x_t, u_t, p) in local variables,
an interval contributes sum_t Z_t^T H_t Z_t. On a manifold the coordinates of both its nodes bend, too.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from trajopt.problems.expansions import moved, rows_or_none
from trajopt.problems.ocp import CONSTRAINTS
from trajopt.solvers.shooting.functions import ShootingFunctions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Interval:
    """One interval, or stacked all of them: the first state x, its coordinates xi and their chart R; of its K steps controls,
    times, places and whether there is such a step; the references of both nodes; the rows' multipliers by kind."""

    x: Float[Array, "*N nx"]
    xi: Float[Array, "*N n"]
    R: Float[Array, "*N n n"]
    us: Float[Array, "*N K nu"]
    times: Float[Array, "*N K"]
    places: Any
    valid: Any
    reference: Float[Array, "*N nx"]
    reference_next: Float[Array, "*N nx"]
    multipliers: dict[str, Array]


def lagrangian_hessian(
    functions: ShootingFunctions,
    w: Float[Array, " nw"],
    references: Float[Array, "nodes nx"],
    multipliers: Float[Array, " m"],
    factor: Float[Array, ""],
) -> Float[Array, " nonzeros"]:
    """Non-zeros of the Hessian of factor f + multipliers . g at w."""
    problem, n, y = functions.problem, functions.problem.n, functions.multipliers_by_kind(multipliers)
    xi, nodes, us, p = functions.unpack(w, references)
    times, places, valid = functions.steps()
    R, _ = functions.charts(xi, nodes, references)
    by_interval = {key: y[key] for key in ("defect", *CONSTRAINTS[:2], "inner_bounds")}
    by_interval["node_bounds"] = y["node_bounds"][:-1]
    intervals = Interval(
        nodes[:-1], xi[:-1], R[:-1], us, times, places, valid, references[:-1], references[1:], by_interval
    )
    H = jax.vmap(lambda interval: _interval_hessian(functions, interval, p, factor))(intervals)

    def prior(z: Array) -> Array:
        r = problem.prior_residual(problem.retract(references[0], z[:n]), z[n:])
        return 0.5 * factor * jnp.vdot(r, r)

    def end(z: Array) -> Array:
        x, p = problem.retract(references[-1], z[:n]), z[n:]
        rows = [jnp.vdot(y[kind], rows_or_none(problem.terminal(kind, x, p), z)) for kind in CONSTRAINTS[2:]]
        bounds = jnp.vdot(y["node_bounds"][-1], x[functions.layout.as_rows])
        return factor * problem.final_cost(x, p) + sum(rows) + bounds

    H = H.at[0].add(functions.widened(jax.hessian(prior)(jnp.append(xi[0], p))))
    return functions.hessian_values(H, jax.hessian(end)(jnp.append(xi[-1], p)))


def _interval_hessian(functions: ShootingFunctions, at: Interval, p: Array, factor: Array) -> Float[Array, "c c"]:
    """An interval's part in its local variables."""
    problem, n, y = functions.problem, functions.problem.n, at.multipliers
    end, S, xs, Z, F = functions.sensitivities(at.x, at.R, at.us, at.times, at.places, at.valid, p)
    gradient, H = _stage_lagrangians(functions, xs, at, p, factor)

    def backward(adjoint: Array, inputs: tuple) -> tuple[Any, Any]:
        F, gradient, ok = inputs
        return jnp.where(ok, F[:, :n].T @ adjoint + gradient[:n], adjoint), adjoint

    last = y["defect"] if functions.flat else functions.read(at.reference_next, end).T @ y["defect"]
    first, adjoints = jax.lax.scan(backward, last, (F, gradient, at.valid), reverse=True)
    H = H + jax.vmap(lambda x, u, t, w: functions.curvature(x, u, t, p, w))(xs, at.us, at.times, adjoints)
    H = jnp.where(at.valid[:, None, None], H, jnp.zeros_like(H))
    total = jnp.einsum("kia,kij,kjb->ab", Z, H, Z)
    if functions.flat:
        return total

    def read(e: Array) -> Array:
        return jnp.vdot(y["defect"], problem.local(at.reference_next, problem.retract(end, e)))

    def chart(d: Array) -> Array:
        x = problem.retract(at.reference, at.xi + d)
        return jnp.vdot(first, problem.local(at.x, x)) + jnp.vdot(y["node_bounds"], x[functions.layout.as_rows])

    zero = jnp.zeros(n, at.x.dtype)
    return (total + S.T @ jax.hessian(read)(zero) @ S).at[:n, :n].add(jax.hessian(chart)(zero))


def _stage_lagrangians(
    functions: ShootingFunctions, xs: Array, at: Interval, p: Array, factor: Array
) -> tuple[Float[Array, "K z"], Float[Array, "K z z"]]:
    """Gradients and Hessians of the stages' parts of the Lagrangian in z = [dx, du, dp], dynamics apart."""
    problem = functions.problem
    zero = jnp.zeros(problem.n + problem.nu + problem.n_p, xs.dtype)

    def stage(x: Array, u: Array, t: ScalarLike, y: dict[str, Array]) -> tuple[Array, Array]:
        def lagrangian(z: Array) -> Array:
            return functions.stage_lagrangian(*moved(problem, x, u, p)(z), t, y, factor)

        return jax.grad(lagrangian)(zero), jax.jacfwd(jax.grad(lagrangian))(zero)

    steps = {kind: at.multipliers[kind] for kind in (*CONSTRAINTS[:2], "inner_bounds")}
    return jax.vmap(stage)(xs, at.us, at.times, steps)
