r"""Solution of the contact problem: Newton, its fallbacks, selection, and an honest status.

Order of attempts, each only where the one before did not converge:

1. semismooth Newton on the regularised problem, from the better of the given start and zero;
2. continuation: Newton with eps (relative) falling from 1 to its final value, each started from the last;
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
    classify,
    natural_map,
    newton_matrix,
    projection_jacobian,
    residual,
    velocity_scale,
)
from trajopt.dynamics.contact.newton import merit, newton_regularised, refine, regularisation, regularised_inverse
from trajopt.dynamics.contact.pgs import pgs
from trajopt.dynamics.contact.rarely import rarely
from trajopt.result import Status

TIE = 1e-11
CORRECTIONS = 3
NULL_POWER = 4
CONTINUATION = 6
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
    unique; inverse (m, m): of the regularised K near the solution, the preconditioner of the derivative's linear system.
    """

    impulse: Float[Array, " m"]
    velocity: Float[Array, " m"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    fallbacks: Int[Array, ""]
    status: eqx.Enumeration
    modes: Modes
    degenerate: Bool[Array, ""]
    inverse: Float[Array, "m m"]


def solution_null_space(ncp: NCP, solution: NCPSolution) -> selection.NullSpace:
    """The null space that the derivative of the selection needs; computed only where the impulse is not unique."""
    m, dtype = ncp.G.shape[0], ncp.G.dtype
    return rarely(
        solution.degenerate,
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
    rounding = 100 * jnp.finfo(dtype).eps * speed
    lam, iterations, fallbacks = jnp.zeros(m, dtype), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    degenerate, inverse = jnp.zeros((), bool), jnp.zeros((m, m), dtype)
    if m:
        inner_tol = jnp.minimum(jnp.asarray(0.01 * tol, dtype) * speed, 100 * rounding)
        start = lam if init is None else init if solver == "direct" else _better_start(ncp, init, eps)
        if solver == "newton":
            lam, iterations, fallbacks, inverse = _attempts(ncp, start, eps, inner_tol, max_iterations)
        elif solver == "direct":
            lam, iterations, fallbacks, inverse, eps = direct(ncp, start, eps, inner_tol, rounding, tol, max_iterations)
        else:
            if solver == "admm":
                lam, iterations = admm(ncp, start, eps, 1e-2 * tol, 40 * max_iterations)
            else:
                lam, iterations = pgs(ncp, start, eps, inner_tol, 40 * max_iterations)
            inverse = regularised_inverse(ncp, lam, eps)
        lam = refine(ncp, lam, inverse, rounding)
        degenerate = _is_degenerate(ncp, inverse, eps)
    nu = ncp.G @ lam + ncp.g
    modes = classify(ncp, lam, nu, TIE)
    if m:
        held = degenerate & ~jnp.any(modes.cone == SLIDING)
        lam = rarely(held, lambda x: _without_null_space(ncp, x, modes, inverse, eps), lam)
        lam = rarely(degenerate & jnp.any(modes.cone == SLIDING), lambda x: _select(ncp, x, modes), lam)
        nu = ncp.G @ lam + ncp.g
    size = residual(ncp, lam)
    return NCPSolution(lam, nu, size, iterations, fallbacks, _status(ncp, lam, size, tol), modes, degenerate, inverse)


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


def _attempts(ncp: NCP, start, eps, tol, max_iterations: int):
    """(impulse of lowest merit, Newton iterations, fallbacks, inverse of K) of the attempts in the module docstring.

    One loop over attempts: 0 from `start`; 1 .. CONTINUATION + 1 with falling regularisation, from zero; ROUNDS from
    Gauss-Seidel's result, the first round from zero, the next from where the last one stood; one from ADMM's result.
    """
    swept = CONTINUATION + 1
    coarse = 1e-6 * velocity_scale(ncp)
    last = swept + ROUNDS + 1

    def body(carry):
        best, lowest, _, _, current, sweep, k, attempt, _ = carry
        current = jnp.where(attempt == 1, jnp.zeros_like(current), current)
        sweeping = (attempt > swept) & (attempt < last)
        sweep = rarely(sweeping, lambda x: pgs(ncp, x, eps, coarse, SWEEPS)[0], sweep)
        current = jnp.where(sweeping, sweep, current)
        current = rarely(attempt == last, lambda _: admm(ncp, best, eps, 1e-6, 40 * max_iterations)[0], current)
        relaxed = (attempt >= 1) & (attempt <= CONTINUATION)
        exponent = jnp.where(relaxed, CONTINUATION + 1 - attempt, 0).astype(eps.dtype)
        weight = eps * jnp.asarray(10.0, eps.dtype) ** exponent
        current, more, converged, reached, inverse = newton_regularised(ncp, current, weight, tol, max_iterations)
        better = ~relaxed & ~(reached >= lowest)
        best, lowest = jnp.where(better, current, best), jnp.where(better, reached, lowest)
        fresh = more > 0
        return best, lowest, inverse, fresh, current, sweep, k + more, attempt + 1, converged & ~relaxed

    zero = jnp.zeros((), jnp.int32)
    eye = jnp.eye(start.shape[0], dtype=start.dtype)
    infinity = jnp.full((), jnp.inf, start.dtype)
    no = jnp.zeros((), bool)
    carry = (start, infinity, eye, no, start, jnp.zeros_like(start), zero, zero, no)
    carry = jax.lax.while_loop(lambda c: ~c[8] & (c[7] <= last), body, carry)
    best, _, _, _, _, _, iterations, attempts, _ = carry
    # The last Newton step may have changed the modes: the inverse is formed anew where it ended.
    inverse = regularised_inverse(ncp, best, eps)
    final = attempts - 1
    fallbacks = (final >= 1).astype(jnp.int32) + (final > swept).astype(jnp.int32) + (final >= last).astype(jnp.int32)
    return best, iterations, fallbacks, inverse


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
    """`candidate` where `lam` solves the problem and `candidate` does no less, else `lam`."""
    before, after = jax.vmap(lambda x: residual(ncp, x))(jnp.stack([lam, candidate]))
    eps = jnp.finfo(lam.dtype).eps
    solved = before <= jnp.sqrt(eps)
    return jnp.where(solved & (after <= jnp.maximum(10 * before, 1e3 * eps)), candidate, lam)


def _status(ncp: NCP, lam, size, tol):
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
