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
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.advance import advance, step_inputs
from trajopt.dynamics.arguments import holds_traced, is_traced, positive_number, require_finite, require_real
from trajopt.dynamics.backend import (
    asks_for_core,
    calls_directly,
    environment,
    law_of_linearization,
    linearize_native,
    resolve_backend,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import Law
from trajopt.dynamics.contact.laws.relaxed import RelaxedContact, resolved_rho
from trajopt.dynamics.contact.laws.rigid import RigidContact
from trajopt.dynamics.contact.laws.smoothed import KAPPA_MEANING
from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.damping import warn_of_damping, with_implicit_damping
from trajopt.dynamics.direct import DirectCalls, direct_calls
from trajopt.dynamics.gradients.closed_form import needs_null_space
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.gradients.modes import resolve
from trajopt.dynamics.gradients.options import GradientOptions
from trajopt.dynamics.integrators import (
    EXPLICIT,
    WITH_IMPULSES,
    acts_by_impulses,
    check_integrator,
)
from trajopt.dynamics.linearization import (
    Parts,
    has_closed_form,
    impulse_slopes,
    linearize_by_columns,
    linearize_impulse_step,
    slopes_by_columns,
)
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import warn_of_single_precision
from trajopt.dynamics.rigid_body.actuation import actuation_force
from trajopt.dynamics.smoothness import is_smooth
from trajopt.dynamics.start import warn_of_start
from trajopt.dynamics.state import Linearization, State, StepInfo
from trajopt.dynamics.step_arguments import (
    PARAMETERS,
    checked_adjoint,
    checked_arguments,
    checked_contact_state,
    checked_outputs,
    checked_parameters,
    checked_warm_start,
)
from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.native.process import check_process


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class System(WithoutCaches, NamedOptions):
    """A time-stepped mechanical system with contact (semi-implicit Euler with impulses by default).

    Options:
        model: the `Model`; `trajopt.load_model` loads one. NumPy arrays in it are moved to the device.
        dt (s): time step.
        contact: a contact law, such as `RigidContact()`, `CompliantContact()` or `NoContact()`.
        gradient: how derivatives are taken: one of `GRADIENTS` or a `GradientMode`. "implicit" is the exact derivative of
            the time-stepped map in its active contact modes.
        integrator: "semi-implicit", "moreau", or, for compliant contact and free motion only, "euler" or "rk4".
        labellings: which labellings of contacts gradient "complementarity-aware" considers, "all" or "paper".
        options: `GradientOptions` of the other gradient modes.
        kappa (1/m): sharpness of gradient "smoothed" (default 300) and of `SmoothedContact` (default: the law's own).
            Another value needs no other compilation.
        rho (J): relaxation of `RelaxedContact`, in place of the law's own, which it is made from: `contact` then holds none.
            Another value needs no other compilation.
        backend: what takes the steps: "native" (the compiled core for CPUs), "jax", or "auto": the compiled core where it
            covers the system, unless the environment variable TRAJOPT_BACKEND says otherwise. `resolved_backend` tells the
            outcome.
        implicit_damping: whether damping and springs of joints act by the velocity after the step, which large steps need.
            With False they act by the velocity before it, and a `DampingWarning` names the joints for which dt is too
            large.

    Raises `OptionError`, `ModelError` or `UnknownNameError` on construction.
    """

    model: Model
    dt: float | Float[Array, ""]
    contact: Law = dataclasses.field(default_factory=RigidContact, metadata={"static": True})
    gradient: str | GradientMode = dataclasses.field(default="implicit", metadata={"static": True})
    integrator: str = dataclasses.field(default="semi-implicit", metadata={"static": True})
    labellings: str = dataclasses.field(default="all", metadata={"static": True})
    options: GradientOptions = dataclasses.field(default_factory=GradientOptions, metadata={"static": True})
    kappa: float | Float[Array, ""] | None = None
    rho: float | Float[Array, ""] | None = None
    backend: str = dataclasses.field(default="auto", metadata={"static": True})
    implicit_damping: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        check_process()
        if not isinstance(self.model, Model):
            raise OptionError(
                f"model is {self.model!r}, expected a Model; trajopt.load_model loads one by name or from a file"
            )
        if not isinstance(self.contact, Law):
            raise OptionError(f"contact is {self.contact!r}, expected a contact law such as RigidContact() or NoContact()")
        if isinstance(self.model.mass, np.ndarray):
            object.__setattr__(self, "model", self.model.to_device())
        warn_of_single_precision(self.model.mass.dtype)
        object.__setattr__(self, "dt", positive_number("dt", self.dt, "a positive step in seconds"))
        if self.kappa is not None:
            object.__setattr__(self, "kappa", positive_number("kappa", self.kappa, KAPPA_MEANING))
        if isinstance(self.contact, RelaxedContact):
            object.__setattr__(self, "rho", resolved_rho(self.contact, self.rho, self.model))
            object.__setattr__(self, "contact", self.contact.without_rho())
        resolve(self.gradient, self.options, self.labellings).check(self.contact, self.model)
        check_integrator(self.integrator, self.contact, self.dt, self.model)
        self.contact.check(self.model)
        resolve_backend(self.backend, self.model, self.contact, self.integrator)
        if not isinstance(self.implicit_damping, bool):
            raise OptionError(f"implicit_damping is {self.implicit_damping!r}, expected True or False")
        if self.implicit_damping and self.integrator in EXPLICIT:
            raise OptionError(
                f"implicit_damping is for integrator {' or '.join(map(repr, WITH_IMPULSES))}, not '{self.integrator}'"
            )
        if not self.implicit_damping:
            warn_of_damping(self.model, self.dt)

    @property
    def stepped_model(self) -> Model:
        """The model whose equations of motion a step solves: `model`, with `implicit_damping` of another armature."""
        return with_implicit_damping(self.model, jnp.asarray(self.dt)) if self.implicit_damping else self.model

    @property
    def _backend(self) -> tuple[str, str]:
        """`resolve_backend` of the system in the environment as it is now, remembered for each environment."""
        now = environment()
        if now not in self._backends:
            self._backends[now] = resolve_backend(self.backend, self.model, self.contact, self.integrator)
        return self._backends[now]

    @functools.cached_property
    def _backends(self) -> dict[tuple[str | None, ...], tuple[str, str]]:
        return {}

    @property
    def resolved_backend(self) -> str:
        """What steps are taken by: "native", the compiled core, or "jax"."""
        return self._backend[0]

    @property
    def backend_reason(self) -> str:
        """Why steps are not taken by the compiled core; empty where they are, or where "jax" was asked for."""
        return self._backend[1]

    @functools.cached_property
    def mode(self) -> GradientMode:
        """The gradient mode that `gradient`, `options` and `labellings` name."""
        return resolve(self.gradient, self.options, self.labellings)

    @functools.cached_property
    def _direct(self) -> DirectCalls | None:
        """Direct calls through the compiled core, where the system is one that it covers and its derivative needs no more."""
        if not calls_directly(self.contact, self.mode, self.integrator):
            return None
        kappa = self.mode.sharpness(self.kappa)
        rho = None if self.rho is None else jnp.asarray(self.rho)
        return direct_calls(self.stepped_model, self.contact, self.integrator, jnp.asarray(self.dt), kappa, rho)

    @property
    def _known_direct(self) -> DirectCalls | None:
        """`_direct` where calls have been made by it and the core takes the steps."""
        check_process()
        direct = self.__dict__.get("_direct")
        return direct if direct is not None and asks_for_core(self.backend) else None

    @property
    def nq(self) -> int:
        """Length of a configuration q."""
        return self.model.nq

    @property
    def nv(self) -> int:
        """Number of degrees of freedom, the length of a velocity v."""
        return self.model.nv

    @property
    def nu(self) -> int:
        """Number of controls."""
        return self.model.nu

    @property
    def smooth(self) -> bool:
        """Whether steps have derivatives of every order: no contact, limit, dry friction or equality constraint can act."""
        return is_smooth(self.contact, self.model)

    @property
    def ndx(self) -> int:
        """Size of the tangent coordinates [dq, dv, contact state]."""
        return 2 * self.nv + math.prod(self.contact.contact_state_shape(self.model) or (0,))

    def initial_state(self, keyframe: str | None = None) -> State:
        """The model's default configuration (or a named keyframe) at rest, contacts undeformed.

        A configuration far beyond joint limits is issued as a `start.StartWarning`.
        """
        frames = self.model.keyframes
        if keyframe is not None and keyframe not in frames:
            raise UnknownNameError(f"model '{self.model.name}' has no keyframe '{keyframe}'{closest(keyframe, frames)}")
        q = self.model.q_default if keyframe is None else frames[keyframe]
        frame = "the default" if keyframe is None else f"keyframe '{keyframe}'"
        warn_of_start(f"model '{self.model.name}', {frame}", self.model, self.contact, self.dt, q)
        return State(q, jnp.zeros(self.nv, q.dtype), checked_contact_state(self.model, self.contact, None, q.dtype))

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
        warm_start: `StepInfo.impulse` of the previous step, from which `BoxedLCP` guesses its modes. No other law uses it: where
            contacts slide several solutions can exist, and x and u alone decide which is returned.
        Raises `ShapeError` or `NonFiniteError` naming the argument, before anything is compiled.
        """
        if force is None and warm_start is None and (known := self._known_direct) is not None:
            if (found := known.step_plain(x, u)) is not None:
                return found
        unforced = force is None
        x, u, force = checked_arguments(self.model, self.contact, x, u, force)
        warm_start = checked_warm_start(self.model, self.contact, self._row_count, warm_start)
        backend = self.resolved_backend
        if backend == "native" and not is_traced(x.q, x.v, u, force) and (direct := self._direct) is not None:
            return direct.step(x, u, None if unforced else force)
        return _step(backend, self, x, u, force, warm_start)

    def linearize(
        self,
        x: State,
        u: Float[Array, " nu"],
        *,
        force: Float[Array, " nv"] | None = None,
        warm_start: Float[Array, " m"] | None = None,
        parameters: tuple[str, ...] = (),
        outputs: tuple[str, ...] = (),
        adjoint: Float[Array, " n"] | None = None,
    ) -> Linearization:
        """The step's exact derivative in tangent coordinates.

        With impulses, and of free motion through the compiled core, it has a closed form; other explicit steps are
        differentiated automatically, in forward mode.
        parameters: names of model leaves (`PARAMETERS`) to differentiate by as well.
        outputs: names of what the step finds besides x_next that is to be differentiated by x and u too: "impulse", that is
            `StepInfo.impulse` (m,), N s (N m s for rows of joints that turn), in its order of rows. `Linearization.outputs`
            holds C (m, n) and D (m, nu); where the impulse is not unique, of the one that was selected (docs/gradients.md).
        adjoint: d loss / d x_next (ndx,), which complementarity-aware derivatives need and others refuse.
        Same errors as `step`, and `DerivativeError` for a derivative that the gradient mode does not define.
        """
        plain = force is None and warm_start is None and adjoint is None and parameters == () and outputs == ()
        if plain and (known := self._known_direct) is not None:
            if (found := known.linearize_plain(x, u)) is not None:
                return found
        parameters = checked_parameters(parameters)
        impulse, unforced = "impulse" in checked_outputs(outputs), force is None
        x, u, force = checked_arguments(self.model, self.contact, x, u, force)
        warm_start = checked_warm_start(self.model, self.contact, self._row_count, warm_start)
        adjoint = checked_adjoint(self.mode, self.ndx, self.model.mass.dtype, adjoint, parameters)
        backend = self.resolved_backend
        if (
            backend == "native" and adjoint is None and not parameters and not is_traced(x.q, x.v, u, force)
            and self.contact == law_of_linearization(self.mode, self.contact, self.integrator) and (direct := self._direct)
        ):  # fmt: skip
            return direct.linearize(x, u, None if unforced else force, impulse)
        # Branches for redundant contacts are compiled only when a state needs them, if that can be known.
        traced = holds_traced(self, x, u, force)
        arguments = (backend, self, x, u, force, warm_start, adjoint)
        found, incomplete = _linearize(Parts(traced, impulse), *arguments)
        if not traced and bool(incomplete):
            found, _ = _linearize(Parts(True, impulse), *arguments)
        if not parameters:
            return found
        slopes = _slopes(tuple(parameters), backend, self, x, u, force, found.info.impulse)
        return dataclasses.replace(found, parameters=slopes)

    def rollout(self, x0: State, us: Float[Array, "T nu"], *, segment: int | None = None) -> tuple[State, StepInfo]:
        """States $x_0$ to $x_T$ (stacked along the first axis) and the infos of the T steps under the controls us.

        segment: in reverse mode, steps between which the intermediate results are computed again instead of being kept: memory
        for T / segment states and `segment` steps, sqrt(T) being a good choice, at the price of one more rollout. None keeps
        all of them.
        """
        require_real("us", us)
        if np.ndim(us) != 2 or np.shape(us)[1] != self.nu:
            raise ShapeError(f"us has shape {np.shape(us)}, expected (T, {self.nu})")
        if segment is not None and segment < 1:
            raise OptionError(f"segment is {segment}, expected a number of steps, at least 1, or None")
        x0, *_ = checked_arguments(self.model, self.contact, x0, np.zeros(self.nu), None)
        require_finite("us", us)
        return _rollout(segment, self.resolved_backend, self, x0, jnp.asarray(us, x0.q.dtype))

    @functools.cached_property
    def _row_count(self) -> int:
        return row_count(self.contact, self.model)


# The backend is an argument of every compiled function: another value of the environment variable is another program.
_step = jax.jit(advance, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rollout(segment: int | None, backend: str, system: System, x0: State, us):
    cold = jnp.zeros(row_count(system.contact, system.model), x0.q.dtype)  # every step is a function of its state and control

    def body(x, u):
        x_next, info = advance(backend, system, x, u, jnp.zeros(system.nv, u.dtype), cold)
        return x_next, (x_next, info)

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


@functools.partial(jax.jit, static_argnums=(0, 1))
def _linearize(
    parts: Parts, backend: str, system: System, x: State, u, force, warm_start, adjoint
) -> tuple[Linearization, Bool[Array, ""]]:
    """The linearisation, and whether it lacks a part that the state needs."""
    law, complete = system.contact, jnp.zeros((), bool)
    core = backend == "native" and adjoint is None
    differentiated = law_of_linearization(system.mode, law, system.integrator) if core else None
    if acts_by_impulses(law) and (differentiated is not None or has_closed_form(law, system.mode, system.integrator)):
        start = step_inputs(system, law, x, actuation_force(system.model, x.q, x.v, u) + force, warm_start)
        if differentiated is not None:
            return linearize_native(system.integrator, start, differentiated, u, parts.impulse), complete
        found, step = linearize_impulse_step(system.integrator, system.mode, start, u, adjoint, parts)
        redundant = step.solution.degenerate if parts.impulse else needs_null_space(step)
        return found, redundant

    def after(x, u):
        return advance(backend, system, x, u, force, warm_start)

    return linearize_by_columns(after, system.model, x, u, parts.impulse), complete


@functools.partial(jax.jit, static_argnums=(0, 1))
def _slopes(names, backend: str, system: System, x: State, u, force, warm_start):
    law = system.contact
    if has_closed_form(law, system.mode, system.integrator):

        def start_of(model: Model) -> StepInputs:
            tau = actuation_force(model, x.q, x.v, u) + force
            return step_inputs(dataclasses.replace(system, model=model), law, x, tau, warm_start)

        return impulse_slopes(names, system.integrator, system.mode, system.model, start_of)

    def step(model: Model):
        return advance(backend, dataclasses.replace(system, model=model), x, u, force, warm_start)

    return slopes_by_columns(names, step, system.model)


__all__ = ["PARAMETERS", "GradientOptions", "Linearization", "RigidContact", "State", "StepInfo", "System"]
