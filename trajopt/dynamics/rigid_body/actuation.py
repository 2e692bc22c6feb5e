"""The generalised force of the actuators: what controls become. All steps and their derivatives ask here."""

from __future__ import annotations

import dataclasses

import jax
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actuators:
    """What of a model its actuators are: gain (nv, nu), tau = gain @ u."""

    gain: Float[Array, "nv nu"]

    def force(
        self, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
    ) -> Float[Array, " nv"]:
        """tau (nv,), dual to v, of the controls u (nu,) at the state (q, v): the gears times u."""
        return self.gain @ u

    def force_by_control(
        self, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
    ) -> Float[Array, "nv nu"]:
        """d tau / d u; it depends neither on q nor on v, by which the force has no derivative."""
        return self.gain


def actuators(model: Model) -> Actuators:
    """The actuators of the model."""
    return Actuators(model.actuation)


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
