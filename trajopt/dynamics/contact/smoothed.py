r"""Analytically smoothed contact (Smoothed, section 3.3 and Alg. 1) as a problem with compliance.

The source's Gauss-Seidel iteration scales impulses by s_k = sigmoid(kappa d_k), d_k the depth of contact k: those of the other
contacts wherever they act, and all of them at the end. At its fixed point p, in terms of the impulses P_k = s_k p_k that act,

    P_j in the cone of j, law between P_j and   nu_j = sum_k G_jk P_k + (1 / s_j - 1) G_jj P_j + g_j,

since a cone does not mind the factor. So the smoothed law is the unsmoothed one with a compliance in every contact,

    G + blockdiag(exp(kappa phi_j) G_jj),        1 / s - 1 = exp(-kappa d) = exp(kappa phi),

which is solved, and differentiated, like hard contact. It vanishes at depth, doubles a contact's inverse mass at phi = 0, and
grows beyond all bounds with the distance: contacts that it makes softer than rounding (kappa phi > `far`) are left out. Being
positive definite it leaves no impulse undetermined.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact.law import check_kappa
from trajopt.dynamics.contact.rows import Rows
from trajopt.errors import OptionError


def far(dtype) -> float:
    """kappa phi from which an impulse is below rounding: exp(-far) is 100 eps."""
    return float(-np.log(100 * np.finfo(dtype).eps))


def within_reach(rows: Rows, kappa) -> Bool[Array, " nc"]:
    """Contacts whose impulse is above rounding."""
    phi = rows.distance[: rows.mu.shape[0]]
    return rows.exists[: rows.mu.shape[0]] & (kappa * phi < far(phi.dtype))


def sharpness(rows: Rows, kappa) -> Float[Array, " nc"]:
    """The factors sigmoid(kappa d) of the impulses."""
    return jax.nn.sigmoid(-kappa * rows.distance[: rows.mu.shape[0]])


def softness(rows: Rows, kappa) -> Float[Array, " nc"]:
    """exp(kappa phi_j) of every contact, zero for contacts out of reach."""
    reached = within_reach(rows, kappa)
    return jnp.exp(jnp.where(reached, kappa * rows.distance[: rows.mu.shape[0]], -jnp.inf))


def compliance(rows: Rows, half: Float[Array, "nv m"], kappa) -> Float[Array, "nc 3 3"]:
    """exp(kappa phi_j) G_jj of every contact, 1/kg; half = L^-1 J^T with M = L L^T. Zero for contacts out of reach."""
    nc = rows.mu.shape[0]
    own = jnp.swapaxes(half[:, : 3 * nc].reshape(-1, nc, 3), 0, 1)
    return softness(rows, kappa)[:, None, None] * jnp.sum(own[:, :, :, None] * own[:, :, None, :], 1)


def softened(G: Float[Array, "m m"], blocks: Float[Array, "nc 3 3"]) -> Float[Array, "m m"]:
    """G with `blocks` added to the diagonal blocks of the contacts."""
    nc = blocks.shape[0]
    if nc == 0:
        return G
    eye = jnp.eye(nc, dtype=G.dtype)
    diagonal = (eye[:, None, :, None] * blocks[:, :, None, :]).reshape(3 * nc, 3 * nc)
    return G.at[: 3 * nc, : 3 * nc].add(diagonal)


def kappa_schedule(first: float, last: float, count: int) -> Float[np.ndarray, " count"]:
    """`count` values from `first` to `last`, 1/m, in equal ratios: smoothing that is taken back while an optimisation runs.

    Give them to `System(kappa=...)` one after another; nothing is compiled anew. Raises `OptionError`.
    """
    check_kappa(first)
    check_kappa(last)
    if count < 1:
        raise OptionError(f"count is {count}, expected at least 1 value of kappa")
    return np.geomspace(first, last, count)
