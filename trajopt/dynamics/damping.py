"""Springs and dampers of joints in large steps: beside the armature (`System(implicit_damping=True)`), or a warning."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model, NodeType
from trajopt.dynamics.start import named

STIFF = 1.0  # dt times damping, or dt^2 times stiffness, over the inertia of a joint


class DampingWarning(UserWarning):
    """A step is too large for a joint's damping or spring, whose force is that at the beginning of the step."""


def with_implicit_damping(model: Model, dt: Float[Array, ""]) -> Model:
    """The model whose armature holds dt D + dt^2 K besides, D and K being damping and stiffness of the joints.

    One step of it from v is (M + dt D + dt^2 K) (v+ - v) = dt (tau - h - D v - K (q - q_0)) + J^T lambda: damping by the velocity
    after the step, as MuJoCo's default integrator has it (its documentation, Computation, Integrators), and springs that stay
    stable at any dt. Differentiable in damping, stiffness, armature and dt.
    """
    armature = jnp.asarray(model.armature)
    dtype = armature.dtype
    scalar = jnp.asarray(model.topology.scalar_q_of_dof >= 0)
    stiffness = jnp.where(scalar, jnp.asarray(model.stiffness, dtype), 0.0)
    dt = jnp.asarray(dt, dtype)
    return model.replace(armature=armature + dt * jnp.asarray(model.damping, dtype) + dt * dt * stiffness)


def joint_inertias(model: Model) -> Float[np.ndarray, " nv"]:
    """Inertia (kg m^2, kg) that every DoF moves alone, armature included, all others held at their zero placements."""
    top = model.topology
    leaves = (model.mass, model.com, model.inertia, model.placement_rotation, model.placement_position)
    mass, com, inertia, turn, place = (np.array(leaf, float) for leaf in leaves)
    first = mass[:, None] * com  # about the node's origin, like the second moments from here on
    second = np.array([inertia[i] + mass[i] * _about(com[i]) for i in range(top.n_nodes)]).reshape(-1, 3, 3)
    for i in reversed(range(top.n_nodes)):  # what hangs on node i is part of its parent's
        if (parent := top.parents[i]) < 0:
            continue
        R, p = turn[i], place[i]
        moved = R @ first[i]
        cross = np.outer(p, moved)
        second[parent] += R @ second[i] @ R.T + mass[i] * _about(p) + 2 * np.trace(cross) * np.eye(3) - cross - cross.T
        first[parent] += moved + mass[i] * p
        mass[parent] += mass[i]
    axis, found = np.asarray(model.axis, float), np.zeros(top.nv_tree)
    for i, (kind, start) in enumerate(zip(top.node_types, top.v_starts, strict=True)):
        if kind is NodeType.REVOLUTE:
            found[start] = axis[i] @ second[i] @ axis[i]
        elif kind is NodeType.BALL:
            found[start : start + 3] = np.diag(second[i])
        else:
            found[start : start + (3 if kind is NodeType.TRANSLATION else 1)] = mass[i]
    return found[top.user_dofs] + np.asarray(model.armature, float)


def _least_inertias(model: Model) -> Float[np.ndarray, " nv"]:
    """What `joint_inertias` are at least: those of hinges by their own body, quickly."""
    top, axis = model.topology, np.asarray(model.axis)
    own = np.einsum("ni,nij,nj->n", axis, np.asarray(model.inertia), axis)
    hinges = np.array([kind is NodeType.REVOLUTE for kind in top.node_types], bool)
    return np.where(hinges, own, 0.0)[top.dof_node[top.user_dofs]] + np.asarray(model.armature)


def _about(r: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3 3"]:
    """Second moment of a unit mass at r."""
    return float(r @ r) * np.eye(3) - np.outer(r, r)


def stiff_joints(model: Model, dt: float) -> list[tuple[str, float]]:
    """(joint, share) of the joints whose dt times damping, or dt^2 times stiffness, over `joint_inertias` exceeds 1."""
    beside = np.maximum(dt * np.asarray(model.damping), dt**2 * np.asarray(model.stiffness))
    if not (beside > STIFF * _least_inertias(model)).any():
        return []
    share = beside / np.maximum(joint_inertias(model), 1e-300)
    parts = ((joint.name, share[joint.v_start : joint.v_start + joint.nv]) for joint in model.topology.joints)
    return [(name, float(part.max())) for name, part in parts if part.max(initial=0.0) > STIFF]


def warn_of_damping(model: Model, dt: Any, stacklevel: int = 4) -> None:
    """Issue a `DampingWarning` naming the joints whose damping or spring dt is too large for; none where something is traced."""
    leaves = jax.tree.leaves((model, dt))
    if not all(isinstance(a, int | float | np.ndarray | jax.Array) and not isinstance(a, jax.core.Tracer) for a in leaves):
        return
    if np.ndim(dt) > 0 or np.ndim(model.damping) != 1:
        return
    if found := stiff_joints(model, float(dt)):
        listed = named([f"'{name}' ({share:.3g})" for name, share in found])
        warnings.warn(
            f"model '{model.name}': dt = {float(dt):g} is too large for the damping or the spring of {listed}: dt times "
            "damping, or dt^2 times stiffness, over the joint's inertia exceeds 1, and velocities may grow without bound; give "
            "System implicit_damping=True, or a smaller dt",
            DampingWarning,
            stacklevel=stacklevel,
        )
