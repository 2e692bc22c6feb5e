"""Goals: what a task is about, as a person would judge the motion, recomputed from one rollout of the controls."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.names import NamedOptions
from trajopt.problems.programs import NotCompiled, subject
from trajopt.problems.residuals.base import Residual, Terms, is_task, normalised
from trajopt.problems.trajectory import ControlProblem, Trajectory
from trajopt.problems.tree import with_arrays

END, ALWAYS, ONCE = "end", "always", "once"
PREFIX = "goal "  # of its entry among the recomputed values


@dataclasses.dataclass(frozen=True)
class Goal(NamedOptions):
    """What a motion is to reach: the largest $|r_i|$ is at most `tolerance`.

    Options:
        residual: `x -> r`, a flat array, as terminal functions are; or `problems.residuals` that need neither control nor step.
        tolerance: largest $|r_i|$ that meets the goal, in `unit`.
        unit: of r, such as "m"; "" for a pure number.
        at: "end", the last state; "always", every state; "once", the state that is nearest to the goal; or a time in seconds, the
            state nearest to it.
    """

    residual: Callable[..., Array] | Residual | Terms
    tolerance: float
    unit: str = ""
    at: str | float = END


class GoalReport(NamedTuple):
    """What became of a goal: its value, the tolerance, their unit, whether it is met."""

    value: float
    tolerance: float
    unit: str
    met: bool

    @property
    def share(self) -> float:
        """The value in units of the tolerance: the goal is met up to 1."""
        return self.value / self.tolerance if self.tolerance else (0.0 if self.met else float("inf"))

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.value:.3g}{unit}, allowed {self.tolerance:.3g}{unit}"


def _flatten(goal: Goal) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A residual that is a pytree holds numbers, a plain function is structure; tolerance and unit are read by no program."""
    tree = not jax.tree_util.all_leaves([goal.residual])
    return (goal.residual,) if tree else (), (None if tree else goal.residual, goal.at, NotCompiled((goal.tolerance, goal.unit)))


def _unflatten(structure: tuple[Any, ...], tree: Any) -> Goal:
    function, at, apart = structure
    tolerance, unit = apart.value
    return Goal(tree[0] if tree else function, tolerance, unit, at)


jax.tree_util.register_pytree_node(Goal, _flatten, _unflatten)


def checked_goals(problem: Any, system: System | None, dtype: Any, last: float) -> dict[str, Goal]:
    """The goals in their normal form; last: time of the last state, s.

    Raises `OptionError`, `UnknownNameError` or `ShapeError`, naming the goal.
    """
    where, goals = f"problem '{problem.name}': ", problem.goals
    if not isinstance(goals, Mapping):
        raise OptionError(f"{where}goals is {goals!r}; expected {{'box position': Goal(residual, tolerance, unit)}}")
    return {str(name): _checked(f"{where}goal '{name}': ", goal, system, dtype, last) for name, goal in goals.items()}


def _checked(where: str, goal: Any, system: System | None, dtype: Any, last: float) -> Goal:
    if not isinstance(goal, Goal):
        raise OptionError(f"{where}{goal!r} is no Goal; expected Goal(residual, tolerance, unit)")
    tolerance, at, residual = goal.tolerance, goal.at, goal.residual
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.number) or not tolerance >= 0:
        raise OptionError(f"{where}tolerance is {tolerance!r}; expected a number that is not negative")
    timed = isinstance(at, int | float | np.number) and not isinstance(at, bool) and at <= last
    if not timed and at not in (END, ALWAYS, ONCE):
        raise OptionError(f"{where}at is {at!r}; expected '{END}', '{ALWAYS}', '{ONCE}' or a time of at most {last:g} s")
    if is_task(residual):
        if system is None:
            raise OptionError(f"{where}residual is made of residuals, which need a System as dynamics; give a function")
        residual = normalised(residual, system, dtype, where, True)
        known = (term.out_of_reach(system, float(tolerance)) for term in residual.terms if term.activation is None)
        why = next(filter(None, known), "")
        if why:
            raise OptionError(f"{where}no state can meet it: {why}; change the reference, or widen the tolerance")
    elif not callable(residual):
        raise OptionError(f"{where}residual is {residual!r}; expected a function x -> r, or a residual of problems.residuals")
    return Goal(with_arrays(residual, dtype), float(tolerance), str(goal.unit), float(at) if timed else at)


@subject("problem", "goals")
@dataclasses.dataclass(frozen=True)
class Judged:
    """A problem and its goals, which no other program of the problem reads."""

    problem: ControlProblem
    goals: Mapping[str, Goal]


def goal_values(judged: Judged, motion: Trajectory) -> dict[str, Float[Array, ""]]:
    """The value of each goal along a motion, which is one rollout of its controls."""
    problem, xs = judged.problem, motion.xs
    times = jnp.asarray(problem.times)

    def value(goal: Goal) -> Array:
        def largest(x: Array, t: Array) -> Array:
            if is_task(goal.residual):
                outcome = problem.outcome(x, None, motion.p)
                rows = goal.residual(outcome.x, None, t, outcome)
            else:
                rows = goal.residual(problem.as_state(x), *((motion.p,) if problem.n_p else ()))
            return jnp.max(jnp.abs(rows), initial=jnp.zeros((), rows.dtype))

        if goal.at in (ALWAYS, ONCE):
            along = jax.vmap(largest)(xs, times)
            return jnp.max(along) if goal.at == ALWAYS else jnp.min(along)
        k = -1 if goal.at == END else jnp.argmin(jnp.abs(times - jnp.asarray(goal.at, times.dtype)))
        return largest(xs[k], times[k])

    return {name: value(goal) for name, goal in judged.goals.items()}


def goal_reports(goals: Mapping[str, Goal], values: Mapping[str, float]) -> dict[str, GoalReport]:
    """What became of each goal, by the recomputed values; a value that is not finite meets none."""
    return {name: _report(values.get(PREFIX + name), goal.tolerance, goal.unit) for name, goal in goals.items()}


def reports_of(problem: Any, values: Mapping[str, float]) -> dict[str, GoalReport]:
    """What became of all that a problem states as goals, those of its certificate among them."""
    certificate = problem.certificate
    quantities = {
        name.replace("_", " "): _report(values.get(name), certificate.tolerances[name], unit)
        for name, unit in certificate.goals.items()
    }
    return goal_reports(getattr(problem, "goals", {}), values) | quantities


def shortfalls_of(problem: Any, values: Mapping[str, float]) -> list[str]:
    """What keeps recomputed `values` from counting as an answer: sentences, empty when nothing does; goals come last."""
    goals = {*(PREFIX + name for name in getattr(problem, "goals", {})), *problem.certificate.goals}
    missing = [
        f"{key} is {values.get(key, float('nan')):.3g}, allowed {limit:.3g}"
        for key, limit in problem.limits.items()
        if key not in goals and not values.get(key, float("nan")) <= limit
    ]
    return missing + [f"{PREFIX}{name} is {goal}" for name, goal in reports_of(problem, values).items() if not goal.met]


def _report(value: float | None, tolerance: float, unit: str) -> GoalReport:
    value = float("nan") if value is None else value
    return GoalReport(value, float(tolerance), unit, bool(value <= tolerance))


def worst_goal(reports: Mapping[str, GoalReport]) -> float:
    """The largest value in units of its tolerance, NaN without goals; at most 1 where all are met."""
    shares = [report.share if report.value == report.value else float("inf") for report in reports.values()]
    return max(shares, default=float("nan"))


def goals_in_words(reports: Mapping[str, GoalReport]) -> str:
    """Whether all goals are met, and the worst in units of its tolerance; nothing without goals."""
    if not reports:
        return ""
    met = all(report.met for report in reports.values())
    name = max(reports, key=lambda name: worst_goal({name: reports[name]}))
    return f"{'met' if met else 'not met'}, {name} at {worst_goal(reports):.2g} of its tolerance"
