"""Plots of a run of `control.RecedingHorizon`: latency of each solve, cost of the plans, controls."""

import os

import numpy as np
from matplotlib.figure import Figure

from trajopt.control.recording import Recording
from trajopt.viz.plots import COLOURS, figure
from trajopt.viz.plots.axes import save


def plot_recording(recording: Recording, path: str | os.PathLike) -> Figure:
    """Latency beside the period, cost before and after each solve, and the controls over time, written to `path`."""
    made, axes = figure(3)
    latency, cost, controls = axes[:, 0]
    t, late = recording.solve_time, recording.late
    latency.plot(t, 1e3 * recording.latency, ".", markersize=3, color=COLOURS[0], label="in time")
    if late.any():
        latency.plot(t[late], 1e3 * recording.latency[late], ".", markersize=4, color=COLOURS[1], label="late")
    latency.axhline(1e3 * recording.period, color="#333333", linewidth=0.9, linestyle="--", label="period")
    latency.set_ylim(bottom=0.0)
    latency.set_ylabel("latency, ms")
    latency.legend(frameon=False, ncols=3)
    cost.plot(t, recording.cost_before, color=COLOURS[1], linewidth=0.9, label="last plan, from the measured state")
    cost.plot(t, recording.cost, color=COLOURS[0], linewidth=0.9, label="new plan")
    rejected = ~recording.accepted
    if rejected.any():
        cost.plot(t[rejected], recording.cost[rejected], "x", color=COLOURS[6], label="no better plan found")
    if (np.concatenate([recording.cost, recording.cost_before]) > 0).all():
        cost.set_yscale("log")
    cost.set_ylabel("cost of the plan")
    cost.legend(frameon=False)
    for k in range(recording.us.shape[1]):
        controls.plot(recording.t[:-1], recording.us[:, k], linewidth=0.7, color=COLOURS[k % len(COLOURS)])
    controls.set_ylabel("controls")
    controls.set_xlabel("time of the plant, s")
    return save(made, path)
