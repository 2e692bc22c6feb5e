r"""The generalised force of the actuators: what controls become. All steps and their derivatives ask here.

    tau = clip(S f),   f = clip((g_0 + g_1 l + g_2 l') u + b_0 + b_1 l + b_2 l'),   l = S^T q,  l' = S^T v

S are the lever arms (`Model.actuation`), l the length of an actuator (over hinges and slides alone) and l' its rate; the inner
clip is to the force range of each actuator, the outer one to the range of what all of them do to a joint. Both hold at the (q, v)
before the step, and where they act the slope is zero. Motors without a range are tau = S u: their models hold no g and no b.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision

_ROUNDING = 8  # in units of eps: a motor at its range, as bounds of controls let it be, is not beyond it


class ForceSlopes(NamedTuple):
    """d tau / d u (nv, nu) and d tau / d (q in tangent coordinates, v), (nv, nv) each."""

    by_control: Float[Array, "nv nu"]
    by_q: Float[Array, "nv nv"]
    by_v: Float[Array, "nv nv"]

    def columns(self) -> Float[Array, "nv k"]:
        """d tau / d (u, q, v), in this order."""
        return jnp.concatenate(self, 1)

    def chained(
        self, A: Float[Array, "m n"], along: Float[Array, "m k"]
    ) -> tuple[Float[Array, "m n"], Float[Array, "m nu"]]:
        """A and B of a step, or C and D of an output, from A at fixed tau and d x+ / d tau along `columns`."""
        nu = self.by_control.shape[1]
        return A + along[:, nu:], along[:, :nu]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actuators:
    """What of a model its actuators are: the arrays of `Model`, and (DoF, coordinate) of each hinge and slide."""

    arms: Float[Array, "nv nu"]
    gain: Float[Array, "_ 3"]
    bias: Float[Array, "_ 3"]
    force_range: Float[Array, "_ 2"]
    joint_range: Float[Array, "_ 2"]
    scalar: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})

    @property
    def plain(self) -> bool:
        """Whether tau = arms @ u: motors without a force range."""
        return self.gain.shape[0] == 0

    def force(self, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]) -> Float[Array, " nv"]:
        """tau (nv,), dual to v, of the controls u (nu,) at the state (q, v)."""
        if self.plain:
            return self.arms @ u
        force, _ = self._forces(q, v, u)
        return _clipped(self.arms @ force, self.joint_range)[0]

    def slopes(self, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]) -> ForceSlopes | None:
        """The derivatives of `force`; None for plain motors, whose force depends neither on q nor on v: d tau / d u is `arms`."""
        if self.plain:
            return None
        force, free = self._forces(q, v, u)
        length, rate = self._state(q, v)
        _, joint_free = _clipped(self.arms @ force, self.joint_range)
        arms = jnp.where(joint_free[:, None] & free[None, :], self.arms, 0.0)
        by_control = self.gain[:, 0] + self.gain[:, 1] * length + self.gain[:, 2] * rate
        by_length, by_rate = (self.gain[:, k] * u + self.bias[:, k] for k in (1, 2))
        return ForceSlopes(arms * by_control, (arms * by_length) @ self._scalar_arms().T, (arms * by_rate) @ self.arms.T)

    def force_by_control(
        self, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
    ) -> Float[Array, "nv nu"]:
        """d tau / d u."""
        slopes = self.slopes(q, v, u)
        return self.arms if slopes is None else slopes.by_control

    def unsaturated_gain(self) -> Float[Array, "nv nu"]:
        """d tau / d u at l = l' = 0 within all ranges, which depends on nothing but the model."""
        return self.arms if self.plain else self.arms * self.gain[:, 0]

    def _scalar_arms(self) -> Float[Array, "nv nu"]:
        """The arms that a length is measured with: those of hinges and slides."""
        kept = np.zeros((self.arms.shape[0], 1), bool)
        kept[[dof for dof, _ in self.scalar]] = True
        return jnp.where(kept, self.arms, 0.0)

    def _state(self, q, v) -> tuple[Float[Array, " nu"], Float[Array, " nu"]]:
        """The lengths and their rates."""
        dofs, coordinates = (np.array([pair[k] for pair in self.scalar], int) for k in (0, 1))
        return self.arms[dofs].T @ q[coordinates], self.arms.T @ v

    def _forces(self, q, v, u) -> tuple[Float[Array, " nu"], Bool[Array, " nu"]]:
        """f within its range, and where it is free to change."""
        length, rate = self._state(q, v)
        gain, bias = (x[:, 0] + x[:, 1] * length + x[:, 2] * rate for x in (self.gain, self.bias))
        return _clipped(gain * u + bias, self.force_range)


def _clipped(force: Float[Array, " k"], bounds: Float[Array, "k 2"]) -> tuple[Float[Array, " k"], Bool[Array, " k"]]:
    """The force within its bounds, and where these do not act."""
    lower, upper = bounds[:, 0], bounds[:, 1]
    slack = _ROUNDING * jnp.finfo(force.dtype).eps
    low, high = force < lower - slack * jnp.abs(lower), force > upper + slack * jnp.abs(upper)
    return jnp.where(low, lower, jnp.where(high, upper, force)), ~(low | high)


def actuators(model: Model) -> Actuators:
    """The actuators of the model."""
    top = model.topology
    scalar = tuple(
        (joint.v_start, joint.q_start) for joint in top.joints if joint.kind in ("revolute", "prismatic")
    )
    return Actuators(
        model.actuation, model.actuator_gain, model.actuator_bias, model.actuator_range, model.joint_force_range, scalar
    )


@in_full_precision
def actuation_force(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
) -> Float[Array, " nv"]:
    """`Actuators.force` of the model."""
    return actuators(model).force(q, v, u)


def force_by_control(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
) -> Float[Array, "nv nu"]:
    """`Actuators.force_by_control` of the model."""
    return actuators(model).force_by_control(q, v, u)


def force_slopes(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
) -> ForceSlopes | None:
    """`Actuators.slopes` of the model."""
    return actuators(model).slopes(q, v, u)
