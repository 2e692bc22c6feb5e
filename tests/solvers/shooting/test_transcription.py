"""Multiple shooting as a nonlinear program: exact derivatives of every feature, and exact sparsity."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from trajopt import problems
from trajopt.errors import ShapeError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.trajectory import Trajectory
from trajopt.result import status_name
from trajopt.solvers import MultipleShooting, solve
from trajopt.solvers.shooting.nlp import Shooting


def dense(x, u, t, p):
    """A map in which everything depends on everything."""
    A = jnp.array([[0.9, 0.3], [-0.2, 0.8]])
    return A @ x + 0.3 * jnp.sin(x[::-1] + u[0] * x + p[0]) + 0.2 * u[0] + 0.1 * p[0] * x**2 + 0.05 * t


def everything(**changes):
    """Five steps with every feature; states are plain vectors."""
    options = {
        "u0": np.full((5, 1), 0.2),
        "dt": 0.1,
        "stage_residual": lambda x, u, t, p: jnp.concatenate([jnp.sin(x + p[0]), u * x[:1]]),
        "stage_cost": lambda x, u, t, p: jnp.exp(0.3 * x[0] * u[0]) + 0.1 * p[0] ** 2 * x[1] ** 2,
        "terminal_residual": lambda x, p: jnp.exp(x + p[0]),
        "equality": lambda x, u, t, p: jnp.sin(x.sum() + u + p),
        "inequality": lambda x, u, t, p: x * x[::-1] * u[0] - 10.0 * p[0],
        "terminal_equality": lambda x, p: jnp.sum(x * x)[None] * p,
        "terminal_inequality": lambda x, p: jnp.cos(x + 0.5 * x[::-1]) * p[0] - 2.0,
        "control_lower": -2.0,
        "state_lower": np.array([-3.0, -np.inf]),
        "state_upper": np.array([4.0, np.inf]),
        "free_initial_state": True,
        "initial_residual": lambda x, p: jnp.sin(x) * p[0],
        "parameters": [0.7],
        "parameter_lower": 0.1,
        "parameter_residual": lambda p: 0.1 * p**2,
    }
    return OptimalControlProblem("everything", dense, 5, np.array([0.3, -0.2]), **options | changes)


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


@pytest.mark.slow
def test_the_differenced_hessian_through_contact_along_directions():
    """The worm's chain lands at step 167. Where no contact changes within a step, central quotients of the Lagrangian's slope
    with steps that halve agree to their square; elsewhere nothing is compared. Quotients inside have a step of 1e-7, and slopes
    that are good to 1e-12 of theirs: 1e-5, of columns that cancel down to a hundredth."""
    problem = problems.get("jump-worm", steps=200)
    program = Shooting(problem.compile(), 10, "differenced", problem.initial_point)
    xs = problem.rollout(jnp.asarray(problem.x0), jnp.asarray(problem.u0), jnp.zeros(0)).xs
    w = program.variables(Trajectory(np.asarray(xs), problem.u0, np.zeros(0)))
    rng = np.random.default_rng(0)
    multipliers = rng.normal(size=program.layout.constraints)
    rows, columns = program.layout.hessian.rows, program.layout.hessian.columns
    lower = np.zeros((w.size, w.size))
    lower[rows, columns] = program.hessian(w, multipliers, 0.7)
    H = lower + np.tril(lower, -1).T

    def slope(d):
        at = w + d
        return 0.7 * program.slopes(at).gradient + dense_jacobian(program, at).T @ multipliers

    compared = 0
    for first in range(0, 20, 2):  # one interval's variables at a time
        d = np.zeros(w.size)
        place = np.concatenate([program.layout.controls[first].ravel(), program.layout.nodes[first]])
        place = place[place >= 0]
        d[place] = rng.normal(size=place.size)
        wide, narrow = ((slope(h * d) - slope(-h * d)) / (2 * h) for h in (2e-6, 1e-6))
        scale = np.abs(narrow).max()
        if np.abs(wide - narrow).max() > 1e-4 * scale:
            continue
        np.testing.assert_allclose(H @ d, narrow, atol=1e-3 * scale)
        compared += first >= 16
    assert compared >= 1


def test_without_contact_the_differenced_hessian_is_the_exact_one():
    problem = everything()
    exact, other = (Shooting(problem.compile(), 2, kind, problem.initial_point) for kind in ("exact", "differenced"))
    w, multipliers = random_point(exact)
    np.testing.assert_array_equal(other.hessian(w, multipliers, 0.7), exact.hessian(w, multipliers, 0.7))


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("interval", [1, 3, 7, 20])
def test_the_count_of_structural_non_zeros(interval, free):
    """Block by block; a given initial state is no variable, and rows at a step see the controls up to it."""
    T, n, m, n_p = 7, 2, 1, 1
    problem = OptimalControlProblem(
        "count", dense, T, np.zeros(2), u0=np.zeros(1), parameters=[0.7], free_initial_state=free,
        stage_cost=lambda x, u, t, p: u[0] ** 2, inequality=lambda x, u, t, p: x, state_upper=np.array([1.0, np.inf]),
        terminal_equality=lambda x, p: x,
    )  # fmt: skip
    layout = Shooting(problem.compile(), interval, "gauss-newton", problem.initial_point).layout
    K = min(interval, T)
    lengths = [min(K, T - k) for k in range(0, T, K)]
    nodes = [n if free or k else 0 for k in range(len(lengths))]
    count = sum(n * (s + K_ * m + n_p) + n for s, K_ in zip(nodes, lengths))
    count += sum(n * (s + (j + 1) * m + n_p) for s, K_ in zip(nodes, lengths) for j in range(K_))
    count += sum(s + j * m + n_p for s, K_ in zip(nodes, lengths) for j in range(1, K_))
    count += n * (n + n_p)
    assert layout.jacobian.rows.size == count
    assert layout.variables == sum(nodes) + n + T * m + n_p
    sizes = [s + K_ * m for s, K_ in zip(nodes, lengths)]
    assert layout.hessian.rows.size == sum(s * (s + 1) // 2 + s * n_p for s in sizes) + 1


def test_blocks_that_do_not_fit_the_sparsity_pattern_are_refused():
    layout = Shooting(everything().compile(), 2, "exact", everything().initial_point).layout
    for pattern in (layout.jacobian, layout.hessian):
        blocks = [jnp.zeros(size) for size in pattern.sizes]
        assert pattern.values(blocks).shape == pattern.rows.shape
        with pytest.raises(ShapeError, match="this sparsity pattern expects"):
            pattern.values(blocks[:-1])
        with pytest.raises(ShapeError, match="this sparsity pattern expects"):
            pattern.values([blocks[0][:-1], *blocks[1:]])


def test_ipopts_own_derivative_test_passes_and_its_log_is_kept():
    options = {"derivative_test": "second-order", "derivative_test_tol": 1e-5, "point_perturbation_radius": 0.1}
    solution = solve(everything(), MultipleShooting(interval=2, ipopt_options=options), max_iterations=1)
    assert "No errors detected by derivative checker" in solution.log
    assert status_name(solution.status) == "max_iterations" and solution.raw_status.startswith("5: ")
