"""What the cost of a motion consists of: each term by name, in all and over time."""

import os
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trajopt.dynamics.effort import Effort
from trajopt.problems import programs
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import cost_terms
from trajopt.viz.plots.axes import COLOURS, beside, figure, save

_ROWS = 14  # terms with a bar of their own
_TOGETHER, _THIN = 7, 2e-3  # terms with an area of their own over time, and the share of all below which it would not be seen


def costs(problem: Any, solution: Any, path: str | os.PathLike, *, title: str = "cost by term") -> Figure | None:
    """The cost of a solution term by term: totals as bars, and those of the stages over time.

    Returns None, and writes nothing, for a problem that is not one of optimal control or has one term only.
    """
    if not isinstance(problem, OptimalControlProblem) or solution.xs is None:
        return None
    found, _ = programs.run(cost_terms, problem, problem.point_of(solution), effort=Effort.QUICK)
    stages, others = ({name: np.asarray(value, float) for name, value in part.items()} for part in found)
    if len(stages) + len(others) < 2:
        return None
    totals = {name: float(values.sum()) for name, values in (stages | others).items()}
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(sorted(totals, key=lambda n: -abs(totals[n])))}
    made, axes = figure(1, 2 if stages else 1, width=6.0, height=max(2.8, 0.9 + 0.3 * min(len(totals), _ROWS)))
    _totals(axes[0, 0], totals, colours)
    if stages:
        _over_time(axes[0, 1], np.asarray(problem.times, float), stages, colours)
    return save(made, path, f"{title}: {sum(totals.values()):.4g} in all")


def _totals(ax: Axes, totals: dict[str, float], colours: dict[str, str]) -> None:
    shown = list(colours)[:_ROWS]
    values = np.array([totals[name] for name in shown])
    at = np.arange(len(shown))
    ax.barh(at, values, 0.7, color=[colours[name] for name in shown])
    whole = sum(abs(value) for value in totals.values())
    for y, value in zip(at, values, strict=True):
        share = f"  ({abs(value) / whole:.0%})" if whole > 0 else ""
        ax.annotate(f" {value:.3g}{share}", (max(value, 0.0), y), va="center", fontsize=8)
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    ax.set_xlim(1.05 * low, high + 0.35 * max(high - low, 1e-300))
    ax.set_yticks(at, shown, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("cost" if len(shown) == len(totals) else f"cost; {len(totals) - len(shown)} smaller terms are left out")


def _over_time(ax: Axes, t: np.ndarray, stages: dict[str, np.ndarray], colours: dict[str, str]) -> None:
    """Areas one above the other, the largest term lowest; lines where a term is negative somewhere."""
    size = {name: float(np.abs(row).sum()) for name, row in stages.items()}
    order = [name for name in colours if name in stages and size[name] >= _THIN * max(size.values())][:_TOGETHER]
    below = np.zeros(len(t) - 1)
    negative = any(stages[name].min() < 0 for name in order)
    for name in order:
        if negative:
            ax.stairs(stages[name], t, color=colours[name], label=name, linewidth=1.2, baseline=None)
            continue
        above = below + stages[name]
        ax.stairs(above, t, baseline=below, fill=True, color=colours[name], label=name, alpha=0.85)
        below = above
    ax.set_xlim(t[0], t[-1])
    ax.set_xlabel("time [s]")
    ax.set_ylabel("cost of a step")
    beside(ax, 7)
