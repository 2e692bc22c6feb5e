"""Steps of a `System` and their derivatives, once the arguments are checked: which implementation, with which rule."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.backend import FREE, FREE_MOTION, differentiated_law
from trajopt.dynamics.compiled_slopes import core_step, linearize_native
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.contact.laws.forces import ForceLaw, forces, gives_forces
from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.closed_form import needs_null_space
from trajopt.dynamics.gradients.implicit import IMPLICIT
from trajopt.dynamics.integrators import (
    acts_by_impulses,
    explicit_info,
    explicit_step,
    impulse_info,
    impulse_step,
    impulses_of,
    takes_impulses,
    where_impulses_act,
)
from trajopt.dynamics.linearization import (
    Parts,
    has_closed_form,
    linearize_by_columns,
    linearize_impulse_step,
    slopes_by_columns,
)
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.report import PackedStepInfo
from trajopt.dynamics.rigid_body.actuation import actuation_force, force_slopes
from trajopt.dynamics.smoothness import marked
from trajopt.dynamics.state import Linearization, State, StepInfo

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
    if acts_by_impulses(law):
        start, rule = _step_inputs(system, law, x, tau, warm_start), derivative_rule(system, law)
        if taken_by_core(backend, system):
            return core_step(system.integrator, None if system.smooth else rule, start)
        if takes_impulses(law, system.integrator):
            x_next, result = impulse_step(system.integrator, start, rule)
            return x_next, impulse_info(result)
    if backend == FREE_MOTION and gives_forces(law):
        return forced_step(system, law, x, tau)
    return explicit_step(system.integrator, law, system.stepped_model, x, tau, jnp.asarray(system.dt))


@in_full_precision
def forced_step(system: System, law: ForceLaw, x: State, tau: Float[Array, " nv"]) -> tuple[State, StepInfo]:
    """A step under the forces of a law at force level: they are JAX's, the motion of the bodies under them the core's."""
    start = StepInputs(FREE, system.stepped_model, x.q, x.v, tau, jnp.asarray(system.dt))
    acting = forces(law, start.model, where_impulses_act(system.integrator, start).q, x.v, x.contact)
    x_next, _ = core_step(system.integrator, None, start.at(x.q, x.v, tau + acting.tau))
    if acting.rate is not None and x.contact is not None:
        x_next = dataclasses.replace(x_next, contact=x.contact + start.dt * acting.rate)
    return x_next, explicit_info(law, start.model, x_next, impulses_of(acting, start.dt))


def _unpacked(backend: str, system: System, x: State, u, force, warm_start) -> tuple[State, StepInfo]:
    """`advance` whose report can be differentiated attribute by attribute."""
    x_next, info = advance(backend, system, x, u, force, warm_start)
    return x_next, info.unpacked()


def taken_by_core(backend: str, system: System) -> bool:
    """Whether the core takes the system's steps.

    Derivatives in reverse mode alone, and those of a fixed number of sweeps, are part of how JAX takes a step; modes that
    estimate derivatives do so from steps of an exact system.
    """
    law = system.contact
    if backend != "native" or system.mode.estimates or not acts_by_impulses(law):
        return False
    rule = derivative_rule(system, law)
    return system.smooth or (rule is not None and not rule.reverse_only)


def derivative_rule(system: System, law: ContactLaw) -> DerivativeRule | None:
    """The derivative of the system's steps; None: differentiated automatically."""
    return IMPLICIT.rule(law) if system.smooth else system.mode.rule(law)


def law_of_linearization(system: System) -> ContactLaw | None:
    """The law whose closed form in the compiled core is the system's linearisation; None where none is."""
    law = system.contact
    if system.mode.estimates or not acts_by_impulses(law):
        return None
    return differentiated_law(derivative_rule(system, law), law, system.integrator)


def _step_inputs(
    system: System, law: ContactLaw, x: State, tau: Float[Array, " nv"], warm_start: Float[Array, " m"] | None
) -> StepInputs:
    """The step to be solved, at the state before it."""
    kappa = system.mode.sharpness(system.kappa)
    kappa = None if kappa is None else kappa.astype(x.q.dtype)
    rho = jnp.asarray(system.rho, x.q.dtype) if law.relaxed else None
    return StepInputs(law, system.stepped_model, x.q, x.v, tau, jnp.asarray(system.dt), kappa, warm_start, rho)


# The backend is an argument of every compiled function: another one is another program.
step = jax.jit(advance, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def rollout(
    segment: int | None, reported: bool, backend: str, system: System, x0: State, us: Float[Array, "T nu"]
) -> tuple[State, StepInfo]:
    """The states of `System.rollout` and the reports of its steps, or the heads of these."""
    cold = jnp.zeros(row_count(system.contact, system.model), x0.q.dtype)  # every step is a function of its state and control

    def body(x, u):
        x_next, info = advance(backend, system, x, u, jnp.zeros(system.nv, u.dtype), cold)
        part = info if reported or not isinstance(info, PackedStepInfo) else info.with_report(None)
        return x_next, (x_next, part)

    def steps(x, us):
        return jax.lax.scan(body, x, us)

    if segment is None:
        _, (xs, infos) = steps(x0, us)
    else:
        count = us.shape[0] // segment
        whole = count * segment
        again = jax.checkpoint(steps, prevent_cse=False)
        x, parts = jax.lax.scan(again, x0, us[:whole].reshape(count, segment, us.shape[1]))
        first = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), parts)
        _, rest = steps(x, us[whole:])
        xs, infos = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, rest)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), x0, xs), infos


@functools.partial(jax.jit, static_argnums=0)
def reports(backend: str, system: System, xs: State, us: Float[Array, "T nu"]) -> Float[Array, "T r"]:
    """The whole reports of the steps of a rollout through the core, from all of its states."""

    def report(x: State, u: Float[Array, " nu"]) -> Any:
        info: Any = advance(backend, system, x, u, jnp.zeros(system.nv, u.dtype), None)[1]
        return info.report

    return jax.vmap(report)(jax.tree.map(lambda a: a[:-1], xs), us)


@functools.partial(jax.jit, static_argnums=(0, 1))
def linearize(
    parts: Parts,
    backend: str,
    system: System,
    x: State,
    u: Float[Array, " nu"],
    force: Float[Array, " nv"],
    warm_start: Float[Array, " m"] | None,
    adjoint: Float[Array, " n"] | None,
) -> tuple[Linearization, Bool[Array, ""]]:
    """The linearisation, and whether it lacks a part that the state needs."""
    law, complete = system.contact, jnp.zeros((), bool)
    differentiated = law_of_linearization(system) if backend == "native" and adjoint is None else None
    if acts_by_impulses(law) and (differentiated is not None or has_closed_form(law, system.mode, system.integrator)):
        start = _step_inputs(system, law, x, actuation_force(system.model, x.q, x.v, u) + force, warm_start)
        if differentiated is not None:
            slopes = force_slopes(system.model, x.q, x.v, u)
            gain = system.model.actuation if slopes is None else slopes.columns()
            return linearize_native(system.integrator, start, differentiated, gain, parts.impulse, slopes), complete
        found, solved = linearize_impulse_step(system.integrator, system.mode, start, u, adjoint, parts)
        return found, solved.solution.degenerate if parts.impulse else needs_null_space(solved)

    def after(x, u):
        return advance(backend, system, x, u, force, warm_start)

    return linearize_by_columns(after, system.model, x, u, parts.impulse), complete


@functools.partial(jax.jit, static_argnums=(0, 1))
def slopes(
    names: tuple[str, ...],
    backend: str,
    system: System,
    x: State,
    u: Float[Array, " nu"],
    force: Float[Array, " nv"],
    warm_start: Float[Array, " m"] | None,
) -> dict[str, Float[Array, "n ..."]]:
    """The derivative of the state after the step by the leaves `names` of the model."""

    def after(model: Model):
        return advance(backend, dataclasses.replace(system, model=model), x, u, force, warm_start)

    return slopes_by_columns(names, after, system.model)
