r"""Projected Gauss-Seidel for the contact problem (Smoothed, appendix A.1; Jourdan, Alart and Jean 1998).

Contact after contact, lambda_c <- proj(lambda_c - r_c nu_c) with the newest impulses of the others and r_c the inverse of the
largest row sum of the contact's own block of G, then the scalar rows likewise. Linear convergence, but hard to upset: the
fallback for stacks on which Newton stalls, and a solver in its own right.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.ncp import NCP
from trajopt.dynamics.contact.solve.rounds import Missed, in_rounds


def pgs(
    ncp: NCP,
    init: Float[Array, " m"],
    eps: float | Float[Array, ""],
    tol: float | Float[Array, ""],
    max_sweeps: int,
    missed: Missed | None = None,
):
    """(lambda, sweeps) of the problem with G + eps I; stops when a sweep changes no row by more than the velocity tol.

    Where `missed` is true of the impulse after `max_sweeps`, the method goes on, see `in_rounds`.
    """
    dtype = ncp.G.dtype
    nc, m = ncp.nc, ncp.G.shape[0]
    scalars = m - 3 * nc
    G = ncp.G + eps * jnp.eye(m, dtype=dtype)
    tiny = jnp.finfo(dtype).tiny
    own = G[: 3 * nc, : 3 * nc].reshape(nc, 3, nc, 3)
    blocks = jnp.moveaxis(jnp.diagonal(own, axis1=0, axis2=2), -1, 0)
    r_cone = 1.0 / jnp.maximum(jnp.max(jnp.sum(jnp.abs(blocks), 2), 1, initial=0.0), tiny)
    r_scalar = 1.0 / jnp.maximum(jnp.diagonal(G)[3 * nc :], tiny)
    # Scalar rows are clipped: limits to [0, inf), rows that do not exist to 0, dry friction to its bound.
    unbounded = jnp.where(ncp.exists[nc:], jnp.inf, 0.0).astype(dtype)
    low = jnp.concatenate([jnp.zeros_like(unbounded), -ncp.bound])
    high = jnp.concatenate([unbounded, ncp.bound])

    def contact(c, lam):
        nu = jax.lax.dynamic_slice(G, (3 * c, 0), (3, m)) @ lam + jax.lax.dynamic_slice(ncp.g, (3 * c,), (3,))
        y = jax.lax.dynamic_slice(lam, (3 * c,), (3,)) - r_cone[c] * nu
        normal = jnp.where(ncp.exists[c], jnp.maximum(y[2], 0.0), 0.0)
        radius = ncp.mu[c] * normal
        length = jnp.sqrt(y[0] * y[0] + y[1] * y[1])
        shrink = jnp.where(length <= radius, 1.0, radius / jnp.where(length > 0, length, 1.0))
        new = jnp.stack([y[0] * shrink, y[1] * shrink, normal])
        return jax.lax.dynamic_update_slice(lam, new, (3 * c,))

    def scalar(k, lam):
        i = 3 * nc + k
        new = jnp.clip(lam[i] - r_scalar[k] * (G[i] @ lam + ncp.g[i]), low[k], high[k])
        return lam.at[i].set(new)

    def body(carry):
        lam, k, _ = carry
        new = jax.lax.fori_loop(0, nc, contact, lam) if nc else lam
        new = jax.lax.fori_loop(0, scalars, scalar, new) if scalars else new
        return new, k + 1, jnp.max(jnp.abs((new - lam) / ncp.rho), initial=jnp.zeros((), dtype))

    start = (init, jnp.zeros((), jnp.int32), jnp.full((), jnp.inf, dtype))
    unmet = None if missed is None else lambda c: missed(c[0])
    lam, k, _ = in_rounds(lambda c: c[2] > tol, body, start, lambda c: c[1], max_sweeps, unmet)
    return lam, k
