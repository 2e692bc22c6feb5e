"""The compiled core for CPUs: shared objects built from the C++ sources beside this file, called through XLA.

It knows no `Model`: topologies are tables of integers, parameters flat arrays (`trajopt.dynamics.compiled` packs both). There
is one shared object for each instruction set; the environment variable TRAJOPT_NATIVE_ISA forces one of `INSTRUCTION_SETS`.

    python -m trajopt.native.build        builds them into trajopt/native/_build
"""

import ctypes
import functools
import hashlib
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, partial_eval
from jaxtyping import Array, Int, Shaped

from trajopt.errors import OptionError, TrajoptError
from trajopt.names import closest
from trajopt.native.interface import with_stated_interface
from trajopt.native.sources import fingerprint

SOURCES = pathlib.Path(__file__).resolve().parent
FOLDER = SOURCES / "_build"
REBUILD = "python -m trajopt.native.build (a C++ compiler and CMake; a minute)"
# Flags of /proc/cpuinfo that the compiler may use for each (x86-64-v4 and v3 of the psABI, armv8-a), the fastest set first.
_V3 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe")
INSTRUCTION_SETS = {
    "avx512": (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx2": _V3,
    "neon": ("fp", "asimd"),
}
ISA_VARIABLE = "TRAJOPT_NATIVE_ISA"  # environment variable that forces one of `INSTRUCTION_SETS`
# Handlers of the shared objects: steps (core_ffi.cc), the contact solve on plain arrays (solve_ffi.cc), the Riccati recursion.
HANDLERS = ("steps", "solve_contacts", "riccati")


def available() -> bool:
    """Whether the compiled core can be used on this machine."""
    return _choice()[0] is not None


def reason() -> str:
    """Why the compiled core cannot be used, with the line that helps; empty where it can."""
    return _choice()[1]


def missing() -> bool:
    """Whether this processor would run the compiled core, which is not built or cannot be loaded: `reason` says how to get it."""
    return not available() and bool(_able(os.environ.get(ISA_VARIABLE), processor_flags()))


def instruction_set() -> str:
    """The instruction set in use; raises `TrajoptError` with the reason where the core cannot be used."""
    isa, why = _choice()
    if isa is None:
        raise TrajoptError(f"the compiled core is not available: {why}")
    return isa


@functools.cache
def processor_flags() -> frozenset[str]:
    """Flags of the first processor; empty where the system does not tell (no Linux on x86-64 or aarch64)."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, "").split())


def register(table: Int[np.ndarray, " n"]) -> int:
    """Make a topology known under the key of its content, which is returned; the same table gives the same key everywhere."""
    table = np.ascontiguousarray(table, np.int64)
    key = int.from_bytes(hashlib.blake2b(table.tobytes(), digest_size=8).digest(), "little", signed=True)
    _tables[key] = table
    _know(instruction_set(), key)
    return key


def report_size(key: int) -> int:
    """Numbers in the whole report of a step of the topology registered under `key`."""
    _know(instruction_set(), key)
    return _load(instruction_set()).trajopt_report_size(key)


def call(
    name: str,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    *arguments: Shaped[Array, "..."],
    unread: tuple[tuple[str, int], ...] = (),
    **attributes: int | float | bool,
) -> list[Shaped[Array, "..."]]:
    """Results of one of `HANDLERS` with these shapes; jit, vmap and scan pass through it.

    attributes: of the handler, among them the `topology` that it steps. unread: those that take their place in a compiled
    function in which nothing reads the last result, so that it is not made; none: it is made in any case.
    """
    if name not in HANDLERS:
        raise OptionError(f"name is '{name}'{closest(name, HANDLERS)}")
    isa = instruction_set()
    if "topology" in attributes:
        _know(isa, int(attributes["topology"]))
    results = tuple((shape.shape, np.dtype(shape.dtype)) for shape in shapes)
    target = f"trajopt_{name}_{isa}"
    return _call_p.bind(*arguments, target=target, results=results, attributes=tuple(attributes.items()), unread=unread)


# --- calls as a primitive of JAX ------------------------------------------------------------------------------------------

_call_p = Primitive("trajopt_native_call")
_call_p.multiple_results = True


def _bound(*arguments: Array, target: str, results: Any, attributes: Any, unread: Any) -> list[Array]:
    shapes = tuple(jax.ShapeDtypeStruct(*result) for result in results)
    function = jax.ffi.ffi_call(target, shapes)
    return list(function(*arguments, **{key: np.int64(x) if type(x) is int else x for key, x in attributes}))


def _batched(arguments: Any, axes: Any, *, results: Any, **static: Any) -> tuple[list[Array], list[int]]:
    """A batch is one call: each leading axis of an argument is the batch's, or 1 where the argument has none."""
    size = next(x.shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not None)
    leading = [x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arguments, axes, strict=True)]
    wider = tuple(((size, *shape), dtype) for shape, dtype in results)
    found = _call_p.bind(*leading, results=wider, **static)
    return found, [0] * len(found)


def _pruned(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """JAX's elimination of what nobody reads: the call, without its last result where that is unread, or nothing.

    rest: the equation; JAX 0.12 puts before it which of its inputs are read elsewhere.
    """
    equation = rest[-1]
    static = equation.params
    if not any(used):
        return [False] * len(equation.invars), None
    if not static["unread"] or used[-1]:
        return [True] * len(equation.invars), equation
    attributes = tuple((dict(static["attributes"]) | dict(static["unread"])).items())
    fewer = static | {"results": static["results"][:-1], "attributes": attributes, "unread": ()}
    return [True] * len(equation.invars), equation.replace(outvars=equation.outvars[:-1], params=fewer)


_call_p.def_impl(jax.jit(_bound, static_argnames=("target", "results", "attributes", "unread")))
_call_p.def_abstract_eval(lambda *_, results, **__: [jax.core.ShapedArray(*result) for result in results])
batching.primitive_batchers[_call_p] = _batched
partial_eval.dce_rules[_call_p] = _pruned
mlir.register_lowering(_call_p, with_stated_interface(mlir.lower_fun(_bound, multiple_results=True)), platform="cpu")

# --- private --------------------------------------------------------------------------------------------------------------

_tables: dict[int, np.ndarray] = {}  # of all topologies, by key: an object that is loaded later has to know them too


@functools.cache
def _know(isa: str, key: int) -> None:
    """Register the topology with the object for `isa`, once."""
    if key not in _tables:
        raise OptionError(f"no topology is registered under the key {key}")
    table = _tables[key]
    problem = _load(isa).trajopt_register_topology(key, table.ctypes.data_as(ctypes.c_void_p), table.size)
    if problem:
        raise OptionError(f"the table of the topology has {table.size} entries: {problem.decode()}")


def _choice() -> tuple[str | None, str]:
    """(instruction set, reason where it is None)."""
    forced = os.environ.get(ISA_VARIABLE)
    if forced is not None and forced not in INSTRUCTION_SETS:
        return None, f"{ISA_VARIABLE} is '{forced}'{closest(forced, INSTRUCTION_SETS)}"
    return _best(forced, processor_flags(), FOLDER, SOURCES)


@functools.cache
def _best(
    forced: str | None, flags: frozenset[str], folder: pathlib.Path, sources: pathlib.Path
) -> tuple[str | None, str]:
    """`_choice` for the set that is asked for, the processor's flags, and the folders of the objects and of the sources."""
    able = _able(forced, flags)
    if not able:
        wanted = forced or " or ".join(INSTRUCTION_SETS)
        return None, f"this processor does not have the instruction set {wanted}; the JAX implementation is used"
    for isa in able:
        if _library(folder, isa).exists():
            return _loadable(isa, sources)
    return None, f"{_library(folder, able[0])} does not exist; build it with: {REBUILD}"


def _able(forced: str | None, flags: frozenset[str]) -> list[str]:
    return [isa for isa, needed in INSTRUCTION_SETS.items() if flags.issuperset(needed) and forced in (None, isa)]


def _loadable(isa: str, sources: pathlib.Path) -> tuple[str | None, str]:
    try:
        built_from = _load(isa).trajopt_sources().decode()
    except (OSError, AttributeError, RuntimeError) as error:  # RuntimeError: XLA refuses the handlers of another interface
        return None, f"{_library(FOLDER, isa)} cannot be loaded ({error}); build it anew with: {REBUILD}"
    if fingerprint(sources) not in ("", built_from):
        return None, f"{_library(FOLDER, isa)} was built from other sources than {sources}; build it anew with: {REBUILD}"
    return isa, ""


def _library(folder: pathlib.Path, isa: str) -> pathlib.Path:
    return folder / f"trajopt_native_{isa}.so"


@functools.cache
def _load(isa: str) -> ctypes.CDLL:
    """The shared object, its handlers registered with XLA."""
    core = ctypes.CDLL(str(_library(FOLDER, isa)))
    core.trajopt_register_topology.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
    core.trajopt_register_topology.restype = ctypes.c_char_p
    core.trajopt_sources.restype = ctypes.c_char_p
    core.trajopt_report_size.argtypes, core.trajopt_report_size.restype = [ctypes.c_int64], ctypes.c_int64
    for name in HANDLERS:
        jax.ffi.register_ffi_target(f"trajopt_{name}_{isa}", jax.ffi.pycapsule(getattr(core, f"trajopt_{name}")), platform="cpu")
    return core
