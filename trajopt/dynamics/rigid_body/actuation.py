"""The generalised force of the actuators: what controls become. All steps and their derivatives ask here."""

from __future__ import annotations

from jaxtyping import Array, Float

from trajopt.dynamics.model import Model


def actuation_force(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
) -> Float[Array, " nv"]:
    """tau (nv,), dual to v, of the controls u (nu,) at the state (q, v): the model's gears times u."""
    return model.actuation @ u


def force_by_control(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], u: Float[Array, " nu"]
) -> Float[Array, "nv nu"]:
    """d tau / d u of `actuation_force`; it depends neither on q nor on v, by which the force has no derivative."""
    return model.actuation
