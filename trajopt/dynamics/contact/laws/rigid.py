"""Hard contact: nothing relaxed, friction in the circular cone or between bounds along each tangent.

Free motion: bodies pass through each other.
"""

import dataclasses
from typing import ClassVar

from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.contact.laws.base import ContactLaw, Need
from trajopt.dynamics.contact.laws.relaxed import RelaxedContact
from trajopt.dynamics.contact.laws.smoothed import SmoothedBox, SmoothedContact
from trajopt.dynamics.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoContact(ContactLaw):
    """No contact, no joint limits and no dry joint friction: the free motion of the model. Its options have no effect."""

    limits: bool = False
    joint_friction: bool = False

    acts: ClassVar[bool] = False
    offers: ClassVar[frozenset[Need]] = frozenset(Need)

    @property
    def pair_limit(self) -> PairLimit:
        return PairLimit(0, 0)

    def check(self, model: Model) -> None:
        return None

    @property
    def not_explicit(self) -> str | None:
        rows = self.limits or self.joint_friction
        return "with limits or dry joint friction is solved for impulses" if rows else None

    @property
    def not_compiled(self) -> str | None:
        return None if type(self) is NoContact else super().not_compiled


_ALL = frozenset(Need)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RigidContact(ContactLaw):
    """Hard contact: Signorini, the circular friction cone and maximum dissipation, unrelaxed (Simple eq. 1)."""

    offers: ClassVar[frozenset[Need]] = _ALL

    @property
    def not_compiled(self) -> str | None:
        # A law derived from it may have other rows.
        return None if type(self) is RigidContact else super().not_compiled

    def smoothed(self) -> SmoothedContact:
        return SmoothedContact(**_shared_options(self))

    def relaxation(self) -> RelaxedContact | None:
        if type(self) is not RigidContact:
            return None
        return RelaxedContact(
            erp=self.erp, push_out_speed=self.push_out_speed, limits=self.limits, joint_friction=self.joint_friction
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxedLCP(ContactLaw):
    """Hard contact with friction bounded along each tangent by itself, $|lambda_t| <= mu lambda_n$ (Nimble, App. A; DART, ODE).

    The square bounds replace the circular cone: friction is $mu lambda_n$ along the tangents of the contact frame and up to
    $sqrt(2) mu lambda_n$ between them. The solver is that of `RigidContact`, with a
    pivoting method in place of Gauss-Seidel (docs/notes/boxed-lcp.md).

    Options:
        max_iterations: largest number of Newton iterations in one attempt, and of pivots.
    """

    max_iterations: int = 2000

    cone: ClassVar[str] = "box"
    offers: ClassVar[frozenset[Need]] = _ALL

    def smoothed(self) -> SmoothedContact:
        return SmoothedBox(**_shared_options(self))


def _shared_options(law: ContactLaw) -> dict:
    """The options that every law at velocity level has."""
    return {field.name: getattr(law, field.name) for field in dataclasses.fields(ContactLaw)}
