"""Whether controls have any influence on what a problem asks of its states, to first order along a motion."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.problems.expansions import final_expansion, linear_dynamics, stage_expansion
from trajopt.problems.trajectory import ControlProblem, Trajectory

NOTHING = 1e-9  # share of the costates below which what controls do about them is rounding


def lacks_influence(
    slope: Float[np.ndarray, "T1 n"], B: Float[np.ndarray, "T n nu"], costates: Float[np.ndarray, "T1 n"], scale: float
) -> bool:
    """Whether the cost of the states has a slope that no control passes on: B_t^T p_{t+1} is zero at every step.

    slope: of the cost by the states; scale: below `NOTHING` of it a slope is none.
    """
    pull = np.abs(np.einsum("tij,ti->tj", np.asarray(B), np.asarray(costates)[1:])).max(initial=0.0)
    most = np.abs(costates[1:]).max(initial=0.0)
    return bool(np.abs(slope[1:]).max(initial=0.0) > NOTHING * scale and pull <= NOTHING * most)


def adjoint_along(
    problem: ControlProblem, motion: Trajectory
) -> tuple[Float[Array, "T1 n"], Float[Array, "T n nu"], Float[Array, "T1 n"]]:
    """(slope of the cost by the states, B, costates) along a motion, with exact derivatives."""
    linear, n, nu, p = linear_dynamics(problem, "implicit"), problem.n, problem.nu, motion.p

    def stage(at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        return linear(*at, p)[1], stage_expansion(problem, *at, p).gradient[:n]

    F, q = jax.lax.map(stage, (motion.xs[:-1], motion.us, jnp.asarray(problem.times)[:-1]))
    last = final_expansion(problem, motion.xs[-1], p).gradient[:n]

    def back(costate: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        before = row[1] + row[0].T @ costate
        return before, before

    costates = jax.lax.scan(back, last, (F[:, :, :n], q), reverse=True)[1]
    return jnp.concatenate([q, last[None]]), F[:, :, n : n + nu], jnp.concatenate([costates, last[None]])
