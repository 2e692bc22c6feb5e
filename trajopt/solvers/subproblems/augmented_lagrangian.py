"""Augmented Lagrangian of the constraints of an optimal control problem.

Path and terminal constraints and the bounds on states become rows c, each with a multiplier y and a penalty w, and add

    equality c = 0:      y c + w/2 c^2
    inequality c <= 0:   (max(0, y + w c)^2 - y^2) / (2 w)

to the cost. When the solver has minimised that to its inner tolerance, every multiplier moves to its first-order estimate
(y + w c, or max(0, y + w c)), and the penalty of each row whose violation has not fallen to a quarter of what it was at
the previous update grows. Nocedal and Wright, Numerical Optimization, 2006, section 17.3; Conn, Gould, Toint 1991.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike

from trajopt.problems.expansions import moved, stage_constraints, terminal_constraints
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import KEPT_PROGRAMS, subject
from trajopt.solvers.loop.contract import SolverState

# Of rows: a number each; whether each is an inequality.
Values = Float[Array, "*rows"]
Flags = Bool[np.ndarray, "..."]

SUFFICIENT_FALL = 0.25  # a violation above this fraction of the last one raises the penalty
FIRST_INNER_TOLERANCE = 1e-2
INNER_SHARE, INNER_LARGEST = 0.1, 1e-2  # of `PenaltyRule.inner_tolerance`
MAX_FRUITLESS_UPDATES = 4  # updates at the largest penalty without a falling violation that make a problem infeasible
FALLING = 0.9  # a violation below this share of the least one falls

# Of `Constraints.worth`: a full step that gains less has ended a minimisation. benchmarks/ur5_reach.py with the damped cost: 0
# (never) 21 iterations, 0.1: 18, 0.5: 16, 1: 15; effort alone: 19 of 20 are solved up to 0.5, 17 at 1.
SLIGHT = 0.5

Rows = tuple[Float[Array, "T m"], Float[Array, " k"]]
Part = tuple[Any, Any, Any, Bool[np.ndarray, "..."]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Multipliers:
    """Multipliers y and penalties w of the rows of every stage, (T, m), and of the terminal rows, (k,)."""

    stage: Any
    terminal: Any
    stage_penalty: Any
    terminal_penalty: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
    """The multipliers, and where their updates stand.

    excess: of the rows at the last update; inner_iterations: of the present minimisation; updates: how many there were;
    least_violation: at an update; fruitless: updates in a row with a penalty at its limit and no falling violation.
    """

    multipliers: Multipliers
    excess: tuple[Any, Any]
    inner_iterations: Any
    updates: Any
    least_violation: Any
    fruitless: Any

    def with_steps(self, count: Any) -> Schedule:
        """After so many more iterations of the present minimisation."""
        return dataclasses.replace(self, inner_iterations=self.inner_iterations + count)

    @property
    def fresh(self) -> Any:
        """Whether there was an update, and no iteration since."""
        return (self.updates > 0) & (self.inner_iterations == 0)

    @property
    def hopeless(self) -> Any:
        """Whether the constraints cannot be satisfied, as far as updates can tell."""
        return self.fruitless >= MAX_FRUITLESS_UPDATES

    def inner_tolerance(self, least: float) -> float:
        """The accuracy of the present minimisation for solvers that tighten it tenfold by every update, down to `least`."""
        return max(FIRST_INNER_TOLERANCE * 0.1 ** int(self.updates), least)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConstrainedState(SolverState):
    """State of a solver that minimises the augmented Lagrangian; converged: whether x is stationary and feasible."""

    schedule: Schedule
    converged: bool

    @property
    def multipliers(self) -> Multipliers:
        return self.schedule.multipliers

    def preferred_to(self, other: Any) -> bool:
        """The converged point, then the one of lower cost."""
        return self.converged if self.converged != other.converged else bool(self.cost < other.cost)


@subject("problem")
@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraint rows of a problem: at each stage [equality, inequality, state bounds], at the end likewise.

    State bounds count at t = 0 only where the initial state is free.
    """

    problem: OptimalControlProblem

    def stage(
        self, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
    ) -> Float[Array, " m"]:
        """Rows at one stage."""
        problem = self.problem
        rows = [problem.stage(kind, x, u, t, p) for kind in ("equality", "inequality")]
        return self._joined(x, rows)

    def terminal(self, x: Float[Array, " nx"], p: Float[Array, " np"]) -> Float[Array, " k"]:
        """Rows at the end."""
        rows = [self.problem.terminal(kind, x, p) for kind in ("terminal_equality", "terminal_inequality")]
        return self._joined(x, rows)

    def stage_slopes(
        self, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
    ) -> tuple[Float[Array, " m"], Float[Array, "m z"]]:
        """Rows at one stage and their derivative by z = [dx, du, dp]."""
        problem, at = self.problem, moved(self.problem, x, u, p)
        parts = [stage_constraints(problem, kind, x, u, t, p) for kind in ("equality", "inequality")]
        return self._with_bounds(parts, lambda z: at(z)[0], problem.n + problem.nu + problem.n_p)

    def terminal_slopes(
        self, x: Float[Array, " nx"], p: Float[Array, " np"]
    ) -> tuple[Float[Array, " k"], Float[Array, "k z"]]:
        """Rows at the end and their derivative by z = [dx, dp]."""
        problem = self.problem
        parts = [terminal_constraints(problem, kind, x, p) for kind in ("terminal_equality", "terminal_inequality")]
        return self._with_bounds(parts, lambda z: problem.retract(x, z[: problem.n]), problem.n + problem.n_p)

    def _with_bounds(
        self, parts: list[tuple[Array, Array]], at: Callable[[Array], Array], size: int
    ) -> tuple[Array, Array]:
        zero = jnp.zeros(size, parts[0][0].dtype)
        C, c = jax.jacfwd(lambda z: (self._joined(at(z), []),) * 2, has_aux=True)(zero)
        parts = [*parts, (c, C)]
        return jnp.concatenate([c for c, _ in parts]), jnp.concatenate([C for _, C in parts])

    def along(self, motion: Trajectory) -> Rows:
        """Rows of each stage and of the end along a motion."""
        times = jnp.asarray(self.problem.times)[:-1]
        stage = jax.vmap(lambda x, u, t: self.stage(x, u, t, motion.p))(motion.xs[:-1], motion.us, times)
        return stage, self.terminal(motion.xs[-1], motion.p)

    def parts(self, multipliers: Multipliers, rows: Rows) -> tuple[Part, Part]:
        """(y, w, c, inequality) of the rows of the stages and of those of the end, as `term` and its like take them."""
        m, kinds = multipliers, self.inequality()
        return (m.stage, m.stage_penalty, rows[0], kinds[0]), (m.terminal, m.terminal_penalty, rows[1], kinds[1])

    def added(self, multipliers: Multipliers, rows: Rows) -> Float[Array, ""]:
        """What rows add to the cost."""
        stage, end = self.parts(multipliers, rows)
        return term(*stage) + term(*end)

    def violation(self, rows: Rows) -> Float[Array, ""]:
        """The largest violation of the rows that count."""
        (stage, end), counts = self.inequality(), self.relevant()
        return jnp.maximum(violation(rows[0], counts, stage), violation(rows[1], np.ones(1, bool), end))

    def worth(self, multipliers: Multipliers, rows: Rows) -> Float[Array, ""]:
        """What an update of the multipliers is worth: what the penalties add for the rows' excess e, sum w e^2 / 2."""
        stage, end = (0.5 * jnp.sum(part[1] * excess(*part) ** 2) for part in self.parts(multipliers, rows))
        return stage + end

    def _joined(self, x: Array, rows: list[Array | None]) -> Array:
        lower, upper = self._bounds
        present = [row for row in rows if row is not None]
        low, high = self.problem.state_lower[lower], self.problem.state_upper[upper]
        return jnp.concatenate([*present, low.astype(x.dtype) - x[lower], x[upper] - high.astype(x.dtype)])

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        problem = self.problem
        return np.flatnonzero(problem.finite("state_lower")), np.flatnonzero(problem.finite("state_upper"))

    @property
    def _counts(self) -> tuple[int, int, int, int]:
        """Numbers of equalities and of all rows, at a stage and at the end; traced once for all problems of one structure."""
        leaves, structure = jax.tree.flatten(self)
        return _counts(structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))

    def inequality(self) -> tuple[Bool[np.ndarray, " m"], Bool[np.ndarray, " k"]]:
        """Which rows are inequalities, at a stage (m,) and at the end (k,)."""
        first, m, last, k = self._counts
        return np.arange(m) >= first, np.arange(k) >= last

    def relevant(self) -> Bool[np.ndarray, "T m"]:
        """(T, m): rows that count; bounds on a given initial state do not."""
        _, m, _, _ = self._counts
        rows = np.ones((self.problem.horizon, m), bool)
        if not self.problem.free_initial_state:
            rows[0, m - sum(side.size for side in self._bounds) :] = False
        return rows

    def initial(self, penalty: float) -> Multipliers:
        """Multipliers of zero; penalties of rows that do not count are zero."""
        relevant, k, dtype = self.relevant(), self._counts[-1], self.problem.dtype
        return Multipliers(
            np.zeros(relevant.shape, dtype),
            np.zeros(k, dtype),
            (penalty * relevant).astype(dtype),
            np.full(k, penalty, dtype),
        )


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _counts(structure: Any, types: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """`Constraints._counts` of those with this structure and leaves of these types."""
    constraints = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*one) for one in types])
    first, m, last, k = (row.shape[0] for row in jax.eval_shape(_rows, constraints))
    return first, m, last, k


def _rows(constraints: Constraints) -> tuple[Array, Array, Array, Array]:
    """Equalities and all rows at the first state, as at a stage and as at the end."""
    problem = constraints.problem
    x, u, t, p = (jnp.asarray(a) for a in (problem.x0, problem.u0[0], problem.times[0], problem.parameters))
    stage, end = problem.stage("equality", x, u, t, p), problem.terminal("terminal_equality", x, p)
    none = jnp.zeros(0, x.dtype)
    return (
        none if stage is None else stage,
        constraints.stage(x, u, t, p),
        none if end is None else end,
        constraints.terminal(x, p),
    )


def estimate(y: Values, w: Values, c: Values, inequality: Flags) -> Values:
    """First-order multiplier estimate: the derivative of the augmented term with respect to c."""
    moved_ = y + w * c
    return jnp.where(inequality, jnp.maximum(moved_, 0.0), moved_)


def term(y: Values, w: Values, c: Values, inequality: Flags) -> Float[Array, ""]:
    """What the rows add to the cost."""
    off = inequality & (y + w * c <= 0)
    return jnp.sum(jnp.where(off, -0.5 * y**2 / jnp.where(w > 0, w, 1.0), c * (y + 0.5 * w * c)))


def weight(y: Values, w: Values, c: Values, inequality: Flags) -> Values:
    """Second derivative of the augmented term with respect to c."""
    return jnp.where(inequality & (y + w * c <= 0), 0.0, w)


def excess(y: Values, w: Values, c: Values, inequality: Flags) -> Values:
    """Size of each row's violation for the penalty rule: |c|, or |max(c, -y/w)|, which includes complementarity."""
    held = jnp.maximum(c, -y / jnp.where(w > 0, w, 1.0))
    return jnp.where(w > 0, jnp.abs(jnp.where(inequality, held, c)), 0.0)


def change(y: Values, w: Values, c: Values, inequality: Flags) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(largest change of a multiplier that an update would make, largest multiplier after it)."""
    new, zero = estimate(y, w, c, inequality), jnp.zeros((), c.dtype)
    return jnp.max(jnp.abs(new - y), initial=zero), jnp.max(jnp.abs(new), initial=zero)


def violation(c: Values, relevant: Bool[Array, "..."] | Flags, inequality: Flags) -> Float[Array, ""]:
    """Largest violation of rows that count."""
    size = jnp.where(inequality, jnp.maximum(c, 0.0), jnp.abs(c))
    return jnp.max(jnp.where(relevant, size, 0.0), initial=jnp.zeros((), c.dtype))


@subject("constraints")
@dataclasses.dataclass(frozen=True)
class PenaltyRule:
    """How multipliers and penalties follow an inner minimisation: penalties grow by `factor` up to `largest`, and not for a row
    whose excess is below `tolerance` or fell to the share `sufficient_fall` of what it was.
    """

    constraints: Constraints
    factor: float
    largest: float
    tolerance: float
    sufficient_fall: float = SUFFICIENT_FALL

    def first(self, penalty: float) -> Schedule:
        """Before the first update."""
        multipliers = self.constraints.initial(penalty)
        excess = np.full_like(multipliers.stage, np.inf), np.full_like(multipliers.terminal, np.inf)
        none, huge = np.zeros((), np.int32), np.full((), np.inf, self.constraints.problem.dtype)
        return Schedule(multipliers, excess, none, none, huge, none)

    def falling(self, schedule: Schedule, violation: Any) -> Any:
        """Whether the violation is a tenth less than at earlier updates, or none."""
        return (violation <= FALLING * schedule.least_violation) | (violation <= self.constraints.problem.tolerance)

    def after(
        self,
        schedule: Schedule,
        rows: tuple[Float[Array, "T m"], Float[Array, " k"]],
        violation: ScalarLike,
        grow: Bool[Array, ""] | bool = True,
    ) -> Schedule:
        """After an update that follows an inner minimisation.

        rows: constraint values (T, m), (k,) there; violation: the largest; grow: whether penalties may.
        """
        m = schedule.multipliers
        stage, end = self.constraints.parts(m, rows)
        stage_excess, terminal_excess = excess(*stage), excess(*end)

        def raised(w: Array, now: Array, before: Array) -> Array:
            grows = (now > self.sufficient_fall * before) & (now > self.tolerance) & grow
            return jnp.where(grows, jnp.minimum(self.factor * w, self.largest), w)

        new = Multipliers(
            jnp.where(m.stage_penalty > 0, estimate(*stage), 0.0),
            estimate(*end),
            raised(m.stage_penalty, stage_excess, schedule.excess[0]),
            raised(m.terminal_penalty, terminal_excess, schedule.excess[1]),
        )
        largest = jnp.maximum(jnp.max(new.stage_penalty, initial=0.0), jnp.max(new.terminal_penalty, initial=0.0))
        in_vain = (largest >= self.largest) & ~self.falling(schedule, jnp.asarray(violation))
        return Schedule(
            multipliers=new,
            excess=(stage_excess, terminal_excess),
            inner_iterations=jnp.zeros_like(schedule.inner_iterations),
            updates=jnp.asarray(schedule.updates) + 1,
            least_violation=jnp.minimum(violation, schedule.least_violation),
            fruitless=jnp.where(in_vain, schedule.fruitless + 1, jnp.zeros_like(schedule.fruitless)),
        )

    def inner_tolerance(
        self,
        multipliers: Multipliers,
        rows: tuple[Float[Array, "T m"], Float[Array, " k"]],
        excess: Float[Array, ""],
    ) -> Float[Array, ""]:
        """The stationarity, relative to its measure, at which multipliers are worth an update: INNER_SHARE of the relative change
        that it would make, at most INNER_LARGEST. Zero where the rows' excess is within the tolerance: then only the
        minimisation is left. rows: constraint values (T, m), (k,).
        """
        changes, sizes = zip(*(change(*part) for part in self.constraints.parts(multipliers, rows)), strict=True)
        size = jnp.maximum(*sizes)
        share = jnp.maximum(*changes) / jnp.where(size > 0, size, 1.0)
        violated = excess > self.constraints.problem.tolerance
        return jnp.where(violated, jnp.minimum(INNER_SHARE * share, INNER_LARGEST), 0.0)
