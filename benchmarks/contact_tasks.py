"""Contact tasks by `solvers.solve(problem)`, no option, from doing nothing: goals, iterations and seconds, a row for each start.

    python benchmarks/contact_tasks.py push-t hopper-step --seeds 9
    python benchmarks/contact_tasks.py spinner push-box hopper-step --seeds 9 --alone
"""

import argparse
import time

import jax

jax.config.update("jax_enable_x64", True)

from measure import banner  # noqa: E402
from results import record  # noqa: E402

from trajopt import problems, solvers  # noqa: E402
from trajopt.problems.registry import parse_settings  # noqa: E402

TASKS = ("spinner", "push-box", "push-t", "hopper-step", "in-hand-rotation", "two-arm-lift", "go1-climb", "arm-obstacle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=10, help="starts that are drawn, beside the usual one")
    parser.add_argument("--alone", action="store_true", help="by iLQR() alone: smoothed contact, no sampling")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every task")
    arguments = parser.parse_args()
    print(banner().replace(", one pinned", ""))
    for task in arguments.tasks:
        settings, met, times = parse_settings(task, arguments.set), 0, []
        for seed in range(arguments.seeds + 1):
            problem = problems.get(task, **settings | {"seed": seed})
            start, processor = time.perf_counter(), time.process_time()
            solution = solvers.solve(problem, solvers.iLQR() if arguments.alone else None)
            seconds, processor = time.perf_counter() - start, time.process_time() - processor
            met += solution.success
            times.append(seconds)
            goals = ", ".join(f"{name} {goal.value:.2g} {goal.unit}" for name, goal in solution.goals.items())
            how = f"{solution.iterations} iterations, {seconds:.1f} s, {processor:.1f} s of processor time"
            print(f"{task} seed {seed}: success {solution.success}, {goals}; {how}", flush=True)
        way = "contact-tasks-alone" if arguments.alone else "contact-tasks"
        record(f"{way}/{task}/met", met, f"of {arguments.seeds + 1} starts")
        record(f"{way}/{task}/longest", max(times), "s")
        print(f"{task}: {met} of {arguments.seeds + 1}")


if __name__ == "__main__":
    main()
