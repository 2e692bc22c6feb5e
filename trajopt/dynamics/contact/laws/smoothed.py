r"""Analytically smoothed contact (Smoothed, section 3.3 and Alg. 1) as a problem with compliance.

The source's Gauss-Seidel iteration scales impulses by s_k = sigmoid(kappa d_k), d_k the depth of contact k: those of the other
contacts wherever they act, and all of them at the end. At its fixed point p, in terms of the impulses P_k = s_k p_k that act,

    P_j in the cone of j, law between P_j and   nu_j = sum_k G_jk P_k + (1 / s_j - 1) G_jj P_j + g_j,

since a cone does not mind the factor. So the smoothed law is the unsmoothed one with a compliance in every contact,

    G + blockdiag(exp(kappa phi_j) G_jj),        1 / s - 1 = exp(-kappa d) = exp(kappa phi),

which is solved, and differentiated, like hard contact. It vanishes at depth, doubles a contact's inverse mass at phi = 0, and
grows beyond all bounds with the distance: contacts that it makes softer than rounding (kappa phi > `far`) are left out. Being
positive definite it leaves no impulse undetermined.
"""

import dataclasses
import numbers
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact.laws.base import (
    ContactLaw,
    ModeRequest,
    Need,
    NormalOffset,
    Softening,
    SolverOptions,
    refused_by,
)
from trajopt.errors import OptionError
from trajopt.options import check_options

R_FACTORS = ("row-sum", "determinant")
KAPPA_MEANING = "a positive number (1/m): contact acts over a distance of 1 / kappa"
_REFUSED = {
    Need.LABELS: "which relabels contacts that are held or open; those of {name} are neither, and their exact derivative "
    "already tells of contact at a distance: use 'implicit'",
    Need.SMOOTHING: "which smooths a hard contact law; {name} is smooth itself: use 'implicit', with System(kappa=...)",
    Need.IMPACTS: "which reflects positions at the moment of an impact; impacts of {name} are spread over a distance: use "
    "'implicit', or RigidContact()",
}


@dataclasses.dataclass(frozen=True)
class SmoothedContact(ContactLaw):
    """Hard contact smoothed analytically: impulses scaled by sigmoid(kappa depth), so that they act at a distance (Smoothed
    3.3).

    Contacts exist at every distance, and their impulses fade with it over 1 / kappa. For growing kappa the law tends to
    `RigidContact(gap="detect")` wherever the distance is not zero (docs/contact-laws.md).

    Options:
        kappa (1/m): sharpness. `System(kappa=...)` takes its place where it changes over time, without compiling anew.
        sweeps: None solves the law to `tolerance`; a count makes that many Gauss-Seidel sweeps, as in the source's equation
            10, whose remaining error is part of the step.
        r_factor: step length of the sweeps: "row-sum", or the source's "determinant".
        gap: treatment of the gaps of joint limits, which are not smoothed: "detect" or "speculative", as in `ContactLaw`.
    """

    kappa: float = 300.0
    _: dataclasses.KW_ONLY
    gap: str = "detect"
    sweeps: int | None = None
    r_factor: str = R_FACTORS[0]

    has_closed_form: ClassVar[bool] = False
    offers: ClassVar[frozenset[Need]] = frozenset({Need.IMPULSES})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kappa(self.kappa)
        check_options(self, sweeps="[1, inf)", r_factor=R_FACTORS)

    @property
    def solver_options(self) -> SolverOptions:
        return SolverOptions(self.tolerance, self.max_iterations, self.sweeps, self.r_factor)

    @property
    def closes_gaps(self) -> bool:
        return False

    def contact_offset(
        self,
        distance: Float[Array, " n"],
        velocity: Float[Array, " n"],
        restitution: Float[Array, " n"],
        dt: Float[Array, ""],
    ) -> NormalOffset:
        """As `normal_offset`, but contacts exist at every distance, have no gap to close, and bounce at a distance too."""
        everywhere = jnp.ones_like(distance > 0)
        pushed_out = self.pushed_out(distance, dt) + self.damping * velocity
        gap = jnp.where(distance > 0, jnp.zeros_like(distance), pushed_out)
        return self.bouncing(gap, velocity, restitution, everywhere, everywhere)

    @property
    def not_compiled(self) -> str | None:
        if type(self) is not SmoothedContact:  # a law derived from it may have other rows
            return super().not_compiled
        return None if self.sweeps is None else f"sweeps={self.sweeps} is a method of the JAX implementation"

    def contact_sharpness(self, kappa: float | Float[Array, ""] | None) -> float | Float[Array, ""]:
        return self.kappa if kappa is None else kappa

    def softening(
        self, distance: Float[Array, " nc"], exists: Bool[Array, " nc"], kappa: Float[Array, ""] | None
    ) -> Softening:
        """exp(kappa phi) of every contact, zero for those whose impulse is below rounding."""
        sharpness = self.contact_sharpness(kappa)
        reached = exists & (sharpness * distance < far(distance.dtype))
        factor = jnp.exp(jnp.where(reached, sharpness * distance, -jnp.inf))
        return Softening(factor, reached, jax.nn.sigmoid(-sharpness * distance))

    def _refused(self, mode: ModeRequest) -> str:
        return refused_by(_REFUSED, mode, self.name) or super()._refused(mode)


@dataclasses.dataclass(frozen=True)
class SmoothedBox(SmoothedContact):
    """`SmoothedContact` with friction bounded tangent by tangent: the smoothed law of `BoxedLCP`."""

    cone: ClassVar[str] = "box"


def far(dtype: Any) -> float:
    """kappa phi from which an impulse is below rounding: exp(-far) is 100 eps."""
    return float(-np.log(100 * np.finfo(dtype).eps))


def kappa_schedule(first: float, last: float, count: int) -> Float[np.ndarray, " count"]:
    """`count` values from `first` to `last`, 1/m, in equal ratios: smoothing that is taken back while an optimisation runs.

    Give them to `System(kappa=...)` one after another; nothing is compiled anew. Raises `OptionError`.
    """
    check_kappa(first)
    check_kappa(last)
    if count < 1:
        raise OptionError(f"count is {count}, expected at least 1 value of kappa")
    return np.geomspace(first, last, count)


def check_kappa(kappa: float) -> None:
    """Raise `OptionError` unless it is a sharpness of smoothing."""
    if not (isinstance(kappa, numbers.Real) and 0 < kappa < np.inf):
        raise OptionError(f"kappa is {kappa!r}, expected {KAPPA_MEANING}")
