"""Mass matrix by composite rigid bodies (RBDA section 6.2) and forward dynamics through its Cholesky factor.

With I_i^C the inertia of the subtree of DoF i's node, M_ij = S_j . I_i^C S_i for every DoF j that is an ancestor of i or
belongs to the same joint, and M_ij = M_ji otherwise.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.linear_algebra import cho_solve_vector, cholesky
from trajopt.dynamics.model import Model, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.kinematics import (
    Kinematics,
    check_vector,
    kinematics,
    mimic_matrix,
    node_inertias,
    subtree_mask,
)
from trajopt.dynamics.rigid_body.rnea import bias_at, passive_forces
from trajopt.dynamics.rigid_body.spatial import inertia_times


@in_full_precision
def crba(model: Model, q: Float[Array, " nq"]) -> Float[Array, "nv nv"]:
    """Mass matrix of the rigid bodies alone, without armature; symmetric."""
    return project_matrix(model, tree_mass_matrix(model, kinematics(model, q)))


@in_full_precision
def mass_matrix(model: Model, q: Float[Array, " nq"]) -> Float[Array, "nv nv"]:
    """Mass matrix with armature: `crba` + diag(armature). Equals MuJoCo's `mj_fullM`."""
    return mass_matrix_at(model, kinematics(model, q))


def mass_matrix_at(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """`mass_matrix` at kinematics already computed."""
    matrix = project_matrix(model, tree_mass_matrix(model, kin))
    return matrix + jnp.diag(jnp.asarray(model.armature, matrix.dtype))


def tree_mass_matrix(model: Model, kin: Kinematics) -> Float[Array, "nvt nvt"]:
    """Mass matrix in tree DoFs at kinematics already computed."""
    top, S = model.topology, kin.S.T
    momentum = inertia_times(node_inertias(model, kin).T @ subtree_mask(top, S.dtype), S, 0)
    product = momentum.T @ S
    return select_by_ancestry(top, product, product.T)


def select_by_ancestry(
    top: Topology, below: Float[Array, "nvt nvt"], above: Float[Array, "nvt nvt"]
) -> Float[Array, "nvt nvt"]:
    """Entry (i, j) of `below` where j is an ancestor of i or in its joint, of `above` where i is strictly above j."""
    lower, upper = top.ancestor_mask, top.ancestor_mask.T
    return jnp.where(lower, below, jnp.where(upper, above, jnp.zeros_like(below)))


def project_matrix(model: Model, matrix: Float[Array, "nvt nvt"]) -> Float[Array, "nv nv"]:
    """T^T matrix T."""
    mimic = mimic_matrix(model, matrix.dtype)
    return matrix if mimic is None else mimic.T @ matrix @ mimic


@in_full_precision
def forward_dynamics(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], tau: Float[Array, " nv"]
) -> Float[Array, " nv"]:
    """Acceleration of the generalised forces tau, with armature, damping and springs: $M a = tau + passive - bias$.

    The Cholesky factorisation of the mass matrix; the fastest way for a single model of robot size. The result is NaN
    where the mass matrix is not positive definite.
    """
    v, tau = check_vector("v", v, model.nv), check_vector("tau", tau, model.nv)
    kin = kinematics(model, q)
    force = tau + passive_forces(model, q, v) - bias_at(model, kin, v)
    return solve_mass_matrix(cholesky(mass_matrix_at(model, kin)), force)


def solve_mass_matrix(factor: Float[Array, "nv nv"], force: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M^-1 force from the lower Cholesky factor of M."""
    return cho_solve_vector(factor, force)
