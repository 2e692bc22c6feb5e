"""Single shooting: its gradient, known optima by L-BFGS-B and optax, memory with the horizon; L-BFGS-B by itself."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from control_cases import dense_problem, double_integrator, unicycle
from least_squares_cases import linear, rosenbrock
from ridders import compare, ridders_jacobian

from trajopt.errors import OptionError
from trajopt.result import status_name
from trajopt.solvers import LBFGS, MultipleShooting, SingleShooting, get, solve
from trajopt.solvers.shooting.single import SingleShootingProgram
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers


def everything(**changes):
    """Seven steps: two full stretches of three and a rest, every kind of constraint, free initial state and parameter."""
    options = {
        "terminal_cost": lambda x, p: jnp.exp(x[0] * p[0]),
        "inequality": lambda x, u, t, p: x * x[::-1] * u[0] - 0.1 * p[0],
        "state_lower": np.array([0.1, -np.inf]),
    }
    return dense_problem(7, **options | changes)


@pytest.mark.parametrize("gradient", ["implicit", "finite-difference"])
def test_the_gradient_of_the_augmented_lagrangian(gradient):
    problem = everything()
    program = SingleShootingProgram(problem.compile(gradient), problem.initial_point)
    generator = np.random.default_rng(0)
    zero = program.constraints.initial(3.0)
    draw = lambda a: jnp.asarray(generator.normal(size=a.shape) * (np.asarray(a) != 0))  # noqa: E731
    multipliers = Multipliers(
        draw(zero.stage_penalty), draw(zero.terminal_penalty), zero.stage_penalty, zero.terminal_penalty
    )
    z = program.variables(problem.initial_point) + 0.1 * generator.normal(size=program.lower.size)
    estimate = ridders_jacobian(lambda d: np.array([program.evaluate(z + d, multipliers)[0]]), z.size, 1e-3)
    got = program.evaluate(z, multipliers)[1]
    compare(np.asarray(got)[None], estimate, relative=1e-6, label=gradient)


def test_minimum_effort_by_l_bfgs_b():
    solution = solve(double_integrator(tolerance=1e-9), SingleShooting())
    assert solution.success and solution.cost == pytest.approx(12 / (1 - 1e-4), abs=1e-6)
    assert solution.multipliers["terminal"].shape == (2,) and solution.trace["cost"].size == solution.iterations + 1
    # The multiplier of the distance is -d(cost)/d(distance) = -2 cost.
    assert solution.multipliers["terminal"][0] == pytest.approx(-2 * solution.cost, rel=1e-4)


def test_minimum_effort_by_adam():
    solution = solve(double_integrator(20), SingleShooting(optax.adam(0.1), tolerance=1e-4))
    assert solution.success and solution.cost == pytest.approx(12 / (1 - 1 / 400), rel=0.01)


def test_bounds_and_path_constraints_against_multiple_shooting():
    """The unicycle around a pillar: the two transcriptions have one optimum."""
    problem = unicycle(20)
    solution = solve(problem, get("single-shooting"))
    reference = solve(problem, MultipleShooting(), x0=solution)
    assert solution.success and reference.success
    assert solution.cost == pytest.approx(reference.cost, rel=1e-5)
    np.testing.assert_allclose(solution.us, reference.us, atol=1e-2)
    assert np.all(solution.us <= problem.control_upper) and np.all(solution.us >= problem.control_lower)


def test_l_bfgs_b_on_least_squares():
    problem, A, b = linear(lower=-0.2, upper=np.inf)
    solution = solve(problem, LBFGS(tolerance=1e-8))
    exact = scipy.optimize.lsq_linear(A, b, bounds=(-0.2, np.inf), tol=1e-14).x
    assert solution.success and solution.trace["cost"].size == solution.iterations + 1
    np.testing.assert_allclose(solution.x, exact, atol=1e-7)
    stopped = solve(rosenbrock(), LBFGS(), max_iterations=5)
    assert (status_name(stopped.status), stopped.iterations) == ("max_iterations", 5)
    assert solve(rosenbrock(), LBFGS(tolerance=1e-8)).success


def test_bad_options_are_refused():
    for make, match in (
        (lambda: SingleShooting("adam"), "expected LBFGS"),
        (lambda: SingleShooting(penalty=0.0), "penalty is 0"),
        (lambda: SingleShooting(penalty_factor=1.0), "penalty_factor is 1"),
        (lambda: LBFGS(memory=0), "memory is 0"),
        (lambda: solve(double_integrator(5), LBFGS()), r"use SingleShooting\(LBFGS\(\)\)"),
        (lambda: solve(rosenbrock(), SingleShooting()), "solves an OptimalControlProblem"),
    ):
        with pytest.raises(OptionError, match=match):
            make()
