"""Horizons in a few sizes, so that problems which differ in their number of steps share compiled programs.

A program for P steps serves every problem of T <= P of them: T is one of its arguments. The steps from T to P are not taken, the
state stays, x_{t+1} = x_t, so that x_P is x_T, and they add nothing to costs and constraints. Sums, largest entries and backward
recursions over P steps are those over T; loops that go forward end at T and cost what T steps cost.

Where a problem's number of steps is fixed (`steps` is None) all functions here are what one would write without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from trajopt.dynamics.system import System
from trajopt.problems.arguments import values
from trajopt.problems.residuals.base import Residual, Terms, is_task
from trajopt.problems.trajectory import TASKS, ControlProblem, Trajectory

# Sizes up to 100, and of every decade from there: round numbers, in which horizons are mostly stated and which cost nothing more.
# What is made for all steps at once is made for those that are not taken too. Iterations over a long horizon are dear, and their
# program takes no longer to compile: long sizes are at most a fifth above the one before, short ones from 3 a third.
SHORT = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
LONG = (11, 12, 13, 15, 18, 20, 22, 25, 28, 30, 35, 40, 45, 50, 55, 60, 70, 80, 90, 100)


def size_of(steps: int) -> int:
    """The number of steps P >= T of the program that serves T steps."""
    if steps <= SHORT[-1]:
        return next(size for size in SHORT if size >= steps)
    unit = 10 ** (len(str(steps - 1)) - 2)
    return next(size * unit for size in LONG if size * unit >= steps)


def padded(problem: ControlProblem) -> ControlProblem:
    """The problem in the size of its horizon: its number of steps is a leaf, and references and weights that vary over the steps
    have as many rows as steps, the last one again and again (which is what they mean)."""
    P = size_of(problem.horizon)
    new: dict[str, Any] = {"horizon": P, "steps": np.asarray(problem.horizon, np.int32), "u0": lengthened(problem.u0, P)}
    if problem.xs0 is not None:
        new["xs0"] = lengthened(problem.xs0, P + 1)
    for key in TASKS:
        task = getattr(problem, key)
        if is_task(task):
            assert problem.system is not None  # which validation asks for where there are residuals
            new[key] = Terms(tuple(_lengthened(term, problem.system, P) for term in task.terms))
    other = object.__new__(type(problem))
    vars(other).update(values(problem) | new | {"arguments": problem.arguments, "system_variants": problem.system_variants})
    return other


def _lengthened(term: Residual, system: System, steps: int) -> Residual:
    """The term with rows for all steps and the terminal state, or for a size beyond."""
    new: dict[str, Any] = {}
    for key, natural in (("reference", np.ndim(term.default_reference(system))), ("weight", 1)):
        value = getattr(term, key)
        if value.ndim > natural:
            new[key] = lengthened(value, max(steps, size_of(max(len(value) - 1, 1))) + 1)
    return dataclasses.replace(term, **new) if new else term


def taken(problem: ControlProblem) -> Bool[Array, " P"] | Bool[np.ndarray, " P"] | None:
    """Which steps are taken; None: all."""
    return None if problem.steps is None else np.arange(problem.horizon, dtype=np.int32) < problem.steps


def of_taken(problem: ControlProblem, rows: Shaped[Array, "P ..."], held: Any = 0) -> Shaped[Array, "P ..."]:
    """One row for each step, those of steps that are not taken being `held`."""
    where = taken(problem)
    if where is None:
        return rows
    return jnp.where(where.reshape(-1, *(1,) * (rows.ndim - 1)), rows, jnp.asarray(held, rows.dtype))


def scan(
    problem: ControlProblem, body: Callable[[Any, Any], tuple[Any, Any]], first: Any, inputs: Any, held: Any = None
) -> tuple[Any, Any]:
    """`jax.lax.scan` over the steps that are taken; the outputs of others are rows of `held`, None: zero."""
    if problem.steps is None:
        return jax.lax.scan(body, first, inputs)

    def at(k: Array) -> Any:
        return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, k, keepdims=False), inputs)

    if held is None:
        body = jax.jit(body)  # traced once for its shapes and for the loop
        row = jax.eval_shape(lambda carry: body(carry, at(jnp.zeros((), jnp.int32)))[1], first)
        held = jax.tree.map(lambda a: jnp.zeros((problem.horizon, *a.shape), a.dtype), row)

    def step(k: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, rows = state
        carry, row = body(carry, at(k))
        return carry, jax.tree.map(lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, k, 0), rows, row)

    return jax.lax.fori_loop(0, problem.steps, step, (first, held))


def stopped(problem: ControlProblem, times: Float[np.ndarray, " P1"]) -> Float[np.ndarray, " P1"] | Float[Array, " P1"]:
    """Times of the states, which stand still after the steps that are taken."""
    if problem.steps is None:
        return times
    xp: Any = np if isinstance(problem.steps, np.ndarray) else jnp
    return xp.minimum(times, xp.asarray(times)[problem.steps])


def kept_last(problem: ControlProblem, xs: Float[Array, "P nx"]) -> Float[Array, "P nx"]:
    """The states after each step, that after the last one that is taken standing for all after it."""
    return xs if problem.steps is None else of_taken(problem, xs, xs[problem.steps - 1])


def lengthened(values: Any, rows: int) -> Shaped[np.ndarray, "rows ..."]:
    """An array with its last row again and again."""
    found = np.asarray(values)
    more = rows - len(found)
    return found if more <= 0 else np.concatenate([found, np.repeat(found[-1:], more, 0)])


def lengthened_motion(motion: Trajectory, steps: int) -> Trajectory:
    """The motion that stays in its last state under its last control."""
    return Trajectory(lengthened(motion.xs, steps + 1), lengthened(motion.us, steps), motion.p)


def cut_motion(motion: Trajectory, steps: int) -> Trajectory:
    """The first steps of a motion, in memory."""
    return Trajectory(np.asarray(motion.xs)[: steps + 1], np.asarray(motion.us)[:steps], np.asarray(motion.p))
