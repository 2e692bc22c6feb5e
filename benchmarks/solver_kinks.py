"""iLQR and DDP on the library's problems with contact, with and without curvature through contact.

    python benchmarks/solver_kinks.py
    python benchmarks/solver_kinks.py --problems jump-worm --solvers iLQR --budget 60

Default options; `own` are those that the problem names for the solver. `plain` is curvature="none": Gauss-Newton Hessians;
`state` is regularisation="state".
"""

from __future__ import annotations

import argparse

import jax

jax.config.update("jax_enable_x64", True)

from trajopt import problems, solvers  # noqa: E402
from trajopt.result import status_name  # noqa: E402
from trajopt.solvers.registry import chosen_solver  # noqa: E402

PROBLEMS = ("catapult", "half-cheetah", "hopper", "jump-worm")
VARIANTS = ("default", "plain", "own", "state")
OPTIONS = {"plain": {"curvature": "none"}, "state": {"regularisation": "state"}}


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--solvers", nargs="+", default=["iLQR"], choices=["iLQR", "DDP"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS[:3]), choices=VARIANTS)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of solving for each run")
    options = parser.parse_args()
    print(
        "| problem | solver | options | status | iterations | cost | stationarity | seconds |\n|---|---|---|---|---|---|---|---|"
    )
    for name in options.problems:
        problem = problems.get(name)
        for solver in options.solvers:
            for variant in options.variants:
                plain = solvers.get(solver, **OPTIONS.get(variant, {}))
                chosen = chosen_solver(problem, solver) if variant == "own" else plain
                if variant == "own" and chosen == plain:
                    continue
                found = solvers.solve(problem, chosen, time_budget=options.budget)
                row = (name, solver, variant, status_name(found.status), found.iterations, f"{found.cost:.6g}")
                end = f"{found.residuals['stationarity']:.2g}", f"{found.wall_time_s:.2f}"
                print(f"| {' | '.join(map(str, row + end))} |", flush=True)


if __name__ == "__main__":
    main()
