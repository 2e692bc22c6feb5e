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

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.pairs import contact_count
from trajopt.dynamics.contact.compliant import CompliantContact, SpringDamperContact
from trajopt.dynamics.contact.jacobian import needs_null_space
from trajopt.dynamics.contact.law import ContactLaw, Law, NoContact, RigidContact, SmoothedContact, check_kappa
from trajopt.dynamics.estimated import estimated_step
from trajopt.dynamics.gradients import (
    COMPLEMENTARITY_AWARE,
    ESTIMATED,
    GRADIENTS,
    KAPPA,
    GradientOptions,
    check_gradient,
    check_samples,
)
from trajopt.dynamics.integrators import (
    check_integrator,
    explicit_step,
    impulse_info,
    impulse_step,
    reported_rows,
    takes_impulses,
)
from trajopt.dynamics.linearization import (
    impulse_slopes,
    linearize_by_columns,
    linearize_impulse_step,
    slopes_by_columns,
)
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import ContactInfo, Linearization, State, StepInfo
from trajopt.errors import DerivativeError, NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import closest

PARAMETERS = (
    "mass", "com", "inertia", "pair_friction", "pair_restitution", "shape_size", "shape_position", "placement_position",
    "armature", "damping", "stiffness", "frictionloss", "gravity", "terrain",
)  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class System:
    """A time-stepped mechanical system with contact (semi-implicit Euler with impulses by default).

    model: numbers may be NumPy arrays; they are moved to the device. dt: step, s. contact: a law such as `RigidContact()`,
    `CompliantContact()` or `NoContact()`. gradient: how derivatives are taken, one of `GRADIENTS` (docs/gradients.md);
    "implicit" is the exact derivative of the time-stepped map in its active contact modes. integrator: "semi-implicit",
    "moreau", or, for compliant contact and free motion only, "euler" or "rk4" (`integrators`). labellings: "all" or "paper",
    of gradient "complementarity-aware" (`contact.complementarity`). options: of the other modes. kappa (1/m): sharpness of
    gradient "smoothed" (default 300) and of `SmoothedContact` (default its own); a leaf, so that it can be changed without
    another compilation.

    Raises `OptionError`, `ModelError` or `UnknownNameError` on construction.
    """

    model: Model
    dt: float | Float[Array, ""]
    contact: Law = dataclasses.field(default_factory=RigidContact, metadata={"static": True})
    gradient: str = dataclasses.field(default="implicit", metadata={"static": True})
    integrator: str = dataclasses.field(default="semi-implicit", metadata={"static": True})
    labellings: str = dataclasses.field(default="all", metadata={"static": True})
    options: GradientOptions = dataclasses.field(default_factory=GradientOptions, metadata={"static": True})
    kappa: float | Float[Array, ""] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, Model) and isinstance(self.model.mass, np.ndarray):
            object.__setattr__(self, "model", self.model.to_device())
        if isinstance(self.dt, (int, float, np.floating)):
            if not np.isfinite(self.dt) or self.dt <= 0:
                raise OptionError(f"dt is {self.dt}, expected a positive step in seconds")
            object.__setattr__(self, "dt", jnp.asarray(float(self.dt)))
        if not isinstance(self.contact, Law):
            raise OptionError(
                f"contact is {self.contact!r}, expected a contact law such as RigidContact() or NoContact()"
            )
        check_gradient(self.gradient, self.contact, self.labellings, self.options)
        check_integrator(self.integrator, self.contact, self.dt)
        if isinstance(self.kappa, (int, float, np.floating)):
            check_kappa(self.kappa)
            object.__setattr__(self, "kappa", jnp.asarray(float(self.kappa)))
        if isinstance(self.model, Model):
            self.contact.check(self.model)
            check_samples(self.gradient, self.options, self.model)

    @property
    def nq(self) -> int:
        return self.model.nq

    @property
    def nv(self) -> int:
        return self.model.nv

    @property
    def nu(self) -> int:
        return self.model.nu

    @property
    def ndx(self) -> int:
        """Size of the tangent coordinates [dq, dv, contact state]."""
        return 2 * self.nv + (3 * contact_count(self.model) if self.contact.carries_state else 0)

    def initial_state(self, keyframe: str | None = None) -> State:
        """The model's default configuration (or a named keyframe) at rest, contacts undeformed."""
        frames = self.model.keyframes
        if keyframe is not None and keyframe not in frames:
            raise UnknownNameError(f"model '{self.model.name}' has no keyframe '{keyframe}'{closest(keyframe, frames)}")
        q = self.model.q_default if keyframe is None else frames[keyframe]
        return State(q, jnp.zeros(self.nv, q.dtype), self._contact_state(None, q.dtype))

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
        self,
        x: State,
        u: Float[Array, " nu"],
        *,
        force=None,
        warm_start=None,
        parameters: tuple[str, ...] = (),
        adjoint: Float[Array, " n"] | None = None,
    ) -> Linearization:
        """The step's exact derivative in tangent coordinates.

        With impulses it has a closed form; explicit steps are differentiated automatically, in forward mode.
        parameters: names of model leaves (`PARAMETERS`) to differentiate by as well.
        adjoint: d loss / d x_next (ndx,), which complementarity-aware derivatives need and others refuse.
        Same errors as `step`, and `DerivativeError` for a derivative that the gradient mode does not define.
        """
        for name in parameters:
            if name not in PARAMETERS:
                raise UnknownNameError(f"no derivative with respect to '{name}'{closest(name, PARAMETERS)}")
        x, u, force, warm_start = self._check(x, u, force, warm_start)
        adjoint = self._check_adjoint(adjoint, parameters)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, x, u, force)))
        # The branch for redundant sliding contacts is compiled only when a state needs it, if that can be known.
        (x_next, A, B, info), incomplete = _linearize(traced, self, x, u, force, warm_start, adjoint)
        if not traced and bool(incomplete):
            (x_next, A, B, info), _ = _linearize(True, self, x, u, force, warm_start, adjoint)
        slopes = _slopes(tuple(parameters), self, x, u, force, info.impulse) if parameters else {}
        return Linearization(x_next, A, B, info, slopes)

    def rollout(self, x0: State, us: Float[Array, "T nu"], *, segment: int | None = None) -> tuple[State, StepInfo]:
        """States x_0..x_T (stacked along the first axis) and the infos of the T steps under the controls us.

        segment: in reverse mode, steps between which the intermediate results are computed again instead of being kept: memory
        for T / segment states and `segment` steps, sqrt(T) being a good choice, at the price of one more rollout. None keeps
        all of them.
        """
        if np.ndim(us) != 2 or np.shape(us)[1] != self.nu:
            raise ShapeError(f"us has shape {np.shape(us)}, expected (T, {self.nu})")
        if segment is not None and segment < 1:
            raise OptionError(f"segment is {segment}, expected a number of steps, at least 1, or None")
        x0, *_ = self._check(x0, np.zeros(self.nu), None, None)
        _require_finite("us", us)
        return _rollout(segment, self, x0, jnp.asarray(us, x0.q.dtype))

    def _check_adjoint(self, adjoint, parameters):
        if self.gradient != COMPLEMENTARITY_AWARE:
            if adjoint is not None:
                raise OptionError(
                    f"adjoint is for gradient='{COMPLEMENTARITY_AWARE}'; this system's is '{self.gradient}'"
                )
            return None
        if adjoint is None:
            raise DerivativeError(
                f"{COMPLEMENTARITY_AWARE} derivatives depend on the loss: give linearize its direction, adjoint = "
                f"d loss / d x_next ({self.ndx},), or take jax.grad"
            )
        if parameters:
            raise DerivativeError(f"linearize has no {COMPLEMENTARITY_AWARE} parameter derivatives; take jax.grad")
        if np.shape(adjoint) != (self.ndx,):
            raise ShapeError(f"adjoint has shape {np.shape(adjoint)}, expected ({self.ndx},)")
        _require_finite("adjoint", adjoint)
        return _cast("adjoint", adjoint, self.model.mass.dtype)

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
        m = reported_rows(self.contact, self.model)
        if warm_start is not None and np.shape(warm_start) != (m,):
            raise ShapeError(f"warm_start has shape {np.shape(warm_start)}, expected ({m},)")
        warm_start = _zeros(m, dtype) if warm_start is None else _cast("warm_start", warm_start, dtype)
        force = _zeros(top.nv, dtype) if force is None else _cast("force", force, dtype)
        x = State(_cast("x.q", x.q, dtype), _cast("x.v", x.v, dtype), self._contact_state(x.contact, dtype))
        return x, _cast("u", u, dtype), force, warm_start

    def _contact_state(self, given, dtype):
        """`given` as the contact state of the law: zeros for None, None where the law carries none."""
        law = type(self.contact).__name__
        if not self.contact.carries_state:
            if given is not None:
                raise ShapeError(f"x.contact has shape {np.shape(given)}, but {law} carries no state; leave it out")
            return None
        shape = (contact_count(self.model), 3)
        if given is None:
            return _zeros(shape, dtype)
        if np.shape(given) != shape:
            raise ShapeError(
                f"x.contact has shape {np.shape(given)}, expected {shape} for {law} on model '{self.model.name}', or None"
            )
        _require_finite("x.contact", given)
        return _cast("x.contact", given, dtype)


@functools.lru_cache(maxsize=64)
def _zeros(size: int | tuple[int, ...], dtype) -> Array:
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


def _takes_impulses(system: System) -> bool:
    return isinstance(system.contact, ContactLaw) and takes_impulses(system.integrator, system.contact)


def _advance(system: System, x: State, u, force, warm_start) -> tuple[State, StepInfo]:
    if system.gradient in ESTIMATED:
        exact = dataclasses.replace(system, gradient="implicit")
        start = jax.lax.stop_gradient(warm_start)
        return estimated_step(_solved, system.gradient, system.options, exact, x, u, force, start)
    return _solved(system, x, u, force, warm_start)


def _solved(system: System, x: State, u, force, warm_start) -> tuple[State, StepInfo]:
    law, model = system.contact, system.model
    tau = model.actuation @ u + force
    if isinstance(law, ContactLaw) and takes_impulses(system.integrator, law):
        mode = system.options.contact_mode(system.gradient, system.labellings)
        kappa = system.kappa
        if kappa is None and system.gradient == "smoothed":
            kappa = jnp.asarray(KAPPA)
        kappa = None if kappa is None else jnp.asarray(kappa).astype(x.q.dtype)
        x_next, step = impulse_step(system.integrator, law, model, x, tau, system.dt, warm_start, mode, kappa)
        return x_next, impulse_info(step)
    return explicit_step(system.integrator, law, model, x, tau, system.dt)


_step = jax.jit(_advance)


@functools.partial(jax.jit, static_argnums=0)
def _rollout(segment: int | None, system: System, x0: State, us):
    def body(carry, u):
        x, warm_start = carry
        x_next, info = _advance(system, x, u, jnp.zeros(system.nv, u.dtype), warm_start)
        return (x_next, jax.lax.stop_gradient(info.impulse)), (x_next, info)

    def steps(carry, us):
        return jax.lax.scan(body, carry, us)

    carry = (x0, jnp.zeros(reported_rows(system.contact, system.model), x0.q.dtype))
    if segment is None:
        _, (xs, infos) = steps(carry, us)
    else:
        count = us.shape[0] // segment
        whole = count * segment
        again = jax.checkpoint(steps, prevent_cse=False)
        carry, parts = jax.lax.scan(again, carry, us[:whole].reshape(count, segment, us.shape[1]))
        first = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), parts)
        _, rest = steps(carry, us[whole:])
        xs, infos = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, rest)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), x0, xs), infos


def _closed_form(system: System) -> bool:
    """Whether the step's Jacobian has a closed form: hard contact, in its own modes or in those that the loss asks for."""
    exact = system.gradient in ("implicit", COMPLEMENTARITY_AWARE)
    return exact and _takes_impulses(system) and not isinstance(system.contact, SmoothedContact)


@functools.partial(jax.jit, static_argnums=0)
def _linearize(null_space: bool, system: System, x: State, u, force, warm_start, adjoint):
    law, model, dt = system.contact, system.model, system.dt
    if isinstance(law, ContactLaw) and _closed_form(system):
        tau = model.actuation @ u + force
        relabelling = None if adjoint is None else (system.labellings, adjoint)
        x_next, step, A, B = linearize_impulse_step(
            system.integrator, law, model, x, tau, dt, warm_start, null_space=null_space, relabelling=relabelling
        )
        return (x_next, A, B, impulse_info(step)), needs_null_space(step)

    def advance(x, u):
        return _advance(system, x, u, force, warm_start)

    x_next, info, A, B = linearize_by_columns(advance, model, x, u)
    return (x_next, A, B, info), jnp.zeros((), bool)


@functools.partial(jax.jit, static_argnums=0)
def _slopes(names, system: System, x: State, u, force, warm_start):
    law = system.contact
    if isinstance(law, ContactLaw) and _closed_form(system):

        def tau_of(model: Model):
            return model.actuation @ u + force

        return impulse_slopes(names, system.integrator, law, system.model, x, tau_of, system.dt, warm_start)

    def step(model: Model):
        return _advance(dataclasses.replace(system, model=model), x, u, force, warm_start)

    return slopes_by_columns(names, step, system.model)


__all__ = [
    "GRADIENTS", "CompliantContact", "ContactInfo", "GradientOptions", "Linearization", "NoContact", "RigidContact",
    "SmoothedContact", "SpringDamperContact", "State", "StepInfo", "System",
]  # fmt: skip
