"""Closed-form derivatives of inverse and forward dynamics (IDSVA).

With i a descendant of j or in the same joint, Psid_j = V_parent(j) x S_j, Psidd_j = A_parent(j) x S_j + V_parent(j) x
Psid_j, Sd_j = V_node(j) x S_j, composite inertia I_i^C, composite force f_i^C and the composite Coriolis matrix B_i^C,

    d tau_i / d q_j = S_i . (2 B_i^C Psid_j + I_i^C Psidd_j)
    d tau_i / d v_j = S_i . (2 B_i^C S_j + I_i^C (Psid_j + Sd_j))

and, strictly for i below j,

    d tau_j / d q_i = S_j . (2 B_i^C Psid_i + I_i^C Psidd_i + S_i x* f_i^C)
    d tau_j / d v_i = S_j . (2 B_i^C S_i + I_i^C (Psid_i + Sd_i)),

where a root's parent has the acceleration -g. Derivatives with respect to q are taken along tangent vectors
(`joints.integrate`).

IDSVA's 6 x 6 matrix B = ((v x*) I - I (v x) + (I v) xbar*) / 2 of a rigid body with velocity v = [l; w] and packed
inertia (m, h, J) collapses, by [w]x J + J [w]x = tr(J) [w]x - [J w]x, to

    B = [ 0  -[p]x ]      p = m l + w x h  (linear momentum),
        [ 0    K   ]      K = (h . l) 1 - l h^T + [w]x (J - tr(J)/2 1),

so that its twelve numbers are summed over subtrees together with the ten of the inertia and the six of the force in
one product with the ancestor mask, and no 6 x 6 matrix is ever formed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.linear_algebra import cholesky, triangular_solve
from trajopt.dynamics.model import Model, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.crba import project_matrix, select_by_ancestry
from trajopt.dynamics.rigid_body.kinematics import (
    Kinematics,
    dof_mask,
    expand_v,
    kinematics,
    node_inertias,
    subtree_mask,
    to_user_dofs,
)
from trajopt.dynamics.rigid_body.rnea import lift, passive_forces
from trajopt.dynamics.rigid_body.spatial import (
    coriolis,
    coriolis_times,
    coriolis_transposed_times,
    cross,
    cross_force,
    cross_motion,
    inertia_times,
    materialise,
    rotate,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicsTerms:
    """What the dynamics and its derivatives share at one state. World axes, every tree at its own origin.

    n nodes, nvt tree DoFs, nv user DoFs; `composite_*` are sums over the subtree of a DoF's node.

    - `kin`: placements and motion subspaces; `velocity` (n, 6) of the nodes;
    - `inertia` (n, 10), `composite_inertia` (nvt, 10): packed spatial inertias;
    - `composite_coriolis` (nvt, 12): p and the rows of K of B^C (module docstring);
    - `composite_bias_force` (nvt, 6): forces at zero joint acceleration, gravity included;
    - `Psid`, `Sd` (nvt, 6): V_parent x S and V_node x S; `bias_Psidd` (nvt, 6): Psidd at zero joint acceleration;
    - `momentum` (nvt, 6): I^C S;
    - `M` (nv, nv): mass matrix with armature;
    - `h` (nv,): bias forces minus passive forces, so that M a + h = tau.
    """

    kin: Kinematics
    velocity: Float[Array, "n 6"]
    inertia: Float[Array, "n 10"]
    composite_inertia: Float[Array, "nvt 10"]
    composite_coriolis: Float[Array, "nvt 12"]
    composite_bias_force: Float[Array, "nvt 6"]
    Psid: Float[Array, "nvt 6"]
    Sd: Float[Array, "nvt 6"]
    bias_Psidd: Float[Array, "nvt 6"]
    momentum: Float[Array, "nvt 6"]
    M: Float[Array, "nv nv"]
    h: Float[Array, " nv"]


def dynamics_terms(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> DynamicsTerms:
    """All terms of the equation of motion M a + h = tau at (q, v), and those its derivatives reuse."""
    top = model.topology
    v = check_vector("v", v, top.nv)
    kin = kinematics(model, q)
    S, dtype = kin.S.T, kin.S.dtype
    n, nvt = top.n_nodes, top.nv_tree

    rate = S * expand_v(model, v)
    velocity, own, above = jnp.split(rate @ _motion_mask(top, dtype), (n, n + nvt), axis=1)
    inertia = node_inertias(model, kin).T
    acceleration = cross_motion(own, rate, 0) @ _motion_mask(top, dtype) + lift(model, dtype)[:, None]
    bias_acceleration, _, bias_above = jnp.split(acceleration, (n, n + nvt), axis=1)
    bias_force = inertia_times(inertia, bias_acceleration, 0)
    bias_force = bias_force + cross_force(velocity, inertia_times(inertia, velocity, 0), 0)

    table = jnp.concatenate(materialise(inertia, coriolis(inertia, velocity, 0), bias_force))
    composite = table @ subtree_mask(top, dtype)
    composite_inertia, composite_force = composite[:10], composite[22:]

    (momentum,) = materialise(inertia_times(composite_inertia, S, 0))
    product = momentum.T @ S
    matrix = project_matrix(model, select_by_ancestry(top, product, product.T))
    bias = to_user_dofs(model, (S * composite_force).sum(0))
    Psid = cross_motion(above, S, 0)
    return DynamicsTerms(
        kin=kin,
        velocity=velocity.T,
        inertia=inertia.T,
        composite_inertia=composite_inertia.T,
        composite_coriolis=composite[10:22].T,
        composite_bias_force=composite_force.T,
        Psid=Psid.T,
        Sd=cross_motion(own, S, 0).T,
        bias_Psidd=(cross_motion(bias_above, S, 0) + cross_motion(above, Psid, 0)).T,
        momentum=momentum.T,
        M=matrix + jnp.diag(jnp.asarray(model.armature, dtype)),
        h=bias - passive_forces(model, q, v),
    )


def rnea_derivatives_from_terms(
    model: Model, terms: DynamicsTerms, a: Float[Array, " nv"]
) -> tuple[Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """(dtau_dq, dtau_dv) of `rnea.inverse_dynamics` at the acceleration a: springs and damping included."""
    top = model.topology
    a = check_vector("a", a, top.nv)
    S, dtype = terms.kin.S.T, terms.kin.S.dtype
    n, nvt = top.n_nodes, top.nv_tree
    Psid, inertia, B = terms.Psid.T, terms.composite_inertia.T, 2 * terms.composite_coriolis.T

    relative, _, above = jnp.split((S * expand_v(model, a)) @ _motion_mask(top, dtype), (n, n + nvt), axis=1)
    force = inertia_times(terms.inertia.T, relative, 0) @ subtree_mask(top, dtype) + terms.composite_bias_force.T
    Psidd = cross_motion(above, S, 0) + terms.bias_Psidd.T
    rates = Psid + terms.Sd.T

    # Below the diagonal: rows S_i . 2 B_i^C and S_i . I_i^C of the descendants times the ancestors' motions.
    rows = jnp.concatenate([coriolis_transposed_times(B, S, 0), terms.momentum.T]).T
    below_q = rows @ jnp.concatenate([Psid[3:], Psidd])
    below_v = rows @ jnp.concatenate([S[3:], rates])
    # Above it: forces that a descendant's motion causes, felt by its ancestors.
    force_q = coriolis_times(B, Psid, 0) + inertia_times(inertia, Psidd, 0) + cross_force(S, force, 0)
    force_v = coriolis_times(B, S, 0) + inertia_times(inertia, rates, 0)

    dtau_dq = project_matrix(model, select_by_ancestry(top, below_q, S.T @ force_q))
    dtau_dv = project_matrix(model, select_by_ancestry(top, below_v, S.T @ force_v))
    scalar = top.scalar_q_of_dof >= 0
    stiffness = jnp.asarray(model.stiffness, dtype)
    stiffness = jnp.where(scalar, stiffness, jnp.zeros_like(stiffness))
    return dtau_dq + jnp.diag(stiffness), dtau_dv + jnp.diag(jnp.asarray(model.damping, dtype))


@in_full_precision
def rnea_derivatives(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], a: Float[Array, " nv"]
) -> tuple[Float[Array, "nv nv"], Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """(dtau_dq, dtau_dv, dtau_da = M) of `rnea.inverse_dynamics`, with armature, damping and springs."""
    terms = dynamics_terms(model, q, v)
    return *rnea_derivatives_from_terms(model, terms, a), terms.M


@in_full_precision
def forward_dynamics_derivatives(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], tau: Float[Array, " nv"]
) -> tuple[Float[Array, " nv"], Float[Array, "nv nv"], Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """(a, da_dq, da_dv, da_dtau) of `crba.forward_dynamics`, the last $M^-1$, the others $-M^-1 dtau$ at the solution."""
    tau = check_vector("tau", tau, model.nv)
    terms = dynamics_terms(model, q, v)
    inverse = inverse_mass_matrix(terms.M)
    a = inverse @ (tau - terms.h)
    dtau_dq, dtau_dv = rnea_derivatives_from_terms(model, terms, a)
    return a, -inverse @ dtau_dq, -inverse @ dtau_dv, inverse


def inverse_mass_matrix(matrix: Float[Array, "nv nv"]) -> Float[Array, "nv nv"]:
    """Inverse of a symmetric positive definite matrix through its Cholesky factor."""
    factor = cholesky(matrix)
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    half = triangular_solve(factor, identity)
    return half.T @ half


@in_full_precision
def inertial_regressor(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], a: Float[Array, " nv"]
) -> Float[Array, "nv n 10"]:
    """Y with $rnea(q, v, a) = sum_i Y_i theta_i$, the sum over the nodes i: inverse dynamics is linear in their parameters.

    $theta_i = (m, m c_x, m c_y, m c_z, J_xx, J_xy, J_yy, J_xz, J_yz, J_zz)$: mass, first moment and inertia of node i
    about the node's origin, node axes (Pinocchio's order).
    """
    top = model.topology
    v, a = check_vector("v", v, top.nv), check_vector("a", a, top.nv)
    kin = kinematics(model, q)
    dtype = kin.S.dtype
    mask = dof_mask(top, dtype)
    rate = kin.S * expand_v(model, v)[:, None]
    velocity = mask @ rate
    rates = cross_motion(velocity[top.dof_node], rate) + kin.S * expand_v(model, a)[:, None]
    acceleration = mask @ rates + lift(model, dtype)
    velocity, acceleration = _to_node(kin, velocity), _to_node(kin, acceleration)
    motion = jnp.swapaxes(_to_node(kin, kin.S[None], kin.S.shape[0]), 0, 1)  # (nvt, n, 6): S_j in node axes
    unit = jnp.eye(10, dtype=dtype)
    velocity, acceleration = velocity[:, None], acceleration[:, None]
    force = inertia_times(unit, acceleration) + cross_force(velocity, inertia_times(unit, velocity))
    full = jnp.einsum("jik,ipk,ij->jip", motion, force, mask)
    matrix = model.mimic_matrix()
    return full if matrix is None else jnp.einsum("jv,jip->vip", jnp.asarray(matrix, dtype), full)


# --- private ------------------------------------------------------------------------------------------------------


def _motion_mask(top: Topology, dtype):
    """(nvt, n + 2 nvt): sums DoF motions to those of all nodes, of the DoFs' nodes, and of their parents."""
    parents = np.asarray(top.parents, int)[top.dof_node]
    rows = np.concatenate([top.dof_mask[:-1], top.dof_mask[top.dof_node], top.dof_mask[parents]])
    return jnp.asarray(rows.T, dtype)


def _to_node(kin: Kinematics, motion, columns: int | None = None):
    """Motions at tree origins (n, 6), or (1, k, 6) for all nodes at once, expressed in node frames at node origins."""
    lever, rotation = kin.position - kin.origin, kin.rotation
    if columns is not None:
        lever, rotation = lever[:, None], rotation[:, None]
    turn = jnp.swapaxes(rotation, -1, -2)
    linear = motion[..., :3] + cross(motion[..., 3:], lever)
    return jnp.concatenate([rotate(turn, linear), rotate(turn, motion[..., 3:])], -1)
