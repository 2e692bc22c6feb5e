"""Plots show what they are given: the data are read back from the figures, the files from the disk."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from trajopt.models import load_model
from trajopt.problems import LeastSquaresProblem
from trajopt.solvers import GaussNewton, GradientDescent, solve
from trajopt.viz import plots


@pytest.fixture(scope="module")
def solution():
    problem = LeastSquaresProblem("square", lambda x: x * x - 2.0, np.array([1.0, 5.0]))
    return solve(problem, GaussNewton())


@pytest.fixture
def saved(monkeypatch):
    """The figures that were written."""
    made = []
    original = plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: (made.append(figure), original(figure, path)))
    return made


def lines(axes):
    return {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}


def test_convergence(solution, saved, tmp_path):
    plots.convergence(solution, tmp_path / "convergence.png")
    top, bottom = saved[0].axes
    drawn = lines(top)["cost ½|r|²"]
    np.testing.assert_allclose(drawn[:, 1], np.maximum(solution.trace["cost"], plots.FLOOR))
    assert top.get_yscale() == "log" and top.get_ylabel() == "cost" and bottom.get_xlabel() == "iteration"
    assert set(lines(bottom)) == {"gradient norm |Jᵀr|", "step size |Δx|"}
    image = np.asarray(Image.open(tmp_path / "convergence.png"))
    assert image.shape[0] > 400 and image[..., :3].std() > 5


def test_a_run_of_no_iterations_is_drawn(tmp_path):
    problem = LeastSquaresProblem("solved", lambda x: x, np.zeros(1))
    plots.convergence(solve(problem, GaussNewton()), tmp_path / "convergence.png")
    assert (tmp_path / "convergence.png").stat().st_size > 0


def test_comparison(solution, saved, tmp_path):
    problem = LeastSquaresProblem("square", lambda x: x * x - 2.0, np.array([1.0, 5.0]))
    other = solve(problem, GradientDescent(max_iterations=20), gradient="finite-difference")
    plots.comparison([solution, other], tmp_path / "compare.png")
    time, evaluations, bars = saved[0].axes
    assert {"GaussNewton, implicit", "GradientDescent, finite-difference"} <= set(lines(time))
    np.testing.assert_allclose(lines(time)["GaussNewton, implicit"][:, 0], solution.trace["time"])
    labels = [text.get_text() for text in saved[0].legends[0].get_texts()]
    assert labels == ["GaussNewton, implicit", "GradientDescent, finite-difference"]
    assert "time" in time.get_xlabel() and "evaluations" in evaluations.get_xlabel()
    widths = [patch.get_width() for patch in bars.patches]
    assert widths == [solution.compile_time_s, other.compile_time_s, solution.wall_time_s, other.wall_time_s]


def test_trajectory_has_units_and_names(saved, tmp_path):
    model = load_model("cube")
    T = 5
    t = np.linspace(0, 0.5, T + 1)
    q = np.tile(np.asarray(model.q_default), (T + 1, 1))
    q[:, 0] = t
    motion = {"t": t, "q": q, "v": np.ones((T + 1, model.nv)), "u": np.zeros((T, 0)), "impulse": np.ones((T, 4, 3))}
    plots.trajectory(motion, tmp_path / "trajectory.png", model=model)
    labels = [ax.get_ylabel() for ax in saved[0].axes]
    assert labels[:4] == ["position [m]", "orientation [-]", "velocity [m/s]", "angular velocity [rad/s]"]
    assert labels[4].startswith("contact impulse") and saved[0].axes[-1].get_xlabel() == "time [s]"
    first = saved[0].axes[0].lines[0]
    assert first.get_label().endswith("x")
    np.testing.assert_allclose(first.get_ydata(), t)
    # Impulses are summed over the contacts.
    np.testing.assert_allclose(saved[0].axes[4].lines[2].get_ydata(), 4.0)


def test_a_single_step_is_drawn_as_bars(saved, tmp_path):
    model = load_model("go1")
    q = np.tile(np.asarray(model.q_default), (2, 1))
    u = np.linspace(-5, 5, model.nu)[None]
    motion = {"t": np.array([0, 1e-3]), "q": q, "v": np.full((2, model.nv), 1e-10), "u": u}
    plots.trajectory(motion | {"impulse": np.ones((1, 4, 3))}, tmp_path / "trajectory.png", model=model)
    controls, velocity, impulse = saved[0].axes
    np.testing.assert_allclose([patch.get_height() for patch in controls.patches], u[0])
    assert [tick.get_text() for tick in controls.get_xticklabels()] == list(model.topology.actuators)
    np.testing.assert_allclose(velocity.lines[0].get_ydata(), 1e-10)
    assert len(impulse.patches) == 12


def test_every_coordinate_has_a_name_of_its_own():
    for name in ("go1", "cart-pole"):
        model = load_model(name)
        for names, size in zip(plots.coordinate_names(model), (model.nq, model.nv, model.nu)):
            assert len(names) == len(set(names)) == size and all(names)
