r"""Moving-horizon estimation: the state of a system from a stream of measurements, by least squares over the last N steps.

With y_k the measurement at x_k and u_k the control known to be applied between x_k and x_{k+1}, the estimate at time k minimises

    1/2 |x_s (-) prior|^2_arrival + 1/2 sum_{j=s}^{k} |r(x_j, y_j)|^2 + 1/2 sum_{j=s}^{k-1} |w_j|^2,   x_{j+1} = f(x_j, u_j, w_j)

over x_s, w_s .. w_{k-1}, with s = max(0, k - N). It is an `OptimalControlProblem` of fixed size, solved as `horizon` says, from
the last window shifted by one step. While the window fills, the steps that have not happened have no measurement, so that they
change nothing; one compiled program serves all windows.

The arrival cost stands for what has left the window. When step s leaves, its prior, measurement and noise, linearised at their
estimates, are eliminated from the normal equations (the information form of the Kalman filter's step); what remains is a Gaussian
prior on x_{s+1}, in tangent coordinates about its estimate at that time. For a linear system with Gaussian noise nothing is lost:
the estimate is the Kalman filter's for every N. For a nonlinear one the last N steps are relinearised with every measurement,
where the extended Kalman filter linearises once.

Rao, Rawlings, Lee, Constrained linear state estimation - a moving horizon approach, Automatica 2001; the elimination is that of
Sibley, Matthies, Sukhatme, Sliding window filter with application to planetary landing, J. Field Robotics 2010.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.linear_algebra import cho_solve, symmetric_cholesky, triangular_solve
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.names import NamedOptions
from trajopt.options import check_kind
from trajopt.problems.expansions import COMPLEMENTARITY
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.trajectory import flat_state
from trajopt.solvers.ddp.ilqr import DEFAULT_EXPONENT
from trajopt.solvers.ddp.iteration import Iteration
from trajopt.solvers.ddp.local_model import LocalModel, Modeller
from trajopt.solvers.ddp.reports import Iterate
from trajopt.solvers.estimation.smoothing import information, marginals
from trajopt.solvers.loop.contract import default_tolerance
from trajopt.solvers.subproblems.iterate import iterate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arrival:
    """The prior on the window's first state x: root (x (-) reference - offset) has unit variance."""

    reference: Float[Array, " nx"]
    offset: Float[Array, " n"]
    root: Float[Array, "n n"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """The memory of the estimator, a pytree; `now` is the index of the last measurement in the window, -1 before the first.

    xs, inputs: the last estimate of states and noise (of the controls, with a `System`); measurements, measured (whether there is
    one), controls: the data; arrival: the prior at xs[0]; next_arrival: that at xs[1].
    """

    xs: Float[Array, "N+1 nx"]
    inputs: Float[Array, "N m"]
    measurements: Float[Array, "N+1 ny"]
    measured: Float[Array, " N+1"]
    controls: Float[Array, "N nu"]
    arrival: Arrival
    next_arrival: Arrival
    now: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimate:
    """State x (nx,) at the last measurement and its covariance (n, n) in tangent coordinates, those of the window's states, and
    how the minimisation went: cost, iterations, and whether it is stationary."""

    x: Float[Array, "*b nx"]
    covariance: Float[Array, "*b n n"]
    xs: Float[Array, "*b N+1 nx"]
    covariances: Float[Array, "*b N+1 n n"]
    now: Int[Array, "*b"]
    cost: Float[Array, "*b"]
    iterations: Int[Array, "*b"]
    converged: Bool[Array, "*b"]


class MovingHorizon(WithoutCaches, NamedOptions):
    """Moving-horizon estimator: the state now, from the last `window` measurements and a Gaussian prior for what came before.

    It minimises $1/2 |x_s (-) prior|^2 + 1/2 sum |r(x_j, y_j)|^2 + 1/2 sum |w_j|^2$ subject to $x_{j+1} = f(x_j, u_j, w_j)$.

        mhe = MovingHorizon(f, r, window=10, mean=x0, covariance=P0, measurement_size=2, noise_size=1)
        for y, u in stream:
            estimate = mhe.update(y, u)

    Options:
        dynamics: a function `(x, u, w) -> x_next` on flat arrays, w noise of unit covariance; or a `System`, whose noise is
            on its controls with the deviations `control_deviation`.
        measurement: `(x, y) -> r`, the error of y (ny,) at x in units of its deviation; x is a `State` with a `System`. Rows
            may go through `losses.robust`.
        window: number of steps of the horizon.
        mean: expected state at the first measurement, before it is used: (nx,) or a `State`.
        covariance: of that state, (n, n), positive definite.
        measurement_size: ny, length of a measurement.
        control_size: for a function: nu, length of the controls; 0 without controls.
        noise_size: for a function: length of w.
        control_deviation: of a `System`: standard deviations of the noise on the controls, (nu,).
        integrate: for a function: `(x, dx) -> x` on the manifold of its states, as in `OptimalControlProblem`.
        difference: for a function: `(x0, x1) -> dx`, the inverse of `integrate`.
        tangent_size: for a function: length of dx.
        arrival_deviation: added to the deviations of the arrival cost in every direction, in tangent units. Hard contact
            leaves directions without variance (no step leads into the floor), for which there is no information. Default:
            1e-5 for a `System`, 0 for a function.
        gradient: mode of the dynamics' derivative.
        max_iterations: largest number of iterations of each update.
        tolerance: of the stationarity, as iLQR's.

    `start()` and `advance(window, y, u)` are the same as pure functions, for `jit`, `vmap` and `scan`.
    Raises `OptionError`, `ShapeError`, `NonFiniteError`, naming the argument, before anything is compiled.
    """

    def __init__(
        self,
        dynamics: System | Callable[..., Array],
        measurement: Callable[..., Array],
        window: int,
        *,
        mean: Any,
        covariance: Any,
        measurement_size: int,
        control_size: int = 0,
        noise_size: int | None = None,
        control_deviation: Any = None,
        integrate: Callable[[Array, Array], Array] | None = None,
        difference: Callable[[Array, Array], Array] | None = None,
        tangent_size: int | None = None,
        arrival_deviation: float | None = None,
        gradient: str = "implicit",
        max_iterations: int = 10,
        tolerance: float | None = None,
    ) -> None:
        _check_options(window, max_iterations, gradient, arrival_deviation)
        _check_noise(isinstance(dynamics, System), control_deviation, noise_size)
        self.dynamics, self.measurement, self.steps = dynamics, measurement, int(window)
        self.gradient, self.max_iterations, self.tolerance = gradient, max_iterations, tolerance
        self.manifold: dict[str, Any] = {"integrate": integrate, "difference": difference, "tangent_size": tangent_size}
        self.mean = np.asarray(flat_state(mean) if isinstance(mean, State) else mean)
        system = isinstance(dynamics, System)
        self.arrival_deviation = (1e-5 if system else 0.0) if arrival_deviation is None else float(arrival_deviation)
        self.control_size = dynamics.nu if isinstance(dynamics, System) else control_size
        self.input_size = dynamics.nu if isinstance(dynamics, System) else int(noise_size or 0)
        self.measurement_size = measurement_size
        self.deviation = None if control_deviation is None else self._vector("control_deviation", control_deviation)
        if self.deviation is not None and not (self.deviation > 0).all():
            raise OptionError(f"MovingHorizon: control_deviation is {self.deviation}; every entry must be positive")
        self._window = self.start(covariance)
        self._first = self._window
        self._problem(self._window)

    @functools.cached_property
    def _advance(self) -> Callable[..., Any]:
        return jax.jit(self.advance)

    def _vector(self, key: str, value: Any) -> np.ndarray:
        array = np.broadcast_to(np.asarray(value, float), (self.control_size,)) if np.ndim(value) == 0 else value
        return self._checked(key, array, (self.control_size,))

    def _checked(self, key: str, value: Any, shape: tuple[int, ...], remedy: str = "") -> np.ndarray:
        array = np.asarray(value, float)
        if array.shape != shape:
            raise ShapeError(f"MovingHorizon: {key} has shape {array.shape}; expected {shape}")
        if not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise NonFiniteError(f"MovingHorizon: {key}{list(index)} is {array[index]}; it must be finite{remedy}")
        return array

    # -- the contract --------------------------------------------------------------------------------------------------

    def update(self, measurement: Any, control: Any = None) -> Estimate:
        """The estimate after one more measurement (ny,), None for a missing one.

        control: (nu,) what was applied since the previous measurement; not used with the first one. Raises `ShapeError` or
        `NonFiniteError` for what cannot be a measurement or a control.
        """
        present = measurement is not None
        y = np.zeros(self.measurement_size) if measurement is None else measurement
        y = self._checked("measurement", y, (self.measurement_size,), "; pass None for a missing measurement")
        needed = self.control_size and int(self._window.now) >= 0
        if control is None and needed:
            raise OptionError(
                f"MovingHorizon: control is None; expected ({self.control_size},) from the second update on"
            )
        u = self._checked("control", np.zeros(self.control_size) if control is None else control, (self.control_size,))
        dtype = self._window.xs.dtype
        arguments = jnp.asarray(y, dtype), jnp.asarray(u, dtype), jnp.asarray(present)
        self._window, estimate = self._advance(self._window, *arguments)
        return estimate

    def reset(self) -> None:
        """Forget all measurements."""
        self._window = self._first

    def start(self, covariance: Any = None) -> Window:
        """The memory before the first measurement; covariance: of the prior, default the one given on construction."""
        if covariance is None:
            return self._first
        N, dtype = self.steps, self.mean.dtype if self.mean.dtype == np.float32 else jnp.zeros(()).dtype
        mean = jnp.asarray(self.mean, dtype)
        nx = self.mean.shape[0]
        n = self.manifold["tangent_size"] or nx
        if isinstance(self.dynamics, System):
            n = nx - self.dynamics.nq + self.dynamics.nv
        cov = self._checked("covariance", covariance, (n, n))
        try:
            root = np.linalg.inv(np.linalg.cholesky(cov))
        except np.linalg.LinAlgError as error:
            raise OptionError(
                "MovingHorizon: covariance has no Cholesky factor; it must be positive definite: give what is known exactly a "
                "small variance"
            ) from error
        arrival = Arrival(mean, jnp.zeros(n, dtype), jnp.asarray(root, dtype))
        return Window(
            jnp.tile(mean, (N + 1, 1)),
            jnp.zeros((N, self.input_size), dtype),
            jnp.zeros((N + 1, self.measurement_size), dtype),
            jnp.zeros(N + 1, dtype),
            jnp.zeros((N, self.control_size), dtype),
            arrival,
            arrival,
            jnp.asarray(-1),
        )

    def advance(
        self,
        window: Window,
        y: Float[Array, " ny"],
        u: Float[Array, " nu"],
        present: Bool[Array, ""] | bool = True,
    ) -> tuple[Window, Estimate]:
        """(memory, estimate) after the measurement y (if `present`) under the control u since the last one; pure."""
        window = self._shifted(window, y, u, jnp.asarray(present))
        problem = self._problem(window)
        modeller = Modeller(problem, self.gradient, multiple=True, second_order=False)
        at, model, iterations, converged = self._minimised(modeller, window)
        lq, n = model.lq, problem.n
        held = jnp.zeros(at.us.shape, bool)
        lq, policy = information(lq, held)
        initial = _inverse(policy.P[0] + model.initial_hessian)
        covariances, _ = marginals(lq, policy, held, initial)
        after = _eliminated(model, at.xs[1], self.arrival_deviation)
        window = dataclasses.replace(window, xs=at.xs, inputs=at.us, next_arrival=after)
        now = window.now
        x, covariance = jnp.take(at.xs, now, 0), jnp.take(covariances, now, 0)
        return window, Estimate(x, covariance, at.xs, covariances[:, :n, :n], now, model.cost, iterations, converged)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _shifted(self, window: Window, y: Array, u: Array, present: Array) -> Window:
        """Room for the new measurement, and a guess of the new state."""
        N = self.steps
        full = window.now == N
        roll = lambda a: jnp.where(full, jnp.concatenate([a[1:], a[-1:]]), a)  # noqa: E731
        now = jnp.minimum(window.now + 1, N)
        later = jnp.arange(N) >= now - 1
        controls = jnp.where((later & (now > 0))[:, None], u, roll(window.controls))
        calm = controls if self.deviation is not None else jnp.zeros_like(window.inputs)
        inputs = jnp.where(later[:, None], calm, roll(window.inputs))
        measurements = jnp.where((jnp.arange(N + 1) == now)[:, None], y, roll(window.measurements))
        measured = jnp.where(jnp.arange(N + 1) == now, present.astype(y.dtype), roll(window.measured))
        arrival = jax.tree.map(lambda a, b: jnp.where(full, a, b), window.next_arrival, window.arrival)
        xs = roll(window.xs)
        moved = dataclasses.replace(
            window, xs=xs, inputs=inputs, measurements=measurements, measured=measured, controls=controls, arrival=arrival,
            now=now,
        )  # fmt: skip
        last = jnp.maximum(now - 1, 0)
        ahead = self._step(moved, jnp.take(xs, last, 0), jnp.take(inputs, last, 0), last)
        guess = jnp.where((jnp.arange(N + 1) >= now)[:, None] & (now > 0), ahead, xs)
        return dataclasses.replace(moved, xs=guess)

    def _step(self, window: Window, x: Array, w: Array, k: Array) -> Array:
        """x_{k+1} of the window; steps that have not happened stand still."""
        if isinstance(self.dynamics, System):
            nq, nv = self.dynamics.nq, self.dynamics.nv
            state = State(x[:nq], x[nq : nq + nv], x[nq + nv :].reshape(-1, 3) if x.shape[0] > nq + nv else None)
            return flat_state(self.dynamics.step(state, w)[0])
        return jnp.where(k < window.now, self.dynamics(x, jnp.take(window.controls, k, 0), w), x)

    def _problem(self, window: Window) -> OptimalControlProblem:
        """The least-squares problem of a window, whose data may be traced."""
        system, N = isinstance(self.dynamics, System), self.steps
        step = float(self.dynamics.dt) if isinstance(self.dynamics, System) else 1.0
        index = lambda t: jnp.round(t / step).astype(int)  # noqa: E731
        arrival = window.arrival

        def measured(x: Any, k: Array) -> Array:
            return jnp.take(window.measured, k) * self.measurement(x, jnp.take(window.measurements, k, 0))

        def stage(x: Any, w: Array, t: ScalarLike) -> Array:
            k = index(t)
            if self.deviation is not None:
                w = (w - jnp.take(window.controls, k, 0)) / jnp.asarray(self.deviation, w.dtype)
            return jnp.concatenate([measured(x, k), w])

        def prior(x: Any) -> Array:
            return arrival.root @ (problem.local(arrival.reference, flat_state(x) if system else x) - arrival.offset)

        dynamics = self.dynamics if system else lambda x, w, t: self._step(window, x, w, index(t))
        problem = OptimalControlProblem(
            "moving horizon", dynamics, N, self.mean, u0=np.zeros(self.input_size), dt=None if system else step,
            stage_residual=stage, terminal_residual=lambda x: measured(x, jnp.asarray(N)), free_initial_state=True,
            control_lower=-np.inf, control_upper=np.inf, **({} if system else self.manifold),
        )  # fmt: skip
        return dataclasses.replace(problem, initial_residual=prior).with_gradient(self.gradient)

    def _minimised(self, modeller: Modeller, window: Window) -> tuple[Trajectory, LocalModel, Array, Array]:
        """(the window's estimate, the model there, iterations, whether it is stationary)."""
        iteration = Iteration(modeller, damp_state=True)
        dtype = window.xs.dtype
        tolerance = self.tolerance or default_tolerance(np.dtype(dtype)) ** DEFAULT_EXPONENT
        multipliers = jax.tree.map(jnp.asarray, modeller.constraints.initial(1.0))
        zero, blank = jnp.zeros((), dtype), jax.tree.map(jnp.asarray, modeller.blank())
        guess = Trajectory(window.xs, window.inputs, jnp.zeros(0, dtype))
        first = Iterate(guess, blank, zero, zero), jnp.zeros((), bool)

        def step(carry: tuple[Iterate, Array], k: Array) -> tuple[tuple[Iterate, Array], Array]:
            # The first pass makes the model only.
            at, report = iteration.advance(k > 0, carry[0], multipliers)
            model = at.model
            feasible = model.violation <= modeller.problem.tolerance
            flat = (model.stationarity <= tolerance * model.scale) | ((k > 0) & report.accepted & report.rounded)
            return (at, flat & feasible), (flat & feasible) | ((k > 0) & ~report.accepted)

        (at, converged), passes = iterate(step, first, self.max_iterations + 1)
        return at.motion, at.model, passes - 1, converged


def _check_options(window: Any, max_iterations: Any, gradient: str, arrival_deviation: Any) -> None:
    where = "MovingHorizon: "
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise OptionError(f"{where}window is {window!r}; expected a number of steps of at least 1")
    check_kind(where, "max_iterations", max_iterations, int)
    if max_iterations < 1:
        raise OptionError(f"{where}max_iterations is {max_iterations}; it must be at least 1")
    if gradient == COMPLEMENTARITY:
        raise OptionError(
            f"{where}gradient is '{gradient}', a direction to search in, and the covariances need the exact derivative; "
            "use 'implicit'"
        )
    check_kind(where, "arrival_deviation", arrival_deviation, float, NoneType)
    if arrival_deviation is not None and not (np.isfinite(arrival_deviation) and arrival_deviation >= 0):
        raise OptionError(f"{where}arrival_deviation is {arrival_deviation}; it must not be negative")


def _check_noise(system: bool, control_deviation: Any, noise_size: int | None) -> None:
    """Raise `OptionError` unless a `System` has deviations of its controls and a function the length of its noise."""
    if system == (control_deviation is None):
        needed = "a System needs control_deviation, the deviations (nu,) of its controls"
        other = "a function takes its noise as w; leave control_deviation out"
        raise OptionError(f"MovingHorizon: {needed if system else other}")
    if system != (noise_size is None):
        needed = "is for functions; leave it out" if system else "is missing: the length of w"
        raise OptionError(f"MovingHorizon: noise_size {needed}")


def _inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Inverse of a positive definite matrix, scaled to a unit diagonal first."""
    size = jnp.sqrt(jnp.diag(matrix))
    factor = symmetric_cholesky(matrix / size[:, None] / size)
    return cho_solve(factor, jnp.eye(len(matrix), dtype=matrix.dtype)) / size[:, None] / size


def _eliminated(model: LocalModel, reference: Array, deviation: float) -> Arrival:
    """The prior on the window's second state when the first one leaves: the joint normal equations without (x_0, w_0)."""
    lq = model.lq
    H = jnp.block([[lq.Q[0] + model.initial_hessian, lq.S[0]], [lq.S[0].T, lq.R[0]]])
    gradient = jnp.concatenate([lq.q[0] + model.initial_gradient, lq.r[0]])
    F, spread = jnp.concatenate([lq.A[0], lq.B[0]], 1), _inverse(H)
    covariance = F @ spread @ F.T + deviation**2 * jnp.eye(F.shape[0], dtype=F.dtype)
    size = jnp.sqrt(jnp.diag(covariance))
    factor = symmetric_cholesky(covariance / size[:, None] / size)
    root = triangular_solve(factor, jnp.diag(1.0 / size))
    return Arrival(reference, lq.d[0] - F @ (spread @ gradient), root)
