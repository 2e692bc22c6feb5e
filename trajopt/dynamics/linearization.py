r"""Derivative of one step in tangent coordinates: dx+ = A dx + B du, dx = [dq, dv, contact state].

Steps under hard contact use the closed form of `contact.jacobian` for dv+ and the Jacobians of the motion on the manifold;
others, and gradient modes that are not the exact derivative, are differentiated in forward mode, column by column.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.complementarity import adjoint_relabelling
from trajopt.dynamics.contact.implicit import VelocityStep
from trajopt.dynamics.contact.jacobian import StepJacobian, step_jacobian
from trajopt.dynamics.contact.law import ContactLaw
from trajopt.dynamics.integrators import impulse_step, midpoint
from trajopt.dynamics.joints import difference, integrate, integrate_jacobians
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import State, StepInfo


def linearize_impulse_step(
    integrator: str, law: ContactLaw, model: Model, x: State, tau, dt, init, *, null_space: bool, relabelling=None
) -> tuple[State, VelocityStep, Float[Array, "n n"], Float[Array, "n nu"]]:
    """(x+, the step, A, B) of `integrators.impulse_step`; null_space as in `step_jacobian`.

    relabelling: (labellings, d loss / d x+ (n,)) for complementarity-aware derivatives.
    """
    q, rest = midpoint(integrator, model, x.q, x.v, dt)
    relabel = None
    if relabelling is not None:
        labellings, adjoint = relabelling
        relabel = _relabel(labellings, law, model, q, x.v, tau, dt, rest, adjoint)
    step, jacobian = step_jacobian(law, model, q, x.v, tau, dt, init, null_space=null_space, relabel=relabel)
    x_next = State(integrate(model, q, rest * step.velocity), step.velocity, x.contact)
    if integrator == "moreau":
        return x_next, step, *_through_the_midpoint(model, jacobian, x, dt, q, step.velocity)
    return x_next, step, *_from_the_start(model, jacobian, x.q, dt, step.velocity)


def _relabel(labellings: str, law: ContactLaw, model: Model, q, v, tau, dt, rest, adjoint):
    """The labels that the loss direction at x+ asks for, pulled back to the q and v+ that the step's law sees."""
    n = model.nv

    def direction(v_plus):
        by_q, by_dq = integrate_jacobians(model, q, rest * v_plus)
        return by_q.T @ adjoint[:n], adjoint[n:] + rest * (by_dq.T @ adjoint[:n])

    return adjoint_relabelling(labellings, law, model, q, v, tau, dt, direction)


def _from_the_start(model: Model, jacobian: StepJacobian, q, dt, v_plus):
    """A and B of the semi-implicit step from the derivative of v+ and the integration of q."""
    by_control = jacobian.by_tau @ model.actuation
    by_v = jacobian.by_v
    if model.topology.ball_starts:
        by_q, by_dq = integrate_jacobians(model, q, dt * v_plus)
        moved = dt * (by_dq @ jnp.concatenate([jacobian.by_q, by_v, by_control], 1))
    else:
        by_q = jnp.eye(model.nv, dtype=q.dtype)
        moved = dt * jnp.concatenate([jacobian.by_q, by_v, by_control], 1)
    n = model.nv
    top = jnp.concatenate([by_q + moved[:, :n], moved[:, n : 2 * n]], 1)
    A = jnp.concatenate([top, jnp.concatenate([jacobian.by_q, by_v], 1)])
    return A, jnp.concatenate([moved[:, 2 * n :], by_control])


def _through_the_midpoint(model: Model, jacobian: StepJacobian, x: State, dt, q_mid, v_plus):
    """A and B of the midpoint step: q_m = q (+) dt/2 v, v+ = f(q_m, v, tau), q+ = q_m (+) dt/2 v+."""
    n, half = model.nv, 0.5 * dt
    there, there_by_v = integrate_jacobians(model, x.q, half * x.v)
    onward, onward_by_v = integrate_jacobians(model, q_mid, half * v_plus)
    by_control = jacobian.by_tau @ model.actuation
    mid = jnp.concatenate([there, half * there_by_v, jnp.zeros_like(by_control)], 1)
    velocity = jacobian.by_q @ mid + jnp.concatenate([jnp.zeros_like(jacobian.by_v), jacobian.by_v, by_control], 1)
    both = jnp.concatenate([onward @ mid + half * (onward_by_v @ velocity), velocity])
    return both[:, : 2 * n], both[:, 2 * n :]


def linearize_by_columns(
    step, model: Model, x: State, u
) -> tuple[State, StepInfo, Float[Array, "n n"], Float[Array, "n nu"]]:
    """(x+, info, A, B) of step(x, u) -> (x+, info), differentiated automatically in forward mode."""
    nv, n = model.nv, 2 * model.nv + (0 if x.contact is None else x.contact.size)

    def moved(z):
        contact = None if x.contact is None else x.contact + z[2 * nv : n].reshape(x.contact.shape)
        start = State(integrate(model, x.q, z[:nv]), x.v + z[nv : 2 * nv], contact)
        y, info = step(start, u + z[n:])
        return tangent_of(model, y, y), (y, info)

    jacobian, (x_next, info) = jax.jacfwd(moved, has_aux=True)(jnp.zeros(n + u.shape[0], x.q.dtype))
    return x_next, info, jacobian[:, :n], jacobian[:, n:]


def tangent_of(model: Model, origin: State, x: State) -> Float[Array, " n"]:
    """Tangent coordinates [dq, dv, contact state] of x at `origin`, which is held fixed: at x itself, zero with their slope."""
    origin = jax.lax.stop_gradient(origin)
    parts = [difference(model, origin.q, x.q), x.v - origin.v]
    if x.contact is not None and origin.contact is not None:
        parts.append((x.contact - origin.contact).reshape(-1))
    return jnp.concatenate(parts)


def impulse_slopes(
    names, integrator: str, law: ContactLaw, model: Model, x: State, tau_of, dt, init
) -> dict[str, Array]:
    """d x+/d parameter of a step with impulses, for the leaves `names` of the model. tau_of: generalised force of a model."""

    def velocity(leaves):
        changed = model.replace(**leaves)
        return impulse_step(integrator, law, changed, x, tau_of(changed), dt, init)[0].v

    leaves = {name: getattr(model, name) for name in names}
    slopes = jax.jacfwd(velocity)(leaves)
    q, rest = midpoint(integrator, model, x.q, x.v, dt)
    _, by_dq = integrate_jacobians(model, q, rest * velocity(leaves))

    def stack(by_v):
        flat = by_v.reshape(by_v.shape[0], -1)
        return jnp.concatenate([rest * (by_dq @ flat), flat]).reshape((2 * by_v.shape[0], *by_v.shape[1:]))

    return {name: stack(slopes[name]) for name in names}


def slopes_by_columns(names, step, model: Model) -> dict[str, Array]:
    """d x+/d parameter of step(model) -> (x+, info), differentiated automatically."""

    def moved(leaves):
        y, _ = step(model.replace(**leaves))
        return tangent_of(model, y, y)

    return jax.jacfwd(moved)({name: getattr(model, name) for name in names})
