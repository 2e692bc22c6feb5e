"""Derivatives of steps through the compiled core that solve for impulses, and what the rules of its steps share.

The derivative by state and control of gradient modes "implicit" and "smoothed" is the core's own closed form, in
`System.linearize` and under `jax.jvp` and `jax.vjp` alike, of the state after the step and of the impulses of `StepInfo`; the
contacts' distances, points and normals move as JAX's narrow phase says. Under "smoothed" it is that of the smoothed law, of which
the core takes the step too. Derivatives by parameters of the model and by dt are those of `compiled_parameters` under hard
contact; under other laws, by kappa and rho, and in other gradient modes they are those of the JAX implementation at the same
step. Smooth steps have derivatives of every order, in every mode (`smooth_step`).
"""

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.backend import differentiated_law
from trajopt.dynamics.compiled_parameters import answers_parameters, contacts_slope, parameter_slope
from trajopt.dynamics.compiled_step import chained, step_by_core
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.first_order import first_order_only, instantiated
from trajopt.dynamics.integrators import impulse_info, impulse_step
from trajopt.dynamics.linearization import ambient_slope, moved_on, tangent_motion
from trajopt.dynamics.report import PackedStepInfo, packed_slope, report_slope
from trajopt.dynamics.rigid_body.actuation import ForceSlopes
from trajopt.dynamics.smooth_step import by_state_alone, smooth_slope
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo


def linearize_native(
    integrator: str,
    start: StepInputs,
    law: ContactLaw,
    gain: Float[Array, "nv k"],
    impulse: bool = False,
    slopes: ForceSlopes | None = None,
) -> Linearization:
    """The step with the closed form of `law` (`backend.differentiated_law`) as its derivative, through the compiled core.

    gain: columns along which it is differentiated by forces; slopes: the gain is their `columns`, and the derivative is by
    controls. impulse: whether the impulse is differentiated too.
    """
    y, info = step_by_core(integrator, dataclasses.replace(start, law=law), gain, impulse=impulse)
    y = chained(y, slopes)
    assert y.A is not None and y.B is not None
    outputs = {} if y.C is None or y.D is None else {"impulse": OutputSlope(y.C, y.D)}
    if law == start.law:
        return Linearization(y.state, y.A, y.B, info, {}, None, outputs)
    # The law's own step, with d v+ and d impulse of the other, and q+ moved at its own v+.
    own, info = step_by_core(integrator, start)
    nv = start.model.nv
    A, B = moved_on(integrator, start, own.v, y.A[nv:], y.B[nv:])
    return Linearization(own.state, A, B, info, {}, None, outputs)


def _in_jax(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    x_next, result = impulse_step(integrator, start, rule)
    return x_next, impulse_info(result)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def core_step(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, PackedStepInfo]:
    """The state after a step of the compiled core and its report, with the derivative of `rule`, which has tangents.

    None: the step is smooth, and its derivative is `smooth_slope`.
    """
    y, info = step_by_core(integrator, start)
    return y.state, info


def _derivative(integrator: str, rule: DerivativeRule | None, primals: Any, tangents: Any) -> Any:
    if rule is None:
        (x_next, info), none = core_step(integrator, rule, *primals), jnp.zeros(0, primals[0].q.dtype)
        slope = smooth_slope(integrator, x_next, *primals, *tangents)
        return (x_next, info), (slope, report_slope(info, none, none.reshape(0, 7), none))
    (start,), (dstart,) = first_order_only(rule.name, primals), tangents
    along = instantiated(start, dstart)
    law = differentiated_law(rule, start.law, integrator)
    if law is not None and law == start.law and answers_parameters(law) and not by_state_alone(dstart):
        return _with_parameters(integrator, start, dstart)
    if law is None or not by_state_alone(dstart):
        x_next, info = core_step(integrator, rule, start)
        # JAX's solve begins at the core's impulses, so that the derivative is that of the solution which the core has found.
        begin = jax.lax.stop_gradient(info.impulse)
        at, along = (dataclasses.replace(x, warm_start=w) for x, w in ((start, begin), (along, jnp.zeros_like(begin))))
        _, slopes = jax.jvp(functools.partial(_in_jax, integrator, rule), (at,), (along,))
        return (x_next, info), (slopes[0], packed_slope(info, slopes[1]))
    every = jnp.eye(start.model.nv, dtype=start.q.dtype)
    found, dx = linearize_native(integrator, start, law, every), tangent_motion(start, along)
    # A call of its own: XLA leaves it out of programs in which nobody asks for the report's derivative.
    y, _ = step_by_core(integrator, dataclasses.replace(start, law=law), every, impulse=True)
    assert y.C is not None and y.D is not None
    packed, pushed = cast(PackedStepInfo, found.info), y.C @ dx + y.D @ along.tau
    report = report_slope(packed, pushed, contacts_slope(integrator, start, dstart), jnp.zeros(packed.layout[0], dx.dtype))
    return (found.x_next, packed), (ambient_slope(start.model, found.x_next, found.A @ dx + found.B @ along.tau), report)


def _with_parameters(integrator: str, start: StepInputs, dstart: StepInputs) -> Any:
    """`_derivative` by the core's answers, along parameters too."""
    every, model = jnp.eye(start.model.nv, dtype=start.q.dtype), start.model
    y, info = step_by_core(integrator, start, every, impulse=True, answers=True)
    assert y.A is not None and y.B is not None and y.C is not None and y.D is not None
    along, x_next = instantiated(start, dstart), y.state
    dx, by_parameters = tangent_motion(start, along), parameter_slope(integrator, start, dstart, y, info)
    by_state = ambient_slope(model, x_next, y.A @ dx + y.B @ along.tau)
    impulse = y.C @ dx + y.D @ along.tau + by_parameters.impulse
    report = report_slope(info, impulse, contacts_slope(integrator, start, dstart), by_parameters.friction)
    return (x_next, info), (jax.tree.map(jnp.add, by_state, by_parameters.x_next), report)


core_step.defjvp(_derivative, symbolic_zeros=True)
