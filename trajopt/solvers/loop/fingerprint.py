"""What identifies a problem, a solver's options or a starting point in a folder of results, from one process to the next.

Numbers and arrays count with their bits, dataclasses with their fields, functions with their code and what they close over. Other
objects count with their class alone.
"""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

# Fields of a problem that leave what is to be solved as it is: the guess, what is shown, the solver, what an answer must reach.
APART = {
    "name", "u0", "xs0", "parameters", "tolerance", "goals", "certificate", "display", "defaults", "labels", "truth", "meta",
    "arguments", "finite_bounds", "residual_type",
}  # fmt: skip
LENGTH = 20  # hexadecimal digits of a key: two of a million tasks share one with a probability of 1e-12


def fingerprint(value: Any) -> str:
    """A short key that is the same for equal values, in every process of one version of Python."""
    hashed = hashlib.sha256()
    for part in _parts(value, set()):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()[:LENGTH]


def fingerprints(problem: Any) -> dict[str, str]:
    """Of each field of a problem that says what is to be solved, and of the fields of what it consists of, such as dynamics.dt,
    by their names; a free x0 is a guess and is left out. Empty for a problem that is no dataclass."""
    if not dataclasses.is_dataclass(problem):
        return {}
    apart = APART | ({"x0"} if getattr(problem, "free_initial_state", True) else set())
    found = dict[str, str]()
    for name, value in _fields(problem):
        if name in apart:
            continue
        inner = _fields(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else []
        found |= {f"{name}.{key}": fingerprint(item) for key, item in inner} or {name: fingerprint(value)}
    return found


def _fields(value: Any) -> list[list[Any]]:
    """The fields of a dataclass that its maker gives it, with their names."""
    return [[field.name, getattr(value, field.name, None)] for field in dataclasses.fields(value) if field.init]


def _parts(value: Any, above: set[int]) -> Iterator[bytes]:
    """What is hashed of a value; above: the values that it is part of."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__}:{value!r}".encode()
        return
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        yield f"array:{array.dtype}:{array.shape}".encode()
        yield array.tobytes()
        return
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if id(value) in above:
        return
    for part in _members(value):
        yield from _parts(part, above | {id(value)})


def _members(value: Any) -> Sequence[Any]:
    """The parts of which a value consists."""
    if isinstance(value, Mapping):
        return sorted(([str(key), item] for key, item in value.items()), key=lambda pair: str(pair[0]))
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, type):
        return [value.__module__, value.__qualname__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        return [value.__module__, value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return []


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
