"""Problems as data: the same problem with another initial state or start time, other references, weights and guesses, or another
horizon.

Of the same shapes and types, these are arguments of what is compiled (`tree`), and nothing but themselves is validated.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from trajopt.problems.arguments import Argument
from trajopt.problems.arguments import given as as_given
from trajopt.problems.checks import (
    checked_controls,
    checked_guess,
    checked_horizon,
    checked_initial_state,
    checked_start_time,
)
from trajopt.problems.residuals.base import is_task, labels_of, normalised, replaced, unknown_term
from trajopt.problems.trajectory import TASKS, ControlProblem

GUESSES = ("u0", "xs0")


def replaced_problem(
    problem: ControlProblem,
    x0: Any,
    references: Mapping[str, Any],
    weights: Mapping[str, Any],
    others: Mapping[str, Any],
) -> ControlProblem:
    """`OptimalControlProblem.replace`."""
    if "horizon" in others:
        problem = _over(problem, checked_horizon(problem, others["horizon"]))
        others = {key: value for key, value in others.items() if key != "horizon"}
    tasks = _tasks(problem, references, weights)
    other_fields = {key: value for key, value in others.items() if key not in (*GUESSES, "start_time")}
    guesses = {key: others[key] for key in GUESSES if others.get(key) is not None}
    if other_fields or not _same_shapes(problem, tasks):
        changes = {**others, **tasks} | ({} if x0 is None else {"x0": x0})
        return dataclasses.replace(problem, **changes)
    new: dict[str, Any] = dict(tasks)
    given: dict[str, Any] = dict(tasks)
    if x0 is not None:
        new["x0"], given["x0"] = checked_initial_state(problem, x0), x0
        if new["x0"].shape != problem.x0.shape or new["x0"].dtype != problem.x0.dtype:
            return dataclasses.replace(problem, **{**others, **tasks, "x0": x0})
    u0 = guesses.get("u0", _guess_made_of_x0(problem) if x0 is not None else problem.u0)
    if u0 is not problem.u0:
        controls, meta = checked_controls(problem, u0, new.get("x0", problem.x0))
        if u0 is not None or "guess" in meta:  # controls that hold the last state are a better guess than none
            new["u0"], new["meta"] = controls, meta
            given["u0"], given["meta"] = u0, meta
    if "xs0" in guesses:
        new["xs0"], given["xs0"] = checked_guess(problem, guesses["xs0"]), guesses["xs0"]
    if "start_time" in others:
        given["start_time"] = others["start_time"]
        new["start_time"] = checked_start_time(problem, problem.dtype, given["start_time"])
    return _with(problem, new, given)


def _guess_made_of_x0(problem: ControlProblem) -> Any:
    """The guess of the controls as it was given, where it is made anew for another initial state: none, or one by name."""
    given = as_given(problem).get("u0", problem.u0)
    return given if given is None or isinstance(given, str) else problem.u0


def _over(problem: ControlProblem, steps: int) -> ControlProblem:
    """The problem over another number of steps; guesses are truncated, or extended by repeating the last row."""
    new: dict[str, Any] = {"horizon": steps, "u0": lengthened(problem.u0[:steps], steps)}
    record = problem.arguments or {}
    by_step = "u0" not in record or np.ndim(record["u0"].given) == 2  # else it is given for every step alike
    given = dict(new) if by_step else new | {"u0": record["u0"].given}
    if problem.xs0 is not None:
        new["xs0"] = given["xs0"] = lengthened(problem.xs0[: steps + 1], steps + 1)
    return _with(problem, new, given)


def _tasks(problem: ControlProblem, references: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    """The functions made of residuals of which something changes, in their normal form."""
    found = {key: getattr(problem, key) for key in TASKS if is_task(getattr(problem, key))}
    labels = set(labels_of(list(found.values())))
    for name in (*references, *weights):
        if name not in labels:
            raise unknown_term(f"problem '{problem.name}': ", name, labels)
    named = {*references, *weights}
    where, system = f"problem '{problem.name}': ", problem.system
    if system is None:
        return {}
    return {
        key: normalised(
            replaced(task, references, weights), system, problem.dtype, f"{where}{key}: ", key.startswith(("terminal", "initial"))
        )
        for key, task in found.items()
        if named & set(labels_of([task]))
    }


def _same_shapes(problem: ControlProblem, tasks: Mapping[str, Any]) -> bool:
    return all(
        [np.shape(a) for a in jax.tree.leaves(task)] == [np.shape(b) for b in jax.tree.leaves(getattr(problem, key))]
        for key, task in tasks.items()
    )


def _with(problem: ControlProblem, new: Mapping[str, Any], given: Mapping[str, Any]) -> ControlProblem:
    """The problem with these fields, of which nothing else is validated again."""
    record = dict(problem.arguments or {}) | {key: Argument(given[key], new[key]) for key in new}
    return dataclasses.replace(problem, **new, arguments=record, validate=False)


def lengthened(values: Any, rows: int) -> Shaped[np.ndarray, "rows ..."]:
    """An array with its last row again and again."""
    found = np.asarray(values)
    more = rows - len(found)
    return found if more <= 0 else np.concatenate([found, np.repeat(found[-1:], more, 0)])
