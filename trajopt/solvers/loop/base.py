"""The one loop that drives every solver; `contract` says what it asks of them.

An interrupt that is not lost.

Python raises KeyboardInterrupt wherever the signal finds it. Where nobody passes it on, in a callback of the garbage
collector (JAX has one) or in a finalizer, Python prints and forgets it, and a run without end would go on.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import jax
import numpy as np

from trajopt import files, walltime
from trajopt.dynamics.precision import precision_hint
from trajopt.errors import OptionError
from trajopt.options import check_kind, check_number
from trajopt.problems.goals import reports_of
from trajopt.result import Status, status_message, status_name
from trajopt.solvers.loop.checkpoint import Checkpoint, write_checkpoint
from trajopt.solvers.loop.contract import (
    LibrarySolver,
    OfKinds,
    OracleOut,
    Point,
    Problem,
    Solver,
    SolverState,
    StateT,
    verdict,
)
from trajopt.solvers.loop.fingerprint import fingerprints
from trajopt.solvers.loop.solution import TRACE_KEYS, Solution


@contextlib.contextmanager
def end_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a signal to end has come since; the signals' own handlers run as before.

    Python says nothing of an interrupt that it drops within the block: whoever asks the function hears of it. Outside the main
    thread, where signals never raise, the function always says no.
    """
    seen: list[int] = []
    replaced = {}
    tell = sys.unraisablehook

    def tell_others(dropped: Any) -> None:
        if not (seen and issubclass(dropped.exc_type, KeyboardInterrupt)):
            tell(dropped)

    def listen(number: int) -> None:
        handler = signal.getsignal(number)
        if not callable(handler):
            return

        def remember(received: int, frame: Any) -> Any:
            seen.append(received)
            return handler(received, frame)

        replaced[number] = (remember, handler)
        signal.signal(number, remember)

    if threading.current_thread() is threading.main_thread():
        listen(signal.SIGINT)
        listen(signal.SIGTERM)
        sys.unraisablehook = tell_others
    try:
        yield lambda: bool(seen)
    finally:
        for number, (remember, handler) in replaced.items():
            if signal.getsignal(number) is remember:
                signal.signal(number, handler)
        if sys.unraisablehook is tell_others:
            sys.unraisablehook = tell


CHECKPOINT_INTERVAL_S, RETRY_S = 0.5, 5.0  # between checkpoints; after one that could not be written
_LOG = logging.getLogger(__name__)  # the start and the end of a solve, and every iteration, at INFO
# Statuses of runs that another guess may lead elsewhere.
UNCONVERGED = ("max_iterations", "line_search_failed", "stalled", "infeasible", "non_finite", "no_influence")
CUT_SHORT = ("time_budget", "interrupted")  # what ended these is no property of the problem


def solve(
    problem: Problem[Point, OracleOut],
    solver: Solver[OracleOut, Point, StateT] | LibrarySolver,
    *,
    x0: Any = None,
    gradient: str | None = None,
    callback: Callable[[dict[str, float]], Any] | None = None,
    seed: int = 0,
    time_budget: float | None = None,
    max_iterations: int | None = None,
    resume: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
) -> Solution:
    """Solve `problem` with `solver` and return the best point found, its residuals recomputed.

    Arguments:
        x0: initial guess, a point of the problem or a `Solution` to start from; default: the problem's own.
        gradient: a gradient mode that the problem offers; default: the problem's own, mostly implicit.
        callback: called after every iteration with a row of the trace; a true answer stops the run.
        seed: of all random numbers of the solver.
        time_budget: seconds of solving, compilation and the writing of checkpoints left out.
        max_iterations: iterations of this call (a resumed run does as many again); default the solver's own.
        checkpoint: path where the state is kept, at the start, about twice a second and at the end.
        resume: path of a checkpoint of the same problem, solver and gradient to continue from; guess, tolerances and options of
            the solver may differ.

    Ctrl-C returns the best point so far with status `interrupted`. Raises, before compiling, what the problem's
    validation finds wrong with `x0`, and `OptionError` for unusable options.
    """
    check_solver(problem, solver)
    _check_arguments(seed, time_budget, max_iterations, callback)
    limit = solver.max_iterations if max_iterations is None else max_iterations
    guess = problem.initial_point if x0 is None else _point(problem, x0)
    gradient = problem.defaults.gradient if gradient is None else gradient
    assert gradient is not None  # validation of a problem sets its own
    identity = {"problem": problem.name, "solver": solver.name, "gradient": gradient}
    asked = {} if resume is None and checkpoint is None else fingerprints(problem)
    previous = None
    if resume is not None:
        previous = Checkpoint(resume)
        previous.check(identity, asked)
    _LOG.info("%s: %s, %s gradients, seed %d", problem.name, solver.name, gradient, seed)
    oracle = problem.compile(gradient)
    key = jax.random.key(seed)
    acting = solver.acting_on(problem) if isinstance(solver, OfKinds) else solver
    run = _Run(problem, acting, oracle, guess, key, seed, identity, asked, checkpoint, previous)
    status = run.loop(limit, time_budget, callback)
    with walltime.part("certificate"):
        solution = run.solution(status)
    _LOG.info("%s: %s", problem.name, solution.message)
    return solution


def check_solver(problem: Any, solver: Any) -> None:
    """Raise `OptionError` for what is no solver, and for a solver that does not take this kind of problem."""
    if isinstance(solver, (str, type)):
        what, name = ("the name", solver) if isinstance(solver, str) else ("the class", solver.__name__)
        raise OptionError(f"solver is {what} '{name}', expected a solver: solvers.get('{name}', ...)")
    if not isinstance(problem, solver.takes):
        kinds = " or ".join(_with_article(kind) for kind in solver.takes)
        remedy = f"; {solver.remedy}" if getattr(solver, "remedy", "") else ""
        raise OptionError(f"{solver.name} solves {kinds}; '{problem.name}' is {_with_article(type(problem))}{remedy}")


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _point(problem: Problem[Point, Any], guess: Any) -> Point:
    """A guess, or a `Solution` to start from, in the problem's normal form."""
    return problem.point_of(guess) if isinstance(guess, Solution) else problem.check_point(guess)


def _check_arguments(seed: Any, time_budget: Any, max_iterations: Any, callback: Any) -> None:
    """Raise `OptionError` for arguments of `solve` that cannot be what they should be."""
    check_kind("", "seed", seed, int)
    check_number("max_iterations", max_iterations, "[0, inf)", int, NoneType)
    check_number("time_budget", time_budget, "[0, inf]", float, NoneType)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is {callback!r}; expected a function of a row of the trace, or None")


class _Run:
    """The mutable bookkeeping of one call of `solve`."""

    def __init__(
        self, problem: Problem, solver: Any, oracle: Any, guess: Any, key: jax.Array, seed: int, identity: dict[str, str],
        asked: dict[str, str], path: str | os.PathLike | None, previous: Checkpoint | None,
    ) -> None:  # fmt: skip
        self.problem, self.solver, self.oracle = problem, solver, oracle
        self.seed, self.identity, self.asked, self.path = seed, identity, asked, path
        self.start, self.elapsed_before, self.saved_at, self.writing_s = time.perf_counter(), 0.0, -np.inf, 0.0
        self.compiled_before = oracle.compile_time_s
        self.interrupted: Callable[[], bool] = lambda: False
        self.state: SolverState = solver.init(oracle, guess, key)
        self.best_meets_goals: bool | None = None  # asked where the problem has goals
        self.rows: list[list[float]] = []
        self.iteration = 0
        if previous is None:
            self.best, self.initial_cost = self.state, self.state.cost
            self._record()
        else:
            progress = previous.progress
            self.state, self.best = previous.restore((self.state, self.state))
            self.rows = progress["trace"].tolist()
            self.iteration = int(progress["iteration"])
            self.initial_cost, self.elapsed_before = float(progress["initial_cost"]), float(progress["elapsed"])
            oracle.evaluations = int(progress["evaluations"])
        if path is not None:
            self._save(path)  # what cannot be written is told before anything is computed

    def elapsed(self) -> float:
        """Seconds of solving so far, compilation and the writing of checkpoints left out."""
        compiling = self.oracle.compile_time_s - self.compiled_before
        return self.elapsed_before + time.perf_counter() - self.start - compiling - self.writing_s

    def _record(self) -> dict[str, float]:
        s = self.state
        row = [self.iteration, s.cost, s.violation, s.step_size, s.gradient_norm]
        self.rows.append([float(value) for value in (*row, self.oracle.evaluations, self.elapsed())])
        _LOG.info("iteration %d: cost %.6g, violation %.2g, step %.2g, gradient %.2g, %d evaluations, %.3f s", *self.rows[-1])
        return dict(zip(TRACE_KEYS, self.rows[-1], strict=True))

    def _save(self, path: str | os.PathLike) -> None:
        progress = {
            "trace": self.rows,
            "iteration": self.iteration,
            "initial_cost": self.initial_cost,
            "elapsed": self.elapsed(),
            "evaluations": self.oracle.evaluations,
        }
        start = time.perf_counter()
        try:
            write_checkpoint(path, (self.state, self.best), self.identity, progress, self.asked)
        finally:
            self.saved_at = time.perf_counter()
            self.writing_s += self.saved_at - start

    def _try_to_save(self, meanwhile: str) -> None:
        """Write the checkpoint, if there is to be one; a full disk does not end the solve."""
        path = self.path
        if path is not None and not files.try_to_write(lambda: self._save(path), path, meanwhile):
            self.saved_at += RETRY_S - CHECKPOINT_INTERVAL_S

    def loop(self, limit: int, time_budget: float | None, callback: Callable[[dict[str, float]], Any] | None) -> Status:
        """Iterate until something ends the run; returns its status."""
        self.stop = self.iteration + limit
        self.deadline = np.inf if time_budget is None else self.elapsed() + time_budget
        self.callback = callback
        self.oracle.out_of_time = lambda: self.elapsed() >= self.deadline or self.interrupted()
        try:
            with end_signals() as self.interrupted:
                return self._iterate()
        except KeyboardInterrupt:
            return Status.interrupted
        finally:
            self.wall_time = self.elapsed()
            self._try_to_save("the solution is not affected")

    def _iterate(self) -> Status:
        if self.callback is not None:
            self.callback(dict(zip(TRACE_KEYS, self.rows[-1], strict=True)))
        status = self.ended()
        if status is None and isinstance(self.solver, LibrarySolver):
            return self.solver.run(self.oracle, self.state, self.advance)
        while status is None:
            status = self.advance(self.solver.step(self.oracle, self.state))
        return status

    def ended(self) -> Status | None:
        """The status that ends the run at the present state, None to go on."""
        if not np.isfinite([self.state.cost, self.state.gradient_norm]).all():
            return Status.non_finite
        status: Status | None = self.solver.terminate(self.oracle, self.state)
        if status is not None:
            return status
        if self.interrupted():
            return Status.interrupted
        if self.iteration >= self.stop:
            return Status.max_iterations
        return Status.time_budget if self.elapsed() >= self.deadline else None

    def advance(self, state: SolverState) -> Status | None:
        """Take `state` as the next one, or as the last word when it halts; the status that ends the run, None to go on."""
        self.state = state
        if self._is_better(state):
            self.best = state
        if not state.halt:
            self.iteration += 1
            row = self._record()
            if time.perf_counter() - self.saved_at > CHECKPOINT_INTERVAL_S:
                self._try_to_save("the solve goes on and tries again")
            if self.callback is not None and self.callback(row):
                return Status.interrupted
        return self.ended()

    def _is_better(self, state: SolverState) -> bool:
        """Whether a state is to be returned rather than the best one so far: its solver says so; where one of the two alone meets
        the goals of the problem, that one."""
        better = state.better_than(self.best, self.problem.violation_tolerance)
        if not getattr(self.problem, "goals", {}) or not state.is_answer:
            return better
        if self.best_meets_goals is None:
            self.best_meets_goals = self._meets_goals(self.best)
        met = self._meets_goals(state)
        better = met if met != self.best_meets_goals else better
        self.best_meets_goals = met if better else self.best_meets_goals
        return better

    def _meets_goals(self, state: SolverState) -> bool:
        feasible = state.violation <= self.problem.violation_tolerance and np.isfinite(state.cost)
        return bool(feasible and state.is_answer and self.oracle.meets_goals(state.x))

    def solution(self, status: Status) -> Solution:
        """The best point with everything recomputed there, outside the counters and the clock of the solve."""
        oracle, evaluations, compile_time_s = self.oracle, self.oracle.evaluations, self.oracle.compile_time_s
        x = jax.tree.map(np.asarray, self.best.x)
        residuals = oracle.residuals(x)
        found, ending = self.solver.finish(oracle, self.best), self.state.ending()
        optimality = () if self.problem.feasibility_is_success else found.shortfalls
        missing = [*oracle.shortfalls(residuals), *optimality]
        notes = [*ending.notes, *found.notes]
        if status_name(status) == "non_finite":
            notes = [f"at iteration {self.iteration}{self.state.non_finite_place()}", *notes]
        status, success = verdict(self.problem, status, missing, self.best.cost, lambda: oracle.lacks_influence(x))
        hints = [self.problem.other_guesses] if not success and status_name(status) in UNCONVERGED else []
        if not success and status_name(status) not in CUT_SHORT:
            hints.append(precision_hint(np.result_type(*jax.tree.leaves(x))))
        fields = oracle.fields(x) | found.fields | ending.fields
        judged = any(limit != "bound_violation" for limit in self.problem.limits)
        oracle.evaluations = evaluations
        return Solution(
            problem=self.identity["problem"],
            solver=self.identity["solver"],
            gradient=self.identity["gradient"],
            contact=str(self.problem.meta.get("contact", "none")),
            status=status,
            success=success,
            message="; ".join(filter(None, [status_message(status, judged), *notes, *missing, *hints])),
            cost=float(self.best.cost),
            initial_cost=float(self.initial_cost),
            violation=float(self.best.violation),
            residuals=residuals | found.residuals,
            trace={key: np.array([row[i] for row in self.rows]) for i, key in enumerate(TRACE_KEYS)},
            iterations=self.iteration,
            evaluations=evaluations,
            compile_time_s=compile_time_s,
            wall_time_s=self.wall_time,
            seed=self.seed,
            goals=reports_of(self.problem, residuals),
            **fields,
        )
