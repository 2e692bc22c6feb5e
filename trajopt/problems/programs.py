"""Compiled programs, kept by what they depend on.

A program is a function of arrays and of one subject, an object that is not an array: a problem, or a frozen dataclass of one and
of options. The subject is closed over; two subjects that are equal share a program. So the same function of the same problem is
compiled once, whoever calls it: by another oracle, another solve, another problem whose subject is equal.

A subject may have `leaves`, arrays that are no part of what the program depends on (`Parted`): the initial state of a problem,
references and weights of its residuals. They are arguments of the program. Two subjects of the same key share it.

How thoroughly XLA optimises a program is the caller's choice (`Effort`): a program that runs once, such as a certificate, is
compiled for longer than it runs.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.effort import Effort, compiled_with
from trajopt.names import NamedOptions
from trajopt.native.process import check_process

KEPT_PROGRAMS = 64
_LOG = logging.getLogger(__name__)  # every program compiled, at DEBUG


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """What a compiled program depends on: its function, its subject, structure, shapes and types of its arguments, and how
    thoroughly it was compiled."""

    function: Callable[..., Any]
    subject: Hashed
    structure: Hashable
    types: tuple[Hashable, ...]
    effort: Effort = Effort.FULL


class Hashed:
    """A value whose hash is computed once: that of a problem's key goes through all that the problem is made of."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Hashed) and self._hash == other._hash and self.value == other.value)


class Parted(WithoutCaches, NamedOptions, abc.ABC):
    """A subject with arrays that are arguments of its programs.

    Copied without its caches, some of which are keys by the identity of objects. A base class, not a protocol: `isinstance` of a
    protocol asks every object anew, which takes longer than many a program.
    """

    @property
    @abc.abstractmethod
    def program_key(self) -> Hashable:
        """What a program depends on beside the leaves."""

    @property
    @abc.abstractmethod
    def leaves(self) -> Any:
        """The arrays, a pytree."""

    @abc.abstractmethod
    def with_leaves(self, leaves: Any) -> Any:
        """The subject with other arrays, which may be traced."""


def parted(subject: Any) -> tuple[Hashable, tuple[Any, ...], Callable[[tuple[Any, ...]], Any]]:
    """(key, leaves, the function from leaves to subject) of a subject that is `Parted`, or a tuple or frozen dataclass with such
    parts; of anything else itself, no leaves, and itself."""
    if isinstance(subject, Parted):
        return subject.program_key, (subject.leaves,), lambda leaves: subject.with_leaves(leaves[0])
    if isinstance(subject, tuple):
        return _joined(subject, subject, list(subject), [True] * len(subject), lambda parts: tuple(parts))
    if dataclasses.is_dataclass(subject) and not isinstance(subject, type) and _compares(subject):
        fields = [field for field in dataclasses.fields(subject) if field.init]
        values = [getattr(subject, field.name) for field in fields]
        names = [field.name for field in fields]

        def rebuilt(parts: list[Any]) -> Any:
            return dataclasses.replace(subject, **dict(zip(names, parts, strict=True)))

        return _joined(subject, type(subject), values, [field.compare for field in fields], rebuilt)
    return subject, (), lambda leaves: subject


def _compares(subject: Any) -> bool:
    """Whether a dataclass is equal by its fields."""
    return bool(type(subject).__dataclass_params__.eq)


def _joined(
    subject: Any, kind: Any, values: list[Any], compared: list[bool], rebuilt: Callable[[list[Any]], Any]
) -> tuple[Hashable, tuple[Any, ...], Callable[[tuple[Any, ...]], Any]]:
    parts = [parted(value) for value in values]
    if not any(leaves for _, leaves, _ in parts):
        return subject, (), lambda leaves: subject
    kind = type(subject) if kind is subject else kind
    key = (kind, tuple(key for (key, _, _), counts in zip(parts, compared, strict=True) if counts))
    leaves = tuple(leaves for _, leaves, _ in parts)
    return key, leaves, lambda given: rebuilt([make(own) for (_, _, make), own in zip(parts, given, strict=True)])


class Recent(OrderedDict[Any, Any]):
    """What was kept last, at most so many entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: Hashable, value: Any) -> Any:
        """value, from now on the youngest entry."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
        return value


class Programs:
    """The `kept` programs that were used last."""

    def __init__(self, kept: int = KEPT_PROGRAMS) -> None:
        self._compiled = Recent(kept)  # by `ProgramKey`
        self._subjects = Recent(kept)  # by identity: (subject, its key, its leaves, the function from leaves to it)
        self._last = Recent(kept)  # by function, identity of the subject, structure, effort: (subject, what `run` called last)

    def __len__(self) -> int:
        return len(self._compiled)

    def compiled(
        self, function: Callable[..., Any], subject: Hashable, *arguments: Any, effort: Effort = Effort.FULL
    ) -> tuple[Callable[..., Any], float]:
        """(the program of function(subject, *arguments), the seconds that compiling it took: 0 where it was there).

        arguments: pytrees of JAX's arrays, or of what tells their shapes and types (`jax.ShapeDtypeStruct`).
        """
        check_process()
        subject_key, own, make = self._parted(subject)
        leaves, structure = jax.tree.flatten((own, arguments))
        types = tuple((leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False))) for leaf in leaves)
        key = ProgramKey(function, subject_key, structure, types, effort)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return functools.partial(self._compiled[key], own), 0.0
        start = time.perf_counter()

        def closed(own: tuple[Any, ...], *arguments: Any) -> Any:
            return function(make(own), *arguments)

        closed.__name__ = function.__name__  # which profiles and dumps show
        program = compiled_with(jax.jit(closed).lower(own, *arguments), dict(effort.value))
        self._compiled.keep(key, program)
        seconds = time.perf_counter() - start
        _LOG.debug("compiled %s in %.2f s", function.__qualname__, seconds)
        return functools.partial(program, own), seconds

    def _parted(self, subject: Hashable) -> tuple[Hashed, tuple[Any, ...], Callable[..., Any]]:
        """`parted`, found once for each of the `kept` subjects that were used last: an iteration asks again and again."""
        known = self._subjects.get(id(subject))
        if known is None or known[0] is not subject:
            key, own, make = parted(subject)
            known = self._subjects.keep(id(subject), (subject, Hashed(key), own, make))
        return known[1], known[2], known[3]

    def run(
        self, function: Callable[..., Any], subject: Hashable, *arguments: Any, effort: Effort = Effort.FULL
    ) -> tuple[Any, float]:
        """(function(subject, *arguments) once it is done, the seconds that compiling took)."""
        check_process()
        called = function, id(subject), jax.tree.structure(arguments), effort
        known = self._last.get(called)
        if known is not None and known[0] is subject:
            # Looking up the types of all arguments takes a tenth of an iteration of iLQR; a program refuses others than its own.
            with contextlib.suppress(TypeError):
                return jax.block_until_ready(known[1](*arguments)), 0.0
        # Arrays go as they are: a tree is not built again, with all that a `System` checks when it is made.
        if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(arguments)):
            arguments = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.asarray(a), arguments)
        program, seconds = self.compiled(function, subject, *arguments, effort=effort)
        self._last.keep(called, (subject, program))
        return jax.block_until_ready(program(*arguments)), seconds


PROGRAMS = Programs()
