"""What the sensors should have measured: the motion of a system from a first state, and the errors of a recording under it."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import State, StepInfo
from trajopt.dynamics.system import System
from trajopt.estimation.packing import Commands, Data, Group
from trajopt.estimation.parameters import Unknowns
from trajopt.estimation.sensors import Input, Moment, Sensor


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """The system, its sensors and unknowns: everything but numbers. Local coordinates of a recording are [dx0 (2 nv),
    offsets]."""

    system: System
    sensors: tuple[Sensor, ...]
    unknowns: Unknowns

    @property
    def measuring(self) -> tuple[Sensor, ...]:
        """The sensors that are no inputs."""
        return tuple(sensor for sensor in self.sensors if not isinstance(sensor, Input))

    @property
    def offset_sizes(self) -> tuple[int, ...]:
        """Rows of the static error of each measuring sensor, 0 where it has none."""
        return tuple(len(s.labels(self.system.model)) if s.has_offset else 0 for s in self.measuring)

    @property
    def n_local(self) -> int:
        """Unknowns of each recording."""
        return 2 * self.system.nv + sum(self.offset_sizes)

    def prior(self) -> Float[np.ndarray, " n_local"]:
        """The information about each local unknown before the measurements: of the static errors."""
        model = self.system.model
        offsets = [s.offset_deviations(model) ** -2.0 for s in self.measuring if s.has_offset]
        return np.concatenate([np.zeros(2 * self.system.nv), *offsets])

    def motion(
        self, theta: Float[Array, " n"], local: Float[Array, " l"], one: Data
    ) -> tuple[System, dict, State, StepInfo]:
        """The system and the sensors' constants under theta, and the states and infos of the recording's steps; `one`: the data
        of one, without their axis."""
        model, constants = self.unknowns.applied(self.system.model, theta)
        system = dataclasses.replace(self.system, model=model)
        nv = self.system.nv
        x0 = State(integrate(model, one.q, local[:nv]), one.v + local[nv : 2 * nv])
        us = self._controls(constants, one)
        states, info = system.rollout(x0, us)
        return system, constants, states, info

    def _controls(self, constants: dict, one: Data) -> Float[Array, "T nu"]:
        nu, dt = self.system.nu, jnp.asarray(self.system.dt)
        if one.commands is None:
            return jnp.zeros((one.T, nu), dt.dtype)
        channel = next(s.channel for s in self.sensors if isinstance(s, Input))
        times = one.t0 + dt * jnp.arange(one.T + 1, dtype=dt.dtype) - constants[channel]["delay"]
        return constants[channel]["gain"] * jnp.diff(_integral(one.commands, times), axis=0) / dt

    def rows(self, theta: Float[Array, " n"], local: Float[Array, " l"], one: Data) -> dict[str, Float[Array, "N w"]]:
        """The predicted rows of every channel at its time stamps."""
        system, constants, states, info = self.motion(theta, local, one)
        found, begin = {}, 2 * self.system.nv
        contacts = info.contacts if any(sensor.needs_contacts for sensor in self.sensors) else None
        for sensor, size in zip(self.measuring, self.offset_sizes):
            offset = local[begin : begin + size]
            begin += size

            def row(t: Array, sensor: Sensor = sensor, offset: Array = offset) -> Array:
                passed = (t - constants[sensor.channel]["delay"] - one.t0) / jnp.asarray(system.dt)
                k = jnp.clip(jnp.floor(jax.lax.stop_gradient(passed)), 0, one.T - 1).astype(int)
                seen = None if contacts is None else jax.tree.map(lambda leaf: leaf[k], contacts)
                at = Moment(
                    states.q[k],
                    states.v[k],
                    states.q[k + 1],
                    states.v[k + 1],
                    passed - k.astype(passed.dtype),
                    jnp.asarray(system.dt),
                    seen,
                )
                predicted = sensor.predict(system.model, constants[sensor.channel], at)
                return sensor.offset(predicted, offset) if offset.size else predicted

            found[sensor.channel] = jax.vmap(row)(one.measured[sensor.channel].t)
        return found

    def errors(
        self, theta: Float[Array, " n"], local: Float[Array, " l"], one: Data
    ) -> dict[str, Float[Array, "N rows"]]:
        """Measured minus predicted, in units of the channel; zero where a row is missing."""
        predicted = self.rows(theta, local, one)
        found = {}
        for sensor in self.measuring:
            seen = one.measured[sensor.channel]
            error = jax.vmap(sensor.error)(predicted[sensor.channel], seen.values)
            found[sensor.channel] = jnp.where(seen.present > 0, error, jnp.zeros_like(error))
        return found

    def residual(self, theta: Float[Array, " n"], local: Float[Array, " l"], one: Data) -> Float[Array, " m"]:
        """The errors in deviations of the noise, channel by channel, sample by sample."""
        errors, model = self.errors(theta, local, one), self.system.model
        parts = [errors[s.channel] / jnp.asarray(s.deviations(model)) for s in self.measuring]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    def sample_index(self, group: Group) -> Int[np.ndarray, " m"]:
        """Which sample each entry of the residual belongs to, (m,)."""
        parts, first = [], 0
        for sensor in self.measuring:
            n, rows = group.data.measured[sensor.channel].present.shape[1:]
            parts.append(first + np.repeat(np.arange(n), rows))
            first += n
        return np.concatenate(parts)

    def present(self, group: Group) -> Float[np.ndarray, "R m"]:
        """Which entries of the residual count."""
        return np.concatenate(
            [np.asarray(group.data.measured[s.channel].present).reshape(len(group.index), -1) for s in self.measuring],
            1,
        )


def zeros(predictor: Predictor, groups: Sequence[Group]) -> list[Float[np.ndarray, "R l"]]:
    """Local coordinates of zero."""
    return [np.zeros((len(group.index), predictor.n_local)) for group in groups]


def _integral(commands: Commands, times: Float[Array, " k"]) -> Float[Array, "k nu"]:
    """The integral of the held commands up to each time; before the first time stamp the first command holds."""
    t = commands.t
    inside = jax.vmap(lambda column: jnp.interp(times, t, column), in_axes=1, out_axes=1)(commands.integral)
    first = commands.integral[1] / (t[1] - t[0])
    early, late = jnp.minimum(times - t[0], 0.0), jnp.maximum(times - t[-1], 0.0)
    return inside + early[:, None] * first + late[:, None] * commands.last
