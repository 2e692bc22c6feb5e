"""Experiments with a known outcome: pictures docs/images/validation-*.png, tables in docs/notes/validation.md and docs/notes.

    python benchmarks/validation.py [NAME ...]        # all, or those named; --list names them

Closed forms are the judges; MuJoCo runs beside them on the incline. The tests repeat the experiments with bounds on the errors
(tests/dynamics/contact/test_experiments.py, tests/dynamics/test_integrators.py). The statistics of the contact solvers are
written by `python benchmarks/bench_ncp.py`.
"""

import argparse
import time

import jax

jax.config.update("jax_enable_x64", True)

from validation_experiments import drift, falling, friction, impacts, incline, stack  # noqa: E402
from validation_experiments.report import write_summary  # noqa: E402

EXPERIMENTS = {
    "bouncing-ball": impacts.bouncing_ball,
    "drift": drift.run,
    "falling-mass": falling.run,
    "incline": incline.run,
    "incline-angle": friction.incline_angle,
    "restitution": impacts.restitution,
    "sliding-box": friction.sliding_box,
    "stack": stack.run,
    "two-balls": impacts.two_balls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments to run; all without")
    parser.add_argument("--list", action="store_true", help="name the experiments")
    options = parser.parse_args()
    if options.list:
        print("\n".join(EXPERIMENTS))
        return
    unknown = [name for name in options.names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"unknown experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    for name in options.names or EXPERIMENTS:
        start = time.perf_counter()
        write_summary(name, EXPERIMENTS[name]())
        print(f"{name}: {time.perf_counter() - start:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
