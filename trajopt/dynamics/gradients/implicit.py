r"""The exact derivative of a step at velocity level, in forward and reverse mode: gradient mode "implicit".

The step is an implicit function. With a = (v+ - v) / dt, at the solution

    E(theta, v+, lambda) = dt (tau - ID(q, v, a) - c(q, v, dt)) + J(q)^T lambda = 0      balance of impulses
    F(lambda, nu) = 0,   nu(theta, v+) = J(q) v+ + b(q, v)                               contact law in its active modes

where ID is the inverse dynamics with armature, damping and springs, c the gyroscopic correction, and theta stands for q, v,
tau, dt and every parameter of the model.
Differentiating at fixed modes, with M = -dE/dv+, G = J M^-1 J^T, K = I - P + P rho G (Simple eq. 39 and
app. B and D, without ever forming dG; its last dt goes away because lambda is an impulse here),

    K dlambda = -P rho (J M^-1 dE + dnu) + dF_mu,      dv+ = M^-1 (dE + J^T dlambda),

dE and dnu being the derivatives at fixed v+ and lambda: they contain the motion of contact points, normals and gaps. The
rule is linear in the tangents, so JAX transposes it for reverse mode: one linear solve and one transposed sweep.

Where the contact problem has many solutions the derivative is that of the selected one (`selection`).
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact import derivative
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.contact.relaxed import relaxed_tangents
from trajopt.dynamics.contact.rows import Rows, assemble, row_count
from trajopt.dynamics.contact.solve.solve import zero_tangent
from trajopt.dynamics.contact.step import (
    DerivativeRule,
    SolvedStep,
    VelocityStep,
    compliance,
    half_products,
    solve_step,
    step,
)
from trajopt.dynamics.gradients.first_order import first_order_only
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.linear_algebra import cholesky
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.crba import mass_matrix_at, solve_mass_matrix
from trajopt.dynamics.rigid_body.gyroscopic import correction_at
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics
from trajopt.dynamics.rigid_body.rnea import inverse_dynamics


@dataclasses.dataclass(frozen=True)
class Implicit(GradientMode, DerivativeRule):
    """The derivative of the law itself; under laws whose step is a fixed number of sweeps, through these sweeps."""

    name: ClassVar[str] = "implicit"
    has_closed_form: ClassVar[bool] = True

    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        return None if law.solver_options.sweeps is not None else self

    def differentiated_law(self, law: ContactLaw) -> ContactLaw | None:
        return law if type(self) is Implicit else None  # a mode derived from it may have another derivative

    def tangents(self, inputs: StepInputs, dinputs: StepInputs) -> tuple[Any, Any]:
        if row_count(inputs.law, inputs.model):
            inputs = first_order_only(self.name, inputs)
        solved = solve_step(inputs)
        return (inputs.q, solved.result), (dinputs.q, implicit_tangents(solved, inputs, dinputs))


IMPLICIT = Implicit()


def velocity_step(inputs: StepInputs) -> VelocityStep:
    """The step, differentiable in model, q, v, tau, dt, kappa and rho."""
    return step(inputs, IMPLICIT.rule(inputs.law))[1]


@jax.custom_jvp
def outputs_in_modes(offset_weight: Float[Array, ""], solved: SolvedStep, inputs: StepInputs) -> VelocityStep:
    """The result of `solved`, with its derivative by `inputs` at the modes that `solved` names, which need not be its own.

    `solved` carries no derivative. The derivative of the offset b is multiplied by `offset_weight`.
    """
    return solved.result


@outputs_in_modes.defjvp
@in_full_precision
def _outputs_in_modes_jvp(primals, tangents):
    offset_weight, solved, inputs = primals
    return solved.result, implicit_tangents(solved, inputs, tangents[2], offset_weight)


def implicit_tangents(
    solved: SolvedStep, inputs: StepInputs, dinputs: StepInputs, offset_weight: Float[Array, ""] | None = None
) -> VelocityStep:
    """Tangents of `solved.result` from those of the inputs: the rule in the module's docstring."""
    ncp, solution, J = solved.ncp, solved.solution, solved.rows.J
    of_inputs = functools.partial(equations, solved.velocity, solved.impulse, solved.rows.push_out_dropped)
    _, (dE, dnu, drows) = jax.jvp(of_inputs, (inputs,), (dinputs,))
    if offset_weight is not None:
        dnu = dnu - (1.0 - offset_weight) * drows.offset
    if inputs.rho is not None and dinputs.rho is not None:
        half, at = half_products(solved.factor, J), (solved.impulse, solved.velocity)
        dv, dlam = relaxed_tangents(solved.rows, solved.factor, half, *at, inputs.rho, dinputs.rho, drows, dE, dnu)
        return VelocityStep(dv, dlam, drows, zero_tangent(solution))
    push = solve_mass_matrix(solved.factor, dE)
    if solved.impulse.shape[0] == 0:
        return VelocityStep(push, jnp.zeros_like(solved.impulse), drows, zero_tangent(solution))

    def through_G(space, tangents):
        """A^T dG w without dG; see `selection`."""
        drows, dq, dmodel = tangents
        w, A, factor = space.w, space.A, solved.factor
        z, B = solve_mass_matrix(factor, J.T @ w), jax.vmap(lambda a: solve_mass_matrix(factor, J.T @ a), 1, 1)(A)
        still = jnp.zeros_like(inputs.v)

        def inertial(model, q):
            weightless = model.replace(gravity=jnp.zeros_like(model.gravity), stiffness=jnp.zeros_like(model.stiffness))
            return inverse_dynamics(weightless, q, still, z)

        _, dMz = jax.jvp(inertial, (inputs.model, inputs.q), (dmodel, dq))
        return A.T @ (drows.J @ z) + B.T @ (drows.J.T @ w - dMz)

    linear = (drows, dinputs.q, dinputs.model)
    dlam = derivative.impulse_tangent(ncp, solution, J @ push + dnu, drows.mu, drows.bound, through_G, linear)
    dv_plus = push + solve_mass_matrix(solved.factor, J.T @ dlam)
    return VelocityStep(dv_plus, dlam, drows, zero_tangent(solution))


def equations(v_plus: Float[Array, " nv"], lam: Float[Array, " m"], dropped: Bool[Array, ""], inputs: StepInputs):
    """(balance of impulses E, nu, rows) of a step at fixed v+ and lambda; dropped: its push-out was."""
    model, q, v, dt = inputs.model, inputs.q, inputs.v, inputs.dt
    kin = kinematics(model, q)
    rows = assemble(inputs, kin, collide(model, kin, inputs.law.pair_limit, inputs.travel)).dropping_push_out(dropped)
    needed = inverse_dynamics(model, q, v, (v_plus - v) / dt) + correction_at(model, kin, v, dt)
    forces = dt * (inputs.tau - needed)
    nu = rows.J @ v_plus + rows.offset
    if rows.softening is not None:
        nu = nu + _given_way(model, kin, rows, lam)
    return forces + rows.J.T @ lam, nu, rows


def _given_way(model: Model, kin: Kinematics, rows: Rows, lam: Float[Array, " m"]) -> Float[Array, " m"]:
    """Velocity by which the compliance of smoothed contacts gives way to the impulses."""
    nc = rows.nc
    half = half_products(cholesky(mass_matrix_at(model, kin)), rows.J[: 3 * nc])
    yielded = jnp.sum(compliance(rows, half) * lam[: 3 * nc].reshape(nc, 1, 3), -1).reshape(3 * nc)
    return jnp.concatenate([yielded, jnp.zeros_like(lam[3 * nc :])])
