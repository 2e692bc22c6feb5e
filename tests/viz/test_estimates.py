"""Pictures of costs and estimates: what is drawn adds up to the cost, and ellipses are those of the covariance."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.errors import ShapeError
from trajopt.problems import Display, LeastSquaresProblem, OptimalControlProblem
from trajopt.problems.oracle import cost_terms
from trajopt.problems.parts import Observations
from trajopt.problems.trajectory import Trajectory
from trajopt.solvers import GaussNewton, iLQR, solve
from trajopt.viz import plots
from trajopt.viz.plots.estimation import ellipse, propagated

TIMES = np.linspace(0.0, 1.0, 9)
DEVIATIONS = np.array([0.1, 0.2])


def line(x):
    """Two channels of a straight motion: 3 + slope and offset."""
    x = jnp.asarray(x)
    return jnp.stack([x[0] + x[1] * TIMES, x[1] - x[0] * TIMES], 1)


@pytest.fixture(scope="module")
def fitted():
    measured = np.asarray(line(np.array([1.0, 2.0]))) + DEVIATIONS * np.random.default_rng(0).normal(size=(9, 2))
    seen = Observations(TIMES, measured, DEVIATIONS, ("east", "north"), ("m", "m"), line, plane=(0, 1))
    problem = LeastSquaresProblem(
        "line", lambda x: ((line(x) - measured) / DEVIATIONS).ravel(), np.zeros(2), labels=("a", "b"),
        truth=np.array([1.0, 2.0]),
        display=Display(observations=seen),
    )  # fmt: skip
    return problem, solve(problem, GaussNewton())


def test_data_fit_and_residuals_are_drawn(fitted, tmp_path):
    problem, solution = fitted
    figure = plots.estimation(problem, solution, tmp_path / "estimation.png")
    drawn = {curve.get_label(): np.asarray(curve.get_ydata()) for curve in figure.axes[0].lines}
    np.testing.assert_array_equal(drawn["measured"], problem.display.observations.values[:, 0])
    np.testing.assert_allclose(drawn["fit"], np.asarray(line(solution.x))[:, 0])
    residuals = problem.display.observations.residuals(solution.x)
    np.testing.assert_allclose(residuals.ravel(), np.asarray(problem.residual(solution.x)), rtol=1e-12)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), residuals[:, 0])
    assert plots.estimation(LeastSquaresProblem("none", lambda x: x, np.ones(1)), solution, tmp_path / "no.png") is None


def test_a_covariance_propagates_to_what_is_predicted(fitted):
    """The prediction is linear: J P J^T to rounding of the differences."""
    _, solution = fitted
    spread = propagated(line, solution.x, solution.covariance)
    J = np.stack([np.stack([np.ones(9), -TIMES], 1), np.stack([TIMES, np.ones(9)], 1)], -1)
    np.testing.assert_allclose(spread, np.einsum("kai,ij,kbj->kab", J, solution.covariance, J), rtol=1e-9, atol=1e-15)


def test_an_ellipse_has_the_axes_of_its_covariance():
    turn = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    drawn = ellipse((1.0, 2.0), turn @ np.diag([9.0, 4.0]) @ turn.T, 2.0)
    assert (drawn.width, drawn.height) == (pytest.approx(12.0), pytest.approx(8.0))
    assert np.tan(np.deg2rad(drawn.angle)) == pytest.approx(np.tan(0.4))


def test_the_uncertainty_of_parameters_is_drawn_over_the_data(fitted, tmp_path):
    problem, solution = fitted
    figure = plots.uncertainty(problem, solution, tmp_path / "uncertainty.png")
    pair, over_data = (ax for ax in figure.axes if ax.get_visible())
    assert (pair.get_xlabel(), pair.get_ylabel(), over_data.get_xlabel()) == ("a", "b", "east [m]")
    assert len(pair.patches) == 2 and len(over_data.patches) == 9
    np.testing.assert_array_equal(over_data.lines[0].get_xydata(), problem.display.observations.values)


def test_observations_of_another_size_are_refused():
    with pytest.raises(ShapeError, match=r"deviations has shape \(3,\); expected \(2,\)"):
        Observations(TIMES, np.zeros((9, 2)), np.ones(3), ("a", "b"), ("", ""), line)
    with pytest.raises(ShapeError, match="channel 2"):
        Observations(TIMES, np.zeros((9, 2)), np.ones(2), ("a", "b"), ("", ""), line, plane=(0, 2))


def test_terms_add_up_to_the_cost(tmp_path):
    problem = OptimalControlProblem(
        "pull", lambda x, u, t: x + 0.1 * u, 6, np.array([1.0, -1.0]), u0=np.zeros(2), dt=0.1,
        stage_residual=lambda x, u, t: x, stage_cost=lambda x, u, t: 0.1 * jnp.vdot(u, u),
        terminal_residual=lambda x: 3.0 * x, terminal_cost=lambda x: -x[0],
    )  # fmt: skip
    solution = solve(problem, iLQR(max_iterations=3))
    stages, others = cost_terms(problem, Trajectory(solution.xs, solution.us, problem.parameters))
    assert set(stages) == {"stage residual", "stage cost"} and set(others) == {"terminal residual", "terminal cost"}
    total = sum(float(row.sum()) for row in stages.values()) + sum(others.values())
    assert total == pytest.approx(solution.cost, rel=1e-12)
    bars, over_time = plots.costs(problem, solution, tmp_path / "costs.png").axes
    assert sorted(patch.get_width() for patch in bars.patches) == pytest.approx(
        sorted([float(row.sum()) for row in stages.values()] + list(others.values()))
    )
    assert over_time.get_xlabel() == "time [s]"
    assert plots.costs(LeastSquaresProblem("x", lambda x: x, np.ones(1)), solution, tmp_path / "none.png") is None
