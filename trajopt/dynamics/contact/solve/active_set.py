r"""Direct solution of the contact problem with box friction (Nimble, App. A and B).

Within given modes the law is linear: one system with K = I - P + P rho (G + eps I) gives the impulse, and what comes out is
judged by the natural map, so that a wrong guess of the modes is never accepted. Modes are tried in this order:

1. the guess: those in which the start, the impulses of the step before, was found (Nimble, App. B); else those at the impulses
   and velocities, y = lambda - rho nu, that these modes give in this step, which see what opens, closes, slips and holds;
2. corrections: the modes of what the modes before gave, a few times;
3. those of the pivoting solution (`lemke`), with corrections again, and by other paths, should rounding have spoilt it.

All of it is done for the regularised problem, whose solution the modes of the step are taken from (see `solve`): a guess that
solves the problem itself, but in other modes, is not accepted. Sliding contacts can have several solutions of the regularised
problem too, of which a guess may find another than the solve without one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.branches import cond_in_batch
from trajopt.dynamics.contact.ncp import (
    NCP,
    SEPARATING,
    SLIDING,
    STICKING,
    TIE,
    Modes,
    approach_scale,
    classify,
    natural_map,
    newton_matrix,
    project_in_modes,
    projection_jacobian,
    residual,
    split,
)
from trajopt.dynamics.contact.solve.lemke import lemke
from trajopt.dynamics.contact.solve.newton import refine
from trajopt.dynamics.precision import Threshold

CORRECTIONS = 3  # of a guess before pivoting, and of a pivoting solution before the next
RELAXATIONS, WEAKER = 3, 1e-2  # values of eps that are tried, and the ratio of one to the one before
PATHS = 3  # pivoting solutions, each by other bases
# Share of the tolerance, above one, that a violation may have which only the rounding of the linear system can have left.
ROUNDING = 1e3
NEAR = Threshold(1e-9, 1e-5)  # share of its bound by which a held tangent stays below it


def impulse_modes(ncp: NCP, lam: Float[Array, " m"]) -> Modes:
    """Modes read off an impulse alone: held where it is inside its bounds by more than rounding."""
    cone, limit, dry = split(ncp, lam)
    small_c, small_l, _ = split(ncp, TIE.at(ncp.G.dtype) * approach_scale(ncp, lam) * ncp.rho)
    closed = ncp.exists[: ncp.nc] & (cone[:, 2] > small_c[:, 2])
    held = jnp.abs(cone[:, :2]) < (1.0 - NEAR.at(ncp.G.dtype)) * (ncp.mu * cone[:, 2])[:, None]
    tangent = jnp.where(held | ~closed[:, None], 0, jnp.where(cone[:, :2] >= 0, 1, -1))
    mode = jnp.where(closed, jnp.where(jnp.all(held, 1), STICKING, SLIDING), SEPARATING)
    return Modes(mode, ncp.exists[ncp.nc :] & (limit > small_l), jnp.abs(dry) < (1.0 - NEAR.at(ncp.G.dtype)) * ncp.bound, tangent)


def active_set(
    ncp: NCP, init: Float[Array, " m"], eps: float | Float[Array, ""], tol: float | Float[Array, ""], max_pivots: int
):
    """(lambda, iterations, fallbacks, inverse of K) of the problem with G + eps I from the start `init`; `tol` is a velocity.

    iterations: corrections of the guess and pivots, 0 where one of its two rounds was right; fallbacks: 1 where pivoting was
    needed. Where nothing solves the problem, the impulse of smallest violation.
    """
    dtype, m = ncp.G.dtype, ncp.G.shape[0]
    Geps = ncp.G + eps * jnp.eye(m, dtype=dtype)
    rounds = 1 + (1 + PATHS) * (1 + CORRECTIONS)

    def trial(lam, modes):
        """Impulse of the law in `modes` (linear: any `lam` will do), its violation of the full law, the inverse of K, and
        whether the law holds: to `tol`, or but for the rounding of the linear system, the modes being those put in."""
        nu = Geps @ lam + ncp.g
        K = newton_matrix(ncp, projection_jacobian(ncp, lam, nu, modes), Geps)
        inverse = linear_algebra.inverse(K)
        F = lam - project_in_modes(ncp, lam - ncp.rho * nu, modes)
        step = inverse @ F
        lam = lam - step - inverse @ (F - K @ step)
        nu = Geps @ lam + ncp.g
        violation = jnp.max(jnp.abs(natural_map(ncp, lam, nu) / ncp.rho))
        same = jax.tree.map(lambda a, b: jnp.all(a == b), classify(ncp, lam, nu), modes)
        same = jnp.all(jnp.stack(jax.tree.leaves(same)))
        return lam, violation, inverse, (violation <= tol) | (same & (violation <= ROUNDING * tol))

    def body(carry):
        best, current, pivots, k = carry
        path = (k - 1) // (1 + CORRECTIONS) - 1
        pivoting = (path >= 0) & ((k - 1) % (1 + CORRECTIONS) == 0)

        def pivot(given):
            found, count = lemke(ncp, eps, max_pivots, path)
            return found, given[1] + count

        current, pivots = cond_in_batch(pivoting, pivot, (current, pivots))
        own = impulse_modes(ncp, current)
        at_velocity = classify(ncp, current, Geps @ current + ncp.g)
        found = trial(current, jax.tree.map(lambda a, b: jnp.where(k == 0, a, b), own, at_velocity))
        better = found[1] < best[1]
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)
        return best, jnp.where(jnp.isfinite(found[0]).all(), found[0], current), pivots, k + 1

    zero = jnp.zeros((), jnp.int32)
    nothing = (jnp.zeros_like(init), jnp.full((), jnp.inf, dtype), jnp.eye(m, dtype=dtype), jnp.zeros((), bool))
    carry = jax.lax.while_loop(lambda carry: ~carry[0][3] & (carry[3] < rounds), body, (nothing, init, zero, zero))
    (lam, _, inverse, _), _, pivots, attempts = carry
    guesses = jnp.minimum(attempts, 2)
    pivoted = attempts > 2 + CORRECTIONS
    return lam, attempts - guesses + pivots, pivoted.astype(jnp.int32), inverse


def direct(
    ncp: NCP,
    init: Float[Array, " m"],
    eps: float | Float[Array, ""],
    tol: float | Float[Array, ""],
    rounding: float | Float[Array, ""],
    accuracy: float,
    max_pivots: int,
):
    """(lambda, iterations, fallbacks, inverse of K, eps) of the problem without regularisation; `active_set` counts.

    tol and rounding (velocities) are those of `active_set` and `refine`. Where the modes of the regularised problem leave a
    relative residual above `accuracy`, because eps lambda hid that a contact opens, it is solved again with a smaller eps.
    """
    dtype, m = ncp.G.dtype, ncp.G.shape[0]

    def body(carry):
        best, lowest, weight, iterations, fallbacks, k = carry
        lam, more, pivoted, inverse = active_set(ncp, best[0], weight, tol, max_pivots)
        lam = refine(ncp, lam, inverse, rounding)
        size = residual(ncp, lam, accuracy)
        better = size < lowest
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (lam, inverse, weight), best)
        lowest = jnp.where(better, size, lowest)
        again = (k > 0).astype(jnp.int32)
        return best, lowest, WEAKER * weight, iterations + more + again, jnp.maximum(fallbacks, pivoted), k + 1

    zero = jnp.zeros((), jnp.int32)
    start = (init, jnp.eye(m, dtype=dtype), eps)
    carry = (start, jnp.full((), jnp.inf, dtype), eps, zero, zero, zero)
    carry = jax.lax.while_loop(lambda c: ~(c[1] <= accuracy) & (c[5] < RELAXATIONS), body, carry)
    (lam, inverse, weight), _, _, iterations, fallbacks, _ = carry
    return lam, iterations, fallbacks, inverse, weight
