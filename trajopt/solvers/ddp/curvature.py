r"""What Gauss-Newton Hessians leave out: the curvature of the dynamics.

The Hessian of the Lagrangian of stage t lacks M_t = sum_i lambda_{t+1,i} d^2 f_i / dz^2, z = [dx, dp, du]. It is computed, or
learnt from the linearisations that iLQR makes anyway: along a step s_t it is seen in the change of the dynamics' Jacobian F_t at
the new costates, y_t = (F_t(new) - F_t(old))^T lambda_{t+1}: M_t s_t = y_t
to first order. Each stage keeps an estimate S_t by the symmetric rank-one update

    S <- S + (y - S s)(y - S s)^T / ((y - S s)^T s),

skipped where the denominator says nothing. As in NL2SOL, S is first scaled by min(1, |s^T y| / |s^T S s|): multipliers change,
and curvature from steps ago is soon too large.

Sen, Yakowitz, A quasi-Newton differential dynamic programming algorithm for discrete-time optimal control, Automatica 1987;
Bock, Plitt 1984 (blockwise updates); Dennis, Gay, Welsch, An adaptive nonlinear least-squares algorithm, 1981 (scaling).
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.problems.contact_curvature import curvature_along, motion_curvature
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.solvers.ddp.local_model import LocalModel, Modeller
from trajopt.solvers.subproblems.riccati import LQProblem

SHORT = 0.1  # step lengths below it say that the model was wrong: curvature through contact is learnt there
TELLING = 1e-2  # least cosine between y - S s and s for which the rank-one update is made
MOVED = 1e-20  # least |s|^2 of a stage from which something is learnt


@dataclasses.dataclass(frozen=True)
class Curvature:
    """Where the curvature M_t comes from, which passes add to their Hessians.

    kind: "none"; "learnt", from the change of smooth dynamics' Jacobians at every step; "within modes", learnt through contact:
    after a step shorter than `SHORT`, from the curvature along it within the contact modes at its end; "computed", all.
    """

    kind: Literal["none", "learnt", "within modes", "computed"] = "none"

    @property
    def present(self) -> bool:
        return self.kind != "none"

    def blank(self, problem: OptimalControlProblem) -> Float[np.ndarray, "t z z"]:
        """No curvature, for every stage; without rows where none is kept."""
        size = problem.n + problem.n_p + problem.nu
        return np.zeros((problem.horizon if self.present else 0, size, size), problem.dtype)

    def added(self, model: LocalModel, S: Float[Array, "t z z"] | None, share: Float[Array, ""]) -> LocalModel:
        """The model with a share of S in its Hessians."""
        return model if S is None or not self.present else dataclasses.replace(model, lq=with_curvature(model.lq, share * S))

    def after(
        self,
        modeller: Modeller,
        S: Float[Array, "t z z"],
        old: tuple[Trajectory, LocalModel],
        new: tuple[Trajectory, LocalModel],
        length: Float[Array, ""],
    ) -> Float[Array, "t z z"]:
        """S after a step of this length from one motion and its model to the next."""
        problem, (motion, model) = modeller.problem, new
        if self.kind == "none":
            return S
        if self.kind == "learnt":
            return learnt(problem, S, old, new)

        def made() -> Any:
            if self.kind == "within modes":
                steps = stage_steps(problem, old[0], motion)
                return jax.vmap(_updated)(S, steps, curvature_along(problem, motion, model.costates, steps))
            order, costates = modeller.order(), model.costates[:, : problem.n]  # without those of parameters
            return motion_curvature(problem, motion, costates)[:, order][:, :, order]

        wanted = (length < SHORT) if self.kind == "within modes" else jnp.ones((), bool)
        return jax.lax.cond(wanted & (model.bad_step < 0), made, lambda: S)


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
