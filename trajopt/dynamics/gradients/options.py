"""Options of the gradient modes that are named by a string."""

from __future__ import annotations

import dataclasses

from trajopt.dynamics.contact.laws.smoothed import R_FACTORS, check_sweeps
from trajopt.errors import OptionError
from trajopt.names import NamedOptions
from trajopt.options import check_options

DEVIATIONS = ("position_deviation", "velocity_deviation", "control_deviation")


@dataclasses.dataclass(frozen=True)
class GradientOptions(NamedOptions):
    """Options of the gradient modes that are named by a string; part of what a compiled step depends on.

    Options:
        samples: of `randomized`: number of perturbations, drawn in pairs of opposite sign. With order 0 at least 2 nv + nu.
        order: of `randomized`: 1, the mean of the exact derivatives at the samples; 0, a least-squares fit to the steps
            from two points for each sample.
        position_deviation (m): of `randomized`: standard deviation of the perturbations of q in tangent coordinates, in rad
            for joints that turn.
        velocity_deviation (m/s): of `randomized`: standard deviation of the perturbations of v, in rad/s for joints that
            turn.
        control_deviation (N): of `randomized`: standard deviation of the perturbations of u, in N m for motors that turn.
        seed: of `randomized`: from which the perturbations are drawn.
        difference_step: of `finite-difference` half the step of the difference, of `ridders` half the largest one; in
            tangent coordinates, and for physical parameters relative to the largest entry. Default: $eps^(1/3)$ and 1e-2.
        sweeps: of `unrolled`: number of Gauss-Seidel sweeps.
        r_factor: of `unrolled`: step length of the sweeps, "row-sum" or "determinant".
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
        if self.order not in (0, 1):
            raise OptionError(
                f"order is {self.order!r}, expected 1 (mean of derivatives) or 0 (fit to the steps themselves)"
            )
        check_options(self, samples="[1, inf)", difference_step="(0, inf)", **dict.fromkeys(DEVIATIONS, "[0, inf)"))
        for name in DEVIATIONS:
            if self.order == 0 and getattr(self, name) == 0:
                raise OptionError(f"{name} is 0; it must be positive with order 0, which has no derivative without it")
        check_sweeps(self.sweeps, self.r_factor)
