"""Parameters from recorded contact motions: found within their deviations, which shrink with the data and cover the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from trajopt import problems, solvers
from trajopt.errors import OptionError
from trajopt.problems import LeastSquaresProblem
from trajopt.problems.inertia import from_log_cholesky, to_log_cholesky
from trajopt.problems.library.identification import handled_box, sliding_cube, standing_hopper
from trajopt.solvers.least_squares.gauss_newton import covariance


def solved(name: str, **settings):
    problem = problems.get(name, **settings)
    return problem, solvers.solve(problem, solvers.get(problem.defaults.solver, **problem.defaults.options))


def deviations(solution) -> np.ndarray:
    return np.sqrt(np.diag(solution.covariance))


@pytest.mark.slow
def test_friction_is_found_within_two_deviations_that_shrink_with_the_root_of_the_data():
    """A quarter of the poses, spread over the same motion: twice the deviations, to 10 % for samples that are not equal."""
    problem, solution = solved("friction-identification")
    assert solution.success and solution.residuals["contact_residual"] < 1e-8
    assert np.all(np.abs(solution.x - problem.truth) < 2 * deviations(solution))
    assert deviations(solution)[0] < 0.01
    # 600 rows of unit variance, 4 of them used up: sum of squares chi-squared.
    low, high = scipy.stats.chi2(596).ppf([0.005, 0.995])
    assert low < 2 * solution.cost < high
    assert "friction " in problem.describe(solution) and "truth 0.35" in problem.describe(solution)
    _, J = problem.compile().linearize(solution.x)
    fewer, _ = covariance(J.reshape(100, 6, -1)[3::4].reshape(150, -1), np.ones(4, bool))
    np.testing.assert_allclose(np.sqrt(np.diag(fewer)) / deviations(solution), 2.0, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, few", [("friction-identification", 25), ("inertia-identification", 25), ("link-length-identification", 25)]
)
def test_every_parameter_is_within_two_deviations_and_four_times_the_data_halve_them(name, few):
    found = [solved(name, samples=samples) for samples in (few, 4 * few)]
    for _, solution in found:
        assert solution.success, solution.message
        # Of the ten inertial parameters some pass two deviations by chance; their joint distance says more.
        n = solution.x.size
        low, high = scipy.stats.chi2(n).ppf([0.005, 0.995]) / n
        assert low < solution.residuals["normalised_error_squared"] < high
    solution = found[1][1]
    assert solution.residuals["deviations_from_truth"] < 2.0
    ratio = deviations(found[0][1]) / deviations(solution)
    assert 1.8 < np.median(ratio) < 2.2, ratio
    # As the box is tilted, corners leave and touch the floor: an entry's slope may differ between the pieces of two estimates.
    assert name == "inertia-identification" or np.all((ratio > 1.8) & (ratio < 2.2)), ratio


@pytest.mark.slow
@pytest.mark.parametrize("recording", [sliding_cube, handled_box, standing_hopper], ids=lambda r: r.__name__)
def test_the_jacobian_is_that_of_central_differences(recording):
    """At the guess; central differences of step 1e-5 scale: truncation 1e-10 of third derivatives, rounding 1e-11."""
    problem = recording().problem(5, 0)
    exact = problem.compile().linearize(problem.x0)[1]
    quotient = problem.compile("finite-difference").linearize(problem.x0)[1]
    np.testing.assert_allclose(exact, quotient, atol=1e-6 * np.abs(exact).max())


@pytest.mark.slow
def test_regions_of_95_percent_cover_the_truth_in_95_percent_of_200_recordings():
    """The joint ellipsoid of the sliding cube's unknowns, and each one's interval; binomial bands of 99.9 %."""
    recording, samples, runs = sliding_cube(), 25, 200
    recordings = jnp.stack([recording.measured(samples, seed) for seed in range(1000, 1000 + runs)])
    problem = LeastSquaresProblem("sliding cube", recording.residual, recording.guess, data=recordings[0])
    found = solvers.solve_batch(problem, solvers.GaussNewton(), data=recordings)
    assert found.success.all()
    error = np.asarray(found.x) - recording.truth
    square = np.einsum("ri,ri->r", error, np.linalg.solve(found.covariance, error[..., None])[..., 0])
    low, high = scipy.stats.binom(runs, 0.95).ppf([0.0005, 0.9995])
    assert low <= np.sum(square < scipy.stats.chi2(4).ppf(0.95)) <= high
    inside = np.abs(error) < 1.96 * np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    assert np.all((low <= inside.sum(0)) & (inside.sum(0) <= high))


def test_any_ten_numbers_are_a_body_and_every_body_has_its_ten_numbers():
    """Against point masses: moments by their sums; and the density inertia S stays positive definite for wild numbers."""
    rng = np.random.default_rng(0)
    masses, places = rng.uniform(0.1, 1.0, size=7), rng.normal(size=(7, 3))
    com = masses @ places / masses.sum()
    arms = places - com
    inertia = np.einsum(
        "k,kij->ij",
        masses,
        np.einsum("ki,ki->k", arms, arms)[:, None, None] * np.eye(3) - arms[:, :, None] * arms[:, None],
    )
    theta = to_log_cholesky(masses.sum(), com, inertia)
    back = jax.jit(from_log_cholesky)(jnp.asarray(theta))
    for value, exact in zip(back, (masses.sum(), com, inertia), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-12, atol=1e-12)
    mass, _, wild = (np.asarray(a) for a in jax.jit(from_log_cholesky)(jnp.asarray(2.0 * rng.normal(size=10))))
    moments = np.linalg.eigvalsh(wild)
    assert mass > 0 and moments[0] > 0 and moments[2] < moments[0] + moments[1]
    with pytest.raises(OptionError, match="principal moments.*belong to no distribution of mass.*below the sum"):
        to_log_cholesky(1.0, np.zeros(3), np.diag([1.0, 1.0, 3.0]))


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match="setting samples is 7; it must divide the 200 steps"):
        problems.get("friction-identification", samples=7)
