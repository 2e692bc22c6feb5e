"""Residuals of joints and motors: posture, velocity, acceleration, control, margin to joint limits."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.problems.residuals.activations import Activation, Barrier
from trajopt.problems.residuals.base import STATIC, Residual, StepOutcome

LIMIT_WIDTH = 0.1  # rad or m: from where the barrier before a joint limit is felt


@dataclasses.dataclass(frozen=True)
class _OfJoints(Residual):
    """A residual of joints.

    Options:
        joints: names of the joints that it is about, in the order of the rows. Default: all degrees of freedom.
    """

    joints: Sequence[str] | None = dataclasses.field(default=None, metadata=STATIC, kw_only=False)

    def __post_init__(self) -> None:
        if isinstance(self.joints, list):  # static fields are hashed
            object.__setattr__(self, "joints", tuple(self.joints))

    def dofs(self, model: Model) -> Int[np.ndarray, " m"]:
        """Degrees of freedom of the joints."""
        if self.joints is None:
            return np.arange(model.nv)
        specs = [model.topology.joint(name) for name in self.joints]
        return np.concatenate([np.arange(spec.v_start, spec.v_start + spec.nv) for spec in specs]).astype(int)

    def reference_meaning(self, system: System) -> str:
        if self.joints is None:
            return ""
        model = system.model
        of_q = self.depends_on == "q"
        whole, start, size = ("q", "q_start", "nq") if of_q else ("v", "v_start", "nv")
        read = []
        for name in self.joints:
            spec = model.topology.joint(name)
            first, count = getattr(spec, start), getattr(spec, size)
            read.append(f"'{name}' [{first}]" if count == 1 else f"'{name}' [{first}:{first + count}]")
        return f". It is as long as all of {whole}, of which the entries of the joints are read: {', '.join(read)}"

    def check(self, system: System) -> None:
        if self.joints is not None and (isinstance(self.joints, str) or not self.joints):
            raise OptionError(f"joints is {self.joints!r}; expected a tuple of joint names, or None for all")
        self.dofs(system.model)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Posture(_OfJoints):
    """q (-) reference in tangent coordinates, rad or m; reference (nq,): default the model's configuration at rest."""

    depends_on = "q"

    def default_reference(self, system: System) -> Float[Array, " nq"]:
        return system.model.q_default

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, " nq"]
    ) -> Float[Array, " m"]:
        return difference(step.model, reference, x.q)[self.dofs(step.model)]

    def out_of_reach(self, system: System, tolerance: float) -> str:
        """A joint would have to leave its limits."""
        model, top = system.model, system.model.topology
        if np.ndim(self.reference) != 1 or np.ndim(self.weight) != 1:
            return ""
        dofs = self.dofs(model)
        limited = np.isin(dofs, np.asarray(top.limited, int))
        wanted = np.asarray(self.reference)[np.where(limited, np.asarray(top.scalar_q_of_dof)[dofs], 0)]
        lower, upper = (np.asarray(bound)[dofs] for bound in (model.lower, model.upper))
        excess = np.where(limited, np.maximum(lower - wanted, wanted - upper), 0.0) * np.asarray(self.weight)
        worst = int(np.argmax(excess))
        if not excess[worst] > tolerance:
            return ""
        name = next(spec.name for spec in top.joints if spec.v_start <= dofs[worst] < spec.v_start + spec.nv)
        return f"joint '{name}' would have to be at {wanted[worst]:g}, and its limits are {lower[worst]:g} and {upper[worst]:g}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Velocity(_OfJoints):
    """v - reference, rad/s or m/s; reference (nv,): default zero."""

    depends_on = "v"

    def default_reference(self, system: System) -> Float[np.ndarray, " nv"]:
        return np.zeros(system.nv)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, " nv"]
    ) -> Float[Array, " m"]:
        return (x.v - reference)[self.dofs(step.model)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Acceleration(_OfJoints):
    """$(v_next - v) / dt - reference$ of the step, rad/s^2 or m/s^2; reference (nv,): default zero."""

    needs_step = True

    def default_reference(self, system: System) -> Float[np.ndarray, " nv"]:
        return np.zeros(system.nv)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, " nv"]
    ) -> Float[Array, " m"]:
        rate = (step.x_next.v - x.v) / jnp.asarray(step.system.dt, x.v.dtype)
        return (rate - reference)[self.dofs(step.model)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Control(Residual):
    """u - reference, in the units of the controls; reference (nu,): default zero."""

    needs_control = True
    depends_on = "u"

    def default_reference(self, system: System) -> Float[np.ndarray, " nu"]:
        return np.zeros(system.nu)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, " nu"]
    ) -> Float[Array, " nu"]:
        assert u is not None
        return u - reference


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LimitMargin(Residual):
    """Distances of every limited joint to its lower limits, then to its upper limits, rad or m, minus the reference (2 k,).

    By default behind a `Barrier` of width 0.1; `LimitMargin().at_least(0.05)` is the inequality.
    """

    depends_on = "q"

    activation: Activation | None = dataclasses.field(default=Barrier(LIMIT_WIDTH), kw_only=True)

    def default_reference(self, system: System) -> Float[np.ndarray, " m"]:
        return np.zeros(2 * len(system.model.topology.limited))

    def check(self, system: System) -> None:
        if not system.model.topology.limited:
            raise OptionError(f"model '{system.model.name}' has no joint with limits; leave the term out")

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, " m"]
    ) -> Float[Array, " m"]:
        top = step.model.topology
        dofs = np.array(top.limited, int)
        q = x.q[top.scalar_q_of_dof[dofs]]
        lower, upper = (jnp.asarray(bound, q.dtype)[dofs] for bound in (step.model.lower, step.model.upper))
        return jnp.concatenate([q - lower, upper - q]) - reference
