"""One generation of each solver against figures computed by hand, the ensemble step on linear rows, truncated moments.

CMA-ES on functions with known minima, posed as control problems whose state is the previous control.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from trajopt.problems import OptimalControlProblem
from trajopt.solvers import CEM, MPPI, StochasticSearch, solve
from trajopt.solvers.sampling.cmaes import CMAES, Adapted, Parameters
from trajopt.solvers.sampling.distribution import Correlated, Gaussian, standard
from trajopt.solvers.sampling.mppi import Annealed
from trajopt.solvers.sampling.parametrisation import make_space
from trajopt.solvers.sampling.rollouts import Scores
from trajopt.solvers.sampling.search import Generation, regressed, restoring_move
from trajopt.solvers.sampling.stochastic_search import truncated_moments
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers

LOG2 = np.log(2.0)


def space(n, lower=-np.inf, upper=np.inf, nu=1):
    """A search space of n knot values, in their own units."""
    steps = n // nu
    problem = OptimalControlProblem(
        "still", lambda x, u, t: x, steps, np.zeros(1), u0=np.zeros(nu), terminal_cost=lambda x: x[0]
    )
    made = make_space(problem, problem.x0, deviations=(1.0, None, None))
    return dataclasses.replace(made, lower=np.full(n, lower), upper=np.full(n, upper))


# Four draws of one component about 1 with deviation 2; one of them is not finite.
DRAWN = Generation(np.array([[0.0], [2.0], [9.0], [4.0]]), np.array([0.0, LOG2, np.inf, 2 * LOG2]), mean_merit=1.0)


def test_mppi_by_hand():
    """Weights 4/7, 2/7, 1/7 with lambda = 1: the mean moves to (0*4 + 2*2 + 4*1)/7."""
    at = Annealed(np.array([1.0]), np.array([2.0]), 0.5)
    solver = MPPI(temperature=1.0, adaptive=False, decay=0.8)
    new, weights = solver.updated_distribution(at, DRAWN, space(1))
    np.testing.assert_allclose(weights, [4 / 7, 2 / 7, 0, 1 / 7], rtol=1e-12)
    np.testing.assert_allclose([new.mean[0], new.deviation[0], new.least], [8 / 7, 1.6, 0.5], rtol=1e-12)
    # Adaptive: the median of 0, log 2, 2 log 2 is log 2, so that a temperature of 1/log 2 gives the same weights.
    same = MPPI(temperature=1 / LOG2).updated_distribution(at, DRAWN, space(1))[1]
    np.testing.assert_allclose(same, weights, rtol=1e-12)
    better = solver.updated_distribution(Annealed(at.mean, at.deviation, 2.0), DRAWN, space(1))[0]
    assert better.deviation[0] == 2.0 and better.least == 1.0


def test_mppi_noise_is_coloured_along_the_knots_of_each_control():
    solver, n = MPPI(smoothing=0.8), 6
    at = Annealed(np.zeros(n), np.ones(n), np.inf)
    y = solver.draw(np.random.default_rng(0), at, 40000, space(n, nu=2))
    # 40,000 draws know a correlation to 0.005; neighbours are two apart, the two controls independent.
    expected = [[0.8 ** (abs(i - j) // 2) if (i - j) % 2 == 0 else 0.0 for i in range(n)] for j in range(n)]
    np.testing.assert_allclose(np.cov(y.T), expected, atol=0.03)


def test_stochastic_search_by_hand():
    """Weights 4/7, 2/7, 1/7: m_S = 8/7, v_S = (4*64 + 2*36 + 400) / 7^3; half the way from m = 1, v = 4."""
    at = Gaussian(np.array([1.0]), np.array([2.0]))
    solver = StochasticSearch(step_length=0.5, sharpness=LOG2)
    new, weights = solver.updated_distribution(at, DRAWN, space(1))
    np.testing.assert_allclose(weights, [2 / 7, 1 / 7, 0, 1 / 14], rtol=1e-12)
    np.testing.assert_allclose(new.mean, 15 / 14, rtol=1e-12)
    np.testing.assert_allclose(new.deviation**2, 2.0 + 0.5 * 728 / 343 + 0.25 / 49, rtol=1e-12)
    # Sigmoid with its quantile at the second of three merits: S = 1 / (1 + 2^-1), 1/2, 1 / (1 + 2) for sharpness log 2.
    sigmoid = StochasticSearch(shape="sigmoid", sharpness=LOG2, elites=0.5).weights(DRAWN)
    np.testing.assert_allclose(sigmoid, np.array([4, 3, 0, 2]) / 9, rtol=1e-12)


def test_stochastic_search_truncates():
    """Moments and draws of the truncated normal against SciPy's, the mean on a bound included."""
    at = Gaussian(np.array([1.0, -1.0, 0.3]), np.array([2.0, 0.5, 10.0]))
    inside = space(3, -1.0, 2.0)
    low, high = (inside.lower - at.mean) / at.deviation, (inside.upper - at.mean) / at.deviation
    law = scipy.stats.truncnorm(low, high, loc=at.mean, scale=at.deviation)
    mean, variance = truncated_moments(at, inside)
    np.testing.assert_allclose(mean, law.mean(), rtol=1e-10)
    np.testing.assert_allclose(variance, law.var(), rtol=1e-8)
    y = StochasticSearch().draw(np.random.default_rng(2), at, 5000, inside)
    assert y.min() >= -1.0 and y.max() <= 2.0
    for k in range(3):
        assert scipy.stats.kstest(y[:, k], lambda v, k=k: law.cdf(np.stack([v] * 3, -1))[..., k]).pvalue > 1e-3
    # Weighted moments that equal those of the law leave it as it is.
    half = np.sqrt(variance)
    drawn = Generation(np.stack([mean - half, mean + half]), np.zeros(2), 0.0)
    new, _ = StochasticSearch(sharpness=1.0).updated_distribution(at, drawn, inside)
    np.testing.assert_allclose(new.mean, at.mean, rtol=1e-9)
    np.testing.assert_allclose(new.deviation, at.deviation, rtol=1e-9)


def test_cem_by_hand():
    at = Gaussian(np.array([1.0]), np.array([2.0]))
    new, weights = CEM(elites=0.5, momentum=0.25).updated_distribution(at, DRAWN, space(1))
    np.testing.assert_allclose(weights, [0.375, 0.375, 0, 0])
    np.testing.assert_allclose([new.mean[0], new.deviation[0]], [0.25 + 0.75, 0.5 + 0.75], rtol=1e-12)
    assert CEM(elites=0.5, min_deviation=1.5).updated_distribution(at, DRAWN, space(1))[0].deviation[0] == 1.5


def test_a_whole_covariance_by_hand():
    """Draws (2, 0), (-2, 2), (0, 2), (0, -4) weighted evenly about (0, 0): second moments (2, -1; -1, 6), mu = 4."""
    y = np.array([[2.0, 0.0], [-2.0, 2.0], [0.0, 2.0], [0.0, -4.0]])
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    at = Correlated(np.zeros(2), turn, np.array([3.0, 1.0]))
    before = turn @ np.diag([9.0, 1.0]) @ turn.T
    rate = 2 * (4 - 2 + 1 / 4) / (16 + 4)
    new = at.adapted(np.array([0.5, 0.0]), y, np.full(4, 0.25))
    after = new.axes @ np.diag(new.lengths**2) @ new.axes.T
    np.testing.assert_allclose(after, (1 - rate) * before + rate * np.array([[2.0, -1.0], [-1.0, 6.0]]), rtol=1e-12)
    np.testing.assert_allclose(new.deviation, np.sqrt(np.diag(after)), rtol=1e-12)
    assert new.mean[0] == 0.5 and new.spread == new.deviation.max() and new.reheated(2.0).spread == 2 * new.spread
    noise = np.random.default_rng(0).standard_normal((40000, 2))
    np.testing.assert_allclose(np.cov(new.displaced(noise).T), after, atol=0.02 * after.max())
    assert at.adapted(at.mean, y, np.full(4, 0.25), least=2.5).lengths.min() == 2.5


def test_each_update_moves_mean_and_covariance():
    """Two components with one weight each: elites are the best two, MPPI's and the search's weights 4/7, 2/7, 1/7."""
    y = np.array([[0.0, 1.0], [2.0, 0.0], [9.0, 9.0], [4.0, 2.0]])
    drawn = dataclasses.replace(DRAWN, y=y)
    at = standard(np.array([1.0, 1.0]), False)
    moved = {"CEM": [1.0, 0.5], "MPPI": [8 / 7, 6 / 7], "StochasticSearch": [8 / 7, 6 / 7]}
    weighted = np.array([4.0, 2.0, 0.0, 1.0]) / 7
    for solver, share, weights in (
        (CEM(elites=0.5, momentum=0.25), 0.75, np.array([0.5, 0.5, 0.0, 0.0])),
        (MPPI(temperature=1.0, adaptive=False), 1.0, weighted),
        (StochasticSearch(step_length=0.5, sharpness=LOG2), 0.5, weighted),
    ):
        assert isinstance(solver.first_distribution(np.zeros(50)), Correlated)
        assert not isinstance(solver.first_distribution(np.zeros(51)), Correlated)
        new, used = solver.updated_distribution(at, drawn, space(2))
        np.testing.assert_allclose(used, share * weights, rtol=1e-12)
        np.testing.assert_allclose(new.mean, at.mean + share * (np.array(moved[solver.name]) - at.mean), rtol=1e-12)
        expected = at.adapted(new.mean, y, weights)
        np.testing.assert_allclose(new.lengths, expected.lengths, rtol=1e-12)


def test_cma_parameters_of_the_tutorial():
    """Table 1 for n = 10: population 10, weights of the best 5, log(5.5) - log(i), their sum 3.7358."""
    assert CMAES().default_population(10) == 10 and CMAES().default_population(10, 4) == 24
    at = Parameters(10, 10)
    raw = np.log(5.5 / np.arange(1, 6))
    np.testing.assert_allclose(at.weights, raw / 3.736249, rtol=1e-6)
    mu = 3.736249**2 / (raw @ raw)
    np.testing.assert_allclose(
        [at.mu_eff, at.c_sigma, at.c_c, *at.rates],
        [mu, (mu + 2) / (15 + mu), (4 + mu / 10) / (14 + mu / 5), 2 / (11.3**2 + mu),
         2 * (mu - 1.75 + 1 / mu) / (144 + mu)], rtol=1e-6,
    )  # fmt: skip
    assert at.d_sigma == pytest.approx(1 + at.c_sigma)


def test_cma_by_hand():
    """The tutorial's equations 41 to 47 written out for C = diag(4, 1), step size 1/2, zero paths."""
    n, y = 2, np.array([[1.0, 0.0], [0.0, 0.4], [-0.2, 0.2], [3.0, -1.0]])
    at = Parameters(n, 4)
    C = np.diag([4.0, 1.0])
    before = Adapted(np.zeros(2), 0.5, C, np.eye(2), np.array([2.0, 1.0]), np.zeros(2), np.zeros(2), 0, 0)
    new, weights = CMAES().updated_distribution(before, Generation(y, np.array([3.0, 1.0, 2.0, 4.0]), 0.0), space(2))
    w1, w2 = at.weights
    np.testing.assert_allclose(weights, [0, w1, w2, 0])
    step = (w1 * y[1] + w2 * y[2]) / 0.5
    np.testing.assert_allclose(new.mean, 0.5 * step)
    path = np.sqrt(at.c_sigma * (2 - at.c_sigma) * at.mu_eff) * step / np.array([2.0, 1.0])
    np.testing.assert_allclose(new.path_sigma, path)
    growth = np.exp(at.c_sigma / at.d_sigma * (np.linalg.norm(path) / at.expected_length - 1))
    assert new.step_size == pytest.approx(0.5 * growth)
    # The path is shorter than (1.4 + 2/3) E|N| after the first generation, so that h = 1 in the rank-one update.
    assert np.linalg.norm(path) / np.sqrt(1 - (1 - at.c_sigma) ** 2) < (1.4 + 2 / 3) * at.expected_length
    c_1, c_mu = at.rates
    path_c = np.sqrt(at.c_c * (2 - at.c_c) * at.mu_eff) * step
    rank_mu = (w1 * np.outer(y[1], y[1]) + w2 * np.outer(y[2], y[2])) / 0.25
    np.testing.assert_allclose(new.C, (1 - c_1 - c_mu) * C + c_1 * np.outer(path_c, path_c) + c_mu * rank_mu)
    np.testing.assert_allclose(new.B @ np.diag(new.D**2) @ new.B.T, new.C, atol=1e-12)


def test_the_ensemble_step_is_exact_for_linear_rows():
    """Fewer draws than components; the mean goes where the update's weights say, plus the restoring move."""
    rng = np.random.default_rng(3)
    A, b, y = rng.normal(size=(2, 30)), rng.normal(size=2), rng.normal(size=(12, 30))
    merit = y @ A.T @ np.array([3.0, -2.0])
    merit[5] = np.inf
    problem = space(30).problem
    nothing = {"cost": merit, "violation": merit, "best": 0, "motion": problem.initial_point, "rows": [], "bad_step": 0}
    nothing["rated"] = 12
    scores = Scores(merit=merit, arrival=y @ A.T - b, **nothing)
    weights = np.full(10, 0.1)
    weights[3] = 0.0
    finite = np.isfinite(merit[2:])
    moved = y[0] + weights[finite] @ (y[2:] - y[0])[finite]
    np.testing.assert_allclose(A @ (moved + restoring_move(y, scores, weights, np.full(30, 1e9))) - b, 0.0, atol=1e-10)
    short = restoring_move(y, scores, weights, np.full(30, 1e-3))
    assert np.abs(short).max() == pytest.approx(1e-3)
    # A cost whose gradient is A^T (3, -2) has the multipliers (-3, 2); with y = (1, 1), w = (4, 5) they move a fifth.
    held = scores.arrival @ np.ones(2) + 0.5 * scores.arrival**2 @ np.array([4.0, 5.0])
    scores = dataclasses.replace(scores, merit=merit + held)
    none = np.zeros((0, 0))
    multipliers = Multipliers(none, np.ones(2), none, np.array([4.0, 5.0]))
    found = regressed(multipliers, multipliers, scores)
    np.testing.assert_allclose(found.terminal, [1 + 0.2 * (-3 - 1), 1 + 0.2 * (2 - 1)], rtol=1e-9)


def chain(name, cost, n, **options):
    """min sum_t cost(x_t, u_t, t) with x_t = u_{t-1}: a function of n numbers with terms of neighbours."""
    return OptimalControlProblem(name, lambda x, u, t: u, n, np.zeros(1), u0=np.zeros(1), stage_cost=cost, **options)


def rosenbrock(x, u, t):
    return jnp.where(t > 0.5, 100.0 * (u[0] - x[0] ** 2) ** 2 + (1.0 - x[0]) ** 2, 0.0)


def test_rosenbrock():
    solution = solve(chain("rosenbrock", rosenbrock, 4), CMAES(standard_deviation=0.5, tolerance=1e-6), seed=1)
    assert solution.success and solution.cost < 1e-11
    np.testing.assert_allclose(solution.us[:-1], 1.0, atol=1e-5)
    assert solution.residuals["spread"] <= 1e-6 and solution.residuals["expected_improvement"] <= 1e-11


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_quadratic_with_a_condition_of_1000_and_active_bounds(diagonal):
    """Separable, so that the minimum on the box is the clipped one: u = 1 - t / 5 within +-1/2."""
    curvature = np.logspace(0, 3, 10)

    def cost(x, u, t):
        return 0.5 * jnp.asarray(curvature)[t.astype(int)] * (u[0] - 1.0 + 0.2 * t) ** 2

    problem = chain("quadratic", cost, 10, control_lower=-0.5, control_upper=0.5)
    solution = solve(problem, CMAES(tolerance=1e-6, diagonal=diagonal, population=10))
    target = 1.0 - 0.2 * np.arange(10)
    best = np.clip(target, -0.5, 0.5)
    assert solution.success
    assert solution.cost == pytest.approx(0.5 * curvature @ (best - target) ** 2, abs=1e-8)
    np.testing.assert_allclose(solution.us[:, 0], best, atol=1e-5)
