r"""Which solution, when the contact problem has many (DESIGN of the law: docs/contact-semantics.md, section Selection).

Redundant contacts leave the impulse undetermined, and with sliding friction the velocity too. Within the modes that the
regularised problem identified, the step returns the impulse of smallest norm,

    minimise 1/2 |lambda|^2   subject to   F(lambda) = 0  in these modes,

(Nimble, App. B, extended to the cone), and where that one breaks the law the limit of the regularised problem's solution. With
K = dF/dlambda = I - P + P rho G, a basis N of its null space and a basis Z of that of K^T, both are given by F = 0 and k
conditions c(lambda) = 0, as many as K lacks in rank:

    shortest:   c = N^T lambda
    limit:      c = Z^T P rho lambda,   since 0 = Z^T F_eps = Z^T (F + eps P rho lambda) + O(eps^2)

A contact that sticks in the solution and slides slowly in the regularised problem keeps its impulse on the cone in the
limit: it slides, at no speed, in the modes in which K, N and Z of the limit are formed (`solve.NCPSolution.slow`).

For held contacts K is the Delassus matrix up to scaling and iterative refinement from the regularised solution already
ends there. With sliding redundant contacts the directions of sliding make F curved: `smallest_norm` iterates least-norm Newton
corrections, `limit` Newton's steps on both equations.

Derivative. N and Z turn with K: dN = -K^+ dK N, dZ^T = -Z^T dK K^+. With y = K^{+T} lambda and r = K^+ P rho lambda, all of
N, Z, y, r frozen at the solution, dc is the change of

    shortest:   h = N^T lambda - N^T K^T y
    limit:      h = Z^T (P rho lambda - K r)

where K = I - P (I - rho G). With dP, the change of P with lambda, nu and mu (`ncp.projection_turning`),

    shortest:   dh = N^T (dlambda + (I - G rho) dP^T y)
    limit:      dh = Z^T (P rho dlambda + dP (rho lambda + (I - rho G) r))

so that with any particular solution dlambda_p of K dlambda_p = -dF (where contacts are slow, one of the law in the modes of the
solution, moved onto their cones by K^+), dlambda = dlambda_p + N x where

    h_lambda N x = -h_lambda dlambda_p - dh.

K depends on the inputs through nu and mu in P, and through G, which contributes -A^T dG w to dh, with
(A, w) = (N, rho P^T y) for the shortest and (rho P^T Z, r) for the limit. The caller supplies A^T dG w, since G = J M^-1 J^T
gives it without dG:

    A^T dG w = A^T dJ z + B^T dJ^T w - B^T dM z,      z = M^-1 J^T w,  B = M^-1 J^T A.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import (
    NCP,
    Modes,
    apply_blocks,
    mode_map,
    newton_matrix,
    project_in_modes,
    projection_jacobian,
    projection_turning,
)
from trajopt.dynamics.contact.solve.null_spaces import null_spaces

ITERATIONS = 50  # of least-norm corrections; the loop ends earlier once a correction is at rounding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NullSpace:
    """N, Z (m, m): bases of the null spaces of K and K^T in their non-zero columns; y, w (m,) and A (m, m) of the module
    docstring; inverse (m, m) of h_lambda N; shortest: which of the two selections; pseudo_inverse (m, m): K^+; slow (nc,): the
    contacts that stick and slide in the modes of K, along their cones."""

    N: Float[Array, "m m"]
    Z: Float[Array, "m m"]
    y: Float[Array, " m"]
    A: Float[Array, "m m"]
    w: Float[Array, " m"]
    inverse: Float[Array, "m m"]
    shortest: Bool[Array, ""]
    pseudo_inverse: Float[Array, "m m"]
    slow: Bool[Array, " nc"]


def empty_null_space(m: int, nc: int, dtype: DTypeLike) -> NullSpace:
    """The null space of a regular K."""
    none, zero = jnp.zeros((m, m), dtype), jnp.zeros(m, dtype)
    return NullSpace(none, none, zero, none, zero, jnp.eye(m, dtype=dtype), jnp.ones((), bool), none, jnp.zeros(nc, bool))


def smallest_norm(ncp: NCP, lam: Float[Array, " m"], modes: Modes):
    """Impulse of smallest norm in `modes`, from a solution `lam` near it; iterates until the correction is at rounding."""

    def improved(x):
        nu = ncp.G @ x + ncp.g
        K = newton_matrix(ncp, projection_jacobian(ncp, x, nu, modes), ncp.G)
        inverse, N, _ = null_spaces(K)
        candidate = x - inverse @ mode_map(ncp, x, modes)
        candidate = candidate - N @ (N.T @ candidate)
        return candidate, jnp.linalg.norm(candidate - x)

    return _iterated(improved, lam)


def limit(ncp: NCP, lam: Float[Array, " m"], modes: Modes):
    """The limit of the regularised problem's solution in `modes`, from a solution `lam` near it; see the module docstring."""

    def improved(x):
        space = _selected_by(ncp, x, modes, jnp.zeros((), bool))
        step = -space.pseudo_inverse @ mode_map(ncp, x, modes)
        missing = space.Z.T @ _pushed(ncp, x, modes) + _slope_in_impulse(ncp, space, x, modes, step)
        step = step - space.N @ (space.inverse @ missing)
        return x + step, jnp.linalg.norm(step)

    return _iterated(improved, lam)


def _iterated(improved, lam):
    """`improved`, from x to (the next x, size of its change), until the change is at rounding or no longer shrinks."""
    eps = jnp.finfo(lam.dtype).eps

    def body(carry):
        x, _, previous, k = carry
        following, change = improved(x)
        return following, previous, change, k + 1

    def proceed(carry):
        x, before, change, k = carry
        return (k < ITERATIONS) & (change > 4 * eps * jnp.linalg.norm(x)) & ((k < 4) | (change < 0.9 * before))

    infinity = jnp.full((), jnp.inf, lam.dtype)
    return jax.lax.while_loop(proceed, body, (lam, infinity, infinity, jnp.zeros((), jnp.int32)))[0]


def null_space(
    ncp: NCP, lam: Float[Array, " m"], modes: Modes, slow: Bool[Array, " nc"], shortest: Bool[Array, ""]
) -> NullSpace:
    """What the derivative of the selection needs at the solution `lam`; nothing in it is differentiated further. modes, in which
    the contacts `slow` slide."""
    return dataclasses.replace(_selected_by(ncp, lam, modes, shortest), slow=slow)


def _pushed(ncp: NCP, lam, modes: Modes):
    """P rho lambda, by which F changes with eps."""
    P = projection_jacobian(ncp, lam, ncp.G @ lam + ncp.g, modes)
    return apply_blocks(P, ncp.rho * lam)


def _selected_by(ncp: NCP, lam, modes: Modes, shortest) -> NullSpace:
    nu = ncp.G @ lam + ncp.g
    P = projection_jacobian(ncp, lam, nu, modes)
    inverse, N, Z = null_spaces(newton_matrix(ncp, P, ncp.G))
    transposed = _transposed(P)
    y, r = inverse.T @ lam, inverse @ apply_blocks(P, ncp.rho * lam)
    beside = jax.vmap(lambda x: ncp.rho * apply_blocks(transposed, x), 1, 1)(Z)
    A, w = jnp.where(shortest, N, beside), jnp.where(shortest, ncp.rho * apply_blocks(transposed, y), r)
    partial = NullSpace(N, Z, y, A, w, inverse, shortest, inverse, jnp.zeros(ncp.nc, bool))
    along = jax.vmap(lambda x: _slope_in_impulse(ncp, partial, lam, modes, x), in_axes=1, out_axes=1)
    system = along(N) + jnp.diag(jnp.where(jnp.any(N != 0, 0), 0.0, 1.0).astype(lam.dtype))
    return dataclasses.replace(partial, inverse=linear_algebra.inverse(system))


def _change(ncp: NCP, space: NullSpace, lam, modes: Modes, dlam, dnu, dmu):
    """dh for a change of the impulse, of nu beside that of the impulse, and of mu; see the module docstring."""
    nu = ncp.G @ lam + ncp.g
    dP = projection_turning(ncp, lam, nu, modes, dlam - ncp.rho * (ncp.G @ dlam + dnu), dmu)
    pulled = apply_blocks(_transposed(dP), space.y)
    shortest = space.N.T @ (dlam + pulled - ncp.G @ (ncp.rho * pulled))
    pushed = apply_blocks(projection_jacobian(ncp, lam, nu, modes), ncp.rho * dlam)
    turned = apply_blocks(dP, ncp.rho * lam + space.w - ncp.rho * (ncp.G @ space.w))
    return jnp.where(space.shortest, shortest, space.Z.T @ (pushed + turned))


def _transposed(P):
    blocks, diagonal = P
    return jnp.swapaxes(blocks, 1, 2), diagonal


def _slope_in_impulse(ncp: NCP, space: NullSpace, lam, modes: Modes, direction):
    return _change(ncp, space, lam, modes, direction, jnp.zeros_like(lam), jnp.zeros_like(ncp.mu))


def null_space_tangent(
    ncp: NCP,
    space: NullSpace,
    lam: Float[Array, " m"],
    modes: Modes,
    free: Float[Array, " m"],
    dmu: Float[Array, " nc"],
    through_G: Float[Array, " m"],
    dlam: Float[Array, " m"],
):
    """What the derivative of the selected impulse has more than dlam, N x (see the module docstring), and what keeps impulses of
    slow contacts on their cones; linear in its last four arguments.

    modes: those of `space`; free (m,): tangent of nu at fixed impulse; dmu (nc,): of the coefficients; through_G (m,): A^T dG w;
    dlam (m,): a particular solution of the linearised law in the modes of the solution.
    """
    onto_cones = -space.pseudo_inverse @ _off_cones(ncp, space, lam, modes, free, dmu, dlam)
    dh = _change(ncp, space, lam, modes, dlam + onto_cones, free, dmu)
    return onto_cones + space.N @ (space.inverse @ (through_G - dh))


def _off_cones(ncp: NCP, space: NullSpace, lam, modes: Modes, free, dmu, dlam):
    """By how much `dlam` misses F = 0, linearised, in the rows of the slow contacts; the other rows are as in the law."""
    y = lam - ncp.rho * (ncp.G @ lam + ncp.g)
    dy = dlam - ncp.rho * (ncp.G @ dlam + free)

    def branch(y, mu):
        return project_in_modes(dataclasses.replace(ncp, mu=mu), y, modes)

    missed = dlam - jax.jvp(branch, (y, ncp.mu), (dy, dmu))[1]
    rows = jnp.concatenate([jnp.repeat(space.slow, 3), jnp.zeros(len(lam) - 3 * ncp.nc, bool)])
    return jnp.where(rows, missed, 0.0)
