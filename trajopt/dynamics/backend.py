"""Which implementation the steps of a `System` take: the compiled core of CPUs, or JAX.

| backend | steps |
|---|---|
| `jax` | the JAX implementation: every law, integrator and device |
| `native` | the compiled core (`trajopt.native`): the same function on CPUs, for what `compiled` covers; computed in float64 |
| `auto` | `native` where it covers the system and is built for this processor, else `jax` |

The derivative by state and control of gradient modes "implicit" and "smoothed" is the core's own closed form, in
`System.linearize` and under `jax.jvp` and `jax.vjp` alike, of the state after the step and of the impulses of `StepInfo`; the
contacts' distances, points and normals move as JAX's narrow phase says. Under "smoothed" it is that of the smoothed law, of which
the core takes the step too. Derivatives by parameters of the model, by dt and by kappa are those of the JAX implementation at the
same step, and so are other gradient modes. Smooth steps have derivatives of every order, in every mode (`smooth_step`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt import native
from trajopt.dynamics.collision.narrowphase import collide_with_derivatives
from trajopt.dynamics.compiled import reason_not_covered
from trajopt.dynamics.compiled_slopes import (
    ambient_slope,
    by_state_alone,
    instantiated,
    linearized,
    stepped,
    tangent_motion,
    with_impulse,
)
from trajopt.dynamics.compiled_step import (
    PackedStepInfo,
    packed_slope,
    report_slope,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.contact_geometry import contact_geometry
from trajopt.dynamics.gradients.first_order import first_order_only
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.integrators import (
    EXPLICIT,
    acts_by_impulses,
    impulse_info,
    impulse_step,
    share_after_impulses,
    where_impulses_act,
)
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.actuation import force_slopes
from trajopt.dynamics.rigid_body.configuration import integrate_jacobians
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo
from trajopt.errors import OptionError
from trajopt.names import closest

BACKENDS = ("auto", "native", "jax")
VARIABLE = "TRAJOPT_BACKEND"  # environment variable: what "auto" becomes
# The dictionary behind os.environ, which answers for a variable that is not set by two exceptions: 6 us of a direct call.
_variables: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
_KEY, _AUTO, _NATIVE = os.environ.encodekey(VARIABLE), os.environ.encodevalue("auto"), os.environ.encodevalue("native")


def environment() -> tuple[str | None, ...]:
    """What of the process's surroundings the choice of a backend depends on."""
    return os.environ.get(VARIABLE), os.environ.get(native.ISA_VARIABLE), jax.default_backend()


def resolve_backend(asked: str, model: Model, law: Law, integrator: str) -> tuple[str, str]:
    """("native" or "jax", why not the compiled core: empty where it is used or nobody asked for it).

    `asked` is one of `BACKENDS`; "auto" leaves the choice to the environment variable TRAJOPT_BACKEND. Raises `OptionError` for
    another name, and where "native" is asked for and does not cover the system.
    """
    if asked not in BACKENDS:
        raise OptionError(f"backend is {asked!r}{closest(str(asked), BACKENDS)}")
    wanted = os.environ.get(VARIABLE, "auto") if asked == "auto" else asked
    if wanted not in BACKENDS:
        raise OptionError(f"{VARIABLE} is '{wanted}'{closest(wanted, BACKENDS)}")
    if wanted == "jax":
        return "jax", ""
    reason = _reason(model, law, integrator)
    if reason is not None and wanted == "native":
        raise OptionError(f"backend is 'native', but {reason}; use backend='auto' or 'jax'")
    if reason is not None and reason == native.reason() and native.missing():
        _say_what_it_costs(reason)
    return ("native", "") if reason is None else ("jax", reason)


def asks_for_core(asked: str) -> bool:
    """Whether the core takes the steps of a system for which `resolve_backend` has found it to, as the environment is now.

    One variable is looked at: this is part of what a direct call costs. The instruction set of a compiled program stays its own.
    """
    return asked == "native" or _variables.get(_KEY, _AUTO) in (_AUTO, _NATIVE)


@functools.cache
def _say_what_it_costs(reason: str) -> None:
    """Once in a process."""
    warnings.warn(
        f"steps are taken by JAX, ten to a hundred times slower than by the compiled core: {reason}. "
        f"{VARIABLE}=jax asks for JAX and says nothing",
        stacklevel=5,
    )


def _reason(model: Model, law: Law, integrator: str) -> str | None:
    if jax.default_backend() != "cpu":
        return f"the compiled core is for CPUs, and JAX's device is a {jax.default_backend()}"
    return reason_not_covered(model, law, integrator, model.mass.dtype)


# -- steps -------------------------------------------------------------------------------------------------------------


def native_impulse_step(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    """`integrators.impulse_step` and its report through the compiled core, with the derivative of `rule`."""
    if rule is None or rule.reverse_only:  # such a derivative is part of how the JAX implementation takes the step
        return _in_jax(integrator, rule, start)
    return _with_derivative(integrator, rule, start)


def linearize_native(
    integrator: str, start: StepInputs, law: ContactLaw, u: Float[Array, " nu"], impulse: bool = False
) -> Linearization:
    """The linearisation of a step in closed form, through the compiled core: that of `law` (`law_linearized`).

    impulse: whether the impulse is differentiated too.
    """
    slopes = force_slopes(start.model, start.q, start.v, u)
    gain = start.model.actuation if slopes is None else slopes.columns()
    found = (
        with_impulse(integrator, _under(law, start), gain)
        if impulse
        else linearized(integrator, _under(law, start), gain)
    )
    if law != start.law:
        found = _at_own_step(integrator, start, found)
    if slopes is None:
        return found
    A, B = slopes.chained(found.A, found.B)
    outputs = {name: OutputSlope(*slopes.chained(y.C, y.D)) for name, y in found.outputs.items()}
    return dataclasses.replace(found, A=A, B=B, outputs=outputs)


def law_of_linearization(mode: GradientMode, law: Law, integrator: str) -> ContactLaw | None:
    """The law whose closed form in the compiled core is the mode's linearisation of a step under `law`; None where none is."""
    if mode.estimates or not acts_by_impulses(law):
        return None
    if integrator in EXPLICIT or mode.has_closed_form:  # free motion is smooth: every mode's derivative is the exact one
        return law
    return law_linearized(mode.rule(law), law)


def calls_directly(law: Law, mode: GradientMode, integrator: str) -> TypeGuard[ContactLaw]:
    """Whether a system that the core covers is one whose steps and derivative need no more than the core (`direct`)."""
    if mode.estimates or not acts_by_impulses(law):
        return False
    rule = mode.rule(law)
    return integrator in EXPLICIT or not (rule is None or rule.reverse_only)


def law_linearized(rule: DerivativeRule | None, law: ContactLaw) -> ContactLaw | None:
    """The law whose A and B of the compiled core are the derivative of `rule` in a step under `law`; None where none is."""
    other = None if rule is None else rule.differentiated_law(law)
    return None if other is None or other.not_compiled is not None else other


def _in_jax(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    x_next, result = impulse_step(integrator, start, rule)
    return x_next, impulse_info(result)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _with_derivative(integrator: str, rule: DerivativeRule, start: StepInputs) -> tuple[State, PackedStepInfo]:
    return stepped(integrator, start)


def _derivative(integrator: str, rule: DerivativeRule, primals: Any, tangents: Any) -> Any:
    (start,), (dstart,) = first_order_only(rule.name, primals), tangents
    along = instantiated(start, dstart)
    law = law_linearized(rule, start.law)
    if law is None or not by_state_alone(dstart):
        x_next, info = _with_derivative(integrator, rule, start)
        # JAX's solve begins at the core's impulses, so that the derivative is that of the solution which the core has found.
        begin = jax.lax.stop_gradient(info.impulse)
        at, along = (dataclasses.replace(x, warm_start=w) for x, w in ((start, begin), (along, jnp.zeros_like(begin))))
        _, slopes = jax.jvp(functools.partial(_in_jax, integrator, rule), (at,), (along,))
        return (x_next, info), (slopes[0], packed_slope(info, slopes[1]))
    every = jnp.eye(start.model.nv, dtype=start.q.dtype)
    found = linearized(integrator, _under(law, start), every)
    if law != start.law:
        found = _at_own_step(integrator, start, found)
    dx = tangent_motion(start, along)
    # A call of its own: XLA leaves it out of programs in which nobody asks for the report's derivative.
    impulse = with_impulse(integrator, _under(law, start), every).outputs["impulse"]
    packed: Any = found.info
    no_friction = jnp.zeros(packed.layout[0], dx.dtype)
    pushed, contacts = impulse.C @ dx + impulse.D @ along.tau, _contacts_moved(integrator, start, dx)
    report = report_slope(packed, pushed, contacts, no_friction)
    return (found.x_next, packed), (ambient_slope(start.model, found.x_next, found.A @ dx + found.B @ along.tau), report)


def _contacts_moved(integrator: str, start: StepInputs, dx: Float[Array, " n"]) -> Float[Array, "nc 7"]:
    """How distance, point and normal of the reported contacts move with dx = [dq, dv]; nothing is solved for that."""
    model, nv = start.model, start.model.nv
    inputs, dq = where_impulses_act(integrator, start), dx[:nv]
    if integrator == "moreau":
        half = 0.5 * start.dt
        there, there_by_v = integrate_jacobians(model, start.q, half * start.v)
        dq = there @ dq + half * (there_by_v @ dx[nv:])
    kin = kinematics(model, inputs.q)
    candidates, slopes = collide_with_derivatives(model, kin, start.law.pair_limit, start.travel)
    rows = assemble(inputs, kin, candidates)
    return contact_geometry(model, kin, rows, slopes[rows.selected]).moved(model, dq)


_with_derivative.defjvp(_derivative, symbolic_zeros=True)


def _under(law: ContactLaw, start: StepInputs) -> StepInputs:
    return start if law == start.law else dataclasses.replace(start, law=law)


def _at_own_step(integrator: str, start: StepInputs, other: Linearization) -> Linearization:
    """The step of `start`, with d v+ and d impulse of another law's linearisation `other`, and q+ moved at its own v+."""
    model, nv = start.model, start.model.nv
    x_next, info = stepped(integrator, start)
    rest = share_after_impulses(integrator, start.dt)
    by_q, by_dq = integrate_jacobians(model, start.q, rest * x_next.v)
    onward = jnp.concatenate([by_q, jnp.zeros_like(by_q)], 1)
    if integrator == "moreau":
        there, there_by_v = integrate_jacobians(model, start.q, rest * start.v)
        onward = by_q @ jnp.concatenate([there, rest * there_by_v], 1)
    below, pushed = other.A[nv:], other.B[nv:]
    A = jnp.concatenate([onward + rest * (by_dq @ below), below])
    B = jnp.concatenate([rest * (by_dq @ pushed), pushed])
    return dataclasses.replace(other, x_next=x_next, A=A, B=B, info=info)
