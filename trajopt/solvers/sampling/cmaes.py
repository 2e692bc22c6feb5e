"""Covariance matrix adaptation (Hansen, The CMA evolution strategy: a tutorial, arXiv 1604.00772, 2016).

Standard parameters (Table 1) with positive weights only; rank-one and rank-mu updates of C (eq. 47), cumulative step-size
control (eqs. 43, 44). The separable variant keeps the diagonal of C and learns it (n + 2) / 3 times as fast (Ros, Hansen,
PPSN 2008): time and memory grow with n in place of n^2. Deviation: draws outside the bounds are projected onto them before
they are rated and used.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from trajopt.options import check_options
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.sampling.distribution import Box, Distribution
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Generation
from trajopt.solvers.sampling.search import SamplingSolver

LARGEST_FULL = 300  # components up to which the whole covariance is adapted by default
DRAWS_OF_ROW = 6  # of terminal equalities: fewer follow noise (MULTIPLIER_SHARE of a regression on too few)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Strategy parameters for n components and a population (Table 1)."""

    n: int
    population: int
    diagonal: bool = False

    @property
    def weights(self) -> Float[np.ndarray, " mu"]:
        """Of the best half, best first; they sum to one."""
        best = self.population // 2
        raw = np.log((self.population + 1) / 2) - np.log(np.arange(1, best + 1))
        return raw / raw.sum()

    @property
    def mu_eff(self) -> float:
        return float(1.0 / np.sum(self.weights**2))

    @property
    def c_sigma(self) -> float:
        return (self.mu_eff + 2) / (self.n + self.mu_eff + 5)

    @property
    def d_sigma(self) -> float:
        return 1 + 2 * max(0.0, np.sqrt((self.mu_eff - 1) / (self.n + 1)) - 1) + self.c_sigma

    @property
    def c_c(self) -> float:
        return (4 + self.mu_eff / self.n) / (self.n + 4 + 2 * self.mu_eff / self.n)

    @property
    def rates(self) -> tuple[float, float]:
        """(c_1, c_mu): of the rank-one and the rank-mu update."""
        n, mu = self.n, self.mu_eff
        faster = (n + 2) / 3 if self.diagonal else 1.0
        c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mu))
        return c_1, min(1 - c_1, faster * 2 * (0.25 + mu + 1 / mu - 2) / ((n + 2) ** 2 + mu))

    @property
    def expected_length(self) -> float:
        """E |N(0, I)|."""
        return float(np.sqrt(self.n) * (1 - 1 / (4 * self.n) + 1 / (21 * self.n**2)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapted(Distribution):
    """N(mean, step_size^2 C); C (n, n) with its axes B and their lengths D, or its diagonal (n,), with B then unused.

    path_c, path_sigma: evolution paths; count: generations; decomposed: generation of the last decomposition.
    """

    step_size: float
    C: Any
    B: Any
    D: Any
    path_c: Any
    path_sigma: Any
    count: int
    decomposed: int

    @property
    def deviation(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of each component."""
        return self.step_size * np.sqrt(self.C if self.C.ndim == 1 else np.diag(self.C))

    def reheated(self, factor: float) -> Adapted:
        """With deviations larger by `factor`; the paths start anew."""
        zero = np.zeros_like(self.path_c)
        return dataclasses.replace(self, step_size=float(self.step_size * factor), path_c=zero, path_sigma=zero)


@dataclasses.dataclass(frozen=True)
class CMAES(SamplingSolver):
    """CMA-ES, which adapts the covariance of its draws. The default population is 4 + 3 log n for n components, and at least
    six for every row of terminal equalities.

    Options:
        diagonal: whether only the diagonal of the covariance is adapted. Default: with more than 300 components.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem, LeastSquaresProblem)

    diagonal: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, population="[4, inf)")

    def default_population(self, size: int, equalities: int = 0) -> int:
        """4 + 3 log n, and at least six for every row of terminal equalities, which are regressed on the draws."""
        return max(4 + int(3 * np.log(size)), DRAWS_OF_ROW * equalities)

    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Adapted:
        n = mean.size
        zero, one = np.zeros(n), np.ones(n)
        separable = n > LARGEST_FULL if self.diagonal is None else self.diagonal
        C, B = (one, np.zeros((0, 0))) if separable else (np.eye(n), np.eye(n))
        return Adapted(mean, 1.0, C, B, one, zero, zero, 0, 0)

    def draw(
        self, rng: np.random.Generator, distribution: Adapted, count: int, space: Box | Space
    ) -> Float[np.ndarray, "P d"]:
        scaled = rng.standard_normal((count, space.size)) * distribution.D
        steps = scaled @ distribution.B.T if distribution.C.ndim == 2 else scaled
        return space.clip(distribution.mean + distribution.step_size * steps)

    def updated_distribution(
        self, distribution: Adapted, drawn: Generation, space: Box | Space
    ) -> tuple[Adapted, Float[np.ndarray, " P"]]:
        s, n = distribution, space.size
        full = s.C.ndim == 2
        at = Parameters(n, len(drawn.y), not full)
        chosen = drawn.finite[: len(at.weights)]
        w = at.weights[: len(chosen)] / at.weights[: len(chosen)].sum()
        y = (drawn.y[chosen] - s.mean) / s.step_size
        step = w @ y
        whitened = s.B @ ((s.B.T @ step) / s.D) if full else step / s.D
        c_sigma, c_c, (c_1, c_mu) = at.c_sigma, at.c_c, at.rates
        path_sigma = (1 - c_sigma) * s.path_sigma + np.sqrt(c_sigma * (2 - c_sigma) * at.mu_eff) * whitened
        length = float(np.linalg.norm(path_sigma))
        settled = np.sqrt(1 - (1 - c_sigma) ** (2 * (s.count + 1)))
        h = float(length / settled < (1.4 + 2 / (n + 1)) * at.expected_length)
        path_c = (1 - c_c) * s.path_c + h * np.sqrt(c_c * (2 - c_c) * at.mu_eff) * step
        kept = 1 - c_1 - c_mu + (1 - h) * c_1 * c_c * (2 - c_c)
        rank_one = np.outer(path_c, path_c) if full else path_c**2
        rank_mu = (y.T * w) @ y if full else w @ y**2
        C = kept * s.C + c_1 * rank_one + c_mu * rank_mu
        step_size = s.step_size * float(np.exp(min(1.0, c_sigma / at.d_sigma * (length / at.expected_length - 1))))
        new = Adapted(
            s.mean + s.step_size * step, step_size, C, s.B, s.D, path_c, path_sigma, s.count + 1, s.decomposed
        )
        weights = np.zeros(len(drawn.y))
        weights[chosen] = w
        return _decomposed(new, 0.1 / (n * (c_1 + c_mu)) if full else 0.0), weights


def _decomposed(s: Adapted, interval: float) -> Adapted:
    """With axes and lengths of C renewed, once in `interval` generations (tutorial, appendix B.2)."""
    if s.count - s.decomposed < interval:
        return s
    if s.C.ndim == 1:
        return dataclasses.replace(s, D=np.sqrt(s.C), decomposed=s.count)
    C = 0.5 * (s.C + s.C.T)
    values, B = np.linalg.eigh(C)
    return dataclasses.replace(s, C=C, B=B, D=np.sqrt(np.maximum(values, 1e-20 * values[-1])), decomposed=s.count)
