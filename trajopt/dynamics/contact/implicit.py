r"""One step at velocity level, and its exact derivative in forward and reverse mode.

The step is an implicit function. With a = (v+ - v) / dt, at the solution

    E(theta, v+, lambda) = dt (tau - ID(q, v, a)) + J(q)^T lambda = 0          balance of impulses
    F(lambda, nu) = 0,   nu(theta, v+) = J(q) v+ + b(q, v)                     contact law in its active modes

where ID is the inverse dynamics with armature, damping and springs and theta stands for q, v, tau, dt and every parameter
of the model. Differentiating at fixed modes, with M = -dE/dv+, G = J M^-1 J^T, K = I - P + P rho G (Simple eq. 39 and
app. B and D, without ever forming dG; its last dt goes away because lambda is an impulse here),

    K dlambda = -P rho (J M^-1 dE + dnu) + dF_mu,      dv+ = M^-1 (dE + J^T dlambda),

dE and dnu being the derivatives at fixed v+ and lambda: they contain the motion of contact points, normals and gaps. The
rule is linear in the tangents, so JAX transposes it for reverse mode: one linear solve and one transposed sweep.

Where the contact problem has many solutions the derivative is that of the selected one (`selection`).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.collision.pairs import collide
from trajopt.dynamics.contact import selection
from trajopt.dynamics.contact.law import ContactLaw, SmoothedContact
from trajopt.dynamics.contact.ncp import (
    NCP,
    make_ncp,
    project_in_modes,
)
from trajopt.dynamics.contact.rarely import anywhere
from trajopt.dynamics.contact.rows import Rows, assemble
from trajopt.dynamics.contact.smoothed import compliance, softened, softness, within_reach
from trajopt.dynamics.contact.solve import NCPSolution, consistent_solution, solution_null_space, solve, zero_tangent
from trajopt.dynamics.crba import cholesky, project_matrix, solve_mass_matrix, tree_mass_matrix
from trajopt.dynamics.kinematics import expand_v, kinematics
from trajopt.dynamics.model import Model
from trajopt.dynamics.rnea import inverse_dynamics, passive_forces, project_forces, tree_forces


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VelocityStep:
    """Result of one step: velocity v+ (nv,), impulses (m,), the rows of the problem and how its solve went."""

    velocity: Float[Array, " nv"]
    impulse: Float[Array, " m"]
    rows: Rows
    solution: NCPSolution


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solved:
    """Everything the derivative rule needs of the primal solve."""

    velocity: Array
    impulse: Array
    factor: Array
    ncp: NCP
    rows: Rows
    solution: NCPSolution

    @property
    def outputs(self):
        return self.velocity, self.impulse, self.rows, self.solution


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FreeMotion:
    """The velocity that the step would reach without impulses, the rows, L with M = L L^T, and half = L^-1 J^T."""

    velocity: Float[Array, " nv"]
    rows: Rows
    factor: Float[Array, "nv nv"]
    half: Float[Array, "nv m"]

    def pushed(self, impulse: Float[Array, " m"]) -> Float[Array, " nv"]:
        """v+ under the impulses."""
        push = jax.lax.linalg.triangular_solve(
            self.factor, self.half @ impulse[:, None], left_side=True, lower=True, transpose_a=True
        )
        return self.velocity + push[:, 0]


def free_motion(law: ContactLaw, model: Model, q, v, tau, dt) -> FreeMotion:
    kin = kinematics(model, q)
    matrix = project_matrix(model, tree_mass_matrix(model, kin))
    factor = cholesky(matrix + jnp.diag(jnp.asarray(model.armature, matrix.dtype)))
    bias = project_forces(model, tree_forces(model, kin, expand_v(model, v), None))
    free = v + dt * solve_mass_matrix(factor, tau + passive_forces(model, q, v) - bias)
    rows = assemble(model, kin, collide(model, kin, law.pair_limit), q, v, dt, law)
    half = jax.lax.linalg.triangular_solve(factor, rows.J.T, left_side=True, lower=True)
    return FreeMotion(free, rows, factor, half)


def contact_problem(law: ContactLaw, free: FreeMotion, kappa) -> NCP:
    """The problem for the impulses; kappa: sharpness of a `SmoothedContact`, None for its own."""
    rows, G = free.rows, free.half.T @ free.half
    hard = make_ncp(G, rows.J @ free.velocity + rows.offset, rows.mu, rows.exists, rows.bound, law.cone)
    if not isinstance(law, SmoothedContact):
        return hard
    kappa = law.kappa if kappa is None else kappa
    nc = rows.mu.shape[0]
    exists = rows.exists.at[:nc].set(within_reach(rows, kappa))
    # The scale of each row is its own: contacts that are far, and soft, must not make the others look immovable.
    rho = hard.rho.at[: 3 * nc].divide(jnp.repeat(1.0 + softness(rows, kappa), 3))
    return dataclasses.replace(hard, G=softened(G, compliance(rows, free.half, kappa)), exists=exists, rho=rho)


def solve_primal(law: ContactLaw, model: Model, q, v, tau, dt, init, kappa=None) -> Solved:
    free = free_motion(law, model, q, v, tau, dt)
    ncp = contact_problem(law, free, kappa)
    solution = solve(
        ncp, init, tol=law.tolerance, max_iterations=law.max_iterations, solver=getattr(law, "solver", "newton")
    )
    return Solved(free.pushed(solution.impulse), solution.impulse, free.factor, ncp, free.rows, solution)


def velocity_step(law: ContactLaw, model: Model, q, v, tau, dt, init=None, kappa=None) -> VelocityStep:
    """Velocity after one step of dt under the generalised force tau, differentiable in model, q, v, tau, dt and kappa.

    `init` is a warm start for the impulses; it has no influence on the result and carries no derivative. kappa: sharpness of
    a `SmoothedContact`, None for the law's own.
    """
    if init is None:
        init = jnp.zeros(row_count(law, model), q.dtype)
    return VelocityStep(*_step(law, model, q, v, tau, dt, kappa, jax.lax.stop_gradient(init)))


def row_count(law: ContactLaw, model: Model) -> int:
    """Number m of constraint rows of one step."""
    dry = len(model.topology.friction_dofs) if law.joint_friction else 0
    return 3 * law.contact_rows(model) + law.limit_rows(model) + dry


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _step(law: ContactLaw, model: Model, q, v, tau, dt, kappa, init):
    return solve_primal(law, model, q, v, tau, dt, init, kappa).outputs


@_step.defjvp
def _step_jvp(law: ContactLaw, primals, tangents):
    model, q, v, tau, dt, kappa, init = primals
    solved = solve_primal(law, model, q, v, tau, dt, init, kappa)
    return solved.outputs, implicit_tangents(law, None, solved, primals[:-1], tangents[:-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach(law: ContactLaw, weight, solved: Solved, model: Model, q, v, tau, dt):
    """(v+, impulse, rows, solution) of `solved`, with their derivative at the modes that `solved` names.

    `solved` carries no derivative. The derivative of the offset b is multiplied by `weight`.
    """
    return solved.outputs


@attach.defjvp
def _attach_jvp(law: ContactLaw, primals, tangents):
    weight, solved, *theta = primals
    return solved.outputs, implicit_tangents(law, weight, solved, (*theta, None), (*tangents[2:], None))


def implicit_tangents(law: ContactLaw, offset_weight, solved: Solved, primals, tangents):
    """Tangents of `Solved.outputs` from those of (model, q, v, tau, dt, kappa): the rule in the module's docstring."""
    model, q, v = primals[:3]
    dmodel, dq = tangents[:2]
    ncp, solution = solved.ncp, solved.solution
    v_plus, lam, J = solved.velocity, solved.impulse, solved.rows.J

    def balance(model, q, v, tau, dt, kappa):
        kin = kinematics(model, q)
        rows = assemble(model, kin, collide(model, kin, law.pair_limit), q, v, dt, law)
        forces = dt * (tau - inverse_dynamics(model, q, v, (v_plus - v) / dt))
        nu = rows.J @ v_plus + rows.offset
        if isinstance(law, SmoothedContact):
            nu = nu + _given_way(law, model, kin, rows, kappa, lam)
        return forces + rows.J.T @ lam, nu, rows

    _, (dE, dnu, drows) = jax.jvp(balance, primals, tangents)
    if offset_weight is not None:
        dnu = dnu - (1.0 - offset_weight) * drows.offset
    push = solve_mass_matrix(solved.factor, dE)
    if lam.shape[0] == 0:
        return push, jnp.zeros_like(lam), drows, zero_tangent(solution)

    free = J @ push + dnu
    dlam = law_tangent(ncp, solution, free, drows.mu, drows.bound)
    space = jax.lax.stop_gradient(solution_null_space(ncp, solution))

    def null_part(arguments):
        free, drows, dq, dmodel, dlam = arguments
        w, N, factor = space.w, space.N, solved.factor
        z, Z = solve_mass_matrix(factor, J.T @ w), jax.vmap(lambda n: solve_mass_matrix(factor, J.T @ n), 1, 1)(N)
        still = jnp.zeros_like(v)

        def inertial(model, q):
            weightless = model.replace(gravity=jnp.zeros_like(model.gravity), stiffness=jnp.zeros_like(model.stiffness))
            return inverse_dynamics(weightless, q, still, z)

        _, dMz = jax.jvp(inertial, (model, q), (dmodel, dq))
        through_G = N.T @ (drows.J @ z) + Z.T @ (drows.J.T @ w - dMz)
        return selection.null_space_tangent(
            ncp, space, lam, solution.modes, free, drows.mu, drows.bound, through_G, dlam
        )

    linear = (free, drows, dq, dmodel, dlam)
    # Where the impulse is unique the null space is empty and its part is zero, whichever branch is taken.
    needed = anywhere(jax.lax.stop_gradient(solution.degenerate))
    dlam = dlam + jax.lax.cond(needed, null_part, lambda _: jnp.zeros_like(lam), linear)
    dv_plus = push + solve_mass_matrix(solved.factor, J.T @ dlam)
    return dv_plus, dlam, drows, zero_tangent(solution)


def _given_way(law: SmoothedContact, model: Model, kin, rows: Rows, kappa, lam) -> Float[Array, " m"]:
    """Velocity by which the compliance of smoothed contacts gives way to the impulses."""
    matrix = project_matrix(model, tree_mass_matrix(model, kin))
    factor = cholesky(matrix + jnp.diag(jnp.asarray(model.armature, matrix.dtype)))
    nc = rows.mu.shape[0]
    half = jax.lax.linalg.triangular_solve(factor, rows.J[: 3 * nc].T, left_side=True, lower=True)
    blocks = compliance(rows, half, law.kappa if kappa is None else kappa)
    yielded = jnp.sum(blocks * lam[: 3 * nc].reshape(nc, 1, 3), -1).reshape(3 * nc)
    return jnp.concatenate([yielded, jnp.zeros_like(lam[3 * nc :])])


def law_tangent(ncp: NCP, solution: NCPSolution, free, dmu, dbound):
    """dlambda of the law at fixed modes, from the tangent `free` of nu at fixed impulse, of mu and of the friction bounds."""
    lam, nu, modes = solution.impulse, solution.velocity, solution.modes
    y = lam - ncp.rho * nu

    def branch(y, mu, bound):
        return project_in_modes(dataclasses.replace(ncp, mu=mu, bound=bound), y, modes)

    _, right = jax.jvp(branch, (y, ncp.mu, ncp.bound), (-ncp.rho * free, dmu, dbound))
    return consistent_solution(ncp, solution, right)
