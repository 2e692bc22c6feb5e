"""Contacts that friction can jam (docs/contact-semantics.md)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.precision import Threshold

# Eigenvalue of J J^T over its trace from which on it counts as zero.
SINGULAR = Threshold(1e-12, 1e-5)


def jams(J: Float[Array, "m nv"], mu: Float[Array, " nc"]) -> Bool[Array, " nc"]:
    """Whether a force in the friction cone, |d_t| <= mu d_n, moves nothing, J^T d = 0, at each of nc contacts.

    J (3 nc, nv): their rows, tangent 1, tangent 2, normal; mu (nc,). The joints then leave the contact point fewer than three
    directions, and along some direction that leans away from the normal by less than the angle of friction the bodies cannot
    move against each other. Carries no derivative.
    """
    rows = jax.lax.stop_gradient(J).reshape(mu.shape[0], 3, J.shape[1])
    A = jnp.sum(rows[:, :, None, :] * rows[:, None, :, :], -1)
    # Cofactors: the product of the two other eigenvalues along each eigenvector.
    C = jnp.stack([jnp.cross(A[:, 1], A[:, 2]), jnp.cross(A[:, 2], A[:, 0]), jnp.cross(A[:, 0], A[:, 1])], 1)
    trace, pairs, determinant = jnp.trace(A, axis1=1, axis2=2), jnp.trace(C, axis1=1, axis2=2), jnp.sum(A[:, 0] * C[:, 0], 1)
    w, d = _longest(A), _longest(C)
    singular = SINGULAR.at(J.dtype)
    rank_one = jnp.abs(w[:, 2]) <= mu * jnp.hypot(w[:, 0], w[:, 1])  # d is orthogonal to the one direction w that is left
    rank_two = jnp.hypot(d[:, 0], d[:, 1]) <= mu * jnp.abs(d[:, 2])
    singular_pairs = pairs <= singular * trace * trace
    at_most_two = jnp.where(singular_pairs, rank_one, (determinant <= singular * trace * pairs) & rank_two)
    return jnp.where(trace > 0, at_most_two, True)


def _longest(matrix: Float[Array, "nc 3 3"]) -> Float[Array, "nc 3"]:
    """The row with the largest diagonal entry: along the eigenvector of a symmetric matrix of rank one."""
    row = jnp.argmax(jnp.diagonal(matrix, axis1=1, axis2=2), 1)
    return jnp.take_along_axis(matrix, row[:, None, None], 1)[:, 0]
