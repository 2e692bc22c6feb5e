"""The demonstration: contact inverse dynamics of a quadruped and the initial velocity of a sliding cube.

Both problems are solved by Gauss-Newton and by gradient descent, each with implicit gradients and with finite
differences. Leaves in --out, for each problem, the solved run (summary, trajectory, plots, animation) and compare.png:
cost against solving time and against evaluations, with the compile time apart.

    python benchmarks/demo.py --out runs/demo
"""

import argparse
import json
import pathlib
import time

from rich.console import Console

from trajopt.cli import main as trajopt
from trajopt.cli.progress import say, table

PROBLEMS = ("go1-stand", "cube-initial-velocity")
SOLVERS = "GaussNewton,GradientDescent"
GRADIENTS = "implicit,finite-difference"
COLUMNS = ("problem", "solver", "gradient", "status", "cost", "violation", "iterations", "compile [s]", "solve [s]")


def rows(folder: pathlib.Path) -> list[list[str]]:
    """Rows of the closing table from a comparison's file."""
    document = json.loads((folder / "compare.json").read_text())
    return [
        [
            document["problem"],
            run["solver"],
            run["gradient"],
            run["status"],
            f"{run['cost']:.2e}",
            f"{run['violation']:.1e}",
            str(run["iterations"]),
            f"{run['compile_time_s']:.2f}",
            f"{run['wall_time_s']:.3f}",
        ]
        for run in document["runs"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    parser.add_argument("--budget", default="15", help="seconds of solving allowed to each run of the comparison")
    args = parser.parse_args()
    start, statuses, lines = time.perf_counter(), [], []
    for name in PROBLEMS:
        folder = args.out / name
        statuses.append(trajopt(["run", name, "--animation", "--out", str(folder)]))
        trajopt(
            ["compare", name, "--solvers", SOLVERS, "--gradients", GRADIENTS, "--budget", args.budget]
            + ["--again", "--out", str(folder)]
        )
        lines += rows(folder)
    console = Console()
    say(console, "")
    say(console, table("make demo", COLUMNS, lines))
    plots = ", ".join(str(args.out / name / "compare.png") for name in PROBLEMS)
    say(console, f"{time.perf_counter() - start:.0f} s; plots: {plots}")
    return max(statuses)


if __name__ == "__main__":
    raise SystemExit(main())
