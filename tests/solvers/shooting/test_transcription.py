"""Multiple shooting as a nonlinear program: exact derivatives of every feature, and exact sparsity."""

import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import dense_problem
from ridders import compare, ridders_jacobian

from trajopt.problems import OptimalControlProblem
from trajopt.result import status_name
from trajopt.solvers import MultipleShooting, solve
from trajopt.solvers.shooting.nlp import Shooting


def everything(**changes):
    """Five steps with every feature; states are plain vectors."""
    options = {
        "stage_cost": lambda x, u, t, p: jnp.exp(0.3 * x[0] * u[0]) + 0.1 * p[0] ** 2 * x[1] ** 2,
        "terminal_residual": lambda x, p: jnp.exp(x + p[0]),
        "inequality": lambda x, u, t, p: x * x[::-1] * u[0] - 10.0 * p[0],
        "terminal_inequality": lambda x, p: jnp.cos(x + 0.5 * x[::-1]) * p[0] - 2.0,
        "control_lower": -2.0,
        "state_lower": np.array([-3.0, -np.inf]),
        "state_upper": np.array([4.0, np.inf]),
        "parameter_lower": 0.1,
        "parameter_residual": lambda p: 0.1 * p**2,
    }
    return dense_problem(5, **options | changes)


def on_circle(**changes):
    """The same with a state (cos, sin, rate) on a manifold: a bound on its sine is no bound on a coordinate."""

    def turned(x, d):
        c, s = jnp.cos(d[0]), jnp.sin(d[0])
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1], x[2] + d[1] * (1.0 + 0.1 * d[0])])

    def between(a, b):
        angle = jnp.arctan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])
        return jnp.stack([angle, (b[2] - a[2]) / (1.0 + 0.1 * angle)])

    def step(x, u, t, p):
        return turned(x, jnp.stack([0.2 * x[2] + 0.1 * u[0] * x[0], u[0] * p[0] - x[1] - 0.1 * x[2] ** 2]))

    options = {
        "integrate": turned,
        "difference": between,
        "tangent_size": 2,
        "state_lower": np.array([-np.inf, -0.9, -np.inf]),
        "state_upper": np.array([np.inf, np.inf, 5.0]),
        "terminal_residual": None,
        "terminal_inequality": None,
        "inequality": None,
        "initial_residual": lambda x, p: jnp.sin(x) * p[0],
    }
    x0 = np.array([np.cos(0.4), np.sin(0.4), 0.5])
    base = {f: getattr(everything(), f) for f in ("u0", "dt", "stage_residual", "stage_cost", "equality", "parameters")}
    base |= {"terminal_equality": everything().terminal_equality, "free_initial_state": True}
    base |= {"stage_residual": lambda x, u, t, p: jnp.concatenate([jnp.sin(x + p[0]), u * x[:1]])}
    return OptimalControlProblem("circle", step, 5, x0, **base | options | changes)


def random_point(program, seed=0):
    generator = np.random.default_rng(seed)
    w = program.variables(program.problem.initial_point)
    return w + 0.3 * generator.normal(size=w.size), generator.normal(size=program.layout.constraints)


def dense_jacobian(program, w):
    rows, columns = program.layout.jacobian.rows, program.layout.jacobian.columns
    matrix = np.zeros((program.layout.constraints, w.size))
    np.add.at(matrix, (rows, columns), program.slopes(w).jacobian)
    return matrix


@pytest.mark.parametrize("make", [everything, on_circle])
def test_derivatives_of_every_feature_and_exact_sparsity(make):
    """Intervals of 2, 2 and 1 steps. The structure has no entry that is zero at a random point of a dense problem, none
    twice, and none is missing: the values agree with differences everywhere."""
    problem = make()
    program = Shooting(problem.compile(), 2, "exact", problem.initial_point)
    w, multipliers = random_point(program)

    def function(d):
        values = program.values(w + d)
        return np.append(values.constraints, values.cost)

    estimate = ridders_jacobian(function, w.size, 0.05, levels=8)
    got = np.vstack([dense_jacobian(program, w), program.slopes(w).gradient])
    compare(got, estimate, relative=1e-7, label="first derivatives")
    rows, columns = program.layout.jacobian.rows, program.layout.jacobian.columns
    assert len(set(zip(rows, columns))) == rows.size
    assert make is on_circle or rows.size == np.count_nonzero(np.abs(estimate.value[:-1]) > 1e-9)

    def slope(d):
        at = w + d
        return 0.7 * program.slopes(at).gradient + dense_jacobian(program, at).T @ multipliers

    estimate = ridders_jacobian(slope, w.size, 0.05, levels=8)
    rows, columns = program.layout.hessian.rows, program.layout.hessian.columns
    assert np.all(rows >= columns) and len(set(zip(rows, columns))) == rows.size
    lower = np.zeros((w.size, w.size))
    lower[rows, columns] = program.hessian(w, multipliers, 0.7)
    compare(lower + np.tril(lower, -1).T, estimate, relative=1e-6, label="Hessian")
    assert make is on_circle or rows.size == np.count_nonzero(np.abs(np.tril(estimate.value)) > 1e-9)


def test_without_contact_the_differenced_hessian_is_the_exact_one():
    problem = everything()
    exact, other = (Shooting(problem.compile(), 2, kind, problem.initial_point) for kind in ("exact", "differenced"))
    w, multipliers = random_point(exact)
    np.testing.assert_array_equal(other.hessian(w, multipliers, 0.7), exact.hessian(w, multipliers, 0.7))


def test_ipopts_own_derivative_test_passes_and_its_log_is_kept():
    options = {"derivative_test": "second-order", "derivative_test_tol": 1e-5, "point_perturbation_radius": 0.1}
    solution = solve(everything(), MultipleShooting(interval=2, ipopt_options=options), max_iterations=1)
    assert "No errors detected by derivative checker" in solution.log
    assert status_name(solution.status) == "max_iterations" and solution.raw_status.startswith("5: ")
