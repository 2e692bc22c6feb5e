"""When do the sampling solvers reach the swing-ups' thresholds, at their default settings?

    python benchmarks/swing_up_sampling.py                               # cart-pole, four solvers, three seeds, 20 s each
    python benchmarks/swing_up_sampling.py --problems double-cartpole-swingup --solvers CMAES --seeds 1

Problems, thresholds and the loss are those of `solver_comparison.py`; the guess is the problem's own. Seconds are wall time of
solving, without compilation.
"""

from __future__ import annotations

import argparse

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from solver_comparison import CONTESTS, SAMPLERS, curve, reached  # noqa: E402

from trajopt import problems, solvers  # noqa: E402
from trajopt.result import status_name  # noqa: E402


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=["cartpole-swingup"])
    parser.add_argument("--solvers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each run")
    options = parser.parse_args()
    print("| problem | solver | seed | reached after, s | last loss | status | seconds | motions |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.problems:
        contest, problem = CONTESTS[name], problems.get(name)
        for solver in options.solvers:
            for seed in range(options.seeds):
                found = solvers.solve(
                    problem, solvers.get(solver), seed=seed, time_budget=options.budget, max_iterations=10**6
                )
                told = curve({"trace": {key: list(found.trace[key]) for key in found.trace}}, contest.weight)
                when = reached(told, contest.threshold)[0]
                row = name, solver, seed, f"{when:.2f}" if np.isfinite(when) else "-", f"{told['loss'][-1]:.4g}"
                row += status_name(found.status), f"{found.wall_time_s:.1f}", found.evaluations
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
