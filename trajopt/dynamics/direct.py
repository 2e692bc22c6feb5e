"""Direct calls of `System.step` and `System.linearize` through the compiled core.

A compiled step takes some microseconds; handing a `System` of thirty arrays to a compiled function, checking its arguments one by
one and taking two dozen arrays back would take a hundred. Every array that goes in or comes out costs about one. Therefore what
does not change between calls is one array, made once for each system; the compiled programs are shared by all systems of the same
topology and law; what is seldom read of a report is taken from one array when it is asked for; and the core, which reads
the numbers anyway, says whether they are finite.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.arguments import holds_traced
from trajopt.dynamics.compiled import CompiledSystem, compile_system, pack_parameters
from trajopt.dynamics.compiled_step import chained, core_steps
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.effort import Effort, known_options
from trajopt.dynamics.model import Model
from trajopt.dynamics.report import HEAD, NON_FINITE, PackedStepInfo
from trajopt.dynamics.rigid_body.actuation import Actuators, actuators
from trajopt.dynamics.state import Linearization, OutputSlope, State
from trajopt.dynamics.step_arguments import zeros
from trajopt.native.process import check_process

Program = Callable[..., tuple[Array, ...]]
# What a call asks of the core.
STEP, LINEARIZE, LINEARIZE_IMPULSE, REPORT = "step", "linearize", "linearize with impulses", "report"
STATUS = HEAD["status"]


class DirectCalls:
    """Steps of one system whose parameters are numbers, not traced.

    constants: what belongs to the system alone, its parameters and its actuators. programs: compiled functions of
    (constants, q, v, u, force), by what they ask of the core: of its REPORT they return the whole one, else the head, q+, v+ and
    the matrices.
    """

    def __init__(
        self, compiled: CompiledSystem, constants: Float[Array, " c"], nu: int, programs: dict[str, Program]
    ) -> None:
        top = compiled.topology
        self.constants, self.programs = constants, programs
        self._array, self._precision = type(constants), constants.dtype
        self._kinds, self._q_shape, self._v_shape, self._u_shape = (self._array, np.ndarray), (top.nq,), (top.nv,), (nu,)
        self._none, self._layout, self._called = zeros((), int), compiled.report_layout, set[str]()

    def checked(self, what: str, x: State, u: Float[Array, " nu"], force: Float[Array, " nv"] | None) -> Any:
        """The state after the step and its report, or the linearisation, for checked arrays; force: None for none."""
        results = self.programs[what](self.constants, x.q, x.v, u, force)
        if force is None:
            self._called.add(what)
        return self._answer(what, (x.q, x.v, u, force), *results)

    def plain(self, what: str, x: State, u: Float[Array, " nu"]) -> Any:
        """`checked` of arguments that are checked on the way.

        None where they are not what most calls are made with: arrays of the right shape and precision whose entries are finite
        and known. None too before the first checked call, so that nothing is compiled for wrong arguments.
        """
        check_process()
        if what not in self._called or type(x) is not State or x.contact is not None:
            return None
        for value, shape in ((x.q, self._q_shape), (x.v, self._v_shape), (u, self._u_shape)):
            if type(value) not in self._kinds or value.shape != shape or value.dtype != self._precision:
                return None
        results = self.programs[what](self.constants, x.q, x.v, u, None)
        return self._answer(what, (x.q, x.v, u, None), *results) if self._is_finite(results[0]) else None

    def _is_finite(self, report: Any) -> bool:
        """Whether a report is known (inside of a compiled function it is not) and all that was read and computed finite."""
        return type(report) is self._array and bool(np.asarray(report).item(STATUS) != NON_FINITE)

    def _answer(self, what: str, at: tuple[Any, ...], head: Array, q: Array, v: Array, *slopes: Array) -> Any:
        """at: (q, v, u, force), from which the whole report is made when it is asked for."""
        if np.ndarray in map(type, at):  # which its owner may change
            at = tuple(value.copy() if type(value) is np.ndarray else value for value in at)
        whole = functools.partial(self._whole_report, at)
        info = PackedStepInfo(head, None, self._none, self._layout, whole)
        if what == STEP:
            return State(q, v), info
        A, B, *by_impulse = slopes
        outputs = {"impulse": OutputSlope(*by_impulse)} if by_impulse else {}
        return Linearization(State(q, v), A, B, info, {}, None, outputs)

    def _whole_report(self, at: tuple[Any, ...]) -> Array:
        (report,) = self.programs[REPORT](self.constants, *at)
        return report


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
    with jax.ensure_compile_time_eval():  # a system may be called within another function's trace
        constants = _packing()(compiled, model, dt, kappa, rho, driven)
    leaves, structure = jax.tree.flatten(driven)
    programs = _programs(compiled, structure, tuple(np.shape(leaf) for leaf in leaves))
    return DirectCalls(compiled, constants, driven.arms.shape[1], programs)


@functools.cache
def _packing() -> Callable[..., Float[Array, " c"]]:
    """The program of the constants: it runs once for each system."""

    def constants(compiled: CompiledSystem, model: Model, dt, kappa, rho, driven: Actuators) -> Float[Array, " c"]:
        parameters = pack_parameters(compiled, model, dt, kappa, rho)
        return jnp.concatenate([parameters, *(leaf.astype(parameters.dtype).reshape(-1) for leaf in jax.tree.leaves(driven))])

    return jax.jit(constants, static_argnums=0, compiler_options=known_options(Effort.QUICK) or None)


@functools.lru_cache(maxsize=128)
def _programs(
    compiled: CompiledSystem, structure: Any, shapes: tuple[tuple[int, ...], ...]
) -> dict[str, Program]:
    """structure, shapes: of the actuators, the last numbers of the constants, lever arms first.

    What plain motors make of u is left to the core: XLA gives programs with products of a thousand operations and more to another
    thread, and the wait for it costs as much as the step.
    """

    def unpacked(constants: Float[Array, " c"]) -> Actuators:
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = jnp.split(constants[constants.shape[0] - int(ends[-1]) :], ends[:-1])
        return jax.tree.unflatten(structure, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])

    def take(what: str, constants, q, v, u, force) -> tuple[Array, ...]:
        driven = unpacked(constants)
        motors = driven.arms.shape[1] if driven.plain else 0
        tau = jnp.zeros_like(v) if motors else driven.force(q, v, u)
        tau = tau if force is None else tau + force
        if what in (REPORT, STEP):
            y = core_steps(compiled, constants, q, v, tau, u=u, motors=motors, whole=what == REPORT)
            return y[:3] if y.report is None else (y.report,)
        slopes = driven.slopes(q, v, u)
        gain = slopes.columns() if slopes is not None else driven.arms[:, :0] if motors else driven.arms
        impulse = what == LINEARIZE_IMPULSE
        y = core_steps(
            compiled, constants, q, v, tau,
            u=u, motors=motors, gain=gain, impulse=impulse, whole=False,
        )  # fmt: skip
        y = chained(y, slopes)
        return tuple(part for part in (y.head, y.q, y.v, y.A, y.B, y.C, y.D) if part is not None)

    return {what: jax.jit(functools.partial(take, what)) for what in (STEP, LINEARIZE, LINEARIZE_IMPULSE, REPORT)}
