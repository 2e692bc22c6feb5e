"""Motions as solvers of optimal control see them: flat states, controls, free parameters."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from trajopt.dynamics.state import State

CONSTRAINTS = ("equality", "inequality", "terminal_equality", "terminal_inequality")
COSTS = ("stage_residual", "stage_cost", "terminal_residual", "terminal_cost", "initial_residual")
TASKS = (*COSTS, *CONSTRAINTS)  # what may be made of residuals

if TYPE_CHECKING:  # the modules of the problems build on those that name them so
    from trajopt.problems.least_squares import LeastSquaresProblem as FitProblem
    from trajopt.problems.ocp import OptimalControlProblem as ControlProblem
else:
    ControlProblem = FitProblem = Any


@runtime_checkable
class Answer(Protocol):
    """What problems read of a `Solution`."""

    @property
    def x(self) -> Any:
        """The point, flat."""

    @property
    def xs(self) -> Any:
        """States (T+1, nx), None without a motion."""

    @property
    def us(self) -> Any:
        """Controls (T, nu), None without a motion."""

    @property
    def parameters(self) -> Any:
        """Free parameters (np,), None without."""

    @property
    def covariance(self) -> Any:
        """Of the estimate, None without one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """States, controls and free parameters of a motion; the states need not obey the dynamics.

    Attributes:
        xs: states (T+1, nx).
        us: controls (T, nu).
        p: free parameters (np,).
    """

    xs: Any
    us: Any
    p: Any


def flat_state(x: State) -> Float[jax.Array, " nx"]:
    """[q, v] and the contact law's state, if it has one, in one array."""
    parts = [x.q, x.v] + ([] if x.contact is None else [jnp.ravel(x.contact)])
    return jnp.concatenate(parts)
