"""Derivatives of the core's steps by parameters of the model and by dt, under hard contact.

Parameters enter the equations of a step, at fixed v+ and lambda, through the balance of momentum E, the constraint velocity nu,
the coefficients of friction and the bounds of dry friction (`gradients.implicit`). JAX differentiates these, solving nothing.
What v+ and lambda answer to each comes from the factorisation at the core's solution (native/answers.h), with columns

    [dnu, dmu, dbound, dJ z, dJ^T w - dM z]

The last two are zero but where contacts are redundant: the selection of the impulse knows of G = J M^-1 J^T through them.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.branches import any_in_batch
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.compiled_step import CoreSteps
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.gradients.first_order import slope_along, still
from trajopt.dynamics.gradients.implicit import equations
from trajopt.dynamics.integrators import share_after_impulses, where_impulses_act
from trajopt.dynamics.report import PackedStepInfo
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.rigid_body.rnea import inverse_dynamics
from trajopt.dynamics.state import State


class ParameterSlope(NamedTuple):
    """The slope of a step along parameters: of the numbers of x+, of the reported impulses and coefficients of friction."""

    x_next: State
    impulse: Float[Array, " m"]
    friction: Float[Array, " nc"]


def answers_parameters(law: ContactLaw) -> bool:
    """Whether the core answers for the law: that of hard contact."""
    return not law.relaxed and law.contact_sharpness(None) is None


def parameter_slope(
    integrator: str, start: StepInputs, dstart: StepInputs, y: CoreSteps, info: PackedStepInfo
) -> ParameterSlope:
    """The slope along the parameters in `dstart`, whose q, v and tau count as zero; y: the core's step, with its answers."""
    assert y.answers is not None and y.along is not None and y.B is not None and y.D is not None
    nv, impulse, velocity = start.model.nv, *(jax.lax.stop_gradient(x) for x in (info.impulse, y.v))
    dstart = dataclasses.replace(
        dstart, **{name: still(getattr(start, name)) for name in ("q", "v", "tau", "warm_start")}
    )

    def at(start: StepInputs) -> tuple[Any, ...]:
        inputs = where_impulses_act(integrator, start)
        momentum, nu, rows = equations(velocity, impulse, info.push_out_dropped, inputs)
        return momentum, nu, rows.J, rows.mu, rows.bound, inputs.q, share_after_impulses(integrator, start.dt)

    momentum, nu, dJ, dmu, dbound, dq, drest = slope_along(at, start, dstart)
    w, z = jnp.split(jax.lax.stop_gradient(y.along), [impulse.shape[0]])

    def turning(dJ: Float[Array, "m nv"]) -> Float[Array, " k"]:
        return jnp.concatenate([dJ @ z, dJ.T @ w - slope_along(lambda x: _inertial(integrator, x, z), start, dstart)])

    selects = any_in_batch(jnp.any(w != 0))
    selected = jax.lax.cond(selects, turning, lambda dJ: jnp.zeros(w.shape[0] + nv, dJ.dtype), dJ)
    found = y.answers @ jnp.concatenate([nu, dmu, dbound, selected])
    push = momentum / start.dt
    dv = y.B[nv:] @ push + found[:nv]
    rest = share_after_impulses(integrator, start.dt)
    q = where_impulses_act(integrator, start).q
    onward = jax.jvp(lambda q, d: integrate(start.model, q, d), (q, rest * y.v), (dq, drest * y.v + rest * dv))[1]
    return ParameterSlope(State(onward, dv), y.D @ push + found[nv:], dmu)


def contacts_slope(integrator: str, start: StepInputs, dstart: StepInputs) -> Float[Array, "nc 7"]:
    """How distance, point and normal of the reported contacts move; nothing is solved for that."""

    def contacts(start: StepInputs) -> Float[Array, "nc 7"]:
        inputs = where_impulses_act(integrator, start)
        kin = kinematics(inputs.model, inputs.q)
        found = assemble(inputs, kin, collide(inputs.model, kin, inputs.law.pair_limit, inputs.travel)).contacts
        return jnp.concatenate([found.distance[:, None], found.point, found.normal], 1)

    return slope_along(contacts, start, dstart)


def _inertial(integrator: str, start: StepInputs, z: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M z, with the armature."""
    inputs = where_impulses_act(integrator, start)
    model = inputs.model
    weightless = model.replace(gravity=jnp.zeros_like(model.gravity), stiffness=jnp.zeros_like(model.stiffness))
    return inverse_dynamics(weightless, inputs.q, jnp.zeros_like(inputs.v), z)
