r"""Semismooth Newton on the natural map, with a regularisation that selects one solution and then vanishes.

Stage 1 solves the problem with G + eps I in place of G (eps relative to the diagonal, `REGULARISATION`). The regularised
problem has one solution where the original one has many, and as eps tends to zero that solution tends to one that does
not depend on where the iteration began; its modes are kept. Stage 2 removes eps: the residual of the *unregularised*
map is driven to rounding by iterative refinement, the factorised matrix of stage 1 serving as preconditioner. Its
corrections lie in the range of G for held contacts, so that no component of the null space enters again.

Globalisation of stage 1: the merit function 1/2 sum F^2 / rho falls in every accepted iteration (Armijo). When no length
achieves the decrease, or two in a row achieve little, the stage ends and the caller goes on from elsewhere. Where a solution of
the problem itself is near, but in other modes, `newton_of_rank` finds it without eps.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, Modes, classify, natural_map, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.solve.null_spaces import null_spaces
from trajopt.dynamics.precision import Threshold

# eps over the smallest scale of a row: the impulses of redundant contacts are told apart by it, those of others moved by
# less than the refinement mends.
REGULARISATION = Threshold(1e-6, 1e-4)
ARMIJO = 1e-4  # share of the predicted decrease of the merit that counts as sufficient (Nocedal and Wright, section 3.1)
STEP_LENGTHS = 12  # 1, 1/2, ... 1/2048; below that the stages restart elsewhere
STAGNATION = 0.8  # share of the merit that an iteration may leave without being called stagnant
STAGNANT_ITERATIONS = 2  # in a row, at which the line search gives up
ROUNDING = 4  # units of rounding of a row of G lambda, which no iteration can remove
POLISHINGS = 4  # full steps on the regularised problem: the second or third ends at rounding
RANK_ITERATIONS = 20  # of Newton's method on the problem itself
REFINEMENTS = 12  # solves with one inverse; each gains the digits that eps costs, six in double precision


def regularisation(ncp: NCP) -> Float[Array, ""]:
    """eps of stage 1, 1/kg: `REGULARISATION` times the smallest scale of a row."""
    dtype = ncp.G.dtype
    return REGULARISATION.at(dtype) / jnp.max(ncp.rho, initial=jnp.finfo(dtype).tiny)


def merit(ncp: NCP, F: Float[Array, "*b m"]) -> Float[Array, "*b"]:
    """1/2 sum F^2 / rho, J: what falls in every accepted iteration."""
    return 0.5 * jnp.sum(F * F / ncp.rho, -1)


def _map(ncp: NCP, lam, eps):
    nu = ncp.G @ lam + eps * lam + ncp.g
    return natural_map(ncp, lam, nu), nu


def newton_regularised(
    ncp: NCP, init: Float[Array, " m"], eps: float | Float[Array, ""], tol: float | Float[Array, ""], max_iterations: int
):
    """Stage 1, the problem with G + eps I from `init`: (lambda, iterations, converged).

    tol: velocity, m/s, to which the rounding of G lambda is added.
    """
    dtype = ncp.G.dtype
    rounding = ROUNDING * jnp.finfo(dtype).eps * jnp.abs(ncp.G)
    Geps = ncp.G + eps * jnp.eye(ncp.G.shape[0], dtype=dtype)

    def solved(lam, nu):
        violation = jnp.max(jnp.abs(natural_map(ncp, lam, nu) / ncp.rho), initial=jnp.zeros((), dtype))
        return violation <= tol + jnp.max(rounding @ jnp.abs(lam), initial=jnp.zeros((), dtype))

    def proceed(carry):
        lam, _, nu, k, stagnant = carry
        return (k < max_iterations) & ~solved(lam, nu) & (stagnant < STAGNANT_ITERATIONS)

    def body(carry):
        lam, F, nu, k, stagnant = carry
        K = newton_matrix(ncp, projection_jacobian(ncp, lam, nu, classify(ncp, lam, nu)), Geps)
        inverse = linear_algebra.inverse(K)
        step = inverse @ F
        step = step + inverse @ (F - K @ step)
        (lam, F, nu), share = _line_search(ncp, Geps, (lam, F, nu), step)
        # Without an accepted length (a share of one) nothing would change any more.
        stagnant = jnp.where(share > STAGNATION, stagnant + 1, 0)
        return lam, F, nu, k + 1, jnp.where(share >= 1.0, STAGNANT_ITERATIONS, stagnant)

    F0, nu0 = _map(ncp, init, eps)
    zero = jnp.zeros((), jnp.int32)
    lam, _, nu, k, _ = jax.lax.while_loop(proceed, body, (init, F0, nu0, zero, zero))
    return lam, k, solved(lam, nu)


def _line_search(ncp: NCP, Geps, point, step):
    """(point after the step, share of the merit that it leaves), a point being (lambda, F, nu).

    The longest length of the ladder with a sufficient decrease; where there is none the point stays, and the share is one.
    """
    lam, F, _ = point
    ladder = jnp.asarray(0.5, lam.dtype) ** jnp.arange(STEP_LENGTHS, dtype=lam.dtype)
    candidates = lam - ladder[:, None] * step
    nus = candidates @ Geps + ncp.g
    Fs = jax.vmap(lambda c, n: natural_map(ncp, c, n))(candidates, nus)
    before, merits = merit(ncp, F), merit(ncp, Fs)
    accepted = merits <= (1.0 - 2.0 * ARMIJO * ladder) * before
    first, stalled = jnp.argmax(accepted), ~jnp.any(accepted)
    moved = tuple(jnp.where(stalled, old, new[first]) for new, old in zip((candidates, Fs, nus), point, strict=True))
    return moved, jnp.where(stalled, 1.0, merits[first] / jnp.where(before > 0, before, 1.0))


def newton_of_rank(ncp: NCP, lam: Float[Array, " m"], tol: float | Float[Array, ""]):
    """Newton on the problem itself from a point near a solution: full steps of least norm where K is singular, as long as the
    merit falls and the violation, a velocity, is above `tol`."""
    none = jnp.zeros((), lam.dtype)

    def proceed(carry):
        _, F, _, k, falls = carry
        return falls & (k < RANK_ITERATIONS) & (jnp.max(jnp.abs(F / ncp.rho), initial=none) > tol)

    def body(carry):
        lam, F, nu, k, _ = carry
        K = newton_matrix(ncp, projection_jacobian(ncp, lam, nu, classify(ncp, lam, nu)), ncp.G)
        found = lam - null_spaces(K)[0] @ F
        point = found, *_map(ncp, found, none)
        falls = merit(ncp, point[1]) <= (1.0 - 2.0 * ARMIJO) * merit(ncp, F)
        kept = (jnp.where(falls, new, old) for new, old in zip(point, (lam, F, nu), strict=True))
        return *kept, k + 1, falls

    return jax.lax.while_loop(proceed, body, (lam, *_map(ncp, lam, none), jnp.zeros((), jnp.int32), jnp.ones((), bool)))[0]


def regularised_inverse(
    ncp: NCP, lam: Float[Array, " m"], eps: float | Float[Array, ""], weak: float | Float[Array, ""] | None = None
):
    """Inverse of K for G + eps I at `lam`, in the modes there of the problem with G + weak I; by default the same."""
    nu = ncp.G @ lam + (eps if weak is None else weak) * lam + ncp.g
    P = projection_jacobian(ncp, lam, nu, classify(ncp, lam, nu))
    return linear_algebra.inverse(newton_matrix(ncp, P, ncp.G + eps * jnp.eye(lam.shape[0], dtype=lam.dtype)))


def regularised_modes(ncp: NCP, lam: Float[Array, " m"], eps: float | Float[Array, ""]) -> Modes:
    """The modes at the impulse `lam` of the problem with G + eps I, in which `regularised_inverse` is formed."""
    return classify(ncp, lam, ncp.G @ lam + eps * lam + ncp.g)


def polish(ncp: NCP, lam: Float[Array, " m"], eps: float | Float[Array, ""]):
    """The solution of the problem with G + eps I to rounding, by full steps from one near it: its part in the null space of K is
    known no better than the residual over eps. A step along the null space may raise the residual before the next one lowers it,
    since a contact that slides moves on a circle; the best point is returned."""
    Geps = ncp.G + eps * jnp.eye(lam.shape[0], dtype=lam.dtype)

    def body(_, carry):
        x, best, least = carry
        F, nu = _map(ncp, x, eps)
        K = newton_matrix(ncp, projection_jacobian(ncp, x, nu, classify(ncp, x, nu)), Geps)
        inverse = linear_algebra.inverse(K)
        step = inverse @ F
        x = x - (step + inverse @ (F - K @ step))
        size = merit(ncp, _map(ncp, x, eps)[0])
        return x, jnp.where(size < least, x, best), jnp.where(size < least, size, least)

    return jax.lax.fori_loop(0, POLISHINGS, body, (lam, lam, merit(ncp, _map(ncp, lam, eps)[0])))[1]


def refine(ncp: NCP, lam: Float[Array, " m"], inverse: Float[Array, "m m"], tol: float | Float[Array, ""]):
    """Stage 2: lambda of the unregularised problem, in the modes in which `inverse` was formed; `tol` is a velocity."""
    dtype = ncp.G.dtype

    def proceed(carry):
        return carry[4]

    def body(carry):
        x, before, size_before, k, _ = carry
        F, _ = _map(ncp, x, jnp.zeros((), dtype))
        size = jnp.max(jnp.abs(F / ncp.rho), initial=jnp.zeros((), dtype))
        better = size < size_before
        more = (size > tol) & (size < 0.5 * size_before) & (k < REFINEMENTS)
        kept = jnp.where(better, x, before)
        return jnp.where(more, x - inverse @ F, kept), kept, jnp.where(better, size, size_before), k + 1, more

    start = (lam, lam, jnp.full((), jnp.inf, dtype), jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(proceed, body, start)[0]
