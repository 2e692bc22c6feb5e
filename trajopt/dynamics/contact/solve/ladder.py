r"""The ladder of stages on one contact problem, each climbed only where the one before ended at no solution (`Stage`).

`NEWTON`        semismooth Newton on the problem with G + eps I, from the given start
`GAUSS_SEIDEL`  rounds of Gauss-Seidel on that problem, each followed by Newton from its result; with box friction, of Lemke's
                method, each with a smaller eps
`PATH`          the compiled solver, which ends with the path of the regularised problem; on CPUs that have it, for the disc

An attempt is one run of Newton's method; iterative refinement then removes eps, and where that leaves a residual Newton's method
on the problem itself goes on from there. Where the regularised problem is solved but not the problem itself, because eps lambda
hid that a contact opens or slips, sweeps would only lead to the same solution again; Lemke's method gets there by a smaller eps.
The attempt of least residual is kept.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt import native
from trajopt.dynamics.branches import accelerated, cond_in_batch, cond_one_at_a_time
from trajopt.dynamics.contact.ncp import NCP, Modes, nearest, residual, solves
from trajopt.dynamics.contact.solve.gauss_seidel import gauss_seidel
from trajopt.dynamics.contact.solve.lemke import lemke
from trajopt.dynamics.contact.solve.newton import (
    newton_of_rank,
    newton_regularised,
    refine,
    regularised_inverse,
    regularised_modes,
)
from trajopt.native.contacts import STATUSES, solve_contacts


class Stage(enum.IntEnum):
    """The stages of a contact solve; `StepInfo.fallbacks` and `NCPResult.fallbacks` hold the last one that ran.

    Attributes:
        NEWTON: 0, semismooth Newton.
        GAUSS_SEIDEL: 1, Gauss-Seidel (with box friction Lemke's method), and Newton from its result.
        PATH: 2, the path of the regularised problem.
    """

    NEWTON = 0
    GAUSS_SEIDEL = 1
    PATH = 2


ROUNDS = 3  # of Gauss-Seidel and Newton in turn
SWEEPS = 100  # of Gauss-Seidel in a round
WEAKER = 1e-2  # ratio of eps of one solution by Lemke's method to that of the one before
QUICK_ITERATIONS = 4  # of Newton, in which a batch in lockstep ends for most


class Limits(NamedTuple):
    """Tolerance of the regularised problem and of the refinement (velocities), and relative residual that solves the problem."""

    inner: Float[Array, ""]
    rounding: Float[Array, ""]
    accuracy: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidate:
    """An impulse (m,), its relative residual, and the inverse (m, m) of K for G + eps I, formed in `modes`."""

    impulse: Float[Array, " m"]
    residual: Float[Array, ""]
    inverse: Float[Array, "m m"]
    modes: Modes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
    """Where the search stands.

    best: the attempt of least residual; current (m,): where the next attempt starts; swept (m,): where Gauss-Seidel stands;
    iterations of Newton; turn: 0, then the rounds; ended: the problem is solved, or no round is left that may solve it; stage:
    the `Stage`; infeasible: the compiled solver has proven that nothing solves the problem.
    """

    best: Candidate
    current: Float[Array, " m"]
    swept: Float[Array, " m"]
    iterations: Int[Array, ""]
    turn: Int[Array, ""]
    ended: Bool[Array, ""]
    stage: Int[Array, ""]
    infeasible: Bool[Array, ""]


def begun(ncp: NCP, start: Float[Array, " m"], eps: Float[Array, ""]) -> Search:
    """A search from the impulse `start` before its first attempt."""
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    infinity, identity = jnp.full((), jnp.inf, start.dtype), jnp.eye(start.shape[0], dtype=start.dtype)
    nothing = Candidate(start, infinity, identity, regularised_modes(ncp, start, eps))
    return Search(nothing, start, jnp.zeros_like(start), zero, zero, no, zero, no)


def search(ncp: NCP, start: Float[Array, " m"], eps: Float[Array, ""], limits: Limits, max_iterations: int) -> Search:
    """The search from the impulse `start`, ended; in a batch, on a CPU, one search after another."""

    def attempt(state: Search, ncp: NCP, eps, inner, rounding) -> tuple[Search, Bool[Array, ""]]:
        begun = _after_sweeps(ncp, state, eps, max_iterations)
        state = _attempt(ncp, begun, eps, Limits(inner, rounding, limits.accuracy), max_iterations)
        return state, ~state.ended

    def to_its_end(state: Search, *given) -> Search:
        state = jax.lax.while_loop(lambda state: ~state.ended, lambda state: attempt(state, *given)[0], state)
        if ncp.cone == "box":
            return state
        return _on_a_cpu(lambda state: _by_the_core(state, given[0], given[1], limits.accuracy, max_iterations), state)

    def quick(state: Search, ncp: NCP, eps, inner, rounding) -> tuple[Search, Bool[Array, ""]]:
        state = among_nearest(ncp, state, eps, Limits(inner, rounding, limits.accuracy), max_iterations)
        return state, ~state.ended

    given = ncp, eps, limits.inner, limits.rounding
    # Members of a batch whose sweeps come next are by themselves: these take far longer than Newton's method.
    place = lambda state: state.turn  # noqa: E731
    always, state = jnp.ones((), bool), begun(ncp, start, eps)
    return cond_one_at_a_time(always, to_its_end, state, *given, quick=quick, part=attempt, place=place)


def _on_a_cpu(climb: Callable[[Search], Search], state: Search) -> Search:
    """The last stage, where there is one: the core is built, and takes double precision."""
    if not native.available() or state.current.dtype != jnp.float64:
        return state
    return jax.lax.platform_dependent(state, cpu=climb, default=lambda state: state) if accelerated() else climb(state)


def _by_the_core(state: Search, ncp: NCP, eps, accuracy: float, max_iterations: int) -> Search:
    """The state, where it is not solved, with the solution of the compiled solver."""

    def climbed(state: Search) -> Search:
        zero = jnp.zeros_like(state.current)
        problem = jax.lax.stop_gradient((ncp.G, ncp.g, ncp.mu, ncp.exists, ncp.bound, zero))
        impulses, *_, counts = solve_contacts(*(x[None] for x in problem), tol=accuracy, max_iterations=max_iterations)
        impulse, more, status = impulses[0], counts[0, 0], counts[0, 2]
        modes, inverse = regularised_modes(ncp, impulse, eps), regularised_inverse(ncp, impulse, eps)
        found = Candidate(impulse, _judged(ncp, impulse, accuracy), inverse, modes)
        return dataclasses.replace(
            state,
            best=_better(found, state.best, False),
            current=impulse,
            iterations=state.iterations + more,
            stage=jnp.full_like(state.stage, Stage.PATH),
            infeasible=status == STATUSES.index("infeasible"),
        )

    return cond_in_batch(~(state.best.residual <= accuracy), climbed, state)


def _judged(ncp: NCP, lam, accuracy) -> Float[Array, ""]:
    """The relative residual; that of no impulse at all where rounding alone says that `lam` solves the problem."""
    size = residual(ncp, lam, accuracy)
    return jnp.where((size <= accuracy) & ~solves(ncp, lam, size, accuracy), 1.0, size)


def among_nearest(ncp: NCP, state: Search, eps: Float[Array, ""], limits: Limits, max_iterations: int) -> Search:
    """The search ended where a few iterations on the nearest half of the contacts and limits solve the whole problem, else as it
    was. What is far opens by itself, and most states need no more."""
    near, rows = nearest(ncp)
    count, nothing = min(QUICK_ITERATIONS, max_iterations), jnp.zeros_like(state.current)
    current, iterations, converged = newton_regularised(near, state.current[rows], eps, limits.inner, count)
    inverse = regularised_inverse(near, current, eps)
    impulse = nothing.at[rows].set(refine(near, current, inverse, limits.rounding))
    inverse = jnp.eye(len(nothing), dtype=nothing.dtype).at[rows[:, None], rows].set(inverse)
    current = nothing.at[rows].set(current)
    within, scalars = jnp.zeros(len(nothing), bool).at[rows].set(True), 3 * ncp.nc + np.arange(ncp.nl)
    among = jnp.concatenate([within[: 3 * ncp.nc : 3], within[scalars]])
    modes = regularised_modes(dataclasses.replace(ncp, exists=ncp.exists & among), current, eps)
    found = Candidate(impulse, _judged(ncp, impulse, limits.accuracy), inverse, modes)
    ended = converged & (found.residual <= limits.accuracy)
    solved = dataclasses.replace(state, best=found, current=current, iterations=iterations, ended=ended)
    return jax.tree.map(lambda new, old: jnp.where(ended, new, old), solved, state)


def _after_sweeps(ncp: NCP, state: Search, eps, max_pivots: int) -> Search:
    """The state at the beginning of a round with the result of its sweeps, from where those of the round before ended; with box
    friction that of Lemke's method."""
    sweeping = state.turn > 0
    if ncp.cone == "box":
        weak = _weakened(ncp, state, eps)
        pivoted = cond_in_batch(sweeping, lambda x: lemke(ncp, weak, max_pivots)[0], state.current)
        return dataclasses.replace(state, current=pivoted)
    regularised = dataclasses.replace(ncp, G=ncp.G + eps * jnp.eye(len(state.swept), dtype=eps.dtype))
    swept = cond_in_batch(sweeping, lambda x: gauss_seidel(regularised, jnp.ones_like(ncp.mu), SWEEPS, start=x), state.swept)
    return dataclasses.replace(state, current=jnp.where(sweeping, swept, state.current), swept=swept)


def _weakened(ncp: NCP, state: Search, eps):
    """eps of the attempt: smaller in every solution by Lemke's method."""
    return eps * WEAKER ** jnp.maximum(state.turn - 1, 0).astype(eps.dtype) if ncp.cone == "box" else eps


def _attempt(ncp: NCP, state: Search, eps, limits: Limits, max_iterations: int) -> Search:
    """One attempt by Newton from `state.current`, and what follows from it."""
    weak = _weakened(ncp, state, eps)
    current, more, converged = newton_regularised(ncp, state.current, weak, limits.inner, max_iterations)
    # The last Newton step may have changed the modes: the inverse is formed anew where it ended.
    inverse, modes = regularised_inverse(ncp, current, weak), regularised_modes(ncp, current, weak)
    refined = refine(ncp, current, inverse, limits.rounding)
    left = residual(ncp, refined, limits.accuracy) > limits.accuracy
    refined = cond_in_batch(left, lambda x: newton_of_rank(ncp, x, limits.rounding), refined)
    if ncp.cone == "box":
        inverse = regularised_inverse(ncp, current, eps, weak)
    found = Candidate(refined, _judged(ncp, refined, limits.accuracy), inverse, modes)
    # Of an attempt that has not converged a solution does not end the search: which of many it is depends on the start.
    solved = converged & (found.residual <= limits.accuracy)
    best = _better(found, state.best, solved)
    ended = (solved if ncp.cone == "box" else converged) | (state.turn == ROUNDS)
    return dataclasses.replace(
        state,
        best=best,
        current=current,
        iterations=state.iterations + more,
        turn=jnp.where(ended, state.turn, state.turn + 1),
        stage=jnp.where(ended, state.stage, int(Stage.GAUSS_SEIDEL)),
        ended=ended,
    )


def _better(found: Candidate, best: Candidate, solved) -> Candidate:
    """`found` where it is `solved` or has the smaller residual; NaN, of the impulse or of the inverse, is kept for want of
    anything else."""
    usable = jnp.isfinite(found.residual) & jnp.isfinite(found.inverse).all()
    better = solved | (usable & (found.residual < best.residual)) | ~jnp.isfinite(best.residual)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)
