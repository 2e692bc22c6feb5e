"""The compiled contact solve on plain arrays, without a model: the last stage of the JAX implementation on CPUs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trajopt import native

STATUSES = ("solved", "stalled", "infeasible", "non_finite")  # ContactStatus of contact_solve.h


def solve_contacts(
    G: Float[Array, "B m m"],
    g: Float[Array, "B m"],
    mu: Float[Array, "B nc"],
    exists: Bool[Array, "B ncl"],
    bound: Float[Array, "B nf"],
    init: Float[Array, "B m"],
    *,
    tol: float = 1e-10,
    max_iterations: int = 50,
) -> tuple[Float[Array, "B m"], Float[Array, "B m"], Int[Array, "B k"], Float[Array, " B"], Int[Array, "B 6"]]:
    """Solutions of B problems nu = G lambda + g under the law of docs/contact-semantics.md in float64, one after the other,
    inside a function that is compiled for a CPU.

    Rows: three for each contact (tangent 1, tangent 2, normal), limits, dry friction. mu: per contact. exists: contacts and
    limits that are part of the problem. bound: largest impulse of dry friction, N s; infinity makes the row bilateral. init:
    starts, which have no influence on which solution is returned.

    Returned are impulse, N s, and velocity, m/s; mode: 0 separating, 1 sticking, 2 sliding of contacts, 1 where a limit or a dry
    row is held; residual (relative, docs/contact-semantics.md); and six numbers: iterations, the last stage that ran
    (`trajopt.dynamics.Stage`), a position in `STATUSES`, degenerate and selected as in `NCPSolution`, the rows that exist.
    """
    shape, (count, m) = jax.ShapeDtypeStruct, g.shape
    out = (
        shape((count, m), jnp.float64),
        shape((count, m), jnp.float64),
        shape((count, exists.shape[1] + bound.shape[1]), jnp.int32),
        shape((count,), jnp.float64),
        shape((count, 6), jnp.int32),
    )
    impulse, velocity, mode, residual, counts = native.call(
        "solve_contacts", out, G, g, mu, exists, bound, init, tolerance=float(tol), max_iterations=int(max_iterations)
    )
    return impulse, velocity, mode, residual, counts
