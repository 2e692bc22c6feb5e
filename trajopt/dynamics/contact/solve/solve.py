r"""Solution of the contact problem: a solver, selection among many solutions, and an honest status.

The law is solved by the stages of `ladder`. Whatever comes out is freed of the regularisation by iterative refinement, and the
residual is recomputed from scratch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.branches import cond_in_batch, cond_one_at_a_time
from trajopt.dynamics.contact.ncp import (
    NCP,
    SLIDING,
    STICKING,
    TIE,
    Modes,
    apply_blocks,
    approach_scale,
    classify,
    default_tolerance,
    natural_map,
    newton_matrix,
    projection_jacobian,
    residual,
    solves,
    split,
)
from trajopt.dynamics.contact.solve import selection
from trajopt.dynamics.contact.solve.ladder import Limits, Search, search
from trajopt.dynamics.contact.solve.newton import (
    merit,
    polish,
    refine,
    regularisation,
    regularised_inverse,
    regularised_modes,
)
from trajopt.dynamics.precision import Threshold
from trajopt.result import Status

# What separates a slip from sticking, relative to `ncp.approach_scale`: the direction of a slower one is known to fewer than four
# digits.
SLOW = Threshold(1e-6, 1e-3)
REFINEMENTS = 5  # solves for a derivative with the regularised inverse: each gains the digits that eps costs
NULL_POWER = 4  # of the matrix that is one on the null space and of the order of eps elsewhere
# Entries of that matrix: of the order of one where K has a null space, else eps cond(K), below this for conditions up to 1e3.
DEGENERATE = Threshold(1e-3, 1e-1)
LAWFUL = Threshold(2e-13, 5e-6)  # residual that the shortest impulse may have, however small the one before: rounding, not more
ROUNDING = 100  # units of rounding of the velocities of the problem, at which refinement ends


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NCPSolution:
    """impulse (m,) N s; velocity (m,) m/s; residual (relative, see `ncp.residual`); iterations of Newton (all attempts).

    fallbacks: the last `ladder.Stage` that ran; status; modes; degenerate: the impulse is not unique; selected: it is the
    shortest in these modes (else, where that breaks the law, the limit of the regularised problem); slow (nc,): the contacts
    that stick and yet follow their cones in that limit; inverse (m, m): of the regularised K near the solution, the
    preconditioner of the derivative's linear system.
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
    slow: Bool[Array, " nc"]
    inverse: Float[Array, "m m"]

    @property
    def selecting_modes(self) -> Modes:
        """The modes of the equations that the selected impulse solves."""
        return _sliding_slowly(self.modes, self.slow)


def solution_null_space(ncp: NCP, solution: NCPSolution) -> selection.NullSpace:
    """The null space that the derivative of the selection needs; computed only where one of many was selected."""
    m, dtype = ncp.G.shape[0], ncp.G.dtype
    return cond_in_batch(
        solution.degenerate,
        lambda _: selection.null_space(ncp, solution.impulse, solution.selecting_modes, solution.slow, solution.selected),
        selection.empty_null_space(m, ncp.nc, dtype),
    )


def solve(
    ncp: NCP, init: Float[Array, " m"] | None = None, *, tol: float | None = None, max_iterations: int = 50
) -> NCPSolution:
    """Solve an `NCP` (not differentiable by itself: the callers define implicit derivatives)."""
    dtype, m = ncp.G.dtype, ncp.G.shape[0]
    tol = default_tolerance(dtype) if tol is None else tol
    eps = regularisation(ncp)
    lam, iterations, fallbacks = jnp.zeros(m, dtype), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    degenerate, selected, infeasible = jnp.zeros((), bool), jnp.ones((), bool), jnp.zeros((), bool)
    inverse, slow = jnp.zeros((m, m), dtype), jnp.zeros(ncp.nc, bool)
    modes = solution_modes(ncp, lam, ncp.g)
    if m:
        speed = approach_scale(ncp, lam)
        rounding = ROUNDING * jnp.finfo(dtype).eps * speed
        limits = Limits(jnp.minimum(jnp.asarray(0.01 * tol, dtype) * speed, 100 * rounding), rounding, tol)
        start = lam if init is None else _better_start(ncp, init, eps)
        ended = search(ncp, start_resting_contacts_sticking(ncp, start, eps), eps, limits, max_iterations)
        iterations, fallbacks, infeasible = ended.iterations, ended.stage, ended.infeasible
        lam, inverse, near = _polished(ncp, ended, eps, limits)
        modes = solution_modes(ncp, lam, ncp.G @ lam + ncp.g)
        lam, inverse, degenerate, selected, slow = _chosen(ncp, lam, modes, near, inverse, eps, tol)
    size = residual(ncp, lam, tol)
    status = solve_status(ncp, lam, size, tol, infeasible)
    nu = ncp.G @ lam + ncp.g
    return NCPSolution(lam, nu, size, iterations, fallbacks, status, modes, degenerate, selected, slow, inverse)


def _polished(ncp: NCP, ended: Search, eps, limits: Limits):
    """(impulse, inverse, modes) of the search. Where one of many impulses is selected and contacts slide, the regularised
    solution decides, and the search knows it to a tolerance only, which depends on the start: it is taken to rounding."""
    best = ended.best
    found = best.impulse, best.inverse, best.modes
    needed = _is_degenerate(ncp, best.inverse, eps) & jnp.any(best.modes.cone == SLIDING)

    def polished(found, ncp: NCP, near, eps, rounding):
        lam, inverse, modes = found
        exact = polish(ncp, near, eps)
        anew = regularised_inverse(ncp, exact, eps)
        chosen, lawful = if_lawful(ncp, lam, refine(ncp, exact, anew, rounding), limits.accuracy)
        better = anew, regularised_modes(ncp, exact, eps)
        return chosen, *jax.tree.map(lambda new, old: jnp.where(lawful, new, old), better, (inverse, modes))

    return cond_one_at_a_time(needed, polished, found, ncp, ended.current, eps, limits.rounding)


def _chosen(ncp: NCP, lam, modes: Modes, near: Modes, inverse, eps, tol):
    """(impulse, inverse, degenerate, selected, slow) of `NCPSolution`; where contacts are redundant, of the selected impulse.

    lam: a solution; inverse: of K in the modes `near` of the regularised solution.
    """
    nu = ncp.G @ lam + ncp.g
    # A contact that slides in the regularised solution, slower than `SLOW`, sticks in the modes of the solution, in which
    # contacts can be redundant that were not before; one that hardly touches is tied.
    inverse = cond_one_at_a_time(near.differ_from(modes), _inverse_in_modes, inverse, ncp, lam, nu, modes, eps)
    slides = near.cone == SLIDING
    degenerate = _is_degenerate(ncp, inverse, eps)
    slow = degenerate & slides & (modes.cone == STICKING) & ~jnp.any(modes.cone == SLIDING) & (ncp.cone != "box")
    along = _sliding_slowly(modes, slow)
    sliding, moving = (degenerate & jnp.any(x.cone == SLIDING) for x in (modes, along))
    found = lam, jnp.ones((), bool)
    held = degenerate & ~moving
    found = cond_in_batch(held, lambda x: _without_null_space(ncp, x[0], modes, inverse, eps, tol), found)
    select = functools.partial(_select, tol=tol)
    lam, selected = cond_one_at_a_time(moving, select, found, ncp, modes, along)
    nu = ncp.G @ lam + ncp.g
    # The selected impulse slides in other directions than the one before.
    inverse = cond_one_at_a_time(sliding, _inverse_in_modes, inverse, ncp, lam, nu, modes, eps)
    return lam, inverse, degenerate, selected, slow & ~selected


def _sliding_slowly(modes: Modes, slow: Bool[Array, " nc"]) -> Modes:
    """`modes` in which the contacts `slow` slide."""
    return dataclasses.replace(modes, cone=jnp.where(slow, SLIDING, modes.cone))


def solution_modes(ncp: NCP, lam: Float[Array, " m"], nu: Float[Array, " m"]) -> Modes:
    """Modes at a solution (lambda, nu): tied contacts count as separating, the slowest slips as sticking."""
    return classify(ncp, lam, nu, TIE.at(ncp.G.dtype), SLOW.at(ncp.G.dtype))


def consistent_solution(ncp: NCP, solution: NCPSolution, right: Float[Array, "m ..."]):
    """x with K x = right, K the derivative of the law at the solution; right (m,) or (m, k), linear in it.

    K is singular where the impulse is not unique: iterative refinement with the regularised inverse gives a particular
    solution of a consistent system to rounding, without the cancellation that a smaller regularisation would bring. What
    of `right` is out of the range of K is left whole by every refinement, and each adds the same multiple of it over the
    regularisation to x, in the null space of K; that is taken off again.
    """
    P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    K = newton_matrix(ncp, P, ncp.G)
    x = solution.inverse @ right
    for _ in range(REFINEMENTS - 1):
        x = x + solution.inverse @ (right - K @ x)
    return x - REFINEMENTS * (solution.inverse @ (right - K @ x))


def _better_start(ncp: NCP, init, eps):
    """`init` if its merit is lower than that of zero impulse (NaN counts as worse)."""
    both = jnp.stack([init, jnp.zeros_like(init)])
    nu = both @ ncp.G + eps * both + ncp.g
    merits = merit(ncp, jax.vmap(lambda x, nu: natural_map(ncp, x, nu))(both, nu))
    return jnp.where(merits[0] < merits[1], both[0], both[1])


def start_resting_contacts_sticking(ncp: NCP, start: Float[Array, " m"], eps: Float[Array, ""]) -> Float[Array, " m"]:
    """`start`; where it is zero and contacts neither approach nor part while others approach, an impulse that holds them.

    Whether the contacts of a pile that falls as one close is up to those below; from zero rounding decides of each.
    """
    still = SLOW.at(ncp.g.dtype) * approach_scale(ncp, jnp.zeros_like(start))
    parting = jnp.where(ncp.exists[: ncp.nc], split(ncp, ncp.g)[0][:, 2], jnp.inf)
    piled = jnp.any(jnp.abs(parting) <= still) & jnp.any(parting < -still) & jnp.all(start == 0)
    return cond_one_at_a_time(piled, _held_at_rest, start, ncp, eps, still)


def _held_at_rest(_, ncp: NCP, eps, still) -> Float[Array, " m"]:
    """The impulse that stops all contacts that approach or rest, and limits that approach, or zero where its merit is higher."""
    cone, limit, dry = split(ncp, ncp.g)
    parting = jnp.concatenate([cone[:, 2], limit])
    holds = ncp.exists & (parting <= still)
    held = jnp.concatenate([jnp.repeat(holds[: ncp.nc], 3), holds[ncp.nc :], jnp.ones(dry.shape, bool)])
    among = held[:, None] & held
    K = jnp.where(among, ncp.G, 0.0) + jnp.diag(jnp.where(held, eps, 1.0))
    return _better_start(ncp, -linear_algebra.inverse(K) @ jnp.where(held, ncp.g, 0.0), eps)


def _inverse_in_modes(_, ncp: NCP, lam, nu, modes: Modes, eps):
    """Inverse of K for G + eps I at the solution (lam, nu), in place of the one before."""
    G = ncp.G + eps * jnp.eye(lam.shape[0], dtype=lam.dtype)
    return linear_algebra.inverse(newton_matrix(ncp, projection_jacobian(ncp, lam, nu, modes), G))


def _is_degenerate(ncp: NCP, inverse, eps):
    """Whether K has a null space: the inverse of the regularised K is of the order of 1 / (rho eps) then."""
    return jnp.max(jnp.abs(inverse * (ncp.rho * eps)[None, :])) > DEGENERATE.at(ncp.G.dtype)


def _without_null_space(ncp: NCP, lam, modes: Modes, inverse, eps, tol):
    """The impulse of least norm of held contacts: stage 1 leaves its tolerance over eps of the null space in it.

    W = inverse eps P rho is one on the null space of K and of the order of eps elsewhere: its powers project onto the null
    space.
    """
    P = projection_jacobian(ncp, lam, ncp.G @ lam + ncp.g, modes)
    null = lam
    for _ in range(NULL_POWER):
        null = inverse @ apply_blocks(P, ncp.rho * eps * null)
    return if_lawful(ncp, lam, lam - null, tol)


def _select(found, ncp: NCP, modes: Modes, along: Modes, tol):
    """(`selection.smallest_norm`, True), or where it breaks the law (`selection.limit` in the modes `along`, False)."""
    lam, _ = found
    shortest, lawful = if_lawful(ncp, lam, selection.smallest_norm(ncp, lam, modes), tol)
    limit = cond_in_batch(~lawful, lambda x: if_lawful(ncp, x, selection.limit(ncp, x, along), tol)[0], shortest)
    return limit, lawful


def if_lawful(
    ncp: NCP, lam: Float[Array, " m"], candidate: Float[Array, " m"], tol: float
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """(`candidate`, True) where `lam` solves the problem, or nearly, and `candidate` does no less, else (`lam`, False)."""
    before, after = jax.vmap(lambda x: residual(ncp, x, tol))(jnp.stack([lam, candidate]))
    solved = before <= jnp.sqrt(jnp.finfo(lam.dtype).eps)
    lawful = solved & (after <= jnp.maximum(10 * before, LAWFUL.at(lam.dtype))) & ((after <= tol) | (before > tol))
    return jnp.where(lawful, candidate, lam), lawful


def solve_status(
    ncp: NCP, lam: Float[Array, " m"], size: Float[Array, ""], tol: float, infeasible: bool | Bool[Array, ""] = False
):
    """solved, non_finite, infeasible (where that was proven) or stalled, of the impulse `lam` of residual `size`."""
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status = choose(jnp.asarray(infeasible), Status.infeasible, Status.stalled)
    status = choose(solves(ncp, lam, size, tol), Status.solved, status)
    return choose(jnp.isfinite(size), status, Status.non_finite)


def zero_tangent(tree: Any):
    """Tangent of solver diagnostics, which are not differentiated."""

    def zero(x):
        return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(zero, tree)
