r"""Parameters that only impacts show, by whole predicted motions: CMA-ES, then a quadratic response surface.

Through impacts the error of a motion has many local minima, in which derivatives, exact or averaged, end. What works is to
predict each recording from its first state to its end and to search the few parameters that are left by sampling. The loss of
recording j is the mean over its samples t and the measured quantities b (positions, rotations, joints) of

    rho(e_bjt / E_b),      rho(x) = 2 c^2 (sqrt(1 + (x / c)^2) - 1),  c = 0.3,

with e the norm of the error and E_b its mean under the first guess of the parameters: near the size of the errors the loss is
linear, so that a motion that went another way counts once.

Parameters trade against each other along narrow valleys (a larger body of the same height against a larger inertia), on whose
ground impacts leave ripples: the search needs large populations and more evaluations than a smooth loss would.

Curvature and scores of the recordings come from a quadratic through the losses of each recording at points drawn about the
optimum. J^T J is not the curvature here: impacts multiply J, and not the curvature of what is averaged over many motions.

The quadratic leaves a residual of deviation s, the ripples. A search that rates M points ends where a ripple is deepest, about
s sqrt(2 ln M) below the quadratic; the number of ripples that deep falls with the height above its minimum as exp(-height / w),
w = s / sqrt(2 ln M) (the tail of the normal distribution). Ends of searches thus spread by w H^-1 about the minimum, which is
added to the covariance of the recordings' draw.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Int

from trajopt.estimation.loss import RobustLoss
from trajopt.estimation.packing import Data, Group
from trajopt.estimation.prediction import Predictor
from trajopt.estimation.uncertainty import Information
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.distribution import Box
from trajopt.solvers.sampling.fit import next_distribution

CORNER = 0.3  # c, of the loss
COARSE = 1e-5  # tolerance of the contact solver in whole motions, whose errors are far above it
EVALUATIONS = 150  # of CMA-ES, for each direction that is searched
PAIRS = 128  # most of a point and a recording, predicted in one call
POINTS = 16  # of a generation of CMA-ES with few directions
PILOT_RADIUS = 0.5  # in scales, of the points that say how long the axes of the surface are
LONGEST_AXIS = 1.0  # in scales, of the points of the surface: so far a parameter may well be off
SHORTEST_AXIS = 0.14  # relative to the longest


@dataclasses.dataclass(frozen=True, eq=False)
class WholeMotions:
    """The loss above over groups of recordings, of points z (P, k): theta = scale * (origin + basis z) within the bounds.

    Points and recordings are paired and go through one program of each group, so many at a time: whatever is asked, nothing is
    compiled again. These numbers fit a generation of the search on the recordings `searched`."""

    predictor: Predictor
    groups: Sequence[Group]
    origin: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n k"]
    loss: RobustLoss
    searched: Int[np.ndarray, " r"]

    @property
    def recordings(self) -> int:
        return sum(len(group.index) for group in self.groups)

    def theta(self, z: Float[np.ndarray, "*P k"]) -> Float[np.ndarray, "*P n"]:
        """Parameters of points."""
        unknowns = self.predictor.unknowns
        return np.clip((self.origin + z @ self.basis.T) * unknowns.scale, unknowns.lower, unknowns.upper)

    @functools.cached_property
    def blocks(self) -> list[tuple[str, slice]]:
        """Channel and rows of each measured quantity: those of configurations, or of all sensors where there are none."""
        measuring = self.predictor.measuring
        chosen = [s for s in measuring if s.of_configuration] or list(measuring)
        return [(s.channel, block) for s in chosen for block in s.quantities(self.predictor.system.model)]

    @functools.cached_property
    def _program(self) -> Callable:
        """(theta, data, scales) of pairs -> the loss (B,), and of each quantity the sum of the errors and their number (B, b)."""
        local = jnp.zeros(self.predictor.n_local)

        def one(theta: Array, data: Data, scales: Array) -> tuple[Array, Array, Array]:
            errors = self.predictor.errors(theta, local, data)
            losses, sums, counts = [], [], []
            for (channel, rows), scale in zip(self.blocks, scales):
                size = jnp.sqrt((errors[channel][:, rows] ** 2).sum(1))
                present = data.measured[channel].present[:, rows].max(1)
                rho = 2.0 * CORNER**2 * (jnp.sqrt(1.0 + (size / (scale * CORNER)) ** 2) - 1.0)
                losses.append((rho * present).sum() / jnp.maximum(present.sum(), 1.0))
                sums.append((size * present).sum())
                counts.append(present.sum())
            measured = jnp.minimum(jnp.stack(counts), 1.0).sum()
            return jnp.stack(losses).sum() / jnp.maximum(measured, 1.0), jnp.stack(sums), jnp.stack(counts)

        return jax.jit(jax.vmap(one, (0, 0, None)))

    @functools.cached_property
    def _data(self) -> list[Data]:
        """The data of the groups as arrays of NumPy, from which pairs are taken."""
        return [jax.device_get(group.data) for group in self.groups]

    def _rated(
        self, thetas: Float[np.ndarray, "P n"], recordings: Int[np.ndarray, " k"], scales: Float[np.ndarray, " b"]
    ) -> tuple[Float[np.ndarray, "P k"], Float[np.ndarray, "P k b"], Float[np.ndarray, "P k b"]]:
        """What the program says about every point and recording."""
        shape = (len(thetas), len(recordings))
        found = (np.zeros(shape), np.zeros((*shape, scales.size)), np.zeros((*shape, scales.size)))
        for group, data in zip(self.groups, self._data):
            columns = np.flatnonzero(np.isin(recordings, group.index))
            rows = np.searchsorted(group.index, recordings[columns])
            point, column = (a.reshape(-1) for a in np.mgrid[: len(thetas), : len(columns)])
            pairs = self._pairs(group)
            for k in range(0, point.size, pairs):
                p, c = point[k : k + pairs], column[k : k + pairs]
                row = np.resize(rows[c], pairs)
                part = jax.tree.map(lambda leaf, row=row: leaf[row], data)
                rated = self._program(np.resize(thetas[p], (pairs, thetas.shape[1])), part, scales)
                for whole, some in zip(found, rated):
                    whole[p, columns[c]] = np.asarray(some)[: p.size]
        return found

    def _pairs(self, group: Group) -> int:
        """Of how many the program of a group takes at a time: at most `PAIRS`, parts of a generation as equal as they can be."""
        generation = POINTS * max(1, int(np.isin(group.index, self.searched).sum()))
        return -(-generation // -(-generation // PAIRS))

    @functools.cached_property
    def scales(self) -> Float[np.ndarray, " b"]:
        """E_b: the mean error of each quantity under the first guess."""
        start = self.theta(np.zeros((1, self.basis.shape[1])))
        _, sums, counts = self._rated(start, np.arange(self.recordings), np.ones(len(self.blocks)))
        good = np.isfinite(sums)
        return np.maximum(np.where(good, sums, 0.0).sum((0, 1)) / np.maximum((counts * good).sum((0, 1)), 1.0), 1e-9)

    def losses(
        self, z: Float[np.ndarray, "P k"], recordings: Int[np.ndarray, " r"] | None = None
    ) -> Float[np.ndarray, "P r"]:
        """The loss of each of these recordings, default all; infinite where a motion is not finite."""
        chosen = np.arange(self.recordings) if recordings is None else recordings
        losses = self._rated(self.theta(z), chosen, self.scales)[0]
        return np.where(np.isfinite(losses), losses, np.inf)

    def merit(self, losses: Float[np.ndarray, "P R"]) -> Float[np.ndarray, " P"]:
        """What is minimised: the mean over recordings, by the robust loss where that is of recordings."""
        if self.loss.kind != "linear" and self.loss.by == "recording":
            typical = np.median(losses, 1, keepdims=True)
            return (2.0 * self.loss.of_size(np.sqrt(losses / typical))[1] * typical).mean(1)
        return losses.mean(1)


@dataclasses.dataclass(frozen=True)
class Search:
    """Where CMA-ES ended: the mean z (k,), the merits of the start and of the end, evaluations of one recording."""

    z: Float[np.ndarray, " k"]
    first_merit: float
    merit: float
    rollouts: int


def coarse(predictor: Predictor) -> Predictor:
    """The predictor with contact solved to `COARSE` alone."""
    law = predictor.system.contact
    if not law.solves_impulses:
        return predictor
    coarser: dict[str, Any] = {"tolerance": COARSE}
    system = dataclasses.replace(predictor.system, contact=dataclasses.replace(law, **coarser))
    return dataclasses.replace(predictor, system=system)


def search(motions: WholeMotions, few: Int[np.ndarray, " r"], evaluations: int | None, seed: int) -> Search:
    """CMA-ES from z = 0 with unit deviations, on these recordings."""
    k = motions.basis.shape[1]
    evaluations = EVALUATIONS * k if evaluations is None else evaluations
    solver = CMAES()
    box = Box(np.full(k, -np.inf), np.full(k, np.inf))
    distribution, rng = solver.first_distribution(np.zeros(k)), np.random.default_rng(seed)

    def merits(y: np.ndarray) -> np.ndarray:
        return motions.merit(motions.losses(y, few)) + _beyond(motions, y)

    best_z, best = np.zeros(k), float(merits(np.zeros((1, k)))[0])
    first, used = best, 1
    while used < evaluations and distribution.spread > 0.02:
        distribution, y, merit = next_distribution(solver, distribution, rng, box, merits, first)
        used += len(y)
        if merit.min() < best:
            best_z, best = y[int(merit.argmin())], float(merit.min())
    mean = np.asarray(distribution.mean)
    at_mean = float(merits(mean[None])[0])
    z, merit_there = (mean, at_mean) if at_mean <= best * 1.02 else (best_z, best)
    return Search(z, first, merit_there, (used + 1) * len(few))


def _beyond(motions: WholeMotions, z: Float[np.ndarray, "P k"]) -> Float[np.ndarray, " P"]:
    """Squared distance, in scales, by which points lie beyond the bounds, onto which they were projected."""
    unknowns = motions.predictor.unknowns
    wanted = (motions.origin + z @ motions.basis.T) * unknowns.scale
    return ((wanted - motions.theta(z)) ** 2 / unknowns.scale**2).sum(1)


@dataclasses.dataclass(frozen=True)
class Surface:
    """Curvature and scores of the recordings about `z` (k,), in z; rollouts that it took; the share of the losses' variance
    that the quadratics explain."""

    z: Float[np.ndarray, " k"]
    information: Information
    rollouts: int
    explained: float


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """Slopes g (R, k) and curvatures H (R, k, k) of the recordings' losses at the middle of points, `total` that of their mean
    in which each eigenvalue is the mean of the positive values that the residuals allow, and the share that it explains."""

    g: Float[np.ndarray, "R k"]
    H: Float[np.ndarray, "R k k"]
    total: Float[np.ndarray, "k k"]
    explained: float


def quadratic(X: Float[np.ndarray, "P k"], Y: Float[np.ndarray, "P R"]) -> Quadratic:
    """Least squares through the losses Y at points X about zero, recording by recording."""
    k = X.shape[1]
    upper, table = np.triu_indices(k), _table(X)
    found = np.linalg.lstsq(table, Y, rcond=None)[0]
    g, H = found[1 : 1 + k].T, np.zeros((Y.shape[1], k, k))
    H[:, upper[0], upper[1]] += found[1 + k :].T
    H = H + np.swapaxes(H, 1, 2)
    mean = Y.mean(1)
    variance = ripples(X, mean) ** 2 * np.linalg.pinv(table.T @ table)[1 + k :, 1 + k :]
    values, vectors = np.linalg.eigh(H.mean(0))
    along = 2.0 * vectors[upper[0]] * vectors[upper[1]]  # of an eigenvalue by the coefficients of the quadratic
    resolved = np.sqrt(np.einsum("ij,ik,kj->j", along, variance, along)) + 1e-9 * max(float(values[-1]), 1e-12)
    beyond = -values / resolved
    kept = values + resolved * np.exp(scipy.stats.norm.logpdf(beyond) - scipy.stats.norm.logsf(beyond))
    explained = 1.0 - float(np.var(mean - (table @ found).mean(1)) / max(np.var(mean), 1e-300))
    return Quadratic(g, H, (vectors * kept) @ vectors.T, explained)


def ripples(X: Float[np.ndarray, "P k"], y: Float[np.ndarray, " P"]) -> float:
    """Deviation of what a quadratic leaves of y."""
    table = _table(X)
    rest = y - table @ np.linalg.lstsq(table, y, rcond=None)[0]
    return float(np.sqrt(rest @ rest / max(len(X) - table.shape[1], 1)))


def _table(X: Float[np.ndarray, "P k"]) -> Float[np.ndarray, "P c"]:
    """The terms of a quadratic at points: 1, x, products."""
    upper = np.triu_indices(X.shape[1])
    return np.concatenate([np.ones((len(X), 1)), X, X[:, upper[0]] * X[:, upper[1]]], 1)


def response_surface(motions: WholeMotions, about: Search, few: Int[np.ndarray, " r"], seed: int) -> Surface:
    """Quadratics through the losses of each recording at antithetic points about CMA-ES's end; z is the minimum of their sum, or
    that end where the motions fit better there. Points on the searched recordings, `few`, come first: the axes along which all
    recordings are then rated are as long as raises their loss alike, and at most doubles it."""
    k = about.z.size
    coefficients = (k + 1) * (k + 2) // 2
    pilot, Y = _at_points(motions, about.z, PILOT_RADIUS * np.eye(k), max(60, 3 * coefficients), [seed, 1], few)
    values, vectors = np.linalg.eigh(quadratic(pilot, Y).H.mean(0))
    values = np.maximum(values, SHORTEST_AXIS**2 * max(float(values[-1]), 1e-12))
    axes = vectors * np.minimum(LONGEST_AXIS * np.sqrt(values[0] / values), np.sqrt(2.0 * max(about.merit, 1e-9) / values))
    X, Y = _at_points(motions, about.z, axes, max(60, 3 * coefficients), [seed, 4])
    fit = quadratic(X, Y)
    step = -np.linalg.solve(fit.total, fit.g.mean(0))
    step *= min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-300))
    merits = motions.merit(motions.losses(np.stack([about.z, about.z + axes @ step])))
    z = about.z + (axes @ step if merits[1] <= merits[0] else 0.0)
    back = np.linalg.inv(axes)
    H = fit.H + (fit.total - fit.H.mean(0))
    evaluations = max(about.rollouts / few.size, 2.0)
    depth = ripples(X, Y[:, few].mean(1)) / np.sqrt(2.0 * np.log(evaluations))
    ends = depth * axes @ np.linalg.inv(fit.total) @ axes.T
    unit = max(float(merits.min()), 1e-12)  # the loss that is left: so much may a direction that is determined raise it
    information = Information(back.T @ H @ back / unit, (fit.g + H @ step) @ back / unit, ends, likelihood=False)
    rollouts = len(pilot) * few.size + (len(X) + 2) * motions.recordings
    return Surface(z, information, rollouts, fit.explained)


def _at_points(
    motions: WholeMotions, z: np.ndarray, axes: np.ndarray, points: int, seed: list[int], few: np.ndarray | None = None
) -> tuple[Float[np.ndarray, "P k"], Float[np.ndarray, "P r"]]:
    """Antithetic points in units of the axes about z, and the losses of these recordings, where they are finite."""
    half = np.random.default_rng(seed).normal(size=(points // 2, z.size))
    X = np.concatenate([half, -half])
    Y = motions.losses(z + X @ axes.T, few)
    good = np.isfinite(Y).all(1)
    return X[good], Y[good]


def chosen(recordings: int, most: int, seed: int) -> Int[np.ndarray, " k"]:
    """Indices of the recordings that the search uses: all, or `most` of them drawn at random."""
    if recordings <= most:
        return np.arange(recordings)
    return np.sort(np.random.default_rng([seed, 2]).permutation(recordings)[:most])
