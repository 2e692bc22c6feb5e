"""Periodic motions: an optimal control problem whose motion ends in the state where it began, which is free.

A stage or an end alone sees one state. So the initial state is a parameter too: with p = [own parameters, s], s = x_0 (-) x0 in
tangent coordinates about the guess x0, the constraints are

    s = x_0 (-) x0  at the first step,      s = x_T (-) x0  at the end.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from trajopt.dynamics.state import State
from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.residuals.base import is_task
from trajopt.problems.trajectory import flat_state

_OF_STATES = (
    "stage_residual", "stage_cost", "terminal_residual", "terminal_cost", "initial_residual", "inequality", "terminal_inequality",
)  # fmt: skip
_OF_MOTIONS = {"certificate": ("function",), "display": ("report", "motion")}


def periodic(
    problem: OptimalControlProblem, coordinates: Sequence[int] | Int[np.ndarray, " k"] | None = None
) -> OptimalControlProblem:
    """The problem with a free initial state, in which the motion also ends: x_T = x_0 in tangent coordinates.

    coordinates: which of the n tangent coordinates return, None for all; a gait leaves its place out. The `x0` of the problem is
    a guess from then on. The state that repeats is the last k of the `parameters` of an answer, as x_0 (-) x0.

    Another `start_time` needs another call of this function. Raises `OptionError` for coordinates that there are not.
    """
    which = np.arange(problem.n) if coordinates is None else np.asarray(coordinates)
    valid = which.ndim == 1 and which.size > 0 and np.issubdtype(which.dtype, np.integer) and len(set(which)) == which.size
    if not valid or which.min() < 0 or which.max() >= problem.n:
        raise OptionError(
            f"periodic: coordinates is {coordinates!r}; expected different numbers from 0 to {problem.n - 1}, tangent "
            f"coordinates of problem '{problem.name}'"
        )
    own, endless = problem.n_p, np.full(which.size, np.inf)
    changes: dict[str, Any] = {
        "free_initial_state": True,
        "parameters": np.concatenate([problem.parameters, np.zeros(which.size, problem.dtype)]),
        "parameter_lower": np.concatenate([problem.parameter_lower, -endless]),
        "parameter_upper": np.concatenate([problem.parameter_upper, endless]),
        **_returning(problem, which),
    }
    for key in _OF_STATES:
        fn = getattr(problem, key)
        if fn is not None and not is_task(fn):
            changes[key] = _with_own(fn, own)
    changes["goals"] = {
        name: goal if is_task(goal.residual) else dataclasses.replace(goal, residual=_with_own(goal.residual, own))
        for name, goal in problem.goals.items()
    }
    for key, names in _OF_MOTIONS.items():
        part = getattr(problem, key)
        own_functions = {name: _of_own_motion(fn, own) for name in names if (fn := getattr(part, name)) is not None}
        changes[key] = dataclasses.replace(part, **own_functions)
    if problem.parameter_residual is not None:
        prior = problem.parameter_residual
        changes["parameter_residual"] = lambda p: prior(p[:own])
    if problem.system is None:
        changes["dynamics"] = _with_own(problem.dynamics, own)
    else:
        parametrize = problem.parametrize
        changes["parametrize"] = lambda system, p: system if parametrize is None else parametrize(system, p[:own])
    return dataclasses.replace(problem, **changes)


def _returning(problem: OptimalControlProblem, which: np.ndarray) -> dict[str, Callable[..., Array]]:
    """The equalities of the problem and those of a motion that returns."""
    own, start, begin = problem.n_p, np.asarray(problem.x0), float(problem.times[0])
    assert problem.dt is not None
    half = 0.5 * problem.dt

    def flat(x: Any) -> Array:
        return flat_state(x) if isinstance(x, State) else x

    def away(x: Any, p: Array) -> Array:
        return problem.local(jnp.asarray(start), flat(x))[which] - p[own:]

    def equality(x: Any, u: Array, t: Array, p: Array) -> Array:
        rows = [jnp.where(jnp.abs(t - begin) < half, 1.0, 0.0).astype(p.dtype) * away(x, p)]
        more = problem.stage("equality", flat(x), u, t, p[:own])
        if more is not None:
            rows.append(more)
        return jnp.concatenate(rows)

    def terminal_equality(x: Any, p: Array) -> Array:
        rows = [away(x, p)]
        more = problem.terminal("terminal_equality", flat(x), p[:own])
        if more is not None:
            rows.append(more)
        return jnp.concatenate(rows)

    return {"equality": equality, "terminal_equality": terminal_equality}


def _with_own(fn: Callable[..., Any], own: int) -> Callable[..., Any]:
    """A function of the problem as it was, that is now given the state that repeats too."""
    return lambda *arguments: fn(*arguments[:-1], *((arguments[-1][:own],) if own else ()))


def _of_own_motion(fn: Callable[[Trajectory], Any], own: int) -> Callable[[Trajectory], Any]:
    return lambda motion: fn(dataclasses.replace(motion, p=motion.p[:own]))
