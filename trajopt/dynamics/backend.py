"""Which implementation the steps of a `System` take: the compiled core of CPUs, or JAX.

| backend | steps |
|---|---|
| `jax` | the JAX implementation: every law, integrator and device |
| `native` | the compiled core (`trajopt.native`): the same function on CPUs, for what `compiled` covers; computed in float64 |
| `auto` | `native` where it covers the system and is built for this processor, else `jax` |

The derivative by state and control of gradient modes "implicit" and "smoothed" is the core's own closed form, in
`System.linearize` and under `jax.jvp` and `jax.vjp` alike, of the state after the step and of the impulses of `StepInfo`; the
contacts' distances, points and normals move as JAX's narrow phase says. Under "smoothed" it is that of the smoothed law, of which
the core takes the step too. Explicit steps of free motion have the core's derivative in every mode, and its derivative once more
is that of the JAX implementation. So are derivatives by parameters of the model, by dt and by kappa, and other gradient modes,
at the same step.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from trajopt import native
from trajopt.dynamics.collision.narrowphase import collide_with_derivatives
from trajopt.dynamics.compiled import compile_system, pack_parameters, reason_not_covered
from trajopt.dynamics.compiled_step import (
    PackedStepInfo,
    native_linearize,
    native_linearize_impulse,
    native_step,
    packed_slope,
    report_slope,
    step_info,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.contact_geometry import contact_geometry
from trajopt.dynamics.gradients.first_order import first_order_only, is_zero
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.integrators import (
    EXPLICIT,
    acts_by_impulses,
    explicit_step,
    impulse_info,
    impulse_step,
    share_after_impulses,
    where_impulses_act,
)
from trajopt.dynamics.linearization import linearize_by_columns
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.actuation import force_slopes
from trajopt.dynamics.rigid_body.configuration import difference, integrate, integrate_jacobians
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo
from trajopt.errors import OptionError
from trajopt.names import closest

Inputs = TypeVar("Inputs")
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


def native_explicit_step(integrator: str, start: StepInputs) -> tuple[State, StepInfo]:
    """`integrators.explicit_step` of free motion and its report through the compiled core."""
    return _explicit(integrator, start)


def linearize_native(
    integrator: str, start: StepInputs, law: ContactLaw, u: Float[Array, " nu"], impulse: bool = False
) -> Linearization:
    """The linearisation of a step in closed form, through the compiled core: that of `law` (`law_linearized`).

    impulse: whether the impulse is differentiated too.
    """
    slopes = force_slopes(start.model, start.q, start.v, u)
    gain = start.model.actuation if slopes is None else slopes.columns()
    found = (
        _with_impulse(integrator, _under(law, start), gain)
        if impulse
        else _linearized(integrator, _under(law, start), gain)
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _explicit(integrator: str, start: StepInputs) -> tuple[State, PackedStepInfo]:
    return _stepped(integrator, start)


def _explicit_derivative(integrator: str, primals: Any, tangents: Any) -> Any:
    (start,), (dstart,) = primals, tangents
    x_next, info = _explicit(integrator, start)
    none = jnp.zeros(0, x_next.q.dtype)
    still = report_slope(info, none, none.reshape(0, 7), none)
    if not _by_state_alone(dstart):
        return (x_next, info), (_slope(lambda at: _explicit_in_jax(integrator, at)[0], start, dstart), still)
    A, B = _explicit_jacobian(integrator, start)
    along = _instantiated(start, dstart)
    return (x_next, info), (_ambient(start.model, x_next, A @ _tangent(start, along) + B @ along.tau), still)


_explicit.defjvp(_explicit_derivative, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _explicit_jacobian(integrator: str, start: StepInputs) -> tuple[Array, Array]:
    """A and B, by forces, of `_explicit`; what differentiates them is the JAX implementation."""
    found = _linearized(integrator, start, jnp.eye(start.model.nv, dtype=start.q.dtype))
    return found.A, found.B


def _explicit_jacobian_derivative(integrator: str, primals: Any, tangents: Any) -> Any:
    def in_jax(start: StepInputs) -> tuple[Array, Array]:
        def step(x: State, tau: Array) -> tuple[State, StepInfo]:
            return _explicit_in_jax(integrator, dataclasses.replace(start, q=x.q, v=x.v, tau=tau))

        found = linearize_by_columns(step, start.model, State(start.q, start.v), start.tau)
        return found.A, found.B

    return _explicit_jacobian(integrator, *primals), _slope(in_jax, *primals, *tangents)


_explicit_jacobian.defjvp(_explicit_jacobian_derivative, symbolic_zeros=True)


def _explicit_in_jax(integrator: str, start: StepInputs) -> tuple[State, StepInfo]:
    return explicit_step(integrator, start.law, start.model, State(start.q, start.v), start.tau, start.dt)


def _slope(f: Callable[[StepInputs], Any], start: StepInputs, dstart: StepInputs) -> Any:
    """That of f along those leaves of `start` that move."""
    moving = [not is_zero(slope) for slope in jax.tree.leaves(dstart, is_leaf=_symbolic)]
    leaves, structure = jax.tree.flatten(start)

    def of_moving(*moved: Array) -> Any:
        rest = iter(moved)
        given = [next(rest) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        return f(jax.tree.unflatten(structure, given))

    slopes = jax.tree.leaves(_instantiated(start, dstart))
    at, along = (tuple(leaf for leaf, moves in zip(part, moving, strict=True) if moves) for part in (leaves, slopes))
    return jax.jvp(of_moving, at, along)[1]


def _in_jax(integrator: str, rule: DerivativeRule | None, start: StepInputs) -> tuple[State, StepInfo]:
    x_next, result = impulse_step(integrator, start, rule)
    return x_next, impulse_info(result)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _with_derivative(integrator: str, rule: DerivativeRule, start: StepInputs) -> tuple[State, PackedStepInfo]:
    return _stepped(integrator, start)


def _derivative(integrator: str, rule: DerivativeRule, primals: Any, tangents: Any) -> Any:
    (start,), (dstart,) = first_order_only(rule.name, primals), tangents
    along = _instantiated(start, dstart)
    law = law_linearized(rule, start.law)
    if law is None or not _by_state_alone(dstart):
        x_next, info = _with_derivative(integrator, rule, start)
        # JAX's solve begins at the core's impulses, so that the derivative is that of the solution which the core has found.
        begin = jax.lax.stop_gradient(info.impulse)
        at, along = (dataclasses.replace(x, warm_start=w) for x, w in ((start, begin), (along, jnp.zeros_like(begin))))
        _, slopes = jax.jvp(functools.partial(_in_jax, integrator, rule), (at,), (along,))
        return (x_next, info), (slopes[0], packed_slope(info, slopes[1]))
    every = jnp.eye(start.model.nv, dtype=start.q.dtype)
    found = _linearized(integrator, _under(law, start), every)
    if law != start.law:
        found = _at_own_step(integrator, start, found)
    dx = _tangent(start, along)
    # A call of its own: XLA leaves it out of programs in which nobody asks for the report's derivative.
    impulse = _with_impulse(integrator, _under(law, start), every).outputs["impulse"]
    packed: Any = found.info
    no_friction = jnp.zeros(packed.layout[0], dx.dtype)
    pushed, contacts = impulse.C @ dx + impulse.D @ along.tau, _contacts_moved(integrator, start, dx)
    report = report_slope(packed, pushed, contacts, no_friction)
    return (found.x_next, packed), (_ambient(start.model, found.x_next, found.A @ dx + found.B @ along.tau), report)


def _contacts_moved(integrator: str, start: StepInputs, dx: Float[Array, " n"]) -> Float[Array, "nc 7"]:
    """How distance, point and normal of the reported contacts move with dx = [dq, dv]; nothing is solved for that."""
    model, nv = start.model, start.model.nv
    inputs, dq = where_impulses_act(integrator, start), dx[:nv]
    if integrator == "moreau":
        half = 0.5 * start.dt
        there, there_by_v = integrate_jacobians(model, start.q, half * start.v)
        dq = there @ dq + half * (there_by_v @ dx[nv:])
    kin = kinematics(model, inputs.q)
    candidates, slopes = collide_with_derivatives(model, kin, start.law.pair_limit)
    rows = assemble(inputs, kin, candidates)
    return contact_geometry(model, kin, rows, slopes[rows.selected]).moved(model, dq)


_with_derivative.defjvp(_derivative, symbolic_zeros=True)


def _under(law: ContactLaw, start: StepInputs) -> StepInputs:
    return start if law == start.law else dataclasses.replace(start, law=law)


def _at_own_step(integrator: str, start: StepInputs, other: Linearization) -> Linearization:
    """The step of `start`, with d v+ and d impulse of another law's linearisation `other`, and q+ moved at its own v+."""
    model, nv = start.model, start.model.nv
    x_next, info = _stepped(integrator, start)
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


def _stepped(integrator: str, start: StepInputs) -> tuple[State, PackedStepInfo]:
    """The state after a step of the core, and its report."""
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa)
    y = native_step(compiled, start.model, parameters, start.q, start.v, start.tau, start.dt)
    return State(y.q, y.v), step_info(compiled, y)


def _linearized(integrator: str, start: StepInputs, gain: Float[Array, "nv k"]) -> Linearization:
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa)
    y, A, B = native_linearize(compiled, start.model, parameters, start.q, start.v, start.tau, start.dt, gain)
    return Linearization(State(y.q, y.v), A, B, step_info(compiled, y), {})


def _with_impulse(integrator: str, start: StepInputs, gain: Float[Array, "nv k"]) -> Linearization:
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.kappa)
    at = (start.q, start.v, start.tau, start.dt, gain)
    y, A, B, impulse = native_linearize_impulse(compiled, start.model, parameters, *at)
    return Linearization(State(y.q, y.v), A, B, step_info(compiled, y), {}, None, {"impulse": impulse})


def _tangent(start: StepInputs, along: StepInputs) -> Float[Array, " n"]:
    """The motion `along` of q, a slope of its numbers, and of v in tangent coordinates."""
    _, dq = jax.jvp(lambda q: difference(start.model, start.q, q), (start.q,), (along.q,))
    return jnp.concatenate([dq, along.v])


def _ambient(model: Model, x: State, dx: Float[Array, " n"]) -> State:
    """The slope of x's numbers in a motion dx in tangent coordinates."""
    dq, dv = jnp.split(dx, 2)
    return State(jax.jvp(lambda d: integrate(model, x.q, d), (jnp.zeros_like(dq),), (dq,))[1], dv)


def _symbolic(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _by_state_alone(dstart: StepInputs) -> bool:
    """Whether q, v and tau alone are differentiated by."""
    others = (dstart.model, dstart.dt, dstart.kappa)
    return all(is_zero(slope) for slope in jax.tree.leaves(others, is_leaf=_symbolic))


def _instantiated(primals: Inputs, tangents: Inputs) -> Inputs:
    """The tangents with zeros in the place of symbolic ones."""

    def filled(slope: Any) -> Any:
        if not _symbolic(slope):
            return slope
        integer = slope.dtype == jax.dtypes.float0
        return (np if integer else jnp).zeros(slope.shape, slope.dtype)

    slopes = jax.tree.leaves(tangents, is_leaf=_symbolic)
    return jax.tree.unflatten(jax.tree.structure(primals), [filled(slope) for slope in slopes])
