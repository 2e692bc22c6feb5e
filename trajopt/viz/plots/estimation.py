"""Pictures of an estimate: data, fit and residuals; ellipses and bands of its covariance."""

import os
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from trajopt.problems.ocp import OptimalControlProblem
from trajopt.result import status_name
from trajopt.viz.plots.axes import BAND, COLOURS, LIMIT, figure, save, wide_panel
from trajopt.viz.plots.labels import coordinate_names

_LEVELS = (1.0, 2.0)  # standard deviations of the ellipses of pairs of estimates
_SHOWN = 4.0  # deviations; residuals beyond are crosses at the edge
_TWO = 2.0  # deviations of bands, and of ellipses along a path
_PAIRS = 6  # of estimates, most correlated first
_PLACES = 12  # ellipses along a path
_SEEN = 0.03  # share of the picture that an ellipse must take, else all are enlarged
_STEP = 0.5  # of the differences that propagate a covariance, in deviations


def estimation(problem: Any, solution: Any, path: str | os.PathLike, *, title: str = "estimation") -> Figure | None:
    """Data and fit of each shown channel, residuals in deviations with their band of two, and how all residuals are distributed.

    Returns None, and writes nothing, for a problem without `observations`.
    """
    seen = problem.display.observations
    if seen is None:
        return None
    point = problem.point_of(solution)
    fit, start = (np.asarray(seen.predicted(at), float) for at in (point, problem.initial_point))
    residuals = (fit - seen.values) / seen.deviations
    rows = len(seen.shown)
    made, axes = figure(rows + 1, 2, width=5.6, height=1.35)
    made.set_size_inches(11.2, 1.35 * rows + 2.6)
    axes[0, 0].get_gridspec().set_height_ratios([1.0] * rows + [1.7])
    for row, channel in enumerate(seen.shown):
        data, left = axes[row]
        data.plot(seen.t, seen.values[:, channel], ".", markersize=3.5, color="#9a9a9a", label="measured")
        data.plot(seen.t, start[:, channel], "--", linewidth=1.0, color=COLOURS[1], label="first guess")
        data.plot(seen.t, fit[:, channel], linewidth=1.4, color=COLOURS[0], label="fit")
        unit = f"\n[{seen.units[channel]}]" if seen.units[channel] else ""
        data.set_ylabel(f"{seen.names[channel]}{unit}", fontsize=8)
        left.axhspan(-_TWO, _TWO, color=BAND, zorder=0, linewidth=0)
        inside = np.abs(residuals[:, channel]) <= _SHOWN
        left.plot(seen.t[inside], residuals[inside, channel], ".", markersize=3.5, color=COLOURS[0])
        left.plot(seen.t[~inside], np.clip(residuals[~inside, channel], -_SHOWN, _SHOWN), "x", markersize=4, color=COLOURS[6])
        for ax in (data, left):
            ax.xaxis.set_major_locator(MaxNLocator(5))
            ax.tick_params(labelsize=7)
        left.set_ylim(-4.2, 4.2)
        left.set_ylabel("residual\n[deviations]", fontsize=8)
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    for ax in axes[rows - 1]:
        ax.set_xlabel("time [s]", fontsize=8)
    _distribution(axes[rows, 0], residuals)
    _by_channel(axes[rows, 1], residuals, seen.names)
    return save(made, path, title + _status(solution))


def _status(solution: Any) -> str:
    """What is to be said of a point that is no estimate: its residuals and covariance are not those of one."""
    return "" if solution.success else f" ({status_name(solution.status).replace('_', ' ')}: not the estimate)"


def _distribution(ax: Axes, residuals: np.ndarray) -> None:
    """All residuals beside the standard normal density."""
    values = residuals[np.isfinite(residuals)]
    edges = np.linspace(-4, 4, 33).tolist()
    ax.hist(np.clip(values, -4, 4), edges, density=True, color=COLOURS[0], alpha=0.6, label=f"{values.size} residuals")
    at = np.linspace(-4, 4, 161)
    ax.plot(at, np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi), color="#303030", linewidth=1.2, label="standard normal")
    ax.set_xlabel("residual [deviations]", fontsize=8)
    ax.set_ylabel("density", fontsize=8)
    ax.legend(frameon=False, fontsize=8)


def _by_channel(ax: Axes, residuals: np.ndarray, names: tuple[str, ...]) -> None:
    """Root mean square of the residuals of each channel; 1 where the assumed deviations are true."""
    rms = np.sqrt(np.nanmean(residuals**2, axis=0))
    at = np.arange(len(names))
    ax.bar(at, rms, 0.7, color=COLOURS[0])
    ax.axhline(1.0, color=LIMIT, linewidth=1.0)
    ax.set_xticks(at, names, rotation=90 if len(names) > 8 else 30, ha="center" if len(names) > 8 else "right", fontsize=7)
    ax.set_ylabel("rms residual\n[deviations]", fontsize=8)


def uncertainty(problem: Any, solution: Any, path: str | os.PathLike, *, title: str = "uncertainty") -> Figure | None:
    """The covariance of an estimate: ellipses of pairs of estimates and, over the data, of what they predict.

    Of estimated states: ellipses of the base's place along its path, and bands of two deviations beside the error from the truth.

    Returns None, and writes nothing, where the solution has no covariance.
    """
    states = solution.covariances.get("states") if solution.covariances else None
    if isinstance(problem, OptimalControlProblem) and states is not None:
        return _of_states(problem, solution, np.asarray(states), path, title)
    covariance = solution.covariance
    if covariance is None or not getattr(problem, "labels", ()) or covariance.shape != (len(problem.labels),) * 2:
        return None
    return _of_parameters(problem, solution, np.asarray(covariance), path, title)


def _of_parameters(problem: Any, solution: Any, covariance: np.ndarray, path: str | os.PathLike, title: str) -> Figure:
    seen = problem.display.observations
    over_data = seen is not None and seen.plane is not None
    pairs = _chosen_pairs(covariance)
    columns = min(max(len(pairs), 1), 3)
    rows = -(-len(pairs) // columns) if pairs else 0
    made, axes = figure(max(rows, 1) + int(over_data), columns, width=3.9 if columns > 1 else 7.0, height=3.3)
    for ax in axes.flat:
        ax.set_visible(False)
    for ax, (i, j) in zip(axes.flat, pairs):
        ax.set_visible(True)
        _pair(ax, problem, solution.x, covariance, i, j)
    if over_data:
        _over_data(wide_panel(made, axes[-1]), seen, np.asarray(solution.x, float), covariance)
    return save(made, path, title + _status(solution))


def _chosen_pairs(covariance: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of estimates with a variance, the most correlated first."""
    sd = np.sqrt(np.diag(covariance))
    free = np.flatnonzero(sd > 0)
    pairs = [(int(i), int(j)) for a, i in enumerate(free) for j in free[a + 1 :]]
    return sorted(pairs, key=lambda ij: -abs(covariance[ij] / (sd[ij[0]] * sd[ij[1]])))[:_PAIRS]


def _pair(ax: Axes, problem: Any, x: np.ndarray, covariance: np.ndarray, i: int, j: int) -> None:
    """Ellipses of one and two deviations about two estimates, and the truth where it is known."""
    part = covariance[np.ix_([i, j], [i, j])]
    for level in _LEVELS:
        ax.add_patch(ellipse((float(x[i]), float(x[j])), part, level, facecolor=COLOURS[0], alpha=0.22))
    ax.plot(x[i], x[j], "o", markersize=4, color=COLOURS[0], label="estimate")
    reach = 3.0 * np.sqrt(np.diag(part))
    if problem.truth is not None:
        ax.plot(problem.truth[i], problem.truth[j], "*", markersize=11, color=COLOURS[1], label="truth")
        reach = np.maximum(reach, 1.2 * np.abs(np.asarray(problem.truth)[[i, j]] - x[[i, j]]))
    ax.set_xlim(x[i] - reach[0], x[i] + reach[0])
    ax.set_ylim(x[j] - reach[1], x[j] + reach[1])
    ax.set_xlabel(problem.labels[i], fontsize=8)
    ax.set_ylabel(problem.labels[j], fontsize=8)
    ax.locator_params(nbins=4)
    ax.tick_params(labelsize=7)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    correlation = part[0, 1] / np.sqrt(part[0, 0] * part[1, 1])
    ax.set_title(f"correlation {correlation:+.2f}; 1 and 2 deviations", fontsize=8, loc="left")
    ax.legend(frameon=False, fontsize=7)


def ellipse(centre: tuple[float, float], covariance: Float[np.ndarray, "2 2"], level: float, **style: Any) -> Ellipse:
    """The ellipse of `level` standard deviations of a normal distribution in the plane."""
    values, vectors = np.linalg.eigh(covariance)
    width, height = 2 * level * np.sqrt(np.maximum(values[::-1], 0.0))
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    return Ellipse(centre, width, height, angle=angle, **style)


def propagated(predicted: Any, x: Float[np.ndarray, " n"], covariance: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "k m m"]:
    """Covariance of what is predicted at each time, J P J^T, with J by differences of half a deviation to either side."""
    sd = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    free = np.flatnonzero(sd > 0)
    columns = []
    for i in free:
        step = np.zeros(len(x))
        step[i] = _STEP * sd[i]
        columns.append((np.asarray(predicted(x + step), float) - np.asarray(predicted(x - step), float)) / (2 * _STEP * sd[i]))
    J = np.stack(columns, axis=-1)
    return np.einsum("kai,ij,kbj->kab", J, covariance[np.ix_(free, free)], J)


def _over_data(ax: Axes, seen: Any, x: np.ndarray, covariance: np.ndarray) -> None:
    """The measured places, the fitted path, and ellipses of two deviations of the path."""
    i, j = seen.plane
    fit, spread = np.asarray(seen.predicted(x), float), propagated(seen.predicted, x, covariance)
    ax.plot(seen.values[:, i], seen.values[:, j], ".", markersize=4, color="#9a9a9a", label="measured")
    ax.plot(fit[:, i], fit[:, j], color=COLOURS[0], linewidth=1.3, label="fit")
    _ellipses(ax, fit[:, [i, j]], spread[np.ix_(range(len(fit)), [i, j], [i, j])])
    ax.set_xlabel(f"{seen.names[i]} [{seen.units[i]}]")
    ax.set_ylabel(f"{seen.names[j]} [{seen.units[j]}]")
    ax.legend(frameon=False, fontsize=8)


def _ellipses(ax: Axes, places: np.ndarray, covariances: np.ndarray) -> None:
    """Ellipses of two deviations at some places of a path, enlarged by a round factor where they would not be seen."""
    chosen = np.unique(np.linspace(0, len(places) - 1, min(_PLACES, len(places))).round().astype(int))
    extent = max(float(np.ptp(places, axis=0).max()), 1e-12)
    largest = _TWO * float(np.sqrt(np.linalg.eigvalsh(covariances[chosen]).max()))
    wanted = _SEEN * extent / max(largest, 1e-300)
    powers = [factor * 10.0**power for power in range(12) for factor in (1, 2, 5)]
    factor = next((f for f in powers if f >= wanted), 1.0)
    for k in chosen:
        patch = ellipse(tuple(places[k]), covariances[k], _TWO * factor, facecolor=COLOURS[1], alpha=0.45, edgecolor=COLOURS[6])
        ax.add_patch(patch)
    enlarged = f", enlarged {factor:g} times" if factor > 1 else ""
    ax.plot([], [], "o", color=COLOURS[1], alpha=0.6, label=f"two deviations of the fit{enlarged}")


def _of_states(
    problem: OptimalControlProblem, solution: Any, covariances: np.ndarray, path: str | os.PathLike, title: str
) -> Figure:
    """The base's path with ellipses, and the error of height, tilt and velocity with bands."""
    xs, t, seen = np.asarray(solution.xs, float), np.asarray(problem.times, float), problem.display.observations
    truth = None if seen is None or seen.truth is None else np.asarray(seen.truth, float)[: len(xs)]
    names = _tangent_names(problem)
    shown = [k for k in _of_base(problem) if k < covariances.shape[1]]
    error = np.stack([np.asarray(problem.local(a, b)) for a, b in zip(truth, xs)]) if truth is not None else None
    rows = -(-len(shown) // 2)
    made, axes = figure(1 + rows, 2, width=5.4, height=1.35)
    made.set_size_inches(10.8, 1.35 * (2 + rows))
    axes[0, 0].get_gridspec().set_height_ratios([2.0] + [1.0] * rows)
    place = wide_panel(made, axes[0])
    if truth is not None:
        place.plot(truth[:, 0], truth[:, 1], color="#303030", linewidth=1.2, linestyle="--", label="truth")
    place.plot(xs[:, 0], xs[:, 1], color=COLOURS[0], linewidth=1.4, label="estimate")
    _ellipses(place, xs[:, :2], covariances[:, :2, :2])
    place.set_aspect("equal", adjustable="datalim")
    place.set_xlabel("x [m]")
    place.set_ylabel("y [m]")
    place.set_title("path of the base, seen from above", fontsize=9, loc="left")
    place.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0.0)
    panels = axes[1:].T.reshape(-1)
    for ax in panels[len(shown) :]:
        ax.set_visible(False)
    for ax, k in zip(panels, shown):
        sd = np.sqrt(np.maximum(covariances[:, k, k], 0.0))
        ax.fill_between(t, -_TWO * sd, _TWO * sd, color=COLOURS[0], alpha=0.2, linewidth=0)
        if error is not None:
            ax.plot(t, error[:, k], color=COLOURS[6], linewidth=1.2)
        ax.axhline(0.0, color="#9a9a9a", linewidth=0.8)
        ax.set_ylabel(names[k], fontsize=8)
        ax.tick_params(labelsize=7)
    what = "error from the truth, and " if error is not None else ""
    panels[0].set_title(f"{what}two deviations of the estimate", fontsize=9, loc="left")
    for k in {min(rows, len(shown)) - 1, len(shown) - 1}:
        panels[k].set_xlabel("time [s]", fontsize=8)
    return save(made, path, title + _status(solution))


def _of_base(problem: OptimalControlProblem) -> list[int]:
    """Tangent coordinates to show: of a free base height, roll, pitch, yaw and velocity, else the first six."""
    model = problem.display.model
    if model is not None and model.topology.joints and model.topology.joints[0].kind == "free":
        return [2, 3, 4, 5, model.nv, model.nv + 1, model.nv + 2]
    return list(range(min(6, problem.n)))


def _tangent_names(problem: OptimalControlProblem) -> list[str]:
    model, names = problem.display.model, [f"coordinate {k}" for k in range(problem.n)]
    if model is None or 2 * model.nv > problem.n:
        return names
    rates = coordinate_names(model)[1]
    for k, name in enumerate(rates):
        names[k], names[model.nv + k] = f"{name} of q", name
    if model.topology.joints and model.topology.joints[0].kind == "free":
        names[:6] = ["x [m]", "y [m]", "height [m]", "roll [rad]", "pitch [rad]", "yaw [rad]"]
        names[model.nv : model.nv + 3] = ["vx [m/s]", "vy [m/s]", "vz [m/s]"]
    return names
