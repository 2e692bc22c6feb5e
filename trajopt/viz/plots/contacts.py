"""Which shapes touch when, and how hard: a gait diagram, normal forces and the share of the friction cone."""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trajopt.dynamics.model import Model
from trajopt.viz.plots.axes import COLOURS, FORBIDDEN, LIMIT, beside, figure, save
from trajopt.viz.plots.labels import of_model, pair_name
from trajopt.viz.recording import contact_geometry, fits

_ROWS = 8  # shapes with a row each; of more, those of a link share one
NEGLIGIBLE = 1e-2  # share of the weight below which all contact forces of a motion are rounding, or a law's far field
_LOADED = 0.01  # share of the largest force from which a contact carries load
_PEAK = 4.0  # forces this many times above the 98th percentile are cut off


@dataclasses.dataclass(frozen=True, eq=False)
class ContactLoads:
    """Forces of the contacts along a motion, summed by what touches.

    t (T+1,): s, beginnings and end of the steps. names (b,). normal, tangential, cone (T, b): N, the normal forces, the lengths
    of the tangential ones (added up over the contacts of a shape) and what friction allows, mu times the normal force.
    """

    t: Float[np.ndarray, " k"]
    names: tuple[str, ...]
    normal: Float[np.ndarray, "T b"]
    tangential: Float[np.ndarray, "T b"]
    cone: Float[np.ndarray, "T b"]

    @property
    def loaded(self) -> Bool[np.ndarray, "T b"]:
        """(T, b): whether each carries load."""
        return self.normal > _LOADED * max(float(np.percentile(self.normal, 98)) if self.normal.size else 0.0, 1e-12)


def contact_loads(model: Model | None, motion: Mapping[str, Float[np.ndarray, "..."]]) -> ContactLoads | None:
    """The loads of a motion with t (s), q and impulse (N s, contact frames); None where the model and the motion have no such."""
    impulse = np.asarray(motion.get("impulse", np.zeros((0, 0, 3))), float)
    if model is None or "q" not in motion or not of_model(motion, model) or not fits(model, impulse):
        return None
    q, steps = np.asarray(motion["q"], float), len(impulse)
    t = np.asarray(motion.get("t", np.arange(len(q))), float)
    if len(q) < steps or len(t) < steps + 1 or not np.isfinite(q).all():
        return None
    _, _, pairs = contact_geometry(model, q[:steps], impulse.shape[1])
    force = impulse / np.diff(t[: steps + 1])[:, None, None]
    friction = np.asarray(model.pair_friction, float)[pairs]
    size = np.hypot(force[..., 0], force[..., 1])
    used = sorted({int(pair) for pair in np.unique(pairs[force[..., 2] > 0])})
    names = {pair: pair_name(model, pair) for pair in used}
    if len(set(names.values())) > _ROWS:
        names = {pair: _link_name(model, pair) for pair in used}
    titles = tuple(dict.fromkeys(names.values()))
    column = np.array([titles.index(names[p]) if p in names else -1 for p in range(len(model.topology.pairs))], int)
    place = column[pairs]
    belongs = place[..., None] == np.arange(len(titles))
    values = [np.einsum("tc,tcb->tb", a, belongs) for a in (force[..., 2], size, friction * force[..., 2])]
    return ContactLoads(t[: steps + 1], titles, *values)


def weight_of(model: Model) -> float:
    """Weight of all bodies, N."""
    return float(np.asarray(model.mass).sum() * np.linalg.norm(np.asarray(model.gravity)))


def _link_name(model: Model, pair: int) -> str:
    top = model.topology
    nodes = [top.shapes[index].node for index in top.pairs[pair]]
    return " – ".join(dict.fromkeys(top.node_names[node] for node in nodes if node >= 0))


def contacts(
    motion: Mapping[str, Float[np.ndarray, "..."]], path: str | os.PathLike, *, model: Model | None, title: str = "contacts"
) -> Figure | None:
    """Contact phases as a gait diagram, normal forces, and the share of the friction cone that is used; of one step, bars.

    motion as in `trajectory`. Returns None, and writes nothing, where no contact of the model carries a force.
    """
    loads = contact_loads(model, motion)
    if model is None or loads is None or not loads.names:
        return None
    weight = weight_of(model)
    if not loads.loaded.any() or loads.normal.max() < NEGLIGIBLE * weight:
        return None
    if len(loads.normal) == 1:
        return _single_step(loads, path, title, weight)
    rows = len(loads.names)
    made, axes = figure(3, 1, width=8.5, height=1.0)
    made.set_size_inches(8.5, 0.6 + 0.28 * rows + 5.0)
    grid = axes[0, 0].get_gridspec()
    grid.set_height_ratios([0.35 + 0.28 * rows, 2.6, 2.0])
    _gait(axes[0, 0], loads)
    axes[0, 0].set_title(f"{title}: what carries load when, and for which share of the time", loc="left", fontsize=11)
    _forces(axes[1, 0], loads, weight)
    _cone(axes[2, 0], loads)
    for ax in axes[:, 0]:
        ax.set_xlim(loads.t[0], loads.t[-1])
    axes[2, 0].set_xlabel("time [s]")
    return save(made, path)


def _colour(b: int) -> str:
    return COLOURS[b % len(COLOURS)]


def _gait(ax: Axes, loads: ContactLoads) -> None:
    """A bar while a shape carries load."""
    for b in range(len(loads.names)):
        on = np.concatenate([[0], loads.loaded[:, b].astype(int), [0]])
        start, stop = np.flatnonzero(np.diff(on) == 1), np.flatnonzero(np.diff(on) == -1)
        spans = [(float(loads.t[i]), float(loads.t[j] - loads.t[i])) for i, j in zip(start, stop, strict=True)]
        ax.broken_barh(spans, (b - 0.36, 0.72), color=_colour(b))
    share = loads.loaded.mean(0)
    labels = [f"{name}  {part:.0%}" if part >= 0.01 else f"{name}  <1%" for name, part in zip(loads.names, share, strict=True)]
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set_ylim(len(loads.names) - 0.4, -0.6)


def _forces(ax: Axes, loads: ContactLoads, weight: float) -> None:
    """Normal forces, and the weight to compare them with; impacts are cut off."""
    for b, name in enumerate(loads.names):
        ax.stairs(loads.normal[:, b], loads.t, color=_colour(b), linewidth=1.2, label=name, baseline=None)
    if weight > 0:
        ax.axhline(weight, color=LIMIT, linewidth=0.9, linestyle="--", label=f"weight, {weight:.4g} N")
    most, usual = float(loads.normal.max()), max(float(np.percentile(loads.normal.max(1), 98)), weight)
    top = 1.08 * max(most, weight)
    if most > _PEAK * usual:
        top = 1.5 * usual
        ax.annotate(f"peaks up to {most:,.0f} N", (0.99, 0.95), xycoords="axes fraction", ha="right", va="top", fontsize=8)
    ax.set_ylim(-0.03 * top, top)
    ax.set_ylabel("normal force [N]")
    beside(ax)


def _cone(ax: Axes, loads: ContactLoads) -> None:
    """|tangential force| / (mu normal force); a contact at 1 slides."""
    for b, name in enumerate(loads.names):
        allowed = np.where(loads.loaded[:, b] & (loads.cone[:, b] > 0), loads.cone[:, b], np.nan)
        share = loads.tangential[:, b] / allowed
        ax.stairs(share, loads.t, color=_colour(b), linewidth=1.6, label=name, baseline=None, zorder=3)
    ax.axhspan(1.0, 1.15, color=FORBIDDEN, zorder=0, linewidth=0)
    ax.axhline(1.0, color=LIMIT, linewidth=1.0)
    ax.set_ylim(0.0, 1.15)
    ax.set_ylabel("share of the\nfriction cone [-]")


def _single_step(loads: ContactLoads, path: str | os.PathLike, title: str, weight: float) -> Figure:
    """Normal and tangential force of each contact, with what friction allows as an outline."""
    made, axes = figure(1, 1, width=8.5, height=3.4)
    ax, at = axes[0, 0], np.arange(len(loads.names))
    ax.bar(at - 0.2, loads.normal[0], 0.36, color=COLOURS[2], label="normal")
    ax.bar(at + 0.2, loads.tangential[0], 0.36, color=COLOURS[1], label="tangential")
    ax.bar(at + 0.2, loads.cone[0], 0.36, fill=False, edgecolor=LIMIT, label="friction allows")
    for x, used, allowed in zip(at, loads.tangential[0], loads.cone[0], strict=True):
        if allowed > 0:
            ax.annotate(f"{used / allowed:.0%}", (x + 0.2, max(allowed, used)), ha="center", va="bottom", fontsize=8)
    ax.set_xticks(at, loads.names, fontsize=8, rotation=0 if len(at) <= 8 else 60)
    ax.set_ylabel("contact force [N]")
    ax.set_title(f"{title}: contact forces; normal ones add up to {loads.normal[0].sum():.4g} N, the weight is {weight:.4g} N",
                 loc="left", fontsize=10)  # fmt: skip
    beside(ax)
    return save(made, path)
