"""What iLQR and DDP decide between two iterations, as a pure function of arrays.

A pass is either an update of multipliers and penalties or one iteration (`iteration`), and ends with the model at the motion that
it leads to. A batch makes all passes inside one program (`solvers.batch`); `ilqr` makes those up to the next accepted step, which
the loop that drives it reports.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.problems.expansions import relabels
from trajopt.problems.ocp import Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.iteration import DAMPING, DAMPING_FACTOR, Iteration
from trajopt.solvers.ddp.reports import Iterate, Report
from trajopt.solvers.loop.codes import CODES, GOING_ON
from trajopt.solvers.subproblems.augmented_lagrangian import (
    STUBBORN_UPDATES,
    Multipliers,
    PenaltyRule,
)
from trajopt.solvers.subproblems.iterate import iterate

PATIENCE = 10  # steps whose effect on the cost counts as none, in a row, without a more stationary point
# Where derivatives are complementarity-aware, steps may go on for ever that change next to nothing: relative change of the cost
# that counts as none there, and share of the least stationarity that counts as a lower one.
STAGNATION, BETTER = 1e-6, 0.9
# Of what an update of the multipliers is worth: a full step that gains less has ended a minimisation. benchmarks/ur5_reach.py
# with the damped cost: 0 (never) 21 iterations, 0.1: 18, 0.5: 16, 1: 15; effort alone: 19 of 20 are solved up to 0.5, 17 at 1.
SLIGHT = 0.5
MOST_PASSES = 1000  # until a step is accepted or the iteration ends; updates that lead nowhere end it long before


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """Where an iteration stands.

    iterate; multipliers, the excess of their rows at the last update, the iterations of the present minimisation, the violation
    at the last update and the updates in vain (`augmented_lagrangian`); whether the last step gained little beside an update; the
    least stationarity of the present minimisation, and how many steps in a row neither lowered it nor the cost; whether the last
    pass was an update, whether the next one has to be; whether the motion is stationary and feasible; why the iteration ended
    (`loop.codes`); the first step that was not finite.
    """

    iterate: Iterate
    multipliers: Multipliers
    excess: tuple[Any, Any]
    inner_iterations: Any
    last_violation: Any
    stubborn: Any
    slight: Any
    least_gradient: Any
    stagnant: Any
    updated: Any
    forced: Any
    converged: Any
    code: Any
    bad_step: Any


class Summary(NamedTuple):
    """What the loop is told of a step: cost, violation and stationarity of the model there; the size of the step, the rollouts
    tried and passes made; why the iteration ended, whether it converged and accepted a step; the first step that was not finite.
    """

    cost: Any
    violation: Any
    stationarity: Any
    step_size: Any
    tried: Any
    made: Any
    code: Any
    converged: Any
    accepted: Any
    bad_step: Any


@subject("iteration", "rule")
@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one problem under the options of one solver; tolerance: of the stationarity."""

    iteration: Iteration
    rule: PenaltyRule
    tolerance: float
    max_inner_iterations: int

    def blank(self, motion: Trajectory, penalty: float, damping: float) -> Progress:
        """The state at a motion, a rollout or in multiple shooting states that need not obey the dynamics, before its model is
        made."""
        modeller, problem = self.iteration.modeller, self.iteration.problem
        dtype = problem.dtype
        multipliers = self.rule.constraints.initial(penalty)
        zero, none = np.zeros((), dtype), np.zeros((), np.int32)
        curvature = self.iteration.curvature.blank(problem)
        no, huge = np.zeros((), bool), np.full((), np.inf, dtype)
        start = Iterate(motion, modeller.blank(), np.asarray(damping, dtype), zero, curvature)
        excess = tuple(np.full_like(w, np.inf) for w in (multipliers.stage_penalty, multipliers.terminal_penalty))
        going_on, bad = np.full((), GOING_ON, np.int32), np.full((), -1, np.int32)
        return Progress(start, multipliers, excess, none, huge, none, no, huge, none, no, no, no, going_on, bad)

    def begun(self, motion: Trajectory, penalty: float, damping: float) -> Progress:
        """The state at a motion, with the model there."""
        state = jax.tree.map(jnp.asarray, self.blank(motion, penalty, damping))
        model = self.iteration.modeller.expand(motion, state.multipliers)
        state = dataclasses.replace(state, iterate=dataclasses.replace(state.iterate, model=model))
        return self._with_convergence(state)

    def _with_convergence(self, state: Progress) -> Progress:
        model = state.iterate.model
        stationary = model.stationarity <= self.tolerance * model.scale
        return dataclasses.replace(state, converged=stationary & (model.excess <= self._feasible))

    def step(self, act: Bool[Array, ""], state: Progress) -> tuple[Progress, Report, Int[Array, ""], Int[Array, ""]]:
        """(the state after passes up to an accepted step or the end, what the last pass did, rollouts tried, passes).

        Without `act` only the model is made anew.
        """
        if not self._constrained:
            new, report = self.make(state, act)
            return new, report, report.trials, jnp.ones((), jnp.int32)

        def one(
            carry: tuple[Progress, Report, Array], number: Array
        ) -> tuple[tuple[Progress, Report, Array], Bool[Array, ""]]:
            before, _, tried = carry
            new, report = self.make(before, act)
            ended = report.accepted | new.converged | (new.code != GOING_ON) | ~act
            return (new, report, tried + report.trials), ended

        first = state, self.iteration.report(state.iterate.motion.us.dtype), jnp.zeros((), jnp.int32)
        (new, report, tried), passes = iterate(one, first, MOST_PASSES)
        return new, report, tried, passes

    def summarised_step(
        self, act: Bool[Array, ""], state: Progress
    ) -> tuple[Progress, Float[Array, "T nu n"], Float[Array, " s"]]:
        """(the state after `step`, the gains of its last pass, the numbers of a `Summary`): one array is read for them."""
        new, report, tried, passes = self.step(act, state)
        model = new.iterate.model
        numbers = Summary(
            model.cost, model.violation, model.stationarity, report.step_size, tried, passes, new.code, new.converged,
            report.accepted, model.bad_step,
        )  # fmt: skip
        return new, report.gains, jnp.stack([jnp.asarray(number, model.cost.dtype) for number in numbers])

    def make(self, state: Progress, act: Bool[Array, ""] | bool = True) -> tuple[Progress, Report]:
        """(the state after one pass, what its iteration did; of an update `Report.trials` is 0); without `act` only the model is
        made anew."""
        due = self._due(state) & act
        state = self._updated(state, due) if self._constrained else state
        moves = ~due & act
        new, report = self.iteration.advance(moves, state.iterate, state.multipliers)
        return self._judged(state, new, report, due, moves), report

    @property
    def _constrained(self) -> bool:
        return self.iteration.problem.constrained

    @property
    def _feasible(self) -> float:
        return self.iteration.problem.tolerance

    def _due(self, state: Progress) -> Bool[Array, ""]:
        """Whether multipliers are to be updated."""
        if not self._constrained:
            return jnp.zeros((), bool)
        minimised, late = self._minimised(state), state.inner_iterations >= self.max_inner_iterations
        return state.forced | (~state.updated & (minimised | late))

    def _minimised(self, state: Progress) -> Bool[Array, ""]:
        """Whether the present minimisation is good enough for an update."""
        model = state.iterate.model
        enough = self.rule.inner_tolerance(state.multipliers, model.rows, model.excess)
        # Relative to what cancels, whatever its units.
        return (model.stationarity <= jnp.maximum(enough * model.pull, self.tolerance * model.scale)) | state.slight

    def _slight(self, before: Progress, at: Iterate, report: Report) -> Bool[Array, ""]:
        """Whether a full, undamped step gained little beside what an update is worth, sum w e^2 / 2 over the rows' excess e."""
        model, old = at.model, before.iterate.model
        gain = old.cost + old.augmented - model.cost - model.augmented
        worth = self.rule.worth(before.multipliers, model.rows)
        full = (report.length == 1) & (at.damping == 0) & (jnp.maximum(old.gap, model.gap) <= self._feasible)
        return full & (model.excess > self._feasible) & (jnp.abs(gain) <= SLIGHT * worth)

    def _updated(self, state: Progress, due: Array) -> Progress:
        """The state with multipliers, penalties and inner tolerance after an inner minimisation, where one is `due`."""
        model = state.iterate.model
        ended = state.forced | self._minimised(state)  # else violations say nothing about the penalties
        multipliers, excess = self.rule.updated(state.multipliers, model.rows, state.excess, ended)
        penalties = (multipliers.stage_penalty, multipliers.terminal_penalty)
        largest = jnp.stack([jnp.max(w, initial=0.0) for w in penalties]).max()
        falling = (model.violation <= 0.9 * state.last_violation) | (model.violation <= self._feasible)
        in_vain = (largest >= self.rule.largest) & ~falling
        stubborn = jnp.where(in_vain, state.stubborn + 1, 0)
        new = dataclasses.replace(
            state,
            multipliers=multipliers,
            excess=excess,
            inner_iterations=jnp.zeros_like(state.inner_iterations),
            last_violation=jnp.minimum(model.violation, state.last_violation),
            stubborn=stubborn.astype(state.stubborn.dtype),
            slight=jnp.zeros_like(state.slight),
            least_gradient=jnp.full_like(state.least_gradient, jnp.inf),
            stagnant=jnp.zeros_like(state.stagnant),
            code=jnp.where(stubborn >= STUBBORN_UPDATES, CODES["infeasible"], state.code).astype(state.code.dtype),
        )
        return jax.tree.map(lambda a, b: jnp.where(due, a, b), new, state)

    def _judged(self, before: Progress, at: Iterate, report: Report, due: Array, moves: Array) -> Progress:
        """The state after a pass: whether it converged, stagnates, or found no step."""
        model, old = at.model, before.iterate.model
        moved, failed = moves & report.accepted, moves & ~report.accepted
        better = model.stationarity < (BETTER if self._relabels else 1.0) * before.least_gradient
        idle = report.rounded | (
            jnp.asarray(self._relabels) & (jnp.abs(model.cost - old.cost) <= STAGNATION * jnp.abs(old.cost))
        )
        stagnant = jnp.where(moved, jnp.where(better | ~idle, 0, before.stagnant + 1), before.stagnant)
        stalled = moved & (stagnant > PATIENCE)
        kind = jnp.where((report.trials > 0) & ~report.finite_trial, CODES["non_finite"], CODES["line_search_failed"])
        kind = jnp.where(stalled, CODES["stalled"], kind)
        gave_up = failed | stalled
        # No step under these multipliers: others may allow one, and where none do, the problem is infeasible.
        final = before.updated & (model.violation <= self._feasible)
        final = jnp.asarray(not self._constrained) | final
        final = final | (kind == CODES["non_finite"])
        bad = jnp.where((model.bad_step < 0) & failed & ~report.finite_trial, report.bad_step, model.bad_step)
        after = dataclasses.replace(
            before,
            iterate=dataclasses.replace(at, damping=self._damping(before, at, report, moved, better)),
            inner_iterations=before.inner_iterations + moves.astype(jnp.int32),
            slight=moved & self._slight(before, at, report),
            least_gradient=jnp.where(
                moved, jnp.minimum(model.stationarity, before.least_gradient), before.least_gradient
            ),
            stagnant=stagnant.astype(before.stagnant.dtype),
            updated=due | (before.updated & ~moved),
            forced=jnp.where(moves | due, gave_up & ~final, before.forced),
            code=jnp.where(gave_up & final, kind, before.code).astype(before.code.dtype),
            bad_step=bad.astype(before.bad_step.dtype),
        )
        return self._with_convergence(after)

    def _damping(self, before: Progress, at: Iterate, report: Report, moved: Array, better: Array) -> Array:
        """The line search cannot tell a good step whose effect drowns in rounding: where Gauss-Newton Hessians are so flat that
        its steps lead away from the minimum, more damping shortens them."""
        old = before.iterate.damping
        raised = jnp.minimum(jnp.maximum(DAMPING_FACTOR * old, DAMPING[0]), DAMPING[1])
        return jnp.where(moved & report.rounded, jnp.where(better, old, raised), at.damping)

    @property
    def _relabels(self) -> bool:
        """Directions from other labels than the true ones may go on for ever in steps that change next to nothing."""
        modeller = self.iteration.modeller
        return relabels(modeller.problem, modeller.gradient)
