"""Training: updates of an algorithm in an environment, evaluations in between, a log, checkpoints.

    training = train(tasks.environment("cartpole-swingup"), SHAC(), samples=200_000, seed=0, folder="runs/swingup")
    training.policy(observation)

An update is one compiled program of the learner's state and of the share of the training that lies behind, so that a training
that was killed and goes on from its checkpoint has the curve of one that was not, to the last bit (wall times apart).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import files
from trajopt.errors import OptionError
from trajopt.learning.algorithm import Algorithm, Learner
from trajopt.learning.curves import Curve, Row
from trajopt.learning.environment import Environment
from trajopt.learning.networks import Policy
from trajopt.learning.rollouts import play, refuse_faults
from trajopt.occupied import occupying
from trajopt.solvers.loop.checkpoint import Checkpoint, write_checkpoint

CHECKPOINT = "checkpoint.npz"
SOLVED = 0.95  # share of the episodes of an evaluation that are a success
COLUMNS = ("update", "samples", "wall_time_s", "return", "success_rate", "episode_steps")  # then the algorithm's own


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training gave. Seconds before a resumption are included.

    Attributes:
        environment: the `Environment`.
        algorithm: the algorithm with its options.
        policy: the `Policy`.
        curve: rows of the learning curve; `evaluations` are those with an evaluation.
        success: whether the last evaluation reached the share `solved`.
        compile_time_s (s): time that compiling took.
        wall_time_s (s): time that the updates took.
        seed: of the draws.
    """

    environment: Environment
    algorithm: Algorithm
    policy: Policy
    curve: list[Row]
    success: bool
    compile_time_s: float
    wall_time_s: float
    seed: int

    @property
    def evaluations(self) -> list[Row]:
        """The rows with an evaluation."""
        return [row for row in self.curve if row["return"] is not None]

    def samples_to(self, share: float = SOLVED) -> int | None:
        """Actions until an evaluation first had this share of successes; None: none had."""
        return next((int(row["samples"] or 0) for row in self.evaluations if (row["success_rate"] or 0.0) >= share), None)


def train(
    environment: Environment,
    algorithm: Algorithm,
    *,
    samples: int,
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    resume: bool = False,
    evaluations: int = 20,
    episodes: int = 64,
    solved: float = SOLVED,
    stop_when_solved: bool = False,
    checkpoint_every_s: float = 5.0,
    callback: Callable[[Row], Any] | None = None,
) -> Training:
    """Train a policy.

    samples: actions to learn from, rounded up to whole updates. folder: for the log (`curve.csv`, `curve.jsonl`) and the
    checkpoint. resume: go on from the checkpoint in the folder. evaluations: how often the policy is judged, without
    exploration, by `episodes` whole episodes, always the same. solved: share of successes from which the task counts as
    reached; stop_when_solved: end there. checkpoint_every_s: seconds between checkpoints, after one at the start.
    callback: of every row. An interruption leaves a checkpoint; a full disk is a warning, and the training goes on.

    Raises `OptionError`, and `NonFiniteError` naming step and term where a reward or state is not finite.
    """
    updates = _updates(algorithm, samples)
    if evaluations < 1 or episodes < 1:
        raise OptionError(f"evaluations is {evaluations}, episodes {episodes}; expected at least 1 of each")
    if resume and folder is None:
        raise OptionError("resume is True, and folder is None; name the folder with the checkpoint")
    path = None if folder is None else pathlib.Path(folder) / CHECKPOINT
    checkpoint = Checkpoint(path) if resume and path is not None else None
    algorithm.check(environment)
    with contextlib.nullcontext() if folder is None else occupying(folder):
        loop = _Loop(environment, algorithm, seed, updates, max(updates // evaluations, 1), episodes)
        return _trained(loop, checkpoint, path, solved, stop_when_solved, checkpoint_every_s, callback)


def _trained(
    loop: _Loop, checkpoint: Checkpoint | None, path: pathlib.Path | None, solved: float, stop_when_solved: bool,
    checkpoint_every_s: float, callback: Callable[[Row], Any] | None,
) -> Training:  # fmt: skip
    """The updates that are missing, their log and their checkpoints."""
    learner, rows, spent = loop.begun(checkpoint)
    if path is not None:
        loop.save(path, learner, rows, spent)  # what cannot be written is told before anything is learnt
    clock, last = time.perf_counter() - spent, time.perf_counter()
    curve = Curve(None if path is None else path.parent, loop.columns, rows)
    kept = learner, len(rows)  # what belongs together, in one assignment: an interruption may come anywhere
    try:
        for update in range(len(rows), loop.updates):
            learner, row = loop.advance(learner, update)
            row = curve.add(row | {"wall_time_s": time.perf_counter() - clock})
            kept = learner, update + 1
            if callback is not None:
                callback(row)
            if path is not None and time.perf_counter() - last >= checkpoint_every_s:
                last = time.perf_counter()
                loop.try_to_save(path, learner, curve.rows, last - clock, "the training goes on and tries again")
            if stop_when_solved and (row["success_rate"] or 0.0) >= solved:
                break
    finally:  # an interruption too: what the last whole update left
        learner, count = kept
        if path is not None:
            loop.try_to_save(path, learner, curve.rows[:count], time.perf_counter() - clock, "the policy is not affected")
    judged = [row["success_rate"] or 0.0 for row in curve.rows if row["return"] is not None]
    return Training(
        loop.environment, loop.algorithm, learner.policy, curve.rows, bool(judged) and judged[-1] >= solved,
        loop.compile_time_s, time.perf_counter() - clock, loop.seed,
    )  # fmt: skip


def _updates(algorithm: Algorithm, samples: int) -> int:
    if samples < 1:
        raise OptionError(f"samples is {samples}, expected at least 1 action to learn from")
    return -(-samples // algorithm.samples)


class _Loop:
    """The compiled programs of a training, and what a checkpoint of it belongs to."""

    def __init__(
        self, environment: Environment, algorithm: Algorithm, seed: int, updates: int, every: int, episodes: int
    ) -> None:
        self.environment, self.algorithm, self.seed = environment, algorithm, seed
        self.updates, self.every = updates, every
        begin = time.perf_counter()
        own, self.judged_by = jax.random.split(jax.random.PRNGKey(seed))
        self.start: Learner = jax.jit(functools.partial(algorithm.init, environment))(own)
        progress = jnp.zeros((), environment.dtype)
        step = jax.jit(functools.partial(algorithm.update, environment))
        self.step = step.lower(self.start, progress).compile()
        judge = jax.jit(lambda policy, key: play(environment, policy, key, episodes))
        self.judge = judge.lower(self.start.policy, self.judged_by).compile()
        _, report = jax.eval_shape(step, self.start, progress)
        self.columns = (*COLUMNS, *sorted(report.metrics))
        self.compile_time_s = time.perf_counter() - begin
        system, gradient = environment.system, environment.system.mode.name
        self.identity = {
            "task": environment.name, "contact": f"{system.contact!r}, {system.dt} s", "algorithm": repr(algorithm),
            "gradient": gradient, "seed": str(seed),
            "updates": str(updates), "evaluations": f"every {every} updates, {episodes} episodes",
        }  # fmt: skip

    def advance(self, learner: Learner, update: int) -> tuple[Learner, dict[str, Any]]:
        """One update, its row, and with it an evaluation where one is due."""
        share = jnp.asarray(update / self.updates, self.environment.dtype)
        learner, report = self.step(learner, share)
        refuse_faults(self.environment, np.asarray(report.fault), np.asarray(report.steps), update)
        row: dict[str, Any] = {"update": update + 1, "samples": (update + 1) * self.algorithm.samples}
        row |= {name: float(value) for name, value in report.metrics.items()}
        if (update + 1) % self.every == 0 or update + 1 == self.updates:
            episodes = self.judge(learner.policy, self.judged_by)
            row |= {
                "return": float(episodes.returns.mean()),
                "success_rate": float(np.asarray(episodes.success).mean()),
                "episode_steps": float(np.asarray(episodes.steps).mean()),
            }
        return learner, row

    def save(self, path: pathlib.Path, learner: Learner, rows: list[Row], spent: float) -> None:
        """Write the checkpoint."""
        write_checkpoint(path, learner, self.identity, {"rows": json.dumps(rows), "wall_time_s": spent})

    def try_to_save(self, path: pathlib.Path, learner: Learner, rows: list[Row], spent: float, meanwhile: str) -> None:
        """Write the checkpoint; a full disk does not end the training."""
        files.try_to_write(lambda: self.save(path, learner, rows, spent), path, meanwhile)

    def begun(self, checkpoint: Checkpoint | None) -> tuple[Learner, list[Row], float]:
        """The learner, the rows and the seconds to go on from: those of a checkpoint, or fresh ones."""
        if checkpoint is None:
            return self.start, [], 0.0
        checkpoint.check(self.identity)
        rows = json.loads(str(checkpoint.progress["rows"]))
        return checkpoint.restore(self.start), rows, float(checkpoint.progress["wall_time_s"])


def save_policy(path: str | os.PathLike, policy: Policy) -> None:
    """The policy's numbers as a NumPy archive (.npz)."""
    write_checkpoint(path, policy, {"kind": "policy"}, {})


def load_policy(path: str | os.PathLike, environment: Environment, algorithm: Algorithm) -> Policy:
    """A policy saved by `save_policy`, or by `trajopt train`; algorithm: with the `hidden` layers that it was trained with.

    Raises `OptionError` for what is no policy of this environment and these layers.
    """
    template = jax.eval_shape(lambda key: algorithm.init(environment, key).policy, jax.ShapeDtypeStruct((2,), np.uint32))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)
    checkpoint = Checkpoint(path)
    checkpoint.check({"kind": "policy"})
    return checkpoint.restore(zeros)
