"""Gauss-Newton expansion of a task, term by term: each residual is differentiated by what it depends on, and by nothing else.

A Jacobian of all rows by all coordinates is mostly zeros: joint angles do not enter a velocity, states no control. Rows
of terms with the same `depends_on` are one Jacobian J; J^T r and J^T J are added where its coordinates are. Terms with
a `slope` of their own are not differentiated at all: 18 tangents through the kinematics of Go1 cost a hundred times its
feet's Jacobians.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.problems.residuals.base import Residual, StepOutcome, Terms, step_index


def task_expansion(
    system: System,
    task: Residual | Terms,
    x: State,
    u: Float[Array, " nu"] | None,
    t: ScalarLike,
    size: int,
) -> tuple[Float[Array, ""], Float[Array, " z"], Float[Array, "z z"]]:
    """1/2 |r|^2, its gradient and J^T J in z = [dq, dv, du] padded to `size`, at a state without a contact law's own."""
    nv, dtype = system.nv, x.q.dtype
    value, gradient, H = jnp.zeros((), dtype), jnp.zeros(size, dtype), jnp.zeros((size, size), dtype)
    step = StepOutcome(system, x, u)
    closed = {term.label: slope for term in task.terms if (slope := term.slope(x, step)) is not None}
    parts = [_closed(system, term, closed[term.label], x, u, t, step) for term in task.terms if term.label in closed]
    blocks = [(0, nv, jnp.concatenate([J for J, _ in parts]), jnp.concatenate([r for _, r in parts]))] if parts else []
    rest = [term for term in task.terms if term.label not in closed]
    for depends_on in sorted({term.depends_on for term in rest}):
        group = Terms(tuple(term for term in rest if term.depends_on == depends_on))
        blocks.append(_differentiated(system, group, depends_on, x, u, t))
    for begin, end, J, r in blocks:
        around = (begin, size - end)
        value = value + 0.5 * jnp.vdot(r, r)
        gradient = gradient + jnp.pad(J.T @ r, around)
        H = H + jnp.pad(J.T @ J, (around, around))
    return value, gradient, H


def task_rows(
    system: System, task: Residual | Terms, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, size: int
) -> tuple[Float[Array, " m"], Float[Array, "m z"]]:
    """The rows of a task and their derivative by z, as `task_expansion` takes it."""
    step, found = StepOutcome(system, x, u), []
    for term in task.terms:
        slope = term.slope(x, step)
        if slope is None:
            begin, end, J, r = _differentiated(system, Terms((term,)), term.depends_on, x, u, t)
        else:
            begin, end, (J, r) = 0, slope.shape[1], _closed(system, term, slope, x, u, t, step)
        found.append((r, jnp.pad(J, ((0, 0), (begin, size - end)))))
    return jnp.concatenate([r for r, _ in found]), jnp.concatenate([J for _, J in found])


def _differentiated(
    system: System, group: Terms, depends_on: str, x: State, u: Array | None, t: Any
) -> tuple[int, int, Array, Array]:
    """(first coordinate, the one after the last, J by them, rows) of terms that depend on the same."""
    nv = system.nv
    ends = {"q": (0, nv), "v": (nv, 2 * nv), "u": (2 * nv, 2 * nv + (0 if u is None else u.shape[0]))}
    begin, end = ends[depends_on[0]][0], ends[depends_on[-1]][1]
    rows = _rows(system, group, depends_on, x, u, t)
    J, r = jax.jacfwd(lambda z: (rows(z),) * 2, has_aux=True)(jnp.zeros(end - begin, x.q.dtype))
    return begin, end, J, r


def _closed(
    system: System, term: Residual, slope: Array, x: State, u: Array | None, t: Any, step: StepOutcome
) -> tuple[Array, Array]:
    """(J by what its slope is by, rows) of a term with a slope of its own."""
    index = step_index(system, t, x.q.dtype)
    error = term.error(x, u, step, term.reference_at(system, index, x.q.dtype))
    by_error, rows = jax.jacfwd(lambda e: (term.weighted(e, index),) * 2, has_aux=True)(error)
    return by_error @ slope, rows


def _rows(system: System, group: Terms, depends_on: str, x: State, u: Array | None, t: Any) -> Callable[[Array], Array]:
    """The rows of terms as a function of the coordinates that they depend on."""
    nv = system.nv

    def rows(z: Array) -> Array:
        q, v, control = x.q, x.v, u
        if "q" in depends_on:
            q = integrate(system.model, q, z[:nv])
            z = z[nv:]
        if "v" in depends_on:
            v = v + z[:nv]
            z = z[nv:]
        if "u" in depends_on and control is not None:
            control = control + z
        at = State(q, v)
        return group(at, control, t, StepOutcome(system, at, control))

    return rows
