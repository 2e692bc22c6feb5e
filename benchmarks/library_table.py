"""Every problem of the library with every solver: a table of what each does in the same few seconds.

    python benchmarks/library_table.py                              # whatever is missing, then docs/notes/library-table.md
    python benchmarks/library_table.py --problems hopper --solvers iLQR,DDP
    python benchmarks/library_table.py --page-only                  # the page again from the rows that are there

A cell is one problem, one solver, one seed and --budget seconds of solving (compilation left out) from the problem's own guess,
with the options that the problem names for the solver, if any, and with defaults otherwise. It runs in a process beside this
one, which is stopped --limit seconds after the cell began. Seconds are processor seconds (`cells`). Finished cells are kept in
--cache: an interrupted table goes on where it was, and --again runs cells once more whose status it names (such as
"error,hard limit"). The page is written anew between its markers after every cell.
"""

import argparse
import datetime
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from cells import CONTROL, CRASHED, NOT_APPLICABLE, ROOT, STOPPED, TAKES, Cache, Cell, machine, run_with
from measure import markdown

CACHE, PAGE = ROOT / ".cache" / "library-table.jsonl", ROOT / "docs" / "notes" / "library-table.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
WORDS = {"time_budget": "time limit", "max_iterations": "iteration limit", "line_search_failed": "line search failed"}
HEAD = ("solver", "status", "goals", "worst goal", "cost", "violation", "iterations", "solve, s", "compile, s", "remark")
REMARK = 110  # characters
WORKERS = "so many processes, or tcp://HOST:PORT of a dask scheduler whose workers have benchmarks/ on their path"
GOALS = {None: "", True: "met", False: "not met"}
SMALL = 1e-6  # violation that the overview does not mention


def gather(
    cells: Sequence[Cell], cache: Cache, limit: float, again: Sequence[str], done: Callable[[], None],
    executor: Executor | None = None,
) -> None:  # fmt: skip
    """Run the cells that the cache lacks, or whose status is in `again`, and call `done` after each."""

    def wanted(cell: Cell) -> bool:
        row = cache.get(cell)
        return row is None or row["status"] in again

    missing = [cell for cell in cells if wanted(cell)]
    for count, (cell, row) in enumerate(run_with(executor, missing, limit), 1):
        cache.put(cell, row)
        done()
        took, text = row["elapsed_s"], row["message"][:100]
        print(f"{count}/{len(missing)} {cell.problem} {cell.solver}: {row['status']}, {took:.0f} s; {text}", flush=True)


def number(value: Any) -> str:
    """A number of a table; empty for a missing one."""
    return "" if value is None else f"{value:.4g}"


def status(row: dict[str, Any]) -> str:
    """The status in words; a residual within the tolerance counts whatever made the solver stop."""
    word = WORDS.get(row["status"], row["status"].replace("_", " "))
    judged = row.get("goals_met") is not None  # by goals, which have a column of their own
    met = row.get("success") and not judged and row["status"] not in ("solved", "acceptable")
    return f"{word}, within tolerance" if met else word


def goals(row: dict[str, Any]) -> str:
    """Whether the goals are met; empty for a problem without any. The worst one is in units of its tolerance."""
    return GOALS[row.get("goals_met")]


def remark(row: dict[str, Any], gradients: set[str]) -> str:
    """What the message says beyond the status, in one line."""
    unsaid = row["status"] in (CRASHED, STOPPED)
    parts = [row["message"]] if unsaid else row["message"].split("; ")[1:]
    said = ("the best point so far", "raise max_iterations", "IPOPT: 5: ")  # the last: that the budget ended the run
    parts = [part for part in parts if not part.startswith(said)]
    if len(gradients) > 1 and row.get("gradient"):
        parts.insert(0, f"{row['gradient']} gradients")
    text = "; ".join(parts).replace("|", "/").replace("\n", " ")
    return text if len(text) <= REMARK else text[: REMARK - 4].rstrip() + " ..."


def details(problem: str, cells: Sequence[Cell], cache: Cache) -> list[str]:
    """The section of one problem: a row for each solver that takes it, a line for those that do not."""
    found = [(cell.solver, cache.get(cell)) for cell in cells if cell.problem == problem]
    known = [row for _, row in found if row is not None]
    own = next((row["default"] for row in known if row.get("default")), None)
    gradients = {row["gradient"] for row in known if row.get("gradient")}
    rows, apart, missing = [], {}, []
    for solver, row in found:
        if row is None:
            missing.append(solver)
        elif row["status"] == NOT_APPLICABLE:
            apart.setdefault(row["message"], []).append(solver)
        else:
            name = f"**{solver}**" if solver == own else solver
            numbers = [number(row.get(key)) for key in ("worst_goal", "cost", "violation", "iterations", "wall_time_s")]
            rows.append([name, status(row), goals(row), *numbers, number(row.get("compile_time_s")), remark(row, gradients)])
    lines = [f"## {problem}", "", *([markdown(HEAD, rows)] if rows else [])]
    lines += ["", *[f"Does not apply: {', '.join(names)} ({reason})." for reason, names in apart.items()]]
    lines += [f"Not run: {', '.join(missing)}."] if missing else []
    return [*lines, ""]


def short(row: dict[str, Any] | None) -> str:
    """A cell of the overview."""
    if row is None:
        return "not run"
    if row["status"] == NOT_APPLICABLE:
        return "-"
    cost = number(row.get("cost"))
    if row.get("success"):
        return f"**{cost}**"
    off = row.get("violation") or 0.0
    return f"{status(row)} {cost}".strip() + (f" ({off:.1e})" if off > SMALL and row.get("kind") == CONTROL else "")


def page(cells: Sequence[Cell], cache: Cache, budget: float, limit: float, where: str) -> str:
    """What stands between the markers."""
    problems, solvers = (list(dict.fromkeys(getattr(cell, key) for cell in cells)) for key in ("problem", "solver"))
    rows = [[name, *(short(cache.get(c)) for c in cells if c.problem == name)] for name in problems]
    takes = [[name, " and ".join(TAKES[name])] for name in solvers if name in TAKES]
    load = [row["load"] for cell in cells if (row := cache.get(cell)) and row.get("load") is not None]
    lines = [
        f"`python benchmarks/library_table.py`, {datetime.date.today().isoformat()}, {where}; {budget:g} s of solving and "
        f"{limit:g} s in all for a cell, processor seconds; seed {cells[0].seed}"
        + (f"; average load of the machine {min(load):.1f} to {max(load):.1f}." if load else "."),
        "",
        markdown(("problem", *solvers), rows),
        "",
        markdown(("solver", "takes"), takes),
        "",
    ]
    for problem in problems:
        lines += details(problem, cells, cache)
    return "\n".join(lines).rstrip() + "\n"


def write(path: pathlib.Path, text: str) -> None:
    """Put `text` between the markers of the page; a page without them is begun."""
    old = path.read_text() if path.exists() else f"# The library, solver by solver\n\n{BEGIN}\n{END}\n"
    before, after = old.split(BEGIN)[0], old.split(END)[-1]
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", help="names separated by commas, in this order; default: all")
    parser.add_argument("--solvers", help="names separated by commas; default: all")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of solving of a cell (default 10)")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds after which a cell is stopped (default 120)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", default="", help="statuses, separated by commas, whose cells are run once more")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE, help="default .cache/library-table.jsonl")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="default docs/notes/library-table.md")
    parser.add_argument("--solutions", default="", help="folder in which every solution is saved; default: nowhere")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("--workers", help=WORKERS)
    options = parser.parse_args(arguments)
    from trajopt import problems

    split = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    cache, where = Cache(options.cache), machine()
    keep = {"seed": options.seed, "budget": options.budget, "folder": options.solutions}
    cell = lambda problem, solver: Cell(problem, solver, **keep)  # noqa: E731
    everything = [cell(problem, solver) for problem in problems.names() for solver in TAKES]
    chosen = split(options.problems) if options.problems else list(problems.names())
    with_solvers = split(options.solvers) if options.solvers else list(TAKES)

    def update() -> None:
        begun = {c.problem for c in everything if cache.get(c) is not None}  # problems without any cell are left out
        shown = [c for c in everything if c.problem in begun] or everything
        write(options.page, page(shown, cache, options.budget, options.limit, where))

    if not options.page_only:
        from trajopt.solvers.sweeps import executor_for

        wanted = [cell(problem, solver) for problem in chosen for solver in with_solvers]
        with executor_for(options.workers) as executor:
            gather(wanted, cache, options.limit, split(options.again), update, executor)
    update()


if __name__ == "__main__":
    main()
