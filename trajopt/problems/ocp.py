"""Optimal control: minimise a sum of stage costs and a terminal cost over the motion of a discrete-time system.

The contract between a problem and the solvers is flat: x (nx,) is [q, v] (and the contact law's state), dx (n,) its tangent
coordinates, u (nu,), p (np,), and a motion is a `Trajectory`. `oracle` turns a problem into compiled functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike, Shaped

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.gradients.modes import DIFFERENCES, GRADIENTS
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.problems.arguments import Argument, given, recorded, values
from trajopt.problems.checks import normalise
from trajopt.problems.goals import PREFIX, Goal
from trajopt.problems.guesses import ways_to_start
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.parts import MOVED, Certificate, Defaults, Display
from trajopt.problems.replacing import replaced_problem
from trajopt.problems.residuals.base import StepOutcome, is_task
from trajopt.problems.trajectory import CONSTRAINTS, Answer, Trajectory, flat_state
from trajopt.problems.tree import CONTROL, Structure, flatten, unflatten


@dataclasses.dataclass(frozen=True, eq=False)
class OptimalControlProblem(WithoutCaches, NamedOptions):
    """An optimal control problem over `horizon` steps:

        minimise    sum_{t<T} l(x_t, u_t, t) + l_T(x_T) + l_0(x_0, p)
        subject to  x_{t+1} = f(x_t, u_t, t, p)
                    c(x_t, u_t, t) = 0,  d(x_t, u_t, t) <= 0,  c_T(x_T) = 0,  d_T(x_T) <= 0
                    bounds on u_t, x_t and p

    With a `System`, cost and constraint functions receive a `State`; with a function, the flat array x that it defines itself.
    `t` is in seconds. With free `parameters` p every function receives p as one more, last argument.

    Arguments:
        name: the name of the problem in messages and files.
        dynamics: a `System`, or a function `(x, u, t) -> x_next` on flat arrays.
        horizon: T, number of steps.
        x0, free_initial_state: initial state, a `State` or a flat array, and whether it is free, x0 then being a guess.
        u0: guess of the controls, (T, nu) or (nu,), or "quasi-static", the default where controls of a `System` hold x0.
        xs0: initial guess of the states (T+1, nx), for multiple shooting. Default: the rollout of `u0`.
        dt, start_time (s): time step if the dynamics are a function (a `System` has its own), and time of $x_0$.
        stage_residual, terminal_residual: `(x, u, t) -> r` and `x -> r`, with cost $1/2 |r|^2$, Gauss-Newton Hessian $J^T J$.
        stage_cost, terminal_cost: `(x, u, t) -> scalar` and `x -> scalar`, added to the cost of the residuals.
        initial_residual, parameter_residual: `x0 -> r` and `p -> r`, priors on a free initial state and on the parameters.
        control_lower, control_upper: bounds of the controls, numbers or (nu,). Default: the limits of a `System`'s motors.
        state_lower, state_upper: bounds of $x_1$ to $x_T$, and of $x_0$ if it is free, numbers or (nx,).
        equality, terminal_equality: `(x, u, t)` or `x` -> flat array that must be zero.
        inequality, terminal_inequality: `(x, u, t)` or `x` -> flat array that must not be positive.
        parameters, parameter_lower, parameter_upper: initial guess of p (np,), and its bounds.
        parametrize: `(system, p) -> system`, how p enters a `System`, for example through `system.model.replace`.
        integrate, difference, tangent_size: manifold of the states of a function: `(x, dx) -> x`, `(x0, x1) -> dx`, and its
            dimension n.
        tolerance: largest violation of dynamics, bounds and constraints that a success may have.
        goals: `{name: Goal(residual, tolerance, unit)}`, what counts as done. With goals, success means that constraints and
            goals are met; without, that the motion is optimal too.
        certificate: a `Certificate`, further quantities that success requires.
        display: a `Display`, how solutions are shown.
        defaults: `Defaults`, the solver and options that `solve` takes by default.
        meta: strings for the summary.
        arguments, finite_bounds, validate: of the problem's own making, to be left out: what `dataclasses.replace` needs to know,
            which bounds there are, and False for fields that have been validated.

    Raises, before anything is compiled: `ShapeError`, `NonFiniteError`, `OptionError`, naming the argument.
    """

    name: str
    dynamics: Any
    horizon: int
    x0: Any
    _: dataclasses.KW_ONLY
    u0: Any = None
    xs0: Any = None
    dt: float | None = None
    start_time: Any = 0.0
    stage_residual: Callable[..., Array] | None = None
    stage_cost: Callable[..., Array] | None = None
    terminal_residual: Callable[..., Array] | None = None
    terminal_cost: Callable[..., Array] | None = None
    initial_residual: Callable[..., Array] | None = None
    parameter_residual: Callable[..., Array] | None = None
    control_lower: Any = None
    control_upper: Any = None
    state_lower: Any = None
    state_upper: Any = None
    equality: Callable[..., Array] | None = None
    inequality: Callable[..., Array] | None = None
    terminal_equality: Callable[..., Array] | None = None
    terminal_inequality: Callable[..., Array] | None = None
    free_initial_state: bool = False
    parameters: Any = None
    parameter_lower: Any = None
    parameter_upper: Any = None
    parametrize: Callable[[System, Array], System] | None = None
    integrate: Callable[[Array, Array], Array] | None = None
    difference: Callable[[Array, Array], Array] | None = None
    tangent_size: int | None = None
    tolerance: float = 1e-6
    goals: Mapping[str, Goal] = dataclasses.field(default_factory=dict)
    certificate: Certificate = Certificate()
    display: Display = Display()
    defaults: Defaults = Defaults()
    meta: Mapping[str, str] = dataclasses.field(default_factory=dict)
    arguments: Mapping[str, Argument] | None = dataclasses.field(default=None, repr=False)
    finite_bounds: tuple[tuple[str, tuple[bool, ...]], ...] = dataclasses.field(default=(), repr=False)
    validate: dataclasses.InitVar[bool] = True
    moved: ClassVar[Mapping[str, str]] = MOVED

    def __post_init__(self, validate: bool) -> None:
        if not validate:
            return
        for key, value in given(self).items():
            object.__setattr__(self, key, value)
        before = values(self)
        for key, value in normalise(self).items():
            object.__setattr__(self, key, value)
        object.__setattr__(self, "arguments", recorded(before, self))

    @property
    def system(self) -> System | None:
        """The `System`, or None with user-written dynamics."""
        return self.dynamics if isinstance(self.dynamics, System) else None

    @property
    def has_contact(self) -> bool:
        """Whether the dynamics are a `System` whose law makes contact forces: those have a residual and no second derivative."""
        return self.system is not None and self.system.contact.acts

    @property
    def nx(self) -> int:
        """Length of a flat state."""
        return self.x0.shape[0]

    @property
    def n(self) -> int:
        """Number of tangent coordinates of a state."""
        assert self.tangent_size is not None
        return self.tangent_size

    @property
    def nu(self) -> int:
        """Number of controls."""
        return self.u0.shape[1]

    @property
    def n_p(self) -> int:
        """Number of free parameters."""
        return self.parameters.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.x0.dtype

    @property
    def times(self) -> Float[np.ndarray, " knots"] | Float[Array, " knots"]:
        """Times of the states, s; of JAX where `start_time` is traced."""
        assert self.dt is not None
        return self.start_time + (self.dt * np.arange(self.horizon + 1)).astype(self.dtype)

    def as_state(self, x: Float[Array, " nx"]) -> Any:
        """What cost functions receive: a `State` of the `System`, or x itself."""
        if self.system is None:
            return x
        nq, nv = self.system.nq, self.system.nv
        return State(x[:nq], x[nq : nq + nv], x[nq + nv :] if self.nx > nq + nv else None)

    def step(
        self, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
    ) -> Float[Array, " nx"]:
        """x_next = f(x, u, t, p)."""
        if self.system is None:
            return self.dynamics(x, u, t, *self._extra(p))
        return flat_state(self.system_at(p).step(self.as_state(x), u)[0])

    def system_at(self, p: Float[Array, " np"]) -> System:
        assert self.system is not None
        return self.system if self.parametrize is None else self.parametrize(self.system, p)

    def _extra(self, p: Float[Array, " np"]) -> tuple:
        return (p,) if self.n_p else ()

    def retract(self, x: Float[Array, " nx"], dx: Float[Array, " n"]) -> Float[Array, " nx"]:
        """x (+) dx, the state at tangent coordinates dx from x."""
        if self.system is not None:
            nq, nv = self.system.nq, self.system.nv
            q = integrate(self.system.model, x[:nq], dx[:nv])
            return jnp.concatenate([q, x[nq:] + dx[nv:]])
        return x + dx if self.integrate is None else self.integrate(x, dx)

    def local(self, x0: Float[Array, " nx"], x1: Float[Array, " nx"]) -> Float[Array, " n"]:
        """x1 (-) x0, the tangent coordinates dx with x0 (+) dx = x1."""
        if self.system is not None:
            nq = self.system.nq
            return jnp.concatenate([difference(self.system.model, x0[:nq], x1[:nq]), x1[nq:] - x0[nq:]])
        return x1 - x0 if self.difference is None else self.difference(x0, x1)

    def stage(
        self, kind: str, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
    ) -> Shaped[Array, "..."] | None:
        """The stage function named `kind` ("stage_residual", "stage_cost", "equality", "inequality"), None if missing."""
        fn = getattr(self, kind)
        if is_task(fn):
            outcome = self.outcome(x, u, p)
            return fn(outcome.x, u, t, outcome)
        return None if fn is None else fn(self.as_state(x), u, t, *self._extra(p))

    def outcome(self, x: Float[Array, " nx"], u: Float[Array, " nu"] | None, p: Float[Array, " np"]) -> StepOutcome:
        """What residuals may ask for at a state and a control, or, at the end, at a state."""
        return StepOutcome(self.system_at(p), self.as_state(x), u)

    def terminal(self, kind: str, x: Float[Array, " nx"], p: Float[Array, " np"]) -> Shaped[Array, "..."] | None:
        """The terminal function named `kind`, or "initial_residual"; None if missing."""
        fn = getattr(self, kind)
        if is_task(fn):
            outcome = self.outcome(x, None, p)
            t = self.times[0 if kind == "initial_residual" else -1]
            return fn(outcome.x, None, t, outcome)
        return None if fn is None else fn(self.as_state(x), *self._extra(p))

    def running_cost(
        self, x: Float[Array, " nx"], u: Float[Array, " nu"], t: ScalarLike, p: Float[Array, " np"]
    ) -> Float[Array, ""]:
        """l(x, u, t), residual and general part together."""
        return _cost(x, self.stage("stage_residual", x, u, t, p), self.stage("stage_cost", x, u, t, p))

    def final_cost(self, x: Float[Array, " nx"], p: Float[Array, " np"]) -> Float[Array, ""]:
        """l_T(x)."""
        return _cost(x, self.terminal("terminal_residual", x, p), self.terminal("terminal_cost", x, p))

    def prior_residual(self, x0: Float[Array, " nx"], p: Float[Array, " np"]) -> Float[Array, " k"]:
        """Residuals of the priors on a free initial state and on the parameters, none: length 0."""
        rows = [jnp.zeros(0, x0.dtype)]
        if self.initial_residual is not None:
            prior = self.terminal("initial_residual", x0, p)
            assert prior is not None
            rows.append(prior)
        if self.parameter_residual is not None:
            rows.append(self.parameter_residual(p))
        return jnp.concatenate(rows)

    def cost(self, trajectory: Trajectory) -> Float[Array, ""]:
        """Cost of a trajectory, feasible or not."""
        xs, us, p = trajectory.xs, trajectory.us, trajectory.p
        running = jax.vmap(lambda x, u, t: self.running_cost(x, u, t, p))(xs[:-1], us, jnp.asarray(self.times)[:-1])
        return jnp.sum(running) + self.final_cost(xs[-1], p) + _cost(xs[0], self.prior_residual(xs[0], p), None)

    def rollout(self, x0: Float[Array, " nx"], us: Float[Array, "T nu"], p: Float[Array, " np"]) -> Trajectory:
        """The motion from x0 under the controls us."""

        def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
            return (self.step(x, inputs[0], inputs[1], p),) * 2

        _, xs = jax.lax.scan(body, x0, (us, jnp.asarray(self.times)[:-1]))
        return Trajectory(jnp.concatenate([x0[None], xs]), us, p)

    @property
    def initial_point(self) -> Trajectory:
        """x0, u0, xs0 and p as given; without xs0 every state is x0 (solvers roll out where they need to)."""
        xs = np.tile(self.x0, (self.horizon + 1, 1)) if self.xs0 is None else self.xs0
        return Trajectory(xs, self.u0, self.parameters)

    def point_of(self, solution: Answer) -> Trajectory:
        """The motion of a `Solution`, of this problem or of one of the same sizes."""
        p = self.parameters if solution.parameters is None else solution.parameters
        return self.check_point(Trajectory(solution.xs, solution.us, p), "solution")

    def check_point(self, value: Any, key: str = "x0") -> Trajectory:
        """An initial guess as a `Trajectory`: one, or an array of controls (T, nu)."""
        guess = self.initial_point
        value = value if isinstance(value, Trajectory) else Trajectory(guess.xs, value, guess.p)
        arrays = {}
        for field in ("xs", "us", "p"):
            array = np.asarray(getattr(value, field), self.dtype)
            expected = getattr(guess, field).shape
            if array.shape != expected:
                raise ShapeError(f"problem '{self.name}': {key}.{field} has shape {array.shape}; expected {expected}")
            if not np.isfinite(array).all():
                raise NonFiniteError(f"problem '{self.name}': {key}.{field} has non-finite entries")
            arrays[field] = array
        return Trajectory(**arrays)

    @property
    def limits(self) -> dict[str, float]:
        """What the recomputed violations of an answer must not exceed."""
        kinds = ["defect", "bound_violation", *(kind for kind in CONSTRAINTS if getattr(self, kind) is not None)]
        kinds += [] if self.free_initial_state else ["initial_state_error"]
        limits = dict.fromkeys(kinds, self.tolerance)
        if self.has_contact:
            limits |= {"contact_residual": self.tolerance, "dropped_contacts": 0.0}
        limits |= {PREFIX + name: goal.tolerance for name, goal in self.goals.items()}
        return {**limits, **self.certificate.tolerances}

    def describe(self, solution: Answer) -> str:
        """What `report` says of a `Solution`, nothing without it."""
        return "" if self.display.report is None else self.display.report(self.point_of(solution))

    @property
    def other_guesses(self) -> str:
        """What else to start from, for the message of a run that did not converge."""
        return ways_to_start(self.system is not None, "guess" in self.meta, self.xs0 is not None)

    def check_gradient(self, gradient: str) -> None:
        """Raise `UnknownNameError` unless the problem offers this gradient mode.

        Those of a `System`; for a function "implicit", which is automatic differentiation, and differences.
        """
        known = ("implicit", *DIFFERENCES) if self.system is None else GRADIENTS
        if gradient not in known:
            raise UnknownNameError(
                f"gradient mode '{gradient}' is not available for problem '{self.name}'{closest(gradient, known)}"
            )

    def with_gradient(self, gradient: str) -> OptimalControlProblem:
        """The problem with the steps of its `System` differentiated in this mode."""
        self.check_gradient(gradient)
        if self.system is None or gradient in (*DIFFERENCES, self.system.gradient):
            return self
        system = dataclasses.replace(self.system, gradient=gradient)
        defaults = dataclasses.replace(self.defaults, gradient=gradient)
        return dataclasses.replace(self, dynamics=system, defaults=defaults, validate=False)

    def replace(
        self,
        *,
        x0: Any = None,
        references: Mapping[str, Any] | None = None,
        weights: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> OptimalControlProblem:
        """The problem with another x0 or start_time, other references and weights of its residuals by name, guesses u0, xs0, or
        another `horizon`, at which guesses are truncated or repeat their last row. Nothing is compiled if all shapes stay the
        same. A u0 that was left out, or named, is made anew for an x0 at rest. `others`: as `dataclasses.replace`.

        Raises what construction raises, and `UnknownNameError` for a name that no residual has.
        """
        return replaced_problem(self, x0, references or {}, weights or {}, others)

    def compile(self, gradient: str | None = None) -> OptimalControlOracle:
        """The problem's compiled functions in a gradient mode, by default the problem's own."""
        return OptimalControlOracle(self, gradient)

    @property
    def violation_tolerance(self) -> float:
        """Violations below it count alike when two points are compared."""
        return self.tolerance

    @property
    def feasibility_is_success(self) -> bool:
        """A feasible motion need not be a good one: unless goals decide, the solver has to say so."""
        return bool(self.goals or self.certificate.goals)

    @property
    def constrained(self) -> bool:
        """Whether there are constraints beside the dynamics and the bounds on controls."""
        bounded = self.finite("state_lower").any() or self.finite("state_upper").any()
        return bool(bounded) or any(getattr(self, key) is not None for key in CONSTRAINTS)

    @functools.cached_property
    def tree(self) -> tuple[list[Any], Structure]:
        """Leaves and structure of the problem as a pytree."""
        return flatten(self, CONTROL)

    def finite(self, bound: str) -> Bool[np.ndarray, " k"]:
        """Which entries of "control_lower", ..., "parameter_upper" are bounds; also where their numbers are traced."""
        return np.array(dict(self.finite_bounds)[bound], bool)


jax.tree_util.register_pytree_node(
    OptimalControlProblem,
    lambda problem: problem.tree,
    lambda structure, numbers: unflatten(OptimalControlProblem, structure, numbers),
)


def _cost(x: Array, residual: Array | None, cost: Array | None) -> Float[Array, ""]:
    total = jnp.zeros((), x.dtype) + (0.0 if residual is None else 0.5 * jnp.vdot(residual, residual))
    return total if cost is None else total + cost


__all__ = ["CONSTRAINTS", "OptimalControlProblem", "OptionError", "Trajectory", "flat_state"]
