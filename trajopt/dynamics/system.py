"""A system: a model, a time step, a contact law and a way to differentiate. `step` is a pure function of state and control.

    system = System(load_model("go1"), dt=1e-3, contact=RigidContact(), gradient="implicit")
    x1, info = system.step(x0, u)
    jac = system.linearize(x0, u)

`step` may be jitted, vmapped and differentiated; called directly it runs a compiled function that all systems of the
same model topology, law and shapes share.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.implicit import VelocityStep, row_count, velocity_step
from trajopt.dynamics.contact.jacobian import StepJacobian, needs_null_space, step_jacobian
from trajopt.dynamics.contact.law import ContactLaw, NoContact, RigidContact
from trajopt.dynamics.contact.ncp import SEPARATING
from trajopt.dynamics.joints import integrate, integrate_jacobians
from trajopt.dynamics.model import Model
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import closest

GRADIENTS = ("implicit",)
PARAMETERS = (
    "mass", "com", "inertia", "pair_friction", "pair_restitution", "shape_size", "shape_position", "placement_position",
    "armature", "damping", "stiffness", "frictionloss", "gravity",
)  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """q (nq,) and v (nv,) as MuJoCo's qpos and qvel; contact: state of the contact law, None if it has none."""

    q: Float[Array, "*b nq"]
    v: Float[Array, "*b nv"]
    contact: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContactInfo:
    """The contacts of one step, nc of them, world axes.

    distance (m) and point (m) before the step, frame: columns tangent 1, tangent 2, normal (from body 2 to body 1);
    impulse in the frame, N s; mode: 0 separating, 1 sticking, 2 sliding; tied: touching with neither impulse nor velocity;
    node1, node2: bodies' nodes (n_nodes: world); pair: index into Topology.pairs; friction.
    """

    distance: Float[Array, "*b nc"]
    point: Float[Array, "*b nc 3"]
    frame: Float[Array, "*b nc 3 3"]
    impulse: Float[Array, "*b nc 3"]
    mode: Int[Array, "*b nc"]
    tied: Bool[Array, "*b nc"]
    friction: Float[Array, "*b nc"]
    node1: Int[Array, "*b nc"]
    node2: Int[Array, "*b nc"]
    pair: Int[Array, "*b nc"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """What happened in a step.

    contacts; impulse: all rows (contacts, limits, dry friction), also the warm start of the next step; residual: recomputed
    violation of the contact law (relative velocity, docs/contact-semantics.md); iterations and fallbacks of the solver;
    status (`trajopt.result.Status`); dropped: active rows that did not fit into max_contacts or max_limits; degenerate: the
    impulse is not unique and was selected. residual, iterations, fallbacks and status carry no derivative.
    """

    contacts: ContactInfo
    impulse: Float[Array, "*b m"]
    residual: Float[Array, "*b"]
    iterations: Int[Array, "*b"]
    fallbacks: Int[Array, "*b"]
    status: eqx.Enumeration
    dropped: Int[Array, "*b"]
    degenerate: Bool[Array, "*b"]


@dataclasses.dataclass(frozen=True)
class Linearization:
    """x_next and its derivative in tangent coordinates: dx_next = A dx + B du (+ parameters[name] dparameter).

    A (2 nv, 2 nv), B (2 nv, nu), with dx = [dq (nv), dv (nv)]; parameters: {name: (2 nv, *shape of the leaf)}.
    """

    x_next: State
    A: Float[Array, "n n"]
    B: Float[Array, "n nu"]
    info: StepInfo
    parameters: dict[str, Array]

    def __iter__(self):
        return iter((self.x_next, self.A, self.B))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class System:
    """A time-stepped mechanical system with contact (semi-implicit Euler with impulses).

    model: numbers may be NumPy arrays; they are moved to the device. dt: step, s. contact: a law such as `RigidContact()` or
    `NoContact()`. gradient: how derivatives are taken; "implicit" is the exact derivative of the time-stepped map in its
    active contact modes.

    Raises `OptionError`, `ModelError` or `UnknownNameError` on construction.
    """

    model: Model
    dt: float | Float[Array, ""]
    contact: ContactLaw = dataclasses.field(default_factory=RigidContact, metadata={"static": True})
    gradient: str = dataclasses.field(default="implicit", metadata={"static": True})

    def __post_init__(self) -> None:
        if isinstance(self.model, Model) and isinstance(self.model.mass, np.ndarray):
            object.__setattr__(self, "model", self.model.to_device())
        if isinstance(self.dt, (int, float, np.floating)):
            if not np.isfinite(self.dt) or self.dt <= 0:
                raise OptionError(f"dt is {self.dt}, expected a positive step in seconds")
            object.__setattr__(self, "dt", jnp.asarray(float(self.dt)))
        if not isinstance(self.contact, ContactLaw):
            raise OptionError(
                f"contact is {self.contact!r}, expected a contact law such as RigidContact() or NoContact()"
            )
        if self.gradient not in GRADIENTS:
            raise OptionError(f"gradient is '{self.gradient}'{closest(str(self.gradient), GRADIENTS)}")
        if isinstance(self.model, Model):
            self.contact.check(self.model)

    @property
    def nq(self) -> int:
        return self.model.nq

    @property
    def nv(self) -> int:
        return self.model.nv

    @property
    def nu(self) -> int:
        return self.model.nu

    def initial_state(self, keyframe: str | None = None) -> State:
        """The model's default configuration (or a named keyframe) at rest."""
        frames = self.model.keyframes
        if keyframe is not None and keyframe not in frames:
            raise UnknownNameError(f"model '{self.model.name}' has no keyframe '{keyframe}'{closest(keyframe, frames)}")
        q = self.model.q_default if keyframe is None else frames[keyframe]
        return State(q, jnp.zeros(self.nv, q.dtype))

    def step(
        self,
        x: State,
        u: Float[Array, " nu"],
        *,
        force: Float[Array, " nv"] | None = None,
        warm_start: Float[Array, " m"] | None = None,
    ) -> tuple[State, StepInfo]:
        """State after dt under the control u, and what happened. Controls are not clipped to their limits.

        force: generalised force (dual to v) applied besides the actuators over the step.
        warm_start: `StepInfo.impulse` of the previous step; saves iterations, never changes the answer.
        Raises `ShapeError` or `NonFiniteError` naming the argument, before anything is compiled.
        """
        x, u, force, warm_start = self._check(x, u, force, warm_start)
        return _step(self, x, u, force, warm_start)

    def linearize(
        self, x: State, u: Float[Array, " nu"], *, force=None, warm_start=None, parameters: tuple[str, ...] = ()
    ) -> Linearization:
        """The step's exact derivative in tangent coordinates, in closed form (no automatic differentiation over bodies).

        parameters: names of model leaves (`PARAMETERS`) to differentiate by as well. Same errors as `step`.
        """
        for name in parameters:
            if name not in PARAMETERS:
                raise UnknownNameError(f"no derivative with respect to '{name}'{closest(name, PARAMETERS)}")
        x, u, force, warm_start = self._check(x, u, force, warm_start)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, x, u, force)))
        # The branch for redundant sliding contacts is compiled only when a state needs it, if that can be known.
        (x_next, A, B, info), incomplete = _linearize(traced, self, x, u, force, warm_start)
        if not traced and bool(incomplete):
            (x_next, A, B, info), _ = _linearize(True, self, x, u, force, warm_start)
        slopes = _slopes_jit(tuple(parameters), self, x, u, force, info.impulse) if parameters else {}
        return Linearization(x_next, A, B, info, slopes)

    def rollout(self, x0: State, us: Float[Array, "T nu"]) -> tuple[State, StepInfo]:
        """States x_0..x_T (stacked along the first axis) and the infos of the T steps under the controls us."""
        if np.ndim(us) != 2 or np.shape(us)[1] != self.nu:
            raise ShapeError(f"us has shape {np.shape(us)}, expected (T, {self.nu})")
        x0, *_ = self._check(x0, np.zeros(self.nu), None, None)
        _require_finite("us", us)
        return _rollout(self, x0, jnp.asarray(us, x0.q.dtype))

    def _check(self, x: State, u, force, warm_start):
        if not isinstance(x, State):
            raise ShapeError(f"x is {type(x).__name__}, expected a State(q, v)")
        top, dtype = self.model.topology, self.model.mass.dtype
        named = (("x.q", x.q, top.nq), ("x.v", x.v, top.nv), ("u", u, top.nu), ("force", force, top.nv))
        for name, value, size in named:
            if value is None and name == "force":
                continue
            if np.shape(value) != (size,):
                raise ShapeError(
                    f"{name} has shape {np.shape(value)}, expected ({size},) for model '{self.model.name}'; "
                    "use jax.vmap for a batch of states"
                )
            _require_finite(name, value)
        m = row_count(self.contact, self.model)
        if warm_start is not None and np.shape(warm_start) != (m,):
            raise ShapeError(f"warm_start has shape {np.shape(warm_start)}, expected ({m},)")
        warm_start = _zeros(m, dtype) if warm_start is None else _cast("warm_start", warm_start, dtype)
        force = _zeros(top.nv, dtype) if force is None else _cast("force", force, dtype)
        x = State(_cast("x.q", x.q, dtype), _cast("x.v", x.v, dtype), x.contact)
        return x, _cast("u", u, dtype), force, warm_start


@functools.lru_cache(maxsize=64)
def _zeros(size: int, dtype) -> Array:
    """A concrete zero vector, made once: left-out arguments neither cost an allocation nor another compilation."""
    with jax.ensure_compile_time_eval():
        return jnp.zeros(size, dtype)


def _cast(name: str, value, dtype):
    """`value` as an array of the model's dtype. Arrays of another float dtype are refused, not rounded in silence."""
    if not isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if value.dtype != dtype:
        raise ShapeError(f"{name} is {value.dtype} but the system's model is {dtype}; convert one of them")
    return value


def _require_finite(name: str, value) -> None:
    """Raise when a concrete array holds NaN or infinity; traced values pass."""
    if isinstance(value, jax.core.Tracer):
        return
    known = np.asarray(value)
    if math.isfinite(known.sum()):
        return
    bad = np.argwhere(~np.isfinite(known))
    if bad.size:
        index = tuple(int(k) for k in bad[0])
        raise NonFiniteError(f"{name}[{', '.join(map(str, index))}] is {known[index]}; every entry must be finite")


def _info(step: VelocityStep) -> StepInfo:
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
        rows.dropped, solution.degenerate,
    )  # fmt: skip


def _advance(system: System, x: State, u, force, warm_start) -> tuple[State, StepInfo]:
    model = system.model
    tau = model.actuation @ u + force
    result = velocity_step(system.contact, model, x.q, x.v, tau, system.dt, warm_start)
    q = integrate(model, x.q, system.dt * result.velocity)
    return State(q, result.velocity, x.contact), _info(result)


_step = jax.jit(_advance)


@jax.jit
def _rollout(system: System, x0: State, us):
    def body(carry, u):
        x, warm_start = carry
        x_next, info = _advance(system, x, u, jnp.zeros(system.nv, u.dtype), warm_start)
        return (x_next, jax.lax.stop_gradient(info.impulse)), (x_next, info)

    start = jnp.zeros(row_count(system.contact, system.model), x0.q.dtype)
    _, (xs, infos) = jax.lax.scan(body, (x0, start), us)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), x0, xs), infos


@functools.partial(jax.jit, static_argnums=0)
def _linearize(null_space: bool, system: System, x: State, u, force, warm_start):
    model, dt = system.model, system.dt
    tau = model.actuation @ u + force
    step, jacobian = step_jacobian(system.contact, model, x.q, x.v, tau, dt, warm_start, null_space=null_space)
    x_next = State(integrate(model, x.q, dt * step.velocity), step.velocity, x.contact)
    A, B = _tangent_matrices(system, jacobian, x.q, step.velocity)
    return (x_next, A, B, _info(step)), needs_null_space(step)


def _tangent_matrices(system: System, jacobian: StepJacobian, q, v_plus):
    """A and B from the derivative of v+ and the integration of q."""
    model, dt = system.model, system.dt
    by_control = jacobian.by_tau @ model.actuation
    by_v = jacobian.by_v
    if model.topology.ball_starts:
        by_q, by_dq = integrate_jacobians(model, q, dt * v_plus)
        moved = dt * (by_dq @ jnp.concatenate([jacobian.by_q, by_v, by_control], 1))
    else:
        by_q = jnp.eye(model.nv, dtype=q.dtype)
        moved = dt * jnp.concatenate([jacobian.by_q, by_v, by_control], 1)
    n = model.nv
    top = jnp.concatenate([by_q + moved[:, :n], moved[:, n : 2 * n]], 1)
    A = jnp.concatenate([top, jnp.concatenate([jacobian.by_q, by_v], 1)])
    return A, jnp.concatenate([moved[:, 2 * n :], by_control])


def _slopes(names, system: System, x: State, u, force, warm_start):
    model = system.model

    def moved(leaves):
        changed = dataclasses.replace(system, model=model.replace(**leaves))
        x_next, _ = _advance(changed, x, u, force, warm_start)
        return x_next

    leaves = {name: getattr(model, name) for name in names}
    x_next = moved(leaves)
    slopes = jax.jacfwd(lambda p: moved(p).v)(leaves)
    _, by_dq = integrate_jacobians(model, x.q, system.dt * x_next.v)

    def stack(by_v):
        flat = by_v.reshape(by_v.shape[0], -1)
        return jnp.concatenate([system.dt * (by_dq @ flat), flat]).reshape((2 * by_v.shape[0], *by_v.shape[1:]))

    return {name: stack(slopes[name]) for name in names}


_slopes_jit = jax.jit(_slopes, static_argnums=0)

__all__ = ["ContactInfo", "Linearization", "NoContact", "RigidContact", "State", "StepInfo", "System"]
