"""Many data sets in one program against one solve for each."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from trajopt.errors import OptionError, ShapeError
from trajopt.problems import LeastSquaresProblem
from trajopt.solvers import GaussNewton, solve
from trajopt.solvers.least_squares.batch import estimate_batch

TIMES, SIGMA, TRUTH = np.linspace(0.0, 3.0, 20), 0.05, np.array([1.5, 0.8, 0.3])
START = np.array([1.0, 0.1, 0.0])


def decay(x):
    return x[0] * jnp.exp(-x[1] * jnp.asarray(TIMES)) + x[2]


def residual(x, y):
    return (decay(x) - y) / SIGMA


RECORDINGS = np.asarray(decay(jnp.asarray(TRUTH))) + SIGMA * np.random.default_rng(0).normal(size=(200, TIMES.size))


def test_each_estimate_is_that_of_gauss_newton_and_the_regions_cover_the_truth():
    """95 % ellipsoids over 200 data sets: binomial band of 99.9 %, which curvature moves by less than its width."""
    found = estimate_batch(residual, START, jnp.asarray(RECORDINGS))
    assert np.all(found.converged)
    y = jnp.asarray(RECORDINGS[7])
    single = solve(LeastSquaresProblem("decay", lambda x: residual(x, y), START), GaussNewton())
    np.testing.assert_allclose(found.x[7], single.x, rtol=1e-7)
    np.testing.assert_allclose(found.covariance[7], single.covariance, rtol=1e-5)
    assert float(found.cost[7]) == pytest.approx(single.cost, rel=1e-10)
    error = np.asarray(found.x) - TRUTH
    square = np.einsum("ri,ri->r", error, np.linalg.solve(found.covariance, error[..., None])[..., 0])
    low, high = scipy.stats.binom(200, 0.95).ppf([0.0005, 0.9995])
    assert low <= np.sum(square < scipy.stats.chi2(3).ppf(0.95)) <= high


def test_arguments_are_checked():
    with pytest.raises(ShapeError, match=r"x0 has shape \(2, 3\); expected a flat array"):
        estimate_batch(residual, np.zeros((2, 3)), jnp.zeros((4, 20)))
    with pytest.raises(
        ShapeError, match=r"leading axes of data are \[\(3,\), \(4,\)\]; expected one for the data sets"
    ):
        estimate_batch(residual, START, (jnp.zeros((4, 20)), jnp.zeros((3, 20))))
    with pytest.raises(OptionError, match="max_iterations is 0; it must be at least 1"):
        estimate_batch(residual, START, jnp.zeros((4, 20)), max_iterations=0)
