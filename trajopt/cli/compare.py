"""`trajopt compare`: the same problem with several solvers, gradient modes and seeds."""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

from rich.console import Console

from trajopt.cli.progress import say, table
from trajopt.cli.run import chosen_settings, drawn
from trajopt.errors import OptionError
from trajopt.occupied import occupying
from trajopt.result import status_name
from trajopt.solvers.registry import chosen_solver, is_random
from trajopt.solvers.sweeps.comparison import Comparison
from trajopt.solvers.sweeps.many import Outcome, Results, iterate_tasks
from trajopt.solvers.sweeps.processes import check_workers, executor_for
from trajopt.solvers.sweeps.stream import BrokenSweepError
from trajopt.solvers.sweeps.tasks import Reference, Task, grid, reference
from trajopt.viz import plots

SHOWN = {
    "solver": "solver",
    "gradient": "gradient",
    "seed": "seed",
    "status": "status",
    "goals": "goals",
    "worst_goal": "worst goal",
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


def folder_of(args: argparse.Namespace) -> pathlib.Path:
    """Where the table and its runs go."""
    return pathlib.Path("runs") / f"compare-{args.problem}" if args.out is None else args.out


def last_words(args: argparse.Namespace) -> str:
    """What a comparison leaves behind when it is ended from outside."""
    return f"finished runs are in {folder_of(args)}: the same command goes on from there"


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns 0 when some run solved the problem, 1 when none did. terminated: whether a termination signal has
    come, after which nothing is drawn."""
    console = Console()
    if args.workers is not None:
        check_workers(args.workers)
    given = reference(args.problem, chosen_settings(args.problem, args.settings, None))
    problem = given.make()
    tasks = _tasks(args, given, problem)
    with occupying(folder_of(args)):
        comparison = _compared(args, console, tasks)
        return _finish(console, comparison, len(tasks), folder_of(args), problem.violation_tolerance, terminated)


def _compared(args: argparse.Namespace, console: Console, tasks: list[Task]) -> Comparison:
    """What became of the runs, up to an interruption."""
    folder = folder_of(args)
    if args.again:
        Results(folder).clear()
    outcomes: dict[int, Outcome] = {}
    try:
        with executor_for(args.workers) as executor:
            for outcome in iterate_tasks(tasks, executor=executor, folder=folder):
                outcomes[outcome.index] = outcome
                say(console, str(outcome))
                if outcome.solution is not None and status_name(outcome.solution.status) == "interrupted":
                    break
    except BrokenSweepError as error:
        say(console, f"{error}")
    except KeyboardInterrupt:
        if not outcomes:
            raise
    return Comparison(args.problem, [outcomes[index] for index in sorted(outcomes)])


def _tasks(args: argparse.Namespace, given: Reference, problem: Any) -> list[Task]:
    """The runs that the command line asks for; a solver without anything random runs once, whatever the number of seeds."""
    chosen = [chosen_solver(problem, name) for name in split(args.solvers, "--solvers")]
    gradients = [problem.defaults.gradient] if args.gradients is None else split(args.gradients, "--gradients")
    return [
        task
        for solver in chosen
        for task in grid(
            given, solver, gradients=gradients, seeds=range(args.seeds if is_random(solver) else 1),
            time_budget=args.budget, max_iterations=args.max_iterations,
        )
    ]  # fmt: skip


def _finish(
    console: Console, comparison: Comparison, total: int, folder: pathlib.Path, tolerance: float, terminated: Callable[[], bool]
) -> int:
    comparison.write(folder)
    options = {"title": comparison.problem, "tolerance": tolerance}
    wanted = bool(comparison.solutions) and not terminated()
    pictured = wanted and drawn(plots.comparison, comparison.solutions, folder / "compare.png", **options)
    rows = comparison.rows()
    shown = [[_cell(row[key]) for key in SHOWN] for row in rows]
    say(console, "\n" + table(comparison.problem, list(SHOWN.values()), shown))
    for outcome in comparison.outcomes:
        if outcome.error:
            say(console, f"failed: {outcome.task.title}: {outcome.error}")
    if len(rows) < total:
        say(console, f"{len(rows)} of {total} runs; the same command goes on with the others")
    say(console, f"written: {folder}/compare.csv, compare.json" + (", compare.png" if pictured else ""))
    return 0 if any(solution.success for solution in comparison.solutions) else 1


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3g}"
    return "" if value is None else str(value)
