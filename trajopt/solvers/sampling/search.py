"""What CEM, MPPI, CMA-ES and stochastic search share: a generation, constraints, when to stop, what is certified.

A solver keeps a distribution over y (`parametrisation.Space`), scaled so that it starts with unit deviations. A generation
draws from it, rates the draws, the distribution's mean and the best point so far in one batch (`rollouts`), and moves the
distribution. The best point so far - least violation beyond the problem's tolerance, then lowest cost - is what is returned.

Constraints. Bounds on controls and parameters hold for every draw. Path constraints, terminal inequalities and bounds on
states enter through an augmented Lagrangian. Its multipliers move a share of their first-order update at the rows of
the mean in each generation (as in Atamna, Auger, Hansen, PPSN 2016), and all the way, with the penalties, when the spread of
the distribution falls below an inner tolerance or after `max_inner_iterations`; where the violation has not fallen since the
last such update, the penalties are raised twice. Terminal equalities enter likewise, and in addition, once the spread is below
`LOCAL_SPREAD`, the mean is moved onto them after each generation by an ensemble Kalman step (Iglesias, Law, Stuart, Inverse
Problems 29, 2013): with the displacements Y (d, P) of the draws from the mean and the changes C (k, P) of their rows,

    mean += Y a,    a the least-norm solution of C a = -c    (c the rows predicted at the mean)

cut to one standard deviation of any component. It is exact for linear rows and needs no derivative. Their multipliers follow,
by a share in each generation, the regression of the cost on the rows over the draws, y = -cov(c,
c)^-1 cov(c, cost), which at a constrained minimum is the Lagrange multiplier: otherwise selection would pull the mean off the
constraint as fast as it is moved there.

Optimality. Sampling has no stationarity residual. The measure is the spread: the largest standard deviation of any component
of y, 1 at the start. A run is solved when the spread is below `tolerance`, the returned point is feasible, and the mean is
feasible too or at most `GAP` of the cost cheaper: the search has collapsed there, which no more proves a local minimum than a
small step does. `fit` does the same for least squares.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from trajopt.names import NamedOptions
from trajopt.options import check_options
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status, status_named
from trajopt.solvers.loop.contract import Findings
from trajopt.solvers.sampling.distribution import generator
from trajopt.solvers.sampling.fit import FitSearch
from trajopt.solvers.sampling.parametrisation import PARAMETRISATIONS, SHARE_OF_RANGE, Space, make_space
from trajopt.solvers.sampling.replanning import SamplingPlanner
from trajopt.solvers.sampling.rollouts import Generation, Scores, batch_size, score
from trajopt.solvers.subproblems.augmented_lagrangian import (
    SUFFICIENT_FALL,
    ConstrainedState,
    Constraints,
    Multipliers,
    PenaltyRule,
    estimate,
)

MULTIPLIER_SHARE = 0.2  # of the regressed multipliers in each generation
DRIFT = 0.05  # share of the other rows' first-order update in each generation


def restoring_move(
    y: Float[np.ndarray, "K d"], scores: Scores, weights: Float[np.ndarray, " P"], deviation: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Move (d,) of the mean onto the terminal equalities; y, scores: [mean, incumbent, draws]; weights: of the draws."""
    finite = np.isfinite(scores.merit[2:])
    displacement, change = (y[2:] - y[0])[finite], (scores.arrival[2:] - scores.arrival[0])[finite]
    rows = scores.arrival[0] + weights[finite] @ change
    a = np.linalg.lstsq(change.T.astype(float), -rows.astype(float), rcond=1e-10)[0]
    move = a @ displacement
    return move / max(1.0, float(np.max(np.abs(move) / np.maximum(deviation, 1e-300))))


def drifted(
    multipliers: Multipliers, rows: tuple[Float[np.ndarray, "T m"], Float[np.ndarray, " k"]], flags: tuple
) -> Multipliers:
    """With a share of the first-order update at the mean's rows; flags: which rows are inequalities."""

    def moved(y: np.ndarray, w: np.ndarray, c: np.ndarray, inequality: np.ndarray) -> np.ndarray:
        new = np.asarray(estimate(jnp.asarray(y), jnp.asarray(w), jnp.asarray(c), inequality))
        return y + DRIFT * np.where(w > 0, new - y, 0.0).astype(y.dtype)

    m = multipliers
    stage = moved(m.stage, m.stage_penalty, rows[0], flags[0])
    terminal = moved(m.terminal, m.terminal_penalty, rows[1], flags[1])
    return dataclasses.replace(m, stage=stage, terminal=terminal)


def regressed(multipliers: Multipliers, before: Multipliers, scores: Scores) -> Multipliers:
    """With those of the terminal equalities moved towards the regression of the cost on the rows over the draws.

    before: the multipliers that the draws were rated with.
    """
    k = scores.arrival.shape[1]
    y, w = (np.array(a, float) for a in (before.terminal, before.terminal_penalty))
    finite = 2 + np.flatnonzero(np.isfinite(scores.merit[2:]))
    rows = scores.arrival[finite].astype(float)
    rest = scores.merit[finite] - rows @ y[:k] - 0.5 * rows**2 @ w[:k]
    slopes = np.linalg.lstsq(rows - rows.mean(0), rest - rest.mean(), rcond=1e-10)[0]
    terminal = np.array(multipliers.terminal)
    terminal[:k] = y[:k] + MULTIPLIER_SHARE * (-slopes - y[:k])
    return dataclasses.replace(multipliers, terminal=terminal)


LOCAL_SPREAD = 0.3  # below it the rows are taken to be nearly linear over the draws, and the mean is restored
REHEATED = 0.3  # spread to which an update of the multipliers raises the distribution while the mean's violation lags
GAP = 0.02  # a cheaper mean that is not feasible must promise no more than this share of the cost of a solved run
LARGEST_POPULATION = 1000  # of a default
CERTIFYING = 64  # draws of the generation that judges the answer, when they are rolled out one by one
RANGES = {
    "population": "[2, inf)", "knots": "[1, inf)", "tolerance": "(0, inf)", "max_iterations": "[0, inf)", "penalty": "(0, inf)",
    "penalty_factor": "(1, inf)", "max_penalty": "(0, inf)", "max_inner_iterations": "[1, inf)", "chunk": "[1, inf)",
}  # fmt: skip
LEAST_SPREAD = 1e-3  # least inner tolerance, as a share of the solver's: an infeasible search goes on beyond its own


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingState(ConstrainedState):
    """Adds the distribution, the best point in y, the initial state y starts from, the rows of the mean and which are
    inequalities, and what the next draws depend on.

    `gradient_norm` is the spread, `step_size` the length of the mean's last move, both in y.
    """

    distribution: Any
    incumbent: Any
    start: Any
    rows: tuple[Any, Any]
    inequality: tuple[Any, Any]
    key: Any
    generation: int
    mean_violation: float
    last_mean_violation: float
    bad_step: int

    @property
    def equalities(self) -> int:
        """Number of rows of terminal equalities."""
        return int(np.sum(~np.asarray(self.inequality[1])))

    def with_best(self, scores: Scores, y: Float[np.ndarray, "P d"]) -> SamplingState:
        """With the best of a generation that was not finished; the distribution stays."""
        if not np.isfinite(scores.merit[scores.best]):
            return self
        cost, violation = float(scores.cost[scores.best]), float(scores.violation[scores.best])
        return dataclasses.replace(self, x=scores.motion, cost=cost, violation=violation, incumbent=y[scores.best])

    def non_finite_place(self) -> str:
        """Where the motion of the mean is not finite."""
        T = len(self.x.us)
        where = "in the terminal cost" if self.bad_step == T else f"at step {self.bad_step}"
        return f": every motion drawn is; that of the mean is non-finite {where}" if self.bad_step <= T else ""


@dataclasses.dataclass(frozen=True)
class SamplingSolver(NamedOptions, abc.ABC):
    """Options of every sampling solver.

    Options:
        population: motions drawn in a generation. Default: the solver's own, growing with the number of components up to 1,000.
        parametrisation: of the controls: "cubic", "linear" or "piecewise-constant" between `knots`; or `problems.JointTargets`.
        knots: number of values of each control. Default: one for every ten steps, ten to twenty; more than ten of few controls.
        standard_deviation, parameter_deviation, initial_state_deviation: at the start, of knots (of least squares: of x), free
            parameters and a free initial state (tangent coordinates), a number or one for each. Default: a quarter of the
            distance between their bounds.
        tolerance: spread, as a share of the initial deviations, below which the search has converged. Default: 1e-3; of least
            squares 1e-6, in float32 1e-5.
        restoration: whether the mean of a small spread is moved onto the terminal equalities after each generation.
        penalty, penalty_factor, max_penalty: of the augmented Lagrangian: first value, growth, limit.
        max_iterations, max_inner_iterations: most generations in all, and between two updates of the multipliers.
        chunk: motions rolled out together; 1: one by one. Default: the generation; 1 with hard contact solved by JAX on a CPU.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)
    remedy: ClassVar[str] = "use CMAES() or CEM()"

    population: int | None = None
    parametrisation: str | JointTargets = "cubic"
    knots: int | None = None
    standard_deviation: Any = None
    parameter_deviation: Any = None
    initial_state_deviation: Any = None
    tolerance: float | None = None
    max_iterations: int = 1000
    restoration: bool = True
    penalty: float = 100.0
    penalty_factor: float = 10.0
    max_penalty: float = 1e6
    max_inner_iterations: int = 200
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_options(self, **RANGES)
        if isinstance(self.parametrisation, JointTargets):
            self.parametrisation.check_alone(self.name, self.knots, self.standard_deviation)
        else:
            check_options(self, parametrisation=PARAMETRISATIONS)

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def least_spread(self) -> float:
        """The option `tolerance`, of motions."""
        return 1e-3 if self.tolerance is None else self.tolerance

    # -- what a solver defines -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def first_distribution(self, mean: Float[np.ndarray, " d"]) -> Any:
        """The distribution at the start, with unit deviations."""

    def default_population(self, size: int, equalities: int = 0) -> int:
        """How many to draw for `size` components and so many rows of terminal equalities: five a component, at least 64."""
        return max(64, 5 * size)

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, distribution: Any, count: int, space: Any) -> Float[np.ndarray, "P d"]:
        """`count` points in y (P, d), in the bounds."""

    @abc.abstractmethod
    def updated_distribution(
        self, distribution: Any, drawn: Generation, space: Any
    ) -> tuple[Any, Float[np.ndarray, " P"]]:
        """The distribution after a generation, and weights b (P,) with which its mean moved by b @ (y - mean)."""

    # -- the four methods of a solver ----------------------------------------------------------------------------------

    def acting_on(self, problem: Any) -> SamplingSolver | FitSearch:
        """What searches for the answer of a problem."""
        return FitSearch(self) if isinstance(problem, LeastSquaresProblem) else self

    def init(self, oracle: Any, guess: Any, key: PRNGKeyArray) -> Any:
        """State at the initial guess; where its motion is not finite, at the best of a first generation."""
        space = self._space(oracle, guess.xs[0])
        first = space.encode(guess)
        distribution = self.first_distribution(first)
        schedule, inequality = self._rule(oracle.problem).first(self.penalty), Constraints(oracle.problem).inequality()
        multipliers = schedule.multipliers
        seed = np.asarray(jax.random.key_data(key))
        y = self._candidates(seed, 0, distribution, first, space, int(np.sum(~inequality[1])))
        size, one_by_one = batch_size(oracle.problem, self.chunk, len(y))
        copies = 2 if one_by_one else size
        scores = score(oracle, space, np.tile(first, (copies, 1)), multipliers, self.chunk)
        if not np.isfinite(scores.merit[0]):
            scores = self._score(oracle, space, y, multipliers)
            distribution = distribution.moved(y[scores.best])
        cost, largest = scores.cost[scores.best], scores.violation[scores.best]
        return SamplingState(
            x=scores.motion,
            cost=float(cost) if np.isfinite(cost) else float("nan"),
            violation=float(largest),
            gradient_norm=distribution.spread,
            step_size=0.0,
            schedule=schedule,
            converged=False,
            distribution=distribution,
            incumbent=y[scores.best] if np.isfinite(scores.merit[scores.best]) else first,
            start=np.asarray(guess.xs[0]),
            rows=scores.rows[0],
            inequality=inequality,
            key=seed,
            generation=0,
            mean_violation=float(scores.violation[0]),
            last_mean_violation=float("inf"),
            bad_step=scores.bad_step,
        )

    def step(self, oracle: Any, state: Any) -> Any:
        """One generation, after an update of the multipliers where one is due."""
        problem, space = oracle.problem, self._space(oracle, state.start)
        enough = state.schedule.inner_tolerance(LEAST_SPREAD * self.least_spread)
        due = state.gradient_norm <= enough or state.schedule.inner_iterations >= self.max_inner_iterations
        if problem.constrained and due:
            state = self._with_multipliers(oracle, state)
            if state.schedule.hopeless:
                return dataclasses.replace(state, halt="infeasible")
        distribution, generation = state.distribution, state.generation + 1
        y = self._candidates(state.key, generation, distribution, state.incumbent, space, state.equalities)
        scores = self._score(oracle, space, y, state.multipliers)
        if scores.rated < len(y):
            return state.with_best(scores, y)
        drawn = Generation(y[2:], scores.merit[2:], float(scores.merit[0]))
        if not len(drawn.finite):
            nan = float("nan")
            return dataclasses.replace(state, cost=nan, generation=generation, bad_step=scores.bad_step)
        new, weights = self.updated_distribution(distribution, drawn, space)
        mean, multipliers = np.asarray(new.mean), state.multipliers
        if problem.constrained and np.isfinite(scores.merit[0]):
            multipliers = drifted(multipliers, scores.rows[0], state.inequality)
        local = distribution.spread <= LOCAL_SPREAD
        if self.restoration and local and scores.arrival.shape[1] and np.isfinite(scores.merit[0]):
            mean = mean + restoring_move(y, scores, weights, np.asarray(distribution.deviation))
            multipliers = regressed(multipliers, state.multipliers, scores)
        mean = space.clip(mean)
        new, spread = new.moved(mean), new.spread
        violation, at_mean = float(scores.violation[scores.best]), float(scores.violation[0])
        cost, promised = float(scores.cost[scores.best]), float(scores.cost[0])
        agree = at_mean <= problem.tolerance or cost - promised <= GAP * max(1.0, abs(cost))
        return dataclasses.replace(
            state,
            x=scores.motion,
            cost=cost,
            violation=violation,
            gradient_norm=spread,
            step_size=float(np.linalg.norm(mean - np.asarray(distribution.mean))),
            schedule=dataclasses.replace(state.schedule.with_steps(1), multipliers=multipliers),
            converged=bool(spread <= self.least_spread and violation <= problem.tolerance and agree),
            distribution=new,
            incumbent=y[scores.best],
            rows=scores.rows[0] if np.isfinite(scores.merit[0]) else scores.rows[-1],
            generation=generation,
            mean_violation=at_mean,
            bad_step=scores.bad_step,
        )

    def terminate(self, oracle: Any, state: Any) -> Status | None:
        """Solved when the search has collapsed about a feasible mean; acceptable when only the point returned is feasible."""
        if state.converged:
            return Status.solved
        if state.gradient_norm <= LEAST_SPREAD * self.least_spread and state.violation <= oracle.problem.tolerance:
            return Status.acceptable
        return status_named(state.halt) if state.halt else None

    def finish(self, oracle: Any, state: Any) -> Findings:
        """The spread, and what a fresh generation about the returned point still gains.

        `expected_improvement` is the mean over its draws of how far their merit is below that of the point.
        """
        space = self._space(oracle, state.start)
        about = state.distribution.moved(state.incumbent)
        y = self._candidates(state.key, state.generation + 1, about, state.incumbent, space, state.equalities)
        if batch_size(oracle.problem, self.chunk, len(y))[1]:
            y = y[: 2 + CERTIFYING]
        scores = self._score(oracle, space, y, state.multipliers, patient=True)
        here, spread, allowed = scores.merit[1], float(state.distribution.spread), self.least_spread
        finite = np.isfinite(scores.merit[2:]) & np.isfinite(here)
        gains = here - np.where(finite, scores.merit[2:], here) if finite.any() else np.zeros(1)
        multipliers = {"stage": np.asarray(state.multipliers.stage), "terminal": np.asarray(state.multipliers.terminal)}
        return Findings(
            residuals={"spread": spread, "expected_improvement": float(np.mean(np.maximum(gains, 0.0)))},
            shortfalls=[f"spread is {spread:.3g}, allowed {allowed:.3g}"] if spread > allowed else [],
            fields={"multipliers": multipliers if oracle.problem.constrained else {}},
        )

    def replanning(self, oracle: OptimalControlOracle) -> SamplingPlanner:
        """One generation from a measured state, as a receding horizon repeats it. Raises `OptionError`."""
        return SamplingPlanner(self, oracle.problem, self._space(oracle, np.asarray(oracle.problem.x0)))

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _space(self, oracle: OptimalControlOracle, start: np.ndarray) -> Space:
        deviations = self.standard_deviation, self.parameter_deviation, self.initial_state_deviation
        knots = self.parametrisation, self.knots
        return make_space(oracle.problem, start, *knots, deviations, self.name)

    def _score(
        self, oracle: OptimalControlOracle, space: Space, y: np.ndarray, multipliers: Multipliers, patient: bool = False
    ) -> Scores:
        return score(oracle, space, y, multipliers, self.chunk, patient)

    def _candidates(
        self, seed: np.ndarray, generation: int, distribution: Any, incumbent: np.ndarray, space: Space, equalities: int
    ) -> np.ndarray:
        """[mean, incumbent, draws] (P + 2, d); the draws depend on seed and generation alone."""
        rng = generator(seed, generation)
        count = self.population or min(self.default_population(space.size, equalities), LARGEST_POPULATION)
        draws = self.draw(rng, distribution, count, space)
        return np.concatenate([np.stack([np.asarray(distribution.mean), np.asarray(incumbent)]), draws])

    def _with_multipliers(self, oracle: OptimalControlOracle, state: SamplingState) -> SamplingState:
        """Multipliers and penalties after an inner search; the distribution reheated where the violation has not fallen."""
        problem = oracle.problem
        stuck = not self._rule(problem).falling(state.schedule, state.violation)
        violation = np.asarray(state.violation, problem.dtype)
        schedule = oracle.call(PenaltyRule.after, self._rule(problem, stuck), state.schedule, state.rows, violation)
        schedule = jax.tree.map(np.asarray, schedule)
        if stuck:  # sharpening a search that the penalties are still to move is in vain
            schedule = dataclasses.replace(schedule, updates=np.zeros_like(schedule.updates))
        distribution, spread = state.distribution, state.gradient_norm
        lagging = state.mean_violation > max(problem.tolerance, SUFFICIENT_FALL * state.last_mean_violation)
        if lagging and spread < REHEATED:
            distribution = distribution.reheated(REHEATED / spread)
        return dataclasses.replace(
            state, schedule=schedule, distribution=distribution, gradient_norm=distribution.spread,
            last_mean_violation=min(state.mean_violation, state.last_mean_violation),
        )  # fmt: skip

    def _rule(self, problem: OptimalControlProblem, stuck: bool = False) -> PenaltyRule:
        """How penalties grow: twice at a time where the search is stuck."""
        factor = self.penalty_factor ** (2 if stuck else 1)
        return PenaltyRule(Constraints(problem), factor, self.max_penalty, 0.1 * problem.tolerance)


def with_deviations(sampler: SamplingSolver, problem: OptimalControlProblem, motion: Trajectory) -> SamplingSolver:
    """The sampling solver with deviations of controls that have no bounds: half of the largest of a motion's, or 1."""
    lower, upper = problem.control_lower, problem.control_upper
    bounded = np.isfinite(lower) & np.isfinite(upper)
    if bounded.all() or sampler.standard_deviation is not None:
        return sampler
    largest = np.abs(np.asarray(motion.us)).max(0)
    free = np.where(largest > 0, 0.5 * largest, 1.0)
    within = SHARE_OF_RANGE * (np.where(bounded, upper, 0.0) - np.where(bounded, lower, 0.0))
    return dataclasses.replace(sampler, standard_deviation=np.where(bounded, within, free))
