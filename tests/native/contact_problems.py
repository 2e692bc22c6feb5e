"""Batches of contact problems on plain arrays, solved by the compiled core."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.native import contacts
from trajopt.native.contacts import STATUSES

__all__ = ["STATUSES", "ContactSolutions", "solve_contacts"]


class ContactSolutions(NamedTuple):
    """What `trajopt.native.contacts.solve_contacts` returns, by name; fallbacks: the last stage that ran."""

    impulse: jax.Array
    velocity: jax.Array
    mode: jax.Array
    residual: jax.Array
    iterations: jax.Array
    fallbacks: jax.Array
    status: jax.Array
    degenerate: jax.Array
    selected: jax.Array
    rows: jax.Array


def solve_contacts(G, g, mu, exists=None, bound=None, init=None, *, tol=1e-10, max_iterations=50) -> ContactSolutions:
    """exists: default all; bound: default no rows of dry friction; init: default zero."""
    count, m = np.shape(g)
    bound = np.zeros((count, 0)) if bound is None else bound
    exists = np.ones((count, m - 2 * np.shape(mu)[1] - np.shape(bound)[1]), bool) if exists is None else exists
    init = np.zeros((count, m)) if init is None else init
    G, g, mu, bound, init = (jnp.asarray(a, jnp.float64) for a in (G, g, mu, bound, init))
    *found, counts = _compiled(tol, max_iterations)(G, g, mu, jnp.asarray(exists, bool), bound, init)
    iterations, fallbacks, status, degenerate, selected, rows = counts.T
    return ContactSolutions(*found, iterations, fallbacks, status, degenerate != 0, selected != 0, rows)


@functools.cache
def _compiled(tol: float, max_iterations: int):
    return jax.jit(functools.partial(contacts.solve_contacts, tol=tol, max_iterations=max_iterations))
