"""The drawn figures of the pages on contact modes and gradient modes.

    python scripts/explanation_figures.py       # docs/images/contact-modes.png and gradient-modes.png
"""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images"
FORCE, SPEED, CONE, BODY = "#c0392b", "#2471a3", "#f5cba7", "#d5d8dc"
MU = 0.6
# (name, impulse, velocity after the step) of the contact of a box, both drawn at its foot.
MODES = (
    ("separating\nno impulse", (0.0, 0.0), (0.25, 0.55)),
    ("sticking\nimpulse inside the cone, no velocity", (0.25, 0.9), (0.0, 0.0)),
    ("sliding\nimpulse on the cone, against the slip", (-0.54, 0.9), (0.6, 0.0)),
)


def arrow(axes, vector, colour, label) -> None:
    if np.any(vector):
        axes.annotate("", vector, (0.0, 0.0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2.5})
        axes.text(vector[0] * 1.08 + 0.04, vector[1] * 1.02 + 0.04, label, color=colour, fontsize=12)


def contact_modes() -> None:
    figure, panels = plt.subplots(1, 3, figsize=(9.6, 3.3), layout="constrained")
    for axes, (name, impulse, speed) in zip(panels, MODES, strict=True):
        axes.fill([-MU, 0.0, MU], [1.0, 0.0, 1.0], color=CONE, alpha=0.6, lw=0)
        axes.fill([-0.8, 0.8, 0.8, -0.8], [0.0, 0.0, 0.28, 0.28], color=BODY, zorder=0)
        axes.axhline(0.0, color="black", lw=1.5)
        arrow(axes, impulse, FORCE, r"$\lambda$")
        arrow(axes, speed, SPEED, r"$\nu$")
        axes.set(xlim=(-1.0, 1.0), ylim=(-0.12, 1.1), aspect="equal", xticks=[], yticks=[], title=name)
        axes.title.set_fontsize(10)
        for side in axes.spines.values():
            side.set_visible(False)
    figure.savefig(IMAGES / "contact-modes.png", dpi=90)


def gradient_modes() -> None:
    """Height after a while of a ball at rest on the ground, over the force of its motor: hard contact and what the modes say."""
    force, weight = np.linspace(-0.5, 2.0, 400), 1.0
    height = np.maximum(force - weight, 0.0)
    smooth = 0.12 * np.log1p(np.exp((force - weight) / 0.12))
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(force, height, color="black", lw=2.5, label="hard contact")
    axes.plot(force, smooth, color=SPEED, lw=1.5, label="relaxed or smoothed contact")
    at = 0.3
    for slope, value, colour, style, label in (
        (0.0, 0.0, FORCE, "-", "implicit: exact, and zero at rest"),
        (1.0, 0.0, "#1e8449", "--", "complementarity-aware: as if the ball were free"),
    ):
        near = np.array([at - 0.3, at + 0.45])
        axes.plot(near, value + slope * (near - at), color=colour, ls=style, lw=2.5, label=label)
    axes.plot([at], [0.0], "o", color="black")
    axes.annotate("at rest", (at, 0.0), (at - 0.06, -0.24), fontsize=9)
    axes.annotate("lifts off", (weight, 0.0), (weight - 0.05, -0.24), fontsize=9)
    axes.set(xlabel="force of the motor / weight", ylabel="height reached", ylim=(-0.35, 1.05), yticks=[])
    axes.legend(fontsize=8.5, loc="upper left")
    figure.savefig(IMAGES / "gradient-modes.png", dpi=90)


def main() -> None:
    contact_modes()
    gradient_modes()


if __name__ == "__main__":
    main()
