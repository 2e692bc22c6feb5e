"""Optimal control: minimise a sum of stage costs and a terminal cost over the motion of a discrete-time system.

    minimise    sum_{t<T} l(x_t, u_t, t) + l_T(x_T) + l_0(x_0, p)
    subject to  x_{t+1} = f(x_t, u_t, t, p)
                c(x_t, u_t, t) = 0,  d(x_t, u_t, t) <= 0,  c_T(x_T) = 0,  d_T(x_T) <= 0
                bounds on u_t, x_t and p; x_0 given, or free

`dynamics` is a `System` or a plain function. With a `System`, cost and constraint functions receive a `State`; with a
function, the flat array x that they themselves define. `t` is the time in seconds, t dt. With free `parameters` p every
function receives p as one more, last argument.

The contract between a problem and the solvers is flat: x (nx,) is [q, v] (and the contact law's state), dx (n,) its tangent
coordinates, u (nu,), p (np,), and a motion is a `Trajectory`. `transcription` turns a problem into compiled functions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.law import NoContact
from trajopt.dynamics.gradients import DIFFERENCES, GRADIENTS
from trajopt.dynamics.joints import difference, integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import closest
from trajopt.problems.ocp_checks import normalise
from trajopt.problems.trajectory import CONSTRAINTS, Trajectory, flat_state
from trajopt.problems.transcription import OptimalControlOracle


@dataclasses.dataclass(frozen=True, eq=False)
class OptimalControlProblem:
    """An optimal control problem over `horizon` steps; see the module's docstring for the equations.

    Arguments:
        dynamics: `System`, or a function (x, u, t) -> x_next on flat arrays.
        x0: initial state, a `State` or a flat array; a guess of it with `free_initial_state`.
        u0: initial guess of the controls, (T, nu), or (nu,) for every step; a `System`'s default is zero.
        xs0: initial guess of the states (T+1, nx) for solvers that do not keep to the dynamics; default: the rollout.
        dt: seconds between steps, for a function; a `System` has its own.
        stage_residual, terminal_residual: r with cost 1/2 |r|^2, whose Gauss-Newton Hessian is J^T J.
        stage_cost, terminal_cost: scalars, added to the former; any of the four may be missing.
        initial_residual: r(x_0) of a prior on a free initial state.
        parameter_residual: r(p) of a prior on the parameters.
        control_lower, control_upper: numbers or (nu,); a `System`'s default is the limits of its motors.
        state_lower, state_upper: numbers or (nx,), on x_1 .. x_T, and on x_0 if it is free.
        equality, inequality, terminal_equality, terminal_inequality: flat arrays, = 0 and <= 0.
        parameters: initial guess of p (np,); `parameter_lower`, `parameter_upper` bound them.
        parametrize: (system, p) -> system, how p enters a `System`, for example through `system.model.replace`.
        integrate, difference, tangent_size: manifold of a function's states; (x, dx) -> x and (x0, x1) -> dx.
        tolerance: largest violation of dynamics, bounds and constraints of an answer.
        certificate: Trajectory -> {name: value}, what else makes a motion an answer; `certificate_tolerances` bounds it.
        solver, solver_options, gradient: name and options of the solver and the gradient mode that suit the problem.
        model: what the animation draws; default the `System`'s.

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
    certificate: Callable[[Trajectory], Mapping[str, Any]] | None = None
    certificate_tolerances: Mapping[str, float] = dataclasses.field(default_factory=dict)
    report: Callable[[Trajectory], str] | None = None
    model: Any = None
    solver: str = "iLQR"
    solver_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gradient: str = "implicit"
    meta: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in normalise(self).items():
            object.__setattr__(self, key, value)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @property
    def system(self) -> System | None:
        """The `System`, or None with user-written dynamics."""
        return self.dynamics if isinstance(self.dynamics, System) else None

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
        return self.u0.shape[1]

    @property
    def n_p(self) -> int:
        """Number of free parameters."""
        return self.parameters.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.x0.dtype

    @property
    def times(self) -> Float[np.ndarray, " knots"]:
        """Times of the states, s."""
        assert self.dt is not None
        return (self.dt * np.arange(self.horizon + 1)).astype(self.dtype)

    # -- flat functions ------------------------------------------------------------------------------------------------

    def as_state(self, x: Float[Array, " nx"]) -> Any:
        """What cost functions receive: a `State` of the `System`, or x itself."""
        if self.system is None:
            return x
        nq, nv = self.system.nq, self.system.nv
        return State(x[:nq], x[nq : nq + nv], x[nq + nv :] if self.nx > nq + nv else None)

    def step(self, x: Float[Array, " nx"], u: Float[Array, " nu"], t, p: Float[Array, " np"]) -> Float[Array, " nx"]:
        """x_next = f(x, u, t, p)."""
        if self.system is None:
            return self.dynamics(x, u, t, *self._extra(p))
        return flat_state(self.system_at(p).step(self.as_state(x), u)[0])

    def system_at(self, p) -> System:
        assert self.system is not None
        return self.system if self.parametrize is None else self.parametrize(self.system, p)

    def _extra(self, p) -> tuple:
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

    def stage(self, kind: str, x, u, t, p) -> Array | None:
        """The stage function named `kind` ("stage_residual", "stage_cost", "equality", "inequality"), None if missing."""
        fn = getattr(self, kind)
        return None if fn is None else fn(self.as_state(x), u, t, *self._extra(p))

    def terminal(self, kind: str, x, p) -> Array | None:
        """The terminal function named `kind`, None if missing."""
        fn = getattr(self, kind)
        return None if fn is None else fn(self.as_state(x), *self._extra(p))

    def running_cost(self, x, u, t, p) -> Float[Array, ""]:
        """l(x, u, t), residual and general part together."""
        return _cost(x, self.stage("stage_residual", x, u, t, p), self.stage("stage_cost", x, u, t, p))

    def final_cost(self, x, p) -> Float[Array, ""]:
        """l_T(x)."""
        return _cost(x, self.terminal("terminal_residual", x, p), self.terminal("terminal_cost", x, p))

    def prior_residual(self, x0, p) -> Float[Array, " k"]:
        """Residuals of the priors on a free initial state and on the parameters, none: length 0."""
        rows = [jnp.zeros(0, x0.dtype)]
        if self.initial_residual is not None:
            rows.append(self.initial_residual(self.as_state(x0), *self._extra(p)))
        if self.parameter_residual is not None:
            rows.append(self.parameter_residual(p))
        return jnp.concatenate(rows)

    def cost(self, trajectory: Trajectory) -> Float[Array, ""]:
        """Cost of a trajectory, feasible or not."""
        xs, us, p = trajectory.xs, trajectory.us, trajectory.p
        times = jnp.asarray(self.times)
        running = jax.vmap(lambda x, u, t: self.running_cost(x, u, t, p))(xs[:-1], us, times[:-1])
        return jnp.sum(running) + self.final_cost(xs[-1], p) + _cost(xs[0], self.prior_residual(xs[0], p), None)

    def rollout(self, x0: Float[Array, " nx"], us: Float[Array, "T nu"], p: Float[Array, " np"]) -> Trajectory:
        """The motion from x0 under the controls us."""

        def body(x, inputs):
            x = self.step(x, inputs[0], inputs[1], p)
            return x, x

        _, xs = jax.lax.scan(body, x0, (us, jnp.asarray(self.times)[:-1]))
        return Trajectory(jnp.concatenate([x0[None], xs]), us, p)

    @property
    def initial_point(self) -> Trajectory:
        """x0, u0, xs0 and p as given; without xs0 every state is x0 (solvers roll out where they need to)."""
        xs = np.tile(self.x0, (self.horizon + 1, 1)) if self.xs0 is None else self.xs0
        return Trajectory(xs, self.u0, self.parameters)

    def check_point(self, value: Any, key: str = "x0") -> Trajectory:
        """An initial guess as a `Trajectory`: one, or an array of controls (T, nu), or a `Solution` to start from."""
        guess = self.initial_point
        if hasattr(value, "us") and not isinstance(value, Trajectory):
            p = getattr(value, "parameters", None)
            value = Trajectory(value.xs, value.us, guess.p if p is None else p)
        elif not isinstance(value, Trajectory):
            value = Trajectory(guess.xs, value, guess.p)
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
        if self.system is not None and not isinstance(self.system.contact, NoContact):
            limits |= {"contact_residual": self.tolerance, "dropped_contacts": 0.0}
        return {**limits, **self.certificate_tolerances}

    def describe(self, solution: Any) -> str:
        """What `report` says of a `Solution`, nothing without it."""
        return "" if self.report is None else self.report(self.check_point(solution, "solution"))

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
        changed = copy.copy(self)
        object.__setattr__(changed, "dynamics", dataclasses.replace(self.system, gradient=gradient))
        return changed

    def compile(self, gradient: str = "implicit") -> OptimalControlOracle:
        """The problem's compiled functions (`transcription.OptimalControlOracle`)."""
        return OptimalControlOracle(self, gradient)

    @property
    def violation_tolerance(self) -> float:
        """Violations below it count alike when two points are compared."""
        return self.tolerance

    @property
    def feasibility_is_success(self) -> bool:
        """A feasible motion need not be a good one: the solver has to say that it solved the problem."""
        return False

    @property
    def constrained(self) -> bool:
        """Whether there are constraints beside the dynamics and the bounds on controls."""
        bounded = np.isfinite(self.state_lower).any() or np.isfinite(self.state_upper).any()
        return bool(bounded) or any(getattr(self, key) is not None for key in CONSTRAINTS)


def _cost(x, residual: Array | None, cost: Array | None) -> Float[Array, ""]:
    total = jnp.zeros((), x.dtype)
    if residual is not None:
        total = total + 0.5 * jnp.vdot(residual, residual)
    return total if cost is None else total + cost


__all__ = ["CONSTRAINTS", "OptimalControlProblem", "OptionError", "Trajectory", "flat_state"]
