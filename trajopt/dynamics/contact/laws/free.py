"""Free motion: bodies pass through each other."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.contact.laws.base import ContactLaw, Need
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
