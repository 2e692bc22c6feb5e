"""Problems as pytrees, so that `jax.jit` keys programs by them and `vmap` maps over them.

Leaves of an `OptimalControlProblem` are its numbers: those of the `System`, of tasks made of residuals, of functions that are
pytrees such as a `jax.tree_util.Partial`, initial state and guess, start time, parameters and bounds. Plain functions, sizes, the
time step, the tolerance and which bounds there are (`finite_bounds`) are the structure. What no compiled function reads, such as
the name and the certificate, and goals, which one program reads that is given them (`goals.Judged`), is carried along and is the
same in every key.

Leaves of a `LeastSquaresProblem` are its data and the numbers of its functions; bounds, scale and prior are part of the key by
their entries.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from trajopt.problems.programs import NotCompiled


@dataclasses.dataclass(frozen=True)
class Parts:
    """Fields of a kind of problem: numbers; functions, which may be pytrees of numbers such as a `System`, a sum of residuals or
    a `jax.tree_util.Partial`; and others that are part of a program's key, `arrays` by their entries."""

    numbers: tuple[str, ...]
    functions: tuple[str, ...]
    settings: tuple[str, ...]
    arrays: tuple[str, ...] = ()


CONTROL = Parts(
    (
        "x0", "u0", "xs0", "start_time", "parameters", "control_lower", "control_upper", "state_lower", "state_upper",
        "parameter_lower", "parameter_upper",
    ),
    (
        "dynamics", "stage_residual", "stage_cost", "terminal_residual", "terminal_cost", "initial_residual",
        "parameter_residual", "equality", "inequality", "terminal_equality", "terminal_inequality", "parametrize", "integrate",
        "difference",
    ),
    ("horizon", "dt", "free_initial_state", "tangent_size", "tolerance", "finite_bounds"),
)  # fmt: skip
LEAST_SQUARES = Parts(
    ("data",), ("residual", "jacobian", "integrate", "difference"),
    ("residual_type", "loss", "f_scale", "tangent_size", "tolerance"),
    ("lower", "upper", "scale", "prior"),
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
    arrays = jax.tree.map(np.asarray, function)
    return jax.tree.map(lambda a: np.asarray(a, dtype) if np.issubdtype(a.dtype, np.floating) else a, arrays)


@dataclasses.dataclass(frozen=True)
class ByEntries:
    """A value that holds arrays: equal to another one if their entries are."""

    value: Any = dataclasses.field(compare=False)
    entries: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> ByEntries:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        parts = [getattr(value, field.name) for field in fields] or [value]
        arrays = [None if part is None else np.asarray(part) for part in parts]
        return cls(value, tuple(a if a is None else (a.shape, a.dtype.str, a.tobytes()) for a in arrays))


def flatten(problem: Any, parts: Parts) -> tuple[list[Any], Structure]:
    """(the fields that hold numbers, the rest)."""
    functions = {key: getattr(problem, key) for key in parts.functions}
    trees = [key for key, value in functions.items() if value is not None and not jax.tree_util.all_leaves([value])]
    settings = {key: value for key, value in functions.items() if key not in trees}
    settings |= {key: getattr(problem, key) for key in parts.settings}
    settings |= {key: ByEntries.of(getattr(problem, key)) for key in parts.arrays}
    names = (*parts.numbers, *trees)
    known = {*names, *settings}
    apart = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem) if field.name not in known}
    return [getattr(problem, key) for key in names], Structure(names, tuple(settings.items()), NotCompiled(apart))


def unflatten(kind: type, structure: Structure, numbers: Any) -> Any:
    """The problem with these numbers, which may be traced: nothing is validated."""
    settings = {key: value.value if isinstance(value, ByEntries) else value for key, value in structure.settings}
    fields = dict(zip(structure.numbers, numbers, strict=True)) | settings | structure.apart.value
    return kind(**fields, validate=False)
