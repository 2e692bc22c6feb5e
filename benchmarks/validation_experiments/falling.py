"""The falling mass of Smoothed, Fig. 3, on its own page: the figure and the summary of its derivatives."""

from __future__ import annotations

import falling_mass
import numpy as np

from validation_experiments.report import Outcome, image, write_table


def slope_error(y, field: str) -> float:
    """Largest difference of a derivative from the slope of its own curve, by differences over two steps of the heights."""
    h = falling_mass.HEIGHTS
    value = getattr(y, field)
    return float(np.abs(getattr(y, f"{field}_slope")[1:-1] - (value[2:] - value[:-2]) / (h[2] - h[0])).max())


def run() -> Outcome:
    found = falling_mass.collect()
    falling_mass.draw(found, str(image("falling-mass")))
    fall = 0.5 * 9.81 * 0.5**2
    below, above = falling_mass.HEIGHTS < fall - 0.2, falling_mass.HEIGHTS > fall + 0.2
    rows = []
    for name, y in found.items():
        # In flight: the height falls by g T^2 / 2 (Moreau's scheme is exact there), at the speed g T.
        flight = np.abs(y.height[above] - (falling_mass.HEIGHTS[above] - fall)).max()
        rows.append([
            name, f"{slope_error(y, 'height'):.2g}", f"{slope_error(y, 'velocity'):.2g}", f"{y.height_slope[below].mean():.2f}",
            f"{y.height_slope[above].mean():.2f}", f"{flight:.0e}",
        ])  # fmt: skip
    header = ["contact", "d height / dh: largest error", "d velocity / dh: largest error, 1/s", "d height / dh on the ground (0)",
              "in flight (1)", "height in flight: error, m"]  # fmt: skip
    write_table("smoothing", "falling-mass", header, rows)
    smooth = next(y for name, y in found.items() if name.startswith("smoothed"))
    return Outcome(
        [("derivatives of the falling mass, smoothed", "slope of the curve", f"{slope_error(smooth, 'height'):.0e}")]
    )
