"""What sampling solvers draw from: normal distributions, of independent components or with a whole covariance.

The covariance follows the weighted draws as CMA-ES's rank-mu update has it (Hansen, arXiv 1604.00772, eqs. 28, 30 and 49), for
path integrals Stulp, Sigaud, ICML 2012:

    C <- (1 - c) C + c sum_i w_i (y_i - mean)(y_i - mean)^T,    c = 2 (mu - 2 + 1 / mu) / ((n + 2)^2 + mu),  mu = 1 / sum w^2

Displacements are from the mean that the draws were made about: about their own mean the covariance shrinks along the direction
of descent, and a search in a curved valley stops halfway. Terminal constraints make such valleys.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt32

LARGEST_COVARIANCE = 50  # components up to which a whole covariance is learnt by default: of more, draws say too little


@dataclasses.dataclass(frozen=True)
class Box:
    """What is searched: points between bounds, (d,)."""

    lower: np.ndarray
    upper: np.ndarray

    @property
    def size(self) -> int:
        """Number of components."""
        return self.lower.size

    def clip(self, y: Float[np.ndarray, "*b d"]) -> Float[np.ndarray, "*b d"]:
        """y in the bounds."""
        return np.clip(y, self.lower, self.upper)


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Of draws about a mean (d,) in y; `deviation` (d,) is the standard one of each component."""

    mean: Any

    @property
    def spread(self) -> float:
        """The largest deviation."""
        return float(np.max(self.deviation))  # type: ignore[attr-defined]

    def moved(self, mean: Float[np.ndarray, " d"]) -> Any:
        """About another mean."""
        return dataclasses.replace(self, mean=mean)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(Distribution):
    """Independent normal components."""

    deviation: Any

    def reheated(self, factor: float) -> Any:
        """With deviations larger by `factor`."""
        return dataclasses.replace(self, deviation=self.deviation * factor)

    def displaced(self, noise: Float[np.ndarray, "P d"]) -> Float[np.ndarray, "P d"]:
        """Displacements from the mean, of standard normal noise."""
        return self.deviation * noise


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Correlated(Distribution):
    """N(mean, axes lengths^2 axes^T): mean and lengths (d,), the axes the columns of a (d, d), in y."""

    axes: Any
    lengths: Any

    @property
    def deviation(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of each component."""
        return np.sqrt((self.axes * self.lengths) ** 2 @ np.ones(len(self.lengths)))

    def reheated(self, factor: float) -> Correlated:
        """With deviations larger by `factor`."""
        return dataclasses.replace(self, lengths=self.lengths * factor)

    def displaced(self, noise: Float[np.ndarray, "P d"]) -> Float[np.ndarray, "P d"]:
        """Displacements from the mean, of standard normal noise."""
        return (self.lengths * noise) @ self.axes.T

    def adapted(
        self,
        mean: Float[np.ndarray, " d"],
        y: Float[np.ndarray, "P d"],
        weights: Float[np.ndarray, " P"],
        least: float = 0.0,
    ) -> Correlated:
        """About another mean, with the covariance moved towards that of the draws y.

        The weights sum to one; lengths are at least `least`.
        """
        rate = adaptation_rate(len(mean), weights)
        away = y - self.mean
        C = (1 - rate) * (self.axes * self.lengths**2) @ self.axes.T + rate * (away.T * weights) @ away
        values, axes = np.linalg.eigh(0.5 * (C + C.T))
        # Rounding of the largest one: a covariance stays positive definite.
        lengths = np.sqrt(np.maximum(values, np.finfo(float).eps * values[-1]))
        return Correlated(mean, axes, np.maximum(lengths, least))


def adaptation_rate(n: int, weights: Float[np.ndarray, " P"]) -> float:
    """Share c of the covariance of n components that draws with these weights replace."""
    mu = float(1.0 / np.sum(weights**2))
    return min(1.0, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))


def generator(seed: UInt32[np.ndarray, " words"], generation: int) -> np.random.Generator:
    """Of the draws of a generation, which depend on seed and generation alone."""
    return np.random.default_rng([*(int(word) for word in np.ravel(seed)), generation])


def standard(mean: Float[np.ndarray, " d"], diagonal: bool | None) -> Gaussian | Correlated:
    """Unit deviations, uncorrelated at first, and for good with the option `diagonal`: None is by the number of components."""
    if diagonal or (diagonal is None and mean.size > LARGEST_COVARIANCE):
        return Gaussian(mean, np.ones(mean.size))
    return Correlated(mean, np.eye(mean.size), np.ones(mean.size))
