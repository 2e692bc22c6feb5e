"""Optimal control of many samples by iLQR or DDP: the steps of all in one program, and what is recomputed at the answers."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.errors import OptionError
from trajopt.problems.expansions import relabels
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.oracle import OptimalControlOracle, examine
from trajopt.problems.programs import compiled, subject
from trajopt.solvers.batch.samples import Samples, with_numbers
from trajopt.solvers.batch.solution import BatchSolution, by_name, verdicts
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.ddp.passes import Passes, Progress, Summary, better
from trajopt.solvers.loop.codes import CODES, GOING_ON
from trajopt.solvers.subproblems.batching import each_sample
from trajopt.solvers.subproblems.iterate import iterate


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

    def solve(self, guess: Trajectory, follows: Bool[Array, ""]) -> Run:
        """The state in which the run from a guess ends; follows: whether it begins at the rollout of the controls."""
        problem, solver, motion = self.problem, self.solver, guess
        if not problem.free_initial_state:
            motion = dataclasses.replace(motion, xs=motion.xs.at[0].set(problem.x0))
        rolled = problem.rollout(motion.xs[0], motion.us, motion.p)
        motion = jax.tree.map(lambda a, b: jnp.where(follows, a, b), rolled, motion)
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
    """The answers of all samples by one program.

    Raises `OptionError` for gradient modes that relabel contacts.
    """
    problem = problem.with_gradient(gradient)
    if relabels(problem, gradient):
        raise OptionError(f"solve_batch: gradient '{gradient}' is not for batches; use solve, or gradient='implicit'")
    method = BatchedMotions(solver.passes(problem, gradient), solver)
    given = problem.xs0 is not None
    follows = np.array([
        solver.shooting != "multiple" or not (given or np.ptp(guess.xs, axis=0).any()) for guess in samples.guesses
    ])  # fmt: skip
    arguments = jax.tree.map(jnp.asarray, (_clipped(problem, samples.points), follows, samples.numbers))
    program, compiling = compiled(_solved, method, *arguments)
    start = time.perf_counter()
    run = jax.tree.map(np.asarray, jax.block_until_ready(program(*arguments)))
    seconds = time.perf_counter() - start
    motion = jax.tree.map(jnp.asarray, run.motion)
    judge, judging = compiled(_examined, problem, motion, arguments[2])
    found = jax.tree.map(np.asarray, judge(motion, arguments[2]))
    oracles = [OptimalControlOracle(own, gradient) for own in samples.problems]
    values = [
        oracle.measures(*jax.tree.map(lambda a, k=k: a[k], (found, run.motion))) | {"stationarity": float(stationarity)}
        for k, (oracle, stationarity) in enumerate(zip(oracles, run.best.stationarity, strict=True))
    ]
    missing = [oracle.shortfalls(own) for oracle, own in zip(oracles, values, strict=True)]
    statuses, success = verdicts(samples.problems, run.code, missing, run.best.cost)
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
        compile_time_s=compiling + judging,
        wall_time_s=seconds,
        xs=run.motion.xs,
        us=us,
        parameters=run.motion.p if problem.n_p else None,
        gains=run.gains,
    )


def _clipped(problem: OptimalControlProblem, points: Trajectory) -> Trajectory:
    us = np.clip(points.us, problem.control_lower, problem.control_upper).astype(points.us.dtype)
    return dataclasses.replace(points, us=us)


def _solved(method: BatchedMotions, points: Trajectory, follows: Array, numbers: Any) -> Run:
    def at(guess: Trajectory, follows: Array, own: Any) -> Run:
        return method.on(with_numbers(method.problem, own)).solve(guess, follows)

    return each_sample(at, points, follows, numbers)


def _examined(problem: OptimalControlProblem, motion: Trajectory, numbers: Any) -> Any:
    return each_sample(lambda motion, own: examine(with_numbers(problem, own), motion), motion, numbers)
