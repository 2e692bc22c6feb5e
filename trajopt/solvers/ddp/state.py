"""Where a run of iLQR or DDP stands."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from trajopt.solvers.ddp.local_model import LocalModel
from trajopt.solvers.ddp.passes import Progress
from trajopt.solvers.loop.contract import SolverState
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers

COST_ROUNDING = 1e-12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DDPState(SolverState):
    """Adds where the iteration stands, the feedback gains of the step
    that led here, and whether it began from states that stay.

    `gradient_norm` is the largest |dH/du| over the controls not held at a bound, H with the adjoint of the augmented cost.
    """

    progress: Progress
    gains: Any
    held: Any = False

    @property
    def model(self) -> LocalModel:
        """The quadratic model at x."""
        return self.progress.iterate.model

    @property
    def multipliers(self) -> Multipliers:
        return self.progress.multipliers

    @property
    def converged(self) -> bool:
        """Whether x is stationary and feasible."""
        return bool(self.progress.converged)

    def preferred_to(self, other: Any) -> bool:
        """The converged point, then the lower cost; where costs differ by rounding, the more stationary point."""
        if self.converged != other.converged:
            return self.converged
        margin = COST_ROUNDING * abs(other.cost)
        more_stationary = self.gradient_norm < other.gradient_norm
        return bool(self.cost < other.cost - margin or (self.cost <= other.cost + margin and more_stationary))

    def non_finite_place(self) -> str:
        """The first step at which something was not finite."""
        bad = min(int(self.progress.bad_step), len(self.x.us))
        return f": non-finite at step {bad}" if bad >= 0 else ""
