"""Options and arguments: a number where a number is asked for, and in its range, before anything is computed with it."""

import dataclasses
import types
import typing
from collections.abc import Collection
from typing import Any

import numpy as np

from trajopt.errors import OptionError
from trajopt.names import closest

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


def check_range(where: str, key: str, value: Any, interval: str) -> None:
    """Raise `OptionError` unless a number, or each of an array, is in an interval such as "[0, 1)"; None is in any."""
    if value is None:
        return
    low, high = (float(end) for end in interval[1:-1].split(","))
    numbers = np.asarray(value)
    above = numbers >= low if interval[0] == "[" else numbers > low
    below = numbers <= high if interval[-1] == "]" else numbers < high
    if not (above & below).all():
        words = f"at least {low:g}" if interval[0] == "[" else f"above {low:g}" if low else "positive"
        upper = "finite" if high == np.inf else f"at most {high:g}" if interval[-1] == "]" else f"below {high:g}"
        more = f" and {upper}" if high < np.inf or not np.isfinite(numbers).all() else ""
        raise OptionError(f"{where}{key} is {value!r}; it must be {words}{more}")


def check_number(name: str, value: Any, interval: str, *kinds: type) -> None:
    """Raise `OptionError` unless an argument is a number of one of the `kinds`, in an interval such as "[0, 1)"."""
    check_kind("", name, value, *kinds)
    check_range("", name, value, interval)


def check_options(solver: Any, **allowed: str | Collection[str]) -> None:
    """Raise `OptionError` where an option of a solver is not of the kind that its annotation names, or not what is allowed.

    allowed: of options, the interval of a number (`check_range`), or the strings that there are. Options annotated with anything
    but int, float, bool, str and None, and not named here, are left to the solver.
    """
    where = f"{type(solver).__name__}: "
    for key, kinds in _annotated(type(solver)).items():
        check_kind(where, key, getattr(solver, key), *kinds)
    for key, what in allowed.items():
        value = getattr(solver, key)
        if isinstance(what, str):
            check_range(where, key, value, what)
        elif value is not None and value not in what:
            raise OptionError(f"{where}{key} is {value!r}{closest(str(value), what)}")


def _annotated(kind: type) -> dict[str, tuple[type, ...]]:
    """The fields of a dataclass that are numbers, strings or None, with their kinds."""
    hints, found = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if all(member in _KINDS or member is types.NoneType for member in members):
            found[field.name] = members
    return found
