"""CMA-ES on functions with known minima, posed as control problems whose state is the previous control."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.problems import OptimalControlProblem
from trajopt.solvers import CMAES, solve


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
