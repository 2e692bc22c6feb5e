"""Inverse dynamics: generalised forces of a motion (recursive Newton-Euler, RBDA section 5.3).

The two sweeps over the tree are two products with the constant ancestor mask. With V the node velocities,

    A_i = -g + sum over DoFs j that move i of (S_j a_j + V_node(j) x S_j v_j)
    f_i = I_i A_i + V_i x* I_i V_i,        tau_j = S_j . (sum of f_i over the subtree of node(j))

which is the *true* inverse dynamics: the acceleration of a free base goes in, the wrench on it comes out.
"""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.kinematics import (
    Kinematics,
    check_vector,
    dof_mask,
    expand_v,
    kinematics,
    node_inertias,
    subtree_mask,
    to_user_dofs,
)
from trajopt.dynamics.rigid_body.spatial import cross_force, cross_motion, inertia_times


@in_full_precision
def rnea(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], a: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Generalised forces (nv,) of the rigid bodies alone: M(q) a + C(q, v) v + g(q), dual to v.

    Armature, damping and springs are not included (see `inverse_dynamics`); this is Pinocchio's `rnea` without
    armature and MuJoCo's `mj_rne` without armature.
    """
    v, a = check_vector("v", v, model.nv), check_vector("a", a, model.nv)
    kin = kinematics(model, q)
    return to_user_dofs(model, tree_forces(model, kin, expand_v(model, v), expand_v(model, a)))


def tree_forces(
    model: Model, kin: Kinematics, v: Float[Array, " nvt"], a: Float[Array, " nvt"] | None
) -> Float[Array, " nvt"]:
    """`rnea` for tree velocities and accelerations (None: zero) at kinematics already computed."""
    top, dtype = model.topology, kin.S.dtype
    mask, S = dof_mask(top, dtype).T, kin.S.T
    rate = S * v
    velocity = rate @ mask
    rates = cross_motion(rate @ jnp.asarray(top.ancestor_mask.T, dtype), rate, 0)
    acceleration = (rates if a is None else rates + S * a) @ mask + lift(model, dtype)[:, None]
    inertia = node_inertias(model, kin).T
    force = inertia_times(inertia, acceleration, 0) + cross_force(velocity, inertia_times(inertia, velocity, 0), 0)
    return (S * (force @ subtree_mask(top, dtype))).sum(0)


def lift(model: Model, dtype: DTypeLike) -> Float[Array, "6"]:
    """Acceleration -g of the world's frame that stands for gravity."""
    gravity = jnp.asarray(model.gravity, dtype)
    return jnp.concatenate([-gravity, jnp.zeros_like(gravity)])


def passive_forces(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Generalised forces of dampers and springs: -damping v - stiffness (q - spring_reference).

    Springs act on revolute, prismatic and translational DoFs; those of ball joints have none. Coulomb joint friction
    is part of the contact problem, not of this.
    """
    q, v = check_vector("q", q, model.nq), check_vector("v", v, model.nv)
    coordinate = model.topology.scalar_q_of_dof
    stretch = q[np.maximum(coordinate, 0)] - jnp.asarray(model.spring_reference, q.dtype)
    spring = jnp.where(coordinate >= 0, jnp.asarray(model.stiffness, q.dtype) * stretch, jnp.zeros_like(stretch))
    return -jnp.asarray(model.damping, v.dtype) * v - spring


@in_full_precision
def inverse_dynamics(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], a: Float[Array, " nv"]
) -> Float[Array, " nv"]:
    """Generalised forces to apply for the acceleration a: `rnea` + armature a - `passive_forces`."""
    a = check_vector("a", a, model.nv)
    return rnea(model, q, v, a) + jnp.asarray(model.armature, a.dtype) * a - passive_forces(model, q, v)


@in_full_precision
def bias_forces(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """C(q, v) v + g(q): `rnea` at zero acceleration, MuJoCo's `qfrc_bias`."""
    return bias_at(model, kinematics(model, q), v)


def bias_at(model: Model, kin: Kinematics, v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """`bias_forces` at kinematics already computed."""
    return to_user_dofs(model, tree_forces(model, kin, expand_v(model, v), None))


@in_full_precision
def generalised_gravity(model: Model, q: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """g(q): the gradient of the potential energy, the forces that hold the model still."""
    kin = kinematics(model, q)
    top, dtype = model.topology, kin.S.dtype
    force = inertia_times(node_inertias(model, kin).T, lift(model, dtype)[:, None], 0)
    return to_user_dofs(model, (kin.S.T * (force @ subtree_mask(top, dtype))).sum(0))
