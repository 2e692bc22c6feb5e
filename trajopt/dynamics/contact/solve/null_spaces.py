r"""Pseudo-inverse and null spaces of a square matrix that may be singular.

On CPUs by singular values. The libraries of other devices decompose the matrices of a batch one after another, so that there
reflections (Householder's, columns in the order of what is left of them; Golub and Van Loan 2013, section 5.4.2) take the whole
batch through every step together: of K they leave a basis Z of the null space of K^T, of K^T a basis N of that of K, and

    (K + Z N^T)^-1 = K^+ + N Z^T

is regular, since K^+ K = I - N N^T, K^+ Z = 0 and N^T K^+ = 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics import branches, linear_algebra
from trajopt.dynamics.precision import Threshold

RANK = Threshold(1e-10, 1e-5)  # share of the largest singular value, or pivot, below which one is zero but for rounding

Spaces = tuple[Float[Array, "m m"], Float[Array, "m m"], Float[Array, "m m"]]


def null_spaces(K: Float[Array, "m m"]) -> Spaces:
    """(pseudo-inverse, orthonormal bases of the null spaces of K and of K^T, with zero columns elsewhere)."""
    if not branches.accelerated():
        return by_singular_values(K)
    return jax.lax.platform_dependent(K, cpu=by_singular_values, default=by_reflections)


def by_singular_values(K: Float[Array, "m m"]) -> Spaces:
    U, s, Vt = linear_algebra.svd(K)
    regular = s > s[0] * RANK.at(K.dtype)
    inverse = jnp.where(regular, 1.0 / jnp.where(regular, s, 1.0), 0.0)
    return (Vt.T * inverse) @ U.T, jnp.where(regular, 0.0, Vt.T), jnp.where(regular, 0.0, U)


def by_reflections(K: Float[Array, "m m"]) -> Spaces:
    bases, pivots = jax.vmap(_triangularised)(jnp.stack([K, K.T]))
    rank = jnp.sum(pivots[0] > pivots[0, 0] * RANK.at(K.dtype))
    Z, N = jnp.where(jnp.arange(K.shape[0]) < rank, 0.0, bases)
    return linear_algebra.inverse(K + Z @ N.T) - N @ Z.T, N, Z


def _triangularised(A: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """(Q, sizes of the pivots) of A Pi = Q R: the first columns of Q span the range of A."""
    m = A.shape[0]
    rows = jnp.arange(m)

    def body(k, carry):
        both, done, pivots = carry
        left = jnp.where(rows[:, None] >= k, both[:, :m], 0.0)
        chosen = jnp.argmax(jnp.where(done, -1.0, jnp.sum(left * left, 0)))
        column = jnp.where(rows >= k, both[:, chosen], 0.0)
        size = jnp.sqrt(jnp.sum(column * column))
        head = column[k]
        normal = jnp.where(rows == k, head + jnp.where(head < 0, -size, size), column)
        square = 2.0 * size * (size + jnp.abs(head))  # of the normal
        weight = jnp.where(square > 0, 2.0 / jnp.where(square > 0, square, 1.0), 0.0)
        both = both - normal[:, None] * (weight * jnp.sum(normal[:, None] * both, 0))
        return both, done.at[chosen].set(True), pivots.at[k].set(size)

    start = jnp.concatenate([A, jnp.eye(m, dtype=A.dtype)], 1), jnp.zeros(m, bool), jnp.zeros(m, A.dtype)
    both, _, pivots = jax.lax.fori_loop(0, m, body, start)
    return both[:, m:].T, pivots
