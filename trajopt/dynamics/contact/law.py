"""Contact laws: which forces act where bodies meet. Options only; the algorithms are in the modules beside this one."""

from __future__ import annotations

import abc
import dataclasses
import math
import numbers
from typing import ClassVar

import jax
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.collision.pairs import check_pairs, contact_count
from trajopt.dynamics.contact.solve import SOLVERS
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import closest

DEFAULT_MAX_CONTACTS = 16
DEFAULT_MAX_LIMITS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """Base of all laws. Immutable and hashable: part of what a compiled step depends on.

    max_contacts: contacts kept, the closest (default: all, at most 16). max_pairs: pairs of each two kinds of shapes whose
    contacts are computed, those that bounds of their distances say to be nearest; all against planes and height fields
    (default: as many as have twice max_contacts contacts, at least 8; all of the quick kinds, docs/collision.md). limits,
    joint_friction: whether joint limits and dry joint friction act. carries_state: whether `State.contact` belongs to the law.
    """

    max_contacts: int | None = None
    max_pairs: int | None = None
    limits: bool = True
    joint_friction: bool = True

    carries_state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_count("max_contacts", self.max_contacts)
        if self.max_pairs is not None and not (isinstance(self.max_pairs, numbers.Integral) and self.max_pairs >= 1):
            raise OptionError(
                f"max_pairs is {self.max_pairs!r}, expected a number of pairs of each two kinds of shapes, at least 1, or None"
            )

    def contact_rows(self, model: Model) -> int:
        """Contacts in the problem of one step."""
        limit = self.pair_limit
        return min(contact_count(model, limit), limit.contacts)

    @property
    def pair_limit(self) -> PairLimit:
        """How many pairs have their contacts computed."""
        contacts = DEFAULT_MAX_CONTACTS if self.max_contacts is None else self.max_contacts
        return PairLimit(contacts, self.max_pairs)

    def check(self, model: Model) -> None:
        """Raise `ModelError` when the model has shapes that this law cannot treat."""
        check_pairs(model.topology)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContactLaw(Law):
    """Base of the laws at velocity level, which are solved for the impulses of a step.

    gap: "speculative" (an open contact may close its gap within the step, not cross it) or "detect" (contacts exist only at
    non-positive distance). erp in [0, 1]: share of the penetration pushed out per step. damping: k_d, adds k_d v_n to
    closed normal rows. rest_velocity (m/s): slower impacts do not bounce. max_contacts: contacts kept for the solve, the
    closest (default: all, at most 16); max_limits: joint limits likewise (default 8); max_pairs: as in `Law`. limits,
    joint_friction: whether these rows are part of the problem. tolerance: of the solve, default 1e-10 in float64, 1e-5 in
    float32. max_iterations: of its Newton iteration, per attempt.
    """

    gap: str = "speculative"
    erp: float = 0.2
    damping: float = 0.0
    rest_velocity: float = 0.01
    max_limits: int | None = None
    tolerance: float | None = None
    max_iterations: int = 50

    cone: ClassVar[str] = "disc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap not in ("speculative", "detect"):
            raise OptionError(f"gap is '{self.gap}'{closest(str(self.gap), ('speculative', 'detect'))}")
        if not 0.0 <= self.erp <= 1.0:
            raise OptionError(f"erp is {self.erp}, expected a number in [0, 1] (share of penetration removed per step)")
        if self.rest_velocity < 0 or self.damping < 0:
            raise OptionError("rest_velocity and damping must not be negative")
        _check_count("max_limits", self.max_limits)
        if self.tolerance is not None and not self.tolerance > 0:
            raise OptionError(f"tolerance is {self.tolerance}, expected a positive number or None")
        if self.max_iterations < 1:
            raise OptionError(f"max_iterations is {self.max_iterations}, expected at least 1")

    def limit_rows(self, model: Model) -> int:
        """Joint-limit rows in the problem of one step."""
        if not self.limits:
            return 0
        limit = DEFAULT_MAX_LIMITS if self.max_limits is None else self.max_limits
        return min(len(model.topology.limited), limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RigidContact(ContactLaw):
    """Hard contact: Signorini, the circular friction cone and maximum dissipation, unrelaxed (Simple eq. 1).

    solver: "newton" (semismooth Newton with fallbacks), "admm" or "pgs" (projected Gauss-Seidel).
    """

    solver: str = "newton"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in SOLVERS:
            raise OptionError(f"solver is '{self.solver}'{closest(str(self.solver), SOLVERS)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxedLCP(ContactLaw):
    """Hard contact with friction bounded along each tangent by itself, |lambda_t| <= mu lambda_n (Nimble, App. A; DART, ODE).

    The square bounds replace the circular cone: friction is mu lambda_n along the tangents of the contact frame and up to
    sqrt(2) mu lambda_n between them. Solved directly: a guess of the modes, verified, else a pivoting method
    (docs/boxed-lcp.md). max_iterations: pivots.
    """

    max_iterations: int = 2000

    cone: ClassVar[str] = "box"
    solver: ClassVar[str] = "direct"


R_FACTORS = ("row-sum", "determinant")


@dataclasses.dataclass(frozen=True)
class SmoothedContact(ContactLaw):
    """Hard contact smoothed analytically: impulses scaled by sigmoid(kappa depth), so that they act at a distance (Smoothed 3.3).

    Contacts exist at every distance, impulses fade with it over 1 / kappa; for growing kappa the law tends to
    `RigidContact(gap="detect")` wherever the distance is not zero (docs/smoothed-contact.md).

    kappa (1/m): sharpness; `System(kappa=...)` takes its place where it changes over time, without compiling anew.
    sweeps: None solves the law to `tolerance`; a count makes that many Gauss-Seidel sweeps, as in the source (10), whose
    remaining error is part of the step. r_factor, of the sweeps: "row-sum", or the source's "determinant".
    gap: of joint limits, which are not smoothed. Others as in `ContactLaw`.
    """

    kappa: float = 300.0
    _: dataclasses.KW_ONLY
    gap: str = "detect"
    sweeps: int | None = None
    r_factor: str = R_FACTORS[0]

    solver: ClassVar[str] = "newton"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kappa(self.kappa)
        if self.sweeps is not None:
            check_sweeps(self.sweeps, self.r_factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoContact(ContactLaw):
    """No contact, no joint limits and no dry joint friction: the free motion of the model."""

    limits: bool = False
    joint_friction: bool = False

    @property
    def pair_limit(self) -> PairLimit:
        return PairLimit(0, 0)

    def check(self, model: Model) -> None:
        return None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointForces:
    """Forces of a `ForceLaw` on body 1 at k contact points, N, world axes.

    normal (k,) along the normal, not negative; tangent (k, 3); sliding (k,): friction is at the bound of its cone;
    rate (k, 3): time derivative of the tangential deformation, m/s, None for a law without state.
    """

    normal: Float[Array, " k"]
    tangent: Float[Array, "k 3"]
    sliding: Bool[Array, " k"]
    rate: Float[Array, "k 3"] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceLaw(Law, abc.ABC):
    """Base of the laws at force level: forces are explicit functions of the state, nothing is solved.

    Joint limits are one-sided springs with the dissipation of Hunt and Crossley: a limit passed by d, at the rate d', pushes
    back with max(0, limit_stiffness d (1 + limit_dissipation d')), in N m per rad and s per rad (N per m and s per m for
    slides), which is continuous. Dry joint friction of bound b is smoothed to -b v / sqrt(v^2 + friction_velocity^2). Both
    are as stiff as their parameters and limit the step of an explicit integrator. Coefficients of restitution are not used:
    how much bounces follows from the damping.
    """

    limit_stiffness: float = 1e4
    limit_dissipation: float = 1.0
    friction_velocity: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(positive=("limit_stiffness", "friction_velocity"), not_negative=("limit_dissipation",))

    def _require(self, positive: tuple[str, ...] = (), not_negative: tuple[str, ...] = ()) -> None:
        """Raise `OptionError` naming the option that is out of its range."""
        for name in (*positive, *not_negative):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value > 0 if name in positive else value >= 0)):
                expected = "positive" if name in positive else "finite and not negative"
                raise OptionError(f"{name} is {value}, expected a {expected} number")

    @property
    def relaxation_rate(self) -> float:
        """Rate, 1/s, at which a contact state that is carried decays: a bound on the step of explicit integration."""
        return 0.0

    def limit_rows(self, model: Model) -> int:
        """Joint limits whose forces are reported: all of them."""
        return len(model.topology.limited) if self.limits else 0

    @abc.abstractmethod
    def force(
        self,
        depth: Float[Array, " k"],
        closing: Float[Array, " k"],
        slip: Float[Array, "k 3"],
        deformation: Float[Array, "k 3"] | None,
        friction: Float[Array, " k"],
    ) -> PointForces:
        """Forces at penetration `depth` (m, negative: apart), its rate `closing` (m/s) and tangential velocity `slip` (m/s)
        of body 1 relative to body 2; `deformation` (m): tangential, None for a law without state."""


def _check_count(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        raise OptionError(f"{name} is {value}, expected a count or None")


def check_kappa(kappa: float) -> None:
    """Raise `OptionError` unless it is a sharpness of smoothing."""
    if not (isinstance(kappa, numbers.Real) and math.isfinite(kappa) and kappa > 0):
        raise OptionError(
            f"kappa is {kappa!r}, expected a positive number (1/m): contact acts over a distance of 1 / kappa"
        )


def check_sweeps(sweeps: int, r_factor: str) -> None:
    """Raise `OptionError` for options that Gauss-Seidel cannot take."""
    if not (isinstance(sweeps, numbers.Integral) and sweeps >= 1):
        raise OptionError(f"sweeps is {sweeps!r}, expected at least 1 Gauss-Seidel sweep")
    if r_factor not in R_FACTORS:
        raise OptionError(f"r_factor is '{r_factor}'{closest(str(r_factor), R_FACTORS)}")
