"""Compiled programs, kept by what they depend on.

A program is a function of arrays and of one subject, an object that is not an array: a problem, or a frozen dataclass of one and
of options. The subject is closed over; two subjects that are equal share a program. So the same function of the same problem is
compiled once, whoever calls it: by another oracle, another solve, another problem whose subject is equal.

How thoroughly XLA optimises a program is the caller's choice (`Effort`): a program that runs once, such as a certificate, is
compiled for longer than it runs.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

KEPT_PROGRAMS = 64


class Effort(enum.Enum):
    """How a program is compiled for a CPU; the value holds XLA's options. On other devices all are `FULL`.

    The rollout of catapult, 500 steps with a collision of boxes: `FULL` takes 3 s of processor time to compile and 0.08 s to run,
    `LIGHT` 1.7 s and the same 0.08 s (without XLA's fusion by MLIR; what is vectorised over a batch may run half as fast), and
    `QUICK` 0.45 s and 0.16 s.
    """

    FULL = ()
    LIGHT = (("xla_cpu_use_fusion_emitters", False),)
    QUICK = (
        ("xla_cpu_use_fusion_emitters", False),
        ("xla_backend_optimization_level", 0),
        ("xla_llvm_disable_expensive_passes", True),
        ("xla_cpu_parallel_codegen_split_count", 1),
    )


def compiled_with(lowered: Any, options: Mapping[str, bool | int]) -> Callable[..., Any]:
    """The compiled program of a lowered one (`jax.stages.Lowered`) with options of XLA for CPUs; without any of them where the
    device is another or this XLA does not know one."""
    if not options or jax.default_backend() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """What a compiled program depends on: its function, its subject, structure, shapes and types of its arguments, and how
    thoroughly it was compiled."""

    function: Callable[..., Any]
    subject: Hashable
    structure: Hashable
    types: tuple[Hashable, ...]
    effort: Effort = Effort.FULL


class Programs:
    """The `kept` programs that were used last."""

    def __init__(self, kept: int = KEPT_PROGRAMS) -> None:
        self._kept = kept
        self._compiled: OrderedDict[ProgramKey, Callable[..., Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._compiled)

    def compiled(
        self, function: Callable[..., Any], subject: Hashable, *arguments: Any, effort: Effort = Effort.FULL
    ) -> tuple[Callable[..., Any], float]:
        """(the program of function(subject, *arguments), the seconds that compiling it took: 0 where it was there).

        arguments: pytrees of JAX's arrays, or of what tells their shapes and types (`jax.ShapeDtypeStruct`).
        """
        leaves, structure = jax.tree.flatten(arguments)
        types = tuple((leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False))) for leaf in leaves)
        key = ProgramKey(function, subject, structure, types, effort)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key], 0.0
        start = time.perf_counter()

        def closed(*arguments: Any) -> Any:
            return function(subject, *arguments)

        closed.__name__ = function.__name__  # which profiles and dumps show
        program = compiled_with(jax.jit(closed).lower(*arguments), dict(effort.value))
        self._compiled[key] = program
        if len(self._compiled) > self._kept:
            self._compiled.popitem(last=False)
        return program, time.perf_counter() - start

    def run(
        self, function: Callable[..., Any], subject: Hashable, *arguments: Any, effort: Effort = Effort.FULL
    ) -> tuple[Any, float]:
        """(function(subject, *arguments) once it is done, the seconds that compiling took)."""
        arrays = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.asarray(a), arguments)
        program, seconds = self.compiled(function, subject, *arrays, effort=effort)
        return jax.block_until_ready(program(*arrays)), seconds


PROGRAMS = Programs()
