"""The cross-entropy method (Rubinstein, Kroese, The Cross-Entropy Method, 2004; for control: Kobilarov, IJRR 2012).

The best `elites` of each generation refit a Gaussian, which keeps the share `momentum` of what it was:

    mean <- momentum mean + (1 - momentum) mean of the elites
    deviation <- the same of the elites' standard deviation about their mean, and at least `min_deviation`

A whole covariance, in place of deviations, follows the elites as `distribution.Correlated.adapted` says.
"""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from trajopt.options import check_options
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.sampling.distribution import Box, Correlated, Gaussian, standard
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.sampling.search import SamplingSolver


@dataclasses.dataclass(frozen=True)
class CEM(SamplingSolver):
    """Cross-entropy method.

    Options:
        elites: share of a generation to which the distribution is fitted, rounded to at least two draws.
        momentum: share of the mean, and of independent deviations, that is kept, in [0, 1).
        min_deviation: floor of the deviations, as a share of the initial ones; above `tolerance` the search never
            converges.
        diagonal: whether the components are drawn independently. Default: with more than 50 components.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem, LeastSquaresProblem)

    elites: float = 0.1
    momentum: float = 0.5
    min_deviation: float = 0.0
    diagonal: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, elites="(0, 1]", momentum="[0, 1)", min_deviation="[0, inf)")

    def default_population(self, size: int, equalities: int = 0) -> int:
        """Ten elites, and one more for every two components."""
        return max(64, int(np.ceil((10 + size / 2) / self.elites)))

    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Gaussian | Correlated:
        return standard(mean, self.diagonal)

    def draw(
        self, rng: np.random.Generator, distribution: Gaussian | Correlated, count: int, space: Box | Space
    ) -> Float[np.ndarray, "P d"]:
        return space.clip(distribution.mean + distribution.displaced(rng.standard_normal((count, space.size))))

    def updated_distribution(
        self, distribution: Gaussian | Correlated, drawn: Generation, space: Box | Space
    ) -> tuple[Gaussian | Correlated, Float[np.ndarray, " P"]]:
        elite = drawn.finite[: max(2, round(self.elites * len(drawn.y)))]
        weights = np.zeros(len(drawn.y))
        weights[elite] = (1 - self.momentum) / len(elite)
        chosen = drawn.y[elite]
        mean = distribution.mean + weights[elite] @ (chosen - distribution.mean)
        if isinstance(distribution, Correlated):
            even = np.full(len(elite), 1.0 / len(elite))
            return distribution.adapted(mean, chosen, even, self.min_deviation), weights
        deviation = self.momentum * distribution.deviation + (1 - self.momentum) * chosen.std(0)
        return Gaussian(mean, np.maximum(deviation, self.min_deviation)), weights
