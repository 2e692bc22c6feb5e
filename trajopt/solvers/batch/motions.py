"""Optimal control of many samples by iLQR or DDP: where each begins, its steps in one program, what is recomputed at its answer.

On a CPU every sample is a call of a program of its own, on as many cores as there are: each takes its own iterations and
branches, and batches of all sizes share the program. Elsewhere the samples go in lockstep.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.effort import Effort
from trajopt.errors import OptionError
from trajopt.problems import programs
from trajopt.problems.expansions import relabels
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.programs import subject
from trajopt.solvers.batch.samples import Samples, with_numbers
from trajopt.solvers.batch.solution import BatchSolution, by_name, verdicts
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.ddp.passes import Passes, Progress, Summary, better
from trajopt.solvers.ddp.state import Start, gives_states
from trajopt.solvers.loop.contract import CODES, GOING_ON
from trajopt.solvers.subproblems.batching import iterate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Run:
    """The state of one sample: its progress; of the best point so far the motion, the gains of the step that led there and its
    numbers; accepted steps, the cost at the guess, how it ended."""

    progress: Progress
    motion: Trajectory
    gains: Float[Array, "T nu n"]
    best: Summary
    iterations: Int[Array, ""]
    initial_cost: Float[Array, ""]
    code: Int[Array, ""]


@subject("passes")
@dataclasses.dataclass(frozen=True)
class BatchedMotions:
    """The run of one problem, whose numbers may be traced: `Passes.step` again and again, the best point kept."""

    passes: Passes
    solver: iLQR | DDP

    @property
    def problem(self) -> OptimalControlProblem:
        return self.passes.problem

    def on(self, problem: OptimalControlProblem) -> BatchedMotions:
        """The same for the problem with other numbers."""
        return dataclasses.replace(self, passes=self.passes.on(problem))

    def solve(self, motion: Trajectory) -> Run:
        """The state in which the run from a motion ends."""
        problem, solver = self.problem, self.solver
        progress = jax.tree.map(jnp.asarray, self.passes.blank(motion, solver.penalty, solver.damping))
        gains = jnp.zeros((problem.horizon, problem.nu, problem.n), motion.us.dtype)
        nothing, none = Summary(*jnp.zeros(len(Summary._fields), motion.us.dtype)), jnp.zeros((), jnp.int32)
        run = Run(progress, motion, gains, nothing, none, nothing.cost, jnp.full((), GOING_ON, jnp.int32))
        # The first step makes the model only.
        return iterate(lambda run, k: self._step(run, k > 0), run, solver.max_iterations + 2)[0]

    def _step(self, run: Run, act: Bool[Array, ""]) -> tuple[Run, Bool[Array, ""]]:
        progress, latest, summary = self.passes.step(act, run.progress)
        now = Summary(*summary)
        accepted = now.accepted > 0
        kept = ~act | better(now, run.best, self.problem.tolerance)
        new = progress.iterate.motion, jnp.where(accepted, latest, run.gains), now
        best = jax.tree.map(lambda a, b: jnp.where(kept, a, b), new, (run.motion, run.gains, run.best))
        iterations = run.iterations + accepted.astype(jnp.int32)
        ended = jnp.where(iterations >= self.solver.max_iterations, CODES["max_iterations"], GOING_ON)
        code = jnp.where(progress.code != GOING_ON, progress.code, ended)
        code = jnp.where(jnp.isfinite(now.cost) & jnp.isfinite(now.stationarity), code, CODES["non_finite"])
        initial_cost = jnp.where(act, run.initial_cost, now.cost)
        motion, gains, numbers = best
        after = Run(progress, motion, gains, numbers, iterations, initial_cost, code.astype(jnp.int32))
        return after, after.code != GOING_ON


def solve_motions(samples: Samples, solver: iLQR | DDP, problem: OptimalControlProblem, gradient: str) -> BatchSolution:
    """The answers of all samples.

    Raises `OptionError` for gradient modes that relabel contacts.
    """
    problem = problem.with_gradient(gradient)
    if relabels(problem, gradient):
        raise OptionError(f"solve_batch: gradient '{gradient}' is not for batches; use solve, or gradient='implicit'")
    start, each = time.perf_counter(), _Each(problem, samples.numbers)
    given = np.array([gives_states(problem, np.asarray(guess.xs)) for guess in samples.guesses])
    motions, at_rest = each(Start.motion, Start(problem, solver.shooting), (_guesses(samples), given), Effort.QUICK)
    oracles = [OptimalControlOracle(own, gradient) for own in samples.problems]
    run = _runs(each, solver, gradient, motions, at_rest, oracles[0].effort)
    found = _on_all_cores(lambda k: oracles[k].residuals(jax.tree.map(lambda a: a[k], run.motion)), len(samples))
    values = [own | {"stationarity": float(last)} for own, last in zip(found, run.best.stationarity, strict=True)]
    compiling = each.compile_time_s + oracles[0].compile_time_s
    seconds = time.perf_counter() - start - compiling
    missing = [oracle.shortfalls(own) for oracle, own in zip(oracles, values, strict=True)]
    at = [jax.tree.map(lambda a, k=k: a[k], run.motion) for k in range(len(oracles))]
    lacking = [functools.partial(oracle.lacks_influence, motion) for oracle, motion in zip(oracles, at, strict=True)]
    statuses, success = verdicts(samples.problems, run.code, missing, run.best.cost, lacking)
    us = run.motion.us
    return BatchSolution(
        problem=problem.name,
        solver=solver.name,
        gradient=gradient,
        status=statuses,
        success=success,
        x=np.concatenate([us.reshape(len(us), -1), run.motion.p], 1),
        cost=run.best.cost,
        initial_cost=run.initial_cost,
        violation=run.best.violation,
        iterations=run.iterations,
        residuals=by_name(values),
        compile_time_s=compiling,
        wall_time_s=seconds,
        xs=run.motion.xs,
        us=us,
        parameters=run.motion.p if problem.n_p else None,
        gains=run.gains,
    )


def _guesses(samples: Samples) -> Trajectory:
    """Where the samples start, within the bounds of the controls, from the initial state where it is given."""
    problem, points = samples.problems[0], samples.points
    us = np.clip(points.us, problem.control_lower, problem.control_upper).astype(points.us.dtype)
    xs = np.array(points.xs)
    if not problem.free_initial_state:
        xs[:, 0] = [own.x0 for own in samples.problems]
    return dataclasses.replace(points, xs=xs, us=us)


def _runs(
    each: _Each, solver: iLQR | DDP, gradient: str, motions: Trajectory, at_rest: Bool[np.ndarray, " b"], effort: Effort
) -> Any:
    """The `Run`s of all samples, stacked; at_rest: which of them begin at rest, in multiple shooting."""
    runs, order = [], []
    for stays in (False, True):
        members = np.flatnonzero(at_rest == stays)
        if not members.size:
            continue
        chosen = solver.started(stays)
        method = BatchedMotions(chosen.passes(each.problem, gradient), chosen)
        own = jax.tree.map(lambda a, members=members: a[members], motions)
        runs.append(each(BatchedMotions.solve, method, (own,), effort, members))
        order.append(members)
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *runs)


class _Each:
    """Calls a function of a subject, whose problem has each sample's numbers, and of each sample's arguments."""

    def __init__(self, problem: OptimalControlProblem, numbers: Any) -> None:
        self.problem, self.numbers, self.compile_time_s = problem, numbers, 0.0

    def __call__(
        self, function: Callable[..., Any], subject: Any, arguments: tuple, effort: Effort, members: Any = slice(None)
    ) -> Any:
        """What it returns, stacked, as arrays of numpy; members: the samples that the rows of the arguments belong to."""
        numbers = jax.tree.map(lambda a: a[members], self.numbers)
        if jax.default_backend() != "cpu":
            program, seconds = programs.compiled(_in_lockstep(function), subject, numbers, *arguments, effort=effort)
            self.compile_time_s += seconds
            return jax.tree.map(np.asarray, jax.block_until_ready(program(numbers, *arguments)))
        subject = jax.device_put(subject)  # once, not with every call

        def call(k: int) -> tuple[Any, float]:
            own, mine = jax.tree.map(lambda a: a[k], (numbers, arguments))
            found, seconds = programs.run(
                function, subject.on(with_numbers(subject.problem, own)), *mine, effort=effort
            )
            return jax.tree.map(np.asarray, found), seconds

        rows, compiling = zip(*_on_all_cores(call, len(jax.tree.leaves(arguments)[0])), strict=True)
        self.compile_time_s += sum(compiling)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def _on_all_cores(call: Callable[[int], Any], count: int) -> list[Any]:
    """call(k) of each k below count: of the first alone, which compiles, then by a thread for each core, as programs leave
    Python's lock."""
    first = call(0)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [first, *pool.map(call, range(1, count))]


@functools.cache
def _in_lockstep(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of stacked numbers and arguments: those that are done wait for the slowest."""

    def together(subject: Any, numbers: Any, *arguments: Any) -> Any:
        def at(own: Any, *mine: Any) -> Any:
            return function(subject.on(with_numbers(subject.problem, own)), *mine)

        return jax.vmap(at)(numbers, *arguments)

    return together
