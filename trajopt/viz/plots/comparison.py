"""How a run converged: cost, measure of optimality, violation and step size of its iterations; and solvers side by side: the best
feasible cost and the violation against time and evaluations.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
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


_STYLES = {"implicit": "-", "finite-difference": "--", "ridders": ":"}


def best_feasible(trace: Mapping[str, Any], tolerance: float) -> Float[np.ndarray, " k"]:
    """Least cost of the iterates so far whose violation is at most `tolerance`, NaN before there is one."""
    cost, violation = np.asarray(trace["cost"], float), np.asarray(trace["violation"], float)
    counted = np.where((violation <= tolerance) & np.isfinite(cost), cost, np.inf)
    least = np.minimum.accumulate(counted)
    return np.where(np.isfinite(least), least, np.nan)


def comparison(
    solutions: Sequence[Any], path: str | os.PathLike, *, title: str = "comparison", tolerance: float = 1e-6
) -> Figure:
    """Best feasible cost against solving time and evaluations, the violation of every iterate, and the times.

    Iterates whose violation is above `tolerance` have no place among the costs: a start that breaks the dynamics is cheaper than
    any answer. Where nothing is ever violated, the measure of optimality takes the violation's place.
    """
    made, axes = figure(2, 2, width=5.6, height=3.3)
    (cost, by_evaluations), (violation, bars) = axes
    solvers = list(dict.fromkeys(solution.solver for solution in solutions))
    violated = any(np.nanmax(solution.trace["violation"], initial=0.0) > tolerance for solution in solutions)
    beside = "violation" if violated else "gradient_norm"
    labels = _labels(solutions, tolerance)
    seen: set[str] = set()
    for solution, label in zip(solutions, labels, strict=True):
        trace, colour = solution.trace, COLOURS[solvers.index(solution.solver) % len(COLOURS)]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "linestyle": _STYLES.get(solution.gradient, "-.")}
        best = best_feasible(trace, tolerance)
        for ax, key in ((cost, "time"), (by_evaluations, "evaluations")):
            ax.plot(trace[key], best, label=None if label in seen else label, drawstyle="steps-post", **style)
            ax.plot(trace[key][-1:], best[-1:], "o", markersize=5, color=colour)
        violation.plot(trace["time"], positive(trace[beside]), **style)
        seen.add(label)
    costs = np.concatenate([best_feasible(solution.trace, tolerance) for solution in solutions])
    for ax, key, name in ((cost, "time", "solving time, without compiling [s]"), (by_evaluations, "evaluations", "evaluations")):
        cost_axis(ax, costs)
        ax.set_ylabel("best feasible cost so far")
        _from_the_first(ax, [solution.trace[key] for solution in solutions], name)
    others = np.concatenate([positive(solution.trace[beside]) for solution in solutions])
    if violated and tolerance > 0:
        others = np.append(others, tolerance)
    if np.isfinite(others).any():
        log_axis(violation, others)
    _from_the_first(violation, [solution.trace["time"] for solution in solutions], "solving time, without compiling [s]")
    violation.set_ylabel("violation" if violated else "measure of optimality")
    if violated and tolerance > 0:
        violation.axhline(tolerance, color="#5b5b5b", linewidth=0.9, linestyle=":", label="allowed")
        violation.legend(frameon=False, fontsize=8)
    _times(bars, solutions, labels)
    handles, names = cost.get_legend_handles_labels()
    made.legend(handles, names, frameon=False, fontsize=8, loc="outside lower center", ncols=min(max(len(names), 1), 3))
    return save(made, path, title)


def _labels(solutions: Sequence[Any], tolerance: float) -> list[str]:
    """Solver and gradient mode of each, how many of its runs meet the goals, and how many never met the constraints."""
    plain = [f"{solution.solver}, {solution.gradient}" for solution in solutions]
    met = [solution.goals_met for solution in solutions]
    never = [np.isnan(best_feasible(solution.trace, tolerance)).all() for solution in solutions]
    labels = []
    for name in plain:
        runs = [missed for other, missed in zip(plain, never, strict=True) if other == name]
        missed = sum(runs)
        share = "" if missed == len(runs) == 1 else f" in {missed} of {len(runs)} runs"
        judged = [reached for other, reached in zip(plain, met, strict=True) if other == name and reached is not None]
        words = [f"goals met in {sum(judged)} of {len(judged)}"] if judged else []
        words += [f"no feasible point{share}"] if missed else []
        labels.append(f"{name} ({'; '.join(words)})" if words else name)
    return labels


def _from_the_first(ax: Axes, values: Sequence[Any], name: str) -> None:
    """A logarithmic x axis from the first positive value on; linear where there is none."""
    everything = np.concatenate([np.asarray(value, float) for value in values])
    everything = everything[np.isfinite(everything) & (everything > 0)]
    if everything.size and everything.max() > everything.min():
        ax.set_xscale("log")
        ax.set_xlim(everything.min() / 1.3, everything.max() * 1.5)
    ax.set_xlabel(name)


def _times(ax: Axes, solutions: Sequence[Any], labels: Sequence[str]) -> None:
    """Compiling and solving of the first run of each label as bars."""
    times: dict[str, tuple[float, float]] = {}
    for solution in solutions:
        times.setdefault(f"{solution.solver}, {solution.gradient}", (solution.compile_time_s, solution.wall_time_s))
    at = np.arange(len(times))
    compile_s, solve_s = np.array(list(times.values())).reshape(-1, 2).T
    ax.barh(at - 0.2, compile_s, 0.38, color="#b9b9b9", label="compiling")
    ax.barh(at + 0.2, solve_s, 0.38, color=COLOURS[5], label="solving")
    for y, value in zip(np.concatenate([at - 0.2, at + 0.2]), np.concatenate([compile_s, solve_s])):
        ax.annotate(f" {value:.3g} s", (value, y), va="center", fontsize=8, color="#404040")
    ax.set_xlim(0, 1.2 * max(compile_s.max(initial=0.0), solve_s.max(initial=0.0), 1e-9))
    ax.set_yticks(at, [label.replace(", ", "\n") for label in times], fontsize=8)
    ax.invert_yaxis()
    several = len(labels) > len(times)
    ax.set_xlabel("time of the first run of each [s]" if several else "time [s]")
    ax.legend(frameon=False, fontsize=8)
