"""One step of a `System`, whose arguments have been checked: which implementation takes it, with which derivative."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.backend import native_impulse_step
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.gradients.implicit import IMPLICIT
from trajopt.dynamics.integrators import acts_by_impulses, explicit_step, impulse_info, impulse_step, takes_impulses
from trajopt.dynamics.rigid_body.actuation import actuation_force
from trajopt.dynamics.smooth_step import smooth_step
from trajopt.dynamics.smoothness import marked
from trajopt.dynamics.state import State, StepInfo

if TYPE_CHECKING:
    from trajopt.dynamics.system import System


def advance(
    backend: str,
    system: System,
    x: State,
    u: Float[Array, " nu"],
    force: Float[Array, " nv"],
    warm_start: Float[Array, " m"] | None,
) -> tuple[State, StepInfo]:
    """The state after a step by a backend, and its report."""
    x = dataclasses.replace(x, v=marked(system.contact, system.model, x.v))
    if system.mode.estimates:
        exact = dataclasses.replace(system, gradient="implicit")
        return system.mode.estimated(functools.partial(_unpacked, backend), exact, x, u, force, warm_start)
    law, model = system.contact, system.model
    tau = actuation_force(model, x.q, x.v, u) + force
    if backend == "native" and acts_by_impulses(law) and system.smooth:
        return smooth_step(system.integrator, step_inputs(system, law, x, tau, warm_start))
    if takes_impulses(law, system.integrator):
        start = step_inputs(system, law, x, tau, warm_start)
        rule = IMPLICIT.rule(law) if system.smooth else system.mode.rule(law)
        if backend == "native":
            return native_impulse_step(system.integrator, rule, start)
        x_next, result = impulse_step(system.integrator, start, rule)
        return x_next, impulse_info(result)
    return explicit_step(system.integrator, law, system.stepped_model, x, tau, jnp.asarray(system.dt))


def _unpacked(backend: str, system: System, x: State, u, force, warm_start) -> tuple[State, StepInfo]:
    """`advance` whose report can be differentiated attribute by attribute."""
    x_next, info = advance(backend, system, x, u, force, warm_start)
    return x_next, info.unpacked()


def step_inputs(
    system: System, law: ContactLaw, x: State, tau: Float[Array, " nv"], warm_start: Float[Array, " m"] | None
) -> StepInputs:
    """The step to be solved, at the state before it."""
    kappa = system.mode.sharpness(system.kappa)
    kappa = None if kappa is None else kappa.astype(x.q.dtype)
    rho = jnp.asarray(system.rho, x.q.dtype) if law.relaxed else None
    return StepInputs(law, system.stepped_model, x.q, x.v, tau, jnp.asarray(system.dt), kappa, warm_start, rho)
