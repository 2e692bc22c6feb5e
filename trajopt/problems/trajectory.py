"""Motions as solvers of optimal control see them: flat states, controls, free parameters."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float

from trajopt.dynamics.state import State

CONSTRAINTS = ("equality", "inequality", "terminal_equality", "terminal_inequality")
ControlProblem: TypeAlias = Any  # an `ocp.OptimalControlProblem`, whose module builds on those that name it so


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """States xs (T+1, nx), controls us (T, nu) and free parameters p (np,); the states need not obey the dynamics."""

    xs: Any
    us: Any
    p: Any


def flat_state(x: State) -> Float[jax.Array, " nx"]:
    """[q, v] and the contact law's state, if it has one, in one array."""
    parts = [x.q, x.v] + ([] if x.contact is None else [jnp.ravel(x.contact)])
    return jnp.concatenate(parts)
