"""The same problem with several solvers, gradient modes and seeds: a table of what each does."""

import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from trajopt import files
from trajopt.solvers.loop.solution import Solution, finite, versions
from trajopt.solvers.sweeps.many import Outcome, solve_tasks
from trajopt.solvers.sweeps.tasks import grid

COLUMNS = (
    "solver",
    "gradient",
    "seed",
    "status",
    "success",
    "goals",
    "worst_goal",
    "cost",
    "violation",
    "iterations",
    "evaluations",
    "compile_time_s",
    "wall_time_s",
)
GOALS = {None: "", True: "met", False: "not met"}  # of a run; `worst_goal` is in units of its tolerance
FAILED = "error"  # the status of a run without a solution


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """What became of every run, in the order solver, gradient, seed.

    Attributes:
        problem: the problem that was solved.
        outcomes: an `Outcome` for each run.
    """

    problem: str
    outcomes: list[Outcome]

    @property
    def solutions(self) -> list[Solution]:
        """Those that there are."""
        return [outcome.solution for outcome in self.outcomes if outcome.solution is not None]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each run, with `COLUMNS`; a run that failed has the status "error" and no figures."""
        return [_row(outcome) for outcome in self.outcomes]

    def write(self, folder: str | os.PathLike) -> None:
        """Write compare.csv, and compare.json with the traces and the errors of failed runs."""
        place, rows = pathlib.Path(folder), self.rows()
        runs = []
        for row, outcome in zip(rows, self.outcomes, strict=True):
            trace = {} if outcome.solution is None else outcome.solution.trace
            more: dict[str, Any] = {"trace": {key: finite(values.tolist()) for key, values in trace.items()}}
            more |= {"error": outcome.error} if outcome.error else {}
            runs.append({key: finite(value) for key, value in row.items()} | more)
        document = {"problem": self.problem, "versions": versions(), "runs": runs}
        with files.replacing_together(place, ("compare.csv", "compare.json")) as part:
            with open(part / "compare.csv", "w", newline="") as stream:
                writer = csv.DictWriter(stream, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
            (part / "compare.json").write_text(json.dumps(document, indent=1) + "\n")


def compare(
    problem: Any,
    solvers: Any,
    *,
    gradients: Sequence[str | None] = (None,),
    seeds: Sequence[int] = (0,),
    time_budget: float | None = None,
    max_iterations: int | None = None,
    executor: Executor | None = None,
    folder: str | os.PathLike | None = None,
    progress: Callable[[Outcome], Any] | None = None,
) -> Comparison:
    """Solve a problem with every solver, gradient mode and seed; arguments as in `solve_many`.

    Where iterations end the runs, not seconds, the rows are the same whatever the executor, but for their times.
    """
    tasks = grid(
        problem, solvers, gradients=gradients, seeds=seeds, time_budget=time_budget, max_iterations=max_iterations
    )
    outcomes = solve_tasks(tasks, executor=executor, folder=folder, progress=progress)
    return Comparison(problem if isinstance(problem, str) else tasks[0].problem.name, outcomes)


def _row(outcome: Outcome) -> dict[str, Any]:
    solution, task = outcome.solution, outcome.task
    if solution is None:
        names = {"solver": task.solver.name, "gradient": task.gradient or "", "seed": task.seed}
        return dict.fromkeys(COLUMNS) | names | {"status": FAILED, "success": False}
    values = solution.summary()
    # Least squares without constraints: what is left of the residual is what was to vanish.
    values["goals"] = GOALS[solution.goals_met]
    values["violation"] = solution.residuals.get("residual", values["constraint_violation"])
    return {key: values[key] for key in COLUMNS}
