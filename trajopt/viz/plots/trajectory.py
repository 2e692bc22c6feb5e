"""The motion against time: the base, joints and controls with their limits as bands, small multiples where there are many."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trajopt.dynamics.model import Model
from trajopt.models.descriptions import roll_pitch_yaw
from trajopt.viz.plots.axes import BAND, COLOURS, FORBIDDEN, LIMIT, beside, figure, fit_axis, save
from trajopt.viz.plots.labels import LINEAR, control_labels, coordinate_names, driven_joint, limbs, of_model

_FEW = 6  # joints or controls up to which each has a panel in the picture of the motion
_LEAST_ANGLE, _LEAST_SHARE = 0.05, 0.02  # rad (m, 1/s); of the distance between the limits of a control
_STILL = 1e-6  # m/s, rad/s: of one step, what is not drawn
_MOST_LINES = 12  # lines of a panel that can be told apart


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """Lines over time: values (n, k) at the states (n = T + 1) or over the steps (n = T).

    lower, upper: limits of a single line. least: what the axis shows at least, so that rounding does not look like a motion.
    """

    label: str
    values: np.ndarray
    names: Sequence[str]
    lower: float = -np.inf
    upper: float = np.inf
    least: float = 0.0


def trajectory(
    motion: Mapping[str, Float[np.ndarray, "..."]],
    path: str | os.PathLike,
    *,
    model: Model | None = None,
    title: str = "trajectory",
    control_names: Sequence[str] = (),
    control_units: Sequence[str] = (),
    control_limits: tuple[Any, Any] | None = None,
) -> Figure | None:
    """The motion against time: positions, roll, pitch and yaw, velocities, joints and controls.

    `motion` holds t (T+1,), and of q (T+1, nq), v (T+1, nv), u (T, nu), impulse (T, contacts, 3) what there is. A step from one
    state to the next is drawn as bars of the controls. Up to six joints and controls have a panel each, with their limits as
    bands; of more, `joints` draws the joints and what drives them. The controls of a problem need not be the model's
    actuators: `control_names`, `control_units` and `control_limits`, (nu,) each, say what they are (`control_labels`); without
    limits, those of the model where they are its actuators. Returns None, and writes nothing, where nothing is left to show.
    """
    motion = {key: np.asarray(value, float) for key, value in motion.items()}
    model = model if of_model(motion, model) else None
    t = motion["t"] if "t" in motion else np.arange(len(next(iter(motion.values()))), dtype=float)
    panels_of_controls = _controls(motion, model, control_names, control_units, control_limits)
    if t.size <= 2:
        return _single_step(motion, path, model, title, panels_of_controls)
    elsewhere = _many(model)
    if elsewhere and model is not None:  # `joints` draws them
        own = driven_joint(model)
        panels_of_controls = [panel for panel in panels_of_controls if _words(panel) not in own]
    panels = [*_states(motion, model, elsewhere), *_few_or_together(panels_of_controls)]
    if not panels:
        return None
    columns = 1 if len(panels) <= 5 else 2
    rows = -(-len(panels) // columns)
    made, axes = figure(rows, columns, width=8.0 / columns + 1.5, height=1.9 if columns == 2 else 2.2)
    _fill(axes.T.reshape(-1), panels, t)
    return save(made, path, title)


def joints(
    motion: Mapping[str, Float[np.ndarray, "..."]],
    path: str | os.PathLike,
    *,
    model: Model | None,
    title: str = "joints",
    control_names: Sequence[str] = (),
    control_units: Sequence[str] = (),
    control_limits: tuple[Any, Any] | None = None,
) -> Figure | None:
    """Angle, rate and control of every joint as small multiples: a column for each limb, limits as bands. Arguments as in
    `trajectory`.

    Returns None, and writes nothing, for a motion of few joints (which `trajectory` shows) or of a single step.
    """
    motion = {key: np.asarray(value, float) for key, value in motion.items()}
    if model is None or not of_model(motion, model) or "q" not in motion or len(motion["q"]) <= 2:
        return None
    columns = limbs(model)
    if not _many(model):
        return None
    t = motion["t"] if "t" in motion else np.arange(len(motion["q"]), dtype=float)
    blocks = [_angle_panels(motion["q"], model, columns), _rate_panels(motion.get("v"), columns)]
    blocks.append(_control_columns(_controls(motion, model, control_names, control_units, control_limits), model, columns))
    blocks = [block for block in blocks if any(block)]
    heights = [max(len(column) for column in block) for block in blocks]
    made, axes = figure(sum(heights), len(columns), width=max(1.9, 9.0 / len(columns)), height=1.25)
    row = 0
    for block, height in zip(blocks, heights, strict=True):
        for c, column in enumerate(block):
            for r in range(height):
                ax = axes[row + r, c]
                if r < len(column):
                    _draw(ax, column[r], t, small=True)
                    continue
                ax.set_visible(False)
        row += height
    for ax in axes.flat:
        ax.tick_params(labelsize=7)
    for c, limb in enumerate(columns):
        axes[0, c].set_title(limb.name, fontsize=10, fontweight="bold", loc="left")
    for c in range(len(columns)):
        last = next((ax for ax in axes[::-1, c] if ax.get_visible()), None)
        if last is not None:
            last.set_xlabel("time [s]", fontsize=8)
    return save(made, path, title)


def _fill(axes: Sequence[Axes] | Shaped[np.ndarray, " k"], panels: Sequence[Panel], t: np.ndarray) -> None:
    for ax, panel in zip(axes, panels):
        _draw(ax, panel, t)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax in axes[: len(panels)]:
        ax.set_xlim(t[0], t[-1])
    rows = len(axes) if len(panels) <= 5 else len(axes) // 2
    for k in (min(rows, len(panels)) - 1, len(panels) - 1):
        axes[k].set_xlabel("time [s]")


def _draw(ax: Axes, panel: Panel, t: np.ndarray, small: bool = False) -> None:
    values = panel.values
    at_states = len(values) == t.size
    for k, name in enumerate(panel.names):
        colour = _colour(k, len(panel.names))
        if at_states:
            ax.plot(t, values[:, k], linewidth=1.2, color=colour, label=name)
        else:
            ax.stairs(values[:, k], t[: len(values) + 1], linewidth=1.2, color=colour, label=name, baseline=None)
    ax.set_xlim(t[0], t[-1])
    fit_axis(ax, values, panel.lower, panel.upper, panel.least)
    ax.xaxis.set_major_locator(MaxNLocator(3 if small else 6))
    ax.set_ylabel(panel.label, fontsize=8 if small else 10)
    if 1 < len(panel.names) <= _MOST_LINES:
        if small:
            words = {"fontsize": 6, "ncols": 4, "handlelength": 0.8, "handletextpad": 0.3, "columnspacing": 0.6}
            ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.95), borderpad=0.0, **words)
        else:
            beside(ax)


def _colour(k: int, count: int) -> Any:
    if count <= len(COLOURS):
        return COLOURS[k]
    import matplotlib

    return matplotlib.colormaps["turbo"](0.05 + 0.9 * k / (count - 1))


def _many(model: Model | None) -> bool:
    """Whether a model has more joints than one picture of its motion can show one by one."""
    return model is not None and sum(joint.nv == 1 for joint in model.topology.joints) > _FEW


def _words(panel: Panel) -> str:
    """The name of a control without what it is divided by."""
    return panel.names[0].split(" / ")[0]


def _states(motion: Mapping[str, np.ndarray], model: Model | None, elsewhere: bool) -> list[Panel]:
    """Panels of q, v and of states that are neither; elsewhere: whether joints that motors drive are in another picture."""
    q, v, x = motion.get("q"), motion.get("v"), motion.get("x")
    panels = [Panel("state x", x, [str(k) for k in range(x.shape[1])])] if x is not None else []
    if model is None:
        for label, values in (("q", q), ("v", v)):
            if values is not None:
                panels.append(Panel(label, values, [str(k) for k in range(values.shape[1])]))
        return panels
    return panels + _base(q, v, model) + _joints(q, v, model, elsewhere)


def _base(q: np.ndarray | None, v: np.ndarray | None, model: Model) -> list[Panel]:
    """Free, planar and ball joints: positions, angles and velocities, those of ball joints as they are stored."""
    panels = []
    multiple = [joint for joint in model.topology.joints if joint.nv > 1]
    names = [f"{joint.name} " if len(multiple) > 1 else "" for joint in multiple]
    for what, joint in zip(names, multiple, strict=True):
        n, start, rate = LINEAR.get(joint.kind, 0), joint.q_start, joint.v_start
        axes = ["x", "y", "z"][:n]
        if q is not None and n:
            panels.append(Panel(f"{what}position [m]", q[:, start : start + n], axes))
        if q is not None and joint.kind == "planar":
            panels.append(Panel(f"{what}angle [rad]", q[:, start + 2 : start + 3], ["angle"]))
        elif q is not None:
            angles = np.unwrap(roll_pitch_yaw(q[:, start + n : start + n + 4]), axis=0)
            panels.append(Panel(f"{what}orientation [rad]", angles, ["roll", "pitch", "yaw"]))
        if v is not None and n:
            panels.append(Panel(f"{what}velocity [m/s]", v[:, rate : rate + n], [f"v{axis}" for axis in axes]))
        if v is not None:
            of_turn = ["ω"] if joint.kind == "planar" else ["ωx", "ωy", "ωz"]
            panels.append(Panel(f"{what}angular velocity\n[rad/s]", v[:, rate + n : rate + joint.nv], of_turn))
    return panels


def _joints(q: np.ndarray | None, v: np.ndarray | None, model: Model, undriven: bool) -> list[Panel]:
    """Joints with one degree of freedom: the angle of each by itself, with its limits, and all rates of a unit together.

    undriven: only those without a motor, such as the sliders and the hinge that make a planar base.
    """
    own = set(driven_joint(model).values()) if undriven else set()
    single = [joint for joint in model.topology.joints if joint.nv == 1 and joint.v_start not in own]
    panels = []
    for joint in single:
        if q is None:
            break
        name, unit = joint.name.removesuffix("_joint"), "m" if joint.kind == "prismatic" else "rad"
        limits = _joint_limits(model, joint.v_start)
        panels.append(Panel(f"{name}\n[{unit}]", q[:, [joint.q_start]], [name], *limits))
    for unit, linear in (("m/s", True), ("rad/s", False)):
        chosen = [joint for joint in single if (joint.kind == "prismatic") == linear]
        names = [joint.name.removesuffix("_joint") for joint in chosen]
        if chosen and v is not None:
            label = f"{names[0]} rate" if len(names) == 1 else "rates"
            panels.append(Panel(f"{label}\n[{unit}]", v[:, [joint.v_start for joint in chosen]], names))
    return panels


def _joint_limits(model: Model, dof: int) -> tuple[float, float]:
    return float(np.asarray(model.lower)[dof]), float(np.asarray(model.upper)[dof])


def _controls(
    motion: Mapping[str, np.ndarray],
    model: Model | None,
    names: Sequence[str],
    units: Sequence[str],
    limits: tuple[Any, Any] | None,
) -> list[Panel]:
    """A panel for each control; none where nothing acts."""
    u = motion.get("u")
    if u is None or not u.any():
        return []
    titles, given = control_labels(u.shape[1], model, names, units)
    lower, upper = np.full(u.shape[1], -np.inf), np.full(u.shape[1], np.inf)
    own = model is not None and titles == list(model.topology.actuators)
    if limits is None and own and model is not None:
        limits = (model.control_lower, model.control_upper)
    if limits is not None:
        lower, upper = (np.broadcast_to(np.asarray(limit, float), u[0].shape) for limit in limits)
    if own:
        given = [unit or _share(low, high) for unit, low, high in zip(given, lower, upper, strict=True)]
    return [
        Panel(f"[{unit}]" if unit else "[-]", u[:, [k]], [name], float(lower[k]), float(upper[k]), _least(lower[k], upper[k]))
        for k, (name, unit) in enumerate(zip(titles, given, strict=True))
    ]


def _least(lower: float, upper: float) -> float:
    """What the axis of a control with two limits shows at least."""
    width = float(upper - lower)
    return _LEAST_SHARE * width if np.isfinite(width) else 0.0


def _share(lower: float, upper: float) -> str:
    """What a control without a unit is where its limits are -1 and 1: a share of what they stand for."""
    return "of limit" if lower == -1.0 and upper == 1.0 else ""


def _few_or_together(controls: Sequence[Panel]) -> list[Panel]:
    """Few controls one by one, for their limits; many, or controls without limits, in a panel for each unit."""
    limited = any(np.isfinite([panel.lower, panel.upper]).any() for panel in controls)
    if len(controls) == 1 or (len(controls) <= _FEW and limited):
        return [dataclasses.replace(panel, label=f"{panel.names[0]}\n{panel.label}") for panel in controls]
    panels = []
    for unit in dict.fromkeys(panel.label for panel in controls):
        own = [panel for panel in controls if panel.label == unit]
        panels.append(Panel(f"controls\n{unit}", np.concatenate([p.values for p in own], 1), [p.names[0] for p in own]))
    return panels


def _angle_panels(q: np.ndarray, model: Model, columns: Sequence[Any]) -> list[list[Panel]]:
    block = []
    for limb in columns:
        panels = []
        for joint, label in zip(limb.joints, limb.labels, strict=True):
            unit = "m" if joint.kind == "prismatic" else "rad"
            limits = _joint_limits(model, joint.v_start)
            panels.append(Panel(f"{label}\n[{unit}]", q[:, [joint.q_start]], [label], *limits, least=_LEAST_ANGLE))
        block.append(panels)
    return block


def _rate_panels(v: np.ndarray | None, columns: Sequence[Any]) -> list[list[Panel]]:
    if v is None:
        return [[] for _ in columns]
    block = []
    for limb in columns:
        units = sorted({"m/s" if joint.kind == "prismatic" else "rad/s" for joint in limb.joints})
        rates = v[:, [joint.v_start for joint in limb.joints]]
        block.append([Panel(f"rates\n[{', '.join(units)}]", rates, list(limb.labels), least=_LEAST_ANGLE)])
    return block


def _control_columns(controls: Sequence[Panel], model: Model, columns: Sequence[Any]) -> list[list[Panel]]:
    """The controls below the joints that they drive, by the names of the model's actuators; others are left out."""
    driven = driven_joint(model)
    place = {joint.v_start: (c, label) for c, limb in enumerate(columns) for joint, label in zip(limb.joints, limb.labels)}
    block: list[list[Panel]] = [[] for _ in columns]
    for panel in controls:
        words = _words(panel)
        if words in driven and driven[words] in place:
            column, label = place[driven[words]]
            suffix = panel.names[0].removeprefix(words)
            block[column].append(dataclasses.replace(panel, label=f"{label}{suffix}\n{panel.label}"))
    return block


def _single_step(
    motion: Mapping[str, np.ndarray], path: str | os.PathLike, model: Model | None, title: str, controls: Sequence[Panel]
) -> Figure:
    """Bars of the controls within their limits, the shares of these, and the velocity after the step, unless all is still."""
    v = motion.get("v")
    share = _use(controls)
    moving = v is not None and v.size > 0 and float(np.abs(v[-1]).max()) > _STILL
    made, axes = figure(max(int(bool(controls)) + int(share is not None) + int(moving), 1), 1, width=9.5, height=2.8)
    if controls:
        _bars(axes[0, 0], controls)
    if share is not None:
        _shares(axes[1, 0], controls, share)
    if moving and v is not None:
        ax, values = axes[-1, 0], v[-1]
        names = coordinate_names(model)[1] if model is not None else [str(k) for k in range(values.size)]
        ax.bar(range(values.size), values, 0.7, color=COLOURS[1])
        ax.set_ylabel("velocity after the step\n[m/s, rad/s]")
        ax.set_xticks(range(values.size), [name.removesuffix("_joint") for name in names], rotation=60, ha="right", fontsize=7)
    axes[0, 0].set_title(title, loc="left", fontsize=11)
    return save(made, path)


def _use(controls: Sequence[Panel]) -> np.ndarray | None:
    """Share of its limit that each control takes, None where some have none."""
    values = np.array([panel.values[0, 0] for panel in controls])
    limits = np.array([panel.upper if value >= 0 else -panel.lower for panel, value in zip(controls, values, strict=True)])
    return np.abs(values) / limits if limits.size and (np.isfinite(limits) & (limits > 0)).all() else None


def _shares(ax: Axes, controls: Sequence[Panel], share: np.ndarray) -> None:
    """The shares as bars, beside what is forbidden."""
    at, top = np.arange(share.size), max(1.1, 1.1 * float(share.max()))
    ax.bar(at, share, 0.7, color=COLOURS[5], zorder=2)
    for x, value in zip(at, share, strict=True):
        ax.annotate(f"{value:.0%}" if value >= 0.01 else "<1%", (x, value), ha="center", va="bottom", fontsize=7, zorder=3)
    ax.axhspan(1.0, top, color=FORBIDDEN, zorder=0, linewidth=0)
    ax.axhline(1.0, color=LIMIT, linewidth=1.0)
    ax.set_ylim(0.0, top)
    ax.set_ylabel("share of the limit [-]")
    ax.set_xticks(at, [panel.names[0] for panel in controls], rotation=60, ha="right", fontsize=8)


def _bars(ax: Axes, controls: Sequence[Panel]) -> None:
    at, values = np.arange(len(controls)), np.array([panel.values[0, 0] for panel in controls])
    ax.bar(at, values, 0.7, color=COLOURS[0], zorder=2)
    for x, panel in zip(at, controls, strict=True):
        if np.isfinite(panel.lower) and np.isfinite(panel.upper):
            ax.bar(x, panel.upper - panel.lower, 0.9, panel.lower, color=BAND, zorder=0)
            ax.hlines([panel.lower, panel.upper], x - 0.45, x + 0.45, colors=LIMIT, linewidth=1.0)
        number = ax.annotate(f"{values[x]:.3g}", (x, max(values[x], 0.0)), ha="center", va="bottom", fontsize=7, zorder=3)
        number.set_bbox({"facecolor": "white", "alpha": 0.75, "pad": 0.4, "linewidth": 0})  # limits may pass behind it
    units = list(dict.fromkeys(panel.label for panel in controls))
    ax.set_ylabel(f"controls {', '.join(units)}")
    ax.set_xticks(at, [panel.names[0] for panel in controls], rotation=60, ha="right", fontsize=8)
