"""What iterations of iLQR and DDP hand on: where they stand, the direction of a pass, and what a step did."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.problems.ocp import Trajectory
from trajopt.solvers.ddp.local_model import LocalModel
from trajopt.solvers.subproblems.riccati import Policy


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
    """What an iteration did: whether a step was accepted, its length a, whether its predicted decrease drowned in rounding,
    rollouts tried, whether one was finite, the first step that was not, the norm of the change of the controls, and the
    feedback gains K (T, nu, n), and the augmented cost of the last rollout."""

    accepted: Any
    length: Any
    rounded: Any
    trials: Any
    finite_trial: Any
    bad_step: Any
    step_size: Any
    gains: Any
    merit: Any

    @staticmethod
    def blank(shape: tuple[int, int, int], dtype: Any) -> Report:
        """Of an iteration that has not tried anything; shape: of the gains."""
        no, zero, count = jnp.zeros((), bool), jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
        return Report(no, zero, no, count, no, jnp.full((), -1, jnp.int32), zero, jnp.zeros(shape, dtype), zero)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Iterate:
    """A motion, the model there, the damping mu, the penalty nu of the gaps of multiple shooting, and the curvature of the
    dynamics (T, z, z) that is kept from step to step (`curvature`).
    """

    motion: Trajectory
    model: LocalModel
    damping: Any
    gap_penalty: Any
    curvature: Any = None


class Direction(NamedTuple):
    """What a backward pass found: the policy, [dx_0, dp], and of the augmented cost the derivative along a full step and the
    change by it."""

    policy: Policy
    start: Float[Array, " n"]
    slope: Float[Array, ""]
    total: Float[Array, ""]
