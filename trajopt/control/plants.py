"""Plants: what is controlled. A plant has a state, a clock that ticks, and forces that push its bodies."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.kinematics import kinematics, point_jacobian
from trajopt.dynamics.rigid_body.spatial import rotate
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.problems import programs
from trajopt.problems.trajectory import flat_state


@dataclasses.dataclass(frozen=True)
class Push:
    """A force at the centre of mass of a body, for some time.

    Options:
        body: name of the body.
        force (N): (3,), world axes.
        start (s): when the force begins, in the plant's time.
        duration (s): how long it lasts.

    Raises `OptionError`, `ShapeError` or `NonFiniteError`.
    """

    body: str
    force: Sequence[float] | Float[np.ndarray, "3"]
    start: float = 0.0
    duration: float = 0.1

    def __post_init__(self) -> None:
        force = np.asarray(self.force, float)
        if force.shape != (3,):
            raise ShapeError(f"push on '{self.body}': force has shape {force.shape}; expected (3,), N in world axes")
        if not np.isfinite(force).all():
            raise NonFiniteError(f"push on '{self.body}': force has non-finite entries")
        if not (np.isfinite(self.start) and np.isfinite(self.duration) and self.duration > 0):
            raise OptionError(
                f"push on '{self.body}': start is {self.start}, duration {self.duration}; expected seconds, the latter positive"
            )
        object.__setattr__(self, "force", force)

    def acts(self, time: float, tick: float) -> bool:
        """Whether it acts in the tick that begins at a time; times are compared to a thousandth of a tick."""
        return self.start - 1e-3 * tick <= time < self.start + self.duration - 1e-3 * tick


@runtime_checkable
class Plant(Protocol):
    """What a receding horizon drives: states are flat, [q, v] in the conventions of `trajopt`, controls those of the problem."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def dt(self) -> float:
        """Seconds of a tick."""

    @property
    def nx(self) -> int:
        """Length of a state."""

    @property
    def nu(self) -> int:
        """Number of controls."""

    @property
    def bodies(self) -> Sequence[str]:
        """Bodies that may be pushed."""

    @property
    def state(self) -> Float[np.ndarray, " nx"]:
        """The state now."""

    def reset(self, x: Float[np.ndarray, " nx"]) -> None:
        """Go to a state, undisturbed."""

    def step(self, u: Float[np.ndarray, " nu"], forces: Mapping[str, Float[np.ndarray, "3"]]) -> None:
        """One tick under a control, and forces (N, world axes) at the centres of mass of bodies."""


class SystemPlant(NamedOptions):
    """A `System` as plant: its contact law, integrator and time step, which need not be those of the problem.

    Options:
        system: the `System`.
    """

    def __init__(self, system: System) -> None:
        if not isinstance(system, System):
            raise OptionError(f"system is {type(system).__name__}; expected a System")
        if system.contact.contact_state_shape(system.model) is not None:
            raise OptionError(f"a plant's state is [q, v]; {system.contact.name} carries a state of its own")
        self.system, self.dt = system, float(system.dt)
        self.name = f"System of '{system.model.name}'"
        self.nx, self.nu = system.nq + system.nv, system.nu
        self._nodes = {frame.name: frame.node for frame in system.model.topology.frames if frame.node >= 0}
        self._state: Any = np.concatenate([np.asarray(system.model.q_default), np.zeros(system.nv)])

    @property
    def bodies(self) -> tuple[str, ...]:
        """Frames that move; the force acts at the centre of mass of the body that they are fixed to."""
        return tuple(self._nodes)

    @property
    def state(self) -> Float[np.ndarray, " nx"]:
        """The state now."""
        return np.asarray(self._state)

    def reset(self, x: Float[np.ndarray, " nx"]) -> None:
        """Go to a state."""
        self._state = jnp.asarray(x, self.system.model.mass.dtype)

    def step(self, u: Float[np.ndarray, " nu"], forces: Mapping[str, Float[np.ndarray, "3"]]) -> None:
        """One step of the `System`."""
        nq = self.system.nq
        x = State(self._state[:nq], self._state[nq:])
        force = None
        for body, value in forces.items():
            world = jnp.asarray(value, x.q.dtype)
            part, _ = programs.run(_generalised, _Pushed(self._node(body)), self.system.model, x.q, world)
            force = part if force is None else force + part
        x_next, _ = self.system.step(x, jnp.asarray(u, x.q.dtype), force=force)
        self._state = flat_state(x_next)

    def _node(self, body: str) -> int:
        if body not in self._nodes:
            raise UnknownNameError(f"{self.name} has no body '{body}'{closest(body, self._nodes)}")
        return self._nodes[body]


@dataclasses.dataclass(frozen=True)
class _Pushed:
    """Which node of a model is pushed."""

    node: int


def _generalised(pushed: _Pushed, model: Any, q: Array, force: Array) -> Array:
    """The generalised force of a force at a node's centre of mass."""
    kin, node = kinematics(model, q), pushed.node
    point = kin.position[node] + rotate(kin.rotation[node], jnp.asarray(model.com, q.dtype)[node])
    return point_jacobian(model, q, node, point).T @ force
