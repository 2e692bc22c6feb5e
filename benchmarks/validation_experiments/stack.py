"""Ten boxes on top of each other stay where they are for 2 s, also where every second one is 100 times as heavy."""

import numpy as np

from trajopt.dynamics import RigidContact, System
from trajopt.viz.plots import COLOURS, figure
from validation_experiments import scenes
from validation_experiments.report import Outcome, save, write_table


def stacked(ratio: float, steps: int = 2000, count: int = 10):
    """((T, nq) distance of every coordinate from its start, all solved, iterations per step)."""
    system = System(scenes.model(scenes.stack_xml(ratio, count)), dt=1e-3, contact=RigidContact(max_contacts=4 * count))
    x = system.initial_state()
    xs, solved, iterations, _ = scenes.rollout(system, x, steps)
    return np.asarray(xs.q) - np.asarray(x.q), bool(np.asarray(solved).all()), np.asarray(iterations)


def run() -> Outcome:
    made, axes = figure(1, 1, width=7.5, height=2.6)
    rows, worst = [], 0.0
    for k, ratio in enumerate((1.0, 100.0)):
        moved, solved, iterations = stacked(ratio)
        assert solved
        drift = np.abs(moved).max(1)
        worst = max(worst, drift.max())
        axes[0, 0].semilogy(1e-3 * np.arange(1, len(drift) + 1), np.maximum(drift, 1e-18), color=COLOURS[k],
                            label=f"masses 1 : {ratio:g}", linewidth=1.1)  # fmt: skip
        rows.append([f"1 : {ratio:g}", f"{drift.max():.0e}", f"{np.median(iterations):.0f}", iterations.max()])
    axes[0, 0].set_xlabel("time, s")
    axes[0, 0].set_ylabel("largest change of a coordinate,\nm and of quaternions")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(made, "stack")
    header = ["masses of neighbours", "drift in 2 s, m", "Newton iterations, median", "most"]
    write_table("impacts", "stack", header, rows)
    return Outcome([("drift of ten stacked boxes in 2 s", "at rest", f"{worst:.0e} m")])
