"""Plans, and what makes them again and again from a measured state: what a receding horizon asks of a solver.

A `Plan` is a motion with feedback, u = clip(u_t + K_t (x (-) x_t)), and what its planner remembers from one solve to the next:
damping and multipliers, or a distribution. A solver with a method `replanning(oracle)` that returns a `Planner` can drive a
plant.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike

from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.residuals.base import is_task

KNOT_ROUNDING = 1e-6  # of a knot: times nearer than that to a knot are at it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """States (T+1, nx) at the knots, controls (T, nu) held between them, feedback gains (T, nu, n), None: no feedback; memory: of
    the planner."""

    xs: Any
    us: Any
    gains: Any = None
    memory: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Replanned:
    """What became of a plan: the new one, the cost of the old plan from the measured state and of the new one, whether it is
    better, or none can be, whether it is finite, and the largest violation of each constraint row (`row_names`) along it."""

    plan: Plan
    cost_before: Any
    cost: Any
    accepted: Any
    finite: Any
    violation: Any


@runtime_checkable
class Planner(Protocol):
    """Makes plans of one problem from measured states."""

    @property
    def problem(self) -> OptimalControlProblem:
        """What is solved."""

    def on(self, problem: OptimalControlProblem) -> Planner:
        """The same for a problem with other numbers."""

    def compile(self) -> float:
        """Compile what plans take, unless it is there; returns the seconds that took."""

    def first(self) -> Plan:
        """The problem's guess."""

    def replan(self, x: Float[np.ndarray, " nx"], time_s: float, shift: float | None, plan: Plan) -> Replanned:
        """One iteration, or generation, from x at the time `time_s` (s, from the problem's start) of a plan made `shift` knots
        ago; None: another one of the same solve."""

    def control(self, x: Float[np.ndarray, " nx"], time: float, plan: Plan) -> Float[np.ndarray, " nu"]:
        """u at the state x, `time` knots after the plan begins; beyond its end the last control and state are held."""


def check_replannable(problem: OptimalControlProblem) -> None:
    """Raise `OptionError` for what no plan from a measured state can be about."""
    reasons = {
        "has a free initial state; the measured state is the initial one": problem.free_initial_state,
        "has free parameters; hold them, or estimate them apart": bool(problem.n_p),
    }
    for reason, wrong in reasons.items():
        if wrong:
            raise OptionError(f"problem '{problem.name}' {reason}")


def begun(problem: OptimalControlProblem, x0: Float[Array, " nx"], start_time: ScalarLike) -> OptimalControlProblem:
    """The problem from a measured state at a time."""
    return dataclasses.replace(problem, x0=x0, start_time=start_time, validate=False)


def same_structure(a: Any, b: Any) -> bool:
    """Whether programs of one subject take the other: the same structure, shapes and types."""
    first: Any = jax.tree.structure(a)
    if first != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.shape(x) == np.shape(y) and jnp.result_type(x) == jnp.result_type(y) for x, y in pairs)


def place(time: Any, T: int) -> tuple[Any, Any]:
    """(knot, share of the way to the next) of times in knots within 0..T; at the end the last interval, share 1."""
    xp: Any = np if isinstance(time, float | np.ndarray | np.floating) else jnp
    time = xp.clip(time, 0.0, T)
    near = xp.rint(time)
    time = xp.where(xp.abs(time - near) < KNOT_ROUNDING, near, time)
    index = xp.minimum(xp.floor(time).astype(np.int32), T - 1)
    return index, time - index.astype(time.dtype)


def between(
    problem: OptimalControlProblem, x0: Float[Array, " nx"], x1: Float[Array, " nx"], share: ScalarLike
) -> Float[Array, " nx"]:
    """The state at a share of the way from x0 to x1: exactly x0 at 0, x1 at 1.

    After midpoint steps velocities change evenly and places follow them; else the shortest way.
    """
    share = jnp.asarray(share)
    way = share * problem.local(x0, x1)
    if problem.system is not None and problem.system.integrator == "moreau":
        nq, nv = problem.system.nq, problem.system.nv
        bend = 0.5 * problem.system.dt * share * (share - 1) * (x1[nq:] - x0[nq:])
        way = way.at[:nv].add(bend.astype(way.dtype))
    moved = problem.retract(x0, way)
    return jnp.where(share == 0, x0, jnp.where(share == 1, x1, moved))


def acted(
    problem: OptimalControlProblem, x: Float[Array, " nx"], time: ScalarLike, xs: Float[Array, "T1 nx"], us: Float[Array, "T nu"],
    gains: Float[Array, "T nu n"] | None,
) -> Float[Array, " nu"]:  # fmt: skip
    """u of a plan at the state x, `time` knots after it begins; beyond its end the last control and state are held. A state that
    is not finite is no feedback."""
    index, share = place(time, problem.horizon)
    u = us[index]
    if gains is not None:
        planned = between(problem, xs[index], xs[index + 1], share)
        u = u + gains[index] @ problem.local(planned, jnp.where(jnp.isfinite(x).all(), x, planned))
    return jnp.clip(u, problem.control_lower.astype(u.dtype), problem.control_upper.astype(u.dtype))


def shifted_rows(values: Float[Array, "T ..."], shift: ScalarLike) -> Float[Array, "T ..."]:
    """What holds over the steps, `shift` knots later: means over each new interval, the last row beyond the end."""
    T = values.shape[0]
    index, share = place(jnp.arange(T, dtype=values.dtype) + shift, T)
    share = share.reshape(T, *(1,) * (values.ndim - 1))
    return (1.0 - share) * values[index] + share * values[jnp.minimum(index + 1, T - 1)]


def shifted_states(
    problem: OptimalControlProblem, xs: Float[Array, "T1 nx"], shift: ScalarLike
) -> Float[Array, "T1 nx"]:
    """States `shift` knots later, along the shortest way between knots; the last one beyond the end."""
    T = xs.shape[0] - 1
    index, share = place(jnp.arange(T + 1, dtype=xs.dtype) + shift, T)
    return jax.vmap(lambda a, b, s: between(problem, a, b, s))(xs[index], xs[index + 1], share)


def beyond(steps: int, shift: ScalarLike, dtype: Any) -> Any:
    """Which of the steps of a plan `shift` knots later lie beyond its end."""
    return jnp.arange(steps, dtype=dtype) + shift > steps - 1 + KNOT_ROUNDING


def row_names(problem: OptimalControlProblem, stage: int, terminal: int) -> list[str]:
    """What each constraint row is about, of a stage and of the end, in the order of `Constraints`."""
    names = []
    for kinds, size in ((("equality", "inequality"), stage), (("terminal_equality", "terminal_inequality"), terminal)):
        low, high = (np.flatnonzero(problem.finite(key)) for key in ("state_lower", "state_upper"))
        bounds = [f"{side} bound of state {k}" for side, places in (("lower", low), ("upper", high)) for k in places]
        present = [kind for kind in kinds if getattr(problem, kind) is not None]
        called = " and ".join(_called(getattr(problem, kind), kind) for kind in present)
        names += [called] * (size - len(bounds))
        names += bounds if kinds[0] == "equality" else [f"{bound} at the end" for bound in bounds]
    return names


def _called(function: Any, kind: str) -> str:
    """A constraint's terms by name, or its kind."""
    kind = kind.replace("_", " ")
    return f"{kind} '{', '.join(dict.fromkeys(term.label for term in function.terms))}'" if is_task(function) else kind
