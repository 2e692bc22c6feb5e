"""Difference quotients of a vector function: central differences and Ridders extrapolation, as jit-able programs.

The function is f: R^n -> R^m, differentiated at zero; a caller that wants the derivative at x passes
f(d) = residual(integrate(x, d)). Columns are computed one after another (`lax.map`): a batch would turn the branches
of an iterative contact solver into both branches at every step, and would cost more than it saves on a CPU.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

RIDDERS_STEP = 1e-2  # first, largest half step in the units of a state
RIDDERS_LEVELS = 8
RIDDERS_RATIO = 2.0


def central_step(dtype: np.dtype) -> float:
    """Step that balances truncation (h^2) against rounding (eps/h) in a central difference: eps^(1/3)."""
    return float(np.finfo(dtype).eps ** (1.0 / 3.0))


def central_differences(f: Callable[[Array], Array], steps: Float[Array, " n"]) -> Float[Array, "m n"]:
    """Jacobian of `f` at zero, column j from (f(h_j e_j) - f(-h_j e_j)) / (2 h_j); 2 n evaluations, error O(h^2)."""

    def column(j):
        offset = jnp.zeros_like(steps).at[j].set(steps[j])
        return (f(offset) - f(-offset)) / (2 * steps[j])

    return jax.lax.map(column, jnp.arange(steps.shape[0])).T


def difference_quotients(mode: str, f: Callable[[Array], Array], scale: Float[Array, " n"]) -> Float[Array, "m n"]:
    """Jacobian of `f` at zero in the mode "finite-difference" or "ridders", its first steps in units of `scale`."""
    if mode == "finite-difference":
        return central_differences(f, central_step(scale.dtype) * scale)
    return ridders(f, RIDDERS_STEP * scale)


def fourth_order_step(dtype: np.dtype) -> float:
    """Step that balances truncation (h^4) against rounding (eps/h) in `fourth_order_differences`: eps^(1/5)."""
    return float(np.finfo(dtype).eps ** (1.0 / 5.0))


def fourth_order_differences(f: Callable[[Array], Array], steps: Float[Array, " n"]) -> Float[Array, "m n"]:
    """Jacobian of a smooth `f` at zero, column j from (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / (12 h) along e_j with h = h_j;
    4 n evaluations in one batch, error O(h^4)."""
    offsets = jnp.array([-2.0, -1.0, 1.0, 2.0], steps.dtype)[:, None, None] * jnp.diag(steps)
    far_behind, behind, ahead, far_ahead = jax.vmap(jax.vmap(f))(offsets)
    return ((8.0 * (ahead - behind) - (far_ahead - far_behind)) / (12.0 * steps[:, None])).T


def ridders(f: Callable[[Array], Array], steps: Float[Array, " n"]) -> Float[Array, "m n"]:
    """Jacobian of `f` at zero by Ridders' extrapolation of central differences to h = 0, entry by entry.

    `steps` are the first, large steps; each of the RIDDERS_LEVELS levels halves them. Of the whole extrapolation
    table the entry with the smallest error estimate is returned (Ridders, Adv. Eng. Software 4(2), 1982; as used in
    Nimble, App. D). 2 n RIDDERS_LEVELS evaluations.
    """

    def column(j):
        def quotient(k):
            h = steps[j] * jnp.asarray(RIDDERS_RATIO, steps.dtype) ** (-k.astype(steps.dtype))
            offset = jnp.zeros_like(steps).at[j].set(h)
            return (f(offset) - f(-offset)) / (2 * h)

        row = jax.lax.map(quotient, jnp.arange(RIDDERS_LEVELS))
        levels = [row[k] for k in range(RIDDERS_LEVELS)]
        best, error = levels[0], jnp.full_like(levels[0], jnp.inf)
        previous = [levels[0]]
        for k in range(1, RIDDERS_LEVELS):
            current = [levels[k]]
            for i in range(1, k + 1):
                factor = RIDDERS_RATIO ** (2 * i)
                current.append((factor * current[i - 1] - previous[i - 1]) / (factor - 1.0))
                estimate = jnp.maximum(jnp.abs(current[i] - current[i - 1]), jnp.abs(current[i] - previous[i - 1]))
                better = estimate < error
                best, error = jnp.where(better, current[i], best), jnp.where(better, estimate, error)
            previous = current
        return best

    return jax.lax.map(column, jnp.arange(steps.shape[0])).T
