"""The figure of falling-mass (Smoothed, Fig. 3): final height and velocity over the height of release, and derivatives.

    python benchmarks/falling_mass.py [PNG]

Prints what the figure shows: sizes of the sawtooth, and how each derivative compares with the slope of its own curve.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from trajopt.problems.library.falling_mass import DEVIATION, KAPPA, curves, falling_system, perturbed_curves  # noqa: E402
from trajopt.viz.plots import COLOURS, figure  # noqa: E402

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


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "falling-mass.png"
    found = collect()
    print(f"{'':42s} height jumps by   d height: error   d velocity: error (largest difference to the curve's slope)")
    for key, y in found.items():
        jump = np.abs(np.diff(y.height)).max()
        errors = [
            np.abs(
                getattr(y, f"{f}_slope")[1:-1] - (getattr(y, f)[2:] - getattr(y, f)[:-2]) / (HEIGHTS[2] - HEIGHTS[0])
            ).max()
            for f in ("height", "velocity")
        ]
        print(f"{key:42s} {jump:15.4f} {errors[0]:17.3f} {errors[1]:19.3f}")
    print(f"perturbed heights: normal, deviation {DEVIATION} m, 400 samples")
    draw(found, path)
    print(path)


if __name__ == "__main__":
    main()
