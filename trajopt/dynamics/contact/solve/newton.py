r"""Semismooth Newton on the natural map, with a regularisation that selects one solution and then vanishes.

Stage 1 solves the problem with G + eps I in place of G (eps relative to the diagonal, `REGULARISATION`). The regularised
problem has one solution where the original one has many, and as eps tends to zero that solution tends to one that does
not depend on where the iteration began; its modes are kept. Stage 2 removes eps: the residual of the *unregularised*
map is driven to rounding by iterative refinement, the factorised matrix of stage 1 serving as preconditioner. Its
corrections lie in the range of G for held contacts, so that no component of the null space enters again.

Globalisation of stage 1: the merit function 1/2 sum F^2 / rho falls in every accepted iteration (Armijo). Each step length of
the ladder is tried straight and with a second-order correction (Nocedal and Wright, section 18.3, here with the inverse at
hand), which follows the circle of a contact that slides: along the null space K is of the order of eps, and a straight step
leaves the circle by more than it gains. When no length achieves the decrease, or two in a row achieve little, the stage ends
and the caller goes on from elsewhere.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.branches import cond_in_batch
from trajopt.dynamics.contact.ncp import NCP, Modes, classify, natural_map, newton_matrix, projection_jacobian, split
from trajopt.dynamics.precision import Threshold

# eps over the smallest scale of a row: the impulses of redundant contacts are told apart by it, those of others moved by
# less than the refinement mends.
REGULARISATION = Threshold(1e-6, 1e-4)
ARMIJO = 1e-4  # share of the predicted decrease of the merit that counts as sufficient (Nocedal and Wright, section 3.1)
STEP_LENGTHS = 12  # 1, 1/2, ... 1/2048; below that the stages restart elsewhere
STAGNATION = 0.8  # share of the merit that an iteration may leave without being called stagnant
STAGNANT_ITERATIONS = 2  # in a row, at which the line search gives up
CORRECTION = 1e-3  # share of the merit that a straight step may leave without the second-order correction being tried
OVERSHOOT = Threshold(1e-6, 1e-4)  # relative, by how much a step passes the first change of a mode; well above rounding
ROUNDING = 4  # units of rounding of a row of G lambda, which no iteration can remove
POLISHINGS = 4  # full steps on the regularised problem: the second or third ends at rounding
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
    problem: NCP,
    init: Float[Array, " m"],
    eps: float | Float[Array, ""],
    tol: float | Float[Array, ""],
    max_iterations: int,
    stretch: float | Float[Array, ""] = 1.0,
    bend: bool | Bool[Array, ""] = True,
):
    """Stage 1, the problem with G + eps I from `init`: (lambda, iterations, converged).

    tol: velocity, m/s, to which the rounding of G lambda is added. stretch: by how much rho is larger than that of the problem.
    bend: whether steps are corrected.
    """
    ncp = dataclasses.replace(problem, rho=problem.rho * stretch)
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
        (lam, F, nu), share = _line_search(ncp, Geps, (lam, F, nu), step, inverse, bend)
        # Without an accepted length (a share of one) nothing would change any more.
        stagnant = jnp.where(share > STAGNATION, stagnant + 1, 0)
        return lam, F, nu, k + 1, jnp.where(share >= 1.0, STAGNANT_ITERATIONS, stagnant)

    F0, nu0 = _map(ncp, init, eps)
    zero = jnp.zeros((), jnp.int32)
    lam, _, nu, k, _ = jax.lax.while_loop(proceed, body, (init, F0, nu0, zero, zero))
    return lam, k, solved(lam, nu)


def _line_search(ncp: NCP, Geps, point, step, inverse, bend):
    """(point after the step, share of the merit that it leaves), a point being (lambda, F, nu).

    The longest length of the ladder with a sufficient decrease, straight or, if `bend`, with a second-order correction; where
    there is none the point stays, and the share is one.
    """
    lam, F, nu = point
    ladder = jnp.asarray(0.5, lam.dtype) ** jnp.arange(STEP_LENGTHS, dtype=lam.dtype)

    def tried(candidates):
        nus = candidates @ Geps + ncp.g
        Fs = jax.vmap(lambda c, n: natural_map(ncp, c, n))(candidates, nus)
        return candidates, Fs, nus, merit(ncp, Fs)

    def corrected(operand):
        straight, F, inverse = operand
        bent = tried(straight[0] - (straight[1] - (1.0 - ladder)[:, None] * F) @ inverse.T)
        better = bent[3] < straight[3]
        pick = lambda x, y: jnp.where(better.reshape((-1,) + (1,) * (x.ndim - 1)), x, y)  # noqa: E731
        return jax.tree.map(pick, bent, straight), F, inverse

    before = merit(ncp, F)
    straight = tried(lam - ladder[:, None] * step)
    curved = bend & (straight[3][0] > CORRECTION * before)
    chosen = cond_in_batch(curved, corrected, (straight, F, inverse))[0]
    merits = chosen[3]
    accepted = merits <= (1.0 - 2.0 * ARMIJO * ladder) * before
    first, stalled = jnp.argmax(accepted), ~jnp.any(accepted)
    moved = tuple(jnp.where(stalled, old, new[first]) for new, old in zip(chosen, point, strict=False))
    return moved, jnp.where(stalled, 1.0, merits[first] / jnp.where(before > 0, before, 1.0))


def past_first_event(
    problem: NCP, lam: Float[Array, " m"], eps: float | Float[Array, ""], stretch: float | Float[Array, ""]
):
    """The point on the Newton step of the problem with G + eps I that just passes the first contact to open, to close or to
    reach its cone; the whole step where there is none.

    Where contacts are redundant the solutions of the regularised problem move along the null space of K, as eps falls: too
    far for a line search, but in the direction of this step, until a mode changes. stretch: as in `newton_regularised`.
    """
    ncp = dataclasses.replace(problem, rho=problem.rho * stretch)
    nu = ncp.G @ lam + eps * lam + ncp.g
    step = regularised_inverse(ncp, lam, eps) @ natural_map(ncp, lam, nu)
    cone, limit, _ = split(ncp, lam - ncp.rho * nu)
    cone_rate, limit_rate, _ = split(ncp, step - ncp.rho * (ncp.G @ step + eps * step))
    unilateral = _positive_root(jnp.append(cone[:, 2], limit), jnp.append(cone_rate[:, 2], limit_rate))
    # |y_t - s r_t|^2 = mu^2 (y_n - s r_n)^2, a s^2 - 2 b s + c = 0, for contacts that stick: c < 0.
    weight = jnp.stack([jnp.ones_like(ncp.mu), jnp.ones_like(ncp.mu), -(ncp.mu**2)], -1)
    a, b, c = (jnp.sum(weight * x * y, -1) for x, y in ((cone_rate, cone_rate), (cone, cone_rate), (cone, cone)))
    inside = (c < 0) & (cone[:, 2] > 0) & ncp.exists[: ncp.nc]
    root = jnp.sqrt(jnp.maximum(b * b - a * c, 0.0))
    # The larger root of the two where a > 0; the smaller positive one, if any, where the cone opens along the step.
    away = jnp.where(b >= 0, (b + root) / jnp.where(a == 0, 1.0, a), -c / jnp.where(root == b, 1.0, root - b))
    boundary = jnp.where(inside & (a > 0) & (away > 0), away, jnp.inf)
    first = jnp.minimum(jnp.min(unilateral, initial=1.0), jnp.min(boundary, initial=1.0))
    return lam - first * (1.0 + OVERSHOOT.at(lam.dtype)) * step


def _positive_root(value, rate):
    """Step length s > 0 at which value - s rate is zero, infinity without one."""
    length = value / jnp.where(rate == 0, 1.0, rate)
    return jnp.where((rate != 0) & (length > 0), length, jnp.inf)


def regularised_inverse(ncp: NCP, lam: Float[Array, " m"], eps: float | Float[Array, ""]):
    """Inverse of K for G + eps I at `lam`."""
    nu = ncp.G @ lam + eps * lam + ncp.g
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
