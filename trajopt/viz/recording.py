"""Finished runs as something to look at: the model, its motion and the contact forces along it.

A run's folder (`Solution.save`) holds the motion, not the model: that comes from the problem, made again with the settings
in summary.json, or from the task that a policy was trained on. Contact points and frames are recomputed from the motion; the
stored impulses are in these frames.
"""

import dataclasses
import os
import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt import files, problems
from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.collision.narrowphase import collide, contact_count
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import ModelError, OptionError, UnknownNameError
from trajopt.problems import programs
from trajopt.solvers.loop.solution import RESULT_ID, SOLVE_AGAIN, SUMMARY, TRAJECTORY, check_one_result, read_summary

_REMEDY = "give the model with --model (a bundled name or a file)"


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """A motion of a model to be shown, at k times.

    Options:
        name: of the motion.
        model: the model.
        t (s): the times, (k,), ascending.
        q: configurations, (k, nq).
        points (m): contact points, (k, c, 3), world axes, of the step that starts at each state, of the last step at the
            last one; c is 0 where there are none.
        forces (N): on the first body of each contact, (k, c, 3), world axes.
        caption: a line about the motion.
    """

    name: str
    model: Model
    t: Float[np.ndarray, " k"]
    q: Float[np.ndarray, "k nq"]
    points: Float[np.ndarray, "k c 3"]
    forces: Float[np.ndarray, "k c 3"]
    caption: str = ""

    def at(self, time: float) -> int:
        """Index of the state shown at a time: the last one that is not later, to rounding."""
        return max(int(np.searchsorted(self.t, time * (1 + 1e-12) + 1e-12, side="right")) - 1, 0)


def read_run(folder: str | os.PathLike, model: Model | None = None) -> Recording:
    """The recording of a run. `model`: what to draw, where the run's problem is not in the library.

    Raises `OptionError` (no finished run, no motion of a model, damaged files, a model that does not fit) and
    `UnknownNameError` (a problem that is not in the library), saying what helps.
    """
    folder = pathlib.Path(folder)
    summary, motion = _read(folder)
    if "q" not in motion:
        raise OptionError(
            f"the run in '{folder}' has no motion of a model: trajectory.npz with q is missing. Runs of problems without "
            "a model, and of dynamics given as a function, cannot be drawn"
        )
    if model is None:
        model = _model_of(folder, summary)
    q = np.asarray(motion["q"], float)
    t = np.asarray(motion.get("t", np.arange(len(q))), float)
    if q.ndim != 2 or q.shape[1] != model.nq or t.shape != (len(q),):
        raise OptionError(
            f"the motion in '{folder}' does not fit the model '{model.topology.name}': q has shape {q.shape} and t "
            f"{t.shape}, expected (states, {model.nq}) and (states,); {_REMEDY}"
        )
    finite = np.isfinite(q).all(axis=1) & np.isfinite(t)
    shown = len(q) if finite.all() else int(np.argmin(finite))
    if shown == 0:
        raise OptionError(f"the motion in '{folder}' is not finite from its first state on: there is nothing to show")
    if shown < len(q):
        warnings.warn(
            f"the motion in '{folder}' is not finite from state {shown} on; it is shown up to there", stacklevel=2
        )
    impulse = np.asarray(motion.get("impulse", np.zeros((max(len(q) - 1, 0), 0, 3))), float)
    points, forces = contact_forces(model, t, q[:shown], impulse)
    return Recording(folder.resolve().name, model, t[:shown], q[:shown], points, forces, _caption(summary))


def contact_forces(
    model: Model, t: Float[np.ndarray, " t"], q: Float[np.ndarray, "k nq"], impulse: Float[np.ndarray, "s c 3"]
) -> tuple[Float[np.ndarray, "k c 3"], Float[np.ndarray, "k c 3"]]:
    """Points and forces (N, world axes, on body 1) of the impulses (N s, contact frames) of the steps between states at t.

    The impulses' contacts are the c closest candidates of the model at the state where the step starts, under a law that leaves
    `max_pairs` at its default.
    """
    if not fits(model, impulse):
        return np.zeros((len(q), 0, 3)), np.zeros((len(q), 0, 3))
    step = np.minimum(np.arange(len(q)), len(impulse) - 1)
    duration = np.diff(t)[step]
    points, frames, _ = contact_geometry(model, q[step], impulse.shape[1])
    forces = np.einsum("kcij,kcj->kci", frames, impulse[step]) / duration[:, None, None]
    return points, np.where(np.isfinite(forces), forces, 0.0)


def fits(model: Model, impulse: Float[np.ndarray, "s c 3"]) -> bool:
    """Whether there are impulses, and no more than the model has contact candidates."""
    count = impulse.shape[1]
    return bool(count and len(impulse) and model.topology.pairs and contact_count(model) >= count)


def contact_geometry(
    model: Model, q: Float[np.ndarray, "k nq"], count: int
) -> tuple[Float[np.ndarray, "k c 3"], Float[np.ndarray, "k c 3 3"], Int[np.ndarray, "k c"]]:
    """Points (m), frames and pairs (indices into `Topology.pairs`) of the `count` closest contact candidates at each state."""
    device = model.to_device()
    arguments = (device, np.asarray(q, device.mass.dtype))
    points, frames, pairs = programs.run(_contacts, count, *arguments, effort=Effort.QUICK)[0]
    return np.asarray(points, float), np.asarray(frames, float), np.asarray(pairs)


def _contacts(count: int, model: Model, q: Float[Array, "k nq"]) -> tuple[Array, Array, Array]:
    def single(row: Array) -> tuple[Array, Array, Array]:
        contacts = collide(model, kinematics(model, row), PairLimit(count))
        _, closest = jax.lax.top_k(-contacts.distance, count)
        closest = jnp.sort(closest)
        return contacts.point[closest], contact_frames(contacts.normal[closest]), contacts.pair[closest]

    return jax.lax.map(single, q, batch_size=64)


def _read(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """summary.json and the arrays of trajectory.npz, none where that is missing."""
    remedy = "give a folder that `trajopt run` or `trajopt train` wrote, such as runs/go1-stand"
    if not folder.is_dir():
        raise OptionError(f"'{folder}' is not a folder; {remedy}")
    with files.reading_together(folder) as path_of:
        if not path_of(SUMMARY).is_file():
            raise OptionError(f"'{folder}' holds no finished run: summary.json is missing; {remedy}")
        summary = read_summary(path_of(SUMMARY))
        if not path_of(TRAJECTORY).exists():
            return summary, {}
        motion = files.read_arrays(path_of(TRAJECTORY), SOLVE_AGAIN)
    check_one_result(folder, {SUMMARY: summary.get(RESULT_ID), TRAJECTORY: motion.pop(RESULT_ID, None)})
    return summary, motion


def _model_of(folder: pathlib.Path, summary: dict[str, Any]) -> Model:
    """The model of the run's problem, made with the run's settings, or of the task of a training."""
    if "task" in summary:
        return _model_of_task(folder, str(summary["task"]))
    name = str(summary.get("problem"))
    settings = summary.get("settings") or {}
    try:
        values = problems.parse_settings(name, [f"{key}={value!r}" for key, value in settings.items()])
        model = problems.get(name, **values).display.model
    except UnknownNameError as error:
        raise UnknownNameError(f"the run in '{folder}' cannot be drawn: {error}; {_REMEDY}") from None
    except (ModelError, OptionError) as error:
        raise OptionError(f"the run in '{folder}' cannot be drawn: {error}; {_REMEDY}") from None
    if model is None:
        raise OptionError(f"the problem '{name}' of the run in '{folder}' has no model; {_REMEDY}")
    return model


def _model_of_task(folder: pathlib.Path, name: str) -> Model:
    from trajopt import learning  # brings equinox and optax, which runs of problems do without

    try:
        return learning.tasks.environment(name).system.model
    except UnknownNameError as error:
        raise UnknownNameError(f"the run in '{folder}' cannot be drawn: {error}; {_REMEDY}") from None


def _caption(summary: dict[str, Any]) -> str:
    """Problem, solver, status and cost in a line; of a training the task, the algorithm and the return."""
    if "task" in summary:
        text = ", ".join(str(summary[key]) for key in ("task", "algorithm") if summary.get(key))
        gain = summary.get("return")
        return text + (f", return {gain:.4g}" if isinstance(gain, int | float) else "")
    cost = summary.get("cost")
    parts = [summary.get(key) for key in ("problem", "solver", "status")]
    text = ", ".join(str(part) for part in parts if part)
    return text + (f", cost {cost:.4g}" if isinstance(cost, int | float) else "")
