"""Sampling to escape, gradients to polish: one run, one trace, one certificate.

A sampling solver searches until one of three things happens, then a gradient solver starts from its best motion:

- it has not improved that motion for `patience` generations: neither its violation beyond the problem's tolerance nor, at
  equal violation, its cost has fallen by the share `improvement`;
- it has done `generations`;
- it has ended by itself, converged or infeasible to its knowledge.

From then on costs, violations and the measure of optimality in the trace, the status and the certificate are the gradient
solver's; before, the trace shows the spread of the sampling distribution. A run that ends before the hand-over (a budget,
Ctrl-C) returns the best motion drawn, which is not a success.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, SolverState
from trajopt.solvers.loop.options import check_options
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.search import SamplingSolver
from trajopt.solvers.shooting.multiple import MultipleShooting
from trajopt.solvers.shooting.single import SingleShooting

POLISHERS = (iLQR, DDP, MultipleShooting, SingleShooting)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridState(SolverState):
    """The states of both solvers; polishing: whether the gradient solver is at work.

    idle: generations since the best motion was improved on (best_excess, best_cost); key: of the run.
    """

    sampler: Any
    polisher: Any
    polishing: bool
    idle: int
    best_excess: float
    best_cost: float
    key: Any

    @property
    def active(self) -> SolverState:
        """The state of the solver at work."""
        return self.polisher if self.polishing else self.sampler

    def better_than(self, other: Any, tolerance: float) -> bool:
        """As the solver at work says; between the two by `preferred_to`."""
        if self.polishing == other.polishing:
            return bool(self.active.better_than(other.active, tolerance))
        return super().better_than(other, tolerance)

    def preferred_to(self, other: Any) -> bool:
        """The lower cost; of equal ones the polished point."""
        return bool(self.cost <= other.cost if self.polishing else self.cost < other.cost)

    def non_finite_place(self) -> str:
        """Where the solver at work met a value that is not finite."""
        return self.active.non_finite_place()

    def ending(self) -> Findings:
        """What the solver at work says, and which one that is."""
        ending = self.active.ending()
        if self.polishing:
            return ending
        return dataclasses.replace(ending, notes=[*ending.notes, "ended before the hand-over to the gradient solver"])


@dataclasses.dataclass(frozen=True)
class Hybrid(LibrarySolver):
    """A sampling solver followed by a gradient solver, for `OptimalControlProblem`.

    The gradient solver takes over when the sampling solver has ended, has done `generations`, or has not improved its best
    motion for `patience` generations. The status and the certificate are the gradient solver's.

    Options:
        sampler: `CEM`, `MPPI`, `CMAES` or `StochasticSearch` with its options.
        polisher: `iLQR`, `DDP`, `MultipleShooting` or `SingleShooting` with its options.
        patience: number of generations without improvement after which the gradient solver takes over.
        improvement: share by which the cost, or the violation of an infeasible motion, must fall to count as an
            improvement.
        generations: largest number of generations before the gradient solver takes over.
        max_iterations: of both solvers together.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    sampler: SamplingSolver = dataclasses.field(default_factory=CEM)
    polisher: Any = dataclasses.field(default_factory=iLQR)
    patience: int = 5
    improvement: float = 1e-2
    generations: int = 200
    max_iterations: int = 2000

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.sampler, SamplingSolver):
            raise OptionError(
                f"Hybrid: sampler is {self.sampler!r}; expected CEM(), MPPI(), CMAES() or StochasticSearch()"
            )
        if not isinstance(self.polisher, POLISHERS):
            names = ", ".join(f"{kind.__name__}()" for kind in POLISHERS)
            raise OptionError(f"Hybrid: polisher is {self.polisher!r}; expected one of {names}")
        for key, least in (("patience", 1), ("generations", 1), ("max_iterations", 0)):
            if getattr(self, key) < least:
                raise OptionError(f"Hybrid: {key} is {getattr(self, key)}; it must be at least {least}")
        if not 0 <= self.improvement < 1:
            raise OptionError(f"Hybrid: improvement is {self.improvement}; expected a share from 0 to below 1")

    @property
    def name(self) -> str:
        return "Hybrid"

    @property
    def over_processes(self) -> bool:
        """Whether the generations are shared among processes; each of them polishes."""
        return self.sampler.over_processes

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> HybridState:
        """Both solvers at the initial guess."""
        sampler = self.sampler.init(oracle, guess, key)
        polisher = self.polisher.init(oracle, guess, key)
        seed = np.asarray(jax.random.key_data(key))
        return self._at(sampler, polisher, False, idle=0, best_excess=np.inf, best_cost=np.inf, key=seed)

    def _at(self, sampler: Any, polisher: Any, polishing: bool, **rest: Any) -> HybridState:
        at = polisher if polishing else sampler
        halt = at.halt if polishing else ""
        return HybridState(
            at.x, at.cost, at.violation, at.gradient_norm, at.step_size, sampler, polisher, polishing, **rest, halt=halt
        )

    def run(self, oracle: OptimalControlOracle, state: HybridState, advance: Advance) -> Status:
        """Sample until the rule hands over, then polish until the loop ends the run."""
        status: Status | None = None
        while not state.polishing and not self._handed_over(oracle, state):
            state = self._sampled(oracle, state)
            status = advance(state)
            if status is not None:
                return status
        rest = {key: getattr(state, key) for key in ("idle", "best_excess", "best_cost", "key")}
        sampler = state.sampler

        def report(polisher: Any) -> Status | None:
            return advance(self._at(sampler, polisher, True, **rest))

        polisher = state.polisher
        if not state.polishing:
            polisher = self.polisher.init(oracle, sampler.x, jax.random.wrap_key_data(state.key))
            status = report(polisher)
        if status is None and isinstance(self.polisher, LibrarySolver):
            return self.polisher.run(oracle, polisher, report)
        while status is None:
            polisher = self.polisher.step(oracle, polisher)
            status = report(polisher)
        return status

    def _sampled(self, oracle: OptimalControlOracle, state: HybridState) -> HybridState:
        """After one generation."""
        sampler = self.sampler.step(oracle, state.sampler)
        excess, cost = max(sampler.violation, oracle.problem.tolerance), sampler.cost
        share = 1 - self.improvement
        improved = excess < share * state.best_excess or (
            excess <= state.best_excess and cost < state.best_cost - self.improvement * abs(state.best_cost)
        )
        improved = improved or not np.isfinite(state.best_cost)
        rest = {"idle": 0, "best_excess": excess, "best_cost": cost}
        if not improved:
            rest = {"idle": state.idle + 1, "best_excess": state.best_excess, "best_cost": state.best_cost}
        return self._at(sampler, state.polisher, False, **rest, key=state.key)

    def _handed_over(self, oracle: OptimalControlOracle, state: HybridState) -> bool:
        ended = self.sampler.terminate(oracle, state.sampler) is not None
        return ended or state.idle >= self.patience or state.sampler.generation >= self.generations

    def terminate(self, oracle: OptimalControlOracle, state: HybridState) -> Status | None:
        """As the gradient solver says; the sampling solver only hands over."""
        return self.polisher.terminate(oracle, state.polisher) if state.polishing else None

    def finish(self, oracle: OptimalControlOracle, state: HybridState) -> Findings:
        """The certificate of the solver that found the point; one that was drawn and not polished falls short."""
        if state.polishing:
            return self.polisher.finish(oracle, state.polisher)
        found = self.sampler.finish(oracle, state.sampler)
        why = "the best point was drawn, the gradient solver did not reach it"
        return dataclasses.replace(found, shortfalls=[*found.shortfalls, why])
