"""What programs in a few sizes of horizons cost in an iteration of iLQR, and what they save where durations are scanned.

    python benchmarks/bench_horizons.py [--cases go1:50,go1:45,ur5:100,ur5:90,anymal:108]

Processor time on one core, float64, the least of many repetitions of one iteration, the two programs in turn: one of the
horizon's own size, one of the size that `trajopt.problems.horizons` gives. Then what compiling takes for Go1 over ten durations.
"""

from __future__ import annotations

import argparse
import time

from measure import banner, pin_to_one_core

REPETITIONS, ITERATIONS = 60, 4
DURATIONS = range(32, 51, 2)


def problem_of(name: str, steps: int):
    """Go1 that catches itself on its feet, a UR5's reach, or an ANYmal that raises its trunk."""
    import bench_solvers
    import numpy as np
    import receding_tasks

    from trajopt.problems import guesses

    if name == "go1":
        stand = receding_tasks.stand(receding_tasks.planning_system())
        x, nq = np.array(stand.x0), stand.system.nq
        x[2], x[nq], x[nq + 1] = x[2] + 0.01, 0.4, -0.3
        return stand.replace(horizon=steps, x0=x)
    if name == "ur5":
        return bench_solvers.reach_problem().replace(horizon=steps)
    rise = bench_solvers.anymal_problem(np.zeros(12))
    torque = guesses.quasi_static(rise.system, rise.as_state(rise.x0)).torque
    return rise.replace(horizon=steps, u0=np.asarray(torque))


def begun(problem, solver, padded):
    """(oracle, state, seconds of compiling) of a problem before its first iteration; padded: what makes its programs' size."""
    import jax

    from trajopt.problems import oracle

    before, oracle.padded = oracle.padded, padded
    try:
        compiled = problem.compile()
        state = solver.init(compiled, problem.initial_point, jax.random.key(0))
        return compiled, state, compiled.compile_time_s
    finally:
        oracle.padded = before


def iterations(name: str, steps: int) -> None:
    """A row: least milliseconds of an iteration in both sizes, at the first motions of a run."""
    from trajopt.problems import horizons
    from trajopt.solvers import iLQR

    problem, solver, rows = problem_of(name, steps), iLQR(), []
    own, shared = (begun(problem, solver, size) for size in (lambda problem: problem, horizons.padded))
    states = [own[1], shared[1]]
    for _ in range(ITERATIONS):
        least = [float("inf"), float("inf")]
        for _ in range(REPETITIONS):
            for k, (oracle, _, _) in enumerate((own, shared)):
                start = time.process_time()
                solver.step(oracle, states[k])
                least[k] = min(least[k], 1e3 * (time.process_time() - start))
        rows.append(least)
        states = [solver.step(run[0], state) for run, state in zip((own, shared), states, strict=True)]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    size = horizons.size_of(steps)
    more = mean[1] / mean[0] - 1
    print(f"{name:8s} {steps:5d} {size:5d} {mean[0]:9.2f} {mean[1]:9.2f} {more:+8.1%} {own[2]:9.1f} {shared[2]:9.1f}", flush=True)


def durations() -> None:
    """Go1's answers over ten horizons, and the seconds that compiling took at each."""
    from trajopt.solvers import iLQR, solve

    problem = problem_of("go1", 50)
    for steps in DURATIONS:
        found = solve(problem.replace(horizon=steps), iLQR(max_iterations=5))
        print(f"go1 over {steps} steps: cost {found.cost:.6g}, compiling {found.compile_time_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="go1:50,go1:45,ur5:100,ur5:90,anymal:108")
    options = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner("trajopt"))
    print("problem  steps  size    own ms shared ms   more    compile s, own and shared")
    for case in filter(None, options.cases.split(",")):
        name, _, steps = case.partition(":")
        iterations(name, int(steps))
    durations()


if __name__ == "__main__":
    main()
