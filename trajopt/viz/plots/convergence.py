"""How a run converged: cost, measure of optimality, violation and step size of its iterations."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trajopt.viz.plots.axes import COLOURS, cost_axis, figure, log_axis, positive, save

_MARKED = 60  # iterations up to which each is marked
NOT_FEASIBLE = "#b9b9b9"


def convergence(solution: Any, path: str | os.PathLike, *, tolerance: float = 1e-6) -> Figure:
    """Cost, measure of optimality, violation and step size against the iteration, from the trace of a `Solution`.

    tolerance: violation above which an iterate is not feasible; the costs of such are grey.
    """
    trace = solution.trace
    squares = "residual" in solution.residuals
    made, axes = figure(2, 1, height=2.8)
    iteration, cost = trace["iteration"], np.asarray(trace["cost"], float)
    marker = "o" if iteration.size <= _MARKED else ""
    top, bottom = axes[:, 0]
    feasible = np.asarray(trace["violation"], float) <= tolerance
    label = "cost ½|r|²" if squares else "cost"
    if not feasible.all():
        top.plot(iteration, cost, marker=marker, markersize=4, color=NOT_FEASIBLE, label=f"{label}, not feasible")
    shown = np.where(feasible, cost, np.nan)
    if feasible.any():
        top.plot(iteration, shown, marker=marker, markersize=4, color=COLOURS[0], label=label)
        single = feasible & ~np.roll(feasible, 1) & ~np.roll(feasible, -1)  # seen without a marker too
        top.plot(iteration[single], cost[single], "o", markersize=4, color=COLOURS[0])
    cost_axis(top, cost)
    top.set_ylabel("cost")
    top.legend(frameon=False)
    goals = f"; goals {solution.goals_in_words}" if solution.goals else ""
    top.set_title(f"{solution.problem}: {solution.solver}, {solution.gradient} gradients{goals}", loc="left", fontsize=11)
    drawn = []
    for i, (key, label) in enumerate(
        [
            ("gradient_norm", "gradient norm |Jᵀr|" if squares else "measure of optimality"),
            ("step_size", "step size |Δx|"),
            ("violation", "violation"),
        ]
    ):
        values = positive(trace[key])
        if np.isfinite(values).any():
            bottom.plot(iteration, values, marker=marker, markersize=4, color=COLOURS[i + 1], label=label)
            drawn.append(values)
    if drawn:
        log_axis(bottom, np.concatenate(drawn))
        if not feasible.all() and tolerance > 0:
            bottom.axhline(tolerance, color=COLOURS[3], linewidth=0.9, linestyle=":", label="violation allowed")
        bottom.legend(frameon=False, fontsize=8)
    bottom.set_ylabel("each in its own unit")
    bottom.set_xlabel("iteration")
    for ax in (top, bottom):
        ax.xaxis.get_major_locator().set_params(integer=True)
    return save(made, path)
