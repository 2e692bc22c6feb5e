"""Runs of a problem with a solver in a process beside this one, each with a hard limit, kept as they finish.

A `Cell` is what is run: problem, solver, its options, seed, seconds of solving. `run` works through a list of them. Cells of one
problem that follow each other share a process, and with it imports and compiled programs; one that takes longer than `limit`
seconds, compilation included, is stopped with its process, and the next starts a new one. Every cell gets a row, of a crash or a
stop too. `run_with` hands cells to the workers of an executor, each in a process of its own. `Cache` holds the rows in a file of
JSON lines, so that a table goes on where it was interrupted.

All seconds are processor seconds of the cell's process, its threads added up: on a machine that is shared they say what a wall
clock says on one that is not, as long as one thread works, which is so while solving; compilation uses several. Should a process
wait rather than work, `PATIENCE` times the limit on the wall clock ends it.

The process is this file:

    python benchmarks/cells.py CELLS REPORT LIMIT     # CELLS in JSON; lines of JSON are appended to the file REPORT
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTROL, LEAST_SQUARES = "optimal control", "least squares"
# Which class of problem a solver takes.
TAKES: dict[str, tuple[str, ...]] = {
    "iLQR": (CONTROL,),
    "DDP": (CONTROL,),
    "MultipleShooting": (CONTROL,),
    "SingleShooting": (CONTROL,),
    "CEM": (CONTROL,),
    "MPPI": (CONTROL,),
    "CMAES": (CONTROL,),
    "StochasticSearch": (CONTROL,),
    "Hybrid": (CONTROL,),
    "GaussNewton": (LEAST_SQUARES, CONTROL),
    "LBFGS": (LEAST_SQUARES,),
    "GradientDescent": (LEAST_SQUARES,),
}
POINTS = 300  # of a trace, at most
POLL_S = 0.1
PATIENCE = 20  # wall-clock seconds for each second of the limit
NOT_APPLICABLE, CRASHED, STOPPED = "does not apply", "error", "hard limit"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run.

    budget: seconds of solving, compilation left out. perturbation: deviation of the seeded noise on the initial controls, as a
    share of half the distance between their bounds; seed 0 has none. trace: whether the row keeps it. folder: where the solution
    is saved as PROBLEM-SOLVER-SEED, empty for nowhere.
    """

    problem: str
    solver: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    budget: float = 10.0
    perturbation: float = 0.0
    trace: bool = False
    folder: str = ""

    @property
    def key(self) -> str:
        """What identifies the run in a cache."""
        values = dataclasses.asdict(self)
        del values["trace"], values["folder"]
        return json.dumps(values, sort_keys=True)

    @property
    def names(self) -> dict[str, Any]:
        """How its row begins."""
        return {"problem": self.problem, "solver": self.solver, "seed": self.seed, "options": self.options}


class Cache:
    """The rows of cells in a file of JSON lines; a later line replaces an earlier one of the same cell, what a killed writer cut
    short is dropped."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self._rows = path, dict[str, dict[str, Any]]()
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self._rows[entry["key"]] = entry["row"]

    def get(self, cell: Cell) -> dict[str, Any] | None:
        return self._rows.get(cell.key)

    def put(self, cell: Cell, row: dict[str, Any]) -> None:
        """Keep a row, on disk before this returns."""
        self._rows[cell.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+") as stream:
            whole = not stream.tell() or self.path.read_bytes().endswith(b"\n")
            stream.write(("" if whole else "\n") + json.dumps({"key": cell.key, "row": row}) + "\n")


def run(cells: Sequence[Cell], limit: float) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """(cell, row) of every cell, in their order, each at most `limit` processor seconds long."""
    cells = list(cells)
    while cells:
        same = list(itertools.takewhile(lambda cell: cell.problem == cells[0].problem, cells))
        count = 0
        for row in _process(same, limit):
            yield same[count], row
            count += 1
        del cells[:count]


def run_with(executor: Executor | None, cells: Sequence[Cell], limit: float) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """As `run`, with the workers of an executor, each cell in a process of its own, and in the order in which they finish."""
    if executor is None:
        yield from run(cells, limit)
        return
    from trajopt.solvers.sweeps.stream import stream

    for answer in stream(run_alone, [(cell, limit) for cell in cells], executor):
        cell = cells[answer.index]
        failed = cell.names | {"status": CRASHED, "message": str(answer.error), "elapsed_s": 0.0}
        yield cell, failed if answer.value is None else answer.value


def run_alone(task: tuple[Cell, float]) -> dict[str, Any]:
    """The row of one cell, for an executor; task: the cell and its limit in seconds."""
    return next(row for _, row in run([task[0]], task[1]))


def _process(cells: list[Cell], limit: float) -> Iterator[dict[str, Any]]:
    """Rows of cells of one problem from one process; ends early, but with a row at least, when that is stopped or breaks."""
    with tempfile.TemporaryDirectory() as folder:
        report, errors = pathlib.Path(folder) / "report", pathlib.Path(folder) / "errors"
        report.touch()
        command = [
            sys.executable,
            __file__,
            json.dumps([dataclasses.asdict(cell) for cell in cells]),
            str(report),
            str(limit),
        ]
        environment = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")} | dict(os.environ)
        with errors.open("w") as stream:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, env=environment)
        try:
            for k, cell in enumerate(cells):
                start, code, lines = time.perf_counter(), None, []
                while code is None and time.perf_counter() - start < PATIENCE * limit:
                    code = process.poll()
                    lines = [line for line in _lines(report) if line["cell"] == k]
                    if lines and "row" in lines[-1]:
                        break
                    time.sleep(POLL_S)
                row = row_of(cell, lines, code, errors.read_text(), limit)
                yield row | {"elapsed_s": time.perf_counter() - start}
                if row["status"] in (STOPPED, CRASHED) and "stage" in row:
                    return
        finally:
            process.kill()
            process.wait()


def _lines(report: pathlib.Path) -> list[dict[str, Any]]:
    """What the process has said so far; a line that is being written is left for the next time."""
    return [json.loads(line) for line in report.read_text().split("\n")[:-1]]


def row_of(cell: Cell, lines: list, code: int | None, complaint: str, limit: float) -> dict[str, Any]:
    """The row of a cell from what its process said; without an answer it tells the `stage` that was reached."""
    if lines and "row" in lines[-1]:
        return lines[-1]["row"]
    last = {"stage": "preparing"}
    for line in lines:
        last |= line
    row = cell.names | {key: value for key, value in last.items() if key != "cell"}
    if code is None or code == -signal.SIGXCPU:
        return row | {"status": STOPPED, "message": f"stopped after {limit:.0f} s while {last['stage']}"}
    words = complaint.strip().splitlines()[-1:] or [f"the process ended with code {code}"]
    return row | {"status": CRASHED, "message": words[0][:300]}


def machine() -> str:
    """Processor, cores and versions, one line, without the name of the host."""
    from measure import banner

    return re.sub(r", one pinned.*?;", ";", banner("trajopt", "cyipopt"))


# -- in the process of the cells ---------------------------------------------------------------------------------------


def kind(problem: Any) -> str:
    """The class of a problem, as `TAKES` names it."""
    from trajopt.problems import OptimalControlProblem

    return CONTROL if isinstance(problem, OptimalControlProblem) else LEAST_SQUARES


def first_line(error: BaseException) -> str:
    """Kind and first line of an error, for a table."""
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"[:300]


def perturbed(problem: Any, share: float, seed: int) -> Any:
    """The problem's guess with seeded noise on the controls, constant over tenths of the horizon; None without noise."""
    if not share or seed == 0:
        return None
    import numpy as np

    T, nu = problem.u0.shape
    size = (problem.control_upper - problem.control_lower) / 2
    noise = np.random.default_rng(seed).normal(size=(10, nu)) * share * np.where(np.isfinite(size), size, 1.0)
    us = problem.u0 + noise[np.arange(T) * 10 // T]
    return dataclasses.replace(problem.initial_point, us=np.clip(us, problem.control_lower, problem.control_upper))


def summary(solution: Any, trace: bool) -> dict[str, Any]:
    """The row of a finished run, without the names of its cell."""
    import numpy as np

    from trajopt.result import status_name
    from trajopt.solvers.loop.solution import finite

    keys = ("gradient", "contact", "cost", "initial_cost", "iterations", "evaluations", "wall_time_s", "compile_time_s")
    row = {key: getattr(solution, key) for key in keys}
    row |= {"status": status_name(solution.status), "success": bool(solution.success), "message": solution.message}
    row["violation"] = solution.residuals.get("residual", solution.violation)
    row["residuals"] = dict(solution.residuals)
    row |= {"goals_met": solution.goals_met, "worst_goal": solution.worst_goal}
    if trace:
        n = len(solution.trace["time"])
        kept = np.unique(np.linspace(0, n - 1, min(n, POINTS)).astype(int))
        row["trace"] = {key: np.asarray(values)[kept].tolist() for key, values in solution.trace.items()}
    return finite(row)


def attempt(problem: Any, cell: Cell, say: Callable[..., None]) -> dict[str, Any]:
    """The row of one cell, run here; `say` is told about the progress."""
    from trajopt import solvers
    from trajopt.errors import DerivativeError, OptionError
    from trajopt.solvers.loop.solution import finite
    from trajopt.solvers.registry import chosen_solver

    solver = chosen_solver(problem, cell.solver)
    solver = dataclasses.replace(solver, **cell.options) if cell.options else solver
    said = [0.0]

    def progress(row: dict[str, float]) -> None:
        if time.monotonic() - said[0] > 0.5:
            stage = "solving" if row["iteration"] else "compiling"
            told = {key: row[key] for key in ("cost", "violation")} | {"wall_time_s": row["time"]}
            said[0] = time.monotonic()
            stage = "recomputing the answer" if row["time"] >= cell.budget else stage
            say(stage=stage, iterations=int(row["iteration"]), evaluations=int(row["evaluations"]), **finite(told))

    def solved(gradient: str) -> Any:
        guess = perturbed(problem, cell.perturbation, cell.seed)
        return solvers.solve(
            problem, solver, x0=guess, gradient=gradient, seed=cell.seed, time_budget=cell.budget, callback=progress
        )

    say(stage="compiling")
    try:
        try:
            solution = solved(problem.defaults.gradient)
        except DerivativeError:
            if problem.defaults.gradient == "implicit":
                raise
            solution = solved("implicit")
    except (OptionError, DerivativeError) as error:
        return {"status": NOT_APPLICABLE, "message": first_line(error)}
    except Exception as error:
        return {"status": CRASHED, "message": first_line(error)}
    if cell.folder:
        solution.save(pathlib.Path(cell.folder) / f"{cell.problem}-{cell.solver}-{cell.seed}")
    return summary(solution, cell.trace) | {"load": os.getloadavg()[0]}


def limit_processor_time(seconds: float) -> None:
    """Let the system end this process when it has worked for so many seconds more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def work(cells: list[Cell], report: pathlib.Path, limit: float) -> None:
    """Run cells of one problem here and append what happens to `report`."""
    # The solvers' own clock, their traces and budgets with it, counts processor time from here on.
    time.perf_counter = time.process_time
    import jax

    jax.config.update("jax_enable_x64", True)
    from trajopt import problems

    def say(cell: int, **values: Any) -> None:
        with report.open("a") as stream:
            stream.write(json.dumps({"cell": cell} | values) + "\n")

    limit_processor_time(limit)
    problem = problems.get(cells[0].problem)
    own = {"kind": kind(problem), "default": problem.defaults.solver}
    for k, cell in enumerate(cells):
        limit_processor_time(limit)
        say(k, **own)
        if own["kind"] in TAKES.get(cell.solver, (CONTROL, LEAST_SQUARES)):
            row = attempt(problem, cell, functools.partial(say, k))
        else:
            row = {"status": NOT_APPLICABLE, "message": f"takes {' and '.join(TAKES[cell.solver])} only"}
        say(k, row=cell.names | own | row)


if __name__ == "__main__":
    work([Cell(**values) for values in json.loads(sys.argv[1])], pathlib.Path(sys.argv[2]), float(sys.argv[3]))
