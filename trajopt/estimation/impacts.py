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
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
PAIRS = 128  # of a point and a recording, predicted in one call; or `POINTS` for each recording of a small group
POINTS = 16
SURFACE_RADIUS = 0.5  # of the points of the surface, in units of the scale or of CMA-ES's own spread
LEAST_CURVATURE = 0.02  # relative to the largest, of a direction of the surface that counts


@dataclasses.dataclass(frozen=True, eq=False)
class WholeMotions:
    """The loss above over groups of recordings, of points z (P, k): theta = scale * (origin + basis z) within the bounds.

    Points and recordings are paired and go through one program of each group, so many at a time: whatever is asked, nothing is
    compiled again."""

    predictor: Predictor
    groups: Sequence[Group]
    origin: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n k"]
    loss: RobustLoss

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
            pairs = min(PAIRS, POINTS * len(group.index))
            for k in range(0, point.size, pairs):
                p, c = point[k : k + pairs], column[k : k + pairs]
                row = np.resize(rows[c], pairs)
                part = jax.tree.map(lambda leaf, row=row: leaf[row], data)
                rated = self._program(np.resize(thetas[p], (pairs, thetas.shape[1])), part, scales)
                for whole, some in zip(found, rated):
                    whole[p, columns[c]] = np.asarray(some)[: p.size]
        return found

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
    """Where CMA-ES ended: the mean z (k,), its deviations, the merits of the start and of the end, evaluations of one
    recording."""

    z: Float[np.ndarray, " k"]
    deviation: Float[np.ndarray, " k"]
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
    return Search(z, np.asarray(distribution.deviation), first, merit_there, (used + 1) * len(few))


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


def response_surface(motions: WholeMotions, about: Search, seed: int, points: int | None = None) -> Surface:
    """Quadratics through the losses of each recording at antithetic points about CMA-ES's end; z is the minimum of their sum, or
    that end where the motions fit better there."""
    k = about.z.size
    count = (points or max(60, 3 * (k + 1) * (k + 2) // 2)) // 2
    radius = np.maximum(np.minimum(about.deviation, 1.0), SURFACE_RADIUS)
    half = np.random.default_rng([seed, 1]).normal(size=(count, k))
    X = np.concatenate([half, -half]) * radius
    Y = motions.losses(about.z + X)
    good = np.isfinite(Y).all(1)
    X, Y = X[good], Y[good]
    upper = np.triu_indices(k)
    table = np.concatenate([np.ones((len(X), 1)), X, X[:, upper[0]] * X[:, upper[1]]], 1)
    found = np.linalg.lstsq(table, Y, rcond=None)[0]
    mean = Y.mean(1)
    explained = 1.0 - float(np.var(mean - (table @ found).mean(1)) / max(np.var(mean), 1e-300))
    g, H = found[1 : 1 + k].T, np.zeros((Y.shape[1], k, k))
    H[:, upper[0], upper[1]] += found[1 + k :].T
    H = H + np.swapaxes(H, 1, 2)
    total = _positive(H.mean(0))
    step = -np.linalg.solve(total, g.mean(0))
    step *= min(1.0, 1.0 / max(float(np.abs(step / radius).max()), 1e-300))
    H = H + (total - H.mean(0))
    merits = motions.merit(motions.losses(np.stack([about.z, about.z + step])))
    z = about.z + (step if merits[1] <= merits[0] else 0.0)
    return Surface(z, Information(H, g + H @ step), (len(X) + 2) * motions.recordings, explained)


def _positive(H: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """The curvature with eigenvalues of at least a share of the largest."""
    values, vectors = np.linalg.eigh(H)
    return (vectors * np.maximum(values, LEAST_CURVATURE * max(float(values[-1]), 1e-12))) @ vectors.T


def chosen(recordings: int, most: int, seed: int) -> Int[np.ndarray, " k"]:
    """Indices of the recordings that the search uses: all, or `most` of them drawn at random."""
    if recordings <= most:
        return np.arange(recordings)
    return np.sort(np.random.default_rng([seed, 2]).permutation(recordings)[:most])
