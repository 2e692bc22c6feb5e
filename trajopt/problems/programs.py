"""Compiled programs: functions of a subject and of arrays, compiled by `jax.jit` and timed.

A subject is a problem, or a frozen dataclass of one and of options (`subject`). It is a pytree: its numbers are arguments of the
program; functions, sizes, names and options are part of what `jax.jit` keys the program by. So the same function of two subjects
that differ in numbers alone is compiled once, whoever calls it. A subject that is no pytree is part of the key as a whole.

How thoroughly XLA optimises a program is the caller's choice (`Effort`): a program that runs once, such as a certificate, is
compiled for longer than it runs.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from trajopt.dynamics.effort import Effort, known_options
from trajopt.native.process import check_process

KEPT_PROGRAMS = 64  # of one function; when there are more, all are compiled again
_LOG = logging.getLogger(__name__)  # every program compiled, at DEBUG
Kind = TypeVar("Kind", bound=type)


def subject(*parts: str) -> Callable[[Kind], Kind]:
    """Makes a pytree of a frozen dataclass: its fields `parts` are pytrees, the others, hashable, are part of a program's key."""

    def registered(kind: Kind) -> Kind:
        others = [field.name for field in dataclasses.fields(kind) if field.init and field.name not in parts]
        return jax.tree_util.register_dataclass(kind, data_fields=list(parts), meta_fields=others)

    return registered


@dataclasses.dataclass(frozen=True)
class NotCompiled:
    """What a problem holds that no compiled function reads: for the key of a program, all such values are the same."""

    value: Any = dataclasses.field(compare=False)


class Program:
    """A function, compiled for each structure of its subject and each shape and type of the arrays."""

    def __init__(self, function: Callable[..., Any], effort: Effort, fixed: bool) -> None:
        self.traced = 0  # how often it was traced, which happens once for each program

        def traced(*arguments: Any) -> Any:
            self.traced += 1
            return function(*arguments)

        traced.__name__ = function.__name__  # which profiles and dumps show
        options = known_options(effort)
        self.jitted: Any = jax.jit(traced, static_argnums=0 if fixed else (), compiler_options=options or None)

    def make_room(self) -> None:
        """Forget the programs when there are many."""
        if self.traced >= KEPT_PROGRAMS:
            self.jitted.clear_cache()
            self.traced = 0


@functools.cache
def _program(function: Callable[..., Any], effort: Effort, fixed: bool) -> Program:
    return Program(function, effort, fixed)


def _program_of(function: Callable[..., Any], subject: Any, effort: Effort) -> Program:
    check_process()
    return _program(function, effort, jax.tree_util.all_leaves([subject]))


def run(
    function: Callable[..., Any], subject: Any, *arguments: Any, effort: Effort = Effort.FULL
) -> tuple[Any, float]:
    """(function(subject, *arguments) once it is done, the seconds that compiling took: 0 where the program was there)."""
    program = _program_of(function, subject, effort)
    traced, start = program.traced, time.perf_counter()
    result = program.jitted(subject, *arguments)
    seconds = 0.0
    if program.traced > traced:  # the call returns when the program is compiled and begun
        seconds = time.perf_counter() - start
        _LOG.debug("compiled %s in %.2f s", function.__qualname__, seconds)
    result = jax.block_until_ready(result)
    program.make_room()
    return result, seconds


def compiled(
    function: Callable[..., Any], subject: Any, *arguments: Any, effort: Effort = Effort.FULL
) -> tuple[Callable[..., Any], float]:
    """(the program of function(subject, *arguments), which takes the arguments alone, the seconds that compiling it took).

    arguments: pytrees of arrays, or of what tells their shapes and types (`jax.ShapeDtypeStruct`).
    """
    program, start = _program_of(function, subject, effort), time.perf_counter()
    traced = program.traced
    made = program.jitted.lower(subject, *arguments).compile()
    seconds = time.perf_counter() - start if program.traced > traced else 0.0
    return made if jax.tree_util.all_leaves([subject]) else functools.partial(made, subject), seconds
