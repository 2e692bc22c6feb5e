"""What the compiled functions of a problem depend on beside their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np

# Metadata of the fields that are arguments of compiled functions, or that none of them reads.
NOT_COMPILED = {"compiled": False}


@dataclasses.dataclass(frozen=True)
class ProblemSignature:
    """Fields of a problem by name; arrays as their type, shape and bytes, functions as themselves."""

    fields: tuple[tuple[str, Hashable], ...]


def signature(problem: Any, **instead: Hashable) -> ProblemSignature:
    """Of every field but those marked `NOT_COMPILED`; instead: values that stand for some fields."""
    names = [field.name for field in dataclasses.fields(problem) if field.metadata.get("compiled", True)]
    return ProblemSignature(tuple((name, _hashable(instead.get(name, getattr(problem, name)))) for name in names))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return value
