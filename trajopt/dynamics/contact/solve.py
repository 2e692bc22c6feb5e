r"""Solution of the contact problem: Newton, its fallbacks, selection, and an honest status.

Order of attempts, each only where the one before did not converge:

1. semismooth Newton on the regularised problem, from the better of the given start and zero, or, where that fails, from
   where the first mode changes on the way of its step;
2. continuation: the same with eps (relative) falling from 1 to its final value, each started from the last;
3. projected Gauss-Seidel on the regularised problem, then Newton from its result, three rounds;
4. ADMM on the regularised problem, then Newton from its result.

The law with box friction is solved directly instead (`lcp`). Whatever came out is freed of the regularisation by iterative
refinement, and the residual is recomputed from scratch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact import selection
from trajopt.dynamics.contact.admm import admm
from trajopt.dynamics.contact.lcp import direct
from trajopt.dynamics.contact.ncp import (
    NCP,
    SLIDING,
    Modes,
    apply_blocks,
    approach_scale,
    classify,
    natural_map,
    newton_matrix,
    projection_jacobian,
    residual,
    velocity_scale,
)
from trajopt.dynamics.contact.newton import (
    merit,
    newton_regularised,
    past_first_event,
    refine,
    regularisation,
    regularised_inverse,
)
from trajopt.dynamics.contact.pgs import pgs
from trajopt.dynamics.contact.rarely import rarely
from trajopt.result import Status

TIE, SLOW = 1e-11, 1e-6  # relative to `ncp.approach_scale`
CORRECTIONS = 3
NULL_POWER = 4
CONTINUATION = 6
WEAKENINGS, WEAKEST, CLOSER = 8, 4, 1e-2
EVENTS = 6
SOLVERS = ("newton", "admm", "pgs")
SWEEPS, ROUNDS = 300, 3


def default_tolerance(dtype) -> float:
    """Residual (relative velocity, see `ncp.residual`) below which a problem counts as solved."""
    return 1e-10 if dtype == jnp.float64 else 1e-5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NCPSolution:
    """impulse (m,) N s; velocity (m,) m/s; residual (relative, see `ncp.residual`); iterations of Newton (all attempts).

    fallbacks used (0, 1 continuation, 2 Gauss-Seidel, 3 ADMM); of the direct solve with box friction: iterations are
    corrections of the guess and pivots, fallbacks 1 where pivoting was needed; status; modes; degenerate: the impulse is not
    unique; selected: it is the shortest in these modes (else, where that breaks the law, the limit of the regularised problem);
    inverse (m, m): of the regularised K near the solution, the preconditioner of the derivative's linear system.
    """

    impulse: Float[Array, " m"]
    velocity: Float[Array, " m"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    fallbacks: Int[Array, ""]
    status: eqx.Enumeration
    modes: Modes
    degenerate: Bool[Array, ""]
    selected: Bool[Array, ""]
    inverse: Float[Array, "m m"]


def solution_null_space(ncp: NCP, solution: NCPSolution) -> selection.NullSpace:
    """The null space that the derivative of the selection needs; computed only where the shortest of many was selected."""
    m, dtype = ncp.G.shape[0], ncp.G.dtype
    return rarely(
        solution.degenerate & solution.selected,
        lambda _: selection.null_space(ncp, solution.impulse, solution.modes),
        selection.empty_null_space(m, dtype),
    )


def solve(
    ncp: NCP, init=None, *, tol: float | None = None, max_iterations: int = 50, solver: str = "newton"
) -> NCPSolution:
    """Solve an `NCP` (not differentiable by itself: the callers define implicit derivatives)."""
    dtype = ncp.G.dtype
    m = ncp.G.shape[0]
    tol = default_tolerance(dtype) if tol is None else tol
    eps = regularisation(ncp)
    speed = velocity_scale(ncp)
    rounding = 100 * jnp.finfo(dtype).eps * approach_scale(ncp)
    lam, iterations, fallbacks = jnp.zeros(m, dtype), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    degenerate, inverse = jnp.zeros((), bool), jnp.zeros((m, m), dtype)
    if m:
        inner_tol = jnp.minimum(jnp.asarray(0.01 * tol, dtype) * speed, 100 * rounding)
        start = lam if init is None else init if solver == "direct" else _better_start(ncp, init, eps)
        if solver == "newton":
            limits = (inner_tol, rounding, tol)
            lam, iterations, fallbacks, inverse, eps = _attempts(ncp, start, eps, limits, max_iterations)
        elif solver == "direct":
            lam, iterations, fallbacks, inverse, eps = direct(ncp, start, eps, inner_tol, rounding, tol, max_iterations)
        else:
            if solver == "admm":
                lam, iterations = admm(ncp, start, eps, 1e-2 * tol, 40 * max_iterations)
            else:
                lam, iterations = pgs(ncp, start, eps, inner_tol, 40 * max_iterations)
            inverse = regularised_inverse(ncp, lam, eps)
        if solver != "newton":
            lam = refine(ncp, lam, inverse, rounding)
        degenerate = _is_degenerate(ncp, inverse, eps)
    nu = ncp.G @ lam + ncp.g
    modes = classify(ncp, lam, nu, TIE, SLOW)
    selected = jnp.ones((), bool)
    if m:
        held = degenerate & ~jnp.any(modes.cone == SLIDING)
        found = lam, selected
        found = rarely(held, lambda x: _without_null_space(ncp, x[0], modes, inverse, eps), found)
        slides = degenerate & jnp.any(modes.cone == SLIDING)
        lam, selected = rarely(slides, lambda x: _select(ncp, x[0], modes), found)
        nu = ncp.G @ lam + ncp.g
        # The shortest impulse slides in other directions than the regularised one, for which the inverse was formed.
        inverse = rarely(slides, lambda _: _inverse_in_modes(ncp, lam, nu, modes, eps), inverse)
    size = residual(ncp, lam)
    return NCPSolution(
        lam, nu, size, iterations, fallbacks, solve_status(ncp, lam, size, tol), modes, degenerate, selected, inverse
    )


def consistent_solution(ncp: NCP, solution: NCPSolution, right):
    """x with K x = right, K the derivative of the law at the solution; right (m,) or (m, k), linear in it.

    K is singular where the impulse is not unique: iterative refinement with the regularised inverse gives a particular
    solution of a consistent system to rounding, without the cancellation that a smaller regularisation would bring.
    """
    P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    K = newton_matrix(ncp, P, ncp.G)
    x = solution.inverse @ right
    for _ in range(CORRECTIONS - 1):
        x = x + solution.inverse @ (right - K @ x)
    return x


def _better_start(ncp: NCP, init, eps):
    """`init` if its merit is lower than that of zero impulse (NaN counts as worse)."""
    both = jnp.stack([init, jnp.zeros_like(init)])
    nu = both @ ncp.G + eps * both + ncp.g
    merits = merit(ncp, jax.vmap(lambda x, nu: natural_map(ncp, x, nu))(both, nu))
    return jnp.where(merits[0] < merits[1], both[0], both[1])


def _attempts(ncp: NCP, start, eps, limits, max_iterations: int):
    """(impulse of least residual, Newton iterations, fallbacks, inverse of K, its eps) of the attempts of the module docstring.

    limits: tolerance of the regularised problem and of the refinement (velocities), and relative residual that solves the
    problem. One loop: attempt 0 from `start`; 1 .. CONTINUATION + 1 with falling regularisation, from zero; ROUNDS from
    Gauss-Seidel's result, the first round from zero, the next from where the last one stood; one from ADMM's result. Where
    the modes of the regularised problem leave a residual, because eps lambda hid that a contact opens or slips, it is solved
    again with a weaker regularisation, eps (lambda - last solution), down to eps / 10^WEAKEST (a proximal point method, which
    needs no vanishing eps), from where the first mode changes on the way there, and with rho as much larger: the slip is that
    much smaller than the impulses, and lambda - rho nu has to tell its direction.
    """
    inner_tol, rounding, accuracy = limits
    swept = CONTINUATION + 1
    coarse = 1e-6 * velocity_scale(ncp)
    last = swept + ROUNDS + 1

    def body(carry):
        best, lowest, current, anchor, sweep, k, attempt, weaker, events, _ = carry
        anew = (weaker == 0) & (events == 0)
        current = jnp.where(anew & (attempt == 1), jnp.zeros_like(current), current)
        sweeping = anew & (attempt > swept) & (attempt < last)
        sweep = rarely(sweeping, lambda x: pgs(ncp, x, eps, coarse, SWEEPS)[0], sweep)
        current = jnp.where(sweeping, sweep, current)
        asked = anew & (attempt == last)
        current = rarely(asked, lambda _: admm(ncp, best[0], eps, 1e-6, 40 * max_iterations)[0], current)
        relaxed = (attempt >= 1) & (attempt <= CONTINUATION)
        exponent = jnp.where(relaxed, CONTINUATION + 1 - attempt, -jnp.minimum(weaker, WEAKEST)).astype(eps.dtype)
        weight = eps * jnp.asarray(10.0, eps.dtype) ** exponent
        centred = dataclasses.replace(ncp, g=ncp.g - jnp.where(weaker > 0, weight, 0.0) * anchor)
        stretch = jnp.where(weaker > 0, eps / weight, 1.0)
        current = rarely(~anew, lambda x: past_first_event(centred, x, weight, stretch), current)
        current, more, converged = newton_regularised(
            centred, current, weight, inner_tol, max_iterations, stretch, weaker == 0
        )
        # The last Newton step may have changed the modes: the inverse is formed anew where it ended.
        inverse = regularised_inverse(centred, current, weight)
        refined = refine(ncp, current, inverse, rounding)
        size = residual(ncp, refined)
        # NaN, of the impulse or of the inverse, is kept only for want of anything else.
        usable = jnp.isfinite(size) & jnp.isfinite(inverse).all()
        better = ~relaxed & ~(size >= lowest) & (usable | ~jnp.isfinite(lowest))
        better = better & ((weaker == 0) | (size <= jnp.maximum(accuracy, CLOSER * lowest)))
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (refined, inverse, weight), best)
        lowest = jnp.where(better, size, lowest)
        reached = converged & ~relaxed
        retry = ~converged & ((attempt <= swept) | (weaker > 0)) & (events < EVENTS)
        # A weaker problem that stays unsolved is passed over: the next one is begun where the last solved one ended.
        anchor = jnp.where(converged, current, anchor)
        current = jnp.where(retry | (weaker == 0), current, anchor)
        again = (reached | ((weaker > 0) & ~retry)) & (size > accuracy) & (weaker < WEAKENINGS)
        following = (
            jnp.where(again | retry, attempt, attempt + 1),
            jnp.where(again, weaker + 1, jnp.where(retry, weaker, 0)),
            jnp.where(retry, events + 1, 0),
        )
        done = (reached | (weaker > 0)) & ~again & ~retry
        return best, lowest, current, anchor, sweep, k + more, *following, done

    zero = jnp.zeros((), jnp.int32)
    nothing = (start, jnp.eye(start.shape[0], dtype=start.dtype), eps)
    infinity = jnp.full((), jnp.inf, start.dtype)
    carry = (nothing, infinity, start, start, jnp.zeros_like(start), zero, zero, zero, zero, jnp.zeros((), bool))
    carry = jax.lax.while_loop(lambda c: ~c[9] & (c[6] <= last), body, carry)
    (lam, inverse, weight), _, _, _, _, iterations, attempts, *_ = carry
    final = attempts - 1
    fallbacks = (final >= 1).astype(jnp.int32) + (final > swept).astype(jnp.int32) + (final >= last).astype(jnp.int32)
    return lam, iterations, fallbacks, inverse, weight


def _inverse_in_modes(ncp: NCP, lam, nu, modes: Modes, eps):
    """Inverse of K for G + eps I at the solution (lam, nu)."""
    G = ncp.G + eps * jnp.eye(lam.shape[0], dtype=lam.dtype)
    return jnp.linalg.inv(newton_matrix(ncp, projection_jacobian(ncp, lam, nu, modes), G))


def _is_degenerate(ncp: NCP, inverse, eps):
    """Whether K has a null space: the inverse of the regularised K is of the order of 1 / (rho eps) then."""
    return jnp.max(jnp.abs(inverse * (ncp.rho * eps)[None, :])) > 1e-3


def _without_null_space(ncp: NCP, lam, modes: Modes, inverse, eps):
    """The impulse of least norm of held contacts: stage 1 leaves its tolerance over eps of the null space in it.

    W = inverse eps P rho is one on the null space of K and of the order of eps elsewhere: its powers project onto the null
    space.
    """
    P = projection_jacobian(ncp, lam, ncp.G @ lam + ncp.g, modes)
    null = lam
    for _ in range(NULL_POWER):
        null = inverse @ apply_blocks(P, ncp.rho * eps * null)
    return _if_lawful(ncp, lam, lam - null)


def _select(ncp: NCP, lam, modes: Modes):
    """`selection.smallest_norm`, kept only where the law still holds there."""
    return _if_lawful(ncp, lam, selection.smallest_norm(ncp, lam, modes))


def _if_lawful(ncp: NCP, lam, candidate):
    """(`candidate`, True) where `lam` solves the problem and `candidate` does no less, else (`lam`, False)."""
    before, after = jax.vmap(lambda x: residual(ncp, x))(jnp.stack([lam, candidate]))
    eps = jnp.finfo(lam.dtype).eps
    solved = before <= jnp.sqrt(eps)
    lawful = solved & (after <= jnp.maximum(10 * before, 1e3 * eps))
    return jnp.where(lawful, candidate, lam), lawful


def solve_status(ncp: NCP, lam, size, tol):
    """solved, non_finite, infeasible (an impulse direction that nothing resists and that cannot stop the approach) or stalled."""
    norm = jnp.linalg.norm(lam)
    direction = lam / jnp.where(norm > 0, norm, 1.0)
    resisted = jnp.linalg.norm(ncp.G @ direction) * jnp.max(ncp.rho, initial=jnp.finfo(lam.dtype).tiny)
    ray = (resisted < 1e-4) & (direction @ ncp.g < -1e-6 * velocity_scale(ncp)) & (norm > 0)
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status = choose(ray, Status.infeasible, Status.stalled)
    status = choose(size <= tol, Status.solved, status)
    return choose(jnp.isfinite(size), status, Status.non_finite)


def zero_tangent(tree):
    """Tangent of solver diagnostics, which are not differentiated."""

    def zero(x):
        return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(zero, tree)
