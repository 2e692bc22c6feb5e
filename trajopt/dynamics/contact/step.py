r"""One step at velocity level, assembled and solved; and the one place where derivative rules are attached to it.

    M(q) (v+ - v) = dt (tau - h - c) + J(q)^T lambda,      law between lambda and nu = J(q) v+ + b(q, v)

c corrects the gyroscopic torque of free and ball joints (`rigid_body.gyroscopic`).

`solve_step` assembles the rows and the contact problem for lambda, solves it, and returns all that anybody needs of it, a
`SolvedStep`: the rule of automatic differentiation (`gradients.implicit`), the closed-form Jacobian (`gradients.closed_form`)
and the other modes consume it. `step` is what integrators call: the values of `solve_step`, with the derivative of a rule.

Linear algebra: M = L L^T, G = H^T H with H = L^-1 J^T, for every caller. So G is symmetric and positive semidefinite to
rounding, also with very unequal masses, and `linearize` returns the velocity that `step` does. The closed-form Jacobian forms
M^-1 besides, for its products with many columns; solving the step with that M^-1 as well saves it no time (Go1, 18 DoF: 535 us
against 526 us for step and Jacobian, and 263 us against 187 us for a step alone, least of twelve runs in one process).
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.narrowphase import Contacts, collide
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, SolverOptions
from trajopt.dynamics.contact.ncp import NCP, make_ncp
from trajopt.dynamics.contact.relaxed import relaxed_solution
from trajopt.dynamics.contact.rows import Rows, assemble, row_count
from trajopt.dynamics.contact.solve.solve import NCPSolution, solve
from trajopt.dynamics.contact.sweeps import swept_solution
from trajopt.dynamics.linear_algebra import cholesky, triangular_solve
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.crba import mass_matrix_at, solve_mass_matrix
from trajopt.dynamics.rigid_body.gyroscopic import correction_at
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics
from trajopt.dynamics.rigid_body.rnea import bias_at, passive_forces
from trajopt.result import Status


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
class SolvedStep:
    """A step and what it was solved with.

    velocity v+ (nv,); impulse lambda (m,); factor: L with M = L L^T; ncp: the problem for the impulses; rows; solution:
    how its solve went, and its modes; kin: kinematics at q.
    """

    velocity: Float[Array, " nv"]
    impulse: Float[Array, " m"]
    factor: Float[Array, "nv nv"]
    ncp: NCP
    rows: Rows
    solution: NCPSolution
    kin: Kinematics

    @property
    def result(self) -> VelocityStep:
        """What a step reports."""
        return VelocityStep(self.velocity, self.impulse, self.rows, self.solution)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EquationOfMotion:
    """M a = force without contact, at one state: kinematics, mass matrix with armature, and the generalised force (nv,)."""

    kin: Kinematics
    M: Float[Array, "nv nv"]
    force: Float[Array, " nv"]


class DerivativeRule:
    """Base of the derivatives that gradient modes define for `step`; hashable. A rule defines one of the two methods; a class
    that lacks its own is refused with a TypeError where it is defined.

    name: what messages call the rule. reverse_only: the rule is `cotangents`, and forward mode is refused; else it is `tangents`,
    forward, and transposed for reverse mode.
    """

    name: ClassVar[str]
    reverse_only: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        method = "cotangents" if cls.reverse_only else "tangents"
        if getattr(cls, method) is getattr(DerivativeRule, method):
            raise TypeError(f"{cls.__name__} is a derivative rule with reverse_only={cls.reverse_only}: define {method}")

    def tangents(self, inputs: StepInputs, dinputs: StepInputs) -> tuple[Any, Any]:
        """((q, velocity step), their tangents) from the inputs and their tangents, in which it is linear."""
        raise NotImplementedError(f"{type(self).__name__} defines no tangents")

    def differentiated_law(self, law: ContactLaw) -> ContactLaw | None:
        """The law whose exact derivatives of velocity and impulses the rule takes in a step under `law`, at the state before it;
        None for a rule of another kind. What the compiled core's derivatives may stand for."""
        return None

    def cotangents(
        self, inputs: StepInputs, solved: SolvedStep, outputs: tuple[Float[Array, " nq"], VelocityStep]
    ) -> StepInputs:
        """Cotangents of the inputs from those of (q, velocity step)."""
        raise NotImplementedError(f"{type(self).__name__} defines no cotangents")


def equation_of_motion(inputs: StepInputs) -> EquationOfMotion:
    """The `EquationOfMotion` of a step."""
    model, q, v = inputs.model, inputs.q, inputs.v
    kin = kinematics(model, q)
    bias = bias_at(model, kin, v) + correction_at(model, kin, v, inputs.dt)
    return EquationOfMotion(kin, mass_matrix_at(model, kin), inputs.tau + passive_forces(model, q, v) - bias)


def solve_step(
    inputs: StepInputs,
    *,
    motion: EquationOfMotion | None = None,
    candidates: Contacts | None = None,
    options: SolverOptions | None = None,
) -> SolvedStep:
    """The step assembled and solved.

    motion, candidates: the equation of motion and the candidate contacts where the caller has computed them together with
    their derivatives. options: how the problem is solved, None for what the law wants.
    """
    law, model = inputs.law, inputs.model
    if motion is None:
        motion = equation_of_motion(inputs)
    if candidates is None:
        candidates = collide(model, motion.kin, law.pair_limit, inputs.travel)
    factor = cholesky(motion.M)
    free = inputs.v + inputs.dt * solve_mass_matrix(factor, motion.force)
    rows = assemble(inputs, motion.kin, candidates)
    half = half_products(factor, rows.J)
    G = half.T @ half
    ncp = _contact_problem(inputs, rows, G, half, free)
    if law.relaxed:
        velocity, solution = relaxed_solution(inputs, ncp, rows, motion.M, factor, half, free)
        return SolvedStep(velocity, solution.impulse, factor, ncp, rows, solution, motion.kin)
    solution, dropped = _solve_or_give_way(inputs, ncp, G, rows, free, law.solver_options if options is None else options)
    rows = rows.dropping_push_out(dropped)
    ncp = dataclasses.replace(ncp, g=rows.J @ free + rows.offset)
    push = triangular_solve(factor, half @ solution.impulse[:, None], transpose=True)
    return SolvedStep(free + push[:, 0], solution.impulse, factor, ncp, rows, solution, motion.kin)


def half_products(factor: Float[Array, "nv nv"], J: Float[Array, "m nv"]) -> Float[Array, "nv m"]:
    """H = L^-1 J^T, with H^T H = J M^-1 J^T."""
    return triangular_solve(factor, J.T)


def compliance(rows: Rows, half: Float[Array, "nv m"]) -> Float[Array, "nc 3 3"]:
    """What softening adds to the diagonal blocks of G, 1/kg: `Softening.factor` times the contact's own block."""
    assert rows.softening is not None
    own = jnp.swapaxes(half[:, : 3 * rows.nc].reshape(half.shape[0], rows.nc, 3), 0, 1)
    return rows.softening.factor[:, None, None] * jnp.sum(own[:, :, :, None] * own[:, :, None, :], 1)


def _contact_problem(inputs: StepInputs, rows: Rows, G, half, free) -> NCP:
    """The problem for the impulses: G lambda + g with g = J v_free + b."""
    rigid = make_ncp(G, rows.J @ free + rows.offset, rows.mu, rows.exists, rows.bound, inputs.law.cone)
    if rows.softening is None:
        return rigid
    nc, blocks = rows.nc, compliance(rows, half)
    exists = rows.exists.at[:nc].set(rows.softening.reached)
    # The scale of each row is its own: contacts that are far, and soft, must not make the others look immovable.
    rho = rigid.rho.at[: 3 * nc].divide(jnp.repeat(1.0 + rows.softening.factor, 3))
    return dataclasses.replace(rigid, G=_with_blocks(G, blocks), exists=exists, rho=rho)


def _with_blocks(G: Float[Array, "m m"], blocks: Float[Array, "nc 3 3"]) -> Float[Array, "m m"]:
    """G with `blocks` added to the diagonal blocks of the contacts."""
    nc = blocks.shape[0]
    if nc == 0:
        return G
    eye = jnp.eye(nc, dtype=G.dtype)
    diagonal = (eye[:, None, :, None] * blocks[:, :, None, :]).reshape(3 * nc, 3 * nc)
    return G.at[: 3 * nc, : 3 * nc].add(diagonal)


def _solve_or_give_way(
    inputs: StepInputs, ncp: NCP, rigid_G, rows: Rows, free: Float[Array, " nv"], options: SolverOptions
) -> tuple[NCPSolution, Bool[Array, ""]]:
    """The solution, and whether the push-out was dropped for it: where the problem stays unsolved while rows ask for velocities,
    it is solved again without these, and v = 0 is an admissible velocity of that problem.

    The second solve is another turn of a loop, which compiles one solve; in a batch those who do not take it solve the problem
    at rest.
    """
    no = jnp.zeros((), bool)
    if options.sweeps is not None:
        return swept_solution(ncp, rigid_G, rows, options), no
    find = jax.jit(functools.partial(solve, tol=options.tolerance, max_iterations=options.max_iterations))
    start = inputs.with_start(rows.J.shape[0]).warm_start
    if not rows.exists.shape[0]:
        return find(ncp, start), no
    asks = jnp.any(rows.offset < rows.without_push_out)
    pushed, unpushed = ncp.g, rows.J @ free + rows.without_push_out

    def turn(carry):
        needed, dropped, _ = carry
        g = jnp.where(needed, jnp.where(dropped, unpushed, pushed), 0.0)
        solution = find(dataclasses.replace(ncp, g=g), start)
        unsolved = (solution.status == Status.stalled) | (solution.status == Status.infeasible)
        again = needed & ~dropped & unsolved & asks
        return again, dropped | again, solution

    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(find, ncp, start))
    _, dropped, solution = jax.lax.while_loop(lambda carry: carry[0], turn, (~no, no, blank))
    return solution, dropped


def step(inputs: StepInputs, rule: DerivativeRule | None) -> tuple[Float[Array, " nq"], VelocityStep]:
    """(q, velocity step) with the derivative that `rule` defines; None: differentiated automatically, operation by operation.

    Use the returned q from here on: rules may differentiate it too.
    """
    if rule is None:
        return inputs.q, solve_step(inputs).result
    inputs = inputs.with_start(row_count(inputs.law, inputs.model))
    return _with_cotangents(rule, inputs) if rule.reverse_only else _with_tangents(rule, inputs)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_tangents(rule: DerivativeRule, inputs: StepInputs):
    return inputs.q, solve_step(inputs).result


@_with_tangents.defjvp
@in_full_precision
def _tangents(rule: DerivativeRule, primals, tangents):
    return rule.tangents(primals[0], tangents[0])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_cotangents(rule: DerivativeRule, inputs: StepInputs):
    return inputs.q, solve_step(inputs).result


@in_full_precision
def _forward(rule: DerivativeRule, inputs: StepInputs):
    solved = solve_step(inputs)
    return (inputs.q, solved.result), (inputs, solved)


@in_full_precision
def _backward(rule: DerivativeRule, saved, outputs):
    inputs, solved = saved
    return (rule.cotangents(inputs, solved, outputs),)


_with_cotangents.defvjp(_forward, _backward)
