"""A system: a model, a time step, a contact law and a way to differentiate. `step` is a pure function of state and control.

    system = System(load_model("go1"), dt=1e-3, contact=RigidContact(), gradient="implicit")
    x1, info = system.step(x0, u)
    jac = system.linearize(x0, u)

`step` may be jitted, vmapped and differentiated; called directly it runs a compiled function that all systems of the
same model topology, law and shapes share.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics import advance
from trajopt.dynamics.arguments import holds_traced, is_traced, positive_number
from trajopt.dynamics.backend import resolve_backend, stepped_by
from trajopt.dynamics.contact.laws.base import Law
from trajopt.dynamics.contact.laws.relaxed import RelaxedContact, resolved_rho
from trajopt.dynamics.contact.laws.rigid import RigidContact
from trajopt.dynamics.contact.laws.smoothed import KAPPA_MEANING
from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.damping import warn_of_damping, with_implicit_damping
from trajopt.dynamics.direct import LINEARIZE, LINEARIZE_IMPULSE, STEP, DirectCalls, direct_calls
from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions
from trajopt.dynamics.gradients.modes import resolve
from trajopt.dynamics.integrators import EXPLICIT, WITH_IMPULSES, acts_by_impulses, check_integrator
from trajopt.dynamics.linearization import Parts
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import warn_of_single_precision
from trajopt.dynamics.report import PackedStepInfo
from trajopt.dynamics.smoothness import is_smooth
from trajopt.dynamics.start import warn_of_start
from trajopt.dynamics.state import Linearization, State, StepInfo
from trajopt.dynamics.step_arguments import (
    PARAMETERS,
    checked_adjoint,
    checked_arguments,
    checked_contact_state,
    checked_controls,
    checked_outputs,
    checked_parameters,
    checked_warm_start,
)
from trajopt.errors import OptionError, UnknownNameError
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
        gradient: the derivative of a step: one of `GRADIENTS` or a `GradientMode`. "implicit" is the exact derivative of
            the time-stepped map in its active contact modes.
        integrator: "semi-implicit", "moreau", or, for compliant contact and free motion only, "euler" or "rk4".
        labellings: which labellings of contacts gradient "complementarity-aware" considers, "all" or "paper".
        options: `GradientOptions` of the other gradient modes.
        kappa (1/m): sharpness of gradient "smoothed" (default 300) and of `SmoothedContact` (default: the law's own).
            Another value needs no other compilation.
        rho (J): relaxation of `RelaxedContact`, by default the law's own.
            Another value needs no other compilation.
        backend: "native" (the compiled core for CPUs), "jax", or "auto": the compiled core where it
            covers the system, unless the environment variable TRAJOPT_BACKEND says otherwise. `resolved_backend` is the
            outcome. With "auto" the core also moves the bodies under the forces that JAX evaluates of a law at force level.
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
        _ = self._backend  # raises where the one that is asked for does not cover the system
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

    @functools.cached_property
    def _backend(self) -> tuple[str, str]:
        return resolve_backend(self.backend, self.model, self.contact, self.integrator)

    @property
    def resolved_backend(self) -> str:
        """What steps are taken by: "native", the compiled core, or "jax"."""
        return self._backend[0]

    @property
    def backend_reason(self) -> str:
        """Why steps are not taken by the compiled core; empty where they are, or where "jax" was asked for."""
        return self._backend[1]

    @functools.cached_property
    def _stepped_by(self) -> str:
        return stepped_by(*self._backend, self.model, self.contact, self.integrator)

    @functools.cached_property
    def mode(self) -> GradientMode:
        """The gradient mode that `gradient`, `options` and `labellings` name."""
        return resolve(self.gradient, self.options, self.labellings)

    @functools.cached_property
    def _direct(self) -> DirectCalls | None:
        """Direct calls through the compiled core, where it takes the steps and their derivative needs no more."""
        law = self.contact
        if not (acts_by_impulses(law) and advance.taken_by_core(self.resolved_backend, self)):
            return None
        kappa, rho = self.mode.sharpness(self.kappa), None if self.rho is None else jnp.asarray(self.rho)
        return direct_calls(self.stepped_model, law, self.integrator, jnp.asarray(self.dt), kappa, rho)

    def _quick(self, what: str, x: State, u: Float[Array, " nu"]) -> Any:
        """`DirectCalls.plain`, once a call has made the system's `_direct`, after its arguments were checked; else None."""
        known: DirectCalls | None = self.__dict__.get("_direct")
        return None if known is None else known.plain(what, x, u)

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
        warm_start: `StepInfo.impulse` of the previous step, from which `BoxedLCP` starts. No other law uses it: where
            contacts slide several solutions can exist, and x and u alone decide which is returned.
        Raises `ShapeError` or `NonFiniteError` naming the argument, before anything is compiled.
        """
        if force is None and warm_start is None and (done := self._quick(STEP, x, u)) is not None:
            return done
        given_force = force
        x, u, force = checked_arguments(self.model, self.contact, x, u, force)
        warm_start = checked_warm_start(self.model, self.contact, self._row_count, warm_start)
        if not is_traced(x.q, x.v, u, force) and (direct := self._direct) is not None:
            return direct.checked(STEP, x, u, None if given_force is None else force)
        return advance.step(self._stepped_by, self, x, u, force, warm_start)

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
        if plain and (done := self._quick(LINEARIZE, x, u)) is not None:
            return done
        parameters = checked_parameters(parameters)
        impulse, given_force = "impulse" in checked_outputs(outputs), force
        x, u, force = checked_arguments(self.model, self.contact, x, u, force)
        warm_start = checked_warm_start(self.model, self.contact, self._row_count, warm_start)
        adjoint = checked_adjoint(self.mode, self.ndx, self.model.mass.dtype, adjoint, parameters)
        if (
            adjoint is None and not parameters and not is_traced(x.q, x.v, u, force)
            and self.contact == advance.law_of_linearization(self) and (direct := self._direct) is not None
        ):  # fmt: skip
            what = LINEARIZE_IMPULSE if impulse else LINEARIZE
            return direct.checked(what, x, u, None if given_force is None else force)
        # Branches for redundant contacts are compiled only when a state needs them, if that can be known.
        traced = holds_traced(self, x, u, force)
        backend = self._stepped_by
        arguments = (backend, self, x, u, force, warm_start, adjoint)
        found, incomplete = advance.linearize(Parts(traced, impulse), *arguments)
        if not traced and bool(incomplete):
            found, _ = advance.linearize(Parts(True, impulse), *arguments)
        if not parameters:
            return found
        slopes = advance.slopes(tuple(parameters), backend, self, x, u, force, found.info.impulse)
        return dataclasses.replace(found, parameters=slopes)

    def rollout(self, x0: State, us: Float[Array, "T nu"], *, segment: int | None = None) -> tuple[State, StepInfo]:
        """States $x_0$ to $x_T$ (stacked along the first axis) and the infos of the T steps under the controls us.

        segment: in reverse mode, steps between which the intermediate results are computed again instead of being kept: memory
        for T / segment states and `segment` steps, sqrt(T) being a good choice, at the price of one more rollout. None keeps
        all of them.
        """
        if segment is not None and segment < 1:
            raise OptionError(f"segment is {segment}, expected a number of steps, at least 1, or None")
        us = checked_controls(self.model, us)
        x0, *_ = checked_arguments(self.model, self.contact, x0, np.zeros(self.nu), None)
        backend = self._stepped_by
        whole = holds_traced(self, x0, us) or self._direct is None
        xs, infos = advance.rollout(segment, whole, backend, self, x0, us)
        if whole or not isinstance(infos, PackedStepInfo):
            return xs, infos
        return xs, infos.with_report(functools.partial(advance.reports, backend, self, xs, us))

    @functools.cached_property
    def _row_count(self) -> int:
        return row_count(self.contact, self.model)


__all__ = ["PARAMETERS", "GradientOptions", "Linearization", "RigidContact", "State", "StepInfo", "System"]
