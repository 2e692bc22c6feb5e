"""Sampling to escape, gradients to polish: one run, one trace, one certificate.

A sampling solver searches until one of three things happens, then a gradient solver starts from its best motion:

- it has not improved that motion for `patience` generations: neither its violation beyond the problem's tolerance nor, at
  equal violation, its cost has fallen by the share `improvement`;
- it has done `generations`;
- it has ended by itself, converged or infeasible to its knowledge.

Where the gradient solver gives up or makes no progress, or the problem's certificate refuses its point, both begin again with
other draws, until `attempts` searches are done. Which basin a search hands over is a matter of the draws. A problem with goals
needs no other search where one has come past a point that meets them within all bounds: the run ends as `acceptable` there, at
the best such point.

After the hand-over costs, violations and the measure of optimality in the trace, the status and the certificate are the
gradient solver's; before, the trace shows the spread of the sampling distribution. A run that ends before the hand-over (a
budget, Ctrl-C) returns the best motion drawn, which is not a success.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.options import check_options
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status, status_name
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, SolverState, iterate, verdict
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.search import SamplingSolver
from trajopt.solvers.shooting.multiple import MultipleShooting
from trajopt.solvers.shooting.single import SingleShooting

POLISHERS = (iLQR, DDP, MultipleShooting, SingleShooting)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridState(SolverState):
    """The states of both solvers; polishing: whether the gradient solver is at work.

    idle: generations, or iterations of the gradient solver, since the best motion was improved on (best_excess, best_cost);
    key: of the run; guess: where it began;
    attempt: which search this is, from 1; polished: iterations of the gradient solver in it; answer: whether the point is without
    shortfalls, and solved for unless goals decide, found out where that decides over another search;
    answered: whether there has been one.
    """

    sampler: Any
    polisher: Any
    polishing: bool
    idle: int
    best_excess: float
    best_cost: float
    key: Any
    guess: Any
    attempt: int
    polished: int
    answer: bool
    answered: bool

    @property
    def active(self) -> SolverState:
        """The state of the solver at work."""
        return self.polisher if self.polishing else self.sampler

    def better_than(self, other: Any, tolerance: float) -> bool:
        """As the solver at work says; between the two by `preferred_to`."""
        if self.polishing == other.polishing and self.answer == other.answer:
            return bool(self.active.better_than(other.active, tolerance))
        return super().better_than(other, tolerance)

    def preferred_to(self, other: Any) -> bool:
        """The answer; else the lower cost; of equal ones the polished point."""
        if self.answer != other.answer:
            return self.answer
        return bool(self.cost <= other.cost if self.polishing else self.cost < other.cost)

    def non_finite_place(self) -> str:
        """Where the solver at work met a value that is not finite."""
        return self.active.non_finite_place()

    def ending(self) -> Findings:
        """What the solver at work says, and which one that is."""
        ending = self.active.ending()
        notes = [] if self.polishing else ["ended before the hand-over to the gradient solver"]
        searches = [f"in search {self.attempt}"] if self.attempt > 1 else []
        return dataclasses.replace(ending, notes=[*ending.notes, *notes, *searches])


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
        attempts: largest number of searches. Another one begins, from the initial guess with other draws, where the gradient
            solver has given up, has done its `max_iterations` or `polish_patience`, or has found what the problem's certificate
            refuses; the last one may use what is left of the run's iterations, unless there has been an answer.
        polish_patience: number of iterations of the gradient solver without an improvement of its cost after which it is
            stopped. Default: no limit.
        max_iterations: of both solvers together, over all searches.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    sampler: SamplingSolver = dataclasses.field(default_factory=CEM)
    polisher: Any = dataclasses.field(default_factory=iLQR)
    patience: int = 5
    improvement: float = 1e-2
    generations: int = 200
    attempts: int = 1
    polish_patience: int | None = None
    max_iterations: int = 2000

    def __post_init__(self) -> None:
        check_options(
            self,
            patience="[1, inf)",
            improvement="[0, 1)",
            generations="[1, inf)",
            attempts="[1, inf)",
            polish_patience="[1, inf)",
            max_iterations="[0, inf)",
        )
        if not isinstance(self.sampler, SamplingSolver):
            raise OptionError(
                f"Hybrid: sampler is {self.sampler!r}; expected CEM(), MPPI(), CMAES() or StochasticSearch()"
            )
        if not isinstance(self.polisher, POLISHERS):
            names = ", ".join(f"{kind.__name__}()" for kind in POLISHERS)
            raise OptionError(f"Hybrid: polisher is {self.polisher!r}; expected one of {names}")

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> HybridState:
        """Both solvers at the initial guess."""
        sampler = self.sampler.init(oracle, guess, key)
        polisher = self.polisher.init(oracle, guess, key)
        seed = np.asarray(jax.random.key_data(key))
        rest = {"idle": 0, "best_excess": np.inf, "best_cost": np.inf, "key": seed, "guess": guess}
        return self._at(sampler, polisher, False, **rest, attempt=1, polished=0, answer=False, answered=False)

    def _at(self, sampler: Any, polisher: Any, polishing: bool, **rest: Any) -> HybridState:
        at = polisher if polishing else sampler
        halt = at.halt if polishing else ""
        return HybridState(
            at.x, at.cost, at.violation, at.gradient_norm, at.step_size, sampler, polisher, polishing, **rest, halt=halt
        )

    def _next(self, state: HybridState, **changed: Any) -> HybridState:
        """A state that differs from `state` in the fields given."""
        derived = {field.name for field in dataclasses.fields(SolverState)}
        own = (field.name for field in dataclasses.fields(state) if field.name not in derived)
        return self._at(**{name: getattr(state, name) for name in own} | changed)

    def run(self, oracle: OptimalControlOracle, state: HybridState, advance: Advance) -> Status:
        """Sample until the rule hands over, then polish until the gradient solver ends, as often as `attempts` allows."""
        status: Status | None = None
        while True:
            while not state.polishing and not self._handed_over(oracle, state):
                state = self._sampled(oracle, state)
                status = advance(state)
                if status is not None:
                    return status
            state, status = self._polished(oracle, state, advance)
            if status is not None:
                return status
            key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.attempt)
            sampler = self.sampler.init(oracle, state.guess, key)
            anew = {"sampler": sampler, "polishing": False, "idle": 0, "best_excess": np.inf, "best_cost": np.inf}
            state = self._next(state, **anew, attempt=state.attempt + 1, polished=0, answer=False)

    def _polished(
        self, oracle: OptimalControlOracle, state: HybridState, advance: Advance
    ) -> tuple[HybridState, Status | None]:
        """After the gradient solver's iterations, and the status that ends the run, None for another search."""
        ended: Status | None = None

        def report(polisher: Any) -> Status | None:
            nonlocal state, ended
            answer = self._is_answer(oracle, polisher)
            idle = state.polishing and polisher.cost >= state.best_cost - self.improvement * abs(state.best_cost)
            progress = {"idle": state.idle + 1} if idle else {"idle": 0, "best_cost": float(polisher.cost)}
            state = self._next(
                state, polisher=polisher, polishing=True, polished=state.polished + 1, answer=answer,
                answered=answer or state.answered, **progress,
            )  # fmt: skip
            ended = advance(state)
            return self._given_up(oracle, state) if ended is None else ended

        polisher, key = state.polisher, jax.random.wrap_key_data(state.key)
        if state.polishing:
            status = self._given_up(oracle, state)
        else:
            polisher = self.polisher.init(oracle, state.sampler.x, key)
            status = report(polisher)
        if status is None:
            iterate(self.polisher, oracle, polisher, report)
        return state, ended

    def _is_answer(self, oracle: OptimalControlOracle, polisher: Any) -> bool:
        """Whether the point is without shortfalls, recomputed outside the counters, and solved for where that is asked."""
        suffices = oracle.problem.feasibility_is_success
        if self.attempts == 1 and not suffices:
            return False  # nobody asks
        status = self.polisher.terminate(oracle, polisher)
        status = Status.max_iterations if status is None else status
        solved = status_name(status) == "solved"
        if not solved and not suffices:
            return False
        evaluations = oracle.evaluations
        missing = oracle.shortfalls(oracle.residuals(jax.tree.map(np.asarray, polisher.x)))
        if solved and not suffices:
            missing = missing or self.polisher.finish(oracle, polisher).shortfalls
        oracle.evaluations = evaluations
        return verdict(oracle.problem, status, missing, polisher.cost)[1]

    def _left(self, oracle: OptimalControlOracle, state: HybridState) -> Status | None:
        """The status with which the gradient solver ends by itself, or is stopped by a limit of its iterations, else None."""
        status: Status | None = self.polisher.terminate(oracle, state.polisher)
        impatient = self.polish_patience is not None and state.polishing and state.idle >= self.polish_patience
        exhausted = status is None and (impatient or state.polished > self.polisher.max_iterations)
        return Status.max_iterations if exhausted else status

    def _given_up(self, oracle: OptimalControlOracle, state: HybridState) -> Status | None:
        """The status with which the gradient solver leaves the run to another search, None where it goes on or none is left."""
        return None if state.attempt >= self.attempts or state.answered else self._left(oracle, state)

    def _sampled(self, oracle: OptimalControlOracle, state: HybridState) -> HybridState:
        """After one generation."""
        sampler = self.sampler.step(oracle, state.sampler)
        excess, cost = max(sampler.violation, oracle.problem.tolerance), sampler.cost
        share = 1 - self.improvement
        improved = excess < share * state.best_excess or (
            excess <= state.best_excess and cost < state.best_cost - self.improvement * abs(state.best_cost)
        )
        improved = improved or not np.isfinite(state.best_cost)
        if not improved:
            return self._next(state, sampler=sampler, idle=state.idle + 1)
        return self._next(state, sampler=sampler, idle=0, best_excess=excess, best_cost=cost)

    def _handed_over(self, oracle: OptimalControlOracle, state: HybridState) -> bool:
        ended = self.sampler.terminate(oracle, state.sampler) is not None
        return ended or state.idle >= self.patience or state.sampler.generation >= self.generations

    def terminate(self, oracle: OptimalControlOracle, state: HybridState) -> Status | None:
        """As the gradient solver says, unless another search follows; the sampling solver only hands over."""
        if not state.polishing or self._given_up(oracle, state) is not None:
            return None
        status: Status | None = self.polisher.terminate(oracle, state.polisher)
        if not state.answered or (state.answer and status is not None and status_name(status) == "solved"):
            return status
        return None if self._left(oracle, state) is None else Status.acceptable

    def finish(self, oracle: OptimalControlOracle, state: HybridState) -> Findings:
        """The certificate of the solver that found the point; one that was drawn and not polished falls short."""
        if state.polishing:
            return self.polisher.finish(oracle, state.polisher)
        found = self.sampler.finish(oracle, state.sampler)
        why = "the best point was drawn, the gradient solver did not reach it"
        return dataclasses.replace(found, shortfalls=[*found.shortfalls, why])
