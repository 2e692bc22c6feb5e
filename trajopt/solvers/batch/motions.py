"""Optimal control of many samples by iLQR or DDP: the passes of all in one program, and what is recomputed at the answers."""

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
from trajopt.result import Status
from trajopt.solvers.batch.samples import Samples, with_numbers
from trajopt.solvers.batch.solution import BatchSolution
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.ddp.passes import Passes, Progress
from trajopt.solvers.ddp.state import COST_ROUNDING
from trajopt.solvers.loop.codes import CODES, GOING_ON, status_of
from trajopt.solvers.loop.verdict import verdict
from trajopt.solvers.subproblems.batching import each_sample
from trajopt.solvers.subproblems.iterate import iterate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The best point so far: its motion, cost, violation, stationarity, whether it converged, and the gains of the step that led
    to it."""

    motion: Trajectory
    cost: Float[Array, ""]
    violation: Float[Array, ""]
    stationarity: Float[Array, ""]
    converged: Bool[Array, ""]
    gains: Float[Array, "T nu n"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Run:
    """The state of one sample: its progress, the best point, iterations, the cost at the guess, how it ended."""

    progress: Progress
    best: Best
    iterations: Int[Array, ""]
    initial_cost: Float[Array, ""]
    code: Int[Array, ""]


@subject("passes")
@dataclasses.dataclass(frozen=True)
class BatchedMotions:
    """The iteration for one problem, whose x0, references and weights may be traced."""

    passes: Passes
    solver: iLQR | DDP

    @property
    def problem(self) -> OptimalControlProblem:
        return self.passes.iteration.problem

    def on(self, problem: OptimalControlProblem) -> BatchedMotions:
        """The iteration for the problem with other numbers."""
        iteration = self.passes.iteration
        modeller = dataclasses.replace(iteration.modeller, problem=problem)
        iteration = dataclasses.replace(iteration, modeller=modeller)
        rule = dataclasses.replace(self.passes.rule, constraints=modeller.constraints)
        return dataclasses.replace(self, passes=dataclasses.replace(self.passes, iteration=iteration, rule=rule))

    def solve(self, guess: Trajectory, follows: Bool[Array, ""]) -> Run:
        """The state in which the iteration from a guess ends; follows: whether it begins at the rollout of the controls."""
        problem, solver = self.problem, self.solver
        motion = guess
        if not problem.free_initial_state:
            motion = dataclasses.replace(motion, xs=motion.xs.at[0].set(problem.x0))
        rolled = problem.rollout(motion.xs[0], motion.us, motion.p)
        motion = jax.tree.map(lambda a, b: jnp.where(follows, a, b), rolled, motion)
        progress = self.passes.begun(motion, solver.penalty, solver.damping)
        gains = jnp.zeros((problem.horizon, problem.nu, problem.n), motion.us.dtype)
        best = self._point(progress, gains)
        run = Run(progress, best, jnp.zeros((), jnp.int32), best.cost, jnp.full((), GOING_ON, jnp.int32))
        run = dataclasses.replace(run, code=self._code(run))
        # A pass is an iteration or an update, of which there is at most one before each iteration.
        return iterate(self._pass, run, 2 * solver.max_iterations + 2)[0]

    def _pass(self, run: Run, _: Array) -> tuple[Run, Bool[Array, ""]]:
        done = run.code != GOING_ON
        progress, report = self.passes.make(run.progress)
        moved = report.accepted
        gains = jnp.where(moved, report.gains, run.best.gains)
        new = self._point(progress, gains)
        better = self._better(new, run.best)
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, run.best)
        after = dataclasses.replace(
            run, progress=progress, best=best, iterations=run.iterations + moved.astype(jnp.int32)
        )
        after = dataclasses.replace(after, code=self._code(after))
        after = jax.tree.map(lambda old, new: jnp.where(done, old, new), run, after)
        return after, after.code != GOING_ON

    def _point(self, progress: Progress, gains: Array) -> Best:
        model, motion = progress.iterate.model, progress.iterate.motion
        cost = jnp.where(model.bad_step < 0, model.cost, jnp.nan)
        return Best(motion, cost, model.violation, model.stationarity, progress.converged, gains)

    def _better(self, new: Best, old: Best) -> Array:
        """As `SolverState.better_than`: less violation, then convergence, then cost, then stationarity."""
        least = self.problem.tolerance
        excess, before = jnp.maximum(new.violation, least), jnp.maximum(old.violation, least)
        margin = COST_ROUNDING * jnp.abs(old.cost)
        as_cheap = (new.cost <= old.cost + margin) & (new.stationarity < old.stationarity)
        preferred = (new.cost < old.cost - margin) | as_cheap
        preferred = jnp.where(new.converged != old.converged, new.converged, preferred)
        return jnp.isfinite(new.cost) & jnp.where(excess != before, excess < before, preferred)

    def _code(self, run: Run) -> Array:
        """How the run ends at its state, or GOING_ON."""
        progress, model = run.progress, run.progress.iterate.model
        code = jnp.where(run.iterations >= self.solver.max_iterations, CODES["max_iterations"], GOING_ON)
        gave_up = progress.code
        relaxed = self.solver.relaxed(self.problem) * model.scale
        nearly = (model.excess <= self.problem.tolerance) & (model.stationarity <= relaxed)
        nearly = nearly & ((gave_up == CODES["stalled"]) | (gave_up == CODES["line_search_failed"]))
        code = jnp.where(gave_up != GOING_ON, jnp.where(nearly, CODES["acceptable"], gave_up), code)
        code = jnp.where(progress.converged, CODES["solved"], code)
        bad = (model.bad_step >= 0) | ~jnp.isfinite(model.stationarity)
        return jnp.where(bad, CODES["non_finite"], code).astype(jnp.int32)


def solve_motions(samples: Samples, solver: iLQR | DDP, problem: OptimalControlProblem, gradient: str) -> BatchSolution:
    """The answers of all samples by one program.

    Raises `OptionError` for gradient modes that relabel contacts.
    """
    problem = problem.with_gradient(gradient)
    if relabels(problem, gradient):
        raise OptionError(f"solve_batch: gradient '{gradient}' is not for batches; use solve, or gradient='implicit'")
    solver.check(problem)
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
    best: Best = run.best
    motion = jax.tree.map(jnp.asarray, best.motion)
    judge, judging = compiled(_examined, problem, motion, arguments[2])
    found = jax.tree.map(np.asarray, judge(motion, arguments[2]))
    statuses, success, residuals = _certified(samples, run, found, gradient)
    us = np.asarray(best.motion.us)
    return BatchSolution(
        problem=problem.name,
        solver=solver.name,
        gradient=gradient,
        status=statuses,
        success=success,
        x=np.concatenate([us.reshape(len(us), -1), best.motion.p], 1),
        cost=np.asarray(best.cost),
        initial_cost=run.initial_cost,
        violation=np.asarray(best.violation),
        iterations=run.iterations,
        residuals=residuals,
        compile_time_s=compiling + judging,
        wall_time_s=seconds,
        xs=best.motion.xs,
        us=us,
        parameters=best.motion.p if problem.n_p else None,
        gains=np.asarray(best.gains),
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


def _certified(
    samples: Samples, run: Run, found: Any, gradient: str
) -> tuple[tuple[Status, ...], Bool[np.ndarray, " b"], dict[str, np.ndarray]]:
    """(status, success, recomputed quantities) of each sample."""
    statuses, success, rows = [], [], []
    for k, problem in enumerate(samples.problems):
        oracle = OptimalControlOracle(problem, gradient)
        motion, own = (jax.tree.map(lambda a, k=k: a[k], tree) for tree in (run.best.motion, found))
        values = oracle.measures(own, motion) | {"stationarity": float(run.best.stationarity[k])}
        status = status_of(int(run.code[k]))
        status, succeeded = verdict(problem, status, oracle.shortfalls(values), float(run.best.cost[k]))
        statuses.append(status)
        success.append(succeeded)
        rows.append(values)
    return tuple(statuses), np.array(success), {key: np.array([row[key] for row in rows]) for key in rows[0]}
