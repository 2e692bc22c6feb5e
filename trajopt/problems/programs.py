"""Compiled programs, kept by what they depend on.

A program is a function of arrays and of one subject, an object that is not an array: a problem, or a frozen dataclass of one and
of options. The subject is closed over; two subjects that are equal share a program. So the same function of the same problem is
compiled once, whoever calls it: by another oracle, another solve, another problem whose subject is equal.
"""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

KEPT_PROGRAMS = 64


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """What a compiled program depends on: its function, its subject, and structure, shapes and types of its arguments."""

    function: Callable[..., Any]
    subject: Hashable
    structure: Hashable
    types: tuple[Hashable, ...]


class Programs:
    """The `kept` programs that were used last."""

    def __init__(self, kept: int = KEPT_PROGRAMS) -> None:
        self._kept = kept
        self._compiled: OrderedDict[ProgramKey, Callable[..., Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._compiled)

    def compiled(
        self, function: Callable[..., Any], subject: Hashable, *arguments: Any
    ) -> tuple[Callable[..., Any], float]:
        """(the program of function(subject, *arguments), the seconds that compiling it took: 0 where it was there).

        arguments: pytrees of JAX's arrays, or of what tells their shapes and types (`jax.ShapeDtypeStruct`).
        """
        leaves, structure = jax.tree.flatten(arguments)
        types = tuple((leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False))) for leaf in leaves)
        key = ProgramKey(function, subject, structure, types)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key], 0.0
        start = time.perf_counter()

        def closed(*arguments: Any) -> Any:
            return function(subject, *arguments)

        closed.__name__ = function.__name__  # which profiles and dumps show
        # A function inside the function: XLA 0.10 for CPUs takes LAPACK calls in a branch of the outermost one for unknown ones.
        program = jax.jit(lambda *arguments: jax.jit(closed)(*arguments)).lower(*arguments).compile()
        self._compiled[key] = program
        if len(self._compiled) > self._kept:
            self._compiled.popitem(last=False)
        return program, time.perf_counter() - start

    def run(self, function: Callable[..., Any], subject: Hashable, *arguments: Any) -> tuple[Any, float]:
        """(function(subject, *arguments) once it is done, the seconds that compiling took)."""
        arrays = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.asarray(a), arguments)
        program, seconds = self.compiled(function, subject, *arrays)
        return jax.block_until_ready(program(*arrays)), seconds


PROGRAMS = Programs()
