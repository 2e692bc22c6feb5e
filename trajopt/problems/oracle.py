"""The compiled functions of problems, which solvers call, and what is recomputed at an answer.

Whether controls have any influence on what a problem asks of its states, to first order along a motion.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.effort import Effort
from trajopt.dynamics.gradients.differences import RIDDERS_LEVELS
from trajopt.dynamics.system import State, System
from trajopt.problems import programs
from trajopt.problems.expansions import final_expansion, linear_dynamics, stage_expansion
from trajopt.problems.goals import PREFIX, GoalReport, Judged, goal_reports, goal_values, shortfalls_of, worst_goal
from trajopt.problems.residuals.base import is_task, task_costs
from trajopt.problems.trajectory import CONSTRAINTS, ControlProblem, FitProblem, Trajectory, flat_state

NOTHING = 1e-9  # share of the costates below which what controls do about them is rounding


def lacks_influence(
    slope: Float[np.ndarray, "T1 n"], B: Float[np.ndarray, "T n nu"], costates: Float[np.ndarray, "T1 n"], scale: float
) -> bool:
    """Whether the cost of the states has a slope that no control passes on: B_t^T p_{t+1} is zero at every step.

    slope: of the cost by the states; scale: below `NOTHING` of it a slope is none.
    """
    pull = np.abs(np.einsum("tij,ti->tj", np.asarray(B), np.asarray(costates)[1:])).max(initial=0.0)
    most = np.abs(costates[1:]).max(initial=0.0)
    return bool(np.abs(slope[1:]).max(initial=0.0) > NOTHING * scale and pull <= NOTHING * most)


def adjoint_along(
    judged: Judged, motion: Trajectory
) -> tuple[Float[Array, "T1 n"], Float[Array, "T n nu"], Float[Array, "T1 n"]]:
    """(slope of the cost and of the values of goals by the states, B, costates) along a motion, with exact derivatives."""
    problem, p = judged.problem, motion.p
    linear, n, nu = linear_dynamics(problem, "implicit"), problem.n, problem.nu

    def goals(dx: Array) -> Array:
        moved = dataclasses.replace(motion, xs=jax.vmap(problem.retract)(motion.xs, dx))
        return sum(goal_values(judged, moved).values(), jnp.zeros((), dx.dtype))

    by_goals = jax.grad(goals)(jnp.zeros((problem.horizon + 1, n), motion.xs.dtype))

    def stage(at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        return linear(*at, p)[1], stage_expansion(problem, *at, p).gradient[:n]

    F, q = jax.lax.map(stage, (motion.xs[:-1], motion.us, jnp.asarray(problem.times)[:-1]))
    q, last = q + by_goals[:-1], final_expansion(problem, motion.xs[-1], p).gradient[:n] + by_goals[-1]

    def back(costate: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        before = row[1] + row[0].T @ costate
        return before, before

    costates = jax.lax.scan(back, last, (F[:, :, :n], q), reverse=True)[1]
    return jnp.concatenate([q, last[None]]), F[:, :, n : n + nu], jnp.concatenate([costates, last[None]])


@dataclasses.dataclass(frozen=True)
class Examination:
    """What is recomputed along a motion: the violations by kind (`residual_parts`), and with contact the residual and the number
    of dropped contacts of every step, (T,), and the impulses, (T, contacts, 3), N s. terms: the cost of each residual by name."""

    parts: dict[str, Float[Array, ""]]
    residual: Float[Array, " T"] | None = None
    dropped: Int[Array, " T"] | None = None
    impulse: Float[Array, "T contacts 3"] | None = None
    terms: dict[str, Float[Array, ""]] = dataclasses.field(default_factory=dict)

    @property
    def dropped_contacts(self) -> float:
        """Of all steps."""
        return 0.0 if self.dropped is None else float(np.sum(np.asarray(self.dropped)))


jax.tree_util.register_dataclass(Examination, ["parts", "residual", "dropped", "impulse", "terms"], [])


def examine(problem: ControlProblem, trajectory: Trajectory) -> Examination:
    """Take every step of a motion again, once for all that is recomputed: a step is long to compile."""
    xs, us, p = trajectory.xs, trajectory.us, trajectory.p
    stages, others = cost_terms(problem, trajectory, functions=False)
    terms = {name: jnp.sum(row) for name, row in stages.items()} | others
    if not problem.has_contact:
        times = jnp.asarray(problem.times)[:-1]
        x_next = jax.vmap(lambda x, u, t: problem.step(x, u, t, p))(xs[:-1], us, times)
        return Examination(residual_parts(problem, trajectory, x_next), terms=terms)
    system = problem.system_at(p)

    def step(_: None, at: tuple[Array, Array]) -> tuple[None, tuple[Array, tuple[Array, Array, Array]]]:
        x_next, info = system.step(problem.as_state(at[0]), at[1])
        return None, (flat_state(x_next), (info.residual, info.dropped, info.contacts.impulse))

    x_next, found = jax.lax.scan(step, None, (xs[:-1], us))[1]
    return Examination(residual_parts(problem, trajectory, x_next), *found, terms)


FUNCTIONS = {  # what the cost of a function is called that is not made of residuals
    "stage_residual": "stage residual",
    "stage_cost": "stage cost",
    "terminal_residual": "terminal residual",
    "terminal_cost": "terminal cost",
    "initial_residual": "prior of the first state",
    "parameter_residual": "prior of the parameters",
}


def cost_terms(
    problem: ControlProblem, trajectory: Trajectory, functions: bool = True
) -> tuple[dict[str, Float[Array, " T"]], dict[str, Float[Array, ""]]]:
    """(cost of each term of the stages, step by step; cost of each other term), by name: together the cost of the motion.

    Terms are the residuals that the problem is made of, those of the terminal state and of the prior with "terminal" and
    "initial" in front, and, with `functions`, whatever else there is: `FUNCTIONS`.
    """
    xs, us, p = trajectory.xs, trajectory.us, trajectory.p

    def stage(at: tuple[Array, Array, Array]) -> dict[str, Array]:
        x, u, t = at
        terms: dict[str, Array] = {}
        if is_task(problem.stage_residual):
            outcome = problem.outcome(x, u, p)
            terms |= task_costs(problem.stage_residual, outcome.x, u, t, outcome)
        elif functions and problem.stage_residual is not None:
            terms[FUNCTIONS["stage_residual"]] = _half_square(problem.stage("stage_residual", x, u, t, p))
        if functions and problem.stage_cost is not None:
            terms[FUNCTIONS["stage_cost"]] = jnp.asarray(problem.stage("stage_cost", x, u, t, p))
        return terms

    others: dict[str, Array] = {}
    for kind, index, t in (("initial_residual", 0, problem.times[0]), ("terminal_residual", -1, problem.times[-1])):
        task = getattr(problem, kind)
        if is_task(task):
            outcome = problem.outcome(xs[index], None, p)
            found = task_costs(task, outcome.x, None, t, outcome)
            others |= {f"{kind.partition('_')[0]} {name}": value for name, value in found.items()}
        elif functions and task is not None:
            others[FUNCTIONS[kind]] = _half_square(problem.terminal(kind, xs[index], p))
    if functions and problem.terminal_cost is not None:
        others[FUNCTIONS["terminal_cost"]] = jnp.asarray(problem.terminal("terminal_cost", xs[-1], p))
    if functions and problem.parameter_residual is not None:
        others[FUNCTIONS["parameter_residual"]] = _half_square(problem.parameter_residual(p))
    return jax.lax.map(stage, (xs[:-1], us, jnp.asarray(problem.times)[:-1])), others


def _half_square(rows: Any) -> Array:
    return 0.5 * jnp.vdot(rows, rows)


def residual_parts(
    problem: ControlProblem, trajectory: Trajectory, x_next: Float[Array, "T nx"]
) -> dict[str, Float[Array, ""]]:
    """Largest violation of each kind of constraint: defect, bounds, and the constraints there are; x_next: of every step, taken
    again from its own state."""
    xs, us, p = trajectory.xs, trajectory.us, trajectory.p
    times = jnp.asarray(problem.times)
    parts = {"defect": _largest(jax.vmap(problem.local)(xs[1:], x_next))}
    bounded = [
        (us, problem.control_lower, problem.control_upper),
        (p, problem.parameter_lower, problem.parameter_upper),
    ]
    first = 0 if problem.free_initial_state else 1
    bounded.append((xs[first:], problem.state_lower, problem.state_upper))
    excess = [
        jnp.maximum(jnp.max(jnp.maximum(low.astype(a.dtype) - a, a - high.astype(a.dtype)), initial=0.0), 0.0)
        for a, low, high in bounded
    ]
    parts["bound_violation"] = jnp.max(jnp.stack(excess))
    if not problem.free_initial_state:
        parts["initial_state_error"] = _largest(problem.local(jnp.asarray(problem.x0), xs[0]))
    for kind in CONSTRAINTS:
        if getattr(problem, kind) is None:
            continue
        if kind.startswith("terminal"):
            value: Any = problem.terminal(kind, xs[-1], p)
        else:
            value = jax.vmap(lambda x, u, t, kind=kind: problem.stage(kind, x, u, t, p))(xs[:-1], us, times[:-1])
        parts[kind] = _largest(jnp.maximum(value, jnp.zeros_like(value)) if kind.endswith("inequality") else value)
    return parts


def _largest(value: Any) -> Array:
    return jnp.max(jnp.abs(value), initial=jnp.zeros((), value.dtype))


class CompiledCalls:
    """Functions of a subject, compiled when first called; compile_time_s: what that has taken."""

    compile_time_s: float = 0.0

    def call(
        self, function: Callable[..., Any], subject: Any, *arguments: Any, effort: Effort = Effort.FULL
    ) -> Any:
        """function(subject, *arguments) by a compiled program (`programs`); blocks until it is done."""
        result, seconds = programs.run(function, subject, *arguments, effort=effort)
        self.compile_time_s += seconds
        return result


class OptimalControlOracle(CompiledCalls):
    """The compiled functions of an optimal control problem, and how often the dynamics were evaluated.

    Functions are compiled when first called, unless another oracle of the problem, or of one that differs in numbers alone, has
    done so; `compile_time_s` sums that up. `evaluations` counts motions: one for a rollout or an implicit linearisation of all
    steps, one more for every difference quotient's evaluation. `out_of_time`, set by the loop, may be asked within a long
    iteration.
    """

    def __init__(self, problem: ControlProblem, gradient: str | None = None) -> None:
        system = problem.system
        by_core = isinstance(system, System) and system.resolved_backend == "native"
        self.effort = Effort.LIGHT if by_core else Effort.FULL  # of an iteration, whose time in the core no compiler shortens
        mode = problem.defaults.gradient if gradient is None else gradient
        assert mode is not None  # validation of the problem has set it
        self.problem, self.gradient = problem.with_gradient(mode), mode
        self.evaluations, self.compile_time_s = 0, 0.0
        self.out_of_time: Callable[[], bool] = lambda: False
        self._examined: tuple[Trajectory, Examination] | None = None
        columns = problem.n + problem.nu + problem.n_p
        self.cost_of_linearization = {
            "finite-difference": 2 * columns + 1,
            "ridders": 2 * columns * RIDDERS_LEVELS + 1,
        }.get(mode, 1)

    def rollout(self, x0: Float[Array, " nx"], us: Float[Array, "T nu"], p: Float[Array, " np"]) -> Trajectory:
        """The motion from x0 under the controls us: where a solver begins, or ends."""
        self.evaluations += 1
        found = self._rolled(x0, us, p)
        return Trajectory(*(np.asarray(a) for a in (found.xs, found.us, found.p)))

    def _rolled(self, x0: Float[Array, " nx"], us: Float[Array, "T nu"], p: Float[Array, " np"]) -> Trajectory:
        return self.call(type(self.problem).rollout, self.problem, x0, us, p, effort=Effort.QUICK)

    def cost(self, trajectory: Trajectory) -> float:
        return float(self.call(type(self.problem).cost, self.problem, trajectory))

    def examine(self, trajectory: Trajectory) -> Examination:
        """`examine` of a motion; of the same one, only once."""
        if self._examined is None or self._examined[0] is not trajectory:
            self._examined = trajectory, self.call(examine, self.problem, trajectory, effort=Effort.QUICK)
        return self._examined[1]

    def residuals(self, trajectory: Trajectory) -> dict[str, float]:
        """What a `Solution` reports: violations, and with contact the contact law's residual along the motion."""
        return self.measures(self.examine(trajectory), trajectory)

    def measures(self, found: Examination, trajectory: Trajectory) -> dict[str, float]:
        """`residuals` of a motion that has been examined."""
        values = {key: float(value) for key, value in found.parts.items()}
        if found.residual is not None:
            values["contact_residual"] = float(np.max(np.asarray(found.residual)))
            values["dropped_contacts"] = found.dropped_contacts
        if self.problem.goals:
            values |= self._goals(self.rolled_out(trajectory))
        return values | self.problem.certificate.values(trajectory)

    def rolled_out(self, trajectory: Trajectory) -> Trajectory:
        """The motion under the controls of another, outside the counters."""
        return self._rolled(trajectory.xs[0], trajectory.us, trajectory.p)

    def _goals(self, motion: Trajectory) -> dict[str, float]:
        found = self.call(goal_values, Judged(self.problem, self.problem.goals), motion, effort=Effort.QUICK)
        return {PREFIX + name: float(value) for name, value in found.items()}

    def meets_goals(self, motion: Trajectory) -> bool:
        """Whether the states of a motion meet the problem's goals, and its steps are found again one by one: where a step has
        several solutions, a rollout may take another than the step alone."""
        return all(report.met for report in self.goals_of(motion).values()) and self._is_found_again(motion)

    def _is_found_again(self, motion: Trajectory) -> bool:
        found = self.examine(motion)
        return float(found.parts["defect"]) <= self.problem.tolerance and not found.dropped_contacts

    def worst_goal(self, motion: Trajectory) -> float:
        """The largest value of a goal in units of its tolerance, of the states of a motion."""
        return worst_goal(self.goals_of(motion))

    def goals_of(self, motion: Trajectory) -> dict[str, GoalReport]:
        """What the states of a motion make of the problem's goals."""
        return goal_reports(self.problem.goals, self._goals(motion) if self.problem.goals else {})

    def shortfalls(self, values: dict[str, float]) -> list[str]:
        """What keeps recomputed `values` from counting as an answer, as sentences."""
        return shortfalls_of(self.problem, values)

    def lacks_influence(self, motion: Trajectory) -> bool:
        """Whether no control changes the cost of a motion's states and the values of goals, to first order."""
        judged = Judged(self.problem, self.problem.goals)
        slope, B, costates = self.call(adjoint_along, judged, motion, effort=Effort.QUICK)
        return lacks_influence(np.asarray(slope), np.asarray(B), np.asarray(costates), 1.0)

    def fields(self, trajectory: Trajectory) -> dict[str, Any]:
        """Fields of the `Solution`: x (controls and parameters, flat), xs, us, parameters and the arrays to plot."""
        problem, system = self.problem, self.problem.system
        xs, us, p = (np.asarray(a) for a in (trajectory.xs, trajectory.us, trajectory.p))
        motion: dict[str, Any] = {"t": problem.times, "u": us}
        if isinstance(system, System):
            states = [problem.as_state(x) for x in xs]
            motion["q"] = np.stack([np.asarray(s.q) for s in states if isinstance(s, State)])
            motion["v"] = np.stack([np.asarray(s.v) for s in states if isinstance(s, State)])
            impulse = self.examine(trajectory).impulse
            if impulse is not None:
                motion["impulse"] = np.asarray(impulse)
        elif problem.display.motion is not None:
            motion |= {key: np.asarray(value) for key, value in problem.display.motion(Trajectory(xs, us, p)).items()}
        else:
            motion["x"] = xs
        x = np.concatenate([us.ravel(), p])
        terms = {name: float(value) for name, value in self.examine(trajectory).terms.items()}
        return {"terms": terms, "x": x, "xs": xs, "us": us, "parameters": p if p.size else None, "trajectory": motion}


class LeastSquaresOracle(CompiledCalls):
    """The compiled functions of a least-squares problem, and how often they were called.

    Functions are compiled when first called, unless another oracle of the problem has done so; `compile_time_s`
    sums that up. `evaluations` counts evaluations of the residual function: one for a residual or an implicit linearisation, one
    more for every difference quotient's evaluation.
    """

    def __init__(self, problem: FitProblem, gradient: str = "implicit") -> None:
        self.problem, self.gradient = problem, gradient
        self.evaluations, self.compile_time_s = 0, 0.0
        self.out_of_time: Callable[[], bool] = lambda: False
        n = problem.dimension
        self.cost_of_linearization = {
            "implicit": 1,
            "finite-difference": 2 * n + 1,
            "ridders": 2 * n * RIDDERS_LEVELS + 1,
        }[gradient]

    def residual(self, x: Float[np.ndarray, " nx"], effort: Effort = Effort.FULL) -> Float[np.ndarray, " m"]:
        """r(x), prior rows included, (m,)."""
        self.evaluations += 1
        return np.asarray(
            self.call(type(self.problem).full_residual, self.problem, self._cast(x), effort=effort), np.float64
        )

    def linearize(self, x: Float[np.ndarray, " nx"]) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m n"]]:
        """r(x) (m,) and J(x) (m, n) from one compiled call."""
        self.evaluations += self.cost_of_linearization
        r, J = self.call(Linearization.at, Linearization(self.problem, self.gradient), self._cast(x))
        return np.asarray(r, np.float64), np.asarray(J, np.float64)

    def residuals(self, x: Float[np.ndarray, " nx"]) -> dict[str, float]:
        """Quantities recomputed at x: what a `Solution` reports."""
        return self.problem.residuals(x, self.residual(x, Effort.QUICK))

    def shortfalls(self, values: Mapping[str, float]) -> list[str]:
        """What keeps recomputed `values` from counting as an answer, as sentences."""
        return shortfalls_of(self.problem, values)

    def lacks_influence(self, x: Float[np.ndarray, " nx"]) -> bool:
        """The unknowns of a fit are what its residual is about."""
        return False

    def fields(self, x: Float[np.ndarray, " nx"]) -> dict[str, Any]:
        """Fields of the `Solution`: x, and the motion where the problem describes one."""
        describe = self.problem.display.motion
        motion = {} if describe is None else describe(jnp.asarray(x))
        motion = {key: np.asarray(value) for key, value in motion.items() if value is not None}
        states = [motion[key] for key in ("q", "v") if key in motion]
        xs = np.concatenate(states, axis=-1) if states else None
        return {"x": x, "xs": xs, "us": motion.get("u"), "trajectory": motion}

    def move(self, x: Float[np.ndarray, " nx"], dx: Float[np.ndarray, " n"]) -> Float[np.ndarray, " nx"]:
        """x (+) dx, projected into the bounds."""
        problem = self.problem
        if problem.integrate is not None:
            return np.asarray(self.call(_integrated, problem, self._cast(x), self._cast(dx)))
        return np.clip(self._cast(x + dx), problem.lower, problem.upper).astype(problem.x0.dtype)

    def _cast(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, self.problem.x0.dtype)


@programs.subject("problem")
@dataclasses.dataclass(frozen=True)
class Linearization:
    """The residual of a least-squares problem and its Jacobian in a gradient mode."""

    problem: FitProblem
    gradient: str

    def at(self, x: Float[Array, " nx"]) -> tuple[Float[Array, " m"], Float[Array, "m n"]]:
        """(r, J) at x."""
        return self.problem.linearization(self.gradient)(x)


def _integrated(problem: FitProblem, x: Array, dx: Array) -> Array:
    """x (+) dx on the problem's manifold."""
    assert problem.integrate is not None
    return problem.integrate(x, dx)
