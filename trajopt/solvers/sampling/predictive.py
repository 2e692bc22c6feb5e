"""Predictive sampling (Howell et al., Predictive Sampling: Real-time Behaviour Synthesis with MuJoCo, arXiv 2212.00541, 2022).

The best of the draws about a plan, or the plan itself, is the next plan. Deviation from the source: the draws of a generation
have different deviations, from `least_scale` to 1 of the whole one, evenly in the logarithm, so that both far and near plans are
tried; as an optimiser, the deviation decays like that of `MPPI` after a generation without a better plan.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.options import check_options
from trajopt.solvers.sampling.mppi import Annealed
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.sampling.search import SamplingSolver


@dataclasses.dataclass(frozen=True)
class PredictiveSampling(SamplingSolver):
    """Predictive sampling: the best draw is the next mean.

    Options:
        least_scale: the smallest deviation of a draw, as a share of the largest, in (0, 1]; 1: all draws alike.
        decay: factor of the deviation after a generation without a better draw, in (0, 1]; 1 keeps it, and never converges.
    """

    least_scale: float = 0.1
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, least_scale="(0, 1]", decay="(0, 1]")

    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Annealed:
        return Annealed(mean, np.ones(mean.size), float("inf"))

    def draw(
        self, rng: np.random.Generator, distribution: Any, count: int, space: Space
    ) -> Float[np.ndarray, "P d"]:
        scales = self.least_scale ** (np.arange(count) / max(count - 1, 1))
        noise = scales[:, None] * rng.standard_normal((count, space.size))
        return space.clip(distribution.mean + distribution.displaced(noise))

    def updated_distribution(
        self, distribution: Any, drawn: Generation, space: Space
    ) -> tuple[Any, Float[np.ndarray, " P"]]:
        best, weights = int(drawn.finite[0]), np.zeros(len(drawn.y))
        if drawn.merit[best] >= drawn.mean_merit:
            deviation = distribution.deviation * self.decay
            return Annealed(distribution.mean, deviation, drawn.mean_merit), weights
        weights[best] = 1.0
        return Annealed(drawn.y[best], distribution.deviation, float(drawn.merit[best])), weights
