"""Contact laws: which forces act where bodies meet. Options only; the algorithms are in the modules beside this one."""

from __future__ import annotations

import dataclasses

from trajopt.dynamics.collision.pairs import check_pairs, contact_count
from trajopt.dynamics.contact.solve import SOLVERS
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import closest

DEFAULT_MAX_CONTACTS = 16
DEFAULT_MAX_LIMITS = 8


@dataclasses.dataclass(frozen=True)
class ContactLaw:
    """Base of the laws at velocity level. Immutable and hashable: part of what a compiled step depends on.

    gap: "speculative" (an open contact may close its gap within the step, not cross it) or "detect" (contacts exist only at
    non-positive distance). erp in [0, 1]: share of the penetration pushed out per step. damping: k_d, adds k_d v_n to
    closed normal rows. rest_velocity (m/s): slower impacts do not bounce. max_contacts: contacts kept for the solve, the
    closest (default: all, at most 16); max_limits: joint limits likewise (default 8). limits, joint_friction: whether these
    rows are part of the problem. tolerance: of the solve, default 1e-10 in float64, 1e-5 in float32.
    """

    gap: str = "speculative"
    erp: float = 0.2
    damping: float = 0.0
    rest_velocity: float = 0.01
    max_contacts: int | None = None
    max_limits: int | None = None
    limits: bool = True
    joint_friction: bool = True
    tolerance: float | None = None
    max_iterations: int = 50

    def __post_init__(self) -> None:
        if self.gap not in ("speculative", "detect"):
            raise OptionError(f"gap is '{self.gap}'{closest(str(self.gap), ('speculative', 'detect'))}")
        if not 0.0 <= self.erp <= 1.0:
            raise OptionError(f"erp is {self.erp}, expected a number in [0, 1] (share of penetration removed per step)")
        if self.rest_velocity < 0 or self.damping < 0:
            raise OptionError("rest_velocity and damping must not be negative")
        for name in ("max_contacts", "max_limits"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise OptionError(f"{name} is {value}, expected a count or None")
        if self.tolerance is not None and not self.tolerance > 0:
            raise OptionError(f"tolerance is {self.tolerance}, expected a positive number or None")
        if self.max_iterations < 1:
            raise OptionError(f"max_iterations is {self.max_iterations}, expected at least 1")

    def contact_rows(self, model: Model) -> int:
        """Contacts in the problem of one step."""
        limit = DEFAULT_MAX_CONTACTS if self.max_contacts is None else self.max_contacts
        return min(contact_count(model), limit)

    def limit_rows(self, model: Model) -> int:
        """Joint-limit rows in the problem of one step."""
        if not self.limits:
            return 0
        limit = DEFAULT_MAX_LIMITS if self.max_limits is None else self.max_limits
        return min(len(model.topology.limited), limit)

    def check(self, model: Model) -> None:
        """Raise `ModelError` when the model has shapes that this law cannot treat."""
        check_pairs(model.topology)


@dataclasses.dataclass(frozen=True)
class RigidContact(ContactLaw):
    """Hard contact: Signorini, the circular friction cone and maximum dissipation, unrelaxed (Simple eq. 1).

    solver: "newton" (semismooth Newton with fallbacks), "admm" or "pgs" (projected Gauss-Seidel).
    """

    solver: str = "newton"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in SOLVERS:
            raise OptionError(f"solver is '{self.solver}'{closest(str(self.solver), SOLVERS)}")


@dataclasses.dataclass(frozen=True)
class NoContact(ContactLaw):
    """No contact, no joint limits and no dry joint friction: the free motion of the model."""

    limits: bool = False
    joint_friction: bool = False

    def contact_rows(self, model: Model) -> int:
        return 0

    def check(self, model: Model) -> None:
        return None
