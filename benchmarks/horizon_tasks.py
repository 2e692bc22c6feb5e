"""What receding horizons do in MuJoCo, over seeds: tasks of `trajopt mpc`, tasks of the library and an arm beside a ball, plans
acting a period late.

    python benchmarks/horizon_tasks.py [TASK ...] [--seeds N] [--first-seed N] [--solver NAME] [--rate HZ] [--iterations N]
    python benchmarks/horizon_tasks.py TASK --first      # seconds from the start of the process to the first control
    python benchmarks/horizon_tasks.py push-box --judo PATH     # site-packages with judo-rai: its planner in the same loop

Solvers have their default options and as many iterations as fit into the period; on a machine that does other work --iterations
gives their number, whatever they take. "kept" counts the runs within the bounds that the table names. Go1 trots under pushes in
bench_receding_horizon.py. For an empty cache of compiled programs: JAX_COMPILATION_CACHE_DIR= in front of --first.
"""

import argparse
import functools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from measure import banner, markdown
from results import record

BEGUN = time.time()


class Judged(NamedTuple):
    """The figures of a run, by name with unit, and whether it is within the bounds."""

    figures: dict[str, float]
    kept: bool


class Case(NamedTuple):
    """seconds of a run; start: of a seed, flat; judge: (recording, problem, seed) -> Judged; bounds, in words; pushes: of a
    seed."""

    seconds: float
    start: Callable
    judge: Callable
    bounds: str
    pushes: Callable = lambda seed: ()


def push_box_start(problem, seed):
    """The finger at the usual place; the box in front of the goal, beside or behind it, turned."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = np.array(problem.x0)
    angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.08, 0.25)
    x[:2] = np.array([0.15, 0.1]) + far * np.array([np.cos(angle), np.sin(angle)])
    x[2] = rng.uniform(-1.0, 1.0)
    away = rng.uniform(0, 2 * np.pi)
    x[3:5] = x[:2] + 0.15 * np.array([np.cos(away), np.sin(away)])
    return x


def push_box(recording, problem, seed) -> Judged:
    import numpy as np

    end = recording.xs[-1]
    far, turned = 1e3 * np.linalg.norm(end[:2] - [0.15, 0.1]), abs(end[2] - 0.5)
    return Judged({"mm": far, "rad": turned}, far < 10 and turned < 0.05)


def spinner(recording, problem, seed) -> Judged:
    turned = recording.xs[-1, 2] - recording.xs[0, 2]
    return Judged({"rad": turned}, 4.8 <= turned <= 5.2)


def hopper(recording, problem, seed) -> Judged:
    import numpy as np

    x, z, pitch = recording.xs[-1, :3] - np.asarray(problem.system.model.keyframes["home"])[:3] - [0.75, 0.1, 0.0]
    return Judged({"m ahead": x, "m high": z, "rad": pitch}, bool(abs(x) < 0.15 and abs(z) < 0.05 and abs(pitch) < 0.2))


def follow_draw(seed):
    """(path of the tool's goal, the ball near it), the arm's first posture being 5 cm away from the ball at least."""
    import numpy as np

    from trajopt import load_model
    from trajopt.problems.library.arm_obstacle import nearest, with_ball

    rng, model = np.random.default_rng(seed), load_model("arm-obstacle")
    while True:
        pan, size, height = rng.uniform(-0.6, 0.6), rng.uniform(0.1, 0.2), rng.uniform(0.3, 0.6)
        outwards, aside = np.array([np.cos(pan), np.sin(pan), 0.0]), np.array([-np.sin(pan), np.cos(pan), 0.0])
        other = np.array([0.0, 0.0, 1.0]) if rng.uniform() < 0.5 else outwards
        turns = 2 * np.pi * (0.02 / rng.uniform(3, 6) * np.arange(1000) + rng.uniform())[:, None]
        path = 0.45 * outwards + [0.0, 0.0, height] + size * (np.cos(turns) * aside + np.sin(turns) * other)
        towards = rng.normal(size=3)
        ball = path[rng.integers(len(path))] + rng.uniform(0.12, 0.17) * towards / np.linalg.norm(towards)
        if nearest(with_ball(model, ball), np.asarray(model.keyframes["home"])[None, None]).min() > 0.05:
            return path, ball


def follow_horizon(seed, solver, options):
    """The tool follows its goal, every link 20 mm from the ball, no joint faster than 2 rad/s."""
    import numpy as np

    from trajopt import control, load_model, models, solvers
    from trajopt.dynamics import NoContact, System
    from trajopt.problems import OptimalControlProblem
    from trajopt.problems import residuals as r
    from trajopt.problems.library.arm_obstacle import ARM, with_ball

    path, ball = follow_draw(seed)
    system = System(with_ball(load_model("arm-obstacle"), ball), 0.02, NoContact())
    rates = np.concatenate([np.full(6, np.inf), np.full(6, 2.0)])
    clearances = sum([r.Distance(link, other="obstacle").at_least(0.02) for link in ARM])
    stage = [r.Control(weight=1e-3), r.Velocity(weight=0.05), r.FramePosition("tool", reference=path, weight=10.0)]
    final = [r.Velocity(weight=0.3), r.FramePosition("tool", reference=path, weight=30.0)]
    problem = OptimalControlProblem(
        "ur5-follow", system, 25, system.initial_state("home"), stage_residual=sum(stage), terminal_residual=sum(final),
        inequality=clearances, terminal_inequality=clearances, state_lower=-rates, state_upper=rates,
    )  # fmt: skip
    plant = control.MujocoPlant.from_file(models.bundled_file("arm-obstacle"), 0.002)
    plant.model.geom("obstacle").pos[:] = ball
    chosen = solvers.iLQR() if solver is None else solvers.get(solver)
    return control.RecedingHorizon(problem, chosen, plant, **({"period": 0.02, "delay": 0.02} | options))


def follow(recording, problem, seed) -> Judged:
    import numpy as np

    from trajopt.problems.library.arm_obstacle import nearest, tool

    path, model, qs = follow_draw(seed)[0], problem.system.model, recording.xs[:, :6]
    close = max(0.0, 20 - 1e3 * float(nearest(model, qs[None]).min()))
    fast = max(0.0, np.abs(recording.xs[:, 6:]).max() - 2.0)
    wanted = np.stack([np.interp(recording.t, 0.02 * np.arange(len(path)), row) for row in path.T], 1)
    places = np.array([tool(model, q) for q in qs[::10]])
    off = 1e3 * np.median(np.linalg.norm(places - wanted[::10], axis=1)[recording.t[::10] > 2.0])
    figures = {"mm too near": close, "rad/s too fast": fast, "mm median": off}
    return Judged(figures, bool(close < 1 and fast < 0.05 and off < 5))


def library_start(name, problem, seed):
    """As the library draws it; 0: the usual start."""
    from trajopt.problems import registry

    return registry.get(name, seed=seed).x0


def usual(problem, seed):
    return problem.x0


def goals(name, recording, problem, seed) -> Judged:
    """The goals of the library's problem, at the end of the run."""
    import numpy as np

    from trajopt.control.feedback import goals_along
    from trajopt.problems import registry
    from trajopt.problems.trajectory import Trajectory

    whole = registry.get(name)
    xs = np.tile(recording.xs[-1], (whole.horizon + 1, 1))
    values = goals_along(whole, Trajectory(xs, np.asarray(whole.u0), np.zeros(0)), xs)
    figures = {f"{key}, {goal.unit}": values[key] for key, goal in whole.goals.items()}
    return Judged(figures, all(values[key] <= goal.tolerance for key, goal in whole.goals.items()))


def go1_pushes(seed):
    """60 N for 0.1 s, from eight directions."""
    import numpy as np

    from trajopt.control import Push

    angle = np.pi * seed / 4
    return (Push("trunk", (60 * np.cos(angle), 60 * np.sin(angle), 0.0), 1.0, 0.1),)


def go1(recording, problem, seed) -> Judged:
    lowest, upright = recording.xs[:, 2].min(), (1 - 2 * (recording.xs[:, 4] ** 2 + recording.xs[:, 5] ** 2)).min()
    return Judged({"m, lowest trunk": lowest}, bool(lowest > 0.15 and upright > 0.5))


def of_the_library(name, seconds, bounds):
    return Case(seconds, functools.partial(library_start, name), functools.partial(goals, name), bounds)


CASES = {
    "push-box": Case(8.0, push_box_start, push_box, "10 mm, 0.05 rad"),
    "spinner": Case(5.0, usual, spinner, "4.8 to 5.2 rad in 5 s"),
    "in-hand-rotation": of_the_library("in-hand-rotation", 7.0, "10 degrees, 20 mm"),
    "two-arm-lift": of_the_library("two-arm-lift", 2.0, "30 mm, 0.2 m/s"),
    "hopper-step": Case(2.0, functools.partial(library_start, "hopper-step"), hopper, "on the step, 0.15 m, 0.2 rad"),
    "go1-climb": of_the_library("go1-climb", 2.0, "50 mm, 0.1 rad, feet 20 mm, 0.2 m/s"),
    "ur5-follow": Case(6.0, usual, follow, "1 mm, 0.05 rad/s, 5 mm"),
    "go1-stand": Case(4.0, usual, go1, "stands after 60 N", go1_pushes),
}
LIBRARY = {"go1-climb": ("go1-climb", 40, 0.01)}  # model, steps of a plan, s between plans
HEAD = ("task", "planner", "Hz", "bounds", "kept", "worst or range", "plan, processor ms: median, 99 %", "late", "first plan, s")


def horizon_of(name: str, arguments: argparse.Namespace, seed: int):
    """The receding horizon of a task, drawn where the task is."""
    from trajopt.control import tasks

    rate, solver, iterations = arguments.rate, arguments.solver, arguments.iterations
    options = {} if rate is None else {"period": 1 / rate, "delay": 1 / rate}
    options |= {} if iterations is None else {"max_iterations": iterations, "time_budget": 1e3}
    if name == "ur5-follow":
        return follow_horizon(seed, solver, options)
    if name in LIBRARY:
        return library_horizon(name, solver, options)
    horizon = tasks.task(name).horizon(solver=solver, **options)
    return with_judo(name, horizon, seed) if arguments.judo else horizon


def library_horizon(name, solver, options):
    """A problem of the library over a shorter horizon, in MuJoCo at 1 ms."""
    from trajopt import control, models, solvers
    from trajopt.problems import registry

    model, steps, period = LIBRARY[name]
    problem = registry.get(name).replace(horizon=steps)
    plant = control.MujocoPlant.from_file(models.bundled_file(model), 0.001)
    chosen = solvers.iLQR() if solver is None else solvers.get(solver)
    return control.RecedingHorizon(problem, chosen, plant, **({"period": period, "delay": period} | options))


def with_judo(name, horizon, seed):
    """The same loop with a planner of judo-rai."""
    from judo_horizon import Judo

    from trajopt.control import RecedingHorizon

    return RecedingHorizon(
        horizon.problem, Judo(name, seed=seed), horizon.plant, horizon.period, delay=horizon.period, max_iterations=1
    )


def first_control(name: str, arguments: argparse.Namespace) -> None:
    """Seconds from the start of the process to the first control."""
    horizon = horizon_of(name, arguments, 0)
    made = time.process_time()
    controller, x = horizon.controller, horizon.problem.x0
    compiling = horizon.compile()
    controller.replan(x, 0.0)
    controller.control(x, 0.0)
    took = time.process_time()
    print(
        f"{name}: {took:.1f} s of the processor, {time.time() - BEGUN:.1f} s by the clock until the first control; "
        f"{made:.1f} s of them until the problem is made, {took - made:.1f} s compiling and planning ({compiling:.1f} s "
        "compiling, by the clock)"
    )


def row(name: str, arguments: argparse.Namespace) -> tuple:
    """One row of the table."""
    import numpy as np

    case, seeds, judged, recordings, first = CASES[name], arguments.seeds, [], [], 0.0
    for seed in range(arguments.first_seed, arguments.first_seed + seeds):
        if not recordings or name == "ur5-follow" or arguments.judo:
            horizon = horizon_of(name, arguments, seed)
        recording = horizon.run(case.seconds, x0=case.start(horizon.problem, seed), pushes=case.pushes(seed))
        first = first or recording.compile_time_s + recording.first_time_s
        judged.append(case.judge(recording, horizon.problem, seed))
        recordings.append(recording)
        print(f"  {name} {seed}: {judged[-1]}", file=sys.stderr, flush=True)
    values = {key: [one.figures[key] for one in judged] for key in judged[0].figures}
    said = ", ".join(f"{min(v):.3g} to {max(v):.3g} {key}" for key, v in values.items())
    processor = 1e3 * np.concatenate([one.processor for one in recordings])
    took = f"{np.median(processor):.3g}, {np.percentile(processor, 99):.3g}"
    late, kept = np.mean([one.late.mean() for one in recordings]), sum(one.kept for one in judged)
    hz, planner = 1 / horizon.period, "judo" if arguments.judo else type(horizon.solver).__name__
    if not (arguments.solver or arguments.judo):
        key = f"horizon/{name}" + ("" if arguments.rate is None else f"/{arguments.rate:g}")
        record(f"{key}/kept", kept, f"of {seeds}")
        record(f"{key}/processor", float(np.median(processor)), "ms")
    return name, planner, hz, case.bounds, f"{kept} of {seeds}", said, took, f"{late:.0%}", first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--solver", help="by name, with its default options; default: the task's own")
    parser.add_argument("--rate", type=float, help="plans a second; default: the task's own")
    parser.add_argument("--iterations", type=int, help="of each solve; default: as many as fit into the period")
    parser.add_argument("--first", action="store_true", help="how long the first control of the first task takes")
    parser.add_argument("--judo", help="site-packages that hold judo-rai, whose planner takes the place of the task's")
    arguments = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", message="steps are taken by JAX")
    if arguments.first:
        return first_control(arguments.tasks[0], arguments)
    if arguments.judo:
        sys.path.append(arguments.judo)
    rows = [row(name, arguments) for name in arguments.tasks]
    print(markdown(HEAD, rows))
    print(banner("mujoco").replace("one pinned", "not pinned"))


if __name__ == "__main__":
    main()
