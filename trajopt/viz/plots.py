"""Static plots of a run: convergence, the motion, comparison of solvers. Drawn off-screen, written as PNG.

Figures are made without pyplot, so that nothing global changes and no display is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = ("#1f5fa8", "#d1622b", "#3b8a4f", "#8a4fa3", "#b8962e", "#4aa5b5", "#b23a48", "#5b5b5b")
STYLES = {"implicit": "-", "finite-difference": "--", "ridders": ":"}
FLOOR = 1e-32  # costs below it are drawn there: the axis is logarithmic
_MOST_LINES = 12  # with more lines than this in a panel, no legend


def figure(rows: int, columns: int = 1, width: float = 8.0, height: float = 2.6) -> tuple[Figure, np.ndarray]:
    """A figure of `rows` x `columns` panels of the given size in inches."""
    made = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        _plain(ax)
    return made, axes


def _plain(ax: Axes) -> None:
    ax.grid(True, color="#e3e3e3", linewidth=0.7)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _positive(values: Any) -> np.ndarray:
    values = np.asarray(values, float)
    return np.where(np.isfinite(values), np.maximum(values, FLOOR), np.nan)


def _log(ax: Axes, values: np.ndarray) -> None:
    """Logarithmic y axis, with room for a constant or empty curve."""
    ax.set_yscale("log")
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() < 10 * finite.min():
        ax.set_ylim(finite.min() / 10, finite.max() * 10)


def _save(made: Figure, path: str | os.PathLike) -> None:
    made.savefig(path, dpi=110)


def convergence(solution: Any, path: str | os.PathLike) -> None:
    """Cost, gradient norm and step size against the iteration, from the trace of a `Solution`."""
    trace = solution.trace
    squares = "residual" in solution.residuals
    made, axes = figure(2, 1, height=2.8)
    iteration = trace["iteration"]
    marker = "o" if iteration.size <= 60 else ""
    top, bottom = axes[:, 0]
    values = _positive(trace["cost"])
    top.plot(iteration, values, marker=marker, markersize=4, color=COLORS[0], label="cost ½|r|²" if squares else "cost")
    _log(top, values)
    top.set_ylabel("cost")
    top.legend(frameon=False)
    top.set_title(f"{solution.problem}: {solution.solver}, {solution.gradient} gradients", loc="left", fontsize=11)
    drawn = []
    for i, (key, label) in enumerate(
        [
            ("gradient_norm", "gradient norm |Jᵀr|" if squares else "measure of optimality"),
            ("step_size", "step size |Δx|"),
            ("violation", "violation"),
        ]
    ):
        values = np.asarray(trace[key], float)
        if np.any(values > 0):
            values = np.where(values > 0, values, np.nan)
            bottom.plot(iteration, values, marker=marker, markersize=4, color=COLORS[i + 1], label=label)
            drawn.append(values)
    if drawn:
        _log(bottom, np.concatenate(drawn))
        bottom.legend(frameon=False)
    bottom.set_ylabel("SI units of the problem")
    bottom.set_xlabel("iteration")
    for ax in (top, bottom):
        ax.xaxis.get_major_locator().set_params(integer=True)
    _save(made, path)


def coordinate_names(model: Any) -> tuple[list[str], list[str], list[str]]:
    """Names of all coordinates q, velocities v and controls u of a model; of ball joints, the components."""
    q_names, v_names = [""] * model.nq, [""] * model.nv
    linear, quaternion = ["x", "y", "z"], ["qw", "qx", "qy", "qz"]
    parts = {
        "free": (linear + quaternion, ["vx", "vy", "vz", "ωx", "ωy", "ωz"]),
        "ball": (quaternion, ["ωx", "ωy", "ωz"]),
        "planar": (["x", "y", "angle"], ["vx", "vy", "ω"]),
    }
    for joint in model.topology.joints:
        of_q, of_v = parts.get(joint.kind, ([""], [""]))
        for k in range(joint.nq):
            q_names[joint.q_start + k] = f"{joint.name} {of_q[k]}".strip()
        for k in range(joint.nv):
            v_names[joint.v_start + k] = f"{joint.name} {of_v[k]}".strip()
    return q_names, v_names, list(model.topology.actuators)


def trajectory(
    motion: Mapping[str, Any], path: str | os.PathLike, *, model: Any = None, title: str = "trajectory"
) -> None:
    """The motion against time: positions, orientations, velocities, controls and contact impulses.

    `motion` holds t (T+1,), and of q (T+1, nq), v (T+1, nv), u (T, nu), impulse (T, contacts, 3) what there is. Two
    states or fewer are drawn as bars, one for each joint, actuator and contact.
    """
    motion = {key: np.asarray(value, float) for key, value in motion.items()}
    t = motion["t"] if "t" in motion else np.arange(len(next(iter(motion.values()))), dtype=float)
    if t.size <= 2:
        _single_step(motion, path, model, title)
        return
    panels = _panels(motion, model)
    made, axes = figure(len(panels), 1)
    for ax, (label, values, names) in zip(axes[:, 0], panels):
        times = t if len(values) == t.size else t[: len(values)]
        step = "default" if len(values) == t.size else "steps-post"
        for k, name in enumerate(names):
            ax.plot(times, values[:, k], drawstyle=step, linewidth=1.2, color=_color(k, len(names)), label=name)
        ax.set_ylabel(label)
        if 1 <= len(names) <= _MOST_LINES:
            ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[0, 0].set_title(title, loc="left", fontsize=11)
    axes[-1, 0].set_xlabel("time [s]")
    _save(made, path)


def _color(k: int, count: int) -> Any:
    if count <= len(COLORS):
        return COLORS[k]
    import matplotlib

    return matplotlib.colormaps["viridis"](0.95 * k / (count - 1))


def _panels(motion: Mapping[str, np.ndarray], model: Any) -> list[tuple[str, np.ndarray, list[str]]]:
    """(axis label, values (n, k), names) of every panel with something in it."""
    q, v, u, impulse = (motion.get(key) for key in ("q", "v", "u", "impulse"))
    names: Any = coordinate_names(model) if model is not None else (None, None, None)
    panels: list[tuple[str, np.ndarray, list[str]]] = []

    def add(label: str, values: np.ndarray, labels: Sequence[str] | None, chosen: list[int]) -> None:
        if chosen:
            panels.append((label, values[:, chosen], [labels[k] if labels else str(k) for k in chosen]))

    free = [j for j in model.topology.joints if j.kind in ("free", "planar")] if model is not None else []
    position = {j.q_start + k for j in free for k in range(3 if j.kind == "free" else 2)}
    linear = {j.v_start + k for j in free for k in range(3 if j.kind == "free" else 2)}
    turning = {j.v_start + k for j in free for k in range(3, 6) if j.kind == "free"}
    rotation = {j.q_start + k for j in free for k in range(3, 7) if j.kind == "free"}
    if q is not None:
        rest = [k for k in range(q.shape[1]) if k not in position | rotation]
        add("position [m]", q, names[0], sorted(position))
        add("orientation [-]", q, names[0], sorted(rotation))
        add("joints [rad, m]", q, names[0], rest)
    if v is not None:
        rest = [k for k in range(v.shape[1]) if k not in linear | turning]
        add("velocity [m/s]", v, names[1], sorted(linear))
        add("angular velocity [rad/s]", v, names[1], sorted(turning))
        add("joint velocity\n[rad/s, m/s]", v, names[1], rest)
    if u is not None and u.size:
        add("controls [N m, N]", u, names[2], list(range(u.shape[1])))
    if impulse is not None and impulse.size:
        total = impulse.sum(axis=1)
        panels.append(("contact impulse,\nsum [N s]", total, ["tangent 1", "tangent 2", "normal"]))
    return panels


def _single_step(motion: Mapping[str, np.ndarray], path: str | os.PathLike, model: Any, title: str) -> None:
    """Bars of the controls, the velocities after the step and the contact impulses of one step."""
    names: Any = coordinate_names(model) if model is not None else (None, None, None)
    bars: list[tuple[str, np.ndarray, list[str] | None]] = []
    u, v, impulse = (motion.get(key) for key in ("u", "v", "impulse"))
    if u is not None and u.size:
        bars.append(("controls [N m, N]", u[0], names[2]))
    if v is not None and v.size:
        bars.append(("|velocity| after the step\n[rad/s, m/s]", np.abs(v[-1]), names[1]))
    count = len(bars) + (impulse is not None and impulse.size > 0)
    longest = max([len(name) for _, _, labels in bars for name in labels or []], default=4)
    made, axes = figure(max(count, 1), 1, width=9.0, height=2.2 + 0.06 * longest)
    for i, (label, values, labels) in enumerate(bars):
        ax = axes[i, 0]
        at = np.arange(values.size)
        if label.startswith("|"):
            ax.plot(at, np.maximum(values, 1e-18), "o", markersize=4, color=COLORS[i])
            _log(ax, np.maximum(values, 1e-18))
        else:
            ax.bar(at, values, color=COLORS[i])
            _control_limits(ax, model, values.size)
        ax.set_ylabel(label)
        ax.set_xticks(at, labels or [str(k) for k in at], rotation=90, fontsize=7)
    if impulse is not None and impulse.size:
        ax = axes[-1, 0]
        shown = np.flatnonzero(np.abs(impulse[0]).max(axis=1) > 0)
        shown = shown if shown.size else np.arange(len(impulse[0]))
        for k, name in enumerate(("tangent 1", "tangent 2", "normal")):
            ax.bar(np.arange(shown.size) + 0.27 * (k - 1), impulse[0, shown, k], 0.25, color=COLORS[k], label=name)
        ax.set_xticks(np.arange(shown.size), [f"contact {k}" for k in shown], fontsize=7)
        ax.set_ylabel("impulse [N s]")
        ax.legend(frameon=False, fontsize=8)
    axes[0, 0].set_title(title, loc="left", fontsize=11)
    _save(made, path)


def _control_limits(ax: Axes, model: Any, size: int) -> None:
    """Short lines at the finite control limits."""
    if model is None or model.nu != size:
        return
    for bound in (np.asarray(model.control_lower), np.asarray(model.control_upper)):
        for k in np.flatnonzero(np.isfinite(bound)):
            ax.plot([k - 0.4, k + 0.4], [bound[k]] * 2, color="#5b5b5b", linewidth=1.0)


def comparison(solutions: Sequence[Any], path: str | os.PathLike, *, title: str = "comparison") -> None:
    """Cost against solving time and against evaluations, and the time each run spent compiling and solving."""
    solvers = list(dict.fromkeys(solution.solver for solution in solutions))
    made, axes = figure(1, 3, width=4.8, height=4.0)
    labelled: set[str] = set()
    bars: dict[str, tuple[float, float]] = {}
    for solution in solutions:
        label = f"{solution.solver}, {solution.gradient}"
        style = {"color": COLORS[solvers.index(solution.solver) % len(COLORS)], "linewidth": 1.6}
        style["linestyle"] = STYLES.get(solution.gradient, "-.")
        cost = _positive(np.minimum.accumulate(solution.trace["cost"]))
        for ax, key in ((axes[0, 0], "time"), (axes[0, 1], "evaluations")):
            ax.plot(solution.trace[key], cost, label=None if label in labelled else label, **style)
            ax.plot(solution.trace[key][-1:], cost[-1:], "o", markersize=4, color=style["color"])
        labelled.add(label)
        bars.setdefault(label, (solution.compile_time_s, solution.wall_time_s))
    for ax, name in ((axes[0, 0], "solving time, without compiling [s]"), (axes[0, 1], "evaluations")):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(name)
        ax.set_ylabel("least cost so far")
    at = np.arange(len(bars))
    compile_s, solve_s = np.array(list(bars.values())).T
    axes[0, 2].barh(at - 0.2, compile_s, 0.38, color="#b9b9b9", label="compiling")
    axes[0, 2].barh(at + 0.2, solve_s, 0.38, color=COLORS[5], label="solving")
    for y, value in zip(np.concatenate([at - 0.2, at + 0.2]), np.concatenate([compile_s, solve_s])):
        axes[0, 2].annotate(f" {value:.3g} s", (value, y), va="center", fontsize=8, color="#404040")
    axes[0, 2].set_xlim(0, 1.2 * max(compile_s.max(), solve_s.max()))
    axes[0, 2].set_yticks(at, [label.replace(", ", "\n") for label in bars], fontsize=8)
    axes[0, 2].invert_yaxis()
    axes[0, 2].set_xlabel("time of the first seed [s]")
    axes[0, 2].legend(frameon=False, fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    made.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=min(len(labels), 4))
    made.suptitle(title, x=0.01, ha="left", fontsize=12)
    _save(made, path)
