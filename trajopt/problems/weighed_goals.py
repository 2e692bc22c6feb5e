"""Goals as part of the cost: a motion pays for what it lacks to its goals, whatever the costs of the problem say.

    cost of the problem + sum over goals 1/2 w^2 |e|^2,    e = (r - clip(r, -s tol, s tol)) / tol,  s = SLACK

A goal at the end, or at a time, is weighed at that state, one of every state at all of them. A goal that is to be met once has no
state of its own and is not weighed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike

from trajopt.dynamics.state import State
from trajopt.problems.goals import ALWAYS, ONCE, Goal
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.residuals.base import Function, Residual, StepOutcome, Terms, is_task, step_index

SLACK = 0.5  # of a tolerance: a goal that is met so well costs nothing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GoalTerm(Residual):
    """What a state lacks to a goal, beyond `slack`, as a term of a cost.

    Options:
        goal: the `Goal`, in its normal form.
        slack: of its residual.
    """

    goal: Any = dataclasses.field(kw_only=False)
    slack: Any = dataclasses.field(kw_only=False)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "..."]
    ) -> Float[Array, " m"]:
        return self._lacking(x, jnp.zeros((), x.q.dtype), step)

    def __call__(self, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome) -> Float[Array, " m"]:
        return self.weighted(self._lacking(x, t, step), step_index(step.system, t, x.q.dtype))

    def _lacking(self, x: State, t: ScalarLike, step: StepOutcome) -> Array:
        residual, slack = self.goal.residual, jnp.asarray(self.slack, x.q.dtype)
        rows = residual(x, None, t, step) if is_task(residual) else residual(x)
        return rows - jnp.clip(rows, -slack, slack)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Bound(Function):
    """A function that is a pytree, such as a `jax.tree_util.Partial`, as a term."""

    function: Callable[..., Array] = dataclasses.field(kw_only=False)


def can_weigh_goals(problem: OptimalControlProblem) -> bool:
    """Whether there is a goal to weigh, of a problem whose functions are those of a state, a control and a time."""
    return problem.system is not None and not problem.n_p and any(goal.at != ONCE for goal in problem.goals.values())


def with_weighed_goals(problem: OptimalControlProblem, weight: float) -> OptimalControlProblem:
    """The problem with its goals weighed by w = `weight`; another weight compiles nothing."""
    more: dict[str, list[Residual]] = {"stage_residual": [], "terminal_residual": []}
    for name, goal in problem.goals.items():
        slack = np.asarray(SLACK * goal.tolerance, problem.dtype)
        for terms, weights in zip(more.values(), _weights(problem, goal, weight), strict=True):
            terms += [] if weights is None else [GoalTerm(goal, slack, weight=weights, name=f"goal {name}")]
    costs = {key: _terms(getattr(problem, key), problem.dtype) for key, terms in more.items() if terms}
    changed: dict[str, Any] = {key: Terms((*own, *more[key])) for key, own in costs.items()}
    return dataclasses.replace(problem, **changed, validate=False)


def _weights(problem: OptimalControlProblem, goal: Goal, weight: float) -> tuple[Any, Any]:
    """Of the rows of a goal along the motion and at its end, None where they do not count."""
    scaled = np.asarray(weight / (goal.tolerance or 1.0), problem.dtype)
    if isinstance(goal.at, str):
        running = scaled / np.sqrt(problem.horizon).astype(problem.dtype) if goal.at == ALWAYS else None
        return running, None if goal.at == ONCE else scaled
    times = np.asarray(problem.times)
    nearest = int(np.argmin(np.abs(times - goal.at)))
    if nearest == problem.horizon:
        return None, scaled
    assert problem.dt is not None
    first = round(float(times[0]) / problem.dt)
    return np.where(np.arange(first + problem.horizon + 1) == first + nearest, scaled, 0.0)[:, None], None


def _terms(function: Any, dtype: Any) -> tuple[Residual, ...]:
    """A cost of the problem, as terms."""
    if function is None:
        return ()
    if is_task(function):
        return function.terms
    kind = Function if jax.tree_util.all_leaves([function]) else _Bound
    return (kind(function, weight=np.ones((), dtype), name="the cost"),)
