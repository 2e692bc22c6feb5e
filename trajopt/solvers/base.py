"""The one loop that drives every solver.

A solver is an immutable object of options with four methods; its state is a dataclass registered as a pytree:

    init(oracle, x0, key) -> state       at the initial point
    step(oracle, state) -> state         one iteration
    terminate(oracle, state) -> Status or None
    finish(oracle, state) -> dict        what the solver recomputes at the best point: "residuals" (its optimality measure),
                                         "notes", "shortfalls" (which of these are too large) and extra fields of the
                                         Solution, such as the covariance

A solver whose iterations belong to a library has `run` in place of `step`:

    run(oracle, state, advance) -> Status    iterates, calls advance(state) after each iteration, stops the library when that
                                             returns a Status, and ends with `return advance(state)` on a state that halts

The oracle is what `problem.compile(gradient)` returns: the problem's compiled functions, with the time the compilation
took (`compile_time_s`), a counter (`evaluations`), and three functions of a point: `residuals` (recomputed violations by
name), `shortfalls` (which of these are too large, in words) and `fields` (of the Solution). The loop gives it `out_of_time`,
which a solver may ask within a long iteration. A problem needs `name`, `meta`,
`initial_point`, `check_point`, `compile` and `violation_tolerance`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from trajopt.errors import OptionError
from trajopt.result import Status
from trajopt.solvers.checkpoint import Checkpoint, write_checkpoint
from trajopt.solvers.interrupt import remembered
from trajopt.solvers.solution import TRACE_KEYS, Solution, status_message, status_name

CHECKPOINT_INTERVAL_S = 0.5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What the loop reads from a solver's state; solvers add their own fields.

    x: the point, a flat array or, in optimal control, a `Trajectory`; cost and violation (largest, of bounds and
    constraints) there; `gradient_norm`: the solver's measure of optimality, which every solver documents; `step_size`: the
    norm of the last accepted step; `halt` names the status with which the solver gives up, empty while it does not.
    """

    x: Any
    cost: float
    violation: float
    gradient_norm: float
    step_size: float
    halt: str = dataclasses.field(metadata={"static": True}, default="", kw_only=True)

    def better_than(self, other: Any, tolerance: float) -> bool:
        """Whether this point is the one to return: less violation beyond `tolerance`, or lower cost."""
        excess, best = max(self.violation, tolerance), max(other.violation, tolerance)
        return bool(excess < best or (excess == best and self.cost < other.cost))

    def failure(self) -> str:
        """Where a value that is not finite appeared, for the message; begins with ": "."""
        return ""

    def account(self) -> dict[str, Any]:
        """What the last state tells about the run, whichever state is the best: "notes" and fields of the Solution."""
        return {}


class Solver(Protocol):
    """Options and algorithm of a solver; see the module's docstring."""

    max_iterations: int

    @property
    def name(self) -> str: ...

    def init(self, oracle: Any, x0: np.ndarray, key: Any) -> Any: ...

    def step(self, oracle: Any, state: Any) -> Any: ...

    def terminate(self, oracle: Any, state: Any) -> Any: ...

    def finish(self, oracle: Any, state: Any) -> dict[str, Any]: ...


def default_tolerance(dtype: np.dtype) -> float:
    """1e-10 in float64, 1e-5 in float32."""
    return 1e-10 if np.dtype(dtype) == np.float64 else 1e-5


def solve(
    problem: Any,
    solver: Any,
    *,
    x0: Any = None,
    gradient: str | None = None,
    callback: Callable[[dict[str, float]], Any] | None = None,
    seed: int = 0,
    time_budget: float | None = None,
    max_iterations: int | None = None,
    resume: Any = None,
    checkpoint: Any = None,
) -> Solution:
    """Solve `problem` with `solver` and return the best point found, its residuals recomputed.

    Arguments:
        x0: initial guess, default the problem's own.
        gradient: how derivatives are obtained, a mode that the problem offers; default: the problem's own, mostly implicit.
        callback: called after every iteration with a row of the trace; a true answer stops the run.
        seed: seeds whatever is random in the solver.
        time_budget: seconds of solving, compilation left out.
        max_iterations: iterations of this call (a resumed run does as many again); default the solver's own.
        checkpoint: path where the state is kept, at the start, about twice a second and at the end.
        resume: path of a checkpoint of the same problem, solver and gradient to go on from.

    Ctrl-C returns the best point so far with status `interrupted`. Raises, before compiling, what the problem's
    validation finds wrong with `x0`, and `OptionError` for unusable options.
    """
    if isinstance(solver, (str, type)):
        what, name = ("the name", solver) if isinstance(solver, str) else ("the class", solver.__name__)
        raise OptionError(f"solver is {what} '{name}', expected a solver: solvers.get('{name}', ...)")
    limit = solver.max_iterations if max_iterations is None else max_iterations
    if limit < 0:
        raise OptionError(f"max_iterations is {limit}; it must not be negative")
    if time_budget is not None and not time_budget >= 0:
        raise OptionError(f"time_budget is {time_budget}; it must be a number of seconds")
    x0 = problem.initial_point if x0 is None else problem.check_point(x0)
    gradient = problem.gradient if gradient is None else gradient
    identity = {"problem": problem.name, "solver": solver.name, "gradient": gradient}
    previous = None
    if resume is not None:
        previous = Checkpoint(resume)
        previous.check(identity)
    oracle = problem.compile(gradient)
    key = jax.random.key(seed)
    run = _Run(problem, solver, oracle, x0, key, seed, identity, checkpoint, previous)
    status = run.loop(limit, time_budget, callback)
    return run.solution(status)


class _Run:
    """The mutable bookkeeping of one call of `solve`."""

    def __init__(self, problem, solver, oracle, x0, key, seed, identity, path, previous) -> None:
        self.problem, self.solver, self.oracle = problem, solver, oracle
        self.seed, self.identity, self.path = seed, identity, path
        self.start, self.elapsed_before, self.saved_at = time.perf_counter(), 0.0, -np.inf
        self.compiled_before = oracle.compile_time_s
        self.interrupted: Callable[[], bool] = lambda: False
        self.state = solver.init(oracle, x0, key)
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
        self._save()

    def elapsed(self) -> float:
        """Seconds of solving so far, compilation left out."""
        compiling = self.oracle.compile_time_s - self.compiled_before
        return self.elapsed_before + time.perf_counter() - self.start - compiling

    def _record(self) -> dict[str, float]:
        s = self.state
        row = [self.iteration, s.cost, s.violation, s.step_size, s.gradient_norm]
        self.rows.append([float(value) for value in (*row, self.oracle.evaluations, self.elapsed())])
        return dict(zip(TRACE_KEYS, self.rows[-1], strict=True))

    def _save(self) -> None:
        if self.path is None:
            return
        progress = {
            "trace": self.rows,
            "iteration": self.iteration,
            "initial_cost": self.initial_cost,
            "elapsed": self.elapsed(),
            "evaluations": self.oracle.evaluations,
        }
        write_checkpoint(self.path, (self.state, self.best), self.identity, progress)
        self.saved_at = time.perf_counter()

    def loop(self, limit: int, time_budget: float | None, callback: Callable | None) -> Any:
        """Iterate until something ends the run; returns its status."""
        self.stop = self.iteration + limit
        self.deadline = np.inf if time_budget is None else self.elapsed() + time_budget
        self.callback = callback
        self.oracle.out_of_time = lambda: self.elapsed() >= self.deadline or self.interrupted()
        try:
            with remembered() as self.interrupted:
                return self._iterate()
        except KeyboardInterrupt:
            return Status.interrupted
        finally:
            self.wall_time = self.elapsed()
            self._save()

    def _iterate(self) -> Any:
        if self.callback is not None:
            self.callback(dict(zip(TRACE_KEYS, self.rows[-1], strict=True)))
        status = self.ended()
        if status is None and hasattr(self.solver, "run"):
            return self.solver.run(self.oracle, self.state, self.advance)
        while status is None:
            status = self.advance(self.solver.step(self.oracle, self.state))
        return status

    def ended(self) -> Any:
        """The status that ends the run at the present state, None to go on."""
        if not np.isfinite([self.state.cost, self.state.gradient_norm]).all():
            return Status.non_finite
        status = self.solver.terminate(self.oracle, self.state)
        if status is not None:
            return status
        if self.interrupted():
            return Status.interrupted
        if self.iteration >= self.stop:
            return Status.max_iterations
        return Status.time_budget if self.elapsed() >= self.deadline else None

    def advance(self, state: Any) -> Any:
        """Take `state` as the next one, or as the last word when it halts; the status that ends the run, None to go on."""
        self.state = state
        if state.better_than(self.best, self.problem.violation_tolerance):
            self.best = state
        if not state.halt:
            self.iteration += 1
            row = self._record()
            if time.perf_counter() - self.saved_at > CHECKPOINT_INTERVAL_S:
                self._save()
            if self.callback is not None and self.callback(row):
                return Status.interrupted
        return self.ended()

    def solution(self, status: Any) -> Solution:
        """The best point with everything recomputed there, outside the counters and the clock of the solve."""
        oracle, evaluations, compile_time_s = self.oracle, self.oracle.evaluations, self.oracle.compile_time_s
        x = jax.tree.map(np.asarray, self.best.x)
        residuals = oracle.residuals(x)
        missing = oracle.shortfalls(residuals)
        extra = self.solver.finish(oracle, self.best)
        residuals |= extra.pop("residuals", {})
        missing += extra.pop("shortfalls", [])
        account = self.state.account()
        notes = [*account.pop("notes", []), *extra.pop("notes", [])]
        if status_name(status) == "non_finite":
            notes = [f"at iteration {self.iteration}{self.state.failure()}", *notes]
        if missing and status_name(status) in ("solved", "acceptable"):
            status = Status.contact_failed if missing[0].startswith("contact_residual") else Status.stalled
        optimal = self.problem.feasibility_is_success or status_name(status) == "solved"
        fields = oracle.fields(x) | extra | account
        oracle.evaluations = evaluations
        return Solution(
            **self.identity,
            contact=str(self.problem.meta.get("contact", "none")),
            status=status,
            success=bool(not missing and optimal and np.isfinite(self.best.cost)),
            message="; ".join([status_message(status), *notes, *missing]),
            cost=float(self.best.cost),
            initial_cost=float(self.initial_cost),
            violation=float(self.best.violation),
            residuals=residuals,
            trace={key: np.array([row[i] for row in self.rows]) for i, key in enumerate(TRACE_KEYS)},
            iterations=self.iteration,
            evaluations=evaluations,
            compile_time_s=compile_time_s,
            wall_time_s=self.wall_time,
            seed=self.seed,
            **fields,
        )
