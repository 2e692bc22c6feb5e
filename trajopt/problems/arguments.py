"""What a problem was given and what validation made of it, so that `dataclasses.replace` validates anew what was given.

A problem validates its arguments when it is made and keeps them in their normal form: a time step that is the `System`'s own,
bounds that were left out as infinite ones. In another problem those may be wrong, or no argument at all. `dataclasses.replace`
hands every field over as it stands; those that nobody changed are therefore taken back to what was given.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Argument:
    """A field as it was given, and in its normal form."""

    given: Any
    normal: Any


def values(problem: Any) -> dict[str, Any]:
    """The fields of a problem by name, but for the record of its arguments."""
    return {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem) if field.name != "arguments"}


def given(problem: Any) -> dict[str, Any]:
    """The fields that still hold the normal form from the problem they were copied from, as they were given to that one."""
    record: Mapping[str, Argument] = problem.arguments or {}
    return {key: argument.given for key, argument in record.items() if getattr(problem, key) is argument.normal}


def recorded(before: Mapping[str, Any], problem: Any) -> dict[str, Argument]:
    """The fields that validation changed: `before` it, as given, and now."""
    now = values(problem)
    return {key: Argument(value, now[key]) for key, value in before.items() if value is not now[key]}
