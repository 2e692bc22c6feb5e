"""The falling mass of Smoothed, Fig. 3: final height and velocity over the height of release, and derivatives.

    python benchmarks/validation.py falling
"""

import numpy as np

from trajopt.problems.library.falling_mass import KAPPA, curves, falling_system, perturbed_curves
from trajopt.viz.plots import COLOURS, figure
from validation_experiments.report import Outcome, image, write_table

HEIGHTS = np.linspace(0.6, 1.8, 241)


def collect() -> dict:
    """Curves by label: (curves, line style)."""
    found = {f"hard, {gap}": curves(falling_system(gap), HEIGHTS) for gap in ("detect", "speculative")}
    mean, fit = perturbed_curves(falling_system("detect"), HEIGHTS)
    found["hard, perturbed: mean of derivatives"] = mean
    found["hard, perturbed: derivative of the mean"] = fit
    found[f"smoothed, kappa {KAPPA:g} / m"] = curves(falling_system("smoothed"), HEIGHTS)
    return found


def draw(found: dict, path: str) -> None:
    made, axes = figure(2, 2, width=4.6, height=2.7)
    fields = (("height", "final height, m"), ("velocity", "final velocity, m/s"))
    for column, (field, label) in enumerate(fields):
        for row, name in enumerate((field, f"{field}_slope")):
            ax = axes[row, column]
            for k, (key, y) in enumerate(found.items()):
                if row == 0 and "derivative of" in key:
                    continue
                style = {"color": COLOURS[k], "linewidth": 1.1, "linestyle": "--" if "speculative" in key else "-"}
                ax.plot(HEIGHTS, getattr(y, name), label=key, **style)
            ax.set_ylabel(label if row == 0 else f"d({label.split(',')[0]}) / dh")
            ax.set_xlabel("height of release h, m")
    axes[1, 0].set_ylim(-0.3, 2.0)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    made.savefig(path, dpi=75)


def slope_error(y, field: str) -> float:
    """Largest difference of a derivative from the slope of its own curve, by differences over two steps of the heights."""
    h = HEIGHTS
    value = getattr(y, field)
    return float(np.abs(getattr(y, f"{field}_slope")[1:-1] - (value[2:] - value[:-2]) / (h[2] - h[0])).max())


def run() -> Outcome:
    found = collect()
    draw(found, str(image("falling-mass")))
    fall = 0.5 * 9.81 * 0.5**2
    below, above = HEIGHTS < fall - 0.2, HEIGHTS > fall + 0.2
    rows = []
    for name, y in found.items():
        # In flight: the height falls by g T^2 / 2 (Moreau's scheme is exact there), at the speed g T.
        flight = np.abs(y.height[above] - (HEIGHTS[above] - fall)).max()
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
