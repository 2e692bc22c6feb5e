"""Calls of the compiled core on `StepInputs`, and what the derivative rules of its steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from trajopt.dynamics.compiled import compile_system, pack_parameters
from trajopt.dynamics.compiled_step import (
    PackedStepInfo,
    native_linearize,
    native_linearize_impulse,
    native_step,
    step_info,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.gradients.first_order import is_zero
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.state import Linearization, State

Inputs = TypeVar("Inputs")


def stepped(integrator: str, start: StepInputs) -> tuple[State, PackedStepInfo]:
    """The state after a step of the core, and its report."""
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa, start.rho)
    y = native_step(compiled, start.model, parameters, start.q, start.v, start.tau, start.dt)
    return State(y.q, y.v), step_info(compiled, y)


def linearized(integrator: str, start: StepInputs, gain: Float[Array, "nv k"]) -> Linearization:
    """The step and its Jacobian by state and, along the columns of `gain`, by forces."""
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa, start.rho)
    y, A, B = native_linearize(compiled, start.model, parameters, start.q, start.v, start.tau, start.dt, gain)
    return Linearization(State(y.q, y.v), A, B, step_info(compiled, y), {})


def with_impulse(integrator: str, start: StepInputs, gain: Float[Array, "nv k"]) -> Linearization:
    """`linearized`, and the Jacobian of the impulses."""
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa, start.rho)
    at = (start.q, start.v, start.tau, start.dt, gain)
    y, A, B, impulse = native_linearize_impulse(compiled, start.model, parameters, *at)
    return Linearization(State(y.q, y.v), A, B, step_info(compiled, y), {}, None, {"impulse": impulse})


def tangent_motion(start: StepInputs, along: StepInputs) -> Float[Array, " n"]:
    """The motion `along` of q, a slope of its numbers, and of v in tangent coordinates."""
    _, dq = jax.jvp(lambda q: difference(start.model, start.q, q), (start.q,), (along.q,))
    return jnp.concatenate([dq, along.v])


def ambient_slope(model: Model, x: State, dx: Float[Array, " n"]) -> State:
    """The slope of x's numbers in a motion dx in tangent coordinates."""
    dq, dv = jnp.split(dx, 2)
    return State(jax.jvp(lambda d: integrate(model, x.q, d), (jnp.zeros_like(dq),), (dq,))[1], dv)


def _symbolic(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def by_state_alone(dstart: StepInputs) -> bool:
    """Whether q, v and tau alone are differentiated by."""
    others = (dstart.model, dstart.dt, dstart.kappa, dstart.rho)
    return all(is_zero(slope) for slope in jax.tree.leaves(others, is_leaf=_symbolic))


def instantiated(primals: Inputs, tangents: Inputs) -> Inputs:
    """The tangents with zeros in the place of symbolic ones."""

    def filled(slope: Any) -> Any:
        if not _symbolic(slope):
            return slope
        integer = slope.dtype == jax.dtypes.float0
        return (np if integer else jnp).zeros(slope.shape, slope.dtype)

    slopes = jax.tree.leaves(tangents, is_leaf=_symbolic)
    return jax.tree.unflatten(jax.tree.structure(primals), [filled(slope) for slope in slopes])


def slope_along(f: Callable[[StepInputs], Any], start: StepInputs, dstart: StepInputs) -> Any:
    """That of f along those leaves of `start` that move."""
    moving = [not is_zero(slope) for slope in jax.tree.leaves(dstart, is_leaf=_symbolic)]
    leaves, structure = jax.tree.flatten(start)

    def of_moving(*moved: Array) -> Any:
        rest = iter(moved)
        given = [next(rest) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        return f(jax.tree.unflatten(structure, given))

    slopes = jax.tree.leaves(instantiated(start, dstart))
    at, along = (tuple(leaf for leaf, moves in zip(part, moving, strict=True) if moves) for part in (leaves, slopes))
    return jax.jvp(of_moving, at, along)[1]
