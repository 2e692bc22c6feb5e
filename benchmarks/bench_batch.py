"""Time of a sample in batches of 1 to 256 beside single solves, compilation apart: `solve_batch` against `solve` in a loop.

    python benchmarks/bench_batch.py [--sizes 1,4,16,64,256] [--cases decay,pendulum,reach]

One pinned core, float64. Single solves: the median of eight, in the same run. Samples that fail are counted.
"""

from __future__ import annotations

import argparse
import statistics
import time

from measure import banner, begin


def decay(count: int):
    """(problem, solver, what differs between `count` samples, sample -> (problem, guess)): three numbers from 20 noisy values."""
    import jax.numpy as jnp
    import numpy as np

    from trajopt.problems import LeastSquaresProblem
    from trajopt.solvers import GaussNewton

    t = jnp.linspace(0.0, 3.0, 20)
    model = lambda x: x[0] * jnp.exp(-x[1] * t) + x[2]  # noqa: E731
    data = np.asarray(model(jnp.array([1.5, 0.8, 0.3]))) + 0.05 * np.random.default_rng(0).normal(size=(count, 20))
    start = np.array([1.0, 0.1, 0.0])
    problem = LeastSquaresProblem("decay", lambda x, y: (model(x) - y) / 0.05, start, data=data[0])
    return problem, GaussNewton(), {"data": data}, lambda k: (problem.replace(data=data[k]), None)


def pendulum(count: int):
    """Swing-ups from random controls by iLQR, 80 steps, bounded torque."""
    import math

    import jax.numpy as jnp
    import numpy as np

    from trajopt.problems import OptimalControlProblem
    from trajopt.solvers import iLQR

    dt = 0.05

    def step(x, u, t):
        rate = x[1] + dt * (u[0] - 0.1 * x[1] - 9.81 * jnp.sin(x[0]))
        return jnp.stack([x[0] + dt * rate, rate])

    problem = OptimalControlProblem(
        "pendulum", step, 80, np.zeros(2), dt=dt, u0=np.zeros(1), control_lower=-4.0, control_upper=4.0,
        stage_residual=lambda x, u, t: math.sqrt(dt) * jnp.concatenate([0.1 * x[1:], 0.3 * u]),
        terminal_residual=lambda x: 10.0 * (x - jnp.array([jnp.pi, 0.0])),
    )  # fmt: skip
    guesses = 0.5 * np.random.default_rng(0).normal(size=(count, 80, 1))
    return problem, iLQR(), {"guesses": guesses}, lambda k: (problem, guesses[k])


def reach(count: int):
    """Reaches of the UR5 in 1 s to random places, the tool's place at the end a terminal equality, from zero controls."""
    import numpy as np

    from trajopt import load_model
    from trajopt.dynamics import NoContact, System
    from trajopt.problems import OptimalControlProblem
    from trajopt.problems import residuals as r
    from trajopt.solvers import iLQR

    arm = System(load_model("ur5"), dt=0.02, contact=NoContact())
    stage = sum([r.Control(weight=2e-3), r.Velocity(weight=0.1), r.LimitMargin(weight=0.1)])
    problem = OptimalControlProblem(
        "reach", arm, 50, arm.initial_state("home"), u0=np.zeros(6), stage_residual=stage,
        terminal_residual=r.Velocity(weight=1.0), terminal_equality=r.FramePosition("tool", reference=[0.4, 0.3, 0.5]),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    places = np.array([0.4, 0.2, 0.5]) + rng.uniform(-0.15, 0.15, size=(count, 3))
    name = "frame position tool"
    return (
        problem,
        iLQR(regularisation="state", damping=1.0),
        {"references": {name: places}},
        lambda k: (problem.replace(references={name: places[k]}), None),
    )


CASES = {"decay": decay, "pendulum": pendulum, "reach": reach}


def single(problem_of, solver) -> tuple[float, int]:
    """(median seconds of a solve once compiled, failures) of eight samples."""
    from trajopt.solvers import solve

    solve(problem_of(0)[0], solver, x0=problem_of(0)[1])
    times, failed = [], 0
    for k in range(8):
        problem, guess = problem_of(k)
        start = time.perf_counter()
        solution = solve(problem, solver, x0=guess)
        times.append(time.perf_counter() - start)
        failed += not solution.success
    return statistics.median(times), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,4,16,64,256")
    parser.add_argument("--cases", default=",".join(CASES))
    options = begin(parser)
    from trajopt.solvers import solve_batch

    print(banner())
    sizes = [int(size) for size in options.sizes.split(",")]
    for name in options.cases.split(","):
        _, solver, _, problem_of = CASES[name](8)
        alone, failed = single(problem_of, solver)
        print(f"{name:10s} single solve {1e3 * alone:10.2f} ms   {failed} of 8 failed")
        for size in sizes:
            problem, solver, changes, _ = CASES[name](size)
            first = solve_batch(problem, solver, **changes)
            runs = [solve_batch(problem, solver, **changes).wall_time_s for _ in range(3)]
            each = statistics.median(runs) / size
            print(
                f"{name:10s} batch {size:5d} {1e3 * each:10.3f} ms a sample   {alone / each:8.1f} x   compile "
                f"{first.compile_time_s:6.1f} s   {int((~first.success).sum())} failed",
                flush=True,
            )


if __name__ == "__main__":
    main()
