"""One generation from a measured state: what a receding horizon runs again and again.

The mean of the last distribution, shifted by the time that has passed, is where a new solve begins, with the deviations that the
solver starts from (`standard_deviation`) times `SPREAD`; the generations of a solve go on from each other. Rated are the mean,
the plan that acts and the draws, in one compiled program; the best of them is the new plan. There is no certificate.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from trajopt.dynamics.copies import WithoutCaches
from trajopt.errors import OptionError
from trajopt.problems import programs
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory
from trajopt.solvers.plan import Plan, Replanned, begun, check_replannable, place, same_structure
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation, GenerationProgram, batch_size
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints
from trajopt.solvers.subproblems.carried import Carried, CarriedRule, carried_rule, largest_rows

if TYPE_CHECKING:
    from trajopt.solvers.sampling.search import SamplingSolver

POPULATION = 64  # draws of a generation in the loop by default
SPREAD = 0.5  # of a solve's first distribution, as a share of the deviations at the start


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a generation leaves for the next: the distribution, the acting plan in y, what is carried of the constraints, and how
    many generations there were."""

    distribution: Any
    incumbent: Float[np.ndarray, " d"]
    carried: Carried
    generation: int


@programs.subject("program")
@dataclasses.dataclass(frozen=True)
class Rating:
    """The program that rates the candidates of a generation."""

    program: GenerationProgram
    rule: CarriedRule

    def rate(
        self,
        data: dict[str, Float[Array, "..."]],
        x0: Float[Array, " nx"],
        start_time: Float[Array, ""],
        shift: Float[Array, ""],
        y: Float[Array, "P d"],
        carried: Carried,
    ) -> tuple:
        """(merits (P,), cost of the second candidate, index, motion and cost of the best one, the largest violations of its rows,
        what is carried)."""
        problem = begun(self.program.problem, x0, start_time)
        program, constraints = dataclasses.replace(self.program, problem=problem), Constraints(problem)
        carried = self.rule.shifted(constraints, carried, shift)
        rate = lambda row: program.candidate(problem, data | {"start": x0}, row, carried.multipliers)[:5]  # noqa: E731
        merit, cost, _, _, motion = jax.lax.map(rate, y) if program.one_by_one else jax.vmap(rate)(y)
        best = jnp.argmin(merit)
        motion = jax.tree.map(lambda a: a[best], motion)
        violation = jnp.zeros(0, cost.dtype)
        if problem.constrained:
            rows = constraints.along(motion)
            carried, violation = self.rule.after(constraints, carried, rows), largest_rows(constraints, rows)
        return merit, cost[1], best, motion, cost[best], violation, carried


class SamplingPlanner(WithoutCaches):
    """Plans by generations of a sampling solver (`solvers.plan.Planner`)."""

    def __init__(self, solver: SamplingSolver, problem: OptimalControlProblem, space: Space, seed: int = 0) -> None:
        check_replannable(problem)
        if isinstance(solver.parametrisation, JointTargets):
            raise OptionError(
                f"{solver.name}: parametrisation is JointTargets; a receding horizon shifts knots of the controls: use "
                "'linear', 'cubic' or 'piecewise-constant'"
            )
        self.solver, self.space, self.seed = solver, space, seed
        self.count = solver.population or POPULATION
        one_by_one = batch_size(problem, solver.chunk, self.count + 2)[1]
        rule = carried_rule(solver.penalty, solver.penalty_factor)
        self.rating = Rating(GenerationProgram(problem, one_by_one), rule)
        self.bounds = np.asarray(problem.control_lower, float), np.asarray(problem.control_upper, float)

    @property
    def problem(self) -> OptimalControlProblem:
        """What is solved."""
        return self.rating.program.problem

    @functools.cached_property
    def _subject(self) -> Rating:
        """With the numbers of the problem where the program runs: copied once, not with every call."""
        return jax.device_put(self.rating)

    def on(self, problem: OptimalControlProblem) -> SamplingPlanner:
        """The same for a problem with other numbers; the dynamics stay."""
        own = dataclasses.replace(problem, dynamics=self.problem.dynamics, validate=False)
        other = SamplingPlanner(self.solver, own, dataclasses.replace(self.space, problem=own), self.seed)
        if "_program" in vars(self) and same_structure(other.rating, self.rating):
            vars(other)["_program"] = self._program
        return other

    def seeded(self, seed: int) -> SamplingPlanner:
        """The same with other draws."""
        other = SamplingPlanner(self.solver, self.problem, self.space, seed)
        if "_program" in vars(self):
            vars(other)["_program"] = self._program
        return other

    def compile(self) -> float:
        """Compile what plans take, unless it is there; returns the seconds that took."""
        return 0.0 if "_program" in vars(self) else self._program[1]

    @functools.cached_property
    def _program(self) -> tuple[Any, float]:
        """The program of a generation, and the seconds that compiling it took."""
        problem, dtype = self.problem, self.problem.dtype
        x, number = jax.ShapeDtypeStruct((problem.nx,), dtype), jax.ShapeDtypeStruct((), dtype)
        y = jax.ShapeDtypeStruct((self.count + 2, self.space.size), dtype)
        carried = self.first().memory.carried
        program: Any
        program, seconds = programs.compiled(Rating.rate, self._subject, self.space.data, x, number, number, y, carried)
        return program.func, seconds

    @functools.cached_property
    def _first(self) -> Plan:
        problem = self.problem
        guess = Trajectory(*(np.asarray(a) for a in (problem.initial_point.xs, problem.u0, problem.parameters)))
        y = self.space.encode(guess)
        carried = self.rating.rule.first(Constraints(problem))
        return Plan(guess.xs, guess.us, None, Searched(self.solver.first_distribution(y), y, carried, 0))

    def first(self) -> Plan:
        """The problem's guess."""
        return self._first

    def replan(
        self, x: Float[np.ndarray, " nx"], time_s: float, shift: float | None, plan: Plan
    ) -> Replanned:
        """One generation from x at the time `time_s` about a plan made `shift` knots ago; None: another one of the same solve."""
        space, memory, solver = self.space, plan.memory, self.solver
        distribution, incumbent = memory.distribution, memory.incumbent
        if shift is not None and memory.generation:
            mean, incumbent = (self.shifted(y, shift) for y in (distribution.mean, incumbent))
            distribution = solver.first_distribution(mean).reheated(SPREAD)
        rng = np.random.default_rng([self.seed, memory.generation])
        draws = solver.draw(rng, distribution, self.count, space)
        y = np.concatenate([[np.asarray(distribution.mean)], [incumbent], draws])
        dtype = self.problem.dtype
        numbers = (np.asarray(value, dtype) for value in (self.problem.start_time + time_s, shift or 0.0))
        found = self._program[0](self._subject, space.data, x, *numbers, y.astype(dtype), memory.carried)
        merit, before, best, motion, cost, violation, carried = jax.tree.map(np.asarray, found)
        finite = bool(np.isfinite(merit[best]))
        if finite:
            drawn = Generation(y[1:], merit[1:], float(merit[0]))
            distribution = solver.updated_distribution(distribution, drawn, space)[0]
            distribution = distribution.moved(space.clip(np.asarray(distribution.mean)))
            incumbent = y[best]
        new = Searched(distribution, incumbent, carried, memory.generation + 1)
        return Replanned(Plan(motion.xs, motion.us, None, new), before, cost, finite, finite, violation)

    def about(self, memory: Searched, plan: Plan) -> Searched:
        """The memory with the distribution about another plan's controls."""
        y = self.space.encode(Trajectory(np.asarray(plan.xs), np.asarray(plan.us), np.zeros(0)))
        return dataclasses.replace(memory, distribution=memory.distribution.moved(y), incumbent=y)

    def shifted(self, y: Float[np.ndarray, " d"], shift: float) -> Float[np.ndarray, " d"]:
        """A point `shift` steps later: knots of the same spline at later times, the last one beyond the end."""
        space, count = self.space, self.space.knots
        knots = y[: count * space.width].reshape(count, space.width)
        return space.clip(np.concatenate([(self._shift(shift) @ knots).ravel(), y[count * space.width :]]))

    def _shift(self, shift: float) -> Float[np.ndarray, "K K"]:
        kind, T, K = self.solver.parametrisation, self.problem.horizon, self.space.knots
        if kind == "cubic" and K > 2:
            return self._spline(np.minimum(np.linspace(0.0, T - 1.0, K) + shift, T - 1.0))
        later = np.arange(float(K)) + shift * (K / T if kind == "piecewise-constant" else (K - 1) / max(T - 1, 1))
        index, share = place(later, K)
        after = np.minimum(index + 1, K - 1)
        return (1 - share)[:, None] * np.eye(K)[index] + share[:, None] * np.eye(K)[after]

    @functools.cached_property
    def _spline(self) -> Any:
        K = self.space.knots
        return scipy.interpolate.CubicSpline(np.linspace(0.0, self.problem.horizon - 1.0, K), np.eye(K), bc_type="natural")

    def control(self, x: Float[np.ndarray, " nx"], time: float, plan: Plan) -> Float[np.ndarray, " nu"]:
        """The plan's control `time` knots after it begins; there is no feedback."""
        return np.clip(plan.us[int(place(float(time), len(plan.us))[0])], *self.bounds)
