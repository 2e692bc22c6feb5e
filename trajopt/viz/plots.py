"""Static plots of a run: convergence, the motion, comparison of solvers. Drawn off-screen, written as PNG.

Figures are made without pyplot, so that nothing global changes and no display is needed. Each function returns what it wrote.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from trajopt.dynamics.model import Model

COLOURS = ("#1f5fa8", "#d1622b", "#3b8a4f", "#8a4fa3", "#b8962e", "#4aa5b5", "#b23a48", "#5b5b5b")
STYLES = {"implicit": "-", "finite-difference": "--", "ridders": ":"}
FLOOR = 1e-32  # costs below it are drawn there: the axis is logarithmic
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_LINES = 12  # with more lines than this in a panel, no legend


def figure(
    rows: int, columns: int = 1, width: float = 8.0, height: float = 2.6
) -> tuple[Figure, Shaped[np.ndarray, "{rows} {columns}"]]:
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


class PowersOfTen(LogFormatter):
    """Labels of a logarithmic axis as plain text, 10⁻⁵, which is set ten times as fast as mathematics."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label at x, empty where there is to be none."""
        if not super().__call__(x, pos):
            return ""
        exponent = int(np.floor(np.log10(x) + 1e-9))
        power, factor = "10" + str(exponent).translate(_SUPERSCRIPTS), x / 10.0**exponent
        return power if abs(factor - 1) < 1e-6 else f"{factor:.3g}·{power}"


def _plain_powers(axis: Axis) -> None:
    axis.set_major_formatter(PowersOfTen())
    axis.set_minor_formatter(PowersOfTen())


def _log(ax: Axes, values: np.ndarray) -> None:
    """Logarithmic y axis, with room for a constant or empty curve."""
    ax.set_yscale("log")
    _plain_powers(ax.yaxis)
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() < 10 * finite.min():
        ax.set_ylim(finite.min() / 10, finite.max() * 10)


def _save(made: Figure, path: str | os.PathLike) -> Figure:
    made.savefig(path, dpi=110)
    return made


def convergence(solution: Any, path: str | os.PathLike) -> Figure:
    """Cost, gradient norm and step size against the iteration, from the trace of a `Solution`."""
    trace = solution.trace
    squares = "residual" in solution.residuals
    made, axes = figure(2, 1, height=2.8)
    iteration = trace["iteration"]
    marker = "o" if iteration.size <= 60 else ""
    top, bottom = axes[:, 0]
    values = _positive(trace["cost"])
    top.plot(iteration, values, marker=marker, markersize=4, color=COLOURS[0], label="cost ½|r|²" if squares else "cost")
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
            bottom.plot(iteration, values, marker=marker, markersize=4, color=COLOURS[i + 1], label=label)
            drawn.append(values)
    if drawn:
        _log(bottom, np.concatenate(drawn))
        bottom.legend(frameon=False)
    bottom.set_ylabel("SI units of the problem")
    bottom.set_xlabel("iteration")
    for ax in (top, bottom):
        ax.xaxis.get_major_locator().set_params(integer=True)
    return _save(made, path)


def coordinate_names(model: Model) -> tuple[list[str], list[str], list[str]]:
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


def actuator_units(model: Model) -> list[str]:
    """Unit of each control of a model, (nu,): "N m" or "N" where it is the torque or force of what it drives, "" where a gear
    makes it a share of one, a servo takes something else, or where it drives both kinds."""
    turning = np.zeros(model.nv, bool)
    for joint in model.topology.joints:
        linear = {"free": 3, "planar": 2, "prismatic": 1}.get(joint.kind, 0)
        turning[joint.v_start + linear : joint.v_start + joint.nv] = True
    units = []
    gain = np.asarray(model.actuator_gain)
    for k, column in enumerate(np.asarray(model.actuation).T):
        if len(gain) and tuple(gain[k]) != (1.0, 0.0, 0.0):  # a servo, whose control is no force
            units.append("")
            continue
        driven = column != 0
        of_torque = turning[driven].tolist()
        direct = len(set(of_torque)) == 1 and bool((np.abs(column[driven]) == 1).all())
        units.append(("N m" if of_torque[0] else "N") if direct else "")
    return units


def control_labels(
    count: int, model: Model | None = None, names: Sequence[str] = (), units: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Names and units of the `count` controls of a motion, "" for a unit that is not known.

    The problem's own `names` and `units` come first; without them the actuators of a model that has as many; else the controls
    have numbers. Names of another count than the controls are left aside.
    """
    if len(names) == count:
        return list(names), list(units) if len(units) == count else [""] * count
    if model is not None and model.nu == count:
        return list(model.topology.actuators), actuator_units(model)
    return [f"u {k}" for k in range(count)], [""] * count


def _of_model(motion: Mapping[str, np.ndarray], model: Model | None) -> bool:
    """Whether the coordinates of the motion are those of the model, so that its names are theirs."""
    if model is None:
        return False
    sizes = {"q": model.nq, "v": model.nv}
    return all(motion[key].shape[1] == size for key, size in sizes.items() if key in motion)


def _control_axis(unit: str) -> str:
    return f"controls [{unit}]" if unit else "controls"


def trajectory(
    motion: Mapping[str, Float[np.ndarray, "..."]],
    path: str | os.PathLike,
    *,
    model: Model | None = None,
    title: str = "trajectory",
    control_names: Sequence[str] = (),
    control_units: Sequence[str] = (),
) -> Figure:
    """The motion against time: positions, orientations, velocities, controls and contact impulses.

    `motion` holds t (T+1,), and of q (T+1, nq), v (T+1, nv), u (T, nu), impulse (T, contacts, 3) what there is. Two
    states or fewer are drawn as bars, one for each joint, control and contact. The controls of a problem need not be the
    model's actuators: `control_names` and `control_units`, (nu,), say what they are (`control_labels`).
    """
    motion = {key: np.asarray(value, float) for key, value in motion.items()}
    model = model if _of_model(motion, model) else None
    t = motion["t"] if "t" in motion else np.arange(len(next(iter(motion.values()))), dtype=float)
    u = motion.get("u")
    controls = control_labels(0 if u is None else u.shape[1], model, control_names, control_units)
    if t.size <= 2:
        return _single_step(motion, path, model, title, controls)
    panels = _panels(motion, model, controls)
    made, axes = figure(len(panels), 1)
    for ax, (label, values, names) in zip(axes[:, 0], panels):
        times = t if len(values) == t.size else t[: len(values)]
        step = "default" if len(values) == t.size else "steps-post"
        for k, name in enumerate(names):
            ax.plot(times, values[:, k], drawstyle=step, linewidth=1.2, color=_colour(k, len(names)), label=name)
        ax.set_ylabel(label)
        if 1 <= len(names) <= _MOST_LINES:
            ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[0, 0].set_title(title, loc="left", fontsize=11)
    axes[-1, 0].set_xlabel("time [s]")
    return _save(made, path)


def _colour(k: int, count: int) -> Any:
    if count <= len(COLOURS):
        return COLOURS[k]
    import matplotlib

    return matplotlib.colormaps["viridis"](0.95 * k / (count - 1))


def _panels(
    motion: Mapping[str, np.ndarray], model: Model | None, controls: tuple[list[str], list[str]]
) -> list[tuple[str, np.ndarray, list[str]]]:
    """(axis label, values (n, k), names) of every panel with something in it; controls of one unit share a panel."""
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
        for unit in dict.fromkeys(controls[1]):
            add(_control_axis(unit), u, controls[0], [k for k, own in enumerate(controls[1]) if own == unit])
    if impulse is not None and impulse.size:
        total = impulse.sum(axis=1)
        panels.append(("contact impulse,\nsum [N s]", total, ["tangent 1", "tangent 2", "normal"]))
    return panels


def _single_step(
    motion: Mapping[str, np.ndarray],
    path: str | os.PathLike,
    model: Model | None,
    title: str,
    controls: tuple[list[str], list[str]],
) -> Figure:
    """Bars of the controls, the velocities after the step and the contact impulses of one step."""
    names: Any = coordinate_names(model) if model is not None else (None, None, None)
    bars: list[tuple[str, np.ndarray, list[str] | None]] = []
    u, v, impulse = (motion.get(key) for key in ("u", "v", "impulse"))
    if u is not None and u.size:
        units = [unit for unit in dict.fromkeys(controls[1]) if unit]
        bars.append((_control_axis(", ".join(units)), u[0], controls[0]))
    if v is not None and v.size:
        bars.append(("|velocity| after the step\n[rad/s, m/s]", np.abs(v[-1]), names[1]))
    count = len(bars) + (impulse is not None and impulse.size > 0)
    longest = max([len(name) for _, _, labels in bars for name in labels or []], default=4)
    made, axes = figure(max(count, 1), 1, width=9.0, height=2.2 + 0.06 * longest)
    for i, (label, values, labels) in enumerate(bars):
        ax = axes[i, 0]
        at = np.arange(values.size)
        if label.startswith("|"):
            ax.plot(at, np.maximum(values, 1e-18), "o", markersize=4, color=COLOURS[i])
            _log(ax, np.maximum(values, 1e-18))
        else:
            ax.bar(at, values, color=COLOURS[i])
            if model is not None and labels == list(model.topology.actuators):
                _control_limits(ax, model)
        ax.set_ylabel(label)
        ax.set_xticks(at, labels or [str(k) for k in at], rotation=90, fontsize=7)
    if impulse is not None and impulse.size:
        ax = axes[-1, 0]
        shown = np.flatnonzero(np.abs(impulse[0]).max(axis=1) > 0)
        shown = shown if shown.size else np.arange(len(impulse[0]))
        for k, name in enumerate(("tangent 1", "tangent 2", "normal")):
            ax.bar(np.arange(shown.size) + 0.27 * (k - 1), impulse[0, shown, k], 0.25, color=COLOURS[k], label=name)
        ax.set_xticks(np.arange(shown.size), [f"contact {k}" for k in shown], fontsize=7)
        ax.set_ylabel("impulse [N s]")
        ax.legend(frameon=False, fontsize=8)
    axes[0, 0].set_title(title, loc="left", fontsize=11)
    return _save(made, path)


def _control_limits(ax: Axes, model: Model) -> None:
    """Short lines at the finite control limits of the model."""
    for bound in (np.asarray(model.control_lower), np.asarray(model.control_upper)):
        at = np.flatnonzero(np.isfinite(bound))
        ax.hlines(bound[at], at - 0.4, at + 0.4, colors="#5b5b5b", linewidth=1.0)


def comparison(solutions: Sequence[Any], path: str | os.PathLike, *, title: str = "comparison") -> Figure:
    """Cost against solving time and against evaluations, and the time each run spent compiling and solving."""
    solvers = list(dict.fromkeys(solution.solver for solution in solutions))
    made, axes = figure(1, 3, width=4.8, height=4.0)
    labelled: set[str] = set()
    bars: dict[str, tuple[float, float]] = {}
    for solution in solutions:
        label = f"{solution.solver}, {solution.gradient}"
        style = {"color": COLOURS[solvers.index(solution.solver) % len(COLOURS)], "linewidth": 1.6}
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
        _plain_powers(ax.xaxis)
        _plain_powers(ax.yaxis)
        ax.set_xlabel(name)
        ax.set_ylabel("least cost so far")
    at = np.arange(len(bars))
    compile_s, solve_s = np.array(list(bars.values())).T
    axes[0, 2].barh(at - 0.2, compile_s, 0.38, color="#b9b9b9", label="compiling")
    axes[0, 2].barh(at + 0.2, solve_s, 0.38, color=COLOURS[5], label="solving")
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
    return _save(made, path)
