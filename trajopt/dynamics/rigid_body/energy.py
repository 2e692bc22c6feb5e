"""Energies and centroidal momentum.

Energies include what the equation of motion includes: the kinetic energy of armature and the elastic energy of joint
springs (MuJoCo's convention; Pinocchio leaves both out). Then d/dt (kinetic + potential) = tau . v - damping losses.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.kinematics import (
    expand_v,
    kinematics,
    node_inertias,
    node_velocities,
    subtree_mask,
    to_user_dofs,
)
from trajopt.dynamics.rigid_body.spatial import cross, inertia_times


@in_full_precision
def kinetic_energy(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, ""]:
    """$v^T M(q) v / 2$ in joules, armature included."""
    v = check_vector("v", v, model.nv)
    kin = kinematics(model, q)
    velocity = node_velocities(kin, model.topology, expand_v(model, v))
    bodies = (velocity * inertia_times(node_inertias(model, kin), velocity)).sum()
    return (bodies + (jnp.asarray(model.armature, v.dtype) * v * v).sum()) / 2


@in_full_precision
def potential_energy(model: Model, q: Float[Array, " nq"]) -> Float[Array, ""]:
    """Energy of gravity, zero with all centres of mass at the world's origin, plus that of the joint springs (J)."""
    q = check_vector("q", q, model.nq)
    kin = kinematics(model, q)
    mass = jnp.asarray(model.mass, q.dtype)
    com = kin.position + (kin.rotation * jnp.asarray(model.com, q.dtype)[:, None, :]).sum(-1)
    weight = -(mass * (com * jnp.asarray(model.gravity, q.dtype)).sum(-1)).sum()
    coordinate = model.topology.scalar_q_of_dof
    stretch = q[np.maximum(coordinate, 0)] - jnp.asarray(model.spring_reference, q.dtype)
    spring = jnp.where(
        coordinate >= 0, jnp.asarray(model.stiffness, q.dtype) * stretch * stretch, jnp.zeros_like(stretch)
    )
    return weight + spring.sum() / 2


@in_full_precision
def centroidal_momentum(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, "6"]:
    """[linear; angular] momentum of the whole model about its centre of mass, world axes (armature not included)."""
    v = check_vector("v", v, model.nv)
    kin = kinematics(model, q)
    inertia = node_inertias(model, kin)
    momentum = inertia_times(inertia, node_velocities(kin, model.topology, expand_v(model, v)))
    return _about(_centre(kin, inertia), kin.origin, momentum).sum(0)


@in_full_precision
def centroidal_momentum_matrix(model: Model, q: Float[Array, " nq"]) -> Float[Array, "6 nv"]:
    """$A_G$, with which `centroidal_momentum` is $A_G v$: the momentum of the subtree of every DoF at unit velocity."""
    top = model.topology
    kin = kinematics(model, q)
    inertia = node_inertias(model, kin)
    momentum = inertia_times(subtree_mask(top, kin.S.dtype).T @ inertia, kin.S)
    return to_user_dofs(model, _about(_centre(kin, inertia), kin.origin[top.dof_node], momentum).T)


def _centre(kin, inertia):
    """Centre of mass in the world from packed inertias at the trees' origins."""
    return (inertia[:, 1:4] + inertia[:, :1] * kin.origin).sum(0) / inertia[:, 0].sum()


def _about(centre, origin, force):
    """Forces (k, 6) at `origin` (k, 3) moved to `centre`."""
    return jnp.concatenate([force[:, :3], force[:, 3:] + cross(origin - centre, force[:, :3])], -1)
