r"""Alternating direction method of multipliers for the contact problem (Simple, section III-A; Acary and Brogliato).

Splits 1/2 z^T G z + z^T (g + s) over z in the product of cones, half lines and intervals. The De Saxce shift
s = mu |nu_t| on the normal rows, which turns the associated cone problem into the Coulomb one, is updated in every
iteration, nu_t being read off the multiplier, -(nu + s) at the solution: that of G z + g diverges where the penalty is small
beside G. Linear convergence: used to bring a stalled Newton iteration near the solution, and as a solver in its own
right. The rows are scaled by one factor per contact, which leaves the cones unchanged; one symmetric
eigendecomposition makes every change of the penalty parameter free.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, safe_norm, split
from trajopt.dynamics.contact.solve.rounds import Missed, in_rounds


def _scaling(ncp: NCP):
    """sqrt of one effective mass per contact (per row for scalar rows)."""
    cone, limit, dry = split(ncp, ncp.rho)
    mean = jnp.repeat(cone.shape[1] / jnp.sum(1.0 / cone, 1), 3, total_repeat_length=3 * ncp.nc)
    return jnp.sqrt(jnp.concatenate([mean, limit, dry]))


def _project_cones(ncp: NCP, y, bound):
    """Euclidean projection onto the admissible impulses (cone, half line, interval)."""
    nc = ncp.nc
    cone, limit, dry = split(ncp, y)
    mu, normal, length = ncp.mu, cone[:, 2], safe_norm(cone[:, :2])
    inside = length <= mu * normal
    polar = mu * length <= -normal
    on_normal = jnp.maximum((normal + mu * length) / (1.0 + mu * mu), 0.0)
    new_normal = jnp.where(inside, normal, jnp.where(polar, 0.0, on_normal))
    moving = length > 0
    scale = jnp.where(moving & ~inside, mu * new_normal / jnp.where(moving, length, 1.0), 1.0)
    out = jnp.concatenate([cone[:, :2] * jnp.where(polar & ~inside, 0.0, scale)[:, None], new_normal[:, None]], 1)
    out = jnp.where(ncp.exists[:nc, None], out, 0.0)
    limit = jnp.where(ncp.exists[nc:], jnp.maximum(limit, 0.0), 0.0)
    return jnp.concatenate([out.reshape(3 * nc), limit, jnp.clip(dry, -bound, bound)])


def admm(
    ncp: NCP,
    init: Float[Array, " m"],
    eps: float | Float[Array, ""],
    tol: float | Float[Array, ""],
    max_iterations: int,
    missed: Missed | None = None,
):
    """(lambda, iterations) of the problem with G + eps I; tol bounds the primal and dual residuals (relative).

    Where `missed` is true of the impulse after `max_iterations`, the method goes on, see `in_rounds`.
    """
    dtype = ncp.G.dtype
    nc = ncp.nc
    scale = _scaling(ncp)
    G = scale[:, None] * (ncp.G + eps * jnp.eye(ncp.G.shape[0], dtype=dtype)) * scale
    g = scale * ncp.g
    bound = ncp.bound / scale[scale.shape[0] - ncp.bound.shape[0] :]
    eigenvalues, Q = linear_algebra.eigh(G)
    eigenvalues = jnp.maximum(eigenvalues, 0.0)
    size = jnp.linalg.norm(g)

    def shift(w):
        tangent = safe_norm(w[: 3 * nc].reshape(nc, 3)[:, :2])
        zero = jnp.zeros_like(tangent)
        return jnp.concatenate(
            [jnp.stack([zero, zero, ncp.mu * tangent], -1).reshape(3 * nc), jnp.zeros_like(g[3 * nc :])]
        )

    def body(carry):
        x, z, w, penalty, k, _ = carry
        right = penalty * z - w - g - shift(w)
        x = Q @ ((Q.T @ right) / (eigenvalues + penalty))
        relaxed = 1.6 * x + (1.0 - 1.6) * z
        z_new = _project_cones(ncp, relaxed + w / penalty, bound)
        w = w + penalty * (relaxed - z_new)
        primal = jnp.linalg.norm(x - z_new)
        dual = penalty * jnp.linalg.norm(z_new - z)
        balance = (k % 10) == 9
        penalty = jnp.where(balance & (primal > 10.0 * dual), penalty * 5.0, penalty)
        penalty = jnp.where(balance & (dual > 10.0 * primal), penalty / 5.0, penalty)
        violation = jnp.maximum(
            primal / (jnp.linalg.norm(x) + 1e-3 * size + jnp.finfo(dtype).tiny), dual / (size + jnp.finfo(dtype).tiny)
        )
        return x, z_new, w, penalty, k + 1, violation

    z0 = _project_cones(ncp, init / scale, bound)
    start = (
        z0,
        z0,
        jnp.zeros_like(z0),
        jnp.full((), 0.1, dtype),
        jnp.zeros((), jnp.int32),
        jnp.full((), jnp.inf, dtype),
    )
    unmet = None if missed is None else lambda c: missed(scale * c[1])
    _, z, _, _, k, _ = in_rounds(lambda c: c[5] > tol, body, start, lambda c: c[4], max_iterations, unmet)
    return scale * z, k
