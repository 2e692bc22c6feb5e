"""Gradient modes of a `System` by name, their options, and which mode a contact law has (docs/gradients.md)."""

from __future__ import annotations

import dataclasses
import math

from trajopt.dynamics.contact.complementarity import LABELLINGS
from trajopt.dynamics.contact.law import (
    R_FACTORS,
    BoxedLCP,
    ContactLaw,
    ForceLaw,
    Law,
    NoContact,
    RigidContact,
    SmoothedContact,
    check_sweeps,
)
from trajopt.dynamics.contact.modes import ContactMode
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import closest

COMPLEMENTARITY_AWARE = "complementarity-aware"
DIFFERENCES = ("finite-difference", "ridders")
ESTIMATED = (*DIFFERENCES, "randomized")  # from evaluations of the step at other states
GRADIENTS = ("implicit", COMPLEMENTARITY_AWARE, "smoothed", "randomized", "bounce", *DIFFERENCES, "unrolled")
KAPPA = 300.0  # 1/m, the source's: contact acts over some millimetres


@dataclasses.dataclass(frozen=True)
class GradientOptions:
    """Options of gradient modes; part of what a compiled step depends on.

    Of `randomized`: samples of the perturbations, normally distributed with standard deviations position_deviation (m, rad;
    tangent coordinates), velocity_deviation (m/s, rad/s) and control_deviation (N, N m), drawn from `seed` in pairs of
    opposite sign; order 1: mean of the exact derivatives there, order 0: least-squares fit to the steps there, 2 for each
    sample, at least as many samples as 2 nv + nu.
    Of `finite-difference` and `ridders`: difference_step, the (largest) half step, in tangent coordinates, and relative to the
    largest entry for parameters; None for eps^(1/3) and 1e-2.
    Of `unrolled`: sweeps and r_factor of `contact.unrolled`.
    """

    samples: int = 64
    order: int = 1
    position_deviation: float = 1e-3
    velocity_deviation: float = 1e-2
    control_deviation: float = 1e-2
    seed: int = 0
    difference_step: float | None = None
    sweeps: int = 10
    r_factor: str = R_FACTORS[0]

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise OptionError(f"samples is {self.samples}, expected at least 1")
        if self.order not in (0, 1):
            raise OptionError(
                f"order is {self.order!r}, expected 1 (mean of derivatives) or 0 (fit to the steps themselves)"
            )
        for name in ("position_deviation", "velocity_deviation", "control_deviation"):
            value = getattr(self, name)
            lowest = "positive with order 0, which has no derivative without it" if self.order == 0 else "not negative"
            if not math.isfinite(value) or value < 0 or (self.order == 0 and value == 0):
                raise OptionError(f"{name} is {value}, expected a finite number, {lowest}")
        step = self.difference_step
        if step is not None and not (math.isfinite(step) and step > 0):
            raise OptionError(f"difference_step is {step}, expected a positive number or None")
        check_sweeps(self.sweeps, self.r_factor)

    def contact_mode(self, gradient: str, labellings: str) -> ContactMode:
        """What `contact.modes` needs to know."""
        return ContactMode(gradient, labellings, self.sweeps, self.r_factor)


def check_gradient(gradient: str, law: Law, labellings: str, options: GradientOptions) -> None:
    """Raise `OptionError` for an unknown gradient mode, and for one that the law does not define."""
    if gradient not in GRADIENTS:
        raise OptionError(f"gradient is '{gradient}'{closest(str(gradient), GRADIENTS)}")
    if labellings not in LABELLINGS:
        raise OptionError(f"labellings is '{labellings}'{closest(str(labellings), LABELLINGS)}")
    if not isinstance(options, GradientOptions):
        raise OptionError(f"options is {options!r}, expected GradientOptions(...)")
    reason = _undefined(gradient, law)
    if reason is not None:
        raise OptionError(f"gradient is '{gradient}', {reason}")
    if gradient == "randomized" and options.order == 0 and law.carries_state:
        raise OptionError(
            f"gradient is 'randomized' with order 0, which perturbs q, v and u, but {type(law).__name__} carries a state "
            "besides; use order=1"
        )


def check_samples(gradient: str, options: GradientOptions, model: Model) -> None:
    """Raise `OptionError` where there are fewer samples than unknowns of the fit."""
    unknowns = 2 * model.nv + model.nu
    if gradient == "randomized" and options.order == 0 and options.samples < unknowns:
        raise OptionError(
            f"samples is {options.samples}, but with order 0 the fit for model '{model.name}' has {unknowns} unknowns "
            f"(2 nv + nu); use at least as many samples, or order=1"
        )


def _undefined(gradient: str, law: Law) -> str | None:
    """Why the law does not define the mode and what to use instead; None where it does."""
    name = type(law).__name__
    if gradient == "implicit" or gradient in ESTIMATED or isinstance(law, NoContact):
        return None
    if isinstance(law, ForceLaw):
        what = {
            COMPLEMENTARITY_AWARE: "relabels the contacts of a law at velocity level",
            "smoothed": "smooths the impulses of a hard contact law",
            "bounce": "reflects positions by the impulses of a hard contact law",
            "unrolled": "differentiates the iterations that solve for impulses",
        }[gradient]
        return (
            f"which {what}; {name} has forces that are functions of the state, and none of that: use 'implicit', their "
            "exact derivative"
        )
    if isinstance(law, SmoothedContact):
        reasons = {
            COMPLEMENTARITY_AWARE: f"which relabels contacts that are held or open; those of {name} are neither, and their "
            "exact derivative already tells of contact at a distance: use 'implicit'",
            "smoothed": f"which smooths a hard contact law; {name} is smooth itself: use 'implicit', with System(kappa=...)",
            "bounce": f"which reflects positions at the moment of an impact; impacts of {name} are spread over a distance: "
            "use 'implicit', or RigidContact()",
        }
        return reasons.get(gradient)
    if isinstance(law, RigidContact | BoxedLCP):
        return None
    if gradient == COMPLEMENTARITY_AWARE and isinstance(law, ContactLaw):
        return None
    return f"which is defined for RigidContact, BoxedLCP and NoContact; {name} is none of these: use 'implicit'"
