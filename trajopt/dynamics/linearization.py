r"""Derivative of one step in tangent coordinates: dx+ = A dx + B du, dx = [dq, dv, contact state].

Steps under hard contact use the closed form of `gradients.closed_form` for dv+ and the Jacobians of the motion on the manifold;
others, and gradient modes that are not the exact derivative, are differentiated in forward mode, column by column.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.step import VelocityStep
from trajopt.dynamics.gradients.closed_form import step_jacobian
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.integrators import (
    impulse_info,
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
    by_state = _by_the_start(integrator, start, jacobian.by_q, jacobian.by_v)
    A, B = moved_on(integrator, start, step.velocity, by_state, jacobian.by_tau @ gain)
    if jacobian.impulse is not None:  # rows of the outputs, below those of the state
        by_q, by_v, by_tau = jnp.split(jacobian.impulse, 3, 1)
        A = jnp.concatenate([A, _by_the_start(integrator, start, by_q, by_v)])
        B = jnp.concatenate([B, by_tau @ gain])
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


def _by_the_start(
    integrator: str, start: StepInputs, by_q: Float[Array, "m nv"], by_v: Float[Array, "m nv"]
) -> Float[Array, "m n"]:
    """The derivative of something by the state before the step, from that by q, where the impulses act, and by v."""
    if integrator != "moreau":
        return jnp.concatenate([by_q, by_v], 1)
    half = 0.5 * start.dt
    there, there_by_v = integrate_jacobians(start.model, start.q, half * start.v)
    return jnp.concatenate([by_q @ there, by_v + half * (by_q @ there_by_v)], 1)


def moved_on(
    integrator: str,
    start: StepInputs,
    v_plus: Float[Array, " nv"],
    by_state: Float[Array, "nv n"],
    by_control: Float[Array, "nv k"],
) -> tuple[Float[Array, "n n"], Float[Array, "n k"]]:
    """A and B from the derivatives of v+: from the q where the impulses act, q+ = q (+) r v+ with r left of the step."""
    rest = share_after_impulses(integrator, start.dt)
    by_q, by_dq = integrate_jacobians(start.model, start.q, rest * v_plus)
    onward = _by_the_start(integrator, start, by_q, jnp.zeros_like(by_q))
    A = jnp.concatenate([onward + rest * (by_dq @ by_state), by_state])
    return A, jnp.concatenate([rest * (by_dq @ by_control), by_control])


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
def slopes_by_columns(
    names: tuple[str, ...], step: Callable[[Model], tuple[State, StepInfo]], model: Model
) -> dict[str, Float[Array, "n ..."]]:
    """d x+/d parameter of step(model) -> (x+, info), differentiated automatically."""

    def moved(leaves):
        y, _ = step(model.replace(**leaves))
        return tangent_of(model, y, y)

    return jax.jacfwd(moved)({name: getattr(model, name) for name in names})


def tangent_motion(start: StepInputs, along: StepInputs) -> Float[Array, " n"]:
    """The motion `along` of q, a slope of its numbers, and of v in tangent coordinates."""
    _, dq = jax.jvp(lambda q: difference(start.model, start.q, q), (start.q,), (along.q,))
    return jnp.concatenate([dq, along.v])


def ambient_slope(model: Model, x: State, dx: Float[Array, " n"]) -> State:
    """The slope of x's numbers in a motion dx in tangent coordinates."""
    dq, dv = jnp.split(dx, 2)
    return State(jax.jvp(lambda d: integrate(model, x.q, d), (jnp.zeros_like(dq),), (dq,))[1], dv)
