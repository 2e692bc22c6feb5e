"""Derivatives of steps through the compiled core that solve for impulses, and what the rules of its steps share.

The derivative by state and control of gradient modes "implicit" and "smoothed" is the core's own closed form, in
`System.linearize` and under `jax.jvp` and `jax.vjp` alike, of the state after the step and of the impulses of `StepInfo`; the
contacts' distances, points and normals move as JAX's narrow phase says. Under "smoothed" it is that of the smoothed law, of which
the core takes the step too. Derivatives by parameters of the model and by dt are those of `compiled_parameters` under hard
contact; under other laws, by kappa and rho, and in other gradient modes they are those of the JAX implementation at the same
step. Smooth steps have derivatives of every order, in every mode (`smooth_step`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.backend import differentiated_law
from trajopt.dynamics.collision.narrowphase import collide_with_derivatives
from trajopt.dynamics.compiled_parameters import answers_parameters, contacts_slope, parameter_slope
from trajopt.dynamics.compiled_step import answered_by_core, linearize_by_core, step_by_core
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.contact_geometry import contact_geometry
from trajopt.dynamics.gradients.first_order import first_order_only, instantiated, is_symbolic, is_zero
from trajopt.dynamics.integrators import impulse_info, impulse_step, share_after_impulses, where_impulses_act
from trajopt.dynamics.model import Model
from trajopt.dynamics.report import PackedStepInfo, packed_slope, report_slope
from trajopt.dynamics.rigid_body.actuation import ForceSlopes, force_slopes
from trajopt.dynamics.rigid_body.configuration import difference, integrate, integrate_jacobians
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.state import Linearization, State, StepInfo


def native_impulse_step(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    """`integrators.impulse_step` and its report through the compiled core, with the derivative of `rule`."""
    if rule is None or rule.reverse_only:  # such a derivative is part of how the JAX implementation takes the step
        return _in_jax(integrator, rule, start)
    return _with_derivative(integrator, rule, start)


def linearize_native(
    integrator: str, start: StepInputs, law: ContactLaw, u: Float[Array, " nu"], impulse: bool = False
) -> Linearization:
    """The linearisation of a step in closed form, through the compiled core: that of `law` (`backend.differentiated_law`).

    impulse: whether the impulse is differentiated too.
    """
    slopes = force_slopes(start.model, start.q, start.v, u)
    return _under_law(integrator, start, law, start.model.actuation if slopes is None else slopes.columns(), impulse, slopes)


def _under_law(
    integrator: str,
    start: StepInputs,
    law: ContactLaw,
    gain: Float[Array, "nv k"],
    impulse: bool = False,
    slopes: ForceSlopes | None = None,
) -> Linearization:
    """The step of `start` with the derivative of `law`; gain, impulse, slopes: as of `linearize_by_core`."""
    found = linearize_by_core(integrator, _with_law(law, start), gain, impulse, slopes)
    return found if law == start.law else with_exact_step(integrator, start, found)


def _with_law(law: ContactLaw, start: StepInputs) -> StepInputs:
    return start if law == start.law else dataclasses.replace(start, law=law)


def with_exact_step(integrator: str, start: StepInputs, other: Linearization) -> Linearization:
    """The step of `start`, with d v+ and d impulse of another law's linearisation `other`, and q+ moved at its own v+."""
    model, nv = start.model, start.model.nv
    x_next, info = step_by_core(integrator, start)
    rest = share_after_impulses(integrator, start.dt)
    by_q, by_dq = integrate_jacobians(model, start.q, rest * x_next.v)
    onward = jnp.concatenate([by_q, jnp.zeros_like(by_q)], 1)
    if integrator == "moreau":
        there, there_by_v = integrate_jacobians(model, start.q, rest * start.v)
        onward = by_q @ jnp.concatenate([there, rest * there_by_v], 1)
    below, pushed = other.A[nv:], other.B[nv:]
    A = jnp.concatenate([onward + rest * (by_dq @ below), below])
    B = jnp.concatenate([rest * (by_dq @ pushed), pushed])
    return dataclasses.replace(other, x_next=x_next, A=A, B=B, info=info)


def _in_jax(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    x_next, result = impulse_step(integrator, start, rule)
    return x_next, impulse_info(result)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _with_derivative(integrator: str, rule: DerivativeRule, start: StepInputs) -> tuple[State, PackedStepInfo]:
    return step_by_core(integrator, start)


def _derivative(integrator: str, rule: DerivativeRule, primals: Any, tangents: Any) -> Any:
    (start,), (dstart,) = first_order_only(rule.name, primals), tangents
    along = instantiated(start, dstart)
    law = differentiated_law(rule, start.law, integrator)
    if law is not None and law == start.law and answers_parameters(law) and not by_state_alone(dstart):
        return _with_parameters(integrator, start, dstart)
    if law is None or not by_state_alone(dstart):
        x_next, info = _with_derivative(integrator, rule, start)
        # JAX's solve begins at the core's impulses, so that the derivative is that of the solution which the core has found.
        begin = jax.lax.stop_gradient(info.impulse)
        at, along = (dataclasses.replace(x, warm_start=w) for x, w in ((start, begin), (along, jnp.zeros_like(begin))))
        _, slopes = jax.jvp(functools.partial(_in_jax, integrator, rule), (at,), (along,))
        return (x_next, info), (slopes[0], packed_slope(info, slopes[1]))
    every = jnp.eye(start.model.nv, dtype=start.q.dtype)
    found, dx = _under_law(integrator, start, law, every), tangent_motion(start, along)
    # A call of its own: XLA leaves it out of programs in which nobody asks for the report's derivative.
    impulse = linearize_by_core(integrator, _with_law(law, start), every, impulse=True).outputs["impulse"]
    packed: Any = found.info
    no_friction = jnp.zeros(packed.layout[0], dx.dtype)
    pushed, contacts = impulse.C @ dx + impulse.D @ along.tau, _contacts_moved(integrator, start, dx)
    report = report_slope(packed, pushed, contacts, no_friction)
    return (found.x_next, packed), (ambient_slope(start.model, found.x_next, found.A @ dx + found.B @ along.tau), report)


def _with_parameters(integrator: str, start: StepInputs, dstart: StepInputs) -> Any:
    """`_derivative` by the core's answers, along parameters too."""
    every, model = jnp.eye(start.model.nv, dtype=start.q.dtype), start.model
    y, info = answered_by_core(integrator, start, every)
    assert y.A is not None and y.B is not None and y.C is not None and y.D is not None
    along, x_next = instantiated(start, dstart), State(y.q, y.v)
    dx, by_parameters = tangent_motion(start, along), parameter_slope(integrator, start, dstart, y, info)
    by_state = ambient_slope(model, x_next, y.A @ dx + y.B @ along.tau)
    impulse = y.C @ dx + y.D @ along.tau + by_parameters.impulse
    report = report_slope(info, impulse, contacts_slope(integrator, start, dstart), by_parameters.friction)
    return (x_next, info), (jax.tree.map(jnp.add, by_state, by_parameters.x_next), report)


_with_derivative.defjvp(_derivative, symbolic_zeros=True)


def _contacts_moved(integrator: str, start: StepInputs, dx: Float[Array, " n"]) -> Float[Array, "nc 7"]:
    """How distance, point and normal of the reported contacts move with dx = [dq, dv]; nothing is solved for that."""
    model, nv = start.model, start.model.nv
    inputs, dq = where_impulses_act(integrator, start), dx[:nv]
    if integrator == "moreau":
        half = 0.5 * start.dt
        there, there_by_v = integrate_jacobians(model, start.q, half * start.v)
        dq = there @ dq + half * (there_by_v @ dx[nv:])
    kin = kinematics(model, inputs.q)
    candidates, slopes = collide_with_derivatives(model, kin, start.law.pair_limit, start.travel)
    rows = assemble(inputs, kin, candidates)
    return contact_geometry(model, kin, rows, slopes[rows.selected]).moved(model, dq)


# -- what the rules share ------------------------------------------------------------------------------------------------


def tangent_motion(start: StepInputs, along: StepInputs) -> Float[Array, " n"]:
    """The motion `along` of q, a slope of its numbers, and of v in tangent coordinates."""
    _, dq = jax.jvp(lambda q: difference(start.model, start.q, q), (start.q,), (along.q,))
    return jnp.concatenate([dq, along.v])


def ambient_slope(model: Model, x: State, dx: Float[Array, " n"]) -> State:
    """The slope of x's numbers in a motion dx in tangent coordinates."""
    dq, dv = jnp.split(dx, 2)
    return State(jax.jvp(lambda d: integrate(model, x.q, d), (jnp.zeros_like(dq),), (dq,))[1], dv)


def by_state_alone(dstart: StepInputs) -> bool:
    """Whether q, v and tau alone are differentiated by."""
    others = (dstart.model, dstart.dt, dstart.kappa, dstart.rho)
    return all(is_zero(slope) for slope in jax.tree.leaves(others, is_leaf=is_symbolic))
