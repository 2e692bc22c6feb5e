"""Stochastic search over a truncated Gaussian of controls: gradient ascent on a shaped, expected cost.

Boutselis, Wang, Theodorou, Constrained sampling-based trajectory optimization using stochastic approximation, ICRA 2020,
after Zhou, Hu, Gradient-based adaptive stochastic search for non-differentiable optimization, IEEE TAC 2014. Maximise

    log E_theta[S(J(y))]    over the parameters theta of p_theta(y) = normal(mean, deviation), truncated to the bounds,

with a decreasing shape S > 0. With T the sufficient statistics of the exponential family its gradient is E_S[T] -
E_theta[T], where E_S weights each draw by S; preconditioned by the variance of T this moves the moments of the family the
share `step_length` of the way to those of the weighted draws. In each component, m and v being mean and variance of the
truncated normal, and m_S, v_S the weighted ones:

    mean <- mean + s deviation^2 / v (m_S - m)
    deviation^2 <- deviation^2 / v ((1 - s) v + s v_S + s (1 - s) (m_S - m)^2),    s = step_length

Without bounds m = mean, v = deviation^2. With a whole covariance, in coordinates of mean and covariance, the natural gradient is
the weighted draws' displacement and the rank-mu update of `distribution` (Akimoto et al., PPSN 2010).

Shapes: "exponential", S = exp(-sharpness (J - min J) / (median J - min J)), and "sigmoid", S = 1 / (1 + exp(sharpness (J - q) /
(q - min J))) with q the quantile `elites` of the merits. State constraints enter the merit; the paper's non-smooth penalty is an
augmented Lagrangian here (`search`).
"""

import dataclasses

import numpy as np
import scipy
from jaxtyping import Float

from trajopt.options import check_options
from trajopt.solvers.sampling.distribution import Correlated, Gaussian, standard
from trajopt.solvers.sampling.mppi import exponential_weights
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.sampling.search import SamplingSolver

SHAPES = ("exponential", "sigmoid")
LEAST_DEVIATION = 1e-12


@dataclasses.dataclass(frozen=True)
class StochasticSearch(SamplingSolver):
    """Natural-gradient stochastic search over a Gaussian that is truncated to the bounds.

    Options:
        step_length: share of the way to the weighted moments, in (0, 1].
        shape: function S of the merit that weights the draws, "exponential" or "sigmoid".
        sharpness: factor of the exponent in S.
        elites: the quantile of the merits at which the sigmoid is centred.
        diagonal: whether the components are independent and the normal is truncated to the bounds. Otherwise it has a whole
            covariance, and draws outside the bounds are projected onto them. Default: with more than 50 components.
    """

    step_length: float = 0.5
    shape: str = "exponential"
    sharpness: float = 10.0
    elites: float = 0.1
    diagonal: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, step_length="(0, 1]", shape=SHAPES, sharpness="(0, inf)", elites="(0, 1)")

    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Gaussian | Correlated:
        return standard(mean, self.diagonal)

    def draw(
        self, rng: np.random.Generator, distribution: Gaussian | Correlated, count: int, space: Space
    ) -> Float[np.ndarray, "P d"]:
        if isinstance(distribution, Correlated):
            return space.clip(distribution.mean + distribution.displaced(rng.standard_normal((count, space.size))))
        low, high = _standardised(distribution, space)
        # The tail with the smaller probabilities is inverted, so that none of them is rounded to one.
        flip = high > -low
        a, b = np.where(flip, -high, low), np.where(flip, -low, high)
        uniform = rng.uniform(np.finfo(float).tiny, 1.0, size=(count, space.size))
        below, above = scipy.special.ndtr(a), scipy.special.ndtr(b)
        noise = np.clip(scipy.special.ndtri(below + uniform * (above - below)), a, b)
        return space.clip(distribution.mean + distribution.deviation * np.where(flip, -noise, noise))

    def weights(self, drawn: Generation) -> Float[np.ndarray, " P"]:
        """S at the draws, summing to one, zero where the merit is not finite."""
        if self.shape == "exponential":
            return exponential_weights(drawn, 1.0 / self.sharpness, True)
        merit = drawn.merit[drawn.finite]
        quantile = float(np.quantile(merit, self.elites))
        scale = max(quantile - merit[0], 1e-300) / self.sharpness
        weights = np.zeros(len(drawn.y))
        weights[drawn.finite] = scipy.special.expit(-(merit - quantile) / scale)
        return weights / weights.sum()

    def updated_distribution(
        self, distribution: Gaussian | Correlated, drawn: Generation, space: Space
    ) -> tuple[Gaussian | Correlated, Float[np.ndarray, " P"]]:
        weights, step = self.weights(drawn), self.step_length
        if isinstance(distribution, Correlated):
            mean = distribution.mean + step * (weights @ drawn.y - distribution.mean)
            return distribution.adapted(mean, drawn.y, weights), step * weights
        m, v = truncated_moments(distribution, space)
        weighted = weights @ drawn.y
        variance = weights @ (drawn.y - weighted) ** 2
        ratio = distribution.deviation**2 / v
        mean = distribution.mean + step * ratio * (weighted - m)
        squared = ratio * ((1 - step) * v + step * variance + step * (1 - step) * (weighted - m) ** 2)
        return Gaussian(mean, np.sqrt(np.maximum(squared, LEAST_DEVIATION**2))), step * weights


def _standardised(distribution: Gaussian, space: Space) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = distribution.mean, distribution.deviation
    return (space.lower - mean) / deviation, (space.upper - mean) / deviation


def truncated_moments(distribution: Gaussian, space: Space) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Mean and variance of each component of the normal truncated to its bounds (the mean lies within them)."""
    low, high = _standardised(distribution, space)
    mass = scipy.special.ndtr(high) - scipy.special.ndtr(low)
    density = lambda a: np.exp(-0.5 * a * a) / np.sqrt(2 * np.pi)  # noqa: E731
    bounded = lambda a: np.where(np.isfinite(a), a, 0.0) * density(a)  # noqa: E731
    shift = (density(low) - density(high)) / mass
    variance = 1.0 + (bounded(low) - bounded(high)) / mass - shift**2
    return distribution.mean + distribution.deviation * shift, distribution.deviation**2 * np.maximum(variance, 1e-6)
