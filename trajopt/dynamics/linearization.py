r"""Derivative of one step in tangent coordinates: dx+ = A dx + B du, dx = [dq, dv, contact state].

Steps under hard contact use the closed form of `gradients.closed_form` for dv+ and the Jacobians of the motion on the manifold;
others, and gradient modes that are not the exact derivative, are differentiated in forward mode, column by column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.step import VelocityStep
from trajopt.dynamics.gradients.closed_form import StepJacobian, step_jacobian
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.integrators import (
    impulse_info,
    impulse_step,
    share_after_impulses,
    takes_impulses,
    where_impulses_act,
)
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.actuation import force_slopes
from trajopt.dynamics.rigid_body.configuration import difference, integrate, integrate_jacobians
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo
from trajopt.result import Status


@dataclasses.dataclass(frozen=True)
class Parts:
    """What of the closed form a program computes. null_space: as in `step_jacobian`. impulse: whether the impulse is
    differentiated too."""

    null_space: bool
    impulse: bool


def has_closed_form(law: Law, mode: GradientMode, integrator: str) -> TypeGuard[ContactLaw]:
    """Whether the step's Jacobian has a closed form, in its own contact modes or in those that the loss asks for."""
    return takes_impulses(law, integrator) and law.has_closed_form and mode.has_closed_form


@in_full_precision
def linearize_impulse_step(
    integrator: str,
    mode: GradientMode,
    start: StepInputs,
    u: Float[Array, " nu"],
    adjoint: Float[Array, " n"] | None,
    parts: Parts,
) -> tuple[Linearization, VelocityStep]:
    """The linearisation and the step of `integrators.impulse_step` from its closed form.

    adjoint: d loss / d x+ (n,), by which the mode chooses the contact modes; None for those of the step.
    """
    model, inputs = start.model, where_impulses_act(integrator, start)
    rest = share_after_impulses(integrator, start.dt)
    relabel = None if adjoint is None else mode.relabelling(inputs, _loss_direction(inputs, rest, adjoint))
    step, jacobian = step_jacobian(inputs, null_space=parts.null_space, relabel=relabel, impulse=parts.impulse)
    x_next = State(integrate(model, inputs.q, rest * step.velocity), step.velocity)
    slopes = force_slopes(model, start.q, start.v, u)
    gain = model.actuation if slopes is None else slopes.columns()
    by_control = jacobian.by_tau @ gain
    if integrator == "moreau":
        A, B = _through_the_midpoint(start, inputs.q, jacobian, by_control, step.velocity)
    else:
        A, B = _from_the_start(start, jacobian, by_control, step.velocity)
    # Rows of the outputs below those of the state.
    C, D = (A[:0], B[:0]) if jacobian.impulse is None else _impulse_slopes(integrator, start, jacobian.impulse, gain)
    A, B = jnp.concatenate([A, C]), jnp.concatenate([B, D])
    one_sided = _one_sided_columns(integrator, model, jacobian.contradicts)
    # Of a step without a solution nothing is solved again, and numbers that are not finite are no derivative.
    one_sided = one_sided & (step.solution.status == Status.solved)
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B))
    status = choose(finite, step.solution.status, Status.non_finite)
    step = dataclasses.replace(step, solution=dataclasses.replace(step.solution, status=status))
    if relabel is not None:  # the loss has chosen the modes
        one_sided = jnp.zeros_like(one_sided)
    if slopes is not None:
        A, B = slopes.chained(A, B)
    n = 2 * model.nv
    outputs = {"impulse": OutputSlope(A[n:], B[n:])} if parts.impulse else {}
    return Linearization(x_next, A[:n], B[:n], impulse_info(step), {}, one_sided, outputs), step


def _impulse_slopes(
    integrator: str, start: StepInputs, slopes: Float[Array, "m n3"], gain: Float[Array, "nv k"]
) -> tuple[Float[Array, "m n"], Float[Array, "m k"]]:
    """The derivative of the impulses by the state before the step and along `gain`, from that by (q, v, tau) where they act."""
    by_q, by_v, by_tau = jnp.split(slopes, 3, 1)
    if integrator == "moreau":
        half = 0.5 * start.dt
        there, there_by_v = integrate_jacobians(start.model, start.q, half * start.v)
        by_q, by_v = by_q @ there, by_v + half * (by_q @ there_by_v)
    return jnp.concatenate([by_q, by_v], 1), by_tau @ gain


def _one_sided_columns(integrator: str, model: Model, contradicts: Bool[Array, "2 nv"]) -> Bool[Array, " n"]:
    """Columns of A that the directions `contradicts` of q and v enter, at the configuration where the impulses act."""
    by_q, by_v = contradicts
    if integrator != "moreau":
        return jnp.concatenate([by_q, by_v])
    for _, at in model.topology.ball_starts:  # of the midpoint the three directions of a ball joint are mixed
        by_q = by_q.at[at : at + 3].set(jnp.any(by_q[at : at + 3]))
    return jnp.concatenate([by_q, by_q | by_v])


def _loss_direction(inputs: StepInputs, rest, adjoint: Float[Array, " n"]):
    """v+ -> the loss direction at x+, pulled back to the q and v+ that the step's law sees."""
    n = inputs.model.nv

    def direction(v_plus):
        by_q, by_dq = integrate_jacobians(inputs.model, inputs.q, rest * v_plus)
        return by_q.T @ adjoint[:n], adjoint[n:] + rest * (by_dq.T @ adjoint[:n])

    return direction


def _from_the_start(start: StepInputs, jacobian: StepJacobian, by_control, v_plus):
    """A and B of the semi-implicit step from the derivative of v+ and the integration of q."""
    model, q, dt, n = start.model, start.q, start.dt, start.model.nv
    if model.topology.ball_starts:
        by_q, by_dq = integrate_jacobians(model, q, dt * v_plus)
        moved = dt * (by_dq @ jnp.concatenate([jacobian.by_q, jacobian.by_v, by_control], 1))
    else:
        by_q = jnp.eye(n, dtype=q.dtype)
        moved = dt * jnp.concatenate([jacobian.by_q, jacobian.by_v, by_control], 1)
    top = jnp.concatenate([by_q + moved[:, :n], moved[:, n : 2 * n]], 1)
    A = jnp.concatenate([top, jnp.concatenate([jacobian.by_q, jacobian.by_v], 1)])
    return A, jnp.concatenate([moved[:, 2 * n :], by_control])


def _through_the_midpoint(start: StepInputs, q_mid, jacobian: StepJacobian, by_control, v_plus):
    """A and B of the midpoint step: q_m = q (+) dt/2 v, v+ = f(q_m, v, tau), q+ = q_m (+) dt/2 v+."""
    model, n, half = start.model, start.model.nv, 0.5 * start.dt
    there, there_by_v = integrate_jacobians(model, start.q, half * start.v)
    onward, onward_by_v = integrate_jacobians(model, q_mid, half * v_plus)
    mid = jnp.concatenate([there, half * there_by_v, jnp.zeros_like(by_control)], 1)
    velocity = jacobian.by_q @ mid + jnp.concatenate([jnp.zeros_like(jacobian.by_v), jacobian.by_v, by_control], 1)
    both = jnp.concatenate([onward @ mid + half * (onward_by_v @ velocity), velocity])
    return both[:, : 2 * n], both[:, 2 * n :]


@in_full_precision
def linearize_by_columns(
    step: Callable[..., tuple[State, StepInfo]], model: Model, x: State, u: Float[Array, " nu"], impulse: bool = False
) -> Linearization:
    """Of step(x, u) -> (x+, info), differentiated automatically in forward mode. impulse: as in `Parts`."""
    nv, n = model.nv, 2 * model.nv + (0 if x.contact is None else x.contact.size)

    def moved(z):
        contact = None if x.contact is None else x.contact + z[2 * nv : n].reshape(x.contact.shape)
        start = State(integrate(model, x.q, z[:nv]), x.v + z[nv : 2 * nv], contact)
        y, info = step(start, u + z[n:])
        return (tangent_of(model, y, y), info.impulse if impulse else info.impulse[:0]), (y, info)

    (by_state, by_impulse), (x_next, info) = jax.jacfwd(moved, has_aux=True)(jnp.zeros(n + u.shape[0], x.q.dtype))
    outputs = {"impulse": OutputSlope(by_impulse[:, :n], by_impulse[:, n:])} if impulse else {}
    return Linearization(x_next, by_state[:, :n], by_state[:, n:], info, {}, None, outputs)


def tangent_of(model: Model, origin: State, x: State) -> Float[Array, " n"]:
    """Tangent coordinates [dq, dv, contact state] of x at `origin`, which is held fixed: at x itself, zero with their slope."""
    origin = jax.lax.stop_gradient(origin)
    parts = [difference(model, origin.q, x.q), x.v - origin.v]
    if x.contact is not None and origin.contact is not None:
        parts.append((x.contact - origin.contact).reshape(-1))
    return jnp.concatenate(parts)


@in_full_precision
def impulse_slopes(
    names: tuple[str, ...],
    integrator: str,
    mode: GradientMode,
    model: Model,
    start_of: Callable[[Model], StepInputs],
) -> dict[str, Float[Array, "n ..."]]:
    """d x+/d parameter of a step with impulses, for the leaves `names` of the model. start_of: the step under a model."""
    start = start_of(model)
    rule = mode.rule(start.law)

    def velocity(leaves):
        return impulse_step(integrator, start_of(model.replace(**leaves)), rule)[0].v

    leaves = {name: getattr(model, name) for name in names}
    slopes = jax.jacfwd(velocity)(leaves)
    rest = share_after_impulses(integrator, start.dt)
    _, by_dq = integrate_jacobians(model, where_impulses_act(integrator, start).q, rest * velocity(leaves))

    def stack(by_v):
        flat = by_v.reshape(by_v.shape[0], -1)
        return jnp.concatenate([rest * (by_dq @ flat), flat]).reshape((2 * by_v.shape[0], *by_v.shape[1:]))

    return {name: stack(slopes[name]) for name in names}


@in_full_precision
def slopes_by_columns(
    names: tuple[str, ...], step: Callable[[Model], tuple[State, StepInfo]], model: Model
) -> dict[str, Float[Array, "n ..."]]:
    """d x+/d parameter of step(model) -> (x+, info), differentiated automatically."""

    def moved(leaves):
        y, _ = step(model.replace(**leaves))
        return tangent_of(model, y, y)

    return jax.jacfwd(moved)({name: getattr(model, name) for name in names})
