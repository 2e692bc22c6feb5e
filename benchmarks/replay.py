"""Contact tasks in MuJoCo: each plan of `solvers.solve(problem)` followed with feedback, its goals within twice their tolerance?

    python benchmarks/replay.py push-box spinner --seeds 9
"""

import argparse

import jax

jax.config.update("jax_enable_x64", True)

from contact_tasks import TASKS  # noqa: E402
from measure import banner  # noqa: E402

from trajopt import control, problems, solvers  # noqa: E402
from trajopt.problems.registry import parse_settings  # noqa: E402

WITHIN = 2.0  # times a goal's tolerance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--step", type=float, default=1e-3, help="of MuJoCo, s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every task")
    arguments = parser.parse_args()
    print(banner().replace(", one pinned", ""))
    for task in arguments.tasks:
        settings, kept = parse_settings(task, arguments.set), 0
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            problem = problems.get(task, **settings | {"seed": seed})
            solution = solvers.solve(problem)
            replay = control.replay_in_mujoco(problem, solution, step=arguments.step)
            kept += replay.meets_goals(WITHIN)
            goals = ", ".join(f"{name} {goal}" for name, goal in replay.goals.items())
            print(f"{task} seed {seed}: planned {solution.success}, kept {replay.meets_goals(WITHIN)}: {goals}", flush=True)
        print(f"{task}: {kept} of {arguments.seeds}")


if __name__ == "__main__":
    main()
