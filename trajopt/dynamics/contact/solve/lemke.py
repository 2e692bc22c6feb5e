r"""The boxed contact problem as a linear complementarity problem, solved by Lemke's method (Lemke 1965; Cottle, Pang and
Stone 1992, algorithm 4.4.5 and section 4.9 on lexicographic pivoting).

With every friction row split into its two directions, lambda = lambda+ - lambda-, and a multiplier gamma of its bound (Stewart
and Trinkle 1996, here one multiplier for each tangent), x = (lambda_u, lambda+, lambda-, gamma), u the unilateral rows:

    0 <= lambda_u  _|_  nu_u                                >= 0
    0 <= lambda+   _|_  nu_r + gamma                        >= 0
    0 <= lambda-   _|_  -nu_r + gamma                       >= 0          w = M x + q
    0 <= gamma     _|_  bound + C lambda_u - lambda+ - lambda-  >= 0

bound + C lambda_u is mu lambda_n for a tangent and the constant bound for dry joint friction. x^T M x = lambda^T G lambda +
mu lambda_n gamma, so that M is copositive and, G being positive definite, Lemke's method ends at a solution for any mu.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.contact.ncp import NCP
from trajopt.dynamics.contact.solve.null_spaces import RANK
from trajopt.dynamics.precision import Threshold

TIE = Threshold(1e-12, 1e-6)  # ratios, of numbers of the order of one, that are closer than this are equal but for rounding
UNREACHED = 1e6  # of an impulse, in units in which those that stop the fastest row alone are one


def lemke(ncp: NCP, eps: float | Float[Array, ""], max_pivots: int) -> tuple[Float[Array, " m"], Int[Array, ""]]:
    """(lambda, pivots) of the problem with G + eps I and box friction; where the method fails, where it stopped."""
    dtype = ncp.G.dtype
    unilateral, friction, contact = _rows(ncp)
    # In units in which the diagonal of G and the largest velocity are one.
    unit = jnp.sqrt(ncp.rho)
    G = unit[:, None] * (ncp.G + eps * jnp.eye(unit.shape[0], dtype=dtype)) * unit
    g = unit * ncp.g
    size = jnp.max(jnp.abs(g))
    size = jnp.where(size > 0, size, 1.0)
    g = g / size
    M, q, cover = _problem(ncp, G, g, size, unit, unilateral, friction, contact)
    x, pivots = solve_lcp(M, q, cover, max_pivots)
    nu, nr = len(unilateral), len(friction)
    lam = jnp.zeros_like(g).at[unilateral].set(x[:nu]).at[friction].set(x[nu : nu + nr] - x[nu + nr : nu + 2 * nr])
    return lam * unit * size, pivots


def _rows(ncp: NCP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unilateral rows, friction rows, and for each tangent among these the position of its normal in the former."""
    nc, nl, m = ncp.nc, ncp.nl, ncp.G.shape[0]
    normals = np.arange(2, 3 * nc, 3)
    tangents = np.setdiff1d(np.arange(3 * nc), normals)
    unilateral = np.concatenate([normals, np.arange(3 * nc, 3 * nc + nl)])
    return unilateral, np.concatenate([tangents, np.arange(3 * nc + nl, m)]), np.repeat(np.arange(nc), 2)


def _problem(ncp: NCP, G, g, size, unit, unilateral, friction, contact):
    """(M, q, covering vector); a row that does not exist, or cannot carry friction, has w = 1 and never moves."""
    nt = len(contact)
    slope = ncp.mu[contact] * unit[unilateral[contact]] / unit[friction[:nt]]
    # An equality constraint has no bound: one that no impulse reaches, and that leaves the digits of the others alone.
    bound = jnp.minimum(ncp.bound / (unit[friction[nt:]] * size), UNREACHED)
    bound = jnp.concatenate([jnp.zeros(nt, G.dtype), bound])
    rough = jnp.concatenate([ncp.exists[contact] & (ncp.mu[contact] > 0), ncp.bound > 0])
    weight = 1.0 / jnp.maximum(jnp.concatenate([slope, bound[nt:]]), 1.0)  # of a multiplier and its row
    coupling = jnp.zeros((len(friction), len(unilateral)), G.dtype).at[np.arange(nt), contact].set(slope)
    uu, ur = G[unilateral[:, None], unilateral], G[unilateral[:, None], friction]
    rr, pull = G[friction[:, None], friction], jnp.diag(weight)
    M = jnp.block(
        [
            [uu, ur, -ur, jnp.zeros_like(ur)],
            [ur.T, rr, -rr, pull],
            [-ur.T, -rr, rr, pull],
            [weight[:, None] * coupling, -pull, -pull, jnp.zeros_like(rr)],
        ]
    )
    q = jnp.concatenate([g[unilateral], g[friction], -g[friction], weight * bound])
    alive = jnp.concatenate([ncp.exists, rough, rough, rough])
    M = jnp.where(alive[:, None] & alive, M, 0.0)
    return M, jnp.where(alive, q, 1.0), alive.astype(G.dtype)


def solve_lcp(
    M: Float[Array, "n n"], q: Float[Array, " n"], cover: Float[Array, " n"], max_pivots: int
) -> tuple[Float[Array, " n"], Int[Array, ""]]:
    """x >= 0 with w = M x + q >= 0 and x^T w = 0, by Lemke's method with the covering vector `cover`: (x, pivots).

    Rows with a cover of zero need q >= 0. Ties are broken lexicographically, so that no basis comes twice.
    """
    n, dtype = q.shape[0], q.dtype
    tie = TIE.at(dtype)
    last = 2 * n  # the column of the artificial variable z0; then that of q

    def chosen(T, column, tied):
        """The row of `tied` that is lexicographically smallest in T / column."""

        def body(carry):
            tied, j = carry
            value = jnp.where(tied, T[:, j] / jnp.where(tied, column, 1.0), jnp.inf)
            return tied & (value <= jnp.min(value) + tie), j + 1

        proceed = lambda carry: (jnp.sum(carry[0]) > 1) & (carry[1] < n)  # noqa: E731
        return jnp.argmax(jax.lax.while_loop(proceed, body, (tied, jnp.zeros((), jnp.int32)))[0])

    def pivot(T, basis, row, entering):
        pivoted = T[row] / T[row, entering]
        column = T[:, entering].at[row].set(0.0)
        T = (T - column[:, None] * pivoted).at[row].set(pivoted)
        # The entering column is a unit vector, and feasibility is kept, exactly.
        T = T.at[:, entering].set(0.0).at[row, entering].set(1.0)
        T = T.at[:, -1].set(jnp.maximum(T[:, -1], 0.0))
        return T, basis[row], basis.at[row].set(entering)

    T = jnp.concatenate([jnp.eye(n, dtype=dtype), -M, -cover[:, None], q[:, None]], 1)
    basis = jnp.arange(n, dtype=jnp.int32)
    most = jnp.where(cover > 0, q / jnp.where(cover > 0, cover, 1.0), jnp.inf)
    lowest = jnp.min(most)
    first = chosen(T, cover, (most <= lowest + tie) & (cover > 0))
    started = pivot(T, basis, first, jnp.asarray(last, jnp.int32))
    needed = lowest < 0
    T, leaving, basis = jax.tree.map(lambda a, b: jnp.where(needed, a, b), started, (T, basis[0], basis))

    def body(carry):
        T, leaving, basis, k, _ = carry
        entering = jnp.where(leaving < n, leaving + n, leaving - n)
        column = T[:, entering]
        blocks = column > RANK.at(dtype) * jnp.max(jnp.abs(column))
        ratio = jnp.where(blocks, T[:, -1] / jnp.where(blocks, column, 1.0), jnp.inf)
        least = jnp.min(ratio)
        tied = blocks & (ratio <= least + tie * (1.0 + least))
        artificial = tied & (basis == last)
        row = jnp.where(jnp.any(artificial), jnp.argmax(artificial), chosen(T, column, tied))
        ray = ~jnp.any(blocks)
        moved = pivot(T, basis, row, entering)
        T, leaving, basis = jax.tree.map(lambda a, b: jnp.where(ray, b, a), moved, (T, leaving, basis))
        return T, leaving, basis, k + 1, ~ray & (leaving != last)

    carry = (T, leaving, basis, needed.astype(jnp.int32), needed)
    T, _, basis, pivots, _ = jax.lax.while_loop(lambda c: c[4] & (c[3] < max_pivots), body, carry)
    x = jnp.zeros(2 * n + 1, dtype).at[basis].set(T[:, -1])
    return x[n:last], pivots
