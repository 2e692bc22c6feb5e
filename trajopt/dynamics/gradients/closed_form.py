r"""The full Jacobian of one step in closed form: d v+ / d (q, v, tau).

Same equations as `implicit` (which differentiates along one direction at a time by JVP of the residuals), written out:

    dv+ = Q X - M^-1 J^T Y(N),   Q = M^-1 - M^-1 J^T Y(J M^-1),   Y(R) = K^+ P rho R

    X_q = -dt dID/dq + d(J^T lambda)/dq,   X_v = M - dt dID/dv,   X_tau = dt I         at fixed v+ and lambda
    N_q = d(J v+ + b)/dq,                  N_v = db/dv,           N_tau = 0

so that beside the solve of the step itself no triangular system with many right-hand sides is solved. K is singular where
contacts are redundant; each P rho R that occurs is consistent with it. (P rho alone is not: with K^+ P rho formed first,
rounding over the regularisation would remain.) dID is the closed form of `derivatives`, with that of the gyroscopic correction
(`gyroscopic`) added; the contact terms are those of
`contact_geometry`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.branches import cond_in_batch
from trajopt.dynamics.collision.narrowphase import collide_with_derivatives
from trajopt.dynamics.contact.closures import rows_at
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.ncp import NCP, SLIDING, apply_blocks, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.rows import Rows, offset_slopes
from trajopt.dynamics.contact.solve import selection
from trajopt.dynamics.contact.solve.solve import NCPSolution, consistent_solution, solution_null_space
from trajopt.dynamics.contact.step import EquationOfMotion, SolvedStep, VelocityStep, solve_step
from trajopt.dynamics.gradients.contact_geometry import (
    ContactGeometry,
    contact_geometry,
    force_turning,
    velocity_turning,
)
from trajopt.dynamics.precision import Threshold
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.derivatives import (
    DynamicsTerms,
    dynamics_terms,
    inverse_mass_matrix,
    rnea_derivatives_from_terms,
)
from trajopt.dynamics.rigid_body.gyroscopic import correction_slopes

# A right-hand side of the law contradicts where more than this share of its largest entry is out of the range of K.
CONTRADICTS = Threshold(1e-6, 1e-2)
# Below this share of the largest column, and below this slope (1/s) of the constraint velocity, a column is rounding.
SMALLEST_COLUMN, SMALLEST_SLOPE = 1e-9, 1e-9


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepJacobian:
    """d v+ / d q (tangent), d v+ / d v, d v+ / d tau, each (nv, nv).

    contradicts: the directions of q and of v along which contacts contradict each other, so that no derivative exists in
    the modes of the step. impulse: d lambda / d (q, v, tau), (m, 3 nv), where it is asked for.
    """

    by_q: Float[Array, "nv nv"]
    by_v: Float[Array, "nv nv"]
    by_tau: Float[Array, "nv nv"]
    contradicts: Bool[Array, "2 nv"]
    impulse: Float[Array, "m n3"] | None = None


def needs_null_space(step: VelocityStep):
    """Whether the impulse is undetermined *and* v+ depends on it (redundant sliding contacts), so that the derivative of the
    selection enters the Jacobian."""
    return step.solution.degenerate & jnp.any(step.solution.modes.cone == SLIDING)


def step_jacobian(
    inputs: StepInputs,
    *,
    null_space: bool = True,
    relabel: Callable[[SolvedStep], NCPSolution] | None = None,
    impulse: bool = False,
) -> tuple[VelocityStep, StepJacobian]:
    """One step and its Jacobian at fixed contact modes (not differentiable further; use `implicit` for that).

    null_space=False leaves out the branch for states where `needs_null_space`, about half of the compile time; the result
    is not the Jacobian there. relabel: changes the modes in which the derivative is taken (`complementarity`). impulse: whether
    that of the impulse is asked for too; then the branch is needed wherever the impulse is undetermined.
    """
    model = inputs.model
    terms = dynamics_terms(model, inputs.q, inputs.v)
    candidates, slopes = collide_with_derivatives(model, terms.kin, inputs.law.pair_limit, inputs.travel)
    c, c_q, c_v = correction_slopes(model, terms.kin, terms.composite_inertia, inputs.v, inputs.dt)
    motion = EquationOfMotion(terms.kin, terms.M, inputs.tau - terms.h - c)
    solved = solve_step(inputs, motion=motion, candidates=candidates)
    solution = solved.solution if relabel is None else relabel(solved)
    step = VelocityStep(solved.velocity, solution.impulse, solved.rows, solution)
    M_inverse = inverse_mass_matrix(terms.M)
    id_q, id_v = rnea_derivatives_from_terms(model, terms, (solved.velocity - inputs.v) / inputs.dt)
    id_q, id_v = id_q + c_q, id_v + c_v
    if solution.impulse.shape[0] == 0:
        return step, _free_jacobian(inputs.dt, M_inverse, id_q, id_v, impulse)
    geometry = contact_geometry(model, terms.kin, solved.rows, slopes[solved.rows.selected])
    equations = _equations(inputs, terms, geometry, solved.ncp, step, M_inverse, (id_q, id_v))
    blocks, pushed = equations.blocks(), equations.impulse_slopes() if impulse else None
    if null_space and pushed is None:
        blocks = cond_in_batch(needs_null_space(step), equations.with_null_space, blocks)
    elif null_space and pushed is not None:
        nothing = jnp.zeros_like(pushed)
        part = cond_in_batch(solution.degenerate, lambda _: equations.null_space_part(), nothing)
        pushed = pushed + part
        blocks = equations.moved_by(jnp.where(needs_null_space(step), part, 0.0), blocks)
    by_q, by_v, by_tau = blocks
    return step, StepJacobian(by_q, by_v, by_tau, equations.contradicting(), pushed)


def _free_jacobian(dt, M_inverse, id_q, id_v, impulse: bool) -> StepJacobian:
    n, dtype = M_inverse.shape[0], M_inverse.dtype
    none, slopes = jnp.zeros((2, n), bool), jnp.zeros((0, 3 * n), dtype) if impulse else None
    by_q, by_v = -dt * (M_inverse @ id_q), jnp.eye(n, dtype=dtype) - dt * (M_inverse @ id_v)
    return StepJacobian(by_q, by_v, dt * M_inverse, none, slopes)


@dataclasses.dataclass(frozen=True)
class _Equations:
    """The linear equations of the module's docstring at a solved step, in the letters used there.

    MJ (nv, m) is M^-1 J^T; Y_push, Y_q, Y_v are Y of J M^-1, N_q and N_v.
    """

    inputs: StepInputs
    terms: DynamicsTerms
    geometry: ContactGeometry
    rows: Rows
    ncp: NCP
    solution: NCPSolution
    M_inverse: Float[Array, "nv nv"]
    MJ: Float[Array, "nv m"]
    X_q: Float[Array, "nv nv"]
    X_v_rest: Float[Array, "nv nv"]
    N_q: Float[Array, "m nv"]
    N_v: Float[Array, "m nv"]
    Y_push: Float[Array, "m nv"]
    Y_q: Float[Array, "m nv"]
    Y_v: Float[Array, "m nv"]

    def blocks(self) -> tuple[Float[Array, "nv nv"], ...]:
        """d v+ / d q, d v+ / d v, d v+ / d tau with any solution for the impulses. X_v_rest: X_v without M."""
        n, dtype = self.inputs.model.nv, self.M_inverse.dtype
        Q = self.M_inverse - self.MJ @ self.Y_push
        moved = Q @ jnp.concatenate([self.X_q, self.X_v_rest], 1)
        moved = moved - self.MJ @ jnp.concatenate([self.Y_q, self.Y_push @ self.terms.M + self.Y_v], 1)
        return moved[:, :n], jnp.eye(n, dtype=dtype) + moved[:, n:], self.inputs.dt * Q

    def contradicting(self) -> Bool[Array, "2 nv"]:
        """The directions of q and v whose N is not in the range of K: redundant rows cannot follow them in these modes."""
        ncp, solution, n = self.ncp, self.solution, self.inputs.model.nv
        P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
        right = apply_blocks(P, ncp.rho[:, None] * jnp.concatenate([self.N_q, self.N_v], 1))
        left = right - newton_matrix(ncp, P, ncp.G) @ jnp.concatenate([self.Y_q, self.Y_v], 1)
        size, held = jnp.max(jnp.abs(right), 0), solution.impulse != 0
        rounding = jnp.maximum(SMALLEST_COLUMN * jnp.max(size), SMALLEST_SLOPE * jnp.max(jnp.where(held, ncp.rho, 0.0)))
        contradicts = jnp.max(jnp.abs(left), 0) > jnp.maximum(CONTRADICTS.at(size.dtype) * size, rounding)
        return (contradicts & solution.degenerate).reshape(2, n)

    def with_null_space(self, blocks: tuple[Float[Array, "nv nv"], ...]) -> tuple[Float[Array, "nv nv"], ...]:
        """`blocks` with the derivative of the impulse that was selected."""
        return self.moved_by(self.null_space_part(), blocks)

    def moved_by(
        self, part: Float[Array, "m n3"], blocks: tuple[Float[Array, "nv nv"], ...]
    ) -> tuple[Float[Array, "nv nv"], ...]:
        """`blocks` where the derivative of the impulse has a `part` more."""
        return tuple(b + s for b, s in zip(blocks, jnp.split(self.MJ @ part, 3, 1), strict=True))

    def impulse_slopes(self) -> Float[Array, "m n3"]:
        """d lambda / d (q, v, tau), any solution of the linearised law."""
        return -(self.Y_push @ self._balance_slopes() + jnp.concatenate([self.Y_q, self.Y_v, jnp.zeros_like(self.Y_v)], 1))

    def null_space_part(self) -> Float[Array, "m n3"]:
        """What the derivative of the impulse that was selected has more than `impulse_slopes`."""
        free_slope = self.MJ.T @ self._balance_slopes() + jnp.concatenate([self.N_q, self.N_v, jnp.zeros_like(self.N_v)], 1)
        return _null_space_shift(self, free_slope, self.impulse_slopes())

    def _balance_slopes(self) -> Float[Array, "nv n3"]:
        """X_q, X_v and X_tau side by side."""
        eye = jnp.eye(self.inputs.model.nv, dtype=self.MJ.dtype)
        return jnp.concatenate([self.X_q, self.terms.M + self.X_v_rest, self.inputs.dt * eye], 1)


def _equations(
    inputs: StepInputs, terms: DynamicsTerms, geometry: ContactGeometry, ncp: NCP, step: VelocityStep, M_inverse, slopes
) -> _Equations:
    """slopes: of inverse dynamics at the solved acceleration, by q and v."""
    dt, n = inputs.dt, inputs.model.nv
    id_q, id_v = slopes
    MJ = M_inverse @ step.rows.J.T
    N_q, N_v = _row_derivatives(inputs, terms, geometry, step)
    Y = _law_solution(ncp, step.solution, jnp.concatenate([MJ.T, N_q, N_v], 1))
    X_q = _force_turning(inputs, geometry, step.rows, step.impulse) - dt * id_q
    return _Equations(
        inputs, terms, geometry, step.rows, ncp, step.solution, M_inverse, MJ, X_q, -dt * id_v, N_q, N_v,
        *jnp.split(Y, (n, 2 * n), 1),
    )  # fmt: skip


def _law_solution(ncp: NCP, solution: NCPSolution, slopes) -> Float[Array, "m k"]:
    """-dlambda for the columns of `slopes` (m, k), derivatives of nu at fixed impulse."""
    P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    return consistent_solution(ncp, solution, apply_blocks(P, ncp.rho[:, None] * slopes))


def _null_space_shift(equations: _Equations, free_slope, dlam) -> Float[Array, "m k"]:
    """Null-space part of d lambda / d (q, v, tau), (m, 3 nv); see `selection`."""
    model, terms, MJ = equations.inputs.model, equations.terms, equations.MJ
    ncp, solution, n = equations.ncp, equations.solution, model.nv
    space = solution_null_space(ncp, solution)
    z, B = MJ @ space.w, MJ @ space.A
    turning = functools.partial(_force_turning, equations.inputs, equations.geometry, equations.rows)
    by_A = jax.vmap(turning, 1)(space.A)  # (m, nv, nv)
    by_w = turning(space.w)
    # At rest and without gravity or springs the derivative of inverse dynamics is that of M(q) z.
    moving = ("Psid", "Sd", "bias_Psidd", "composite_coriolis", "composite_bias_force")
    nothing: dict[str, Any] = {name: jnp.zeros_like(getattr(terms, name)) for name in moving}
    still = dataclasses.replace(terms, **nothing)
    weightless = model.replace(stiffness=jnp.zeros_like(model.stiffness))
    dMz, _ = rnea_derivatives_from_terms(weightless, still, z)
    by_q = jnp.sum(by_A * z[None, :, None], 1) + B.T @ (by_w - dMz)
    through_G = jnp.concatenate([by_q, jnp.zeros((by_q.shape[0], 2 * n), by_q.dtype)], 1)
    no_mu = jnp.zeros_like(ncp.mu)

    def column(free, through, dlam):
        modes = solution.selecting_modes
        return selection.null_space_tangent(ncp, space, solution.impulse, modes, free, no_mu, through, dlam)

    return jax.vmap(column, 1, 1)(free_slope, through_G, dlam)


def _row_derivatives(inputs: StepInputs, terms: DynamicsTerms, geometry: ContactGeometry, step: VelocityStep):
    """(d nu/dq, d nu/dv) at fixed v+, in user DoFs. Rows of limits and dry friction have constant directions."""
    rows, contacts = step.rows, 3 * step.rows.nc
    by_distance, by_velocity = offset_slopes(inputs, rows)
    N_q = by_distance[contacts:, None] * rows.J[contacts:]
    if contacts:
        normal = slice(2, contacts, 3)
        turning = velocity_turning(
            inputs.model, terms, geometry, inputs.v, step.velocity, by_distance[normal], by_velocity[normal]
        )
        N_q = jnp.concatenate([turning, N_q])
    held = rows.independent.shape[0]
    if held:
        turning = rows.independent @ _along_tangent(inputs, lambda q: rows_at(inputs.model, q) @ step.velocity)
        N_q = N_q.at[N_q.shape[0] - held :].add(turning)
    return N_q, by_velocity[:, None] * rows.J


def _force_turning(
    inputs: StepInputs, geometry: ContactGeometry, rows: Rows, impulse: Float[Array, " m"]
) -> Float[Array, "nv nv"]:
    """d(J^T impulse)/dq at fixed impulse."""
    turning, held = force_turning(inputs.model, geometry, impulse), rows.independent.shape[0]
    if not held:
        return turning
    acting = rows.independent @ impulse[impulse.shape[0] - held :]
    return turning + _along_tangent(inputs, lambda q: acting @ rows_at(inputs.model, q))


def _along_tangent(inputs: StepInputs, function: Callable[[Float[Array, " nq"]], Float[Array, " k"]]):
    """d function(q) / dq in tangent coordinates, (k, nv)."""
    model, q = inputs.model, inputs.q
    return jax.jacfwd(lambda dq: function(integrate(model, q, dq)))(jnp.zeros(model.nv, q.dtype))
