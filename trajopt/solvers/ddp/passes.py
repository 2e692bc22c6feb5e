"""The outer rules of iLQR and DDP, as one pure function of arrays: `Passes.step`.

A pass is either an update of multipliers and penalties or one iteration (`iteration`), and ends with the model at the motion it
leads to. A step makes passes until an iteration is accepted or the run ends. The loop that drives a single solver calls it once
for each iteration that it reports (`ilqr`); a batch calls it in a loop of its own, mapped over samples (`solvers.batch`). What
changes from sample to sample, or between the stages of an outer loop over systems, are the numbers of the problem: `Passes.on`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.problems.expansions import relabels
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.iteration import DAMPING, DAMPING_FACTOR, Iteration
from trajopt.solvers.ddp.reports import Iterate, Report
from trajopt.solvers.loop.contract import CODES, GOING_ON
from trajopt.solvers.subproblems.augmented_lagrangian import SLIGHT, Multipliers, PenaltyRule, Schedule
from trajopt.solvers.subproblems.batching import iterate

PATIENCE = 10  # steps whose effect on the cost counts as none, in a row, without a more stationary point
# Where derivatives are complementarity-aware, steps may go on for ever that change next to nothing: relative change of the cost
# that counts as none there, and share of the least stationarity that counts as a lower one.
STAGNATION, BETTER = 1e-6, 0.9
MOST_PASSES = 1000  # until a step is accepted or the iteration ends; updates that lead nowhere end it long before
COST_ROUNDING = 1e-12  # relative difference of two costs that says nothing

NO_UPDATE, OF_MULTIPLIERS, OF_PENALTIES = 0, 1, 2  # what the next pass updates; the last one: both


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands: the motion with its model; the multipliers and their schedule; what the next pass updates; the least
    stationarity of the present minimisation, and how many steps in a row neither lowered it nor the cost; how the run ended
    (`loop.codes`); the first step that was not finite."""

    iterate: Iterate
    schedule: Schedule
    update: Any
    least_stationarity: Any
    stagnant: Any
    code: Any
    bad_step: Any

    @property
    def multipliers(self) -> Multipliers:
        return self.schedule.multipliers


class Summary(NamedTuple):
    """What a step is about, in numbers: cost (not a number of a motion that is not finite), violation and stationarity where it
    led; its size; rollouts tried, passes made; how the run ended; whether a step was accepted."""

    cost: Any
    violation: Any
    stationarity: Any
    step_size: Any
    trials: Any
    passes: Any
    code: Any
    accepted: Any

    @property
    def converged(self) -> Any:
        """Whether the motion is stationary and feasible."""
        return self.code == CODES["solved"]


def better(new: Any, old: Any, tolerance: float) -> Any:
    """Whether `new` is the point to return of two: less violation beyond the tolerance, then convergence, then a lower cost, then
    at equal costs less stationarity.

    Both have cost, violation, stationarity and converged, as numbers or as arrays.
    """
    margin = COST_ROUNDING * abs(old.cost)
    as_cheap = (new.cost <= old.cost + margin) & (new.stationarity < old.stationarity)
    preferred = (new.cost < old.cost - margin) | as_cheap
    preferred = (new.converged > old.converged) | ((new.converged == old.converged) & preferred)
    both_within = (new.violation <= tolerance) & (old.violation <= tolerance)
    nearer = (new.violation < old.violation) & (old.violation > tolerance)
    return (new.cost == new.cost) & (nearer | ((both_within | (new.violation == old.violation)) & preferred))


@subject("iteration", "rule")
@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one problem under the options of one solver.

    tolerance, relaxed: of the stationarity, relative to its scale: of a motion that is solved, and of one that is acceptable
    where the run gives up.
    """

    iteration: Iteration
    rule: PenaltyRule
    tolerance: float
    relaxed: float
    max_inner_iterations: int

    @property
    def problem(self) -> OptimalControlProblem:
        return self.iteration.problem

    def on(self, problem: OptimalControlProblem) -> Passes:
        """The same for a problem with other numbers, which may be traced."""
        iteration = self.iteration.on(problem)
        rule = dataclasses.replace(self.rule, constraints=iteration.modeller.constraints)
        return dataclasses.replace(self, iteration=iteration, rule=rule)

    def blank(self, motion: Trajectory, penalty: float, damping: float) -> Progress:
        """The state at a motion, a rollout or in multiple shooting states that need not obey the dynamics, before its model is
        made."""
        dtype, none = self.problem.dtype, np.zeros((), np.int32)
        curvature = self.iteration.curvature.blank(self.problem)
        start = Iterate(
            motion, self.iteration.modeller.blank(), np.asarray(damping, dtype), np.zeros((), dtype), curvature
        )
        huge, code, bad_step = np.full((), np.inf, dtype), np.full((), GOING_ON, np.int32), np.full((), -1, np.int32)
        return Progress(start, self.rule.first(penalty), none, huge, none, code, bad_step)

    def step(
        self, act: Bool[Array, ""], state: Progress
    ) -> tuple[Progress, Float[Array, "T nu n"], Float[Array, " s"]]:
        """(the state after passes up to an accepted step or the end, the gains of the last pass, a `Summary` as one array).

        Without `act` only the model is made, or made anew.
        """

        def one(carry: tuple[Progress, Report, Array], _: Array) -> tuple[Any, Bool[Array, ""]]:
            before, trials = carry[0], carry[2]
            new, report = self._passed(before, act)
            return (new, report, trials + report.trials), report.accepted | (new.code != GOING_ON) | ~act

        if self._constrained:
            first = state, self.iteration.report(state.iterate.motion.us.dtype), jnp.zeros((), jnp.int32)
            last, passes = iterate(one, first, MOST_PASSES)
            new, report, trials = last
        else:
            new, report = self._passed(state, act)
            trials, passes = report.trials, jnp.ones((), jnp.int32)
        model = new.iterate.model
        cost = jnp.where(model.bad_step < 0, model.cost, jnp.nan)
        numbers = Summary(
            cost, model.violation, model.stationarity, report.step_size, trials, passes, new.code, report.accepted
        )
        return new, report.gains, jnp.stack([jnp.asarray(number, cost.dtype) for number in numbers])

    def _passed(self, state: Progress, act: Bool[Array, ""]) -> tuple[Progress, Report]:
        """(the state after one pass, what its iteration did)."""
        updates = jnp.zeros((), bool)
        if self._constrained:
            updates = (state.update != NO_UPDATE) & act
            model, grow = state.iterate.model, state.update == OF_PENALTIES
            new = self.rule.after(state.schedule, model.rows, model.violation, grow)
            schedule = jax.tree.map(lambda a, b: jnp.where(updates, a, b), new, state.schedule)
            state = dataclasses.replace(state, schedule=schedule)
        moves = ~updates & act
        at, report = self.iteration.advance(moves, state.iterate, state.multipliers)
        return self._judged(state, at, report, updates, moves), report

    def _judged(self, before: Progress, at: Iterate, report: Report, updates: Array, moves: Array) -> Progress:
        """The state after a pass, which was an update, or a move by an iteration, or neither."""
        moved, failed = moves & report.accepted, moves & ~report.accepted
        more_stationary = at.model.stationarity < (BETTER if self._relabels else 1.0) * before.least_stationarity
        least = jnp.where(updates, jnp.inf, before.least_stationarity)
        stagnant = jnp.where(updates, 0, before.stagnant)
        stagnant = jnp.where(moved, self._stagnation(before, at, report, more_stationary), stagnant)
        stalled = moved & (stagnant > PATIENCE)
        schedule = before.schedule.with_steps(moved.astype(jnp.int32))
        kind = jnp.where((report.trials > 0) & ~report.finite_trial, CODES["non_finite"], CODES["line_search_failed"])
        kind = jnp.where(stalled, CODES["stalled"], kind)
        gave_up, final = failed | stalled, self._final(before, at, kind)
        bad = jnp.where((at.model.bad_step < 0) & failed & ~report.finite_trial, report.bad_step, at.model.bad_step)
        hopeless = updates & schedule.hopeless
        return Progress(
            iterate=dataclasses.replace(at, damping=self._damping(before, at, report, moved, more_stationary)),
            schedule=schedule,
            update=self._next_update(before, schedule, at, report, moved, gave_up & ~final),
            least_stationarity=jnp.where(moved, jnp.minimum(at.model.stationarity, least), least),
            stagnant=stagnant.astype(before.stagnant.dtype),
            code=self._code(at, gave_up & final, jnp.where(hopeless, CODES["infeasible"], kind), hopeless),
            bad_step=bad.astype(before.bad_step.dtype),
        )

    # -- when to stop --------------------------------------------------------------------------------------------------

    def _code(self, at: Iterate, gave_up: Array, kind: Array, hopeless: Array) -> Int[Array, ""]:
        """How the run ends at a motion: solved; given up, or acceptable where it is nearly stationary; or not yet."""
        model, feasible = at.model, at.model.excess <= self.problem.tolerance
        nearly = feasible & (model.stationarity <= self.relaxed * model.scale) & (kind != CODES["non_finite"])
        gave_up_code = jnp.where(nearly & ~hopeless, CODES["acceptable"], kind)
        code = jnp.where(gave_up | hopeless, gave_up_code, GOING_ON)
        solved = feasible & (model.stationarity <= self.tolerance * model.scale)
        return jnp.where(solved, CODES["solved"], code).astype(jnp.int32)

    def _stagnation(self, before: Progress, at: Iterate, report: Report, more_stationary: Array) -> Int[Array, ""]:
        """How many steps in a row, the last one included, were of no use."""
        idle = report.rounded
        if self._relabels:
            old = before.iterate.model.cost
            idle = idle | (jnp.abs(at.model.cost - old) <= STAGNATION * jnp.abs(old))
        return jnp.where(more_stationary | ~idle, 0, before.stagnant + 1)

    def _final(self, before: Progress, at: Iterate, kind: Array) -> Bool[Array, ""]:
        """Whether giving up ends the run. With constraints other multipliers may allow a step; where they have just been updated
        and the motion is feasible, none do."""
        if not self._constrained:
            return jnp.ones((), bool)
        return (before.schedule.fresh & (at.model.violation <= self.problem.tolerance)) | (kind == CODES["non_finite"])

    # -- when to update the multipliers --------------------------------------------------------------------------------

    def _next_update(
        self, before: Progress, schedule: Schedule, at: Iterate, report: Report, moved: Array, forced: Array
    ) -> Int[Array, ""]:
        """What the next pass updates: both where the minimisation is good enough or can go no further, the multipliers alone
        where it takes too long, as violations then say nothing about the penalties. A step comes between two updates, if
        there is one."""
        if not self._constrained:
            return jnp.full((), NO_UPDATE, jnp.int32)
        model = at.model
        enough = self.rule.inner_tolerance(schedule.multipliers, model.rows, model.excess)
        # Relative to what cancels, whatever its units.
        minimised = model.stationarity <= jnp.maximum(enough * model.pull, self.tolerance * model.scale)
        minimised = minimised | (moved & self._slight(before, at, report))
        late = jnp.where(schedule.inner_iterations >= self.max_inner_iterations, OF_MULTIPLIERS, NO_UPDATE)
        free = jnp.where(schedule.fresh, NO_UPDATE, jnp.where(minimised, OF_PENALTIES, late))
        return jnp.where(forced, OF_PENALTIES, free).astype(jnp.int32)

    def _slight(self, before: Progress, at: Iterate, report: Report) -> Bool[Array, ""]:
        """Whether a full, undamped step gained little beside what an update is worth, sum w e^2 / 2 over the rows' excess e."""
        model, old, tolerance = at.model, before.iterate.model, self.problem.tolerance
        gain = old.cost + old.augmented - model.cost - model.augmented
        worth = self.rule.constraints.worth(before.multipliers, model.rows)
        full = (report.length == 1) & (at.damping == 0) & (jnp.maximum(old.gap, model.gap) <= tolerance)
        return full & (model.excess > tolerance) & (jnp.abs(gain) <= SLIGHT * worth)

    def _damping(self, before: Progress, at: Iterate, report: Report, moved: Array, more_stationary: Array) -> Array:
        """The line search cannot tell a good step whose effect drowns in rounding: where Gauss-Newton Hessians are so flat that
        its steps lead away from the minimum, more damping shortens them."""
        old = before.iterate.damping
        raised = jnp.minimum(jnp.maximum(DAMPING_FACTOR * old, DAMPING[0]), DAMPING[1])
        return jnp.where(moved & report.rounded, jnp.where(more_stationary, old, raised), at.damping)

    @property
    def _constrained(self) -> bool:
        return self.problem.constrained

    @property
    def _relabels(self) -> bool:
        """Directions from other labels than the true ones may go on for ever in steps that change next to nothing."""
        return relabels(self.problem, self.iteration.modeller.gradient)
