"""Factors and solutions of covariances and of their inverses, whose entries have units that lie many orders apart."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.linear_algebra import cho_solve, symmetric_cholesky

SMALLEST = 1e-12  # added to covariances of unit diagonal before they are factorised


def factor(P: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L with P = L L^T, of a matrix that is scaled to a unit diagonal first."""
    size, L = _scaled(P)
    return size[:, None] * L


def solved(P: Float[Array, "n n"], right: Float[Array, "..."]) -> Float[Array, "..."]:
    """P^-1 right, (n,) or (n, k)."""
    size, L = _scaled(P)
    columns = right.reshape(len(P), -1)
    return (cho_solve(L, columns / size[:, None]) / size[:, None]).reshape(right.shape)


def _scaled(P: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Roots of the diagonal, and the factor of the matrix over them."""
    size = jnp.sqrt(jnp.maximum(jnp.diag(P), 1e-300))
    return size, symmetric_cholesky(P / size[:, None] / size + SMALLEST * jnp.eye(len(P)))
