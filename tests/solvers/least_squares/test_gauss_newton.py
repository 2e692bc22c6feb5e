"""Gauss-Newton against closed forms and SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from least_squares_cases import decay, linear, rosenbrock

from trajopt.errors import OptionError
from trajopt.problems import LeastSquaresProblem, Prior
from trajopt.result import status_name
from trajopt.solvers import GaussNewton, solve


def test_rosenbrock_to_machine_precision():
    solution = solve(rosenbrock(), GaussNewton())
    assert solution.success and solution.iterations <= 20
    np.testing.assert_allclose(solution.x, [1.0, 1.0], rtol=1e-10)


def test_quadratic_convergence_on_a_zero_residual_problem():
    problem, _ = decay(noise=0.0)
    solution = solve(problem, GaussNewton(tolerance=1e-13))
    error = np.sqrt(2 * solution.trace["cost"])
    near = error[(error < 0.3) & (error > 1e-9)]
    # Quadratic: log e_{k+1} about 2 log e_k near the solution; linear convergence would give a ratio of 1.
    ratio = np.log(near[1:]) / np.log(near[:-1])
    assert len(near) >= 3 and ratio.min() > 1.8


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), ([0.0, 0.0, 0.6], [10.0, 1.2, 1.0]), ([1.0, 0.0, 0.0], 1.9)])
def test_exponential_fit_against_scipy(bounds):
    lower, upper = bounds
    problem, residual = decay(lower=lower, upper=upper)
    x0 = problem.x0
    solution = solve(problem, GaussNewton())
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    exact = scipy.optimize.least_squares(residual, x0, bounds=(problem.lower, problem.upper), **tight)
    assert solution.success
    # SciPy's interior method stops a little inside active bounds; costs agree to its own accuracy.
    assert solution.cost <= exact.cost * (1 + 1e-10)
    np.testing.assert_allclose(solution.x, exact.x, atol=1e-6)


def test_infeasible_bounds_and_options_are_refused():
    with pytest.raises(OptionError, match=r"infeasible bounds: lower\[1\] = 2.0 is above upper\[1\] = 1.0"):
        rosenbrock(lower=[-5, 2], upper=[5, 1])
    with pytest.raises(OptionError, match="tolerance is -1"):
        GaussNewton(tolerance=-1)
    with pytest.raises(OptionError, match="damping is -1"):
        GaussNewton(damping=-1)


def test_a_rank_deficient_problem_gets_the_minimum_norm_solution():
    rng = np.random.default_rng(2)
    A = rng.normal(size=(8, 3)) @ rng.normal(size=(3, 6))
    b = rng.normal(size=8)
    problem = LeastSquaresProblem("deficient", lambda x: jnp.asarray(A) @ x - jnp.asarray(b), np.zeros(6))
    solution = solve(problem, GaussNewton())
    assert solution.success and solution.iterations == 1
    np.testing.assert_allclose(solution.x, np.linalg.pinv(A) @ b, atol=1e-12)
    assert solution.covariance is None and "3 directions of x are not determined" in solution.message


def test_covariance_is_that_of_the_linear_model():
    problem, A, _ = linear()
    np.testing.assert_allclose(solve(problem, GaussNewton()).covariance, np.linalg.inv(A.T @ A), rtol=1e-10)


def test_covariance_and_mean_with_a_prior_are_the_closed_form_posterior():
    rng = np.random.default_rng(5)
    root, mean = rng.normal(size=(5, 5)), rng.normal(size=5)
    P = root @ root.T + np.eye(5)
    plain, A, b = linear()
    problem = LeastSquaresProblem("posterior", plain.residual, np.zeros(5), prior=Prior(mean, covariance=P))
    solution = solve(problem, GaussNewton())
    information = A.T @ A + np.linalg.inv(P)
    np.testing.assert_allclose(solution.covariance, np.linalg.inv(information), rtol=1e-9, atol=1e-12)
    exact = np.linalg.solve(information, A.T @ b + np.linalg.solve(P, mean))
    np.testing.assert_allclose(solution.x, exact, rtol=1e-9, atol=1e-11)


def test_a_variable_at_its_bound_has_no_variance():
    problem, A, _ = linear(lower=-0.2)
    solution = solve(problem, GaussNewton())
    held = solution.x <= -0.2
    assert held.any() and not held.all()
    assert not solution.covariance[held].any() and not solution.covariance[:, held].any()
    free = A[:, ~held]
    np.testing.assert_allclose(solution.covariance[np.ix_(~held, ~held)], np.linalg.inv(free.T @ free), rtol=1e-9)


def test_a_rotation_is_estimated_on_its_manifold():
    """Unit complex numbers as rotations: x (+) d turns x by d; the angle between two given vectors is found."""

    def integrate(x, d):
        c, s = jnp.cos(d[0]), jnp.sin(d[0])
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])

    target = np.array([np.cos(2.5), np.sin(2.5)])
    problem = LeastSquaresProblem(
        "rotation",
        lambda x: x - jnp.asarray(target),
        np.array([1.0, 0.0]),
        integrate=integrate,
        tangent_size=1,
        tolerance=1e-12,
    )
    for gradient in ("implicit", "finite-difference", "ridders"):
        solution = solve(problem, GaussNewton(), gradient=gradient)
        assert solution.success and np.linalg.norm(solution.x) == pytest.approx(1.0, abs=1e-14)


def test_steps_into_non_finite_regions_are_refused():
    """The full step from 1e-3 for log(x) = 3 stays positive, that from 30 does not; both reach e^3."""
    problem = LeastSquaresProblem("log", lambda x: jnp.log(x) - 3.0, np.array([200.0]), tolerance=1e-12)
    solution = solve(problem, GaussNewton())
    assert solution.success and solution.x[0] == pytest.approx(np.exp(3.0), rel=1e-12)


def test_a_wrong_jacobian_does_not_pass_for_a_solution():
    problem = LeastSquaresProblem(
        "wrong", lambda x: x - 1.0, np.zeros(2), jacobian=lambda x: (x - 1.0, -jnp.eye(2)), tolerance=1e-8
    )
    solution = solve(problem, GaussNewton())
    assert not solution.success and status_name(solution.status) == "stalled"


def test_evaluations_are_counted_by_gradient_mode():
    problem, _, _ = linear(m=6, n=3)
    counted = {mode: solve(problem, GaussNewton(), gradient=mode).evaluations for mode in ("implicit", "ridders")}
    central = solve(problem, GaussNewton(), gradient="finite-difference")
    # Two linearisations and, with differences, one residual for the trial point of the single step.
    assert counted["implicit"] == 2
    assert central.iterations == 1 and central.evaluations == 2 * (2 * 3 + 1) + 1
    assert counted["ridders"] == 2 * (2 * 3 * 8 + 1) + 1


def test_a_bounded_linear_problem_takes_one_step_when_its_active_set_is_found_in_it():
    """Holding the variables that leave the bounds changes the step of the others: clipping alone would not do."""
    problem, A, b = linear(lower=-0.3)
    exact = scipy.optimize.lsq_linear(A, b, bounds=(-0.3, np.inf), tol=1e-14).x
    solution = solve(problem, GaussNewton(), max_iterations=1)
    np.testing.assert_allclose(solution.x, exact, atol=1e-10)
    clipped = np.maximum(np.linalg.lstsq(A, b, rcond=None)[0], -0.3)
    assert np.abs(clipped - exact).max() > 1e-2
