"""The policy that stops a fully actuated robot where it is: what a plan that leads nowhere is replaced with.

    u = S^-1 h(q_0) - S^-1 M(q_0) v / tau,    tau = `STEPS` steps

S are the lever arms of the motors, h gravity's forces, M the mass matrix.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.actuation import actuators
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.rnea import bias_forces
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.plan import Plan

STEPS = 5  # in which velocities fall to a third


def can_brake(problem: OptimalControlProblem) -> bool:
    """Whether there is such a policy: plain motors move every joint, and configurations form a vector space."""
    system = problem.system
    if system is None or system.nq != system.nv or problem.nx != system.nq + system.nv:
        return False
    S = np.asarray(system.model.actuation)
    return actuators(system.model).plain and S.shape == (system.nv, system.nv) and np.linalg.matrix_rank(S) == system.nv


def hold(problem: OptimalControlProblem, q: Float[Array, " nq"]) -> tuple[Float[Array, " nu"], Float[Array, "nu n"]]:
    """Controls and gains of the policy at a configuration."""
    system = problem.system
    assert system is not None
    model = system.model
    S = jnp.asarray(model.actuation, q.dtype)
    tau = jnp.asarray(STEPS, q.dtype) * jnp.asarray(system.dt, q.dtype)
    forces = jnp.concatenate([bias_forces(model, q, jnp.zeros_like(q))[:, None], -mass_matrix(model, q) / tau], 1)
    found = jnp.linalg.inv(S) @ forces
    return found[:, 0], jnp.concatenate([jnp.zeros_like(found[:, 1:]), found[:, 1:]], 1)


def braking_plan(problem: OptimalControlProblem, x0: Float[Array, " nx"]) -> Plan:
    """The policy from x0 on."""
    system, T = problem.system, problem.horizon
    assert system is not None
    u, K = hold(problem, x0[: system.nq])
    rest = jnp.concatenate([x0[: system.nq], jnp.zeros(system.nv, x0.dtype)])
    return Plan(jnp.tile(rest, (T + 1, 1)), jnp.tile(u, (T, 1)), jnp.tile(K, (T, 1, 1)))


def ending_at_rest(problem: OptimalControlProblem, plan: Plan, last: Float[Array, " nx"], tail: Float[Array, " T"]) -> Plan:
    """A shifted plan whose tail, beyond the `last` state it has, holds that posture; tail: which steps those are."""
    system = problem.system
    assert system is not None
    u, K = hold(problem, last[: system.nq])
    rest = jnp.concatenate([last[: system.nq], jnp.zeros(system.nv, last.dtype)])
    xs = jnp.where(jnp.append(tail, tail[-1])[:, None], rest, plan.xs)
    return Plan(xs, jnp.where(tail[:, None], u, plan.us), jnp.where(tail[:, None, None], K, plan.gains), plan.memory)
