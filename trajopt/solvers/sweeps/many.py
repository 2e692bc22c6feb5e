"""Many solves through one executor: results as they come, kept one by one, and a second run that goes on.

A sweep writes every result as it comes, so that whatever ends it leaves all that was finished; a second one reads them first and
goes on with what is missing. Nothing waits for the disk, which would take longer than all else about a short task: where the
machine loses its power, results of the last seconds may be damaged. What cannot be read is solved again.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from trajopt import files
from trajopt.errors import OptionError
from trajopt.names import counted
from trajopt.occupied import occupying
from trajopt.result import status_name
from trajopt.solvers.loop.fingerprint import fingerprint
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.sweeps.stream import Answer, stream
from trajopt.solvers.sweeps.tasks import Reference, Task, grid
from trajopt.solvers.sweeps.worker import Problems, Sender, first_line, solve_parcel, solve_task


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a task.

    Attributes:
        task: the `Task`.
        index: its place among the tasks.
        solution: its `Solution`, None where it failed.
        error: why it failed, in one line; empty where it did not.
        attempts: how often it was tried, 0 for a result that was `kept` in the folder.
        finished: number of tasks that are finished, this one included.
        total: number of tasks.
    """

    task: Task
    index: int
    solution: Solution | None
    error: str
    attempts: int
    finished: int
    total: int

    @property
    def kept(self) -> bool:
        """Whether an earlier run had solved it."""
        return self.attempts == 0

    def __str__(self) -> str:
        """One line for a log."""
        again = ", at the second attempt" if self.attempts > 1 else ""
        if self.solution is None:
            what = f"failed{again}: {self.error}"
        else:
            status = status_name(self.solution.status)
            what = f"{status}, cost {self.solution.cost:.3e} after {counted(self.solution.iterations, 'iteration')}{again}"
        return f"[{self.finished}/{self.total}] {self.task.title}: {what}{' (kept)' if self.kept else ''}"


class Results:
    """Solutions by key in a folder: `solutions/KEY` holds what `Solution.save` writes, all or nothing."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = pathlib.Path(folder) / "solutions"

    def get(self, key: str) -> Solution | None:
        """The solution of `key`, None where there is none; a damaged one is told in a warning."""
        if not (self.folder / key).exists():
            return None
        try:
            return Solution.load(self.folder / key)
        except OptionError as error:
            warnings.warn(f"a kept result is solved again: {error}", stacklevel=3)
            return None

    def put(self, key: str, solution: Solution, more: dict[str, Any]) -> None:
        """Keep a solution, with more entries of its summary, in the folder before this returns."""
        files.tidy(self.folder / key)
        solution.save(self.folder / key, more, synchronised=False)

    def clear(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def solve_many(
    problems: Any,
    solvers: Any,
    *,
    settings: dict[str, Sequence[Any]] | None = None,
    gradients: Sequence[str | None] = (None,),
    seeds: Sequence[int] = (0,),
    starts: Sequence[Any] = (None,),
    time_budget: float | None = None,
    max_iterations: int | None = None,
    executor: Executor | None = None,
    folder: str | os.PathLike | None = None,
    progress: Callable[[Outcome], Any] | None = None,
) -> list[Outcome]:
    """Solve every problem with every solver, combination of settings, gradient mode, seed and start: the product of `tasks.grid`,
    which explains these arguments, through `solve_tasks`, which explains the others. Outcomes come back in that order.
    """
    tasks = grid(
        problems, solvers, settings=settings, gradients=gradients, seeds=seeds, starts=starts,
        time_budget=time_budget, max_iterations=max_iterations,
    )  # fmt: skip
    return solve_tasks(tasks, executor=executor, folder=folder, progress=progress)


def solve_tasks(
    tasks: Sequence[Task],
    *,
    executor: Executor | None = None,
    folder: str | os.PathLike | None = None,
    progress: Callable[[Outcome], Any] | None = None,
) -> list[Outcome]:
    """Solve tasks that do not depend on each other; returns their outcomes in the order of the tasks.

    Arguments:
        executor: any `concurrent.futures.Executor`: `Processes(n)` of this machine, `client.get_executor()` of dask,
            `MPIPoolExecutor` of mpi4py. Default: here, one after the other.
        folder: where each solution is kept as it comes. A later call with the same folder solves only what is not there: a
            task is known by its problem, settings, solver, options, gradient, seed, start, limits and the version of the
            package. Failures and interrupted solves are not kept.
        progress: called with each `Outcome` as it comes, those that were kept first; a true answer ends the sweep.

    A task that fails, or whose worker dies, is tried once more, elsewhere where there is another worker; errors of trajopt's own,
    such as a solver that does not take the problem, would only come again and are not. Raises `BrokenSweepError` where the
    executor breaks. Whatever ends the sweep, what was finished is in the folder.
    """
    outcomes: dict[int, Outcome] = {}
    for outcome in iterate_tasks(tasks, executor=executor, folder=folder):
        outcomes[outcome.index] = outcome
        if progress is not None and progress(outcome):
            break
    return [outcomes[index] for index in sorted(outcomes)]


def iterate_tasks(
    tasks: Sequence[Task], *, executor: Executor | None = None, folder: str | os.PathLike | None = None
) -> Iterator[Outcome]:
    """The outcomes of tasks as they come, as `solve_tasks` has them. The folder belongs to the sweep until it ends."""
    tasks = list(tasks)
    if executor is not None and not isinstance(executor, Executor):
        raise OptionError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, such as solvers.Processes(2), or None"
        )
    keys = _keys(tasks)
    with contextlib.nullcontext() if folder is None else occupying(folder):
        yield from _outcomes(tasks, keys, executor, None if folder is None else Results(folder))


def _outcomes(
    tasks: list[Task], keys: list[str], executor: Executor | None, results: Results | None
) -> Iterator[Outcome]:
    """The outcomes, those that are kept first."""
    finished, missing = 0, list[int]()
    for index, task in enumerate(tasks):
        known = None if results is None else results.get(keys[index])
        if known is None:
            missing.append(index)
        else:
            finished += 1
            yield Outcome(task, index, known, "", 0, finished, len(tasks))
    for answer in _solved([tasks[index] for index in missing], executor):
        index, finished = missing[answer.index], finished + 1
        solution, error = answer.value, "" if answer.error is None else first_line(answer.error)
        if results is not None and solution is not None and status_name(solution.status) != "interrupted":
            results.put(keys[index], solution, {"task": tasks[index].title, "attempts": answer.attempts})
        yield Outcome(tasks[index], index, solution, error, answer.attempts, finished, len(tasks))


def _keys(tasks: Sequence[Task]) -> list[str]:
    """The key of each task. Raises `OptionError` for a task that is there twice."""
    places: dict[str, int] = {}
    problems: dict[int, str] = {}
    for index, task in enumerate(tasks):
        if id(task.problem) not in problems:
            problems[id(task.problem)] = fingerprint(task.problem)
        key = task.key(problems[id(task.problem)])
        if key in places:
            raise OptionError(f"tasks {places[key]} and {index} are the same ({task.title}); give each once")
        places[key] = index
    return list(places)


def _solved(tasks: Sequence[Task], executor: Executor | None) -> Iterator[Answer]:
    if executor is not None:
        return stream(solve_parcel, tasks, executor, Sender().parcel)
    made = Problems()

    def here(task: Task) -> Solution:
        found = task.problem
        return solve_task(made.get(id(found), found.make) if isinstance(found, Reference) else found, task)

    return stream(here, tasks, None)
