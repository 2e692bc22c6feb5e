"""Robust losses: SciPy's optimum, the covariance under outliers, and the same cost for every solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.problems import LeastSquaresProblem, Prior
from trajopt.problems.losses import LOSSES, robust, robust_curvature
from trajopt.solvers import GaussNewton, GradientDescent, solve

TIMES = np.linspace(0.0, 4.0, 40)
SIGMA = 0.02


def contaminated(seed: int = 3) -> np.ndarray:
    """2 exp(-1.3 t) + 0.5 with noise of deviation SIGMA and every sixth sample off by 0.2 to 1."""
    rng = np.random.default_rng(seed)
    y = 2.0 * np.exp(-1.3 * TIMES) + 0.5 + SIGMA * rng.normal(size=TIMES.size)
    y[::6] += rng.uniform(0.2, 1.0, size=y[::6].size)
    return y


DATA = contaminated()


def residual(x, xp=jnp):
    return (x[0] * xp.exp(-x[1] * xp.asarray(TIMES)) + x[2] - xp.asarray(DATA)) / SIGMA


def fit(**options) -> LeastSquaresProblem:
    return LeastSquaresProblem("contaminated decay", residual, np.array([1.5, 1.0, 0.7]), **options)


def scipy_loss(loss: str):
    """What SciPy takes for a loss: its own name, or rho and its first two derivatives."""

    def tukey(z):
        rest = np.maximum(1.0 - z, 0.0)
        return np.stack([(1.0 - rest**3) / 3.0, rest**2, -2.0 * rest])

    return tukey if loss == "tukey" else loss


@pytest.mark.parametrize("loss, f_scale", [("soft_l1", 1.5), ("huber", 1.345), ("cauchy", 2.385), ("tukey", 4.685)])
def test_the_optimum_is_scipys(loss, f_scale):
    start = np.array([2.0, 1.3, 0.5])
    solution = solve(fit(loss=loss, f_scale=f_scale), GaussNewton(), x0=start)
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-12, "max_nfev": 1000}
    exact = scipy.optimize.least_squares(
        lambda x: residual(x, np), start, loss=scipy_loss(loss), f_scale=f_scale, **tight
    )
    assert solution.success
    assert solution.cost == pytest.approx(exact.cost, rel=1e-9)
    np.testing.assert_allclose(solution.x, exact.x, rtol=1e-6)
    squares = solve(fit(), GaussNewton())
    truth = [2.0, 1.3, 0.5]
    assert np.abs(solution.x - truth).max() < 0.3 * np.abs(squares.x - truth).max()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_residual_is_smooth_and_its_half_square_the_cost(loss):
    """At 0, at the seams of the branches and on both sides: derivatives against central differences of step 1e-4."""
    rho = {
        "linear": lambda z: z,
        "soft_l1": lambda z: 2 * (np.sqrt(1 + z) - 1),
        "huber": lambda z: np.where(z <= 1, z, 2 * np.sqrt(z) - 1),
        "cauchy": np.log1p,
        "arctan": np.arctan,
        "tukey": lambda z: np.where(z <= 1, (1 - np.maximum(1 - z, 0) ** 3) / 3, 1 / 3),
    }[loss]
    c, h = 1.7, 1e-4
    r = jnp.asarray(np.concatenate([[0.0, 1e-9, 3e-3, 1e-2], c * np.array([0.3, 0.9, 1.2, 4.0, 50.0])]))
    value = np.asarray(robust(r, loss, c))
    np.testing.assert_allclose(
        value**2, c**2 * rho((np.asarray(r) / c) ** 2), rtol=1e-12, atol=2e-15
    )  # the formulas cancel
    np.testing.assert_allclose(robust(-r, loss, c), -value)
    cost = lambda s: 0.5 * c**2 * rho((s / c) ** 2)  # noqa: E731
    quotient = (cost(np.asarray(r) + h) - 2 * cost(np.asarray(r)) + cost(np.asarray(r) - h)) / h**2
    # Rounding of the second difference: 4 eps cost / h^2 <= 1e-7 cost; truncation h^2 / 12 times a fourth derivative <= 20.
    bound = 1e-7 * cost(np.asarray(r)) + 1e-7
    assert np.all(np.abs(robust_curvature(r, loss, c) - quotient) <= bound)
    assert np.isfinite(jax.jacfwd(lambda r: robust(r, loss, c))(r)).all()


def test_a_prior_keeps_its_squares_and_every_solver_sees_the_loss():
    prior = Prior(np.array([2.0, 1.3, 0.5]), covariance=0.01 * np.eye(3))
    problem = fit(loss="cauchy", f_scale=2.0, prior=prior)
    solution = solve(problem, GaussNewton(), x0=[2.0, 1.3, 0.5])

    def cost(x):
        z = (residual(x, np) / 2.0) ** 2
        return 0.5 * (4.0 * np.log1p(z).sum() + np.sum((x - prior.mean) ** 2) / 0.01)

    assert solution.success and solution.cost == pytest.approx(cost(solution.x), rel=1e-12)
    assert scipy.optimize.minimize(cost, solution.x).fun == pytest.approx(solution.cost, rel=1e-10)
    other = solve(problem, GradientDescent(max_iterations=3), x0=[2.0, 1.3, 0.5])
    assert other.initial_cost == pytest.approx(cost(np.array([2.0, 1.3, 0.5])), rel=1e-12)


def test_the_covariance_under_outliers_is_that_of_repeated_experiments():
    """A line through points of which a tenth are off by up to 30 deviations, 300 times; its two variances come out to 10 %.

    The estimates come from SciPy, each one's covariance from here. Sampling error of a mean square of 300: 8 %.
    """
    t = np.linspace(-1.0, 1.0, 200)
    A = np.stack([np.ones_like(t), t], 1)
    design = jnp.asarray(A)
    estimates, claimed = [], []
    rng = np.random.default_rng(0)
    for k in range(300):
        off = np.where(rng.uniform(size=t.size) < 0.1, rng.uniform(-30, 30, size=t.size), 0.0)
        y = A @ [1.0, -2.0] + rng.normal(size=t.size) + off
        found = scipy.optimize.least_squares(lambda x, y=y: A @ x - y, [1.0, -2.0], A_jac(A), loss="huber").x
        estimates.append(found - [1.0, -2.0])
        if k < 3:
            problem = LeastSquaresProblem("line", lambda x, y=y: design @ x - jnp.asarray(y), found, loss="huber")
            claimed.append(np.diag(solve(problem, GaussNewton()).covariance))
    np.testing.assert_allclose(np.mean(claimed, 0), np.mean(np.square(estimates), 0), rtol=0.25)
    # Without the loss the same points give deviations three times as large; the curvature alone, ones that are too small.
    assert np.all(np.mean(claimed, 0) > 1.2 * np.diag(np.linalg.inv(A.T @ A)))


def A_jac(A):
    return lambda x, *_: A


def test_losses_and_labels_are_checked():
    with pytest.raises(UnknownNameError, match="there is no loss 'hubber'.*'huber'"):
        fit(loss="hubber")
    with pytest.raises(OptionError, match="f_scale is 0.0; it must be a positive number, in units of the residual"):
        fit(loss="huber", f_scale=0.0)
    with pytest.raises(ShapeError, match="labels has 1 names; x0 has 3 entries"):
        fit(labels=("a",))
    with pytest.raises(ShapeError, match=r"truth has shape \(2,\); expected \(3,\)"):
        fit(truth=np.zeros(2))
    with pytest.raises(OptionError, match="truth on a manifold needs `difference` beside `integrate`"):
        fit(truth=np.zeros(3), integrate=lambda x, d: x + d)


def test_estimates_are_reported_with_their_deviations_and_their_distance_from_the_truth():
    problem = fit(loss="tukey", f_scale=4.685, labels=("a", "rate", "c"), truth=np.array([2.0, 1.3, 0.5]))
    solution = solve(problem, GaussNewton(), x0=[2.0, 1.3, 0.5])
    sd = np.sqrt(np.diag(solution.covariance))
    error = solution.x - problem.truth
    assert solution.residuals["deviations_from_truth"] == pytest.approx(np.abs(error / sd).max())
    square = error @ np.linalg.solve(solution.covariance, error) / 3
    assert solution.residuals["normalised_error_squared"] == pytest.approx(square)
    lines = problem.describe(solution).splitlines()
    assert lines[1].startswith("rate ") and f"+- {sd[1]:.2g}" in lines[1] and "truth 1.3" in lines[1]
