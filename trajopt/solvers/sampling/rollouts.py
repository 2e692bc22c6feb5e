"""All rollouts of a generation, and what they are worth, by one compiled program.

A candidate's merit is its cost plus the augmented Lagrangian of its constraints (`augmented_lagrangian`), infinite where
anything along the motion is not finite. Programs are kept across solves: problems that share their functions, sizes and
bounds, but not the numbers of their `System` (masses, friction), share one.

`chunk` cuts a generation into batches of that size, one after the other, for memory. A chunk of one is not batched at all:
with hard contact, a batched step does for every motion whatever any of them needs, rare fallbacks of the contact solver
included, which on a CPU costs more than batching gains. There it is the default where contact laws at velocity level have
contacts or stops, `SLICE` motions in a call; everything else is one batch. A generation ends between two calls when the run is
out of time.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.law import ContactLaw
from trajopt.dynamics.system import System
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import CONSTRAINTS, Trajectory
from trajopt.problems.transcription import OptimalControlOracle
from trajopt.solvers.augmented_lagrangian import Constraints, Multipliers, term, violation
from trajopt.solvers.sampling.parametrization import Space, decode

KEPT_PROGRAMS = 32
SLICE = 16  # motions of a call that takes them one by one
_FUNCTIONS = (
    "stage_residual", "stage_cost", "terminal_residual", "terminal_cost", "initial_residual", "parameter_residual",
    "parametrize", "integrate", "difference", *CONSTRAINTS,
)  # fmt: skip
_ARRAYS = ("control_lower", "control_upper", "state_lower", "state_upper", "parameter_lower", "parameter_upper")
_programs: OrderedDict[tuple, Any] = OrderedDict()


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a generation of P candidates is worth.

    merit, cost, violation (P,); arrival (P, k): terminal equality rows; best: index of the candidate with the least
    violation beyond the problem's tolerance, then the lowest cost, and motion: its motion; rows: constraint rows (T, m),
    (k,) of the first two candidates; bad_step: first step of the first candidate where something is not finite; rated: how
    many were rolled out before time was up, the merits of the others are infinite.
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


def score(
    oracle: OptimalControlOracle,
    space: Space,
    y: np.ndarray,
    multipliers: Multipliers,
    chunk: int | None = None,
    patient: bool = False,
) -> Scores:
    """Roll out and rate the candidates y (P, d); patient: all of them, whatever time it is. The first batch always is."""
    problem, total = oracle.problem, len(y)
    size, one_by_one = batch_size(problem, chunk, total)
    y, found = y.astype(problem.dtype), list[Any]()
    for start in range(0, total, size):
        if found and not patient and oracle.out_of_time():
            break
        batch = y[start : start + size]
        padded = np.concatenate([batch, np.repeat(batch[:1], size - len(batch), 0)])
        arguments = (problem.system, space.data, padded, multipliers, np.asarray(len(batch)))
        found.append(jax.tree.map(np.asarray, _call(oracle, one_by_one, *arguments)))
        oracle.evaluations += len(batch)
    rated = min(total, size * len(found))
    merit, cost, largest, arrival = (np.concatenate(parts)[:rated] for parts in list(zip(*found, strict=True))[:4])
    leaders = np.array([size * k + int(batch[4]) for k, batch in enumerate(found)])
    # Lexicographic among the leaders of the batches; a motion that is not finite has an infinite violation.
    excess = np.maximum(largest[leaders], problem.tolerance)
    winner = min(range(len(found)), key=lambda k: (excess[k], cost[leaders[k]]))
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


def batch_size(problem: OptimalControlProblem, chunk: int | None, total: int) -> tuple[int, bool]:
    """Motions in a call, and whether they are taken one by one: with hard contact on a CPU, unless `chunk` says otherwise."""
    hard = problem.system is not None and _solves_contacts(problem.system)
    if chunk == 1 or (chunk is None and hard and jax.default_backend() == "cpu"):
        return SLICE, True
    return (total if chunk is None else min(chunk, total)), False


def _solves_contacts(system: System) -> bool:
    """Whether a step solves for impulses; under `NoContact`, or of a robot that touches nothing and has no stops, it does not."""
    law, model = system.contact, system.model
    if not isinstance(law, ContactLaw):
        return False
    dry = law.joint_friction and bool(model.topology.friction_dofs)
    return dry or law.contact_rows(model) + law.limit_rows(model) > 0


def _call(oracle: OptimalControlOracle, one_by_one: bool, *arguments: Any) -> Any:
    arguments = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.asarray(a), arguments)
    leaves, structure = jax.tree.flatten(arguments)
    key = (signature(oracle.problem), one_by_one, structure, *((a.shape, a.dtype) for a in leaves))
    if key not in _programs:
        start = time.perf_counter()
        _programs[key] = jax.jit(_Generation(oracle.problem, one_by_one)).lower(*arguments).compile()
        oracle.compile_time_s += time.perf_counter() - start
        if len(_programs) > KEPT_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return jax.block_until_ready(_programs[key](*arguments))


def signature(problem: OptimalControlProblem) -> tuple:
    """What two problems must have in common to share a program; the numbers of a `System` are arguments of it."""
    dynamics = problem.dynamics if problem.system is None else None
    return (
        dynamics,
        problem.horizon,
        problem.dt,
        problem.tolerance,
        problem.free_initial_state,
        *(getattr(problem, key) for key in _FUNCTIONS),
        *(getattr(problem, key).tobytes() for key in _ARRAYS),
    )


class _Generation:
    """The program: (system, data of the space, candidates (size, d), multipliers, how many of them count) -> arrays."""

    def __init__(self, problem: OptimalControlProblem, one_by_one: bool) -> None:
        self.problem, self.one_by_one, constraints = problem, one_by_one, Constraints(problem)
        self.relevant, self.inequality = constraints.relevant(), constraints.inequality()
        self.arrivals = int(np.sum(~self.inequality[1]))

    def __call__(self, system, data, y, multipliers, count) -> tuple:
        problem = self.problem
        if system is not None:
            problem = copy.copy(problem)
            object.__setattr__(problem, "dynamics", system)

        def rate(y):
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
        best = jnp.argmin(jnp.where(excess == excess.min(), cost, jnp.inf))
        motion = jax.tree.map(lambda a: a[best], motion)
        return merit, cost, largest, arrival, best, motion, jax.tree.map(lambda a: a[:2], rows), bad[:2]

    def candidate(self, problem, data, y: Float[Array, " d"], multipliers: Multipliers) -> tuple:
        """Merit, cost, violation, terminal equalities, motion, rows and first bad step of one candidate."""
        constraints = Constraints(problem)
        x0, us, p = decode(problem, data, y)
        T = problem.horizon
        inputs = us, jnp.asarray(problem.times[:-1]), multipliers.stage, multipliers.stage_penalty

        def body(x, inputs):
            u, t, y, w = inputs
            x_next, c = problem.step(x, u, t, p), constraints.stage(x, u, t, p)
            cost = problem.running_cost(x, u, t, p)
            value = cost + term(y, w, c, self.inequality[0])
            finite = jnp.isfinite(jnp.concatenate([x_next, c, value[None]])).all()
            return x_next, (x, cost, value, c, finite)

        last, (xs, costs, values, rows, finite) = jax.lax.scan(body, x0, inputs)
        end, prior = constraints.terminal(last, p), problem.prior_residual(x0, p)
        final = problem.final_cost(last, p) + 0.5 * jnp.vdot(prior, prior)
        held = term(multipliers.terminal, multipliers.terminal_penalty, end, self.inequality[1])
        finite = jnp.append(finite, jnp.isfinite(final + held))
        largest = jnp.maximum(
            violation(rows, self.relevant, self.inequality[0]),
            violation(end, np.ones(end.shape[0], bool), self.inequality[1]),
        )
        good = finite.all()
        infinite = lambda value: jnp.where(good, value, jnp.inf)  # noqa: E731
        bad = jnp.where(good, T + 1, jnp.argmin(finite))
        motion = Trajectory(jnp.concatenate([xs, last[None]]), us, p)
        merit, cost = jnp.sum(values) + final + held, jnp.sum(costs) + final
        return infinite(merit), infinite(cost), infinite(largest), end[: self.arrivals], motion, (rows, end), bad
