r"""The full Jacobian of one step in closed form: d v+ / d (q, v, tau).

Same equations as `implicit` (which differentiates along one direction at a time by JVP of the residuals), written out:

    dv+ = Q X - M^-1 J^T Y(N),   Q = M^-1 - M^-1 J^T Y(J M^-1),   Y(R) = K^+ P rho R

    X_q = -dt dID/dq + d(J^T lambda)/dq,   X_v = M - dt dID/dv,   X_tau = dt I         at fixed v+ and lambda
    N_q = d(J v+ + b)/dq,                  N_v = db/dv,           N_tau = 0

so that no triangular system with many right-hand sides is solved. K is singular where contacts are redundant; each P rho R
that occurs is consistent with it. (P rho alone is not: with K^+ P rho formed first, rounding over the regularisation would
remain.) dID is the closed form of `derivatives`; the contact terms are those of `geometry`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.collision.pairs import collide_with_derivatives
from trajopt.dynamics.contact import selection
from trajopt.dynamics.contact.geometry import ContactGeometry, contact_geometry, force_turning, velocity_turning
from trajopt.dynamics.contact.implicit import Solved, VelocityStep, row_count
from trajopt.dynamics.contact.law import ContactLaw
from trajopt.dynamics.contact.ncp import NCP, SLIDING, apply_blocks, make_ncp, projection_jacobian
from trajopt.dynamics.contact.rows import Rows, assemble
from trajopt.dynamics.contact.solve import NCPSolution, consistent_solution, solution_null_space, solve
from trajopt.dynamics.crba import cholesky
from trajopt.dynamics.derivatives import DynamicsTerms, dynamics_terms, inverse_mass_matrix, rnea_derivatives_from_terms
from trajopt.dynamics.model import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepJacobian:
    """d v+ / d q (tangent), d v+ / d v, d v+ / d tau, each (nv, nv)."""

    by_q: Float[Array, "nv nv"]
    by_v: Float[Array, "nv nv"]
    by_tau: Float[Array, "nv nv"]


def needs_null_space(step: VelocityStep):
    """Whether the impulse is undetermined *and* v+ depends on it (redundant sliding contacts), so that the derivative of the
    selection enters the Jacobian."""
    return step.solution.degenerate & jnp.any(step.solution.modes.cone == SLIDING)


def step_jacobian(
    law: ContactLaw,
    model: Model,
    q,
    v,
    tau,
    dt,
    init,
    *,
    null_space: bool = True,
    relabel: Callable[[Solved], NCPSolution] | None = None,
) -> tuple[VelocityStep, StepJacobian]:
    """One step and its Jacobian at fixed contact modes (not differentiable further; use `implicit` for that).

    null_space=False leaves out the branch for states where `needs_null_space`, about half of the compile time; the result
    is not the Jacobian there. relabel: changes the modes in which the derivative is taken (`complementarity`).
    """
    if init is None:
        init = jnp.zeros(row_count(law, model), q.dtype)
    terms = dynamics_terms(model, q, v)
    inverse = inverse_mass_matrix(terms.M)
    free = v + dt * (inverse @ (tau - terms.h))
    candidates, slopes = collide_with_derivatives(model, terms.kin, law.pair_limit)
    rows = assemble(model, terms.kin, candidates, q, v, dt, law)
    MJ = inverse @ rows.J.T
    ncp = make_ncp(rows.J @ MJ, rows.J @ free + rows.offset, rows.mu, rows.exists, rows.bound, law.cone)
    solution = solve(
        ncp, init, tol=law.tolerance, max_iterations=law.max_iterations, solver=getattr(law, "solver", "newton")
    )
    v_plus = free + MJ @ solution.impulse
    if relabel is not None:
        solution = relabel(Solved(v_plus, solution.impulse, cholesky(terms.M), ncp, rows, solution))
    step = VelocityStep(v_plus, solution.impulse, rows, solution)

    id_q, id_v = rnea_derivatives_from_terms(model, terms, (v_plus - v) / dt)
    eye = jnp.eye(model.nv, dtype=q.dtype)
    if solution.impulse.shape[0] == 0:
        return step, StepJacobian(-dt * (inverse @ id_q), eye - dt * (inverse @ id_v), dt * inverse)

    geometry = contact_geometry(model, terms.kin, rows, slopes[rows.selected])
    turning = force_turning(model, geometry, solution.impulse)
    N_q, N_v = _row_derivatives(law, model, terms, rows, geometry, v, v_plus, dt)
    n = model.nv
    Y_push, Y_q, Y_v = jnp.split(_law_solution(ncp, solution, jnp.concatenate([MJ.T, N_q, N_v], 1)), (n, 2 * n), 1)
    Q = inverse - MJ @ Y_push
    X_q = turning - dt * id_q
    moved = Q @ jnp.concatenate([X_q, -dt * id_v], 1) - MJ @ jnp.concatenate([Y_q, Y_push @ terms.M + Y_v], 1)
    by_q, by_v, by_tau = moved[:, :n], eye + moved[:, n:], dt * Q

    def with_null_space(blocks):
        X = jnp.concatenate([X_q, terms.M - dt * id_v, dt * eye], 1)
        still = jnp.zeros_like(N_v)
        free_slope = MJ.T @ X + jnp.concatenate([N_q, N_v, still], 1)
        dlam = -(Y_push @ X + jnp.concatenate([Y_q, Y_v, still], 1))
        shift = MJ @ _null_space_shift(model, terms, geometry, ncp, solution, MJ, free_slope, dlam)
        return tuple(b + s for b, s in zip(blocks, jnp.split(shift, 3, 1), strict=True))

    blocks = (by_q, by_v, by_tau)
    if null_space:
        blocks = jax.lax.cond(needs_null_space(step), with_null_space, lambda b: b, blocks)
    return step, StepJacobian(*blocks)


def _law_solution(ncp: NCP, solution: NCPSolution, slopes) -> Float[Array, "m k"]:
    """-dlambda for the columns of `slopes` (m, k), derivatives of nu at fixed impulse."""
    P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    return consistent_solution(ncp, solution, apply_blocks(P, ncp.rho[:, None] * slopes))


def _null_space_shift(model: Model, terms, geometry, ncp: NCP, solution: NCPSolution, MJ, free_slope, dlam):
    """Null-space part of d lambda / d (q, v, tau), (m, 3 nv); see `selection`."""
    n = model.nv
    space = solution_null_space(ncp, solution)
    z, Z = MJ @ space.w, MJ @ space.N
    by_N = jax.vmap(lambda x: force_turning(model, geometry, x), 1)(space.N)  # (m, nv, nv)
    by_w = force_turning(model, geometry, space.w)
    # At rest and without gravity or springs the derivative of inverse dynamics is that of M(q) z.
    moving = ("Psid", "Sd", "bias_Psidd", "composite_coriolis", "composite_bias_force")
    still = dataclasses.replace(terms, **{name: jnp.zeros_like(getattr(terms, name)) for name in moving})
    weightless = model.replace(stiffness=jnp.zeros_like(model.stiffness))
    dMz, _ = rnea_derivatives_from_terms(weightless, still, z)
    by_q = jnp.sum(by_N * z[None, :, None], 1) + Z.T @ (by_w - dMz)
    through_G = jnp.concatenate([by_q, jnp.zeros((by_q.shape[0], 2 * n), by_q.dtype)], 1)
    no_mu, no_bound = jnp.zeros_like(ncp.mu), jnp.zeros_like(ncp.bound)

    def column(free, through, dlam):
        return selection.null_space_tangent(
            ncp, space, solution.impulse, solution.modes, free, no_mu, no_bound, through, dlam
        )

    return jax.vmap(column, 1, 1)(free_slope, through_G, dlam)


def _row_derivatives(law, model: Model, terms: DynamicsTerms, rows: Rows, geometry: ContactGeometry, v, v_plus, dt):
    """(d nu/dq, d nu/dv) at fixed v+, in user DoFs."""
    nc = rows.mu.shape[0]
    nl = rows.limit_dof.shape[0]
    dtype = v.dtype
    open_ = rows.distance > 0
    by_distance = jnp.where(rows.impact, 0.0, jnp.where(open_, 1.0, law.erp) / dt).astype(dtype)
    restitution = jnp.concatenate([rows.restitution, jnp.zeros(nl, dtype)])
    by_velocity = jnp.where(rows.impact, restitution, jnp.where(open_, 0.0, law.damping)).astype(dtype)

    eye = jnp.eye(model.nv, dtype=dtype)
    limits = rows.limit_sign[:, None] * eye[rows.limit_dof]
    contact_q = jnp.zeros((0, model.nv), dtype)
    if nc:
        contact_q = velocity_turning(model, terms, geometry, v, v_plus, by_distance[:nc], by_velocity[:nc])
    dry = rows.J.shape[0] - 3 * nc - nl
    N_q = jnp.concatenate([contact_q, by_distance[nc:, None] * limits, jnp.zeros((dry, model.nv), dtype)])
    zero = jnp.zeros(nc, dtype)
    weights = jnp.stack([zero, zero, by_velocity[:nc]], -1).reshape(-1)
    weights = jnp.concatenate([weights, by_velocity[nc:], jnp.zeros(dry, dtype)])
    return N_q, weights[:, None] * rows.J
