"""Loss against time of every optimal control solver on cart-pole, double cart-pole and catapult (Nimble, Fig. 7).

    python benchmarks/solver_comparison.py                            # whatever is missing, then table and picture
    python benchmarks/solver_comparison.py --problems catapult --seeds 2
    python benchmarks/solver_comparison.py --page-only

Every solver starts from the problem's guess; seeds above 0 add noise to its controls, so that solvers without a random part have
a spread, too. The loss of an iterate is its cost plus a weight times its largest violation (of constraints, bounds and, in
multiple shooting, of the dynamics), and a curve is the least loss so far. A run succeeds when that falls to the threshold.
Seconds are processor seconds (`cells`), compilation apart. `LONG` are searches on the catapult with ten times the time that
multiple shooting takes there. Finished runs are kept in --cache; the page is written anew between its markers after each.
"""

import argparse
import dataclasses
import datetime
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from cells import CONTROL, CRASHED, NOT_APPLICABLE, ROOT, STOPPED, TAKES, Cache, Cell, machine
from library_table import WORKERS, gather, number, table, write

CACHE = ROOT / ".cache" / "solver-comparison.jsonl"
PAGE, PICTURE = ROOT / "docs" / "notes" / "solver-comparison.md", ROOT / "docs" / "images" / "solver-comparison.png"
SAMPLERS = ("CEM", "MPPI", "CMAES", "StochasticSearch")
SOLVERS = tuple(name for name, kinds in TAKES.items() if kinds == (CONTROL,))


@dataclasses.dataclass(frozen=True)
class Contest:
    """What is asked on one problem: budget, s; perturbation as in `Cell`; loss = cost + weight violation <= threshold."""

    budget: float
    perturbation: float
    weight: float
    threshold: float
    meaning: str


CONTESTS = {
    "cartpole-swingup": Contest(10.0, 0.05, 1e3, 64.8, "cost 58.89 (multiple shooting) and a tenth"),
    "double-cartpole-swingup": Contest(20.0, 0.05, 1e3, 166.7, "cost 151.6 (multiple shooting) and a tenth"),
    "catapult": Contest(30.0, 0.002, 1.0, 1e-4, "a miss of 1 cm"),
}
LONG = {"problem": "catapult", "solvers": ("CMAES", "StochasticSearch"), "budget": 60.0, "seeds": 1}


def all_cells(problems: Sequence[str], solvers: Sequence[str], seeds: int) -> list[Cell]:
    """The runs, first seeds first."""
    return [
        Cell(name, solver, {}, seed, contest.budget, contest.perturbation, trace=True)
        for name, contest in ((name, CONTESTS[name]) for name in problems)
        for seed in range(seeds)
        for solver in solvers
    ]


def long_cells() -> list[Cell]:
    """The long searches."""
    name = LONG["problem"]
    return [
        Cell(name, solver, {}, seed, LONG["budget"], CONTESTS[name].perturbation, trace=True)
        for solver in LONG["solvers"]
        for seed in range(LONG["seeds"])
    ]


def curve(row: dict[str, Any], weight: float) -> dict[str, np.ndarray]:
    """Time, evaluations and least loss so far of a run; iterates that are not finite have none."""
    trace = {key: np.array([np.nan if v is None else v for v in row["trace"][key]], float) for key in row["trace"]}
    loss = trace["cost"] + weight * trace["violation"]
    loss = np.minimum.accumulate(np.where(np.isfinite(loss), loss, np.inf))
    return {"time": trace["time"], "evaluations": trace["evaluations"], "loss": loss}


def reached(found: dict[str, np.ndarray], threshold: float) -> tuple[float, float]:
    """(seconds, evaluations) at which a curve falls to the threshold, infinite when it does not."""
    k = np.flatnonzero(found["loss"] <= threshold)
    return (float(found["time"][k[0]]), float(found["evaluations"][k[0]])) if k.size else (np.inf, np.inf)


def quartiles(values: Sequence[float]) -> str:
    """Median [lower, upper quartile]; runs that never arrive count as infinite."""
    low, middle, high = np.quantile(np.asarray(values, float), [0.25, 0.5, 0.75], method="inverted_cdf")
    text = lambda v: f"{v:.3g}" if np.isfinite(v) else "-"  # noqa: E731
    return text(middle) if len(values) == 1 or not np.isfinite(low) else f"{text(middle)} [{text(low)}, {text(high)}]"


def summary(problem: str, solver: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A row of the table: seeds, success, time and evaluations to the threshold, last loss, compile time."""
    contest = CONTESTS[problem]
    told = [row for row in rows if "trace" in row]
    if not told:
        row = rows[0]
        reason = row["message"].replace("|", "/")
        words = reason if row["status"] in (NOT_APPLICABLE, CRASHED, STOPPED) else row["status"]
        return [solver, str(len(rows)), "", f"{row['status']}: {words}"[:150], "", "", "", ""]
    curves = [curve(row, contest.weight) for row in told]
    times, counts = zip(*(reached(found, contest.threshold) for found in curves), strict=True)
    stopped = len(rows) - len(told)
    success = f"{np.isfinite(times).sum()} of {len(rows)}" + (
        f" ({stopped} stopped while compiling)" if stopped else ""
    )
    return [
        solver, str(len(rows)), goals_met(rows), success, quartiles(times), quartiles(counts),
        quartiles([found["loss"][-1] for found in curves]), number(max(row["compile_time_s"] for row in told)),
    ]  # fmt: skip


def goals_met(rows: Sequence[dict[str, Any]]) -> str:
    """How many of the runs meet the goals, and the worst goal of the run in the middle, in units of its tolerance."""
    judged = [row for row in rows if row.get("goals_met") is not None]
    shares = sorted(np.inf if row["worst_goal"] is None else row["worst_goal"] for row in judged)
    return f"{sum(row['goals_met'] for row in judged)} of {len(rows)} ({shares[len(shares) // 2]:.2g})" if judged else ""


HEAD = ("solver", "runs", "goals met", "reach it", "seconds to it", "evaluations to it", "last loss", "compile, s")


def page(cache: Cache, problems: Sequence[str], seeds: int, where: str) -> str:
    """What stands between the markers."""
    lines = [f"`python benchmarks/solver_comparison.py`, {datetime.date.today().isoformat()}, {where}.", ""]
    for name in problems:
        contest, rows, missing = CONTESTS[name], [], []
        for solver in SOLVERS:
            found = [row for cell in all_cells([name], [solver], seeds) if (row := cache.get(cell)) is not None]
            if found:
                rows.append(summary(name, solver, found))
            else:
                missing.append(solver)
        lines += [
            f"## {name}",
            "",
            f"Threshold {contest.threshold:g} ({contest.meaning}), violation weighed by {contest.weight:g}; {contest.budget:g} s "
            f"of solving; noise of {100 * contest.perturbation:g} % of the bounds.",
            "",
            *(table(HEAD, rows) if rows else []),
            *(["", f"Not run: {', '.join(missing)}."] if missing else []),
            "",
        ]
    long = [(cell, row) for cell in long_cells() if (row := cache.get(cell)) is not None and "trace" in row]
    if long:
        lines += [f"## {LONG['problem']}, {LONG['budget']:g} s of sampling", ""]
        body = [
            [cell.solver, str(cell.seed), number(row["wall_time_s"]), number(row["evaluations"]),
             f"{1e3 * np.sqrt(curve(row, 1.0)['loss'][0]):.4g}", f"{1e3 * np.sqrt(curve(row, 1.0)['loss'][-1]):.4g}"]
            for cell, row in long
        ]  # fmt: skip
        lines += table(("solver", "seed", "seconds", "motions", "first miss, mm", "last miss, mm"), body) + [""]
    return "\n".join(lines).rstrip() + "\n"


def draw(cache: Cache, problems: Sequence[str], seeds: int, path: pathlib.Path) -> None:
    """Median and quartiles of the least loss so far over seconds of solving, one panel for each problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(problems), figsize=(4.6 * len(problems), 4.0), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], problems, strict=True):
        contest = CONTESTS[name]
        times = np.geomspace(0.02, contest.budget, 200)
        for k, solver in enumerate(SOLVERS):
            rows = [cache.get(cell) for cell in all_cells([name], [solver], seeds)]
            curves = [curve(row, contest.weight) for row in rows if row is not None and "trace" in row]
            if not curves:
                continue
            values = np.array([_at(found, times) for found in curves])
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
            seen = np.isfinite(middle)
            axis.plot(times[seen], middle[seen], color=f"C{k}", label=solver, lw=1.4)
            axis.fill_between(times, low, high, where=np.isfinite(high), color=f"C{k}", alpha=0.15, lw=0)
        axis.axhline(contest.threshold, color="black", lw=0.8, ls="--")
        axis.set(xscale="log", yscale="log", title=name, xlabel="processor seconds of solving")
    axes[0][0].set_ylabel("least loss so far")
    shown = {name: line for axis in axes[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside right center", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _at(found: dict[str, np.ndarray], times: np.ndarray) -> np.ndarray:
    """The least loss at given times, infinite before the first iterate."""
    k = np.searchsorted(found["time"], times, side="right") - 1
    return np.where(k >= 0, found["loss"][np.maximum(k, 0)], np.inf)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(CONTESTS), help="names separated by commas")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="names separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each solver (default 5)")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which a run is stopped (default 200)")
    parser.add_argument("--no-long", action="store_true", help="leave the long searches out")
    parser.add_argument("--again", default="", help="statuses, separated by commas, whose runs are repeated")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE, help="default .cache/solver-comparison.jsonl")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="default docs/notes/solver-comparison.md")
    parser.add_argument(
        "--picture", type=pathlib.Path, default=PICTURE, help="default docs/images/solver-comparison.png"
    )
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("--workers", help=WORKERS)
    chosen = parser.parse_args(arguments)
    split = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    cache, where = Cache(chosen.cache), machine()

    def update() -> None:
        write(chosen.page, page(cache, list(CONTESTS), chosen.seeds, where))

    if not chosen.page_only:
        from trajopt.solvers.sweeps import executor_for

        again = split(chosen.again)
        cells = all_cells(split(chosen.problems), split(chosen.solvers), chosen.seeds)
        with executor_for(chosen.workers) as executor:
            gather(cells, cache, chosen.limit, again, update, executor)
            if not chosen.no_long:
                gather(long_cells(), cache, chosen.limit + LONG["budget"], again, update, executor)
    update()
    draw(cache, list(CONTESTS), chosen.seeds, chosen.picture)


if __name__ == "__main__":
    main()
