"""`trajopt compare`: the same problem with several solvers, gradient modes and seeds."""

from __future__ import annotations

import argparse
import csv
import json
import math
import pathlib
from typing import Any

from rich.console import Console

from trajopt import solvers
from trajopt.cli.progress import say, table
from trajopt.cli.run import chosen_solver, drawn, make_problem
from trajopt.errors import OptionError
from trajopt.result import status_name
from trajopt.solvers.loop.solution import Solution, versions
from trajopt.viz import plots

COLUMNS = (
    "solver",
    "gradient",
    "seed",
    "status",
    "success",
    "cost",
    "violation",
    "iterations",
    "evaluations",
    "compile_time_s",
    "wall_time_s",
)
SHOWN = {
    "solver": "solver",
    "gradient": "gradient",
    "seed": "seed",
    "status": "status",
    "cost": "cost",
    "violation": "violation",
    "iterations": "iterations",
    "evaluations": "evaluations",
    "compile_time_s": "compile [s]",
    "wall_time_s": "solve [s]",
}


def split(text: str, option: str) -> list[str]:
    """The entries of a comma-separated option, without repetitions."""
    entries = list(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))
    if not entries:
        raise OptionError(f"{option} names nothing; expected names separated by commas")
    return entries


def compare(args: argparse.Namespace) -> int:
    """Run the command; returns 0 when some run solved the problem, 1 when none did."""
    console = Console()
    problem = make_problem(args.problem, args.settings, None)
    chosen = [chosen_solver(problem, name) for name in split(args.solvers, "--solvers")]
    gradients = [problem.gradient] if args.gradients is None else split(args.gradients, "--gradients")
    for gradient in gradients:
        problem.check_gradient(gradient)
    folder = pathlib.Path("runs") / f"compare-{args.problem}" if args.out is None else args.out
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Solution] = []
    for solver in chosen:
        for gradient in gradients:
            for seed in range(args.seeds):
                solution = solvers.solve(problem, solver, gradient=gradient, seed=seed, time_budget=args.budget)
                results.append(solution)
                say(console, _progress(solution))
                if status_name(solution.status) == "interrupted":
                    return _finish(console, problem, results, folder)
    return _finish(console, problem, results, folder)


def _progress(solution: Solution) -> str:
    return (
        f"{solution.solver}, {solution.gradient}, seed {solution.seed}: {status_name(solution.status)}, "
        f"cost {solution.cost:.3e} after {solution.iterations} iterations"
    )


def _finish(console: Console, problem: Any, results: list[Solution], folder: pathlib.Path) -> int:
    rows = [_row(solution) for solution in results]
    with open(folder / "compare.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    document = {"problem": problem.name, "versions": versions(), "runs": []}
    for row, solution in zip(rows, results, strict=True):
        trace = {key: [_number(value) for value in values.tolist()] for key, values in solution.trace.items()}
        document["runs"].append({key: _number(value) for key, value in row.items()} | {"trace": trace})
    (folder / "compare.json").write_text(json.dumps(document, indent=1) + "\n")
    pictured = drawn(plots.comparison, results, folder / "compare.png", title=problem.name)
    shown = [[_cell(row[key]) for key in SHOWN] for row in rows]
    say(console, "\n" + table(problem.name, list(SHOWN.values()), shown))
    say(console, f"written: {folder}/compare.csv, compare.json" + (", compare.png" if pictured else ""))
    return 0 if any(solution.success for solution in results) else 1


def _row(solution: Solution) -> dict[str, Any]:
    values = solution.summary()
    # Least squares without constraints: what is left of the residual is what was to vanish.
    values["violation"] = solution.residuals.get("residual", values["constraint_violation"])
    return {key: values[key] for key in COLUMNS}


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
