"""What each gradient mode sees of a contact at a distance: a finger at rest before a box at rest, in steps of 20 ms.

    python benchmarks/seen_at_a_distance.py       # a table, and docs/images/gradient-distance.png

Drawn is how much faster the box (0.5 kg) moves after a step for a finger (0.3 kg) that stands nearer, as a force:
m / dt dv_box / dq.
"""

import pathlib

import jax

jax.config.update("jax_enable_x64", True)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from jaxtyping import Float  # noqa: E402

from trajopt.dynamics import GradientOptions, RelaxedContact, RigidContact, SmoothedContact, State, System  # noqa: E402
from trajopt.models import load_model_from_string  # noqa: E402

IMAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "gradient-distance.png"
MASS, DT, NOTHING = 0.5, 0.02, 1e-9  # kg, s, N/m
GAPS = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]) * 1e-3  # m
MODEL = f"""<mujoco model="line"><option gravity="0 0 0"/><worldbody>
  <body name="finger"><joint type="slide" axis="1 0 0"/><geom type="sphere" size="0.02" mass="0.3"/></body>
  <body name="box"><joint type="slide" axis="1 0 0"/><geom type="box" size="0.05 0.05 0.05" mass="{MASS}"/></body>
</worldbody></mujoco>"""


def ways() -> dict[str, System]:
    """The system of each way to differentiate."""
    model = load_model_from_string(MODEL)

    def system(contact=None, gradient="implicit", **options) -> System:
        return System(model, DT, contact or RigidContact(), gradient=gradient, options=GradientOptions(**options))

    bundle = {"samples": 256, "velocity_deviation": 0.05}
    return {
        "implicit": system(),
        "complementarity-aware": system(gradient="complementarity-aware"),
        "smoothed": system(gradient="smoothed"),
        "SmoothedContact, implicit": system(SmoothedContact()),
        "randomized, order 1, 1 mm": system(gradient="randomized", position_deviation=1e-3, **bundle),
        "randomized, order 0, 1 mm": system(gradient="randomized", order=0, position_deviation=1e-3, **bundle),
        "randomized, order 1, 10 mm": system(gradient="randomized", position_deviation=1e-2, **bundle),
        "randomized, order 0, 10 mm": system(gradient="randomized", order=0, position_deviation=1e-2, **bundle),
        "RelaxedContact(0.01), implicit": system(RelaxedContact(1e-2)),
        "RelaxedContact(1e-4), implicit": system(RelaxedContact(1e-4)),
    }


def slopes(system: System) -> Float[np.ndarray, " gaps"]:
    """m / dt dv_box / dq_finger at each gap, N/m."""
    aware = system.gradient == "complementarity-aware"
    adjoint: dict[str, np.ndarray] = {"adjoint": np.array([0.0, 0.0, 0.0, 1.0])} if aware else {}
    return MASS / DT * np.array([float(system.linearize(at(gap), np.zeros(2), **adjoint).A[3, 0]) for gap in GAPS])


def at(gap: float) -> State:
    """Both at rest, so far from each other."""
    return State(np.array([-0.07 - gap, 0.0]), np.zeros(2))


def draw(found: dict[str, Float[np.ndarray, " gaps"]]) -> None:
    """The slopes over the gap; what is zero is not drawn."""
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    nothing = []
    for name, values in found.items():
        seen = np.abs(values) > NOTHING
        if not seen.any():
            nothing.append(name)
            continue
        axes.loglog(1e3 * GAPS[seen], np.abs(values[seen]), marker="o", ms=4, ls="-" if "Contact" in name else "--", label=name)
    axes.set(xlabel="gap, mm", ylabel="N/m", title="zero at every gap: " + ", ".join(nothing), xlim=(0.07, 150))
    axes.title.set_fontsize(9)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(IMAGE, dpi=90)


def main() -> None:
    found = {name: slopes(system) for name, system in ways().items()}
    print("| N/m | " + " | ".join(f"{1e3 * gap:g} mm" for gap in GAPS) + " |\n|---|" + "---|" * len(GAPS))
    for name, values in found.items():
        print(f"| {name} | " + " | ".join(f"{value:.2g}" if abs(value) > NOTHING else "0" for value in values) + " |")
    draw(found)


if __name__ == "__main__":
    main()
