"""Where a run of iLQR or DDP stands.

Where a run of iLQR or DDP begins: at the rollout of the guess, at the states of the guess, or at states that stay at x_0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.problems.expansions import twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.local_model import LocalModel
from trajopt.solvers.ddp.passes import Progress, better
from trajopt.solvers.loop.contract import CODES, SolverState
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


GUESS_COST_RATIO = 10.0  # a guess of controls that costs more than so many times staying at x_0 is ignored


def gives_states(problem: OptimalControlProblem, xs: Float[np.ndarray, "T1 nx"]) -> bool:
    """Whether the states of a guess are meant, and do not only repeat the first one."""
    return problem.xs0 is not None or not np.array_equal(xs, np.tile(xs[0], (len(xs), 1)))


@subject("problem")
@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a run for one problem; shooting: the option of the solver."""

    problem: OptimalControlProblem
    shooting: str

    def on(self, problem: OptimalControlProblem) -> Start:
        """The same for a problem with other numbers, which may be traced."""
        return dataclasses.replace(self, problem=problem)

    @property
    def chooses(self) -> bool:
        """Whether it depends on the costs where a run begins: of smooth dynamics, and no states given."""
        return self.shooting == "auto" and twice_differentiable(self.problem)

    def motion(self, guess: Trajectory, given: Bool[Array, ""]) -> tuple[Trajectory, Bool[Array, ""]]:
        """(where the run begins, whether it stays at x_0 there, a start for multiple shooting); given: whether states are."""
        problem = self.problem
        rolled = problem.rollout(guess.xs[0], guess.us, guess.p)
        if self.shooting == "multiple":
            return dataclasses.replace(rolled, xs=jnp.where(given, guess.xs, rolled.xs)), jnp.zeros((), bool)
        if not self.chooses:
            return rolled, jnp.zeros((), bool)
        staying = dataclasses.replace(rolled, xs=jnp.broadcast_to(rolled.xs[0], rolled.xs.shape))
        poor = ~given & (problem.cost(rolled) > GUESS_COST_RATIO * problem.cost(staying))
        return dataclasses.replace(rolled, xs=jnp.where(poor, staying.xs, rolled.xs)), poor
