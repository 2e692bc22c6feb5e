"""The one loop that drives every solver.

A solver is an immutable object of options with four methods; its state is a dataclass registered as a pytree:

    init(oracle, x0, key) -> state       at the initial point
    step(oracle, state) -> state         one iteration
    terminate(oracle, state) -> Status or None
    finish(oracle, state) -> dict        extra fields of the Solution, such as the covariance

The oracle is what `problem.compile(gradient)` returns: the problem's compiled functions, with the time the compilation
took and a counter of evaluations. Any problem with `name`, `x0`, `check_point`, `compile`, `residuals` and `shortfalls`
can be driven; `LeastSquaresProblem` documents them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.errors import OptionError
from trajopt.result import Status
from trajopt.solvers.checkpoint import Checkpoint, write_checkpoint
from trajopt.solvers.solution import TRACE_KEYS, Solution, status_message, status_name

CHECKPOINT_INTERVAL_S = 0.5
COST_ROUNDING = 100 * np.finfo(float).eps  # relative differences of the cost below it say nothing
RELAXED_EXPONENT = 0.6  # `acceptable` asks for tolerance^0.6: 1e-6 in float64, 1e-3 in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What the loop reads from a solver's state; solvers add their own fields.

    x (nx,); residual (m,) and cost 1/2 |r|^2 there; `gradient_norm` the largest |J^T r| over the free variables;
    `removable` the norm of the part of r that the linearised problem can still remove; `step_size` the norm of the
    last accepted step; `halt` names the status with which the solver gives up, empty while it does not.
    """

    x: Any
    residual: Any
    cost: float
    gradient_norm: float
    removable: float
    step_size: float
    halt: str = dataclasses.field(metadata={"static": True}, default="")


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


def free_variables(problem: Any, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """(n,) bool: variables not held at a bound that the descent direction -gradient pushes against."""
    if not problem.bounded:
        return np.ones(gradient.shape, bool)
    return ~(((x <= problem.lower) & (gradient > 0)) | ((x >= problem.upper) & (gradient < 0)))


def removable_part(J: Float[np.ndarray, "m k"], r: Float[np.ndarray, " m"]) -> float:
    """|P r| with P the projector on the range of J: what is left of r to remove, in its own units.

    It does not depend on the units of the variables. Zero exactly at the stationary points of 1/2 |r|^2.
    """
    if J.shape[1] == 0 or not (np.isfinite(J).all() and np.isfinite(r).all()):
        return 0.0 if J.shape[1] == 0 else float("nan")
    column = np.linalg.norm(J, axis=0)
    J = J / np.where(column > 0, column, 1.0)
    U, s, _ = np.linalg.svd(J, full_matrices=False)
    kept = s > s.max(initial=0.0) * max(J.shape) * np.finfo(float).eps
    return float(np.linalg.norm(U[:, kept].T @ r))


def stationarity(oracle: Any, x: np.ndarray, r: np.ndarray, J: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(gradient (n,), largest free component of it, removable part of the residual) at x."""
    gradient = J.T @ r
    free = free_variables(oracle.problem, x, gradient)
    return gradient, float(np.abs(gradient[free]).max(initial=0.0)), removable_part(J[:, free], r)


def stationary(problem: Any, state: State, tolerance: float) -> bool:
    """Whether the residual's removable part is within tolerance * max(|r|, 1), and well within the problem's own."""
    threshold = tolerance * max(float(np.linalg.norm(state.residual)), 1.0)
    if problem.tolerance is not None:
        threshold = min(threshold, 0.1 * problem.tolerance)
    return state.removable <= threshold


def ended(problem: Any, state: State, tolerance: float) -> Any:
    """The status common to all least-squares solvers: solved, given up (acceptable when nearly stationary), or None."""
    if stationary(problem, state, tolerance):
        return Status.solved
    if state.halt:
        nearly = problem.tolerance is None and stationary(problem, state, tolerance**RELAXED_EXPONENT)
        return Status.acceptable if nearly and state.halt != "non_finite" else getattr(Status, state.halt)
    return None


def solve(
    problem: Any,
    solver: Any,
    *,
    x0: Any = None,
    gradient: str = "implicit",
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
        gradient: how derivatives are obtained; least squares offers implicit, finite-difference and ridders.
        callback: called after every iteration with a row of the trace; a true answer stops the run.
        seed: seeds whatever is random in the solver.
        time_budget: seconds of solving, compilation left out.
        max_iterations: iterations of this call (a resumed run does as many again); default the solver's own.
        checkpoint: path where the state is kept, at the start, about twice a second and at the end.
        resume: path of a checkpoint of the same problem, solver and gradient to go on from.

    Ctrl-C returns the best point so far with status `interrupted`. Raises, before compiling, what the problem's
    validation finds wrong with `x0`, and `OptionError` for unusable options.
    """
    limit = solver.max_iterations if max_iterations is None else max_iterations
    if limit < 0:
        raise OptionError(f"max_iterations is {limit}; it must not be negative")
    if time_budget is not None and not time_budget >= 0:
        raise OptionError(f"time_budget is {time_budget}; it must be a number of seconds")
    x0 = problem.x0 if x0 is None else problem.check_point(x0)
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
        self.state = solver.init(oracle, x0, key)
        self.rows: list[list[float]] = []
        self.iteration = 0
        if previous is None:
            self.best_x, self.best_cost, self.initial_cost = self.state.x, self.state.cost, self.state.cost
            self.best_removable = self.state.removable
            self._record()
        else:
            progress = previous.progress
            self.state = previous.restore(self.state)
            self.rows = progress["trace"].tolist()
            self.iteration = int(progress["iteration"])
            self.best_x, self.best_cost = progress["best_x"], float(progress["best_cost"])
            self.best_removable = float(progress["best_removable"])
            self.initial_cost, self.elapsed_before = float(progress["initial_cost"]), float(progress["elapsed"])
            oracle.evaluations = int(progress["evaluations"])
        self._save()

    def elapsed(self) -> float:
        return self.elapsed_before + time.perf_counter() - self.start

    def _violation(self) -> float:
        x = np.asarray(self.state.x)
        return float(np.maximum(np.maximum(self.problem.lower - x, x - self.problem.upper), 0.0).max(initial=0.0))

    def _record(self) -> dict[str, float]:
        s = self.state
        row = [self.iteration, s.cost, self._violation(), s.step_size, s.gradient_norm]
        self.rows.append([float(value) for value in (*row, self.oracle.evaluations, self.elapsed())])
        return dict(zip(TRACE_KEYS, self.rows[-1], strict=True))

    def _save(self) -> None:
        if self.path is None:
            return
        progress = {
            "trace": self.rows,
            "iteration": self.iteration,
            "best_x": self.best_x,
            "best_cost": self.best_cost,
            "best_removable": self.best_removable,
            "initial_cost": self.initial_cost,
            "elapsed": self.elapsed(),
            "evaluations": self.oracle.evaluations,
        }
        write_checkpoint(self.path, self.state, self.identity, progress)
        self.saved_at = time.perf_counter()

    def loop(self, limit: int, time_budget: float | None, callback: Callable | None) -> Any:
        """Iterate until something ends the run; returns its status."""
        stop = self.iteration + limit
        begun = time.perf_counter()
        try:
            if callback is not None:
                callback(dict(zip(TRACE_KEYS, self.rows[-1], strict=True)))
            while True:
                if not np.isfinite([self.state.cost, self.state.gradient_norm]).all():
                    return Status.non_finite
                if self.problem.tolerance is not None and self._within_tolerance():
                    return Status.solved
                status = self.solver.terminate(self.oracle, self.state)
                if status is not None:
                    return status
                if self.iteration >= stop:
                    return Status.max_iterations
                if time_budget is not None and time.perf_counter() - begun >= time_budget:
                    return Status.time_budget
                state = self.solver.step(self.oracle, self.state)
                moved = not state.halt
                self.state = state
                if not moved:
                    continue
                self.iteration += 1
                if self._improved():
                    self.best_x, self.best_cost = self.state.x, self.state.cost
                    self.best_removable = self.state.removable
                row = self._record()
                if time.perf_counter() - self.saved_at > CHECKPOINT_INTERVAL_S:
                    self._save()
                if callback is not None and callback(row):
                    return Status.interrupted
        except KeyboardInterrupt:
            return Status.interrupted
        finally:
            self.wall_time = self.elapsed()
            self._save()

    def _improved(self) -> bool:
        """Lower cost than the best, or the same to rounding and closer to stationary."""
        rounding = COST_ROUNDING * self.best_cost
        closer = self.state.removable < self.best_removable
        return self.state.cost < self.best_cost or bool(closer and self.state.cost <= self.best_cost + rounding)

    def _within_tolerance(self) -> bool:
        return float(np.abs(self.state.residual).max(initial=0.0)) <= self.problem.tolerance

    def solution(self, status: Any) -> Solution:
        """The best point with everything recomputed there, outside the counters and the clock of the solve."""
        problem, oracle, evaluations = self.problem, self.oracle, self.oracle.evaluations
        x = np.asarray(self.best_x)
        r, J = oracle.linearize(x)
        _, gradient_norm, removable = stationarity(oracle, x, r, J)
        residuals = problem.residuals(x, r) | {"gradient_norm": gradient_norm, "removable_residual": removable}
        missing = problem.shortfalls(residuals)
        notes = []
        if status_name(status) == "non_finite":
            notes.append(f"at iteration {self.iteration}" + _first_bad(self.state.residual))
        if missing and status_name(status) in ("solved", "acceptable"):
            status = Status.contact_failed if missing[0].startswith("contact_residual") else Status.stalled
        success = not missing and np.isfinite(self.best_cost)
        success = bool(success and (problem.tolerance is not None or status_name(status) == "solved"))
        extra = self.solver.finish(oracle, dataclasses.replace(self.state, x=x)) if np.isfinite(J).all() else {}
        notes += extra.pop("notes", [])
        oracle.evaluations = evaluations
        trajectory = _arrays(problem.trajectory(jnp.asarray(x))) if problem.trajectory is not None else {}
        states = [trajectory[key] for key in ("q", "v") if key in trajectory]
        return Solution(
            **self.identity,
            contact=str(problem.meta.get("contact", "none")),
            status=status,
            success=success,
            message="; ".join([status_message(status), *notes, *missing]),
            x=x,
            cost=float(self.best_cost),
            initial_cost=float(self.initial_cost),
            residuals=residuals,
            trace={key: np.array([row[i] for row in self.rows]) for i, key in enumerate(TRACE_KEYS)},
            iterations=self.iteration,
            evaluations=evaluations,
            compile_time_s=oracle.compile_time_s,
            wall_time_s=self.wall_time,
            seed=self.seed,
            xs=np.concatenate(states, axis=-1) if states else None,
            us=trajectory.get("u"),
            trajectory=trajectory,
            **extra,
        )


def _arrays(values: Any) -> dict[str, np.ndarray]:
    return {key: np.asarray(value) for key, value in values.items() if value is not None}


def _first_bad(residual: Any) -> str:
    bad = np.flatnonzero(~np.isfinite(residual))
    if not bad.size:
        return ": in the derivative or at every trial point"
    return f": residual[{bad[0]}] is {np.asarray(residual)[bad[0]]}"
