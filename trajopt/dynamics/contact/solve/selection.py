r"""Which solution, when the contact problem has many (DESIGN of the law: docs/contact-semantics.md, section Selection).

Redundant contacts leave the impulse undetermined, and with sliding friction the velocity too. Within the modes that the
regularised problem identified, the step returns the impulse of smallest norm,

    minimise 1/2 |lambda|^2   subject to   F(lambda) = 0  in these modes,

(Nimble, App. B, extended to the cone). With K = dF/dlambda, N a basis of its null space, its conditions are

    F(lambda) = 0,    N^T lambda = 0.

For held contacts K is the Delassus matrix up to scaling and iterative refinement from the regularised solution already
ends there. With sliding redundant contacts the directions of sliding make F curved and `smallest_norm` iterates
least-norm Newton corrections.

Derivative. With y = K^{+T} lambda, d(N^T lambda) = N^T dlambda - N^T dK^T y, since K N = 0 gives dN = -K^+ dK N. With any
particular solution dlambda_p of K dlambda_p = -dF, dlambda = dlambda_p + N c and h = N^T K^T y (N, y frozen),

    (I - h_lambda N) c = h_lambda dlambda_p + dh - N^T dlambda_p.

K = I - P + P rho G depends on the inputs through nu, mu and the bounds in P, and through G: the latter contributes
N^T dG w with w = rho P^T y, which the caller supplies, since G = J M^-1 J^T gives it without dG:

    N^T dG w = N^T dJ z + Z^T dJ^T w - Z^T dM z,      z = M^-1 J^T w,  Z = M^-1 J^T N.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, Modes, apply_blocks, mode_map, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.precision import Threshold

ITERATIONS = 50  # of least-norm corrections; the loop ends earlier once a correction is at rounding
RANK = Threshold(1e-10, 1e-5)  # singular values of K below this share of the largest are zero but for rounding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NullSpace:
    """N (m, m): basis of the null space of K in its non-zero columns; y and w (m,) of the module docstring; inverse (m, m) of
    I - h_lambda N."""

    N: Float[Array, "m m"]
    y: Float[Array, " m"]
    w: Float[Array, " m"]
    inverse: Float[Array, "m m"]


def empty_null_space(m: int, dtype: DTypeLike) -> NullSpace:
    """The null space of a regular K."""
    return NullSpace(jnp.zeros((m, m), dtype), jnp.zeros(m, dtype), jnp.zeros(m, dtype), jnp.eye(m, dtype=dtype))


def _null_space(K):
    """Singular value decomposition of K split by rank: (pseudo-inverse, basis of the null space with zero columns elsewhere)."""
    U, s, Vt = linear_algebra.svd(K)
    tolerance = s[0] * RANK.at(K.dtype)
    regular = s > tolerance
    inverse = jnp.where(regular, 1.0 / jnp.where(regular, s, 1.0), 0.0)
    return (Vt.T * inverse) @ U.T, jnp.where(regular, 0.0, Vt.T)


def smallest_norm(ncp: NCP, lam: Float[Array, " m"], modes: Modes):
    """Impulse of smallest norm in `modes`, from a solution `lam` near it; iterates until the correction is at rounding."""
    eps = jnp.finfo(lam.dtype).eps

    def body(carry):
        x, _, previous, k = carry
        nu = ncp.G @ x + ncp.g
        K = newton_matrix(ncp, projection_jacobian(ncp, x, nu, modes), ncp.G)
        inverse, N = _null_space(K)
        candidate = x - inverse @ mode_map(ncp, x, modes)
        candidate = candidate - N @ (N.T @ candidate)
        return candidate, previous, jnp.linalg.norm(candidate - x), k + 1

    def proceed(carry):
        x, before, change, k = carry
        return (k < ITERATIONS) & (change > 4 * eps * jnp.linalg.norm(x)) & ((k < 4) | (change < 0.9 * before))

    infinity = jnp.full((), jnp.inf, lam.dtype)
    return jax.lax.while_loop(proceed, body, (lam, infinity, infinity, jnp.zeros((), jnp.int32)))[0]


def null_space(ncp: NCP, lam: Float[Array, " m"], modes: Modes) -> NullSpace:
    """What the derivative of the selection needs at the solution `lam`; nothing in it is differentiated further."""
    nu = ncp.G @ lam + ncp.g
    P = projection_jacobian(ncp, lam, nu, modes)
    inverse, N = _null_space(newton_matrix(ncp, P, ncp.G))
    y = inverse.T @ lam
    blocks, diagonal = P
    w = ncp.rho * apply_blocks((jnp.swapaxes(blocks, 1, 2), diagonal), y)
    partial = NullSpace(N, y, w, inverse)
    along = jax.vmap(lambda x: _slope_in_impulse(ncp, partial, lam, modes, x), in_axes=1, out_axes=1)
    system = jnp.eye(lam.shape[0], dtype=lam.dtype) - along(N)
    return NullSpace(N, y, w, linear_algebra.inverse(system))


def _h(ncp: NCP, space: NullSpace, x, shift, mu, bound, modes: Modes):
    """h = N^T K^T y at the impulse x, with nu shifted by `shift`."""
    problem = dataclasses.replace(ncp, g=ncp.g + shift, mu=mu, bound=bound)
    _, pullback = jax.vjp(lambda z: mode_map(problem, z, modes), x)
    return space.N.T @ pullback(space.y)[0]


def _slope_in_impulse(ncp: NCP, space: NullSpace, lam, modes: Modes, direction):
    zero = jnp.zeros_like(lam)
    return jax.jvp(lambda x: _h(ncp, space, x, zero, ncp.mu, ncp.bound, modes), (lam,), (direction,))[1]


def null_space_tangent(
    ncp: NCP,
    space: NullSpace,
    lam: Float[Array, " m"],
    modes: Modes,
    free: Float[Array, " m"],
    dmu: Float[Array, " nc"],
    dbound: Float[Array, " nf"],
    through_G: Float[Array, " m"],
    dlam: Float[Array, " m"],
):
    """Component N c of the derivative of the selected impulse (see the module docstring); linear in its last five arguments.

    free (m,): tangent of nu at fixed impulse; dmu (nc,), dbound (nf,): of the coefficients and friction bounds; through_G
    (m,): N^T dG w; dlam (m,): a particular solution of the linearised law.
    """

    def inputs(x, shift, mu, bound):
        return _h(ncp, space, x, shift, mu, bound, modes)

    point = (lam, jnp.zeros_like(lam), ncp.mu, ncp.bound)
    _, dh = jax.jvp(inputs, point, (dlam, free, dmu, dbound))
    return space.N @ (space.inverse @ (dh + through_G - space.N.T @ dlam))
