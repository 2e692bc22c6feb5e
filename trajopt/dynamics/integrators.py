r"""Time-stepping schemes. With the acceleration a(q, v) of all forces, step h and x (+) dx the motion on the manifold:

| name | scheme | order |
|---|---|---|
| `semi-implicit` | v+ = v + h a(q, v), q+ = q (+) h v+ | 1 |
| `moreau` | q_m = q (+) h/2 v, v+ = v + h a(q_m, v), q+ = q_m (+) h/2 v+ | 1; 2 where a is that of q alone, and for a free body |
| `euler` | v+ = v + h a(q, v), q+ = q (+) h v | 1 |
| `rk4` | the classical Runge-Kutta method in coordinates theta of q (+) theta | 4 |

The first two take the gyroscopic torque of free and ball joints as its mean over the step (`rigid_body.gyroscopic`), so that fast
rotations keep their energy. They take impulses: under a law at velocity level, h a is the momentum balance with the impulses of
the contact problem, set up at q or q_m (Smoothed, Alg. 2). All four take forces that are explicit functions of the state.

Ball and free joints turn in the body frame: with q (+) theta, d theta/dt = J_r^-1(theta) omega (Munthe-Kaas), so that `rk4`
keeps its order on rotations and quaternions stay of unit length. Smoothed, eq. 16, adds h (v + v+) / 2 at once; two half
motions are the same but for rotations, where they differ by O(h^3).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.laws.forces import Forces, forces, gives_forces
from trajopt.dynamics.contact.ncp import SEPARATING, SLIDING, STICKING
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.contact.step import DerivativeRule, VelocityStep, step
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.crba import forward_dynamics
from trajopt.dynamics.rigid_body.gyroscopic import gyroscopic_correction
from trajopt.dynamics.rigid_body.lie import right_jacobian_inverse
from trajopt.dynamics.rigid_body.spatial import rotate
from trajopt.dynamics.state import ContactInfo, State, StepInfo
from trajopt.errors import OptionError
from trajopt.names import closest
from trajopt.result import Status

WITH_IMPULSES = ("semi-implicit", "moreau")
EXPLICIT = ("euler", "rk4")
INTEGRATORS = (*WITH_IMPULSES, *EXPLICIT)
# Largest h lambda for which d/dt m = -lambda m does not grow.
_STABILITY = {"semi-implicit": 2.0, "moreau": 2.0, "euler": 2.0, "rk4": 2.785}
_TIED = 1e-9  # constraint velocity that counts as none, relative to the fastest slip, and to 1e-3 m/s at least


def check_integrator(integrator: str, law: Law, dt: Any, model: Model) -> None:
    """Raise `OptionError` for an unknown integrator, one that cannot treat law and model, or a step that the law cannot take."""
    if integrator not in INTEGRATORS:
        raise OptionError(f"integrator is '{integrator}'{closest(str(integrator), INTEGRATORS)}")
    if integrator in EXPLICIT and model.topology.constrained:
        raise OptionError(
            f"integrator '{integrator}' evaluates forces alone, but model '{model.name}' has equality constraints, whose "
            "impulses are solved for; use integrator 'semi-implicit' or 'moreau'"
        )
    if integrator in EXPLICIT and law.not_explicit is not None:
        raise OptionError(
            f"integrator '{integrator}' needs forces that are functions of the state, but {law.name} {law.not_explicit}; "
            f"use integrator {' or '.join(map(repr, WITH_IMPULSES))}, or CompliantContact(), SpringDamperContact() or "
            "NoContact()"
        )
    known = isinstance(dt, int | float | np.number | np.ndarray | jax.Array) and not isinstance(dt, jax.core.Tracer)
    largest = law.largest_step(_STABILITY[integrator])
    if largest is not None and known and np.ndim(dt) == 0 and float(dt) > largest:
        raise OptionError(
            f"dt is {float(dt):g}, but the tangential deformation of {law.name} decays at tangential_stiffness / "
            f"tangential_damping = {_STABILITY[integrator] / largest:g} per second: integrator '{integrator}' is unstable above "
            f"dt = {largest:.3g}; lower dt or raise tangential_damping"
        )


def acts_by_impulses(law: Law) -> TypeGuard[ContactLaw]:
    """Whether a law acts at the level of velocities; free motion counts as such a law, whatever the integrator."""
    return law.solves_impulses


def takes_impulses(law: Law, integrator: str) -> TypeGuard[ContactLaw]:
    """Whether a step solves for impulses (`impulse_step`) or evaluates forces (`explicit_step`)."""
    return law.solves_impulses and integrator in WITH_IMPULSES


def share_after_impulses(integrator: str, dt: Float[Array, ""]) -> Float[Array, ""]:
    """What is left of the step dt at the configuration where the impulses act, of a scheme with impulses."""
    return 0.5 * dt if integrator == "moreau" else dt


def where_impulses_act(integrator: str, start: StepInputs) -> StepInputs:
    """The step that is solved, at the configuration where its impulses act, from that at the start."""
    if integrator != "moreau":
        return start
    return dataclasses.replace(start, q=integrate(start.model, start.q, (0.5 * start.dt) * start.v))


@in_full_precision
def impulse_step(integrator: str, start: StepInputs, rule: DerivativeRule | None) -> tuple[State, VelocityStep]:
    """One step under a law at velocity level, with the derivative of `rule`; `start` is at the state before the step."""
    q, result = step(where_impulses_act(integrator, start), rule)
    rest = share_after_impulses(integrator, start.dt)
    return State(integrate(start.model, q, rest * result.velocity), result.velocity), result


def impulse_info(result: VelocityStep) -> StepInfo:
    """The report of a step that was solved for impulses."""
    rows, solution = result.rows, result.solution
    nc = rows.mu.shape[0]
    impulse = result.impulse[: 3 * nc].reshape(nc, 3)
    velocity = solution.velocity[: 3 * nc].reshape(nc, 3)
    mode = solution.modes.cone
    # Normal velocities, which a distant contact's gap rate phi / dt is part of, say nothing of how fast bodies move here.
    slip = jnp.max(jnp.abs(velocity[:, :2]), initial=0.0)
    at_rest = jnp.max(jnp.abs(velocity), -1, initial=0.0) <= _TIED * jnp.maximum(1e-3, slip)
    contacts = ContactInfo(
        rows.contacts.distance, rows.contacts.point, rows.frames, impulse, mode,
        (mode == SEPARATING) & at_rest & rows.exists[:nc], rows.mu,
        rows.contacts.node1, rows.contacts.node2, rows.contacts.pair,
    )  # fmt: skip
    return StepInfo(
        contacts, result.impulse, solution.residual, solution.iterations, solution.fallbacks, solution.status,
        rows.dropped, rows.dropped_pairs, solution.degenerate, jnp.zeros((), jnp.int32), rows.push_out_dropped,
    )  # fmt: skip


# -- explicit steps ----------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rates:
    """Time derivatives at one state, and the forces they come from (None without contact law)."""

    v: Array
    contact: Array | None
    forces: Forces | None


@in_full_precision
def explicit_step(
    integrator: str, law: Law, model: Model, x: State, tau: Float[Array, " nv"], dt: Float[Array, ""]
) -> tuple[State, StepInfo]:
    """One step of explicit forces: under a law at force level, or of free motion. Differentiable, forward and reverse."""

    def rates(q, v, contact) -> _Rates:
        force = tau if integrator in EXPLICIT else tau - gyroscopic_correction(model, q, v, dt)
        if not gives_forces(law):
            return _Rates(forward_dynamics(model, q, v, force), None, None)
        acting = forces(law, model, q, v, contact)
        return _Rates(forward_dynamics(model, q, v, force + acting.tau), acting.rate, acting)

    if integrator == "rk4":
        return _runge_kutta(law, model, x, dt, rates)
    q, rest = x.q, dt
    if integrator == "moreau":
        q, rest = integrate(model, x.q, (0.5 * dt) * x.v), 0.5 * dt
    slope = rates(q, x.v, x.contact)
    v = x.v + dt * slope.v
    q = integrate(model, q, rest * (x.v if integrator == "euler" else v))
    moved = x.contact if slope.contact is None or x.contact is None else x.contact + dt * slope.contact
    x_next = State(q, v, moved)
    return x_next, explicit_info(law, model, x_next, impulses_of(slope.forces, dt))


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
        return (now, total), impulses_of(slope.forces, weight * step)

    (_, total), parts = jax.lax.scan(stage, (zero, zero), (ahead, weights))
    theta, dv, dcontact = jax.tree.map(lambda k: step * k, total)
    x_next = State(integrate(model, x.q, theta), x.v + dv, None if x.contact is None else x.contact + dcontact)
    if parts is not None:
        # Impulses add up over the stages, everything else is that of the first.
        total_impulse = {name: jnp.sum(parts[name], 0) for name in ("contact", "limit", "dry")}
        parts = jax.tree.map(lambda stacked: stacked[0], parts) | total_impulse
    return x_next, explicit_info(law, model, x_next, parts)


def tangent_rate(model: Model, theta: Float[Array, " nv"], v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """d theta/dt of a motion q (+) theta at the velocity v; |theta| < 2 pi in every ball joint."""
    starts = model.topology.ball_starts
    if not starts:
        return v
    ball = np.array([start for _, start in starts])[:, None] + np.arange(3)
    return v.at[ball].set(rotate(right_jacobian_inverse(theta[ball]), v[ball]))


def impulses_of(acting: Forces | None, dt: Float[Array, ""]) -> dict[str, Any] | None:
    """What `explicit_info` reports of forces that act for dt; None where nothing does."""
    if acting is None:
        return None
    return {"contact": dt * acting.contact, "limit": dt * acting.limit, "dry": dt * acting.dry, "at": acting}


def explicit_info(law: Law, model: Model, x_next: State, parts: dict[str, Any] | None) -> StepInfo:
    """The report of an explicit step to x_next. parts: impulses of its forces, None for free motion."""
    dtype = x_next.q.dtype
    if parts is None or not gives_forces(law):
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
    nothing = jnp.zeros((), bool)
    return StepInfo(contacts, impulse, residual, zero, zero, status, dropped, dropped_pairs, nothing, zero, nothing)
