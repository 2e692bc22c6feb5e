"""What every contact law is and says of itself, and the base of the laws at velocity level.

A law is an immutable, hashable set of options with behaviour: which rows its contact problem has and with which offset, how
soft they are, how the problem is solved, which integrators and gradient modes fit it. The algorithms are elsewhere: a law
names the solver it wants (`SolverOptions`) and `contact.step` calls it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.collision.narrowphase import check_pairs, contact_count
from trajopt.dynamics.model import Model
from trajopt.names import NamedOptions
from trajopt.options import check_options

DEFAULT_MAX_CONTACTS = 16
DEFAULT_MAX_LIMITS = 8
PUSH_OUT_SPEED = 1.0  # m/s and rad/s: what parts bodies that overlap by centimetres within a tenth of a second
WHOLE_RESTITUTION = 0.01  # what is less counts in part: of a fall from 1 m a body returns by 0.1 mm
GAPS = ("speculative", "detect")


class Need(enum.Enum):
    """What a gradient mode needs of a contact law besides steps that can be evaluated and differentiated as they are."""

    NOTHING = "nothing"
    IMPULSES = "impulses, found by iterations"
    LABELS = "contacts that are held or open"
    IMPACTS = "impacts at one moment"
    SMOOTHING = "a smoothed law of the same kind"


@runtime_checkable
class ModeRequest(Protocol):
    """What a law looks at when it says whether it has a derivative of some gradient mode."""

    @property
    def need(self) -> Need:
        """What the mode needs of a law."""

    @property
    def purpose(self) -> str:
        """What the mode does, as the end of a sentence that begins with 'which'."""


class SolverOptions(NamedTuple):
    """How the contact problem of a step is solved.

    By `contact.solve`, to `tolerance` (None: by the precision) in at most `max_iterations` of one attempt; sweeps: a count makes
    that many Gauss-Seidel sweeps with the r-factors `r_factor` instead, whose remaining error is part of the step
    (`contact.sweeps`).
    """

    tolerance: float | None = None
    max_iterations: int = 50
    sweeps: int | None = None
    r_factor: str = "row-sum"


class NormalOffset(NamedTuple):
    """The law's part in n normal rows nu_n = J v+ + b: `offset` b (m/s), which rows exist, and which bounce (`impact`)."""

    offset: Float[Array, " n"]
    exists: Bool[Array, " n"]
    impact: Bool[Array, " n"]


class PushOut(NamedTuple):
    """The violation (m, rad) from which a law pushes out at its `push_out_speed`, and what follows, as part of a sentence."""

    depth: float
    consequence: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Softening:
    """Compliance of nc smoothed contacts: `factor` times the contact's own block of G is added to it.

    reached (nc,): contacts soft enough to be part of the problem; sharpness (nc,): factors in (0, 1) by which Gauss-Seidel
    sweeps scale the impulses, 1 / (1 + factor).
    """

    factor: Float[Array, " nc"]
    reached: Bool[Array, " nc"]
    sharpness: Float[Array, " nc"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law(NamedOptions):
    """Base of all contact laws. Immutable and hashable: part of what a compiled step depends on.

    Options:
        max_contacts: number of contacts that are kept, the closest ones. Default: all of them, at most 16.
        max_pairs: for each two kinds of shapes, the number of pairs whose contacts are computed: those that bounds of their
            distances say to be nearest. Pairs with planes and height fields are always computed. Default: as many pairs as
            have twice max_contacts contacts, at least 8; all pairs of the quick kinds (docs/collision.md).
        limits: whether joint limits act.
        joint_friction: whether dry joint friction acts.

    Of the class: carries_state, whether `State.contact` belongs to the law; solves_impulses, whether a step solves for
    impulses (`ContactLaw`) or evaluates forces (`ForceLaw`); acts, whether bodies feel each other at all; relaxed, whether rows
    push at every distance (`contact.central_path`); offers, what of the `Need`s of gradient modes the law meets.
    """

    max_contacts: int | None = None
    max_pairs: int | None = None
    limits: bool = True
    joint_friction: bool = True

    carries_state: ClassVar[bool] = False
    solves_impulses: ClassVar[bool] = False
    acts: ClassVar[bool] = True
    relaxed: ClassVar[bool] = False
    offers: ClassVar[frozenset[Need]] = frozenset()

    def __post_init__(self) -> None:
        check_options(self, max_contacts="[0, inf)", max_pairs="[1, inf)")

    @property
    def name(self) -> str:
        """What error messages call the law."""
        return type(self).__name__

    def contact_rows(self, model: Model) -> int:
        """Contacts in the problem of one step."""
        limit = self.pair_limit
        return min(contact_count(model, limit), limit.contacts)

    def limit_rows(self, model: Model) -> int:
        """Joint limits in the problem, or the report, of one step."""
        return len(model.topology.limited) if self.limits else 0

    @property
    def pair_limit(self) -> PairLimit:
        """How many pairs have their contacts computed."""
        contacts = DEFAULT_MAX_CONTACTS if self.max_contacts is None else self.max_contacts
        return PairLimit(contacts, self.max_pairs)

    def check(self, model: Model) -> None:
        """Raise `ModelError` when the model has shapes that this law cannot treat."""
        check_pairs(model.topology)

    def relaxation(self) -> Law | None:
        """The law with a force at every distance whose limit this one is; None where there is none."""
        return None

    def contact_state_shape(self, model: Model) -> tuple[int, int] | None:
        """Shape of `State.contact`: a row for each candidate contact of the model; None for a law without state."""
        return (contact_count(model), 3) if self.carries_state else None

    @property
    def takes_warm_start(self) -> bool:
        """Whether a step starts from the impulses of the step before."""
        return False

    @property
    def not_explicit(self) -> str | None:
        """Why an explicit integrator cannot treat the law, as the end of a sentence; None where it can."""
        return None

    @property
    def not_compiled(self) -> str | None:
        """Why the compiled core does not solve the law, as a sentence; None where it does."""
        return f"{self.name} is solved by the JAX implementation alone"

    def contact_sharpness(self, kappa: float | Float[Array, ""] | None) -> float | Float[Array, ""] | None:
        """kappa of the contacts' compliance exp(kappa phi), 1/m; None where they have none. Argument: `System.kappa`."""
        return None

    def largest_step(self, stability: float) -> float | None:
        """Largest dt (s) of a scheme that is stable up to dt lambda = `stability`; None where the law sets no bound.

        Asked of laws with a state of their own, which decays at a known rate lambda.
        """
        return None

    def push_out(self, dt: float) -> PushOut | None:
        """From which violation on the law pushes out at a speed of its own; None for a law that does not push by `erp`."""
        return None

    def refusal(self, mode: ModeRequest) -> str | None:
        """Why the law has no derivative of a gradient mode, and what to use instead; None where it has."""
        if mode.need is Need.NOTHING or mode.need in self.offers:
            return None
        return self._refused(mode)

    def _refused(self, mode: ModeRequest) -> str:
        return f"which is defined for RigidContact, BoxedLCP and NoContact; {self.name} is none of these: use 'implicit'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContactLaw(Law):
    """Base of the laws at velocity level, which are solved for the impulses of a step.

    Options:
        gap: "speculative": an open contact may close its gap within the step, but not cross it; "detect": contacts exist
            only at non-positive distance.
        erp: share of the penetration that a step pushes out, in [0, 1].
        push_out_speed (m/s): bound of the speed at which penetration is pushed out, in rad/s for limits of joints that
            turn; None: no bound.
        damping: coefficient $k_d$; $k_d v_n$ is added to the closed normal rows.
        rest_velocity (m/s): slower impacts do not bounce.
        max_limits: number of joint limits that are kept, the closest ones. Default: all of them, at most 8.
        tolerance: of the contact solver, relative to the velocities of the problem. Default: 1e-10 in float64, 1e-5 in
            float32.
        max_iterations: largest number of Newton iterations in one attempt of the contact solver.

    Of the class: cone, the shape that friction is bounded by (`ncp.NCP`); has_closed_form, whether
    `gradients.closed_form` is the Jacobian of a step: no compliance, and a problem solved to its tolerance. A law of one's
    own overrides `normal_offset` (and `contact_offset`), `softening` and `solver_options` as it needs.
    """

    gap: str = "speculative"
    erp: float = 0.2
    push_out_speed: float | None = PUSH_OUT_SPEED
    damping: float = 0.0
    rest_velocity: float = 0.01
    max_limits: int | None = None
    tolerance: float | None = None
    max_iterations: int = 50

    solves_impulses: ClassVar[bool] = True
    cone: ClassVar[str] = "disc"
    has_closed_form: ClassVar[bool] = True
    offers: ClassVar[frozenset[Need]] = frozenset({Need.LABELS})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(
            self,
            gap=GAPS,
            erp="[0, 1]",
            push_out_speed="(0, inf)",
            damping="[0, inf)",
            rest_velocity="[0, inf)",
            max_limits="[0, inf)",
            tolerance="(0, inf)",
            max_iterations="[1, inf)",
        )

    def limit_rows(self, model: Model) -> int:
        """Joint-limit rows in the problem of one step."""
        limit = DEFAULT_MAX_LIMITS if self.max_limits is None else self.max_limits
        return min(super().limit_rows(model), limit)

    @property
    def takes_warm_start(self) -> bool:
        return self.cone == "box"

    @property
    def not_explicit(self) -> str | None:
        return "is solved for impulses over a step"

    @property
    def closes_gaps(self) -> bool:
        """Whether contacts have rows while they are open, which let them close their gap within the step."""
        return self.gap == "speculative"

    @property
    def solver_options(self) -> SolverOptions:
        """How the contact problem of a step is solved."""
        return SolverOptions(self.tolerance, self.max_iterations)

    def normal_offset(
        self,
        distance: Float[Array, " n"],
        velocity: Float[Array, " n"],
        restitution: Float[Array, " n"],
        dt: Float[Array, ""],
    ) -> NormalOffset:
        """b of n normal rows at `distance` (m) and normal `velocity` (m/s): the table of docs/contact-semantics.md.

        Elementwise in its first three arguments, and differentiable in them: the closed-form Jacobian differentiates it.
        """
        open_ = distance > 0
        exists = ~open_ if self.gap == "detect" else jnp.ones_like(open_)
        room = distance / dt
        closes = velocity + distance / dt < 0
        gap = jnp.where(open_, room, self.pushed_out(distance, dt) + self.damping * velocity)
        return self.bouncing(gap, velocity, restitution, exists, closes & exists)

    def bouncing(
        self,
        gap: Float[Array, " n"],
        velocity: Float[Array, " n"],
        restitution: Float[Array, " n"],
        exists: Bool[Array, " n"],
        meets: Bool[Array, " n"],
    ) -> NormalOffset:
        """The offset of rows that have the offset `gap` without restitution; meets: the shapes meet within the step.

        Restitution below `WHOLE_RESTITUTION` counts in part, so that none is the limit of little.
        """
        impact = meets & (velocity < -self.rest_velocity)
        share = jnp.where(restitution < WHOLE_RESTITUTION, restitution / WHOLE_RESTITUTION, 1.0)
        return NormalOffset(
            jnp.where(impact, restitution * velocity + (1.0 - share) * gap, gap), exists, impact & (restitution > 0)
        )

    def impact_friction(
        self, friction: Float[Array, " n"], factor: Float[Array, " n"], restitution: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """Coefficients of friction of contacts that bounce; restitution below `WHOLE_RESTITUTION` counts in part here too."""
        return friction * (1.0 + jnp.minimum(restitution / WHOLE_RESTITUTION, 1.0) * (factor - 1.0))

    def push_out(self, dt: float) -> PushOut | None:
        if self.erp == 0:
            return None
        cap = self.push_out_speed
        if cap is None:
            throw = "the first steps throw it out, however fast (push_out_speed=None)"
            return PushOut(PUSH_OUT_SPEED * dt / self.erp, throw)
        return PushOut(cap * dt / self.erp, f"the first steps push it out at push_out_speed={cap:g} (m/s, rad/s)")

    def pushed_out(self, distance: Float[Array, " n"], dt: Float[Array, ""]) -> Float[Array, " n"]:
        """erp phi / dt of penetrated rows, or -push_out_speed where that is slower; its slope by phi and dt is zero there."""
        push = self.erp * distance / dt
        return push if self.push_out_speed is None else jnp.where(push < -self.push_out_speed, -self.push_out_speed, push)

    def contact_offset(
        self,
        distance: Float[Array, " n"],
        velocity: Float[Array, " n"],
        restitution: Float[Array, " n"],
        dt: Float[Array, ""],
    ) -> NormalOffset:
        """`normal_offset` for the normal rows of contacts, where these differ from joint limits."""
        return self.normal_offset(distance, velocity, restitution, dt)

    def softening(
        self, distance: Float[Array, " nc"], exists: Bool[Array, " nc"], kappa: Float[Array, ""] | None
    ) -> Softening | None:
        """Compliance of the contacts at `distance` (m), None for rigid ones; kappa: `System.kappa`."""
        return None

    def smoothed(self) -> ContactLaw | None:
        """The smoothed law with the options of this one, which offers `Need.SMOOTHING`; None where there is none."""
        return None


def refused_by(reasons: Mapping[Need, str], mode: ModeRequest, name: str) -> str | None:
    """The sentence of `reasons` for what the mode needs, with the law's name in the place of {name}."""
    reason = reasons.get(mode.need)
    return None if reason is None else reason.format(name=name, purpose=mode.purpose)
