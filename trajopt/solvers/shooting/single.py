"""Single shooting: the cost as a function of controls, parameters and a free initial state, for first-order methods.

The gradient comes from one reverse pass through the rollout. The rollout is cut into about sqrt(T) stretches of sqrt(T)
steps whose insides are computed again in the reverse pass (Griewank, Walther 2000), so that memory grows with sqrt(T).

Bounds on controls and parameters are kept by the optimiser. All other constraints enter through an augmented Lagrangian
(`augmented_lagrangian`): whenever the gradient is below the inner tolerance, or after `max_inner_iterations`, multipliers and
penalties are updated and the inner tolerance is divided by ten.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, ScalarLike

from trajopt.errors import OptionError
from trajopt.options import check_options
from trajopt.problems.expansions import linear_dynamics
from trajopt.problems.ocp import DIFFERENCES, OptimalControlProblem, Trajectory
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.programs import subject
from trajopt.result import Status, status_named
from trajopt.solvers.least_squares.lbfgs import LBFGS
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, default_tolerance, ended_by, place_of_step
from trajopt.solvers.subproblems.augmented_lagrangian import (
    MAX_FRUITLESS_UPDATES,
    ConstrainedState,
    Constraints,
    Multipliers,
    PenaltyRule,
    term,
)
from trajopt.solvers.subproblems.box_qp import held_at_bound

TOLERANCE_EXPONENT = 0.6  # default tolerance 1e-6 in float64, 1e-3 in float32
RELAXED_FACTOR = 1e3  # `acceptable` allows that many tolerances


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SingleShootingState(ConstrainedState):
    """Adds the variables z, value and gradient of the augmented Lagrangian, its constraint rows and the optimiser's state.

    `gradient_norm` is the largest component of that gradient over the variables not held at a bound.
    """

    z: Any
    value: float
    gradient: Any
    rows: tuple[Any, Any]
    optimizer_state: Any
    bad_step: int

    def non_finite_place(self) -> str:
        """The first step at which something is not finite."""
        return place_of_step(self.bad_step, len(self.x.us), "in the gradient")


@dataclasses.dataclass(frozen=True)
class SingleShooting(LibrarySolver):
    """First-order methods for `OptimalControlProblem`.

    Options:
        optimizer: `LBFGS(...)`, or any optax transformation, whose updates are projected into the bounds. Default:
            `LBFGS()`.
        tolerance: on the largest free component of the gradient, relative to $max(1, |cost|)$. Default: 1e-6 in float64, 1e-3
            in float32.
        max_iterations: largest number of iterations of the optimiser.
        penalty: first penalty of the augmented Lagrangian.
        penalty_factor: factor by which a penalty grows.
        max_penalty: largest penalty.
        max_inner_iterations: of the optimiser between two updates of the multipliers.

    `Solution.multipliers`: "stage" (T, m) and "terminal" (k,), of the rows of `augmented_lagrangian.Constraints`.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    optimizer: LBFGS | optax.GradientTransformation = dataclasses.field(default_factory=LBFGS)
    tolerance: float | None = None
    max_iterations: int = 2000
    penalty: float = 10.0
    penalty_factor: float = 10.0
    max_penalty: float = 1e8
    max_inner_iterations: int = 200

    def __post_init__(self) -> None:
        check_options(
            self,
            tolerance="(0, inf)",
            penalty="(0, inf)",
            max_penalty="(0, inf)",
            penalty_factor="(1, inf)",
            max_iterations="[0, inf)",
            max_inner_iterations="[1, inf)",
        )
        if not isinstance(self.optimizer, (LBFGS, optax.GradientTransformation)):
            raise OptionError(
                f"SingleShooting: optimizer is {self.optimizer!r}; expected LBFGS(...) or an optax transformation"
            )

    def _tolerance(self, problem: OptimalControlProblem) -> float:
        given = self.tolerance
        if given is None and isinstance(self.optimizer, LBFGS):
            given = self.optimizer.tolerance
        return given or default_tolerance(problem.dtype) ** TOLERANCE_EXPONENT

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> SingleShootingState:
        """State at the rollout of the initial guess."""
        program = SingleShootingProgram(oracle, guess)
        schedule = self._rule(program).first(self.penalty)
        z = program.variables(guess)
        optimizer_state = None
        if not isinstance(self.optimizer, LBFGS):
            with jax.numpy_dtype_promotion("standard"):  # optax multiplies integers with floats
                optimizer_state = self.optimizer.init(jnp.asarray(z))
        state = SingleShootingState(
            **program.point(z, schedule.multipliers), step_size=0.0, schedule=schedule, converged=False,
            optimizer_state=optimizer_state,
        )  # fmt: skip
        return self._judged(program, state)

    def _judged(self, program: SingleShootingProgram, state: SingleShootingState) -> SingleShootingState:
        """With `converged` set where gradient and violation are small enough."""
        problem = program.problem
        stationary = state.gradient_norm <= self._tolerance(problem) * max(1.0, abs(state.cost))
        return dataclasses.replace(state, converged=bool(stationary and state.violation <= problem.tolerance))

    def _moved(
        self, program: SingleShootingProgram, state: SingleShootingState, z: np.ndarray, **changes: Any
    ) -> SingleShootingState:
        """The state at z after one more iteration."""
        point = program.point(z, state.multipliers)
        step, schedule = float(np.linalg.norm(z - state.z)), state.schedule.with_steps(1)
        state = dataclasses.replace(state, **point, step_size=step, schedule=schedule, **changes)
        return self._judged(program, state)

    def _inner_ended(self, program: SingleShootingProgram, state: SingleShootingState) -> bool:
        limit = state.schedule.inner_tolerance(self._tolerance(program.problem)) * max(1.0, abs(state.cost))
        return bool(state.gradient_norm <= limit or state.schedule.inner_iterations >= self.max_inner_iterations)

    def _rule(self, program: SingleShootingProgram) -> PenaltyRule:
        return PenaltyRule(program.constraints, self.penalty_factor, self.max_penalty, program.problem.tolerance)

    def _updated(self, program: SingleShootingProgram, state: SingleShootingState) -> SingleShootingState:
        """With the multipliers moved to their estimates and everything evaluated anew."""
        schedule = self._rule(program).after(state.schedule, state.rows, state.violation)
        return dataclasses.replace(state, **program.point(state.z, schedule.multipliers), schedule=schedule)

    def run(self, oracle: OptimalControlOracle, state: SingleShootingState, advance: Advance) -> Status:
        """Iterate until the loop says that it is enough, or the optimiser gives up."""
        program = SingleShootingProgram(oracle, state.x)
        state = dataclasses.replace(state, z=program.variables(state.x))
        if not isinstance(self.optimizer, LBFGS):
            while True:
                state = self._step(program, state)
                status = advance(state)
                if status is not None:
                    return status
                if program.constrained and self._inner_ended(program, state):
                    state = self._updated(program, state)
        failures = 0
        while True:
            status, before = None, state.value

            def evaluate(z: np.ndarray, multipliers: Multipliers = state.multipliers) -> tuple[float, np.ndarray]:
                value, gradient, *_ = program.evaluate(z, multipliers)
                return value, np.asarray(gradient, float)

            def report(z: np.ndarray) -> bool:
                nonlocal state, status
                state = self._moved(program, state, np.asarray(z, program.problem.dtype))
                status = advance(state)
                return status is not None or (program.constrained and self._inner_ended(program, state))

            why = self.optimizer.minimise(evaluate, np.asarray(state.z, float), program.lower, program.upper, report)
            if status is not None:
                return status
            failures = failures + 1 if why and state.value >= before else 0
            if (why and not program.constrained) or failures > MAX_FRUITLESS_UPDATES:
                halt = "stalled" if why == "converged" else "line_search_failed"
                return ended_by(state, halt, advance)
            state = self._updated(program, state)
            if state.schedule.hopeless:
                return ended_by(state, "infeasible", advance)

    def _step(self, program: SingleShootingProgram, state: SingleShootingState) -> SingleShootingState:
        """One update of an optax transformation."""
        assert not isinstance(self.optimizer, LBFGS)
        z, gradient = jnp.asarray(state.z), jnp.asarray(state.gradient)
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = self.optimizer.update(gradient, state.optimizer_state, z)
        z = np.clip(np.asarray(z + updates), program.lower, program.upper).astype(program.problem.dtype)
        return self._moved(program, state, z, optimizer_state=optimizer_state)

    def terminate(self, oracle: OptimalControlOracle, state: SingleShootingState) -> Status | None:
        """Solved when stationary and feasible; `acceptable` when nearly so and the optimiser gave up."""
        if state.converged:
            return Status.solved
        if state.schedule.hopeless:
            return Status.infeasible
        if not state.halt:
            return None
        nearly = state.gradient_norm <= RELAXED_FACTOR * self._tolerance(oracle.problem) * max(1.0, abs(state.cost))
        feasible = state.violation <= oracle.problem.tolerance
        return Status.acceptable if nearly and feasible else status_named(state.halt)

    def finish(self, oracle: OptimalControlOracle, state: SingleShootingState) -> Findings:
        """The gradient of the augmented Lagrangian, recomputed, and its multipliers."""
        program = SingleShootingProgram(oracle, state.x)
        found = program.point(program.variables(state.x), state.multipliers)
        multipliers = {"stage": np.asarray(state.multipliers.stage), "terminal": np.asarray(state.multipliers.terminal)}
        return Findings(
            residuals={"gradient_norm": found["gradient_norm"]},
            fields={"multipliers": multipliers if program.constrained else {}},
        )


@subject("problem")
@dataclasses.dataclass(frozen=True)
class AugmentedCost:
    """The augmented Lagrangian of a problem as a function of z = [u_0 .. u_{T-1}, p, dx_0 (if x_0 is free)]."""

    problem: OptimalControlProblem
    gradient: str

    @functools.cached_property
    def constraints(self) -> Constraints:
        """The constraint rows."""
        return Constraints(self.problem)

    @functools.cached_property
    def step(self) -> Callable[..., Array]:
        """The dynamics with the derivative of the gradient mode."""
        return differentiable_step(self.problem, self.gradient)

    def _unpack(self, z: Array, start: Array) -> tuple[Array, Array, Array]:
        problem = self.problem
        T, nu, n_p = problem.horizon, problem.nu, problem.n_p
        x0 = problem.retract(start, z[T * nu + n_p :]) if problem.free_initial_state else start
        return x0, z[: T * nu].reshape(T, nu), z[T * nu : T * nu + n_p]

    def lagrangian(self, z: Float[Array, " nz"], start: Float[Array, " nx"], multipliers: Multipliers) -> tuple:
        """(augmented Lagrangian, (cost, violation, states, rows of the stages and of the end, first bad step))."""
        problem, T = self.problem, self.problem.horizon
        x0, us, p = self._unpack(z, start)
        at_stage, at_end = self.constraints.inequality()
        length = math.isqrt(T - 1) + 1
        count = -(-T // length)
        steps = np.arange(count * length)
        ok = steps < T
        index = np.where(ok, steps, 0).reshape(count, length)  # what pads the last stretch repeats the first step
        times = jnp.asarray(problem.times[:-1][index])
        inputs = (
            us[index],
            times,
            multipliers.stage[index],
            multipliers.stage_penalty[index],
            ok.reshape(count, length),
        )

        def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
            u, t, y, w, ok = inputs
            at = jnp.where(ok, x, x0)
            x_next, c = self.step(at, u, t, p), self.constraints.stage(at, u, t, p)
            cost = problem.running_cost(at, u, t, p)
            value = cost + term(y, w, c, at_stage)
            finite = jnp.isfinite(jnp.concatenate([x_next, c, value[None]])).all()
            zero = jnp.zeros_like(cost)
            return jnp.where(ok, x_next, x), (x, jnp.where(ok, cost, zero), jnp.where(ok, value, zero), c, finite)

        def stretch(x: Array, inputs: tuple) -> tuple[Any, Any]:
            return jax.lax.scan(body, x, inputs)

        last, (xs, costs, values, rows, finite) = jax.lax.scan(jax.checkpoint(stretch), x0, inputs)
        flat = lambda a: a.reshape(count * length, *a.shape[2:])[:T]  # noqa: E731
        end = self.constraints.terminal(last, p)
        prior = problem.prior_residual(x0, p)
        final = problem.final_cost(last, p) + 0.5 * jnp.vdot(prior, prior)
        held = term(multipliers.terminal, multipliers.terminal_penalty, end, at_end)
        largest = self.constraints.violation((flat(rows), end))
        finite = jnp.append(flat(finite), jnp.isfinite(final + held))
        bad = jnp.where(finite.all(), T + 1, jnp.argmin(finite))
        states = jnp.concatenate([flat(xs), last[None]])
        return jnp.sum(values) + final + held, (jnp.sum(costs) + final, largest, states, (flat(rows), end), bad)

    def value_and_gradient(self, z: Float[Array, " nz"], start: Float[Array, " nx"], multipliers: Multipliers) -> tuple:
        """((value, what else `lagrangian` returns), gradient)."""
        return jax.value_and_grad(self.lagrangian, has_aux=True)(z, start, multipliers)


class SingleShootingProgram:
    """`AugmentedCost` evaluated from one initial state, its bounds, and the last point that was asked for."""

    def __init__(self, oracle: OptimalControlOracle, start: Trajectory) -> None:
        self.oracle, self.problem = oracle, oracle.problem
        problem = self.problem
        self.start = np.asarray(start.xs[0] if problem.free_initial_state else problem.x0)
        self.augmented = AugmentedCost(problem, oracle.gradient)
        self.constraints = self.augmented.constraints
        self.constrained = bool(self.constraints.relevant().any() or self.constraints.inequality()[1].size)
        free = np.full(problem.n if problem.free_initial_state else 0, np.inf)
        self.lower = np.concatenate([np.tile(problem.control_lower, problem.horizon), problem.parameter_lower, -free])
        self.upper = np.concatenate([np.tile(problem.control_upper, problem.horizon), problem.parameter_upper, free])
        self._last: tuple[Any, ...] = ()

    def variables(self, motion: Trajectory) -> Float[np.ndarray, " d"]:
        """z of a motion whose first state is the start."""
        free = np.zeros(self.problem.n if self.problem.free_initial_state else 0)
        z = np.concatenate([np.ravel(motion.us), motion.p, free])
        return np.clip(z, self.lower, self.upper).astype(self.problem.dtype)

    def evaluate(self, z: Float[np.ndarray, " d"], multipliers: Multipliers) -> tuple:
        """(value, gradient, cost, violation, states, rows, first bad step); the last point is kept."""
        z = np.asarray(z, self.problem.dtype)
        if not (self._last and multipliers is self._last[1] and np.array_equal(z, self._last[0])):
            self.oracle.evaluations += self.oracle.cost_of_linearization
            (value, rest), gradient = self.oracle.call(
                AugmentedCost.value_and_gradient, self.augmented, z, self.start, multipliers
            )
            value = float(value) if rest[-1] > self.problem.horizon else float("nan")  # a motion with gaps has no value
            self._last = z.copy(), multipliers, (value, gradient, *rest)
        return self._last[2]

    def point(self, z: Float[np.ndarray, " d"], multipliers: Multipliers) -> dict[str, Any]:
        """The fields of a state at z."""
        problem = self.problem
        value, gradient, cost, largest, states, rows, bad = self.evaluate(z, multipliers)
        gradient = np.asarray(gradient)
        held = held_at_bound(z, gradient, self.lower, self.upper)
        T, nu = problem.horizon, problem.nu
        us, p = np.asarray(z[: T * nu]).reshape(T, nu), np.asarray(z[T * nu : T * nu + problem.n_p])
        return {
            "x": Trajectory(np.asarray(states), us, p),
            "cost": float(cost),
            "violation": float(largest),
            "gradient_norm": float(np.abs(gradient[~held]).max(initial=0.0)) if np.isfinite(value) else float("nan"),
            "z": np.asarray(z),
            "value": value,
            "gradient": gradient,
            "rows": rows,
            "bad_step": int(bad),
        }


def differentiable_step(problem: OptimalControlProblem, gradient: str) -> Callable[..., Array]:
    """x_next = f(x, u, t, p) whose reverse mode is that of the gradient mode."""
    if gradient not in DIFFERENCES:
        return problem.step
    linear, n, nu = linear_dynamics(problem, gradient), problem.n, problem.nu

    @jax.custom_vjp
    def step(x: Array, u: Array, t: ScalarLike, p: Array) -> Array:
        return problem.step(x, u, t, p)

    def forward(x: Array, u: Array, t: ScalarLike, p: Array) -> tuple:
        x_next, F = linear(x, u, t, p)
        return x_next, (x, x_next, F, t)

    def backward(kept: tuple, cotangent: Array) -> tuple:
        x, x_next, F, t = kept
        at_end = jax.vjp(lambda d: problem.retract(x_next, d), jnp.zeros(n, x.dtype))[1](cotangent)[0]
        z = F.T @ at_end
        return jax.vjp(lambda y: problem.local(x, y), x)[1](z[:n])[0], z[n : n + nu], jnp.zeros_like(t), z[n + nu :]

    step.defvjp(forward, backward)
    return step
