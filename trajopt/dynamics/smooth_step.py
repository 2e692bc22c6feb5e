"""Smooth steps (`smoothness`) through the compiled core, differentiable as often as one likes.

| derivative | by state and force | by parameters, dt and kappa |
|---|---|---|
| first | the core's closed form | the JAX implementation |
| second | differences of the core's closed form | the JAX implementation |
| further | the JAX implementation | the JAX implementation |

Second derivatives by the JAX implementation are a program that takes several times as long to compile and to run.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.compiled_step import step_by_core
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.gradients.differences import fourth_order_differences, fourth_order_step
from trajopt.dynamics.gradients.first_order import instantiated, is_symbolic, is_zero, slope_along
from trajopt.dynamics.integrators import explicit_step
from trajopt.dynamics.linearization import ambient_slope, linearize_by_columns, tangent_motion
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import State, StepInfo


def smooth_slope(integrator: str, x_next: State, start: StepInputs, dstart: StepInputs) -> State:
    """The slope of the numbers of x_next, the state after a step of free motion, whatever the integrator."""
    if not by_state_alone(dstart):
        return slope_along(lambda at: _in_jax(integrator, at)[0], start, dstart)
    along, n = instantiated(start, dstart), 2 * start.model.nv
    F = _jacobian(integrator, start)
    return ambient_slope(start.model, x_next, F[:, :n] @ tangent_motion(start, along) + F[:, n:] @ along.tau)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _jacobian(integrator: str, start: StepInputs) -> Float[Array, "n n3"]:
    """F = [A, B] of a step, B by forces."""
    y, _ = step_by_core(integrator, start, jnp.eye(start.model.nv, dtype=start.q.dtype))
    assert y.A is not None and y.B is not None
    return jnp.concatenate([y.A, y.B], 1)


def _jacobian_derivative(integrator: str, primals: Any, tangents: Any) -> Any:
    (start,), (dstart,) = primals, tangents
    F = _jacobian(integrator, start)
    if not by_state_alone(dstart):
        return F, slope_along(functools.partial(_jacobian_in_jax, integrator), start, dstart)
    along = instantiated(start, dstart)
    dz = jnp.concatenate([tangent_motion(start, along), along.tau])
    return F, jnp.reshape(_curvature(integrator, start) @ dz, F.shape)


_jacobian.defjvp(_jacobian_derivative, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _curvature(integrator: str, start: StepInputs) -> Float[Array, "nn3 n3"]:
    """dF/dz of the entries of F, row by row, by z = [dq, dv, dtau]: linear in no direction, so that reverse mode passes too."""
    steps = fourth_order_step(start.q.dtype) * (1.0 + jnp.abs(jnp.concatenate([jnp.zeros_like(start.v), start.v, start.tau])))
    return fourth_order_differences(lambda z: _jacobian(integrator, _moved(start, z)).reshape(-1), steps)


def _curvature_derivative(integrator: str, primals: Any, tangents: Any) -> Any:
    def in_jax(start: StepInputs) -> Array:
        zero = jnp.zeros(3 * start.model.nv, start.q.dtype)
        return jax.jacfwd(lambda z: _jacobian_in_jax(integrator, _moved(start, z)).reshape(-1))(zero)

    return _curvature(integrator, *primals), slope_along(in_jax, *primals, *tangents)


_curvature.defjvp(_curvature_derivative, symbolic_zeros=True)


def _moved(start: StepInputs, z: Float[Array, " n3"]) -> StepInputs:
    """The step from q (+) dq, v + dv under tau + dtau."""
    dq, dv, dtau = jnp.split(z, 3)
    q = integrate(start.model, start.q, dq)
    return start.at(q, start.v + dv, start.tau + dtau)


def _jacobian_in_jax(integrator: str, start: StepInputs) -> Float[Array, "n n3"]:
    def step(x: State, tau: Array) -> tuple[State, StepInfo]:
        return _in_jax(integrator, start.at(x.q, x.v, tau))

    found = linearize_by_columns(step, start.model, State(start.q, start.v), start.tau)
    return jnp.concatenate([found.A, found.B], 1)


def _in_jax(integrator: str, start: StepInputs) -> tuple[State, StepInfo]:
    return explicit_step(integrator, start.law, start.model, State(start.q, start.v), start.tau, start.dt)


def by_state_alone(dstart: StepInputs) -> bool:
    """Whether q, v and tau alone are differentiated by."""
    others = (dstart.model, dstart.dt, dstart.kappa, dstart.rho)
    return all(is_zero(slope) for slope in jax.tree.leaves(others, is_leaf=is_symbolic))
