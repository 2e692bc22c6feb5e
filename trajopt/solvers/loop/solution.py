"""What every solver returns: the point, how it was found, and residuals recomputed there."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

import trajopt
from trajopt import files
from trajopt.errors import OptionError
from trajopt.problems.goals import GoalReport, goals_in_words, worst_goal
from trajopt.result import Status, status_name, status_named

SUMMARY, TRAJECTORY = "summary.json", "trajectory.npz"
BY_NAME = ("multipliers", "covariances", "smoothed_plan")  # fields that hold arrays by name
FILES = (SUMMARY, "solution.npz", TRAJECTORY, "solver.log")  # of a result
RESULT_ID = "result_id"  # what the files of one result have in common: an entry of the summary and of every archive
SOLVE_AGAIN = "run the problem again"
TRACE_KEYS = ("iteration", "cost", "violation", "step_size", "gradient_norm", "evaluations", "time")
_SCALARS: tuple[str, ...] = (
    "problem",
    "solver",
    "gradient",
    "contact",
    "success",
    "message",
    "cost",
    "initial_cost",
    "iterations",
    "evaluations",
    "compile_time_s",
    "wall_time_s",
    "seed",
    "raw_status",
)


def versions() -> dict[str, str]:
    """Versions of what produced a result."""
    return dict(_versions())


@functools.cache
def _versions() -> Mapping[str, str]:
    """Read once: looking them up takes longer than writing the rest of a result."""
    found = {"trajopt": trajopt.__version__, "python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "mujoco"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The best point a solver found, with its certificate.

    Attributes:
        problem: name of the problem.
        solver: name of the solver.
        gradient: gradient mode.
        contact: the contact model, in words.
        status: why the solver ended, a `Status`.
        success: whether a residual recomputed at `x` is within the problem's tolerance; for a problem without a tolerance,
            whether the point is stationary to the solver's; for one with goals, whether it keeps the constraints and meets them.
        message: the status in words, with what the run adds to it.
        x: the point; of an optimal control problem the controls, row by row, and the free parameters.
        cost: cost at the point.
        initial_cost: cost at the guess.
        residuals: every recomputed quantity, by name.
        trace: one entry for each iteration, the initial point included, of: iteration, cost, violation (of bounds and
            constraints), step_size (norm of the accepted step), gradient_norm (largest component of $J^T r$ over the free
            variables), evaluations and time (seconds of solving so far, compilation left out).
        iterations: number of iterations.
        evaluations: number of evaluations of the problem.
        compile_time_s (s): time that compiling took.
        wall_time_s (s): time that solving took.
        seed: seed of the run.
        xs: states (T+1, nq + nv) of the solution's motion, where the problem describes one.
        us: controls (T, nu) of that motion.
        trajectory: arrays of that motion by name: t, q, v, u, impulse.
        covariance: (n, n), of the estimate where the solver computes it and x is identified, None otherwise.
        covariances: the marginals over a horizon, by name: "states" (T+1, n, n) in tangent coordinates, "controls" (T, nu,
            nu), "parameters" (np, np).
        parameters: free parameters (np,) of an optimal control problem.
        violation: the largest of bounds, dynamics and constraints at the point.
        multipliers: of the point, by name, as the solver that found them documents them.
        gains: (T, nu, n), the feedback K of $u_t + K_t (x (-) x_t)$ about the motion, of solvers that have it.
        raw_status: status of a library that did the iterations, in its own words.
        log: text that this library printed.
        smoothed_plan: the last motion with smoothed contact, where there were stages of it (`Continuation`): states "xs",
            controls "us", and its "rho", J. Often more robust under another plant; the answer is the one with rigid contact.
        goals: what became of each goal of the problem by name: (value, tolerance, unit, met, and value / tolerance as `share`).
        terms: cost of each residual of the problem by name, where it is made of residuals; "terminal ..." are those of the
            terminal state.
    """

    problem: str
    solver: str
    gradient: str
    contact: str
    status: Status
    success: bool
    message: str
    x: np.ndarray
    cost: float
    initial_cost: float
    residuals: dict[str, float]
    trace: dict[str, np.ndarray]
    iterations: int
    evaluations: int
    compile_time_s: float
    wall_time_s: float
    seed: int
    xs: np.ndarray | None = None
    us: np.ndarray | None = None
    trajectory: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    covariance: np.ndarray | None = None
    covariances: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    parameters: np.ndarray | None = None
    violation: float = 0.0
    multipliers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    gains: np.ndarray | None = None
    raw_status: str = ""
    log: str = ""
    terms: dict[str, float] = dataclasses.field(default_factory=dict)
    goals: dict[str, GoalReport] = dataclasses.field(default_factory=dict)
    smoothed_plan: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def goals_met(self) -> bool | None:
        """Whether all goals are met; None for a problem that states none."""
        return all(goal.met for goal in self.goals.values()) if self.goals else None

    @property
    def worst_goal(self) -> float:
        """The largest value of a goal in units of its tolerance; NaN without goals."""
        return worst_goal(self.goals)

    @property
    def goals_in_words(self) -> str:
        """"met, turn at 0.62 of its tolerance", of the worst goal; nothing without goals."""
        return goals_in_words(self.goals)

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays, ready for JSON."""
        values = {key: getattr(self, key) for key in _SCALARS}
        values["status"] = status_name(self.status)
        values["constraint_violation"] = float(self.violation)
        values["residuals"] = dict(self.residuals)
        values["terms"] = dict(self.terms)
        values["goals"] = {name: goal._asdict() for name, goal in self.goals.items()}
        values["goals_met"], values["worst_goal"] = self.goals_met, self.worst_goal if self.goals else None
        values["versions"] = versions()
        return values

    def save(
        self, directory: str | os.PathLike, more: Mapping[str, Any] | None = None, *, synchronised: bool = True
    ) -> pathlib.Path:
        """Write summary.json, solution.npz and, where they exist, trajectory.npz and solver.log, all or none; returns the
        directory. more: further entries of the summary. synchronised: wait until all is on the disk."""
        folder = pathlib.Path(directory)
        result_id = new_result_id()
        summary = self.summary() | dict(more or {}) | {RESULT_ID: result_id}
        arrays: dict[str, Any] = {"x": self.x} | {f"trace_{key}": value for key, value in self.trace.items()}
        for key in ("xs", "us", "covariance", "parameters", "gains"):
            if getattr(self, key) is not None:
                arrays[key] = getattr(self, key)
        for field in BY_NAME:
            arrays |= {f"{field}_{key}": value for key, value in getattr(self, field).items()}
        with files.replacing_together(folder, FILES, synchronised=synchronised) as part:
            (part / SUMMARY).write_text(json_text(summary))
            np.savez(part / "solution.npz", allow_pickle=False, **arrays, **{RESULT_ID: np.asarray(result_id)})
            if self.trajectory:
                np.savez(part / TRAJECTORY, allow_pickle=False, **self.trajectory, **{RESULT_ID: np.asarray(result_id)})
            if self.log:
                (part / "solver.log").write_text(self.log)
        return folder

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Solution:
        """Read back what `save` wrote. Raises `OptionError` when the directory holds no finished run, a damaged one, or files of
        several runs."""
        summary, arrays, trajectory, log = _read_files(pathlib.Path(directory))
        nan = float("nan")
        try:
            values: dict[str, Any] = {key: nan if summary[key] is None else summary[key] for key in _SCALARS}
            values |= {key: arrays.get(key) for key in ("xs", "us", "covariance", "parameters", "gains")}
            for key in BY_NAME:
                prefix = f"{key}_"
                values[key] = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            return cls(
                **values,
                violation=nan if summary["constraint_violation"] is None else summary["constraint_violation"],
                status=status_named(summary["status"]),
                residuals={key: nan if value is None else value for key, value in summary["residuals"].items()},
                terms={key: nan if value is None else value for key, value in summary.get("terms", {}).items()},
                goals={name: _goal(value) for name, value in summary.get("goals", {}).items()},
                trace={key.removeprefix("trace_"): value for key, value in arrays.items() if key.startswith("trace_")},
                trajectory=trajectory,
                log=log,
                x=arrays["x"],
            )
        except (KeyError, AttributeError, TypeError) as error:
            raise OptionError(
                f"the run in '{directory}' cannot be read: summary.json or solution.npz lacks {error}, or another program "
                f"changed it; {SOLVE_AGAIN}"
            ) from error


def _goal(value: Mapping[str, Any]) -> GoalReport:
    return GoalReport(**{**value, "value": float("nan") if value["value"] is None else value["value"]})


def new_result_id() -> str:
    """What all files of one result have in common, and no other result has."""
    return uuid.uuid4().hex


def json_text(values: Mapping[str, Any]) -> str:
    """The text of a summary; numbers that are not finite are null, as JSON has none."""
    return json.dumps(finite(values), indent=2, default=str) + "\n"


def read_summary(path: pathlib.Path) -> dict[str, Any]:
    """A summary.json. Raises `OptionError` for a damaged one."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(summary, dict):
            raise ValueError("expected an object")
    except (ValueError, RecursionError) as error:
        raise OptionError(f"'{path}' cannot be read: {error}; {SOLVE_AGAIN}") from error
    return summary


def amend_summary(folder: str | os.PathLike, more: Mapping[str, Any]) -> None:
    """Add entries to the summary.json of a folder."""
    path = pathlib.Path(folder) / SUMMARY
    files.write_text(path, json_text(read_summary(path) | dict(more)))


def check_one_result(folder: str | os.PathLike, ids: Mapping[str, Any]) -> None:
    """Raise `OptionError`, naming the files, unless all have the same result id (None: none, as older files)."""
    kinds = {None if value is None else str(value) for value in ids.values()}
    if len(kinds) > 1:
        said = ", ".join(f"{name} of {'no' if value is None else str(value)[:8]}" for name, value in ids.items())
        raise OptionError(
            f"'{os.fspath(folder)}' mixes files of several results ({said}, by their result_id); put the files of one result "
            f"there, or {SOLVE_AGAIN}"
        )


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray], str]:
    """summary, arrays of the solution and of the trajectory, and the log of one result."""
    missing = OptionError(f"'{folder}' holds no finished run: summary.json and solution.npz are expected there")
    if not folder.is_dir():
        raise missing
    with files.reading_together(folder) as path_of:
        if not path_of(SUMMARY).exists() or not path_of("solution.npz").exists():
            raise missing
        summary = read_summary(path_of(SUMMARY))
        arrays = files.read_arrays(path_of("solution.npz"), SOLVE_AGAIN)
        ids = {SUMMARY: summary.get(RESULT_ID), "solution.npz": arrays.pop(RESULT_ID, None)}
        trajectory: dict[str, np.ndarray] = {}
        if path_of(TRAJECTORY).exists():
            trajectory = files.read_arrays(path_of(TRAJECTORY), SOLVE_AGAIN)
            ids[TRAJECTORY] = trajectory.pop(RESULT_ID, None)
        log = path_of("solver.log")
        check_one_result(folder, ids)
        return summary, arrays, trajectory, log.read_text(errors="replace") if log.exists() else ""


def finite(value: Any) -> Any:
    """`value` with non-finite numbers as None, since JSON has none."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
