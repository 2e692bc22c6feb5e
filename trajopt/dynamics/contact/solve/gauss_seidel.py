r"""Gauss-Seidel sweeps on the contact problem, differentiable through the sweeps (Smoothed, Algs. 1 and 2).

    p_j <- prox(p_j - r_j (sum_{k /= j} G_jk s_k p_k + G_jj p_j + g_j))      contact after contact, with the newest p
    P = s p                                                                 after the last sweep

with factors s, 1 for hard contact. Joint limits and dry joint friction are rows of the same sweeps, with s = 1.

r-factors: "row-sum", the inverse of the largest row sum of |G_jj|, at which no contact by itself overshoots, whatever the
masses; "determinant", the source's r_j = 1 / (1 + sum_k |det G_jk|) (eq. 13), which depends on the units of mass: sweeps become
slow for light bodies and may grow where one direction of a contact is much easier to move than the others.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.ncp import NCP, project
from trajopt.dynamics.rigid_body.spatial import cross


def gauss_seidel(
    ncp: NCP, scale: Float[Array, " nc"], sweeps: int, r_factor: str = "row-sum", start: Float[Array, " m"] | None = None
) -> Float[Array, " m"]:
    """The impulses P after `sweeps` sweeps; scale: the factors s of the contacts; start: p before them, by default what stops
    each row by itself, -G_jj^-1 g_j, in the cone or not (eq. 11)."""
    nc, m, G = ncp.nc, ncp.G.shape[0], ncp.G
    if m == 0:
        return jnp.zeros(0, G.dtype)
    own = _own_blocks(G, nc)
    everywhere = jnp.concatenate([jnp.repeat(scale, 3), jnp.ones(m - 3 * nc, G.dtype)])
    r = _r_factors(G, own, nc, r_factor)

    def contact(c, p):
        at = 3 * c
        impulse = jax.lax.dynamic_slice(p, (at,), (3,))
        others = jax.lax.dynamic_slice(G, (at, 0), (3, m)) @ (everywhere * p) - scale[c] * (own[c] @ impulse)
        velocity = others + own[c] @ impulse + jax.lax.dynamic_slice(ncp.g, (at,), (3,))
        return _placed(ncp, p, impulse - r[c] * velocity, at)

    def scalar(k, p):
        i = 3 * nc + k
        return _placed(ncp, p, (p[i] - r[nc + k] * (G[i] @ (everywhere * p) + ncp.g[i]))[None], i)

    def sweep(p, _):
        p = jax.lax.fori_loop(0, nc, contact, p) if nc else p
        return (jax.lax.fori_loop(0, m - 3 * nc, scalar, p) if m > 3 * nc else p), None

    # Without the barrier XLA 0.10 for CPU, fusing the start with a projection, loses the LAPACK calls of the program.
    start = jax.lax.optimization_barrier(_start(ncp, own) if start is None else start)
    return everywhere * jax.lax.scan(sweep, start, None, length=sweeps)[0]


def _placed(ncp: NCP, p, rows, at):
    """p with the rows from `at` on replaced by the projection of `rows`; only the rows of one contact, or one, are given."""
    changed = project(ncp, jax.lax.dynamic_update_slice(p, rows, (at,)))
    return jax.lax.dynamic_update_slice(p, jax.lax.dynamic_slice(changed, (at,), rows.shape), (at,))


def _own_blocks(G, nc: int) -> Float[Array, "nc 3 3"]:
    blocks = G[: 3 * nc, : 3 * nc].reshape(nc, 3, nc, 3)
    return jnp.moveaxis(jnp.diagonal(blocks, axis1=0, axis2=2), -1, 0)


def _start(ncp: NCP, own) -> Float[Array, " m"]:
    """-G_jj^-1 g_j; zero along directions in which a contact cannot move."""
    nc = ncp.nc
    cones = -_solve_blocks(own, ncp.g[: 3 * nc].reshape(nc, 3))
    diagonal = jnp.diagonal(ncp.G)[3 * nc :]
    return jnp.concatenate([cones.reshape(3 * nc), -ncp.g[3 * nc :] * _inverse(diagonal, 0.0)])


def _inverse(x, smallest):
    """1 / x, 0 where x is not above `smallest`."""
    regular = x > smallest
    return jnp.where(regular, 1.0 / jnp.where(regular, x, 1.0), 0.0)


def _solve_blocks(B: Float[Array, "nc 3 3"], g: Float[Array, "nc 3"]) -> Float[Array, "nc 3"]:
    """B^-1 g by B = L D L^T, for positive semidefinite blocks; vanishing pivots, to which g has nothing to say, are left out."""
    none = (1e-12 if B.dtype == jnp.float64 else 1e-5) * jnp.trace(B, axis1=1, axis2=2)
    d0 = B[:, 0, 0]
    i0 = _inverse(d0, none)
    l10, l20 = B[:, 1, 0] * i0, B[:, 2, 0] * i0
    d1 = B[:, 1, 1] - l10 * l10 * d0
    i1 = _inverse(d1, none)
    l21 = (B[:, 2, 1] - l20 * l10 * d0) * i1
    i2 = _inverse(B[:, 2, 2] - l20 * l20 * d0 - l21 * l21 * d1, none)
    y1 = g[:, 1] - l10 * g[:, 0]
    x2 = (g[:, 2] - l20 * g[:, 0] - l21 * y1) * i2
    x1 = y1 * i1 - l21 * x2
    return jnp.stack([g[:, 0] * i0 - l10 * x1 - l20 * x2, x1, x2], 1)


def _r_factors(G, own, nc: int, r_factor: str) -> Float[Array, " k"]:
    """One for each contact, then one for each scalar row."""
    diagonal = jnp.diagonal(G)[3 * nc :]
    if r_factor == "determinant":
        blocks = jnp.swapaxes(G[: 3 * nc, : 3 * nc].reshape(nc, 3, nc, 3), 1, 2)
        determinants = jnp.sum(blocks[..., 0, :] * cross(blocks[..., 1, :], blocks[..., 2, :]), -1)
        determinants = jnp.sum(jnp.abs(determinants), 1)
        return 1.0 / (1.0 + jnp.concatenate([determinants, jnp.abs(diagonal)]))
    return _inverse(jnp.concatenate([jnp.max(jnp.sum(jnp.abs(own), 2), 1, initial=0.0), diagonal]), 0.0)
