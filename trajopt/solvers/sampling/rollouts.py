"""All rollouts of a generation, and what they are worth, by one compiled program.

A candidate's merit is its cost plus the augmented Lagrangian of its constraints (`augmented_lagrangian`), infinite where
anything along the motion is not finite or a contact solve has failed: a search finds and exploits steps that were not solved.
Problems of the same structure, which may differ in the numbers of their `System` (masses, friction), share one program.

`chunk` cuts a generation into batches of that size, one after the other, for memory. A chunk of one is not batched at all:
with hard contact, a batched step of the JAX implementation does for every motion whatever any of them needs, rare fallbacks of
the contact solver included, which on a CPU costs more than batching gains. There it is the default where contact laws at velocity
level have contacts or stops, `SLICE` motions in a call; everything else is one batch, that of the compiled core spread over the
processor's threads. A generation ends between two calls when the run is out of time.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.system import System
from trajopt.problems.expansions import advance, needs_steps
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.programs import subject
from trajopt.problems.trajectory import Trajectory
from trajopt.solvers.sampling.parametrisation import (
    Data,
    Space,
    decode,
    decode_targets,
    follow_controls,
    follow_targets,
)
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints, Multipliers, term

SLICE = 16  # motions of a call that takes them one by one
UNSOLVED = 1e-4  # least residual of a contact solve that has failed, in single precision too: ten times its tolerance


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a generation of P candidates is worth.

    merit, cost, violation (P,); arrival (P, k): terminal equality rows; best: index of the candidate with the least
    violation beyond the problem's tolerance, then the lowest cost, and motion: its motion; rows:
    constraint rows (T, m), (k,) of the first two candidates; bad_step: first step of the first candidate where something is not
    finite; rated: how many were rolled out before time was up, the merits of the others are infinite.
    """

    merit: np.ndarray
    cost: np.ndarray
    violation: np.ndarray
    arrival: np.ndarray
    best: int
    motion: Trajectory
    rows: list[tuple[np.ndarray, np.ndarray]]
    bad_step: int
    rated: int


@dataclasses.dataclass(frozen=True)
class Generation:
    """Draws y (P, d) with merits (P,), infinite where not finite, about a mean with its own merit."""

    y: np.ndarray
    merit: np.ndarray
    mean_merit: float

    @property
    def finite(self) -> Int[np.ndarray, " k"]:
        """Indices of the draws that count, best first; equal merits in the order they were drawn."""
        order = np.argsort(self.merit, kind="stable")
        return order[np.isfinite(self.merit[order])]


def score(
    oracle: OptimalControlOracle,
    space: Space,
    y: Float[np.ndarray, "P d"],
    multipliers: Multipliers,
    chunk: int | None = None,
    patient: bool = False,
) -> Scores:
    """Roll out and rate the candidates y (P, d); patient: all of them, whatever time it is. The first batch always is."""
    problem, total = oracle.problem, len(y)
    size, one_by_one = batch_size(problem, chunk, total)
    found = list[Any]()
    for start in range(0, total, size):
        if found and not patient and oracle.out_of_time():
            break
        found.append(rated_batch(oracle, space, y, multipliers, start, size, one_by_one))
        oracle.evaluations += min(size, total - start)
    rated = min(total, size * len(found))
    merit, cost, largest, arrival = (np.concatenate(parts)[:rated] for parts in list(zip(*found, strict=True))[:4])
    leaders = np.array([size * k + int(batch[4]) for k, batch in enumerate(found)])
    winner = best_batch(largest[leaders], cost[leaders], problem.tolerance)
    rows, bad = found[0][6:]
    rest = total - rated
    return Scores(
        merit=np.pad(merit, (0, rest), constant_values=np.inf),
        cost=np.pad(cost, (0, rest), constant_values=np.inf),
        violation=np.pad(largest, (0, rest), constant_values=np.inf),
        arrival=np.pad(arrival, ((0, rest), (0, 0))),
        best=int(leaders[winner]),
        motion=found[winner][5],
        rows=[(rows[0][i], rows[1][i]) for i in range(2)],
        bad_step=int(bad[0]),
        rated=rated,
    )


def rated_batch(
    oracle: OptimalControlOracle,
    space: Space,
    y: Float[np.ndarray, "P d"],
    multipliers: Multipliers,
    start: int,
    size: int,
    one_by_one: bool,
) -> tuple:
    """What `GenerationProgram.rate` says of the `size` candidates from `start` on; what the last batch lacks is filled up."""
    problem = oracle.problem
    program = GenerationProgram(problem, one_by_one)
    batch = y[start : start + size].astype(problem.dtype)
    padded = np.concatenate([batch, np.repeat(batch[:1], size - len(batch), 0)])
    arguments = (space.data, padded, multipliers, np.asarray(len(batch)))
    return jax.tree.map(np.asarray, oracle.call(GenerationProgram.rate, program, *arguments))


def best_batch(violation: Float[np.ndarray, " k"], cost: Float[np.ndarray, " k"], tolerance: float) -> int:
    """Which batch has the best leader: least violation beyond the tolerance, then least cost; a motion that is not
    finite has an infinite violation."""
    excess = np.maximum(violation, tolerance)
    return min(range(len(cost)), key=lambda k: (excess[k], cost[k]))


def batch_size(problem: OptimalControlProblem, chunk: int | None, total: int) -> tuple[int, bool]:
    """Motions in a call, and whether they are taken one by one: with hard contact solved by JAX on a CPU, unless `chunk` says
    otherwise."""
    system = problem.system
    hard = system is not None and _solves_contacts(system) and system.resolved_backend == "jax"
    if chunk == 1 or (chunk is None and hard and jax.default_backend() == "cpu"):
        return SLICE, True
    return (total if chunk is None else min(chunk, total)), False


def _solves_contacts(system: System) -> bool:
    """Whether a step solves for impulses; under `NoContact`, or of a robot that touches nothing and has no stops, it does not."""
    return system.contact.solves_impulses and row_count(system.contact, system.model) > 0


@subject("problem")
@dataclasses.dataclass(frozen=True)
class GenerationProgram:
    """The function that rates candidates of one problem.

    one_by_one: whether motions are rolled out one after the other, in place of one batch.
    """

    problem: OptimalControlProblem
    one_by_one: bool

    def rate(self, data: Data, y: Float[Array, "P d"], multipliers: Multipliers, count: Int[Array, ""]) -> tuple:
        """Merit, cost, violation and terminal equalities of the candidates y (size, d), of which the first `count` are meant; the
        best one and its motion; rows and first bad steps of the first two. data: the arrays of the search space.
        """
        problem = self.problem

        def rate(y: Array) -> tuple:
            return self.candidate(problem, data, y, multipliers)

        counts = jnp.arange(len(y)) < count
        if self.one_by_one:
            blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(rate, y[0]))
            found = jax.lax.map(lambda row: jax.lax.cond(row[0], rate, lambda _: blank, row[1]), (counts, y))
        else:
            found = jax.vmap(rate)(y)
        merit, cost, largest, arrival, motion, rows, bad = found
        cost, largest = (jnp.where(counts, a, jnp.inf) for a in (cost, largest))
        excess = jnp.maximum(largest, jnp.asarray(problem.tolerance, largest.dtype))
        best = jnp.argmin(jnp.where(excess == excess.min(), jnp.where(counts, cost, jnp.inf), jnp.inf))
        motion = jax.tree.map(lambda a: a[best], motion)
        return merit, cost, largest, arrival, best, motion, jax.tree.map(lambda a: a[:2], rows), bad[:2]

    def candidate(
        self, problem: OptimalControlProblem, data: Data, y: Float[Array, " d"], multipliers: Multipliers
    ) -> tuple:
        """Merit, cost, violation, terminal equalities, motion, rows and first bad step of one candidate."""
        constraints = Constraints(problem)
        at_stage, at_end = constraints.inequality()
        motion, costs, rows, solved = (self.targeted if "stiffness" in data else self.driven)(problem, data, y)
        xs, p, T = motion.xs, motion.p, problem.horizon
        held = jax.vmap(lambda c, y, w: term(y, w, c, at_stage))
        values = costs + held(rows, multipliers.stage, multipliers.stage_penalty)
        finite = solved & jnp.isfinite(jnp.concatenate([xs[1:], rows, values[:, None]], 1)).all(1)
        end, prior = constraints.terminal(xs[-1], p), problem.prior_residual(xs[0], p)
        final = problem.final_cost(xs[-1], p) + 0.5 * jnp.vdot(prior, prior)
        last = term(multipliers.terminal, multipliers.terminal_penalty, end, at_end)
        finite = jnp.append(finite, jnp.isfinite(final + last))
        largest = constraints.violation((rows, end))
        good = finite.all()
        infinite = lambda value: jnp.where(good, value, jnp.inf)  # noqa: E731
        bad = jnp.where(good, T + 1, jnp.argmin(finite))
        merit, cost = jnp.sum(values) + final + last, jnp.sum(costs) + final
        return infinite(merit), infinite(cost), infinite(largest), end[: int(np.sum(~at_end))], motion, (rows, end), bad

    def driven(
        self, problem: OptimalControlProblem, data: Data, y: Float[Array, " d"]
    ) -> tuple[Trajectory, Float[Array, " T"], Float[Array, "T m"], Bool[Array, " T"]]:
        """(motion, stage costs, constraint rows, which steps were solved) under the controls of a candidate."""
        constraints = Constraints(problem)
        x0, us, p = decode(problem, data, y)
        if _in_one_call(problem):
            return self.along(problem, *follow_controls(problem, problem.system_at(p), x0, us), p)

        def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
            u, t = inputs
            x_next, cost, residual = advance(problem, x, u, t, p)
            return x_next, (x, cost, constraints.stage(x, u, t, p), _solved(problem, residual))

        last, (xs, costs, rows, solved) = jax.lax.scan(body, x0, (us, jnp.asarray(problem.times[:-1])))
        return Trajectory(jnp.concatenate([xs, last[None]]), us, p), costs, rows, solved

    def targeted(
        self, problem: OptimalControlProblem, data: Data, y: Float[Array, " d"]
    ) -> tuple[Trajectory, Float[Array, " T"], Float[Array, "T m"], Bool[Array, " T"]]:
        """The same of joints that follow the targets of a candidate: the whole motion in one call of the compiled core."""
        x0, qs, p = decode_targets(problem, data, y)
        return self.along(problem, *follow_targets(problem, problem.system_at(p), data, x0, qs), p)

    def along(
        self,
        problem: OptimalControlProblem,
        xs: Float[Array, "T1 nx"],
        us: Float[Array, "T nu"],
        residual: Float[Array, " T"],
        p: Float[Array, " np"],
    ) -> tuple[Trajectory, Float[Array, " T"], Float[Array, "T m"], Bool[Array, " T"]]:
        """The same of a motion and the residuals of its contact solves."""
        constraints = Constraints(problem)
        stages = xs[:-1], us, jnp.asarray(problem.times[:-1])
        costs = jax.vmap(lambda x, u, t: problem.running_cost(x, u, t, p))(*stages)
        rows = jax.vmap(lambda x, u, t: constraints.stage(x, u, t, p))(*stages)
        return Trajectory(xs, us, p), costs, rows, _solved(problem, residual)


def _in_one_call(problem: OptimalControlProblem) -> bool:
    """Whether a motion is one call of the compiled core, its costs another: nothing else happens along it."""
    system = problem.system
    if system is None or needs_steps(problem) or system.resolved_backend != "native":
        return False
    return system.contact.contact_state_shape(system.model) is None


def _solved(problem: OptimalControlProblem, residual: Float[Array, "*b"]) -> Bool[Array, "*b"]:
    """Whether the contact solves with these residuals have found a solution."""
    return residual <= max(problem.tolerance, UNSOLVED)
