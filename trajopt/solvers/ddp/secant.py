r"""What Gauss-Newton Hessians leave out, learnt from the linearisations that iLQR makes anyway.

The Hessian of the Lagrangian of stage t lacks M_t = sum_i lambda_{t+1,i} d^2 f_i / dz^2, z = [dx, dp, du]. Along a step s_t it
is seen in the change of the dynamics' Jacobian F_t at the new costates, y_t = (F_t(new) - F_t(old))^T lambda_{t+1}: M_t s_t = y_t
to first order. Each stage keeps an estimate S_t by the symmetric rank-one update

    S <- S + (y - S s)(y - S s)^T / ((y - S s)^T s),

skipped where the denominator says nothing. As in NL2SOL, S is first scaled by min(1, |s^T y| / |s^T S s|): multipliers change,
and curvature from steps ago is soon too large.

Sen, Yakowitz, A quasi-Newton differential dynamic programming algorithm for discrete-time optimal control, Automatica 1987;
Bock, Plitt 1984 (blockwise updates); Dennis, Gay, Welsch, An adaptive nonlinear least-squares algorithm, 1981 (scaling).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.problems.contact_curvature import curvature_along
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.solvers.ddp.local_model import LocalModel
from trajopt.solvers.subproblems.riccati import LQProblem

TELLING = 1e-2  # least cosine between y - S s and s for which the rank-one update is made
MOVED = 1e-20  # least |s|^2 of a stage from which something is learnt


def with_curvature(lq: LQProblem, S: Float[Array, "T z z"]) -> LQProblem:
    """The problem with S added to its Hessians by (x_t, u_t)."""
    n = lq.A.shape[1]
    Q = lq.Q.at[:-1].add(S[:, :n, :n])
    return dataclasses.replace(lq, Q=Q, R=lq.R + S[:, n:, n:], S=lq.S + S[:, :n, n:])


def learnt(
    problem: OptimalControlProblem,
    S: Float[Array, "T z z"],
    old: tuple[Trajectory, LocalModel],
    new: tuple[Trajectory, LocalModel],
) -> Float[Array, "T z z"]:
    """The estimates after a step from one motion and its model to the next; of stages that did not move they stay."""
    (at, before), (motion, after) = old, new
    steps = stage_steps(problem, at, motion)
    change = jnp.concatenate([after.lq.A - before.lq.A, after.lq.B - before.lq.B], 2)
    return jax.vmap(_updated)(S, steps, jnp.einsum("tij,ti->tj", change, after.costates[1:]))


def learnt_within_modes(
    problem: OptimalControlProblem,
    S: Float[Array, "T z z"],
    at: Trajectory,
    motion: Trajectory,
    costates: Float[Array, "T1 n"],
) -> Float[Array, "T z z"]:
    """`learnt` where contacts may open and close on the way: the curvature along the step is that at its end, within the modes
    there (`contact_curvature`). Without free parameters."""
    steps = stage_steps(problem, at, motion)
    return jax.vmap(_updated)(S, steps, curvature_along(problem, motion, costates, steps))


def stage_steps(problem: OptimalControlProblem, at: Trajectory, motion: Trajectory) -> Float[Array, "T z"]:
    """The step [dx, dp, du] of each stage between two motions."""
    dx = jax.vmap(problem.local)(at.xs[:-1], motion.xs[:-1])
    dp = jnp.broadcast_to(motion.p - at.p, (problem.horizon, problem.n_p))
    return jnp.concatenate([dx, dp, motion.us - at.us], 1)


def _updated(S: Array, s: Array, y: Array) -> Array:
    """The update of one stage."""
    old, size = jnp.abs(jnp.vdot(s, S @ s)), jnp.vdot(s, s)
    share = jnp.where(old > 0, jnp.minimum(1.0, jnp.abs(jnp.vdot(s, y)) / jnp.where(old > 0, old, 1.0)), 1.0)
    scaled = share * S
    missing = y - scaled @ s
    along = jnp.vdot(missing, s)
    telling = jnp.abs(along) > TELLING * jnp.sqrt(jnp.vdot(missing, missing) * size)
    new = scaled + jnp.where(telling, jnp.outer(missing, missing) / jnp.where(telling, along, 1.0), 0.0)
    return jnp.where((size > MOVED) & jnp.all(jnp.isfinite(new)), new, S)
