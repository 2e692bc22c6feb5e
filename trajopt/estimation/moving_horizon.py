r"""The state of a robot now, from its sensors as they are read: least squares over the last steps, one iteration each.

    mhe = estimation.MovingHorizon(system, sensors, window=0.1, start=x0)
    for rows in stream:                                  # one call each system.dt
        now = mhe.update(rows)                           # rows: {"imu": row, "encoders": row, "torque": u}; now.x

Over the window x_0 .. x_N, constant errors o of sensors, and disturbances w_k of unit variance, it minimises

    1/2 |L (x_0 (-) reference - m, o)|^2 + 1/2 sum_k ( |r_k(x_k, x_{k+1}, o)|^2 + |w_k|^2 ),   x_{k+1} = f(x_k, u_k, F w_k)

with r_k the errors of what was measured within step k, in deviations, and F the deviations of generalised forces that the model
does not know. Each update shifts the window by a step and makes one Gauss-Newton step from the last estimate (more where the cost
falls fast): linearised, the problem is linear-quadratic in (dx, o) and w, and one Riccati pass solves it. The whole step is a
motion of the system from x_0 under w; where it lowers the cost by less than a quarter of what the linearised problem promises,
the best of shares of it is taken. Contacts are what the step makes of them; nothing says which feet stand.

What leaves the window stays as a Gaussian prior on the state that is then first: its step is eliminated from the normal
equations (the information form of a Kalman filter's step). For a linear system with Gaussian noise nothing is lost: the estimate
is the Kalman filter's for every N. Rao, Rawlings, Lee, Automatica 2001.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.rigid_body.actuation import actuation_force, force_slopes
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.estimation.covariances import solved
from trajopt.estimation.moments import Moment
from trajopt.estimation.samples import constants_of
from trajopt.estimation.sensors import Sensor
from trajopt.estimation.smoothing import measuring_and_inputs
from trajopt.estimation.window import Estimate, Prior, Window
from trajopt.names import NamedOptions, closest
from trajopt.solvers.subproblems.riccati import LQProblem, Policy, lq_rollout, riccati, riccati_native

SHARES = (0.5, 0.2, 0.05)  # of a Gauss-Newton step, tried where the whole one does not keep its promise
PROMISE = 0.25  # share of the decrease that the model promises, from which on a step is kept (Nocedal, Wright 2006, section 4.1)
FAST = 0.5  # an iteration that lowers the cost below this share of it is followed by another
FLOOR = 1e-5  # deviation added to the prior in every direction, in tangent units: hard contact leaves directions without variance


class MovingHorizon(WithoutCaches, NamedOptions):
    """The state of a system from a stream of measurements, by least squares over the last `window` seconds.

    Options:
        system: whose `dt` is the time between updates.
        sensors: what is measured, and `Input` where torques are known. Without an `Input` actuation is inverse: torques belong to
            the disturbance, which says how large they may be. A sensor's `static_noise` is the deviation of a constant error,
            such as the biases of an IMU, which is estimated; its `delay` is taken into account.
        window (s): length of the horizon.
        start: the state when the first update begins, as far as it is known; None: the model's default at rest.
        start_deviation: of `start` in tangent coordinates: one number for q and one for v, or (2 nv,).
        disturbance: deviations of generalised forces that the model does not know, constant over a step, N and N m: a number, or
            (nv,).
        drift (per square root of a second): of constant errors, as a share of their deviation.
        iterations: Gauss-Newton steps of an update at most. One is enough but where the cost falls fast, as at the start.

    `start()` and `advance(window, rows, u)` are the same as pure functions. Raises `OptionError` and `ShapeError`.
    """

    def __init__(
        self,
        system: System,
        sensors: Any,
        window: float,
        *,
        start: State | None = None,
        start_deviation: Any = (0.02, 0.2),
        disturbance: Any = 1.0,
        drift: float = 0.02,
        iterations: int = 10,
    ) -> None:
        self.system, dt = system, float(system.dt)
        self.sensors, inputs = measuring_and_inputs(sensors, system, "a moving horizon")
        self.input = inputs[0] if inputs else None
        self.steps = round(window / dt)
        if not (np.isfinite(window) and self.steps >= 1):
            raise OptionError(f"MovingHorizon: window is {window}; expected a time of at least one step of dt = {dt:.4g} s")
        if not (isinstance(iterations, int) and iterations >= 1):
            raise OptionError(f"MovingHorizon: iterations is {iterations!r}; expected a number of at least 1")
        for sensor in self.sensors:
            if not 0 <= sensor.delay < self.steps * dt:
                late = f"sensor '{sensor.channel}': delay is {sensor.delay}"
                raise OptionError(f"{late}; expected less than the window, {window} s")
        self.iterations, self.drift = iterations, float(drift)
        self.first = system.initial_state() if start is None else start
        self.disturbance = self._positive("disturbance", disturbance, system.nv)
        given = np.asarray(start_deviation, float)
        self.start_deviation = self._positive(
            "start_deviation", np.repeat(given, system.nv) if given.shape == (2,) else given, 2 * system.nv
        )
        self._window = self.start()

    def _positive(self, name: str, value: Any, size: int) -> Float[np.ndarray, " n"]:
        array = np.asarray(value, float)
        array = np.full(size, float(array)) if array.ndim == 0 else array
        if array.shape != (size,):
            raise ShapeError(f"MovingHorizon: {name} has shape {array.shape}; expected ({size},) or a number")
        if not (np.isfinite(array) & (array > 0)).all():
            raise OptionError(f"MovingHorizon: {name} is {value}; every entry must be positive")
        return array

    @functools.cached_property
    def _offsets(self) -> dict[str, slice]:
        """Where the constant error of each channel is."""
        found, at = {}, 0
        for sensor in self.sensors:
            if sensor.has_offset:
                size = len(sensor.labels(self.system.model))
                found[sensor.channel] = slice(at, at + size)
                at += size
        return found

    def _offset_deviations(self) -> Float[np.ndarray, " k"]:
        return np.concatenate([np.zeros(0), *(s.offset_deviations(self.system.model) for s in self.sensors if s.has_offset)])

    @functools.cached_property
    def _forced(self) -> System:
        """The system with generalised forces as its controls."""
        model, nv = self.system.model, self.system.nv
        free = model.replace(
            topology=dataclasses.replace(model.topology, actuators=tuple(f"force {k}" for k in range(nv))),
            actuation=np.eye(nv), control_lower=np.full(nv, -np.inf), control_upper=np.full(nv, np.inf),
            actuator_gain=np.zeros((0, 3)), actuator_bias=np.zeros((0, 3)), actuator_range=np.zeros((0, 2)),
            joint_force_range=np.zeros((0, 2)),
        )  # fmt: skip
        return dataclasses.replace(self.system, model=free)

    @functools.cached_property
    def _advance(self) -> Any:
        """`advance` with the state now."""

        def program(window: Window, rows: Mapping[str, Array], u: Array) -> tuple:
            window, mean_square, solved = self.advance(window, rows, u)
            return window, State(window.q[-1], window.v[-1]), mean_square, solved

        return jax.jit(program)

    @functools.cached_property
    def _widths(self) -> dict[str, int]:
        """Entries of the row of each channel."""
        widths = {s.channel: s.width(self.system.model) for s in self.sensors}
        return widths | ({self.input.channel: self.system.nu} if self.input else {})

    # -- the contract --------------------------------------------------------------------------------------------------

    def update(self, rows: Mapping[str, Any]) -> Estimate:
        """The estimate after another step of `dt`.

        rows: what was read at its end, by channel, with NaN for an entry that is missing; channels without a new reading are left
        out. The row of the `Input` is what acted over the step; without a new one the last holds.
        """
        for channel in rows:
            if channel not in self._widths:
                raise UnknownNameError(f"MovingHorizon: no sensor measures '{channel}'{closest(channel, self._widths)}")
        read = {c: self._row(c, rows.get(c), width) for c, width in self._widths.items()}
        if self.input is not None and rows.get(self.input.channel) is not None:
            u = self.input.gain * read[self.input.channel]
        else:
            u = np.asarray(self._window.u)[-1]
        measured = {s.channel: read[s.channel] for s in self.sensors}
        self._window, now, mean_square, solved = self._advance(self._window, measured, u)
        w, offset = self._window, np.asarray(self._window.offset)
        offsets = {c: offset[at] for c, at in self._offsets.items()}
        return Estimate(now, offsets, State(w.q, w.v), float(mean_square), solved)

    def _row(self, channel: str, row: Any, width: int) -> Float[np.ndarray, " w"]:
        if row is None:
            return np.full(width, np.nan)
        array = np.atleast_1d(np.asarray(row, float))
        if array.shape != (width,):
            raise ShapeError(f"MovingHorizon: the row of '{channel}' has shape {array.shape}; expected ({width},)")
        missing_torque = self.input is not None and channel == self.input.channel and np.isnan(array).any()
        if np.isinf(array).any() or missing_torque:
            where = f"MovingHorizon: the row of '{channel}'"
            raise NonFiniteError(f"{where} is {array}; it must be finite, or NaN for what a sensor lacks")
        return array

    def reset(self) -> None:
        """Forget all measurements."""
        self._window = self.start()

    def start(self) -> Window:
        """The memory before the first update."""
        N, nv, x = self.steps, self.system.nv, self.first
        deviation = np.concatenate([self.start_deviation, self._offset_deviations()])
        q, v = jnp.asarray(x.q), jnp.asarray(x.v)
        prior = Prior(q, v, jnp.zeros(deviation.size), jnp.diag(jnp.asarray(deviation**-2.0)))
        rows = {s.channel: jnp.full((N, s.width(self.system.model)), jnp.nan) for s in self.sensors}
        window = Window(
            jnp.tile(q, (N + 1, 1)), jnp.tile(v, (N + 1, 1)), jnp.zeros(deviation.size - 2 * nv), jnp.zeros((N, nv)),
            jnp.zeros((N, self.system.nu)), rows, jnp.zeros(N), prior, prior,
        )  # fmt: skip
        return jax.tree.map(lambda a: jnp.asarray(a, a.dtype), window)  # no weak types: one program

    def advance(
        self, window: Window, rows: Mapping[str, Float[Array, " w"]], u: Float[Array, " nu"]
    ) -> tuple[Window, Float[Array, ""], tuple]:
        """(memory, mean square error, what the covariance is computed from) after another step; pure. rows: of every sensor."""
        window = self._shifted(window, rows, u)
        seen = sum(jnp.isfinite(rows).sum(dtype=window.v.dtype) for rows in window.rows.values())
        before = self._cost(window)
        first = self._iterated(window, before)
        hessian, limit = window.prior.information, self.iterations

        def turn(carry: tuple) -> tuple:
            k, old, (window, cost, *_) = carry
            return k + 1, cost, self._iterated(window, cost)

        found = jax.lax.while_loop(lambda c: (c[0] < limit) & (c[2][1] < FAST * c[1]), turn, (jnp.asarray(1), before, first))
        window, cost, lq, policy = found[2]
        return window, 2.0 * cost / jnp.maximum(seen, 1.0), (lq, policy, hessian)

    def _iterated(self, window: Window, cost: Array) -> tuple[Window, Array, LQProblem, Policy]:
        """The window after a Gauss-Newton step, its cost, and the problem that was solved for it."""
        lq, ahead = self._model(window)
        gradient, hessian = self._of_prior(window)
        policy = (riccati_native if self.system.resolved_backend == "native" else riccati)(lq)
        slope = policy.p[0] + gradient
        dx, w = lq_rollout(lq, policy, -solved(policy.P[0] + hessian, slope))
        promised = -(policy.slope + 0.5 * policy.curvature + 0.5 * (slope @ dx[0]))
        whole = self._moved(window, dx[0], w)
        lowered = self._cost(whole)

        def best_share() -> tuple[Window, Array]:
            tried = jax.vmap(lambda share: self._moved(window, share * dx[0], share * w))(jnp.asarray(SHARES))
            costs = jnp.concatenate([jax.vmap(self._cost)(tried), jnp.stack([lowered, cost])])
            tried = jax.tree.map(lambda a, b, c: jnp.concatenate([a, jnp.stack([b, c])]), tried, whole, window)
            best = jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))
            return jax.tree.map(lambda leaf: leaf[best], tried), costs[best]

        kept, lowest = jax.lax.cond(cost - lowered >= PROMISE * promised, lambda: (whole, lowered), best_share)
        kept = dataclasses.replace(kept, next_prior=self._eliminated(window, lq, ahead, gradient, hessian))
        return kept, lowest, lq, policy

    def _cost(self, window: Window) -> Array:
        """What is minimised; the states obey the dynamics."""
        prior = window.prior
        away = self._away(window) - prior.mean
        r, _ = self._errors(window, slopes=False)
        return 0.5 * (away @ prior.information @ away + (r**2).sum() + (window.w**2).sum())

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _shifted(self, window: Window, rows: Mapping[str, Array], u: Array) -> Window:
        """Room for the new step, and the state to which the model leads without a disturbance."""
        roll = lambda a, last: jnp.concatenate([a[1:], last[None]])  # noqa: E731
        after, _ = self.system.step(State(window.q[-1], window.v[-1]), u)
        kept = {}
        for sensor in self.sensors:
            shifted = roll(window.rows[sensor.channel], jnp.full_like(rows[sensor.channel], jnp.nan))
            kept[sensor.channel] = shifted.at[self.steps - 1 - self._delay(sensor)[0]].set(rows[sensor.channel])
        return Window(
            roll(window.q, after.q), roll(window.v, after.v), window.offset, roll(window.w, jnp.zeros_like(window.w[0])),
            roll(window.u, u), kept, roll(window.happened, jnp.ones(())), window.next_prior, window.next_prior,
        )  # fmt: skip

    def _delay(self, sensor: Sensor) -> tuple[int, float]:
        """By how many whole steps a reading is late, and the share of the step before which had passed."""
        late = sensor.delay / float(self.system.dt)
        whole = int(np.floor(late + 1e-9))
        return whole, 1.0 - max(late - whole, 0.0)

    def _of_prior(self, window: Window) -> tuple[Array, Array]:
        """Gradient and Hessian of the prior by (dx_0, do)."""
        p = window.prior
        return p.information @ (self._away(window) - p.mean), p.information

    def _away(self, window: Window) -> Array:
        p = window.prior
        return jnp.concatenate([difference(self.system.model, p.q, window.q[0]), window.v[0] - p.v, window.offset])

    def _model(self, window: Window) -> tuple[LQProblem, tuple[Array, Array]]:
        """The linear-quadratic problem about the window, and the state to which its first step leads."""
        nv, k, N = self.system.nv, window.offset.size, self.steps
        n = 2 * nv
        ahead, A, B = jax.vmap(self._step)(window.q[:-1], window.v[:-1], window.u, window.w, window.happened)
        d = jax.vmap(lambda q, p: difference(self.system.model, p, q))(ahead[0], window.q[1:])
        d = jnp.concatenate([d, ahead[1] - window.v[1:], jnp.zeros((N, k))], 1)
        A = jnp.concatenate([jnp.concatenate([A, jnp.zeros((N, n, k))], 2), jnp.tile(jnp.eye(k, n + k, n), (N, 1, 1))], 1)
        B = jnp.concatenate([B, jnp.zeros((N, k, nv))], 1)
        r, J = self._errors(window, slopes=True)
        assert J is not None
        X, Y = J[:, :, : n + k], jnp.concatenate([J[:, :, n + k :], jnp.zeros((*J.shape[:2], k))], 2)
        by_x, by_w = X + Y @ A, Y @ B
        r0 = r + jnp.einsum("kij,kj->ki", Y, d)
        T = lambda M: jnp.swapaxes(M, 1, 2)  # noqa: E731
        Q, R = T(by_x) @ by_x, T(by_w) @ by_w + jnp.eye(nv)
        q, g = jnp.einsum("kij,ki->kj", by_x, r0), jnp.einsum("kij,ki->kj", by_w, r0) + window.w
        last = jnp.zeros((1, n + k))
        lq = LQProblem(A, B, d, jnp.concatenate([Q, jnp.zeros_like(Q[:1])]), R, T(by_x) @ by_w, jnp.concatenate([q, last]), g)
        return lq, (ahead[0][0], ahead[1][0])

    def _step(self, q: Array, v: Array, u: Array, w: Array, happened: Array) -> tuple[tuple[Array, Array], Array, Array]:
        """Where a step leads, and its derivatives by (dq, dv) and by w; what has not happened stands still."""
        model, n, scale = self.system.model, 2 * self.system.nv, jnp.asarray(self.disturbance)
        force = actuation_force(model, q, v, u) + scale * w
        found, slopes = self._forced.linearize(State(q, v), force), force_slopes(model, q, v, u)
        A, here = found.A, happened > 0
        if slopes is not None:
            A = A + found.B @ jnp.concatenate([slopes.by_q, slopes.by_v], 1)
        A, B = jnp.where(here, A, jnp.eye(n)), jnp.where(here, found.B * scale, 0.0)
        after = found.x_next
        return (jnp.where(here, after.q, q), jnp.where(here, after.v, v)), A, B

    def _errors(self, window: Window, slopes: bool) -> tuple[Array, Array | None]:
        """Errors of what was measured in each step (N, m), and their derivative by (x_k, o, x_{k+1}) where asked for."""
        system, nv, k = self.system, self.system.nv, window.offset.size
        model, dt, n = system.model, jnp.asarray(system.dt), 2 * system.nv
        r, J = [], []
        for sensor in self.sensors:
            constants, share = constants_of(sensor, system), jnp.asarray(self._delay(sensor)[1])
            at, deviation = self._offsets.get(sensor.channel), jnp.asarray(sensor.deviations(model))

            def error(z: Array, now: tuple, row: Array, sensor: Sensor = sensor, of: tuple = (constants, share, at, deviation)):
                constants, share, at, deviation = of
                q0, v0, q1, v1 = now
                x0, x1 = z[:n], z[n + k :]
                moment = Moment(
                    integrate(model, q0, x0[:nv]), v0 + x0[nv:], integrate(model, q1, x1[:nv]), v1 + x1[nv:n], share, dt
                )
                predicted = sensor.predict(model, constants, moment)
                if at is not None:
                    predicted = sensor.offset(predicted, (window.offset + z[n : n + k])[at])
                return sensor.error(predicted, row) / deviation

            zero = jnp.zeros(2 * n + k)
            now, rows = (window.q[:-1], window.v[:-1], window.q[1:], window.v[1:]), window.rows[sensor.channel]
            e = jax.vmap(error, (None, 0, 0))(zero, now, rows)
            there, filled = jnp.isfinite(e), jnp.nan_to_num(rows)
            r.append(jnp.where(there, jnp.nan_to_num(e), 0.0))
            if slopes:
                J.append(jnp.where(there[:, :, None], jax.vmap(jax.jacrev(error), (None, 0, 0))(zero, now, filled), 0.0))
        return jnp.concatenate(r, 1), jnp.concatenate(J, 1) if slopes else None

    def _moved(self, window: Window, dx: Array, w: Array) -> Window:
        """The motion from another first state and with other constant errors, (dx, do), under other disturbances."""
        model, nv, w = self.system.model, self.system.nv, window.w + w
        first = integrate(model, window.q[0], dx[:nv]), window.v[0] + dx[nv : 2 * nv]

        def step(x: tuple, inputs: tuple) -> tuple:
            u, w, happened = inputs
            after, _ = self.system.step(State(*x), u, force=jnp.asarray(self.disturbance) * w)
            x = tuple(jnp.where(happened > 0, new, old) for new, old in zip((after.q, after.v), x))
            return x, x

        later: tuple[Array, Array] = jax.lax.scan(step, first, (window.u, w, window.happened))[1]
        q, v = (jnp.concatenate([a[None], b]) for a, b in zip(first, later))
        return dataclasses.replace(window, q=q, v=v, offset=window.offset + dx[2 * nv :], w=w)

    def _eliminated(self, window: Window, lq: LQProblem, ahead: tuple, gradient: Array, hessian: Array) -> Prior:
        """The prior on the second state: the normal equations of the first step without (x_0, w_0)."""
        H = jnp.block([[lq.Q[0] + hessian, lq.S[0]], [lq.S[0].T, lq.R[0]]])
        F = jnp.concatenate([lq.A[0], lq.B[0]], 1)
        slope = jnp.concatenate([lq.q[0] + gradient, lq.r[0]])
        both = solved(H, jnp.concatenate([F.T, slope[:, None]], 1))
        walked = self.drift**2 * float(self.system.dt) * self._offset_deviations() ** 2
        drifted = jnp.asarray(np.concatenate([np.zeros(2 * self.system.nv), walked]))
        covariance = F @ both[:, :-1] + jnp.diag(window.happened[0] * (FLOOR**2 + drifted))
        step = -F @ both[:, -1]
        mean = step.at[2 * self.system.nv :].add(window.offset)
        return Prior(ahead[0], ahead[1], mean, solved(covariance, jnp.eye(len(step))))
