r"""Time-stepping schemes. With the acceleration a(q, v) of all forces, step h and x (+) dx the motion on the manifold:

| name | scheme | order |
|---|---|---|
| `semi-implicit` | v+ = v + h a(q, v), q+ = q (+) h v+ | 1 |
| `moreau` | q_m = q (+) h/2 v, v+ = v + h a(q_m, v), q+ = q_m (+) h/2 v+ (Smoothed, Alg. 2) | 1; 2 where a depends on q alone |
| `euler` | v+ = v + h a(q, v), q+ = q (+) h v | 1 |
| `rk4` | the classical Runge-Kutta method in coordinates theta of q (+) theta | 4 |

The first two take impulses: under a law at velocity level, h a is the momentum balance with the impulses of the contact
problem, set up at q or q_m. All four take forces that are explicit functions of the state.

Ball and free joints turn in the body frame: with q (+) theta, d theta/dt = J_r^-1(theta) omega (Munthe-Kaas), so that `rk4`
keeps its order on rotations and quaternions stay of unit length. Smoothed, eq. 16, adds h (v + v+) / 2 at once; two half
motions are the same but for rotations, where they differ by O(h^3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.forces import Forces, forces
from trajopt.dynamics.contact.implicit import VelocityStep, row_count
from trajopt.dynamics.contact.law import ContactLaw, ForceLaw, Law, NoContact
from trajopt.dynamics.contact.modes import ContactMode, contact_step
from trajopt.dynamics.contact.ncp import SEPARATING, SLIDING, STICKING
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.crba import forward_dynamics
from trajopt.dynamics.joints import integrate
from trajopt.dynamics.lie import right_jacobian_inverse
from trajopt.dynamics.model import Model
from trajopt.dynamics.spatial import rotate
from trajopt.dynamics.state import ContactInfo, State, StepInfo
from trajopt.errors import OptionError
from trajopt.names import closest
from trajopt.result import Status

WITH_IMPULSES = ("semi-implicit", "moreau")
EXPLICIT = ("euler", "rk4")
INTEGRATORS = (*WITH_IMPULSES, *EXPLICIT)
# Largest h lambda for which d/dt m = -lambda m does not grow.
_STABILITY = {"semi-implicit": 2.0, "moreau": 2.0, "euler": 2.0, "rk4": 2.785}


def check_integrator(integrator: str, law: Law, dt) -> None:
    """Raise `OptionError` for an unknown integrator, one that cannot treat the law, or a step that the law cannot take."""
    if integrator not in INTEGRATORS:
        raise OptionError(f"integrator is '{integrator}'{closest(str(integrator), INTEGRATORS)}")
    if integrator in EXPLICIT and not (isinstance(law, ForceLaw) or _is_free(law)):
        reason = (
            "with limits or dry joint friction is solved for impulses"
            if isinstance(law, NoContact)
            else "is solved for impulses over a step"
        )
        raise OptionError(
            f"integrator '{integrator}' needs forces that are functions of the state, but {type(law).__name__} {reason}; "
            f"use integrator {' or '.join(map(repr, WITH_IMPULSES))}, or CompliantContact(), SpringDamperContact() or "
            "NoContact()"
        )
    known = isinstance(dt, int | float | np.number | np.ndarray | jax.Array) and not isinstance(dt, jax.core.Tracer)
    if isinstance(law, ForceLaw) and law.carries_state and known:
        rate, largest = law.relaxation_rate, _STABILITY[integrator]
        if np.ndim(dt) == 0 and float(dt) * rate > largest:
            raise OptionError(
                f"dt is {float(dt):g}, but the tangential deformation of {type(law).__name__} decays at "
                f"tangential_stiffness / tangential_damping = {rate:g} per second: integrator '{integrator}' is unstable above "
                f"dt = {largest / rate:.3g}; lower dt or raise tangential_damping"
            )


def _is_free(law: Law) -> bool:
    return isinstance(law, NoContact) and not law.limits and not law.joint_friction


def takes_impulses(integrator: str, law: Law) -> bool:
    """Whether a step solves for impulses (`impulse_step`) or evaluates forces (`explicit_step`)."""
    return not isinstance(law, ForceLaw) and integrator in WITH_IMPULSES


def reported_rows(law: Law, model: Model) -> int:
    """Length of `StepInfo.impulse`."""
    if isinstance(law, ContactLaw):
        return row_count(law, model)
    assert isinstance(law, ForceLaw)
    dry = len(model.topology.friction_dofs) if law.joint_friction else 0
    return 3 * law.contact_rows(model) + law.limit_rows(model) + dry


def midpoint(integrator: str, model: Model, q, v, dt) -> tuple[Float[Array, " nq"], Float[Array, ""]]:
    """(configuration where the impulses act, share of dt that is left after it), of a scheme with impulses."""
    if integrator == "moreau":
        return integrate(model, q, (0.5 * dt) * v), 0.5 * dt
    return q, dt


def impulse_step(
    integrator: str,
    law: ContactLaw,
    model: Model,
    x: State,
    tau: Float[Array, " nv"],
    dt,
    init,
    mode: ContactMode | None = None,
    kappa=None,
) -> tuple[State, VelocityStep]:
    """One step under a law at velocity level. init: warm start (m,) of its solve.

    mode: which derivative, None for the exact one. kappa: sharpness of smoothed contact, None for the law's own.
    """
    q, rest = midpoint(integrator, model, x.q, x.v, dt)
    mode = ContactMode() if mode is None else mode
    q, result = contact_step(mode, law, model, q, x.v, tau, dt, init, kappa)
    return State(integrate(model, q, rest * result.velocity), result.velocity, x.contact), result


def impulse_info(step: VelocityStep) -> StepInfo:
    """The report of a step that was solved for impulses."""
    rows, solution = step.rows, step.solution
    nc = rows.mu.shape[0]
    impulse = step.impulse[: 3 * nc].reshape(nc, 3)
    velocity = solution.velocity[: 3 * nc].reshape(nc, 3)
    mode = solution.modes.cone
    at_rest = jnp.max(jnp.abs(velocity), -1, initial=0.0) <= 1e-9 * jnp.maximum(
        1e-3, jnp.max(jnp.abs(velocity), initial=0.0)
    )
    contacts = ContactInfo(
        rows.contacts.distance, rows.contacts.point, rows.frames, impulse, mode,
        (mode == SEPARATING) & at_rest & rows.exists[:nc], rows.mu,
        rows.contacts.node1, rows.contacts.node2, rows.contacts.pair,
    )  # fmt: skip
    return StepInfo(
        contacts, step.impulse, solution.residual, solution.iterations, solution.fallbacks, solution.status,
        rows.dropped, rows.dropped_pairs, solution.degenerate,
    )  # fmt: skip


# -- explicit steps ----------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rates:
    """Time derivatives at one state, and the forces they come from (None without contact law)."""

    v: Array
    contact: Array | None
    forces: Forces | None


def explicit_step(
    integrator: str, law: Law, model: Model, x: State, tau: Float[Array, " nv"], dt
) -> tuple[State, StepInfo]:
    """One step of explicit forces: under a law at force level, or of free motion. Differentiable, forward and reverse."""

    def rates(q, v, contact) -> _Rates:
        if not isinstance(law, ForceLaw):
            return _Rates(forward_dynamics(model, q, v, tau), None, None)
        acting = forces(law, model, q, v, contact)
        return _Rates(forward_dynamics(model, q, v, tau + acting.tau), acting.rate, acting)

    if integrator == "rk4":
        return _runge_kutta(law, model, x, dt, rates)
    q, rest = midpoint(integrator, model, x.q, x.v, dt)
    slope = rates(q, x.v, x.contact)
    v = x.v + dt * slope.v
    q = integrate(model, q, rest * (x.v if integrator == "euler" else v))
    x_next = State(q, v, None if x.contact is None else x.contact + dt * slope.contact)
    return x_next, _explicit_info(law, model, x_next, _impulses(slope.forces, dt))


def _runge_kutta(law: Law, model: Model, x: State, dt, rates: Callable[..., _Rates]) -> tuple[State, StepInfo]:
    """The four stages as a scan, so that the dynamics are compiled once."""
    dtype = x.q.dtype
    ahead, weights = (jnp.asarray(c, dtype) for c in ((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)))
    step = jnp.asarray(dt, dtype)
    zero = (jnp.zeros_like(x.v), jnp.zeros_like(x.v), None if x.contact is None else jnp.zeros_like(x.contact))

    def stage(carry, table):
        last, total = carry
        share, weight = table
        theta, dv, dcontact = jax.tree.map(lambda k: share * step * k, last)
        v = x.v + dv
        contact = None if x.contact is None else x.contact + dcontact
        slope = rates(integrate(model, x.q, theta), v, contact)
        now = (tangent_rate(model, theta, v), slope.v, slope.contact)
        total = jax.tree.map(lambda sum_, k: sum_ + weight * k, total, now)
        return (now, total), _impulses(slope.forces, weight * step)

    (_, total), parts = jax.lax.scan(stage, (zero, zero), (ahead, weights))
    theta, dv, dcontact = jax.tree.map(lambda k: step * k, total)
    x_next = State(integrate(model, x.q, theta), x.v + dv, None if x.contact is None else x.contact + dcontact)
    if parts is not None:
        # Impulses add up over the stages, everything else is that of the first.
        total_impulse = {name: jnp.sum(parts[name], 0) for name in ("contact", "limit", "dry")}
        parts = jax.tree.map(lambda stacked: stacked[0], parts) | total_impulse
    return x_next, _explicit_info(law, model, x_next, parts)


def tangent_rate(model: Model, theta: Float[Array, " nv"], v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """d theta/dt of a motion q (+) theta at the velocity v; |theta| < 2 pi in every ball joint."""
    starts = model.topology.ball_starts
    if not starts:
        return v
    ball = np.array([start for _, start in starts])[:, None] + np.arange(3)
    return v.at[ball].set(rotate(right_jacobian_inverse(theta[ball]), v[ball]))


def _impulses(acting: Forces | None, dt) -> dict[str, Any] | None:
    if acting is None:
        return None
    return {"contact": dt * acting.contact, "limit": dt * acting.limit, "dry": dt * acting.dry, "at": acting}


def _explicit_info(law: Law, model: Model, x_next: State, parts: dict[str, Any] | None) -> StepInfo:
    dtype = x_next.q.dtype
    if parts is None or not isinstance(law, ForceLaw):
        none, none3, index = jnp.zeros(0, dtype), jnp.zeros((0, 3), dtype), jnp.zeros(0, int)
        contacts = ContactInfo(
            none, none3, jnp.zeros((0, 3, 3), dtype), none3, index, jnp.zeros(0, bool), none, index, index, index
        )
        return _solved(x_next, contacts, none, jnp.zeros((), int), jnp.zeros((), int))
    acting: Forces = parts["at"]
    index = acting.kept
    chosen = acting.candidates[index]
    frame = contact_frames(chosen.normal)
    impulse = jnp.sum(frame * parts["contact"][acting.places][:, :, None], 1)
    pushing, sliding = acting.point.normal[index] > 0, acting.point.sliding[index]
    mode = jnp.where(pushing, jnp.where(sliding, SLIDING, STICKING), SEPARATING)
    contacts = ContactInfo(
        chosen.distance, chosen.point, frame, impulse, mode, jnp.zeros(index.shape, bool), acting.friction[index],
        chosen.node1, chosen.node2, chosen.pair,
    )  # fmt: skip
    rows = jnp.concatenate([impulse.reshape(-1), parts["limit"], parts["dry"]])
    return _solved(x_next, contacts, rows, acting.dropped, acting.dropped_pairs)


def _solved(x_next: State, contacts: ContactInfo, impulse, dropped, dropped_pairs) -> StepInfo:
    """The report of a step in which nothing had to be solved."""
    zero = jnp.zeros((), jnp.int32)
    choose: Callable[..., Any] = Status.where
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x_next)]))
    status = choose(finite, Status.solved, Status.non_finite)
    residual = jnp.zeros((), x_next.q.dtype)
    return StepInfo(contacts, impulse, residual, zero, zero, status, dropped, dropped_pairs, jnp.zeros((), bool))
