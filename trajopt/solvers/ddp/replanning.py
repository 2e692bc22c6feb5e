"""One iteration of iLQR or DDP from a measured state as one compiled program: what a receding horizon runs again and again.

A plan is shifted by the time that has passed since it was made, rolled out from the measured state with its feedback, and
improved by one iteration: expansion, backward pass, line search. From the state where a solver stands, n such iterations without
a shift are n iterations of that solver. Where the robot can brake (`braking`), the tail of a shifted plan holds its last
posture, and braking at once is where the iteration starts from if that is cheaper.

Constraints enter through their augmented Lagrangian, which is carried along (`subproblems.carried`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.effort import Effort
from trajopt.errors import OptionError
from trajopt.problems import programs
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.braking import braking_plan, ending_at_rest
from trajopt.solvers.ddp.iteration import Iteration
from trajopt.solvers.ddp.reports import Direction, Iterate, Report
from trajopt.solvers.plan import (
    Plan,
    Replanned,
    acted,
    begun,
    beyond,
    check_replannable,
    same_structure,
    shifted_rows,
    shifted_states,
)
from trajopt.solvers.subproblems import augmented_lagrangian as al
from trajopt.solvers.subproblems.carried import Carried, CarriedRule, largest_rows
from trajopt.solvers.subproblems.riccati import Policy

GAIN = 1e-6  # of the cost: less is no gain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What an iteration leaves for the next: the damping, and what is carried of the constraints."""

    damping: Any
    carried: Carried


@subject("iteration")
@dataclasses.dataclass(frozen=True)
class Replanning:
    """The programs of a receding horizon for one problem and the options of one solver. brakes: `braking.can_brake`;
    gain_damping: added to R_t where the gains of a plan are made, not where its step is."""

    iteration: Iteration
    damping: float
    rule: CarriedRule
    brakes: bool
    gain_damping: float

    def __post_init__(self) -> None:
        modeller = self.iteration.modeller
        if modeller.multiple or modeller.aware:
            raise OptionError(
                "a receding horizon takes iLQR or DDP with shooting='single', and a gradient mode that needs no direction of the "
                "loss"
            )

    @property
    def problem(self) -> OptimalControlProblem:
        return self.iteration.problem

    def on(self, problem: OptimalControlProblem) -> Replanning:
        """The same for a problem with other numbers."""
        return dataclasses.replace(self, iteration=self.iteration.on(problem))

    def first(self) -> Plan:
        """The problem's guess without feedback."""
        problem, carried = self.problem, self.rule.first(self.iteration.modeller.constraints)
        guess, dtype = problem.initial_point, problem.dtype
        gains = np.zeros((problem.horizon, problem.nu, problem.n), dtype)
        memory = Memory(np.asarray(self.damping, dtype), carried)
        return Plan(np.asarray(guess.xs), np.asarray(guess.us), gains, memory)

    def replan(
        self,
        x0: Float[Array, " nx"],
        start_time: Float[Array, ""],
        shift: Float[Array, ""],
        plan: Plan,
        offered: Plan | None,
    ) -> Replanned:
        """The plan after one iteration from x0 at `start_time` (s), having been made `shift` knots ago; offered: another one,
        which the iteration starts if it is cheaper."""
        problem = begun(self.problem, x0, start_time)
        iteration = self.iteration.on(problem)
        plan = self.shifted(plan, shift)
        memory = plan.memory
        multipliers = memory.carried.multipliers
        motion, gains, before = self._start(iteration, x0, plan, offered)
        model = iteration.modeller.expand(motion, multipliers)
        curvature = None
        if iteration.curvature.kind == "computed":
            blank, at = jnp.asarray(iteration.curvature.blank(problem)), (motion, model)
            curvature = iteration.curvature.after(iteration.modeller, blank, at, at, jnp.zeros((), x0.dtype))
        iterate = Iterate(motion, model, memory.damping, jnp.zeros((), x0.dtype), curvature)
        moved, report = iteration.step(iterate, multipliers)
        optimal, undamped = self._optimal(iteration, iterate, moved, report)
        # Damping that is raised where nothing is to be gained, as at rest, says nothing about the next plan; nor do its gains.
        told = report.accepted & ~optimal
        gains = jnp.where(optimal, undamped, gains)
        moved = dataclasses.replace(moved, damping=jnp.where(told, moved.damping, memory.damping))
        gains = jnp.where(told, self._gains(iteration, iterate, report), gains)
        memory, cost, violation = self._judged(iteration, moved, report, memory)
        new = Plan(moved.motion.xs, moved.motion.us, gains, memory)
        finite = jnp.isfinite(jnp.concatenate([jnp.ravel(leaf) for leaf in (new.xs, new.us, gains)])).all()
        cost = jnp.where(report.accepted, cost, model.cost)
        return Replanned(new, before, cost, report.accepted | optimal, finite, violation)

    def _gains(self, iteration: Iteration, iterate: Iterate, report: Report) -> Array:
        """Of the accepted step, or with `gain_damping` smaller ones: gains hold in the contacts of their plan alone, and large
        ones leave these after a small error."""
        if not self.gain_damping:
            return report.gains
        damping = jnp.maximum(iterate.damping, self.gain_damping)
        K = iteration.backward_pass(iterate.motion, iterate.model, damping).policy.K[:, :, : self.problem.n]
        return jnp.where(jnp.isfinite(K).all(), K, report.gains)

    def _optimal(self, iteration: Iteration, iterate: Iterate, moved: Iterate, report: Report) -> tuple[Array, Array]:
        """(whether a step was refused, or its damping raised, where there was nothing to find: what the undamped model promises
        is less than the share `GAIN` of the cost; the gains of that model)."""
        motion, model = iterate.motion, iterate.model
        none = jnp.zeros_like(model.cost)

        def undamped() -> tuple[Array, Array]:
            found = iteration.backward_pass(motion, model, none)
            return -found.total, found.policy.K[:, :, : self.problem.n]

        fine = report.accepted & (moved.damping <= iterate.damping)
        promised, K = jax.lax.cond(fine, lambda: (jnp.full_like(model.cost, jnp.inf), report.gains), undamped)
        return promised <= GAIN * jnp.maximum(jnp.abs(model.cost + model.augmented), GAIN), K

    def control(
        self, x: Float[Array, " nx"], time: Float[Array, ""], xs: Float[Array, "T1 nx"], us: Float[Array, "T nu"],
        gains: Float[Array, "T nu n"],
    ) -> Float[Array, " nu"]:  # fmt: skip
        """u at the state x, `time` knots after the plan begins; beyond its end the last control and state are held."""
        return acted(self.problem, x, time, xs, us, gains)

    def shifted(self, plan: Plan, shift: Float[Array, ""]) -> Plan:
        """The plan `shift` knots later: states along the shortest way, held controls as their mean over each new interval; what
        lies beyond the end as at the end, or braking there."""
        problem, memory = self.problem, plan.memory
        xs = shifted_states(problem, plan.xs, shift)
        new = Plan(xs, shifted_rows(plan.us, shift), shifted_rows(plan.gains, shift))
        if memory is not None:
            carried = self.rule.shifted(self.iteration.modeller.constraints, memory.carried, shift)
            new = dataclasses.replace(new, memory=Memory(memory.damping, carried))
        if not self.brakes:
            return new
        return ending_at_rest(problem, new, plan.xs[-1], beyond(problem.horizon, shift, plan.us.dtype))

    def _start(
        self, iteration: Iteration, x0: Array, plan: Plan, offered: Plan | None
    ) -> tuple[Trajectory, Array, Array]:
        """(the motion the iteration starts from, its gains, its cost): the cheapest of the shifted plan, braking and the offered
        one."""
        candidates = [dataclasses.replace(plan, memory=None)]
        candidates += [braking_plan(iteration.problem, x0)] if self.brakes else []
        candidates += [] if offered is None else [offered]
        if len(candidates) == 1:
            motion, merit = self._followed(iteration, plan, x0, plan.memory.carried.multipliers)
            return motion, plan.gains, merit
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *candidates)
        motions, merits = jax.vmap(lambda one: self._followed(iteration, one, x0, plan.memory.carried.multipliers))(together)
        best = jnp.argmin(jnp.where(jnp.isfinite(merits), merits, jnp.inf))
        motion, gains = jax.tree.map(lambda leaf: leaf[best], (motions, together.gains))
        return motion, gains, merits[best]

    def _followed(
        self, iteration: Iteration, plan: Plan, x0: Array, multipliers: al.Multipliers
    ) -> tuple[Trajectory, Array]:
        """(the motion from x0 under the plan's feedback, its augmented cost)."""
        p = jnp.zeros(0, x0.dtype)
        zero, T, n = jnp.zeros((), x0.dtype), self.problem.horizon, self.problem.n
        policy = Policy(
            plan.gains, jnp.zeros_like(plan.us), jnp.zeros((T + 1, n, n), x0.dtype), jnp.zeros((T + 1, n), x0.dtype),
            jnp.zeros(T + 1, x0.dtype), zero, zero, jnp.ones((), bool),
        )  # fmt: skip
        direction = Direction(policy, jnp.zeros(n, x0.dtype), zero, zero)
        return iteration.follow(x0, Trajectory(plan.xs, plan.us, p), direction, jnp.ones((), x0.dtype), multipliers)

    def _judged(
        self, iteration: Iteration, moved: Iterate, report: Report, memory: Memory
    ) -> tuple[Memory, Array, Array]:
        """(the memory after an iteration, the cost of its motion without the rows' part, the rows' largest violations)."""
        problem, constraints, merit = iteration.problem, iteration.modeller.constraints, report.merit
        before = moved.model.cost + moved.model.augmented
        if not problem.constrained:
            return dataclasses.replace(memory, damping=moved.damping), merit, jnp.zeros(0, merit.dtype)
        rows = constraints.along(moved.motion)
        cost = merit - constraints.added(memory.carried.multipliers, rows)
        old, new = memory.carried, self.rule.after(constraints, memory.carried, rows)
        full = (report.length == 1) & (moved.damping <= memory.damping)
        due = ~report.accepted | (full & self.rule.due(constraints, old, rows, before - report.merit))
        carried = jax.tree.map(lambda a, b: jnp.where(due, a, b), new, old)
        return Memory(moved.damping, carried), cost, largest_rows(constraints, rows)


class GradientPlanner(WithoutCaches):
    """Plans by iterations of iLQR or DDP (`solvers.plan.Planner`); effort: that of the oracle of the problem."""

    def __init__(self, replanning: Replanning, effort: Effort, offers: bool = False) -> None:
        check_replannable(replanning.problem)
        self.replanning, self.effort, self.offers = replanning, effort, offers

    @property
    def problem(self) -> OptimalControlProblem:
        """What is solved."""
        return self.replanning.problem

    @functools.cached_property
    def _subject(self) -> Replanning:
        """With the numbers of the problem where the programs run: copied once, not with every call."""
        return jax.device_put(self.replanning)

    def on(self, problem: OptimalControlProblem) -> GradientPlanner:
        """The same for a problem with other numbers; the dynamics stay."""
        own = dataclasses.replace(problem, dynamics=self.problem.dynamics, validate=False)
        other = GradientPlanner(self.replanning.on(own), self.effort, self.offers)
        if "_programs" in vars(self) and same_structure(other.replanning, self.replanning):
            vars(other)["_programs"] = self._programs
        return other

    def compile(self) -> float:
        """Compile what plans take, unless it is there; returns the seconds that took."""
        return 0.0 if "_programs" in vars(self) else self._programs[2]

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any, float]:
        """The programs of an iteration and of the control, and the seconds that compiling them took."""
        problem = self.problem
        x = jax.ShapeDtypeStruct(problem.x0.shape, problem.dtype)
        number = jax.ShapeDtypeStruct((), problem.dtype)
        plan = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self.first())
        offered = dataclasses.replace(plan, memory=None) if self.offers else None
        iterate: Any
        control: Any
        arguments = x, number, number, plan, offered
        iterate, first = programs.compiled(Replanning.replan, self._subject, *arguments, effort=self.effort)
        control, second = programs.compiled(Replanning.control, self._subject, x, number, plan.xs, plan.us, plan.gains)
        return iterate.func, control.func, first + second

    def first(self) -> Plan:
        """The problem's guess without feedback."""
        return self.replanning.first()

    def replan(
        self, x: Float[np.ndarray, " nx"], time_s: float, shift: float | None, plan: Plan, offered: Plan | None = None
    ) -> Replanned:
        """One iteration from x at the time `time_s` of a plan made `shift` knots ago; None: another one of the same solve."""
        dtype = self.problem.dtype
        numbers = (np.asarray(value, dtype) for value in (self.problem.start_time + time_s, shift or 0.0))
        return jax.block_until_ready(self._programs[0](self._subject, x, *numbers, plan, offered))

    def control(self, x: Float[np.ndarray, " nx"], time: float, plan: Plan) -> Float[np.ndarray, " nu"]:
        """u at the state x, `time` knots after the plan begins."""
        at = np.asarray(time, self.problem.dtype)
        return np.asarray(self._programs[1](self._subject, x, at, plan.xs, plan.us, plan.gains))
