"""Direct calls of `System.step` and `System.linearize` through the compiled core.

A compiled step takes some microseconds; handing a `System` of thirty arrays to a compiled function, packing its parameters and
taking two dozen arrays back would take a hundred. What does not change between calls is made once for each system: the packed
parameters, and the compiled program, which all systems of the same topology and law share.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trajopt.dynamics.compiled import CompiledSystem, compile_system, pack_parameters
from trajopt.dynamics.compiled_step import PackedStepInfo, native_linearize, native_linearize_impulse, native_step
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.actuation import Actuators, actuators
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo


@dataclasses.dataclass(frozen=True)
class DirectCalls:
    """Steps of one system whose parameters are numbers, not traced."""

    compiled: CompiledSystem
    actuators: Actuators
    parameters: Float[Array, " p"]
    dt: Float[Array, ""]
    dropped_pairs: Int[Array, ""]
    programs: tuple[Callable[..., Any], ...]

    def step(self, x: State, u: Float[Array, " nu"], force: Float[Array, " nv"]) -> tuple[State, StepInfo]:
        """`System.step` of checked arrays."""
        q, v, report = self.programs[0](self.actuators, self.parameters, self.dt, x.q, x.v, u, force)
        return State(q, v), self._info(report)

    def linearize(
        self, x: State, u: Float[Array, " nu"], force: Float[Array, " nv"], impulse: bool = False
    ) -> Linearization:
        """`System.linearize` of checked arrays. impulse: whether the impulse is differentiated too."""
        program = self.programs[2 if impulse else 1]
        q, v, report, A, B, *slopes = program(self.actuators, self.parameters, self.dt, x.q, x.v, u, force)
        outputs = {"impulse": slopes[0]} if impulse else {}
        return Linearization(State(q, v), A, B, self._info(report), {}, None, outputs)

    def _info(self, report: Float[Array, " r"]) -> PackedStepInfo:
        return PackedStepInfo(report, self.dropped_pairs, self.compiled.report_layout)


def direct_calls(
    model: Model, law: ContactLaw, integrator: str, dt: Float[Array, ""], kappa: Float[Array, ""] | None = None
) -> DirectCalls | None:
    """The direct calls of a system that the core covers; None where some of its numbers are traced, or some of its shapes touch
    in pairs whose candidates JAX computes in every step."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model, dt, kappa))):
        return None
    compiled = compile_system(model, law, integrator)
    if compiled.given:
        return None
    with jax.ensure_compile_time_eval():
        parameters, none = _packed(compiled, model, kappa), jnp.zeros((), int)
    return DirectCalls(compiled, actuators(model), parameters, dt, none, _programs(compiled))


_packed = jax.jit(pack_parameters, static_argnums=0)  # operation by operation it would be dozens of small compilations


@functools.lru_cache(maxsize=128)
def _programs(compiled: CompiledSystem) -> tuple[Callable[..., Any], ...]:
    """The compiled functions of a step, of its linearisation, and of that with the derivative of the impulse."""

    def step(actuators: Actuators, parameters, dt, q, v, u, force):
        tau = actuators.force(q, v, u) + force
        y = native_step(compiled, None, parameters, q, v, tau, dt)
        return y.q, y.v, y.report

    def linearize(actuators: Actuators, parameters, dt, q, v, u, force):
        tau, slopes = actuators.force(q, v, u) + force, actuators.slopes(q, v, u)
        gain = actuators.arms if slopes is None else slopes.columns()
        y, A, B = native_linearize(compiled, None, parameters, q, v, tau, dt, gain)
        if slopes is not None:
            A, B = slopes.chained(A, B)
        return y.q, y.v, y.report, A, B

    def linearize_impulse(actuators: Actuators, parameters, dt, q, v, u, force):
        tau, slopes = actuators.force(q, v, u) + force, actuators.slopes(q, v, u)
        gain = actuators.arms if slopes is None else slopes.columns()
        y, A, B, impulse = native_linearize_impulse(compiled, None, parameters, q, v, tau, dt, gain)
        if slopes is not None:
            A, B = slopes.chained(A, B)
            impulse = OutputSlope(*slopes.chained(impulse.C, impulse.D))
        return y.q, y.v, y.report, A, B, impulse

    return jax.jit(step), jax.jit(linearize), jax.jit(linearize_impulse)
