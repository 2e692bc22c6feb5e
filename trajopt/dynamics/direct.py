"""Direct calls of `System.step` and `System.linearize` through the compiled core.

A compiled step takes some microseconds; handing a `System` of thirty arrays to a compiled function, checking its arguments one
by one and taking two dozen arrays back would take a hundred. Every array that goes in or comes out costs about one. Therefore:
what does not change between calls is one array, made once for each system; the compiled programs are shared by all systems of
the same topology and law; what is seldom read comes back in one array and is taken from it when it is asked for; and the core,
which reads the numbers anyway, says whether they are finite.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.arguments import holds_traced
from trajopt.dynamics.compiled import CompiledSystem, compile_system, pack_parameters
from trajopt.dynamics.compiled_step import NON_FINITE, STATUS_AT, PackedStepInfo, direct_linearize, direct_step
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.effort import Effort, compiled_with
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.actuation import Actuators, actuators
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo

Made = TypeVar("Made")
# Of a report, by its precision; waits for it, and takes half of what NumPy's array would.
_STATUS = {size: struct.Struct(f"{size * STATUS_AT}x{code}").unpack_from for size, code in ((8, "d"), (4, "f"))}


class Programs(NamedTuple):
    """The compiled functions of (constants, q, v, u, force): a step, its linearisation, and that with the impulse's derivative;
    and `split`, which takes report, q+ and v+ from the first result of the last two."""

    step: Callable[..., Any]
    linearize: Callable[..., Any]
    linearize_impulse: Callable[..., Any]
    split: Callable[..., Any]


class DirectCalls:
    """Steps of one system whose parameters are numbers, not traced.

    `step` and `linearize` take checked arrays. `step_plain` and `linearize_plain` check on the way, and answer None where the
    arguments are not what most calls are made with: arrays of the right shape and precision whose entries are finite and known.
    They do so too before the first call with checked arrays, so that nothing is compiled for wrong ones.
    """

    def __init__(
        self,
        compiled: CompiledSystem,
        constants: Float[Array, " c"],
        dropped_pairs: Int[Array, ""],
        nu: int,
        programs: Programs,
    ) -> None:
        top = compiled.topology
        self.constants, self.programs = constants, programs
        self._none_dropped, self._layout = dropped_pairs, compiled.report_layout
        self._array = type(constants)
        self._kinds, self._precision = (self._array, np.ndarray), constants.dtype
        self._status = _STATUS[constants.dtype.itemsize]
        self._q_shape, self._v_shape, self._u_shape = (top.nq,), (top.nv,), (nu,)
        self._stepped = self._linearized = False

    def step(self, x: State, u: Float[Array, " nu"], force: Float[Array, " nv"] | None) -> tuple[State, StepInfo]:
        """`System.step` of checked arrays; force: None for none."""
        report, q, v = self.programs.step(self.constants, x.q, x.v, u, force)
        self._stepped |= force is None
        return State(q, v), self._info(report)

    def linearize(
        self, x: State, u: Float[Array, " nu"], force: Float[Array, " nv"] | None, impulse: bool = False
    ) -> Linearization:
        """`System.linearize` of checked arrays. impulse: whether the impulse is differentiated too."""
        program = self.programs.linearize_impulse if impulse else self.programs.linearize
        packed, A, B, *slopes = program(self.constants, x.q, x.v, u, force)
        self._linearized |= not impulse and force is None
        return self._linearization(packed, A, B, {"impulse": slopes[0]} if impulse else {})

    def step_plain(self, x: State, u: Float[Array, " nu"]) -> tuple[State, StepInfo] | None:
        """`step` of plain arrays without a force."""
        if not (self._stepped and self._plain(x, u)):
            return None
        report, q, v = self.programs.step(self.constants, x.q, x.v, u, None)
        if not self._solved(report):
            return None
        return _made(State, {"q": q, "v": v, "contact": None}), self._info(report)

    def linearize_plain(self, x: State, u: Float[Array, " nu"]) -> Linearization | None:
        """`linearize` of plain arrays without a force."""
        if not (self._linearized and self._plain(x, u)):
            return None
        packed, A, B = self.programs.linearize(self.constants, x.q, x.v, u, None)
        return self._linearization(packed, A, B, {}) if self._solved(packed) else None

    def _plain(self, x: State, u: Any) -> bool:
        if type(x) is not State or x.contact is not None:
            return False
        q, v, kinds, precision = x.q, x.v, self._kinds, self._precision
        return (
            type(q) in kinds and type(v) in kinds and type(u) in kinds
            and q.shape == self._q_shape and v.shape == self._v_shape and u.shape == self._u_shape
            and q.dtype == precision and v.dtype == precision and u.dtype == precision
        )  # fmt: skip

    def _solved(self, report: Any) -> bool:
        """Whether a report is known (inside of a compiled function it is not) and all that was read and computed finite."""
        if type(report) is not self._array:
            return False
        try:
            return self._status(report)[0] != NON_FINITE
        except (BufferError, TypeError):  # of an array in several places at once
            return False

    def _info(self, report: Float[Array, " r"]) -> PackedStepInfo:
        return _made(PackedStepInfo, {"report": report, "dropped_pairs": self._none_dropped, "layout": self._layout})

    def _linearization(
        self,
        packed: Float[Array, " p"],
        A: Float[Array, "n n"],
        B: Float[Array, "n nu"],
        outputs: dict[str, OutputSlope],
    ) -> Linearization:
        fields = {"A": A, "B": B, "parameters": {}, "outputs": outputs, "_deferred": (self._rest, packed)}
        return _made(Linearization, fields)

    def _rest(self, packed: Float[Array, " p"]) -> tuple[State, StepInfo]:
        report, q, v = self.programs.split(packed)
        return State(q, v), self._info(report)


def _made(kind: type[Made], fields: dict[str, Any]) -> Made:
    """A frozen dataclass of these fields; its own `__init__` would take two to three times as long, half a microsecond."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def direct_calls(
    model: Model,
    law: ContactLaw,
    integrator: str,
    dt: Float[Array, ""],
    kappa: Float[Array, ""] | None = None,
    rho: Float[Array, ""] | None = None,
) -> DirectCalls | None:
    """The direct calls of a system that the core covers; None where some of its numbers are traced, or some of its shapes touch
    in pairs whose candidates JAX computes in every step."""
    if holds_traced(model, dt, kappa, rho):
        return None
    compiled = compile_system(model, law, integrator)
    if compiled.given:
        return None
    driven = actuators(model)
    with jax.ensure_compile_time_eval():
        none = jnp.zeros((), int)
    numbers, kinds = jax.tree.flatten((model, dt, kappa, rho, driven))
    pack = _packing(compiled, kinds, tuple((np.shape(x), np.dtype(x.dtype)) for x in numbers))
    constants = pack(*jax.tree.unflatten(kinds, numbers))
    leaves, structure = jax.tree.flatten(driven)
    programs = _programs(compiled, structure, tuple(np.shape(leaf) for leaf in leaves))
    return DirectCalls(compiled, constants, none, driven.arms.shape[1], programs)


@functools.lru_cache(maxsize=128)
def _packing(
    compiled: CompiledSystem, kinds: Any, numbers: tuple[tuple[tuple[int, ...], np.dtype], ...]
) -> Callable[..., Float[Array, " c"]]:
    """The program of `_constants` for arguments of these kinds, shapes and types.

    It is compiled ahead because a system may be called within another function's trace, where only a compiled program computes at
    once; `ensure_compile_time_eval` does too, but one operation of the packing after the other, forty small compilations.
    """
    arguments = jax.tree.unflatten(kinds, [jax.ShapeDtypeStruct(*x) for x in numbers])
    return compiled_with(jax.jit(functools.partial(_constants, compiled)).lower(*arguments), Effort.QUICK.value)


def _constants(compiled: CompiledSystem, model: Model, dt, kappa, rho, driven: Actuators) -> Float[Array, " c"]:
    """What belongs to the system alone: parameters and dt, as native/direct_ffi.cc reads them, and the actuators."""
    parts = [pack_parameters(compiled, model, kappa, rho), dt, *jax.tree.leaves(driven)]
    return jnp.concatenate([jnp.asarray(part, parts[0].dtype).reshape(-1) for part in parts])


@functools.lru_cache(maxsize=128)
def _programs(compiled: CompiledSystem, structure: Any, shapes: tuple[tuple[int, ...], ...]) -> Programs:
    """structure, shapes: of the actuators, the last numbers of the constants, lever arms first.

    What plain motors make of u is left to the core: XLA gives programs with products of a thousand operations and more to another
    thread, and the wait for it costs as much as the step.
    """

    def unpacked(constants: Float[Array, " c"]) -> Actuators:
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        flat = constants[constants.shape[0] - int(ends[-1]) :]
        parts = jnp.split(flat, ends[:-1])
        return jax.tree.unflatten(structure, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])

    def motors(driven: Actuators) -> int:
        return driven.arms.shape[1] if driven.plain else 0

    def other_force(driven: Actuators, q, v, u, force):
        tau = jnp.zeros_like(v) if motors(driven) else driven.force(q, v, u)
        return tau if force is None else tau + force

    def step(constants, q, v, u, force):
        driven = unpacked(constants)
        return direct_step(compiled, constants, q, v, u, other_force(driven, q, v, u, force), motors(driven))

    def linearize(constants, q, v, u, force, *, impulse: bool = False):
        driven = unpacked(constants)
        tau, slopes = other_force(driven, q, v, u, force), driven.slopes(q, v, u)
        gain = slopes.columns() if slopes is not None else driven.arms[:, :0] if motors(driven) else driven.arms
        packed, A, B, *by = direct_linearize(compiled, constants, q, v, u, tau, gain, impulse, motors(driven))
        if slopes is not None:
            A, B = slopes.chained(A, B)
            by = list(slopes.chained(*by)) if impulse else []
        return (packed, A, B, OutputSlope(*by)) if impulse else (packed, A, B)

    def split(packed):
        report, nq = compiled.report_size, compiled.topology.nq
        return packed[:report], packed[report : report + nq], packed[report + nq :]

    with_impulse = functools.partial(linearize, impulse=True)
    return Programs(jax.jit(step), jax.jit(linearize), jax.jit(with_impulse), jax.jit(split))
