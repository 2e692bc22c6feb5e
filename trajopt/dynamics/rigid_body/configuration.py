"""Configurations on their manifold: integrate, difference, and their Jacobians.

Scalar coordinates add; the unit quaternions of ball joints (and of free joints) compose with the exponential of a
rotation vector in the body frame. `integrate` and `difference` equal MuJoCo's `mj_integratePos` and
`mj_differentiatePos`; a tangent vector dq (nv,) has the layout of v.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from trajopt.dynamics.model import Model, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.lie import (
    normalise_quaternion,
    quaternion_conjugate,
    quaternion_exp,
    quaternion_log,
    quaternion_product,
    right_jacobian,
    rotation_exp,
)
from trajopt.errors import ShapeError


def check_vector(name: str, value: Any, size: int) -> Shaped[Array, " n"]:
    """`value` as an array of shape (size,), or a `ShapeError` that names it."""
    value = jnp.asarray(value)
    if value.shape != (size,):
        raise ShapeError(f"{name} has shape {value.shape}, expected ({size},); use jax.vmap for a batch")
    return value


def integrate(model: Model, q: Float[Array, " nq"], dq: Float[Array, " nv"]) -> Float[Array, " nq"]:
    """The configuration reached from q along the tangent vector dq (a velocity held for one second).

    Quaternions are normalised, so that long simulations do not drift off the manifold.
    """
    top = model.topology
    return _integrated(top, check_vector("q", q, top.nq), check_vector("dq", dq, top.nv))


def difference(model: Model, q0: Float[Array, " nq"], q1: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """The tangent vector from q0 to q1, the shorter way round: integrate(model, q0, difference(...)) is q1."""
    top = model.topology
    return _difference(top, check_vector("q0", q0, top.nq), check_vector("q1", q1, top.nq))


# Compiled as wholes: operation by operation each of them would be a dozen small compilations.


@functools.partial(jax.jit, static_argnums=0)
def _integrated(top: Topology, q: Float[Array, " nq"], dq: Float[Array, " nv"]) -> Float[Array, " nq"]:
    layout = _layout(top)
    moved = q[layout.scalar_q] + dq[layout.scalar_v]
    if not layout.balls:
        return moved
    quaternion = normalise_quaternion(q[layout.ball_q])
    turned = quaternion_product(quaternion, quaternion_exp(dq[layout.ball_v]))
    return jnp.concatenate([moved, turned.ravel()])[layout.q_order]


@functools.partial(jax.jit, static_argnums=0)
def _difference(top: Topology, q0: Float[Array, " nq"], q1: Float[Array, " nq"]) -> Float[Array, " nv"]:
    layout = _layout(top)
    moved = q1[layout.scalar_q] - q0[layout.scalar_q]
    if not layout.balls:
        return moved
    start, stop = normalise_quaternion(q0[layout.ball_q]), normalise_quaternion(q1[layout.ball_q])
    turned = quaternion_log(quaternion_product(quaternion_conjugate(start), stop))
    return jnp.concatenate([moved, turned.ravel()])[layout.v_order]


@in_full_precision
def integrate_jacobians(
    model: Model, q: Float[Array, " nq"], dq: Float[Array, " nv"]
) -> tuple[Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """Tangent Jacobians of `integrate` with respect to q and to dq.

    Identities but for ball joints, where they are exp(-dq) and the right Jacobian of SO(3) at dq (independent of q).
    """
    top = model.topology
    dq = check_vector("dq", dq, top.nv)
    layout = _layout(top)
    by_q = by_dq = jnp.eye(top.nv, dtype=dq.dtype)
    if layout.balls:
        turn, jacobian = rotation_exp(-dq[layout.ball_v]), right_jacobian(dq[layout.ball_v])
        for k, (_, start) in enumerate(top.ball_starts):
            by_q = lax.dynamic_update_slice(by_q, turn[k], (start, start))
            by_dq = lax.dynamic_update_slice(by_dq, jacobian[k], (start, start))
    return by_q, by_dq


def normalise(model: Model, q: Float[Array, " nq"]) -> Float[Array, " nq"]:
    """q with unit quaternions."""
    q = check_vector("q", q, model.nq)
    layout = _layout(model.topology)
    if not layout.balls:
        return q
    unit = normalise_quaternion(q[layout.ball_q])
    return jnp.concatenate([q[layout.scalar_q], unit.ravel()])[layout.q_order]


def neutral(model: Model, dtype: DTypeLike | None = None) -> Float[Array, " nq"]:
    """Zero scalar coordinates and identity quaternions (not a pose of the file: see `Model.q_default`)."""
    q = np.zeros(model.nq)
    for start, _ in model.topology.ball_starts:
        q[start] = 1.0
    return jnp.asarray(q, jnp.zeros(()).dtype if dtype is None else dtype)


def random_configuration(model: Model, key: PRNGKeyArray, dtype: DTypeLike | None = None) -> Float[Array, " nq"]:
    """Uniform configuration: within the limits where both are finite, otherwise in [-1, 1]; uniform rotations."""
    top = model.topology
    dtype = jnp.zeros(()).dtype if dtype is None else dtype
    layout = _layout(top)
    key_scalar, key_ball = jax.random.split(key)
    lower = jnp.asarray(model.lower, dtype)[layout.scalar_v]
    upper = jnp.asarray(model.upper, dtype)[layout.scalar_v]
    bounded = jnp.isfinite(lower) & jnp.isfinite(upper)
    lower, upper = jnp.where(bounded, lower, -jnp.ones_like(lower)), jnp.where(bounded, upper, jnp.ones_like(upper))
    uniform = jax.random.uniform(key_scalar, lower.shape, dtype)
    scalar = lower + uniform * (upper - lower)
    normal = jax.random.normal(key_ball, (layout.balls, 4), dtype)
    return jnp.concatenate([scalar, normalise_quaternion(normal).ravel()])[layout.q_order]


class _Layout:
    """Index tables that split coordinates into scalars and quaternions and put them together again."""

    def __init__(self, top: Topology):
        self.balls = len(top.ball_starts)
        starts = np.array(top.ball_starts, int).reshape(-1, 2)
        self.ball_q, self.ball_v = starts[:, :1] + np.arange(4), starts[:, 1:] + np.arange(3)
        self.scalar_v = np.flatnonzero(top.scalar_q_of_dof >= 0)
        self.scalar_q = top.scalar_q_of_dof[self.scalar_v]
        self.q_order = np.argsort(np.concatenate([self.scalar_q, self.ball_q.ravel()]))
        self.v_order = np.argsort(np.concatenate([self.scalar_v, self.ball_v.ravel()]))


@functools.lru_cache(maxsize=256)
def _layout(top: Topology) -> _Layout:
    return _Layout(top)
