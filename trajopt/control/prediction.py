"""Where a plant will be when a plan acts: one that begins where the plant was measured is wrong by what it did meanwhile.

The `System` of the problem takes steps of at most `LARGEST` of its own from the measured state, under the plan that acts and its
feedback. Where the dynamics are a function of whole steps the deviation from the plan is taken to stay.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, ScalarLike

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.effort import Effort
from trajopt.problems import programs
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.plan import Plan, acted, between, place

LARGEST = 0.25  # of the problem's steps: feedback acts between its knots
ROUNDING = 1e-6  # of a step


class Prediction(WithoutCaches):
    """Predicts states of a problem."""

    def __init__(self, problem: OptimalControlProblem) -> None:
        self.problem = problem

    @functools.cached_property
    def _subjects(self) -> dict[float, tuple[OptimalControlProblem, OptimalControlProblem]]:
        """The problem and the same with other steps of its system, by their length."""
        return {}

    def on(self, problem: OptimalControlProblem) -> Prediction:
        """The same for a problem with other numbers, whose system is the same."""
        other = Prediction(problem)
        vars(other)["_subjects"] = self._subjects
        return other

    def compile(self, delay: float, plan: Plan) -> float:
        """Compile what a prediction takes, unless it is there; returns the seconds that took."""
        return self._advanced(np.asarray(self.problem.x0), 0.0, delay, plan)[1] if delay else 0.0

    def after(
        self, delay: float, x: Float[np.ndarray, " nx"], t: float, acting: Callable[[float], tuple[Plan, float, float]]
    ) -> Float[np.ndarray, " nx"]:
        """The state `delay` s after x, which was measured at the time t (s), under the plans that act until then.

        acting: at a time (the plan, when it began, when the next one acts).
        """
        end = t + delay
        while t < end - ROUNDING * delay:
            plan, begun, until = acting(t)
            x = self._advanced(x, t - begun, min(until, end) - t, plan)[0]
            t = min(until, end)
        return x

    def _advanced(
        self, x: Float[np.ndarray, " nx"], knot_s: float, seconds: float, plan: Plan
    ) -> tuple[Float[np.ndarray, " nx"], float]:
        """(the state some seconds after x, `knot_s` after a plan began, the seconds that compiling took)."""
        problem, dt = self.problem, self.problem.dt
        assert dt is not None  # validation of a problem sets it
        whole = problem.system is None
        count = 1 if whole else max(1, math.ceil(seconds / (LARGEST * dt) - ROUNDING))
        numbers = np.array([knot_s / dt, seconds / (count * dt)], problem.dtype)
        program: Any = _beside if whole else _stepped
        knots, fine = self._subject(1.0 if whole else seconds / count)
        arguments = knots, fine, x, np.asarray(count), *numbers, plan.xs, plan.us, plan.gains
        found, compiling = programs.run(program, *arguments, effort=Effort.QUICK)
        return np.asarray(found), compiling

    def _subject(self, step_s: float) -> tuple[OptimalControlProblem, OptimalControlProblem]:
        """The problem, and one whose system takes such steps, copied once to where programs run."""
        if step_s not in self._subjects:
            problem, system = self.problem, self.problem.system
            fine = problem.dynamics if system is None else dataclasses.replace(system, dt=step_s)
            self._subjects[step_s] = jax.device_put((problem, dataclasses.replace(problem, dynamics=fine, validate=False)))
        return self._subjects[step_s]


def _stepped(
    problem: OptimalControlProblem, fine: OptimalControlProblem, x: Float[Array, " nx"], count: Int[Array, ""], knot: ScalarLike,
    share: ScalarLike, xs: Float[Array, "T1 nx"], us: Float[Array, "T nu"], gains: Float[Array, "T nu n"] | None,
) -> Float[Array, " nx"]:  # fmt: skip
    """The state after `count` steps of a `share` of a knot."""

    def step(k: Array, x: Array) -> Array:
        u = acted(problem, x, knot + k.astype(x.dtype) * share, xs, us, gains)
        return fine.step(x, u, jnp.zeros((), x.dtype), jnp.zeros(0, x.dtype))

    return jax.lax.fori_loop(0, count, step, x)


def _beside(
    problem: OptimalControlProblem, fine: OptimalControlProblem, x: Float[Array, " nx"], count: Int[Array, ""], knot: ScalarLike,
    share: ScalarLike, xs: Float[Array, "T1 nx"], us: Float[Array, "T nu"], gains: Float[Array, "T nu n"] | None,
) -> Float[Array, " nx"]:  # fmt: skip
    """As far from the plan a `share` of a knot later as x is now."""
    bars = []
    for t in (knot, jnp.asarray(knot) + share):
        index, part = place(t, problem.horizon)
        bars.append(between(problem, xs[index], xs[index + 1], part))
    return problem.retract(bars[1], problem.local(bars[0], x))
