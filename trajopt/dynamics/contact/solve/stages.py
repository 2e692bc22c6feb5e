r"""The search for a solution of the contact problem in stages, each only where the one before did not converge.

`NEWTON`        semismooth Newton on the regularised problem, from the given start
`CONTINUATION`  the same with eps (relative) falling from 1 to its final value, each turn started from the last
`GAUSS_SEIDEL`  projected Gauss-Seidel on the regularised problem, then Newton from its result, in rounds
`ADMM`          ADMM on the regularised problem, then Newton from its result
`SCATTERED`     Newton from random impulses of the size that stops the approach, or from what holds the contacts in random modes,
                always the same ones; every other turn with the weakest regularisation. Where a foot's pressure from the side
                lifts it (mu |G_tn| > G_nn) the merit has local minima around the solution, which no path from zero leaves; one
                start in five to ten reaches it

A stage has one or more turns (`TURNS`), a turn one or more attempts by Newton, each in one of three phases:

fresh           from the start that the stage gives it
restarted       Newton stalled: again from where the first mode changes on the way of its next step (at most `RESTARTS` times)
weakened        the regularised problem is solved, but its modes leave a residual, because eps lambda hid that a contact opens or
                slips: again with a weaker regularisation, eps (lambda - last solution), down to eps / 10^WEAKEST (a proximal
                point method, which needs no vanishing eps), from where the first mode changes on the way there, and with rho as
                much larger: the slip is that much smaller than the impulses, and lambda - rho nu has to tell its direction

The search ends with the first problem that is solved, or with the proof that nothing solves it, sliding or not. Every attempt is
freed of the regularisation by iterative refinement, and the one with the least residual is kept.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, Modes, approach_scale, nearest, project, residual, split
from trajopt.dynamics.contact.solve.admm import admm
from trajopt.dynamics.contact.solve.conditional import cond_in_batch, cond_one_at_a_time
from trajopt.dynamics.contact.solve.infeasibility import Proof, proof, refuted
from trajopt.dynamics.contact.solve.newton import (
    newton_regularised,
    past_first_event,
    refine,
    regularised_inverse,
    regularised_modes,
)
from trajopt.dynamics.contact.solve.pgs import pgs
from trajopt.dynamics.precision import Threshold


class Stage(enum.IntEnum):
    """The stages in their order; `NCPSolution.fallbacks` is the last one that ran."""

    NEWTON = 0
    CONTINUATION = 1
    GAUSS_SEIDEL = 2
    ADMM = 3
    SCATTERED = 4


CONTINUATION = 6  # powers of ten from a regularisation as large as G to the final one, 1e-6 (`newton.REGULARISATION`)
ROUNDS = 3  # of Gauss-Seidel and Newton in turn
STARTS = 300  # scattered ones; of recorded failures the hardest was solved from 7 of 100, of 8,192 states of H1 one by the 200th
BUDGET = 2000  # iterations of Newton, all attempts together, with which the search ends; as in native/contact_solve.h
STARTS_TO_PART = 20  # of them where contacts cannot rest: few problems of this kind have a solution
SCATTER = 10.0  # factor up and down by which their normal impulses differ from those that stop each contact by itself
CLOSED, SLIDES = 0.6, 0.7  # shares of the contacts in random modes that are closed, and of these that slide
TURNS = {
    Stage.NEWTON: 1,
    Stage.CONTINUATION: CONTINUATION + 1,
    Stage.GAUSS_SEIDEL: ROUNDS,
    Stage.ADMM: 1,
    Stage.SCATTERED: STARTS,
}
SWEEPS = 300  # of Gauss-Seidel in a round: some ten times what neighbours of neighbours need to hear of each other
# Gauss-Seidel and ADMM hand over here, relative to the velocities of the problem: near enough for Newton to tell the modes.
COARSE = Threshold(1e-6, 1e-4)
RESTARTS = 6  # past the first change of a mode, within one turn: as many contacts as may change theirs one after another
WEAKENINGS = 8  # turns with a weaker regularisation
WEAKEST = Threshold(4.0, 2.0)  # power of ten by which it is weaker at most: above rounding, G + eps I is regular
QUICK_ITERATIONS = 4  # of Newton in which a batch in lockstep ends for most
WEAKENINGS_SCATTERED = 2  # of a scattered turn: another start is worth more than many steps from this one
CLOSER = 1e-2  # share of the least residual that a weaker regularisation has to reach to be preferred: what rounding cannot do


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
    eps: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
    """Where the search stands.

    best: the attempt of least residual; current (m,): where the next attempt starts; anchor (m,): the last solution of a
    regularised problem; swept (m,): where Gauss-Seidel stands; iterations of Newton; stage, and turn within it; weakenings and
    restarts within the turn; proof: the strongest `Proof` that there is no solution; ended: the problem is solved, or nothing is
    left to try.
    """

    best: Candidate
    current: Float[Array, " m"]
    anchor: Float[Array, " m"]
    swept: Float[Array, " m"]
    iterations: Int[Array, ""]
    stage: Int[Array, ""]
    turn: Int[Array, ""]
    weakenings: Int[Array, ""]
    restarts: Int[Array, ""]
    proof: Int[Array, ""]
    ended: Bool[Array, ""]

    @property
    def fresh(self) -> Bool[Array, ""]:
        return (self.weakenings == 0) & (self.restarts == 0)

    @property
    def weakened(self) -> Bool[Array, ""]:
        return self.weakenings > 0

    @property
    def deep(self) -> Bool[Array, ""]:
        """On a scattered turn with the weakest regularisation."""
        return (self.stage == int(Stage.SCATTERED)) & (self.turn % 2 == 1)

    @property
    def relaxed(self) -> Bool[Array, ""]:
        """On the way of the continuation: what is solved is not yet the problem."""
        return (self.stage == int(Stage.CONTINUATION)) & (self.turn < CONTINUATION)


def search(ncp: NCP, start: Float[Array, " m"], eps: Float[Array, ""], limits: Limits, max_iterations: int) -> Search:
    """The search from the impulse `start`, ended; in a batch, on a CPU, one search after another."""
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    infinity, identity = jnp.full((), jnp.inf, start.dtype), jnp.eye(start.shape[0], dtype=start.dtype)
    nothing = Candidate(start, infinity, identity, regularised_modes(ncp, start, eps), eps)
    begun = Search(nothing, start, start, jnp.zeros_like(start), zero, zero, zero, zero, zero, zero, no)

    def attempt(state: Search, ncp: NCP, eps, inner, rounding) -> tuple[Search, Bool[Array, ""]]:
        state = _begin_turn(ncp, state, eps, max_iterations)
        state = _attempt(ncp, state, eps, Limits(inner, rounding, limits.accuracy), max_iterations)
        return state, ~state.ended

    def to_its_end(state: Search, *given) -> Search:
        return jax.lax.while_loop(lambda state: ~state.ended, lambda state: attempt(state, *given)[0], state)

    def quick(state: Search, ncp: NCP, eps, inner, rounding) -> tuple[Search, Bool[Array, ""]]:
        begun = among_nearest(ncp, state, eps, Limits(inner, rounding, limits.accuracy), max_iterations)
        return begun, ~begun.ended

    given = ncp, eps, limits.inner, limits.rounding
    return cond_one_at_a_time(~no, to_its_end, begun, *given, quick=quick, part=attempt, place=_place)


def _place(state: Search) -> Int[Array, ""]:
    """Where a search stands among those of a batch: the stage; of Gauss-Seidel, whose sweeps take far longer than Newton's
    method, each turn's sweeps and what follows them by themselves."""
    part = 2 * state.turn + jnp.where(state.fresh, 0, 1)
    return 2 * ROUNDS * state.stage + jnp.where(state.stage == int(Stage.GAUSS_SEIDEL), part, 0)


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
    size, _ = _residual(ncp, impulse, limits, state.proof)
    found = Candidate(impulse, size, inverse, modes, eps)
    ended = converged & (found.residual <= limits.accuracy)
    solved = dataclasses.replace(
        state, best=found, current=current, anchor=current, iterations=iterations, ended=ended
    )
    return jax.tree.map(lambda new, old: jnp.where(ended, new, old), solved, state)


def _begin_turn(ncp: NCP, state: Search, eps, max_iterations: int) -> Search:
    """The state with the start of a fresh turn: zero for the first of the continuation, Gauss-Seidel's result, or ADMM's."""
    fresh, coarse = state.fresh, COARSE.at(ncp.g.dtype)
    anew = fresh & (state.stage == int(Stage.CONTINUATION)) & (state.turn == 0)
    current = jnp.where(anew, jnp.zeros_like(state.current), state.current)
    sweeping = fresh & (state.stage == int(Stage.GAUSS_SEIDEL))
    tolerance = coarse * approach_scale(ncp, state.best.impulse)
    swept = cond_in_batch(sweeping, lambda x: pgs(ncp, x, eps, tolerance, SWEEPS)[0], state.swept)
    current = jnp.where(sweeping, swept, current)
    splitting = fresh & (state.stage == int(Stage.ADMM))
    start = state.best.impulse
    current = cond_in_batch(splitting, lambda _: admm(ncp, start, eps, coarse, 40 * max_iterations)[0], current)
    scattered = fresh & (state.stage == int(Stage.SCATTERED))
    current = cond_in_batch(scattered, lambda _: _scattered(ncp, state.turn, eps), current)
    return dataclasses.replace(state, current=current, swept=swept)


def _scattered(ncp: NCP, turn, eps) -> Float[Array, " m"]:
    """Where Newton begins in a turn, from random impulses or in random modes, two turns each; the same for the same turn."""
    draws = jax.random.uniform(jax.random.fold_in(jax.random.key(0), turn), (4, ncp.nc), ncp.g.dtype)
    angle = 2.0 * jnp.pi * draws[2]
    way = jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
    in_modes = _in_random_modes(ncp, way, draws[3] < CLOSED, draws[0] < SLIDES, eps)
    return jnp.where(turn // 2 % 2 == 0, in_modes, _random_impulses(ncp, way, draws))


def _random_impulses(ncp: NCP, way, draws) -> Float[Array, " m"]:
    """An impulse for every contact that approaches, its friction along `way` (nc, 2): inside the cone or, one in three, on it."""
    nc, dtype = ncp.nc, ncp.g.dtype
    cone, _, _ = split(ncp, ncp.g)
    stops = jnp.where(ncp.exists[:nc], jnp.maximum(-cone[:, 2], 0.0) * split(ncp, ncp.rho)[0][:, 2], 0.0)
    normal = stops * jnp.asarray(SCATTER, dtype) ** (2.0 * draws[0] - 1.0)
    radius = ncp.mu * normal * jnp.minimum(1.5 * draws[1], 1.0)
    contacts = jnp.concatenate([radius[:, None] * way, normal[:, None]], -1).reshape(3 * nc)
    return jnp.concatenate([contacts, jnp.zeros_like(ncp.g[3 * nc :])])


def _in_random_modes(ncp: NCP, way, closed, slides, eps) -> Float[Array, " m"]:
    """What holds the contacts `closed` (nc,) still with G + eps I, or of those that slide their normals, their friction being mu
    times as large along `way` (nc, 2); into the cones. However large the impulses of a solution, its modes lead there."""
    nc, m, dtype = ncp.nc, len(ncp.g), ncp.g.dtype
    closed = closed & ncp.exists[:nc]
    slides = closed & slides
    sticks = closed & ~slides
    held = jnp.concatenate([jnp.stack([sticks, sticks, closed], -1).reshape(-1), jnp.zeros(m - 3 * nc, bool)])
    eye, normal = jnp.eye(m, dtype=dtype), 3 * np.arange(nc) + 2
    K = jnp.where(held[:, None], ncp.G + eps * eye, eye)
    friction = jnp.where(slides[:, None], ncp.mu[:, None] * way, 0.0)
    K = K.at[normal - 2, normal].add(-friction[:, 0]).at[normal - 1, normal].add(-friction[:, 1])
    return project(ncp, linear_algebra.inverse(K) @ jnp.where(held, -ncp.g, 0.0))


def _attempt(ncp: NCP, state: Search, eps, limits: Limits, max_iterations: int) -> Search:
    """One attempt by Newton, from `state.current` or just past the first change of a mode, and what follows from it."""
    weakened, relaxed = state.weakened, state.relaxed
    weakest, dtype = WEAKEST.at(eps.dtype), eps.dtype
    weaker = jnp.where(state.deep, weakest, jnp.minimum(state.weakenings.astype(dtype), weakest))
    exponent = jnp.where(relaxed, (CONTINUATION - state.turn).astype(dtype), -weaker)
    weight = eps * jnp.asarray(10.0, dtype) ** exponent
    centred = dataclasses.replace(ncp, g=ncp.g - jnp.where(weakened, weight, 0.0) * state.anchor)
    stretch = jnp.where(weakened, eps / weight, 1.0)
    start = cond_in_batch(~state.fresh, lambda x: past_first_event(centred, x, weight, stretch), state.current)
    current, more, converged = newton_regularised(
        centred, start, weight, limits.inner, max_iterations, stretch, ~weakened
    )
    # The last Newton step may have changed the modes: the inverse is formed anew where it ended.
    inverse = regularised_inverse(centred, current, weight)
    refined = refine(ncp, current, inverse, limits.rounding)
    modes = regularised_modes(centred, current, weight)
    size, proven = _residual(ncp, refined, limits, state.proof)
    found = Candidate(refined, size, inverse, modes, weight)
    best = _better(state, found, converged, limits.accuracy)
    state = dataclasses.replace(state, best=best, current=current, iterations=state.iterations + more, proof=proven)
    violated = ~(best.residual <= limits.accuracy)
    return _following(ncp, state, converged, violated)


def _residual(ncp: NCP, lam, limits: Limits, proven) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The relative residual, as large as that of no impulse where `lam` seems to solve the problem and is `refuted`; and the
    strongest `Proof`, `proven` being that before."""
    size = residual(ncp, lam, limits.accuracy)
    against = (size <= limits.accuracy) & refuted(ncp, lam, True, proven)
    holds = jnp.where(against, int(Proof.NOTHING_HOLDS), int(Proof.NONE)).astype(proven.dtype)
    return jnp.where(against, jnp.ones_like(size), size), jnp.maximum(proven, holds)


def _better(state: Search, found: Candidate, converged, accuracy) -> Candidate:
    """`found` where it beats the best candidate so far.

    converged: it comes from the solution of the regularised problem, which does not depend on where Newton began.
    """
    lowest = state.best.residual
    # NaN, of the impulse or of the inverse, is kept only for want of anything else.
    usable = jnp.isfinite(found.residual) & jnp.isfinite(found.inverse).all()
    better = ~state.relaxed & ~(found.residual >= lowest) & (usable | ~jnp.isfinite(lowest))
    better = better & (~state.weakened | (found.residual <= jnp.maximum(accuracy, CLOSER * lowest)))
    better = better | (converged & ~state.relaxed & ~state.weakened & (found.residual <= accuracy) & usable)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, state.best)


def _following(ncp: NCP, state: Search, converged, violated) -> Search:
    """The state of the next attempt; converged: the regularised problem is solved; violated: no attempt solves the problem."""
    reached = converged & ~state.relaxed
    # Gauss-Seidel and ADMM have their own next start.
    restart = ~converged & ((state.stage <= int(Stage.CONTINUATION)) | state.weakened) & (state.restarts < RESTARTS)
    # A weaker problem that stays unsolved is passed over: the next one is begun where the last solved one ended.
    anchor = jnp.where(converged, state.current, state.anchor)
    current = jnp.where(restart | ~state.weakened, state.current, anchor)
    most = jnp.where(state.stage == int(Stage.SCATTERED), WEAKENINGS_SCATTERED, WEAKENINGS)
    weaken = (reached | (state.weakened & ~restart)) & violated & (state.weakenings < most)
    stays = weaken | restart
    solved = (reached | state.weakened) & ~violated
    turns = jnp.asarray(np.array([TURNS[stage] for stage in Stage], np.int32))[state.stage]
    turns = jnp.where(state.proof == int(Proof.NONE), turns, jnp.minimum(turns, STARTS_TO_PART))
    next_stage = ~stays & (state.turn + 1 >= turns)
    spent = state.iterations >= BUDGET
    asked = (next_stage | spent) & violated
    unsolved = jnp.zeros((), bool)
    proven = cond_in_batch(asked, lambda x: jnp.maximum(x, proof(ncp, state.best.impulse, unsolved)), state.proof)
    exhausted = next_stage & ((state.stage == int(max(Stage))) | (proven == int(Proof.NOTHING_HELPS)))
    advance = ~stays & ~solved & ~exhausted
    return dataclasses.replace(
        state,
        anchor=anchor,
        current=current,
        stage=jnp.where(advance & next_stage, state.stage + 1, state.stage),
        turn=jnp.where(advance, jnp.where(next_stage, 0, state.turn + 1), state.turn),
        weakenings=jnp.where(weaken, state.weakenings + 1, jnp.where(restart, state.weakenings, 0)),
        restarts=jnp.where(restart, state.restarts + 1, 0),
        proof=proven,
        ended=solved | exhausted | spent,
    )
