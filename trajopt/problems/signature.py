"""What the compiled functions of a problem depend on beside their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
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


@dataclasses.dataclass(frozen=True)
class Identity:
    """An object as itself: equal to itself alone, whatever its own equality says."""

    value: Any = dataclasses.field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def numbers(value: Any) -> list[Any]:
    """The arrays of a function that is a pytree, such as a sum of residuals; none of a plain function."""
    return [leaf for leaf in jax.tree.leaves(value) if _is_array(leaf)]


def with_numbers(value: Any, leaves: list[Any]) -> Any:
    """The function with other arrays in place of its `numbers`."""
    rest, parts = iter(leaves), jax.tree.flatten(value)
    return jax.tree.unflatten(parts[1], [next(rest) if _is_array(leaf) else leaf for leaf in parts[0]])


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if callable(value) and not jax.tree_util.all_leaves([value]):
        leaves, structure = jax.tree.flatten(value)
        return structure, tuple((leaf.shape, str(leaf.dtype)) if _is_array(leaf) else leaf for leaf in leaves)
    return value
