"""Where a run of iLQR or DDP stands."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from trajopt.solvers.ddp.local_model import LocalModel
from trajopt.solvers.ddp.passes import Progress, better
from trajopt.solvers.loop.codes import CODES
from trajopt.solvers.loop.contract import SolverState
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DDPState(SolverState):
    """Adds where the iteration stands, the feedback gains of the step that led here, and whether it began from states that stay
    at x_0 (option `shooting`).

    `gradient_norm` is the largest |dH/du| over the controls not held at a bound, H with the adjoint of the augmented cost.
    """

    progress: Progress
    gains: Any
    starts_at_rest: Any = False

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
        return int(self.progress.code) == CODES["solved"]

    @property
    def stationarity(self) -> float:
        return self.gradient_norm

    def better_than(self, other: Any, tolerance: float) -> bool:
        """As `passes.better` says."""
        return bool(better(self, other, tolerance))

    def non_finite_place(self) -> str:
        """The first step at which something was not finite."""
        bad = min(int(self.progress.bad_step), len(self.x.us))
        return f": non-finite at step {bad}" if bad >= 0 else ""
