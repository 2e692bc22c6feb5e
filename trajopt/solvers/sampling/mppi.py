"""Model predictive path integral control as an optimiser (Williams et al., IEEE T-RO 34(6), 2018).

Draws are weighted by their merit J, the mean moves to their weighted mean:

    w_i = exp(-(J_i - min J) / lambda) / sum,    mean <- sum_i w_i y_i

lambda is `temperature`, or with `adaptive` that times the distance of the median merit from the least one, which makes the
weights invariant to the scale of the cost. The noise is coloured along the knots by a first-order filter, e_k = s e_{k-1} +
sqrt(1 - s^2) n_k, of unit variance. Deviation from the source: there is no stochastic control problem behind the noise, so
its cost u^T Sigma^-1 e is left out, and since fixed noise never converges, its covariance follows the weighted draws (Stulp,
Sigaud, Path integral policy improvement with covariance matrix adaptation, ICML 2012), or with `diagonal` or `smoothing` the
deviation is multiplied by `decay` after every generation in which the merit of the mean has not improved.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from trajopt.errors import OptionError
from trajopt.options import check_options
from trajopt.solvers.sampling.distribution import Correlated, Gaussian, standard
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.sampling.search import SamplingSolver


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Annealed(Gaussian):
    """Adds the merit of the best mean since the last change of the merit."""

    least: Any

    def reheated(self, factor: float) -> Any:
        return Annealed(self.mean, self.deviation * factor, float("inf"))


@dataclasses.dataclass(frozen=True)
class MPPI(SamplingSolver):
    """Model predictive path integral control as an optimiser: the mean moves to the exponentially weighted mean of the draws.

    Options:
        temperature: lambda in the weights $exp(-(J - min J) / lambda)$ of the merits J, in units of the cost; with `adaptive`
            a share of the distance between the median and the least merit.
        adaptive: whether the temperature scales with the merits of each generation.
        smoothing: correlation of the noise of neighbouring knots, in [0, 1).
        decay: factor of an independent deviation after a generation without a better mean, in (0, 1]; 1 keeps it, and never
            converges.
        diagonal: whether the noise keeps its first shape and decays, in place of a covariance that follows the draws.
            Default: with `smoothing`, or more than 50 components.
    """

    temperature: float = 0.1
    adaptive: bool = True
    smoothing: float = 0.0
    decay: float = 0.9
    diagonal: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, temperature="(0, inf)", smoothing="[0, 1)", decay="(0, 1]")
        if self.smoothing and self.diagonal is False:
            raise OptionError(
                f"MPPI: smoothing is {self.smoothing} and diagonal False, but a covariance that follows the draws does not keep "
                "a correlation; leave one of them out"
            )

    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Annealed | Correlated:
        first = standard(mean, True if self.smoothing else self.diagonal)
        return first if isinstance(first, Correlated) else Annealed(mean, first.deviation, float("inf"))

    def draw(self, rng: np.random.Generator, distribution: Any, count: int, space: Space) -> Float[np.ndarray, "P d"]:
        noise = rng.standard_normal((count, space.size))
        width, s = space.width, self.smoothing
        knots = noise[:, : space.knots * width].reshape(count, space.knots, width)  # a view: changed in place
        for k in range(1, space.knots if s else 1):
            knots[:, k] = s * knots[:, k - 1] + np.sqrt(1 - s * s) * knots[:, k]
        noise[:, : space.knots * width] = knots.reshape(count, -1)
        return space.clip(distribution.mean + distribution.displaced(noise))

    def updated_distribution(
        self, distribution: Any, drawn: Generation, space: Space
    ) -> tuple[Any, Float[np.ndarray, " P"]]:
        weights = exponential_weights(drawn, self.temperature, self.adaptive)
        mean = distribution.mean + weights @ (drawn.y - distribution.mean)
        if isinstance(distribution, Correlated):
            return distribution.adapted(mean, drawn.y, weights), weights
        better = drawn.mean_merit < distribution.least
        deviation = distribution.deviation * (1.0 if better else self.decay)
        return Annealed(mean, deviation, min(drawn.mean_merit, float(distribution.least))), weights


def exponential_weights(drawn: Generation, temperature: float, adaptive: bool) -> Float[np.ndarray, " P"]:
    """Weights (P,) that sum to one, zero where the merit is not finite."""
    merit = drawn.merit[drawn.finite]
    scale = temperature * (max(float(np.median(merit) - merit[0]), 1e-300) if adaptive else 1.0)
    weights = np.zeros(len(drawn.y))
    weights[drawn.finite] = np.exp(-(merit - merit[0]) / scale)
    return weights / weights.sum()
