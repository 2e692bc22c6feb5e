"""An `OptimalControlProblem` as a pytree, so that `jax.jit` keys programs by it and `vmap` maps over it.

Leaves are its numbers: those of the `System`, of tasks made of residuals, of functions that are pytrees such as a
`jax.tree_util.Partial`, initial state and guess, start time, parameters and bounds. Plain functions, sizes, the time step, the
tolerance and which bounds there are (`finite_bounds`) are the structure. What no compiled function reads, such as the name and
the certificate, and goals, which one program reads that is given them (`goals.Judged`), is carried along and is the same in every
key.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from trajopt.problems.programs import NotCompiled

NUMBERS = (
    "x0", "u0", "xs0", "start_time", "parameters", "control_lower", "control_upper", "state_lower", "state_upper",
    "parameter_lower", "parameter_upper",
)  # fmt: skip
# Where a function may be a pytree of numbers, such as a `System`, a sum of residuals or a `jax.tree_util.Partial`.
FUNCTIONS = (
    "dynamics", "stage_residual", "stage_cost", "terminal_residual", "terminal_cost", "initial_residual", "parameter_residual",
    "equality", "inequality", "terminal_equality", "terminal_inequality",
)  # fmt: skip
SETTINGS = (
    "horizon", "dt", "free_initial_state", "parametrize", "integrate", "difference", "tangent_size", "tolerance",
    "finite_bounds",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Structure:
    """What the key of a program has of a problem: the fields that are leaves, the others by value, and what counts for none."""

    numbers: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]
    apart: NotCompiled


def with_arrays(function: Any, dtype: Any) -> Any:
    """A function that is a pytree, with its floating-point numbers as arrays of a type; any other as it is."""
    if jax.tree_util.all_leaves([function]):
        return function
    real = (float, np.floating, np.ndarray, jax.Array)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf, dtype) if isinstance(leaf, real) and np.issubdtype(np.result_type(leaf), np.floating) else
        np.asarray(leaf), function,
    )  # fmt: skip


def flatten(problem: Any) -> tuple[list[Any], Structure]:
    """(the fields that hold numbers, the rest)."""
    functions = {key: getattr(problem, key) for key in FUNCTIONS}
    trees = [key for key, value in functions.items() if value is not None and not jax.tree_util.all_leaves([value])]
    settings = {key: value for key, value in functions.items() if key not in trees}
    settings |= {key: getattr(problem, key) for key in SETTINGS}
    names = (*NUMBERS, *trees)
    known = {*names, *settings}
    apart = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem) if field.name not in known}
    return [getattr(problem, key) for key in names], Structure(names, tuple(settings.items()), NotCompiled(apart))


def unflatten(kind: type, structure: Structure, numbers: Any) -> Any:
    """The problem with these numbers, which may be traced: nothing is validated."""
    fields = dict(zip(structure.numbers, numbers, strict=True)) | dict(structure.settings) | structure.apart.value
    return kind(**fields, validate=False)
