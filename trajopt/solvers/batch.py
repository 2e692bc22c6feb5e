"""Least squares of one residual on many data sets at once, as one compiled program: Monte-Carlo studies, bootstrap, coverage.

Levenberg-Marquardt on the normal equations in units of their diagonal (Marquardt's scaling), for identified problems with few
unknowns and without bounds. `GaussNewton` solves a single problem more carefully, rank-deficient and bounded ones included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from trajopt.errors import OptionError, ShapeError
from trajopt.solvers.base import default_tolerance


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


def _estimate(residual: Callable[[Array], Array], x0: Array, limit: int, tolerance: float) -> Estimates:
    eye = jnp.eye(x0.shape[0], dtype=x0.dtype)

    def linearized(x):
        J, r = jax.jacfwd(lambda x: (residual(x),) * 2, has_aux=True)(x)
        return J.T @ J, J.T @ r, 0.5 * jnp.vdot(r, r)

    def scaled(H):
        size = jnp.sqrt(jnp.maximum(jnp.diag(H), jnp.finfo(H.dtype).tiny))
        return H / size[:, None] / size, size

    def step(H, g, mu):
        unit, size = scaled(H)
        return -cho_solve((jnp.linalg.cholesky(unit + mu * eye), True), g / size) / size

    def body(carry):
        x, (H, g, cost), mu, k, _ = carry
        trial = x + step(H, g, mu)
        H_new, g_new, cost_new = linearized(trial)
        better = cost_new <= cost * (1 + 1e-12)
        keep = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        at = jax.tree.map(keep, (trial, (H_new, g_new, cost_new)), (x, (H, g, cost)))
        mu = jnp.where(better, jnp.where(mu > 1e-7, mu / 10, 0.0), jnp.maximum(10 * mu, 1e-4))
        removable = jnp.sqrt(jnp.maximum(-jnp.vdot(at[1][1], step(at[1][0], at[1][1], 0.0)), 0.0))
        done = removable <= tolerance * jnp.maximum(jnp.sqrt(2 * at[1][2]), 1.0)
        return *at, mu, k + 1, done

    def unfinished(carry):
        return (carry[3] < limit) & ~carry[4]

    start = (x0, linearized(x0), jnp.zeros((), x0.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    x, (H, _, cost), _, k, done = jax.lax.while_loop(unfinished, body, start)
    unit, size = scaled(H)
    covariance = cho_solve((jnp.linalg.cholesky(unit), True), eye) / size[:, None] / size
    return Estimates(x, covariance, cost, k, done)
