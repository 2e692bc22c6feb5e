"""First-order descent and its line search against closed forms."""

import jax
import numpy as np
import optax
import pytest
from least_squares_cases import linear, rosenbrock

from trajopt.errors import OptionError
from trajopt.problems import LeastSquaresProblem
from trajopt.result import status_name
from trajopt.solvers import GradientDescent, solve


def test_a_fixed_rate_is_plain_gradient_descent():
    problem, A, b = linear()
    solution = solve(problem, GradientDescent(learning_rate=0.02), max_iterations=7)
    x = np.zeros(5)
    for _ in range(7):
        x = x - 0.02 * A.T @ (A @ x - b)
    np.testing.assert_allclose(solution.x, x, rtol=1e-12)


def test_any_optax_transformation_is_followed():
    problem, A, b = linear()
    optimizer = optax.chain(optax.scale_by_adam(), optax.scale(-0.03))
    solution = solve(problem, GradientDescent(optimizer), max_iterations=5)
    with jax.numpy_dtype_promotion("standard"):
        x, state = np.zeros(5), optimizer.init(np.zeros(5))
        for _ in range(5):
            updates, state = optimizer.update(A.T @ (A @ x - b), state)
            x = np.asarray(optax.apply_updates(x, updates))
    np.testing.assert_allclose(solution.x, x, rtol=1e-10)


def test_the_first_step_minimises_the_linear_model_along_the_gradient():
    problem, A, b = linear()
    solution = solve(problem, GradientDescent(), max_iterations=1)
    gradient = -A.T @ b
    step = gradient @ gradient / np.sum((A @ gradient) ** 2)
    np.testing.assert_allclose(solution.x, -step * gradient, rtol=1e-12)


def test_the_line_search_makes_every_step_a_descent():
    solution = solve(rosenbrock(), GradientDescent(), max_iterations=200)
    assert np.all(np.diff(solution.trace["cost"]) < 0) and solution.cost < 0.1 * solution.initial_cost


def test_a_wrong_gradient_is_reported_as_a_failed_line_search():
    problem = LeastSquaresProblem(
        "wrong", lambda x: x - 1.0, np.zeros(2), jacobian=lambda x: (x - 1.0, -np.eye(2)), tolerance=1e-8
    )
    solution = solve(problem, GradientDescent())
    assert status_name(solution.status) == "line_search_failed" and not solution.success


def test_contradictory_options_are_refused():
    with pytest.raises(OptionError, match="not both"):
        GradientDescent(optax.sgd(0.1), learning_rate=0.1)
    with pytest.raises(OptionError, match="learning_rate is 0"):
        GradientDescent(learning_rate=0)
