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


def lines(axes):
    return {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}


def test_convergence(solution, tmp_path):
    top, bottom = plots.convergence(solution, tmp_path / "convergence.png").axes
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


def test_comparison(solution, tmp_path):
    problem = LeastSquaresProblem("square", lambda x: x * x - 2.0, np.array([1.0, 5.0]))
    other = solve(problem, GradientDescent(max_iterations=20), gradient="finite-difference")
    figure = plots.comparison([solution, other], tmp_path / "compare.png")
    time, evaluations, bars = figure.axes
    assert {"GaussNewton, implicit", "GradientDescent, finite-difference"} <= set(lines(time))
    np.testing.assert_allclose(lines(time)["GaussNewton, implicit"][:, 0], solution.trace["time"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["GaussNewton, implicit", "GradientDescent, finite-difference"]
    assert "time" in time.get_xlabel() and "evaluations" in evaluations.get_xlabel()
    widths = [patch.get_width() for patch in bars.patches]
    assert widths == [solution.compile_time_s, other.compile_time_s, solution.wall_time_s, other.wall_time_s]


def test_trajectory_has_units_and_names(tmp_path):
    model = load_model("cube")
    T = 5
    t = np.linspace(0, 0.5, T + 1)
    q = np.tile(np.asarray(model.q_default), (T + 1, 1))
    q[:, 0] = t
    motion = {"t": t, "q": q, "v": np.ones((T + 1, model.nv)), "u": np.zeros((T, 0)), "impulse": np.ones((T, 4, 3))}
    figure = plots.trajectory(motion, tmp_path / "trajectory.png", model=model)
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert labels[:4] == ["position [m]", "orientation [-]", "velocity [m/s]", "angular velocity [rad/s]"]
    assert labels[4].startswith("contact impulse") and figure.axes[-1].get_xlabel() == "time [s]"
    first = figure.axes[0].lines[0]
    assert first.get_label().endswith("x")
    np.testing.assert_allclose(first.get_ydata(), t)
    # Impulses are summed over the contacts.
    np.testing.assert_allclose(figure.axes[4].lines[2].get_ydata(), 4.0)


def test_a_single_step_is_drawn_as_bars(tmp_path):
    model = load_model("go1")
    q = np.tile(np.asarray(model.q_default), (2, 1))
    u = np.linspace(-5, 5, model.nu)[None]
    motion = {"t": np.array([0, 1e-3]), "q": q, "v": np.full((2, model.nv), 1e-10), "u": u}
    figure = plots.trajectory(motion | {"impulse": np.ones((1, 4, 3))}, tmp_path / "trajectory.png", model=model)
    controls, velocity, impulse = figure.axes
    np.testing.assert_allclose([patch.get_height() for patch in controls.patches], u[0])
    assert [tick.get_text() for tick in controls.get_xticklabels()] == list(model.topology.actuators)
    np.testing.assert_allclose(velocity.lines[0].get_ydata(), 1e-10)
    assert len(impulse.patches) == 12


def disturbed_motion(steps: int) -> dict[str, np.ndarray]:
    """A Go1 whose 18 controls are no motors: a wrench on the base and twelve torques."""
    model = load_model("go1")
    q = np.tile(np.asarray(model.q_default), (steps + 1, 1))
    return {"t": np.linspace(0, 1, steps + 1), "q": q, "v": np.zeros((steps + 1, model.nv)), "u": np.ones((steps, 18))}


@pytest.mark.parametrize("steps", [1, 5])
def test_controls_that_are_not_the_motors_of_the_model_have_the_names_of_the_problem(tmp_path, steps):
    names = tuple(f"w{k}" for k in range(18))
    motion, model = disturbed_motion(steps), load_model("go1")
    units = ("N",) * 3 + ("",) * 15
    labels = {"control_names": names, "control_units": units}
    figures = [plots.trajectory(motion, tmp_path / "a.png", model=model, **options) for options in (labels, {})]
    named, numbered = ([ax for ax in figure.axes if ax.get_ylabel().startswith("controls")] for figure in figures)
    if steps == 1:
        assert [tick.get_text() for tick in named[0].get_xticklabels()] == list(names)
        assert [tick.get_text() for tick in numbered[0].get_xticklabels()] == [f"u {k}" for k in range(18)]
    else:
        assert [ax.get_ylabel() for ax in named] == ["controls [N]", "controls"]
        assert [line.get_label() for ax in named for line in ax.lines] == list(names)
        assert [line.get_label() for line in numbered[0].lines] == [f"u {k}" for k in range(18)]


def test_a_motion_of_other_coordinates_than_the_model_is_drawn_without_its_names(tmp_path):
    motion = {"t": np.arange(4.0), "q": np.ones((4, 3)), "v": np.ones((4, 2)), "u": np.ones((3, 12))}
    figure = plots.trajectory(motion, tmp_path / "trajectory.png", model=load_model("go1"))
    assert [len(ax.lines) for ax in figure.axes] == [3, 2, 12]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("go1", ["N m"] * 12), ("cart-pole", ["N"]), ("half-cheetah", [""] * 6), ("drone", ["N"]), ("jump-worm", ["N m"] * 3)],
)
def test_units_of_the_controls_are_those_of_what_they_drive(name, expected):
    """The half-cheetah's controls are shares of torques: its motors have gears."""
    assert plots.actuator_units(load_model(name)) == expected


def test_every_coordinate_has_a_name_of_its_own():
    for name in ("go1", "cart-pole"):
        model = load_model(name)
        for names, size in zip(plots.coordinate_names(model), (model.nq, model.nv, model.nu)):
            assert len(names) == len(set(names)) == size and all(names)


def test_powers_of_ten_are_plain_text():
    made, axes = plots.figure(1, 2)
    for ax, (low, high) in zip(axes[0], ((1e-12, 1e3), (2.0, 6.0))):
        ax.plot([0, 1], [low, high])
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(plots.PowersOfTen())
        ax.yaxis.set_minor_formatter(plots.PowersOfTen())
    made.canvas.draw()
    wide, narrow = ([text.get_text() for text in ax.get_yticklabels(which="both")] for ax in axes[0])
    assert "10⁻¹⁰" in wide and not any("$" in text or "·" in text for text in wide)
    assert "3·10⁰" in narrow, "within a decade the multiples are named too"
