"""Kinds of options and arguments: a number where a number is asked for, before anything is computed with it."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from trajopt.errors import OptionError

# What an annotation accepts, as kinds of NumPy's dtypes (True is no number), and what the error calls it.
_KINDS = {int: ("iu", "a whole number"), float: ("iuf", "a number"), bool: ("b", "True or False"), str: ("U", "a string")}


def check_kind(where: str, key: str, value: Any, *kinds: type) -> None:
    """Raise `OptionError` unless `value` is of one of the `kinds`: int, float, bool, str or `None`'s type.

    where: what the message begins with, such as "GaussNewton: ". NumPy's and JAX's scalars count as numbers.
    """
    known = [_KINDS[kind] for kind in kinds if kind in _KINDS]
    if value is None and types.NoneType in kinds:
        return
    scalar = np.ndim(value) == 0 and any(np.asarray(value).dtype.kind in letters for letters, _ in known)
    if not scalar:
        expected = [name for _, name in known] + (["None"] if types.NoneType in kinds else [])
        raise OptionError(f"{where}{key} is {value!r}; expected {' or '.join(expected)}")


def check_options(solver: Any) -> None:
    """Raise `OptionError` where an option of a solver is not of the kind that its annotation names.

    Options annotated with anything but int, float, bool, str and None are left to the solver.
    """
    for key, kinds in _annotated(type(solver)).items():
        check_kind(f"{solver.name}: ", key, getattr(solver, key), *kinds)


def _annotated(kind: type) -> dict[str, tuple[type, ...]]:
    """The fields of a dataclass that are numbers, strings or None, with their kinds."""
    hints, found = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if all(member in _KINDS or member is types.NoneType for member in members):
            found[field.name] = members
    return found
