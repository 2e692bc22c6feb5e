"""Contact on the central path: a force at every distance that falls with it, and that vanishes with rho.

`contact.central_path` has the equations and their solution.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.collision.broadphase import PairLimit
from trajopt.dynamics.contact.laws.base import ContactLaw, ModeRequest, Need, refused_by
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError

RHO_MEANING = "a positive number (J): at rest the force across a gap phi is rho / phi"
EVERY = 10**9  # contacts and pairs: as many as the model has
ROUNDING = 10  # units of rounding of the energy at 1 m/s below which rho is lost
_REFUSED = {
    Need.LABELS: "which relabels contacts that are held or open; those of {name} are neither, and their exact derivative "
    "already tells of contact at a distance: use 'implicit'",
    Need.SMOOTHING: "which smooths a hard contact law; {name} is smooth itself: use 'implicit', with System(rho=...)",
    Need.IMPACTS: "which reflects positions at the moment of an impact; {name} pushes at every distance: use 'implicit', or "
    "RigidContact()",
    Need.IMPULSES: "which {purpose}; {name} is solved by an interior-point method, whose derivative is 'implicit'",
}


@dataclasses.dataclass(frozen=True)
class RelaxedContact(ContactLaw):
    r"""Contact that acts at every distance: the contact problem on its central path at rho.

    Every normal row, and every joint limit, has an impulse with $\\lambda_n w = \\rho$, w = nu_n + b: bodies at rest across a gap
    phi push each other with the force rho / phi, so that the derivative tells of contacts that are not made. Friction is
    relaxed with the same rho, and so is the dry friction of joints. Smooth in state, control and parameters but for the kinks of
    the offset b, at phi = 0 and where push-out and restitution begin. The limit for rho -> 0 is `RigidContact`
    (docs/contact-laws.md).

    Options:
        rho (J): how far contact is relaxed; 0.1 to 1e-4 in an optimisation of a robot of some kilograms. `System` keeps it as a
            number, `System.rho`, by which steps can be differentiated: another value needs no other compilation.
        max_contacts: number of contacts that act, the closest ones. Default: all. With fewer than the model has the step jumps
            where another one becomes the closest, by the force rho / phi of either.
        max_iterations: largest number of iterations of the interior-point method.
    """

    rho: Any = None
    _: dataclasses.KW_ONLY
    max_iterations: int = 60

    relaxed: ClassVar[bool] = True
    has_closed_form: ClassVar[bool] = False
    offers: ClassVar[frozenset[Need]] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho is not None:
            check_rho(self.rho)
        if self.gap != "speculative":
            raise OptionError(
                f"gap is '{self.gap}', but contacts of RelaxedContact act at every distance: leave it out, or use RigidContact"
            )
        if self.max_limits is not None:
            raise OptionError(
                f"max_limits is {self.max_limits!r}, but both limits of every joint act under RelaxedContact: leave it out"
            )

    def limit_rows(self, model: Model) -> int:
        """Both limits of every joint: the lower ones, then the upper ones."""
        return 2 * len(model.topology.limited) if self.limits else 0

    @property
    def pair_limit(self) -> PairLimit:
        if self.max_contacts is None:
            return PairLimit(EVERY, EVERY if self.max_pairs is None else self.max_pairs)
        return PairLimit(self.max_contacts, self.max_pairs)

    @property
    def not_compiled(self) -> str | None:
        return None if type(self) is RelaxedContact else super().not_compiled  # a law derived from it may have other rows

    def without_rho(self) -> RelaxedContact:
        """The law of any rho: what is static of it."""
        return self if self.rho is None else dataclasses.replace(self, rho=None)

    def _refused(self, mode: ModeRequest) -> str:
        return refused_by(_REFUSED, mode, self.name) or super()._refused(mode)


def check_rho(rho: Any) -> None:
    """Raise `OptionError` unless it is an energy; what JAX traces passes."""
    if not _is_known(rho):
        if rho is None or isinstance(rho, numbers.Complex | str | bytes | list | tuple | dict | set):
            raise OptionError(f"rho is {rho!r}, expected {RHO_MEANING}")
        return
    known = np.asarray(rho)
    if not (known.dtype.kind in "fiu" and np.all(np.isfinite(known)) and np.all(known > 0)):
        raise OptionError(f"rho is {rho!r}, expected {RHO_MEANING}")


def resolved_rho(law: RelaxedContact, rho: Any, model: Model) -> Any:
    """The number that a `System` keeps, or where shapes alone are known its shape: the law's rho, or else the system's `rho`.

    Raises `OptionError` where there is none, and for one below the rounding of the model's numbers.
    """
    chosen = rho if law.rho is None else law.rho
    if chosen is None:
        raise OptionError(
            f"contact is RelaxedContact() without rho: give RelaxedContact(rho) or System(rho=...), {RHO_MEANING}"
        )
    check_rho(chosen)
    if not _is_known(chosen):
        return chosen
    smallest, least = float(np.min(np.asarray(chosen))), least_rho(model)
    if smallest < least:
        name = np.dtype(model.mass.dtype).name
        raise OptionError(
            f"rho is {smallest:g} J, below {least:.2g} J, what {name} resolves of the motion of model '{model.name}': "
            "use RigidContact(), its limit, or a larger rho"
        )
    return jnp.asarray(chosen, float)


def least_rho(model: Model) -> float:
    """The rho, J, below which the model's numbers do not resolve the motion; 0 where JAX traces the masses."""
    return ROUNDING * float(jnp.finfo(model.mass.dtype).eps) * float(np.sum(model.mass)) if _is_known(model.mass) else 0.0


def _is_known(value: Any) -> bool:
    """Whether a value is a number or an array of numbers, not one that JAX traces."""
    return isinstance(value, numbers.Real | np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer)
