"""What all plots share: colours, figures without pyplot, and scales that show what is drawn."""

import os
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from trajopt import files

COLOURS = ("#1f5fa8", "#d1622b", "#3b8a4f", "#8a4fa3", "#b8962e", "#4aa5b5", "#b23a48", "#5b5b5b")
LIMIT, BAND, FORBIDDEN = "#8c8c8c", "#eeeae2", "#f6dcd3"  # edge of a limit, what is allowed, what is not
_DECADES = 1.3  # values that span fewer are drawn on a linear axis
_WIDE = 1e3  # largest over median size beyond which values of both signs need a symmetric logarithm
_LEAST_SHARE = 0.01  # of a cost, that its axis shows to either side
_CONSTANT = 1e-6  # variation below which values count as constant, as a share of the largest, or of 1
_NEAR = 1.5  # ranges of the values within which a limit is shown
_RESOLUTION = 110  # dots per inch


def figure(
    rows: int, columns: int = 1, width: float = 8.0, height: float = 2.6
) -> tuple[Figure, Shaped[np.ndarray, "{rows} {columns}"]]:
    """A figure of `rows` x `columns` panels of the given size in inches."""
    made = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        plain(ax)
    return made, axes


def plain(ax: Axes) -> None:
    """A light grid behind the curves and no frame on the upper and right side."""
    ax.grid(True, color="#e3e3e3", linewidth=0.7)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def beside(ax: Axes, fontsize: int = 8) -> None:
    """The legend to the right of a panel."""
    ax.legend(frameon=False, fontsize=fontsize, loc="center left", bbox_to_anchor=(1.0, 0.5))


def wide_panel(made: Figure, row: Shaped[np.ndarray, " columns"]) -> Axes:
    """One panel in place of those of a row of `figure`."""
    place = row[0].get_subplotspec()
    for ax in row:
        ax.remove()
    wide = made.add_subplot(place.get_gridspec()[place.rowspan.start, :])
    plain(wide)
    return wide


def save(made: Figure, path: str | os.PathLike, title: str = "") -> Figure:
    """Write a figure, with its title, as PNG unless the path ends otherwise; .png is added to a path without an ending."""
    if title:
        made.suptitle(title, x=0.01, ha="left", fontsize=11)
    path = pathlib.Path(path)
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    with files.replacing(path) as part:
        made.savefig(part, dpi=_RESOLUTION)
    return made


def log_axis(ax: Axes, values: Float[np.ndarray, "..."]) -> None:
    """A logarithmic y axis for positive values, with room for a constant or empty curve."""
    ax.set_yscale("log")
    finite = values[np.isfinite(values) & (values > 0)]
    if finite.size and finite.max() < 10 * finite.min():
        ax.set_ylim(finite.min() / 10, finite.max() * 10)


def cost_axis(ax: Axes, values: Float[np.ndarray, "..."]) -> str:
    """A y axis on which all of `values` are seen; returns its scale.

    Positive values over more than a decade: "log"; with zeros among them: "symlog", linear below the least positive one.
    Values that are negative or cross zero: "linear", and "symlog" where the largest is a thousand times the median.
    """
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    size = np.abs(finite[finite != 0])
    ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    if not size.size or np.log10(size.max() / size.min()) < _DECADES:
        if size.size:  # the last digits of a cost fill no panel
            middle, room = (finite.max() + finite.min()) / 2, max(0.55 * np.ptp(finite), _LEAST_SHARE * size.max())
            ax.set_ylim(middle - room, middle + room)
        return "linear"
    if finite.min() > 0:
        log_axis(ax, finite)
        return "log"
    if finite.min() < 0 and size.max() < _WIDE * np.median(size):
        return "linear"
    threshold = size.min() if finite.min() == 0 else max(size.min(), 1e-6 * size.max())
    ax.set_yscale("symlog", linthresh=threshold)
    return "symlog"


def positive(values: Any) -> Float[np.ndarray, "..."]:
    """Values with NaN in place of what a logarithm cannot show."""
    values = np.asarray(values, float)
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def view(values: Float[np.ndarray, "..."], least: float = 0.0) -> tuple[float, float]:
    """Least and largest of the finite values, at least `least` apart; about a constant a range that rounding does not fill."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    constant = high - low <= _CONSTANT * max(abs(low), abs(high), 1.0)
    if not constant and high - low >= least:
        return low, high
    room = least / 2 if least > 0 else max(0.1 * abs(low + high), 0.05)
    return (low + high) / 2 - room, (low + high) / 2 + room


def fit_axis(
    ax: Axes, values: Float[np.ndarray, "..."], lower: float = -np.inf, upper: float = np.inf, least: float = 0.0
) -> None:
    """The y axis of a panel: all values, at least `least` from end to end, the limits that they come near, and bands where limits
    forbid them to be."""
    low, high = view(values, least)
    room = high - low
    bottom = min(low, lower) if np.isfinite(lower) and low - lower < _NEAR * room else low
    top = max(high, upper) if np.isfinite(upper) and upper - high < _NEAR * room else high
    margin = 0.1 * (top - bottom)
    bottom, top = bottom - margin, top + margin
    ax.set_ylim(bottom, top)
    for limit, edge in ((lower, bottom), (upper, top)):
        if bottom < limit < top:
            ax.axhspan(min(limit, edge), max(limit, edge), color=FORBIDDEN, zorder=0, linewidth=0)
            ax.axhline(limit, color=LIMIT, linewidth=1.0, zorder=1)
