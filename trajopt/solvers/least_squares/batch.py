"""Least squares of one residual on many data sets at once, as one compiled program: Monte-Carlo studies, bootstrap, coverage.

Levenberg-Marquardt on the normal equations in units of their diagonal (Marquardt's scaling), for identified problems with few
unknowns and without bounds. `GaussNewton` solves a single problem more carefully, rank-deficient and bounded ones included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.dynamics.linear_algebra import cho_solve, cho_solve_vector, symmetric_cholesky
from trajopt.errors import OptionError, ShapeError
from trajopt.solvers.loop.contract import default_tolerance
from trajopt.solvers.subproblems.iterate import iterate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimates:
    """Of every data set: x, its covariance (J^T J)^-1, the cost 1/2 |r|^2, iterations, and whether x is stationary."""

    x: Float[Array, "*b n"]
    covariance: Float[Array, "*b n n"]
    cost: Float[Array, "*b"]
    iterations: Int[Array, "*b"]
    converged: Bool[Array, "*b"]


def estimate_batch(
    residual: Callable[[Array, Any], Array],
    x0: Any,
    data: Any,
    *,
    max_iterations: int = 30,
    tolerance: float | None = None,
) -> Estimates:
    """Minimise 1/2 |residual(x, d)|^2 for every d along the leading axis of `data`, an array or a pytree of arrays.

    x0: (n,), where all start. tolerance: as `GaussNewton`'s, default 1e-8 in float64, since normal equations halve the digits.
    Raises `ShapeError` or `OptionError` for what cannot be a point or a count of iterations.
    """
    x0 = np.asarray(x0)
    if x0.ndim != 1 or not x0.size:
        raise ShapeError(f"estimate_batch: x0 has shape {x0.shape}; expected a flat array with at least one entry")
    if max_iterations < 1:
        raise OptionError(f"estimate_batch: max_iterations is {max_iterations}; it must be at least 1")
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(sizes) != 1 or () in sizes:
        raise ShapeError(f"estimate_batch: leading axes of data are {sorted(sizes)}; expected one for the data sets")
    point = jnp.asarray(x0)
    least = default_tolerance(point.dtype) ** 0.8 if tolerance is None else tolerance
    return jax.jit(jax.vmap(lambda d: _estimate(lambda x: residual(x, d), point, max_iterations, least)))(data)


class _Iterate(NamedTuple):
    """A point, the normal equations H dx = -g there, the cost, the damping mu and whether the point is stationary."""

    x: Float[Array, " n"]
    H: Float[Array, "n n"]
    g: Float[Array, " n"]
    cost: Float[Array, ""]
    mu: Float[Array, ""]
    converged: Bool[Array, ""]


def _estimate(residual: Callable[[Array], Array], x0: Array, limit: int, tolerance: float) -> Estimates:
    eye = jnp.eye(x0.shape[0], dtype=x0.dtype)

    def linearized(x: Array) -> tuple[Array, Array, Array]:
        J, r = jax.jacfwd(lambda x: (residual(x),) * 2, has_aux=True)(x)
        return J.T @ J, J.T @ r, 0.5 * jnp.vdot(r, r)

    def scaled(H: Array) -> tuple[Array, Array]:
        size = jnp.sqrt(jnp.maximum(jnp.diag(H), jnp.finfo(H.dtype).tiny))
        return H / size[:, None] / size, size

    def normal_step(H: Array, g: Array, mu: ScalarLike) -> Array:
        unit, size = scaled(H)
        return -cho_solve_vector(symmetric_cholesky(unit + mu * eye), g / size) / size

    def step(at: _Iterate, _: Array) -> tuple[_Iterate, Array]:
        x = at.x + normal_step(at.H, at.g, at.mu)
        H, g, cost = linearized(x)
        better = cost <= at.cost * (1 + 1e-12)
        raised = jnp.where(better, jnp.where(at.mu > 1e-7, at.mu / 10, 0.0), jnp.maximum(10 * at.mu, 1e-4))
        new = _Iterate(x, H, g, cost, at.mu, at.converged)
        at = jax.tree.map(lambda new, old: jnp.where(better, new, old), new, at)
        removable = jnp.sqrt(jnp.maximum(-jnp.vdot(at.g, normal_step(at.H, at.g, 0.0)), 0.0))
        done = removable <= tolerance * jnp.maximum(jnp.sqrt(2 * at.cost), 1.0)
        return at._replace(mu=raised, converged=done), done

    first = _Iterate(x0, *linearized(x0), jnp.zeros((), x0.dtype), jnp.zeros((), bool))
    (x, H, _, cost, _, done), k = iterate(step, first, limit)
    unit, size = scaled(H)
    covariance = cho_solve(symmetric_cholesky(unit), eye) / size[:, None] / size
    return Estimates(x, covariance, cost, k, done)
