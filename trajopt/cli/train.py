"""`trajopt train`: train a policy on a task and write its log, its checkpoint, the policy and an episode of it to a directory."""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from trajopt import files, learning, walltime
from trajopt.cli.progress import say
from trajopt.cli.run import drawn
from trajopt.errors import OptionError
from trajopt.learning.algorithm import Algorithm
from trajopt.learning.curves import Row
from trajopt.learning.trainer import CHECKPOINT
from trajopt.occupied import occupying
from trajopt.solvers.loop.solution import RESULT_ID, SUMMARY, TRAJECTORY, json_text, new_result_id

_HEADER = f"{'update':>7}  {'samples':>10}  {'time [s]':>9}  {'reward':>10}  {'return':>10}  {'success':>8}"
_INTERVAL_S = 5.0  # between lines without an evaluation
DEFAULT_SAMPLES = 1_000_000


def folder_of(args: argparse.Namespace) -> pathlib.Path:
    """Where the training's files go."""
    return pathlib.Path("runs") / f"train-{args.task}" if args.out is None else args.out


def last_words(args: argparse.Namespace) -> str:
    """What a training that began at `args.since` (`time.time`) leaves behind when it is ended from outside."""
    checkpoint = folder_of(args) / CHECKPOINT
    if not checkpoint.exists() or (not args.resume and checkpoint.stat().st_mtime < args.since):
        return "there was no checkpoint yet"
    return f"the last checkpoint is {checkpoint}: go on with --resume"


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns 0 where the last evaluation reached the task, 1 where it did not. terminated: whether a
    termination signal has come: then nothing is drawn."""
    console = Console(quiet=args.quiet)
    with walltime.part("load"):
        task = learning.tasks.task(args.task)
        algorithm = _algorithm(args, args.algorithm or task.algorithm)
        settings = learning.tasks.parse_settings(args.task, args.settings)
        environment = learning.tasks.environment(args.task, **settings)
        if args.gradient is not None:
            environment = environment.with_gradient(args.gradient)
        algorithm.check(environment)
    samples = task.samples.get(algorithm.name, DEFAULT_SAMPLES) if args.samples is None else args.samples
    with occupying(folder_of(args)):
        return _trained(args, console, environment, algorithm, samples, terminated)


def _trained(
    args: argparse.Namespace, console: Console, environment: learning.Environment, algorithm: Algorithm, samples: int,
    terminated: Callable[[], bool],
) -> int:  # fmt: skip
    """The exit status, after the training, its files and its report."""
    folder = folder_of(args)
    gradient = environment.system.mode.name
    say(console, f"{args.task}: {algorithm.name}, {gradient} gradients, {samples} samples, into {folder}; compiling ...")
    with walltime.part("solve"):
        training = learning.train(
            environment, algorithm, samples=samples, seed=args.seed, folder=folder, resume=args.resume,
            callback=_Lines(console),
        )  # fmt: skip
    result_id = save(args, training, folder)
    if not terminated():
        show(training, folder, result_id)
    share = training.evaluations[-1]["success_rate"]
    reached = "reached" if training.success else "not reached"
    say(console, f"the task is {reached}: {share:.0%} of the episodes, {training.wall_time_s:.1f} s after compiling")
    say(console, f"written: {', '.join(files.visible(folder))}")
    return 0 if training.success else 1


def save(args: argparse.Namespace, training: learning.Training, folder: pathlib.Path) -> str:
    """Write policy and summary together, in place of an earlier training's, whose episode goes; the result's id."""
    result_id = new_result_id()
    with files.replacing_together(folder, ("policy.npz", SUMMARY, TRAJECTORY, "animation.gif", "animation.mp4")) as part:
        learning.save_policy(part / "policy.npz", training.policy)
        (part / SUMMARY).write_text(json_text(_summary(args, training) | {RESULT_ID: result_id}))
    return result_id


def show(training: learning.Training, folder: pathlib.Path, result_id: str) -> None:
    """Write the seed's episode of the policy as trajectory.npz, for `trajopt view`, and as animation.gif."""
    with walltime.part("import"):
        from trajopt.viz import animation
    motion = learning.episode(training.environment, training.policy, training.seed)
    files.write_arrays(folder / TRAJECTORY, motion | {RESULT_ID: result_id})
    with walltime.part("animation"):
        drawn(functools.partial(animation.animate, training.environment.system.model), motion, folder / "animation.gif")


def _algorithm(args: argparse.Namespace, name: str) -> Algorithm:
    """The algorithm of this name with what suits the task."""
    options: dict[str, Any] = {}
    if args.kappa is not None:
        if name != learning.SHAC.name:
            raise OptionError(f"--kappa is for --algorithm {learning.SHAC.name}; {name} takes no gradients of steps")
        options["kappa"] = tuple(args.kappa)
    if args.gradient is not None and name == learning.PPO.name:
        raise OptionError(f"--gradient is for --algorithm {learning.SHAC.name}; {name} takes no gradients of steps")
    return learning.algorithm(name, args.task, **options)


def _summary(args: argparse.Namespace, training: learning.Training) -> dict[str, Any]:
    last = training.evaluations[-1]
    return {
        "task": args.task, "settings": args.settings, "algorithm": training.algorithm.name, "options": repr(training.algorithm),
        "gradient": training.environment.system.mode.name, "seed": args.seed, "success": training.success,
        "return": last["return"], "success_rate": last["success_rate"], "samples": training.curve[-1]["samples"],
        "samples_to_success": training.samples_to(), "compile_time_s": round(training.compile_time_s, 3),
        "wall_time_s": round(training.wall_time_s, 3),
    }  # fmt: skip


class _Lines:
    """A line for every evaluation, and now and then one between them."""

    def __init__(self, console: Console) -> None:
        self.console, self.last = console, time.perf_counter()
        say(console, _HEADER)

    def __call__(self, row: Row) -> None:
        now = time.perf_counter()
        if row["return"] is None and now - self.last < _INTERVAL_S:
            return
        self.last = now
        judged = ("", "") if row["return"] is None else (f"{row['return']:.4g}", f"{row['success_rate']:.0%}")
        reward = "" if row.get("reward") is None else f"{row['reward']:.4g}"
        counted = f"{row['update']:7d}  {row['samples']:10d}  {row['wall_time_s']:9.1f}"
        say(self.console, f"{counted}  {reward:>10}  {judged[0]:>10}  {judged[1]:>8}")
