"""The gradient modes that act on the contact problem of a step: one value, several derivatives.

| mode | derivative of |
|---|---|
| `implicit` | the law itself, by the implicit function theorem (`implicit`), or through its sweeps (`unrolled`) |
| `complementarity-aware` | the law in the labels that the loss asks for (`complementarity`) |
| `bounce` | the law, with positions reflected by impacts (`bounce`) |
| `smoothed` | the smoothed law, at the state where the hard law is solved |
| `unrolled` | as many Gauss-Seidel sweeps on the law's problem, at the state where the law is solved |
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from trajopt.dynamics.collision.pairs import collide
from trajopt.dynamics.contact.bounce import bounce_step
from trajopt.dynamics.contact.complementarity import aware_step
from trajopt.dynamics.contact.first_order import first_order_only
from trajopt.dynamics.contact.implicit import VelocityStep, row_count, velocity_step
from trajopt.dynamics.contact.law import R_FACTORS, BoxedLCP, ContactLaw, NoContact, SmoothedContact
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.contact.solve import zero_tangent
from trajopt.dynamics.contact.unrolled import swept_step
from trajopt.dynamics.kinematics import kinematics
from trajopt.dynamics.model import Model


@dataclasses.dataclass(frozen=True)
class ContactMode:
    """A row of the table above, and its options: labellings of `complementarity`, sweeps and r_factor of `unrolled`."""

    name: str = "implicit"
    labellings: str = "all"
    sweeps: int = 10
    r_factor: str = R_FACTORS[0]


@dataclasses.dataclass(frozen=True)
class _SmoothedBox(SmoothedContact):
    """`SmoothedContact` with friction bounded tangent by tangent."""

    cone: ClassVar[str] = "box"
    solver: ClassVar[str] = "direct"


def contact_step(
    mode: ContactMode, law: ContactLaw, model: Model, q, v, tau, dt, init=None, kappa=None
) -> tuple[Array, VelocityStep]:
    """(q, velocity step) with the derivative of `mode`. Use the returned q from here on: modes may differentiate it too."""
    if mode.name == "complementarity-aware":
        return aware_step(mode.labellings, law, model, q, v, tau, dt, init)
    if mode.name == "bounce":
        return bounce_step(law, model, q, v, tau, dt, init)
    if mode.name in ("smoothed", "unrolled") and not isinstance(law, NoContact):
        if init is None:
            init = jnp.zeros(row_count(law, model), q.dtype)
        outputs = _substituted(mode, law, model, q, v, tau, dt, kappa, jax.lax.stop_gradient(init))
        return q, VelocityStep(*outputs)
    return q, _own_step(law, model, q, v, tau, dt, init, kappa)


def _own_step(law: ContactLaw, model: Model, q, v, tau, dt, init, kappa) -> VelocityStep:
    if isinstance(law, SmoothedContact) and law.sweeps is not None:
        return swept_step(law, model, q, v, tau, dt, kappa, sweeps=law.sweeps, r_factor=law.r_factor)
    return velocity_step(law, model, q, v, tau, dt, init, kappa)


def smoothed_law(law: ContactLaw) -> SmoothedContact:
    """The smoothed law with the options of a hard one."""
    kind = _SmoothedBox if isinstance(law, BoxedLCP) else SmoothedContact
    shared = {f.name: getattr(law, f.name) for f in dataclasses.fields(ContactLaw)}
    return kind(**shared)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _substituted(mode: ContactMode, law: ContactLaw, model: Model, q, v, tau, dt, kappa, init):
    step = _own_step(law, model, q, v, tau, dt, init, None if mode.name == "smoothed" else kappa)
    return step.velocity, step.impulse, step.rows, step.solution


@_substituted.defjvp
def _substituted_jvp(mode: ContactMode, law: ContactLaw, primals, tangents):
    primals = first_order_only(mode.name, primals)
    outputs = _substituted(mode, law, *primals)

    def other(model, q, v, tau, dt, kappa):
        if mode.name == "smoothed":
            step = velocity_step(smoothed_law(law), model, q, v, tau, dt, None, kappa)
        else:
            step = swept_step(law, model, q, v, tau, dt, kappa, sweeps=mode.sweeps, r_factor=mode.r_factor)
        kin = kinematics(model, q)
        return step.velocity, step.impulse, assemble(model, kin, collide(model, kin, law.pair_limit), q, v, dt, law)

    _, (dv, dimpulse, drows) = jax.jvp(other, primals[:-1], tangents[:-1])
    return outputs, (dv, dimpulse, drows, zero_tangent(outputs[3]))
