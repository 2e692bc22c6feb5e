"""Processor time of a sample in batches beside single solves of the same samples, compilation apart: `solve_batch` and `solve`.

    python benchmarks/bench_batch.py [--sizes 1,4,16,64,256] [--cases decay,pendulum,reach]

One pinned core, float64. Single solves: the mean of the first 32 samples, in the same run. Samples that fail are counted, and how
many of the 32 fail in the batch alone.
"""

import argparse
import time

from measure import banner, begin
from results import record

ALONE = 32  # samples that are solved alone too


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
    """Reaches of the UR5 in 1 s from random postures to random places (`ur5_reach`), from zero controls, default options."""
    import numpy as np
    import ur5_reach

    from trajopt.solvers import iLQR

    draws = ur5_reach.draws(count)
    starts = np.stack([np.concatenate([draw.start, np.zeros(6)]) for draw in draws])
    changes = {"x0": starts, "references": {"frame position tool": np.stack([draw.place for draw in draws])}}
    return ur5_reach.template("damped"), iLQR(), changes, lambda k: (ur5_reach.stated("damped", draws[k]), None)


CASES = {"decay": decay, "pendulum": pendulum, "reach": reach}


def single(problem_of, solver, count: int) -> tuple[float, list[bool]]:
    """(mean processor time of a solve once compiled, s; which succeed) of the first samples."""
    from trajopt.solvers import solve

    solve(problem_of(0)[0], solver, x0=problem_of(0)[1])
    start = time.process_time()
    found = [solve(problem, solver, x0=guess) for problem, guess in map(problem_of, range(count))]
    return (time.process_time() - start) / count, [solution.success for solution in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,4,16,64,256")
    parser.add_argument("--cases", default=",".join(CASES))
    options = begin(parser)
    from trajopt.solvers import solve_batch

    print(banner())
    sizes = [int(size) for size in options.sizes.split(",")]
    for name in options.cases.split(","):
        _, solver, _, problem_of = CASES[name](max(*sizes, ALONE))
        alone, succeeded = single(problem_of, solver, ALONE)
        print(f"{name:10s} single solve {1e3 * alone:10.2f} ms   {ALONE - sum(succeeded)} of {ALONE} failed", flush=True)
        for size in sizes:
            problem, solver, changes, _ = CASES[name](size)
            first = solve_batch(problem, solver, **changes)
            start = time.process_time()
            found = solve_batch(problem, solver, **changes)
            each = (time.process_time() - start) / size
            worse = sum(own and not other for own, other in zip(succeeded, found.success, strict=False))
            print(
                f"{name:10s} batch {size:5d} {1e3 * each:10.3f} ms a sample   {each / alone:6.3f} of a single solve   compile "
                f"{first.compile_time_s:6.1f} s   {int((~found.success).sum())} failed, {worse} in the batch alone",
                flush=True,
            )
            record(f"batch/{name}/{size}", each / alone, "times")


if __name__ == "__main__":
    main()
