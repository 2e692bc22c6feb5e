"""Options of the gradient modes that are named by a string."""

from __future__ import annotations

import dataclasses
import math

from trajopt.dynamics.contact.laws.smoothed import R_FACTORS, check_sweeps
from trajopt.errors import OptionError


@dataclasses.dataclass(frozen=True)
class GradientOptions:
    """Options of gradient modes; part of what a compiled step depends on.

    Of `randomized`: samples of the perturbations, normally distributed with standard deviations position_deviation (m, rad;
    tangent coordinates), velocity_deviation (m/s, rad/s) and control_deviation (N, N m), drawn from `seed` in pairs of
    opposite sign; order 1: mean of the exact derivatives there, order 0: least-squares fit to the steps there, 2 for each
    sample, at least as many samples as 2 nv + nu.
    Of `finite-difference` and `ridders`: difference_step, the (largest) half step, in tangent coordinates, and relative to the
    largest entry for parameters; None for eps^(1/3) and 1e-2.
    Of `unrolled`: sweeps and r_factor of `contact.sweeps`.
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
