"""Least squares by sampling: a distribution over x that is moved by the costs of its draws alone, without derivatives.

A point is x = guess + deviation * y within the bounds (on a manifold guess (+) deviation * y); the search starts with unit
deviations of y. `deviation` is a quarter of the distance between the bounds; where a bound is infinite it is the size of the
guess, or, if that is zero, the problem's `scale`. A generation and its mean are rated in one batch; the best point is kept.

The search has collapsed when the spread, the largest deviation of y, is below the tolerance, or when the costs of a generation
differ by rounding alone. If the best point lies elsewhere, drawn on the way to a worse minimum, the search begins again about
it, narrower; otherwise it has converged. Where the problem has a tolerance of its own, the search ends as soon as the residual
is within it, and until then goes on to a smaller spread. At the best point the gradient and the covariance are computed as
`GaussNewton` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.problems import programs
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.result import Status
from trajopt.solvers.least_squares.gauss_newton import findings
from trajopt.solvers.least_squares.iteration import measured, measures
from trajopt.solvers.least_squares.state import non_finite_row
from trajopt.solvers.loop.contract import Findings, SolverState, default_tolerance
from trajopt.solvers.sampling.distribution import Box, generator
from trajopt.solvers.sampling.parametrisation import SHARE_OF_RANGE, given_deviation
from trajopt.solvers.sampling.rollouts import Generation

POPULATION = 16  # at least, for the sake of local minima: a batch of them takes little longer than a few
LARGEST_POPULATION = 1000
SPREAD = 1e-6  # default tolerance in float64: rounding of a cost of 1 hides steps below 1e-8
SMALLER = 1e-3  # share of the tolerance to which the search goes on while the residual is not within the problem's
ROUNDING = 10  # in units of eps: costs that differ by less are the same
ELSEWHERE = 100  # in units of the spread or the tolerance: a best point farther than that from the mean is no part of the search
NARROWER = 0.3  # share of the width with which a search begins again
LEAST_SIZE = 1e-6  # of a guess, in units of the problem's scale: a smaller one counts as zero


def population_of(solver: Any, size: int) -> int:
    """How many points a solver draws in a generation to search `size` components."""
    return solver.population or min(max(solver.default_population(size), POPULATION), LARGEST_POPULATION)


def next_distribution(
    solver: Any,
    distribution: Any,
    rng: np.random.Generator,
    box: Box,
    merits: Callable[[Float[np.ndarray, "P d"]], Float[np.ndarray, " P"]],
    mean_merit: float,
) -> tuple[Any, Float[np.ndarray, "P d"], Float[np.ndarray, " P"]]:
    """(the distribution after a generation, its draws, their merits), infinite merits being those of points that do not count;
    of half the width where none of them counts."""
    y = solver.draw(rng, distribution, population_of(solver, box.size), box)
    drawn = Generation(y, merits(y), mean_merit)
    if not len(drawn.finite):
        return distribution.reheated(0.5), y, drawn.merit
    return solver.updated_distribution(distribution, drawn, box)[0], y, drawn.merit


@programs.subject("problem")
@dataclasses.dataclass(frozen=True)
class RatedDraws:
    """The function that rates points; chunk: how many in a batch, None: all."""

    problem: LeastSquaresProblem
    chunk: int | None

    def at(
        self, origin: Float[Array, " nx"], steps: Float[Array, "P n"]
    ) -> tuple[Float[Array, "P nx"], Float[Array, " P"], Float[Array, " P"]]:
        """(points origin (+) step in the bounds, their costs, their largest |r_i|); what is not finite is infinite."""
        problem = self.problem

        def one(step: Array) -> tuple[Array, Array, Array]:
            if problem.integrate is not None:
                x = problem.integrate(origin, step)
            else:
                lower, upper = (jnp.asarray(a).astype(origin.dtype) for a in (problem.lower, problem.upper))
                x = jnp.clip(origin + step, lower, upper)
            r = problem.full_residual(x)
            cost = 0.5 * jnp.sum(r * r)
            return x, jnp.where(jnp.isfinite(cost), cost, jnp.inf), jnp.max(jnp.abs(r), initial=jnp.zeros((), r.dtype))

        if self.chunk is None or self.chunk >= len(steps):
            return jax.vmap(one)(steps)
        return jax.lax.map(one, steps, batch_size=None if self.chunk == 1 else self.chunk)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FitSearchState(SolverState):
    """Adds the distribution of y, x at y = 0 and the deviations (n,) of x, the residual at the guess, the best y and the
    largest |r_i| there, the spread with which the search last began, whether it has converged, and what the draws depend on.
    `gradient_norm` is the spread, `step_size` the length of the mean's last move in y."""

    distribution: Any
    origin: Any
    deviation: Any
    residual: Any
    incumbent: Any
    largest: float
    width: float
    converged: bool
    key: Any
    generation: int

    def better_than(self, other: Any, tolerance: float) -> bool:
        """The later of two equal ones: the best point of the run is kept in the state."""
        return bool(self.cost <= other.cost)

    def non_finite_place(self) -> str:
        """The first entry of the residual of the guess that is not finite."""
        return non_finite_row(np.asarray(self.residual))


def _box(problem: LeastSquaresProblem, state: FitSearchState) -> Box:
    """The bounds of y."""
    if problem.integrate is not None:
        return Box(*np.full((2, problem.dimension), [[-np.inf], [np.inf]]))
    return Box(*((np.asarray(end) - state.origin) / state.deviation for end in (problem.lower, problem.upper)))


@dataclasses.dataclass(frozen=True)
class FitSearch:
    """The four methods of a sampling solver where the problem is one of least squares."""

    solver: Any

    def init(self, oracle: LeastSquaresOracle, guess: Float[np.ndarray, " nx"], key: PRNGKeyArray) -> FitSearchState:
        """State at the guess. Raises `ShapeError` and `OptionError`."""
        problem = oracle.problem
        deviation = self._deviation(problem, guess)
        distribution = self.solver.first_distribution(np.zeros(problem.dimension))
        try:  # before anything is searched: the derivative is asked for at the end
            r = np.asarray(measured(oracle, guess).r, float)
        except (ValueError, NotImplementedError) as error:
            remedy = "its answer would have no covariance; give gradient='finite-difference'"
            raise OptionError(f"{self.solver.name}: '{problem.name}' has no derivative ({error}): {remedy}") from error
        cost, largest = 0.5 * float(r @ r), float(np.abs(r).max(initial=0.0))
        seed = np.asarray(jax.random.key_data(key))
        return FitSearchState(
            guess, cost, problem.bound_violation(guess), distribution.spread, 0.0, distribution, np.asarray(guess, float),
            deviation, r, np.zeros(problem.dimension), largest, 1.0, False, seed, 0,
        )  # fmt: skip

    def _deviation(self, problem: LeastSquaresProblem, guess: Float[np.ndarray, " nx"]) -> Float[np.ndarray, " n"]:
        """(n,) of x at the start."""
        given, n = self.solver.standard_deviation, problem.dimension
        if given is not None:
            return given_deviation(self.solver.name, "standard_deviation", given, n)
        if problem.integrate is not None:
            return np.array(problem.scale)
        size = np.abs(np.asarray(guess, float))
        size = np.where(size > LEAST_SIZE * problem.scale, size, problem.scale)
        width = np.asarray(problem.upper) - np.asarray(problem.lower)
        return np.where(width > 0, np.where(np.isfinite(width), SHARE_OF_RANGE * width, size), 1.0)

    def step(self, oracle: LeastSquaresOracle, state: FitSearchState) -> FitSearchState:
        """One generation."""
        problem, dtype = oracle.problem, oracle.problem.x0.dtype
        before, mean = state.distribution, np.asarray(state.distribution.mean)
        box = _box(problem, state)
        points = np.zeros((0, state.origin.size))
        costs = largest = np.zeros(0)

        def merits(y: np.ndarray) -> np.ndarray:
            nonlocal points, costs, largest
            steps = (np.concatenate([mean[None], y]) * state.deviation).astype(dtype)
            rated = oracle.call(RatedDraws.at, RatedDraws(problem, self.solver.chunk), state.origin.astype(dtype), steps)
            points, costs, largest = (np.asarray(a) for a in rated)
            oracle.evaluations += len(steps)
            return np.asarray(costs[1:], float)

        rng = generator(state.key, state.generation + 1)
        new, y, _ = next_distribution(self.solver, before, rng, box, merits, state.cost)
        new = new.moved(box.clip(np.asarray(new.mean)))
        best = int(np.argmin(costs))
        if costs[best] < state.cost:
            state = dataclasses.replace(state, x=points[best], cost=float(costs[best]), largest=float(largest[best]))
            state = dataclasses.replace(state, incumbent=mean if best == 0 else y[best - 1])
        finite = costs[np.isfinite(costs)]
        same = max(ROUNDING * float(np.finfo(dtype).eps) * state.cost, 0.5 * default_tolerance(dtype) ** 2)
        tolerance = self.solver.tolerance or max(SPREAD, default_tolerance(dtype))
        enough = tolerance if problem.tolerance is None else SMALLER * tolerance
        collapsed = new.spread <= enough or (len(finite) > 0 and float(np.ptp(finite)) <= same)
        away, width = float(np.linalg.norm(state.incumbent - np.asarray(new.mean))), state.width
        if again := collapsed and away > ELSEWHERE * max(tolerance, new.spread):
            width *= NARROWER
            new = self.solver.first_distribution(np.asarray(state.incumbent)).reheated(width)
        return dataclasses.replace(
            state,
            violation=problem.bound_violation(state.x),
            gradient_norm=new.spread,
            step_size=float(np.linalg.norm(np.asarray(new.mean) - mean)),
            distribution=new,
            width=width,
            converged=bool(collapsed and not again),
            generation=state.generation + 1,
        )

    def terminate(self, oracle: LeastSquaresOracle, state: FitSearchState) -> Status | None:
        """Solved when the search has converged, or the residual is within the problem's tolerance."""
        allowed = oracle.problem.tolerance
        return Status.solved if state.converged or (allowed is not None and state.largest <= allowed) else None

    def finish(self, oracle: LeastSquaresOracle, state: FitSearchState) -> Findings:
        """What Gauss-Newton says of the best point, and the spread."""
        at = measured(oracle, state.x)
        return findings(oracle.problem, at, measures(at) | {"spread": state.gradient_norm})
