"""Plots show what they are given: the data are read back from the figures, the files from the disk."""

import dataclasses

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
    np.testing.assert_array_equal(lines(top)["cost ½|r|²"][:, 1], solution.trace["cost"])
    assert top.get_yscale() == "log" and top.get_ylabel() == "cost" and bottom.get_xlabel() == "iteration"
    assert set(lines(bottom)) == {"gradient norm |Jᵀr|", "step size |Δx|"}
    image = np.asarray(Image.open(tmp_path / "convergence.png"))
    assert image.shape[0] > 400 and image[..., :3].std() > 5


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e-20, 3.0], "log"),
        ([2.0, 3.0], "linear"),
        ([-6.7, 17.3, 9.0], "linear"),
        ([-1.0, -2.0, -3e5, 2.0], "symlog"),
        ([0.0, 1e-20, 3.0], "symlog"),
        ([], "linear"),
    ],
)
def test_the_axis_of_costs_shows_every_value(values, scale):
    """Logarithmic where all are positive over decades; zero and negative costs have a place too."""
    made, axes = plots.figure(1, 1)
    ax = axes[0, 0]
    ax.plot(values)
    assert plots.cost_axis(ax, np.array(values)) == scale == ax.get_yscale()
    made.canvas.draw()
    low, high = ax.get_ylim()
    assert all(low <= value <= high for value in values)


def test_the_best_feasible_cost_leaves_out_what_breaks_the_constraints():
    """A start that breaks the dynamics costs nothing, and is no achievement."""
    trace = {"cost": np.array([1e-33, 80.0, 20.0, 60.0, 58.0]), "violation": np.array([1.0, 1e-7, 1e-2, 1e-8, 0.0])}
    np.testing.assert_array_equal(plots.best_feasible(trace, 1e-6), [np.nan, 80.0, 80.0, 60.0, 58.0])
    assert np.isnan(plots.best_feasible(trace, -1.0)).all()


def test_comparison(solution, tmp_path):
    problem = LeastSquaresProblem("square", lambda x: x * x - 2.0, np.array([1.0, 5.0]))
    other = solve(problem, GradientDescent(max_iterations=20), gradient="finite-difference")
    trace = other.trace | {"violation": np.ones_like(other.trace["cost"])}
    never = dataclasses.replace(other, solver="Other", gradient="implicit", trace=trace)
    figure = plots.comparison([solution, other, never], tmp_path / "compare.png")
    time, evaluations, violation, bars = figure.axes
    names = ["GaussNewton, implicit", "GradientDescent, finite-difference", "Other, implicit (no feasible point)"]
    assert set(names) <= set(lines(time))
    np.testing.assert_allclose(lines(time)[names[0]][:, 0], solution.trace["time"])
    assert np.isnan(lines(time)[names[2]][:, 1]).all()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert "time" in time.get_xlabel() and "evaluations" in evaluations.get_xlabel()
    assert violation.get_ylabel() == "violation" and violation.lines[2].get_ydata().max() == 1.0
    widths = [patch.get_width() for patch in bars.patches]
    assert widths[:2] == [solution.compile_time_s, other.compile_time_s] and widths[3] == solution.wall_time_s


def cube_motion(steps: int) -> dict[str, np.ndarray]:
    """A cube that moves along x while four impulses of 1 N s act in each step."""
    model = load_model("cube")
    t = np.linspace(0, 0.5, steps + 1)
    q = np.tile(np.asarray(model.q_default), (steps + 1, 1))
    q[:, 0] = t
    v = np.ones((steps + 1, model.nv))
    return {"t": t, "q": q, "v": v, "u": np.zeros((steps, 0)), "impulse": np.ones((steps, 4, 3))}


def test_trajectory_has_units_and_names(tmp_path):
    motion = cube_motion(5)
    figure = plots.trajectory(motion, tmp_path / "trajectory.png", model=load_model("cube"))
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert labels == ["position [m]", "orientation [rad]", "velocity [m/s]", "angular velocity\n[rad/s]"]
    assert figure.axes[-1].get_xlabel() == "time [s]"
    first = figure.axes[0].lines[0]
    assert first.get_label() == "x"
    np.testing.assert_allclose(first.get_ydata(), motion["t"])


def test_contacts_are_named_by_what_touches_and_their_forces_add_up(tmp_path):
    """Four corners of one cube are one row; forces are impulses over the step's duration."""
    motion, model = cube_motion(5), load_model("cube")
    loads = plots.contact_loads(model, motion)
    assert loads.names == ("cube",)
    np.testing.assert_allclose(loads.normal, 4 * 1.0 / 0.1)
    np.testing.assert_allclose(loads.tangential, 4 * np.sqrt(2.0) / 0.1)
    np.testing.assert_allclose(loads.cone, loads.normal * float(np.asarray(model.pair_friction)[0]))
    gait, forces, cone = plots.contacts(motion, tmp_path / "contacts.png", model=model).axes
    assert [tick.get_text() for tick in gait.get_yticklabels()] == ["cube  100%"]
    assert forces.get_ylabel() == "normal force [N]" and "friction" in cone.get_ylabel()
    airborne = motion | {"impulse": np.zeros((5, 4, 3))}
    assert plots.contacts(airborne, tmp_path / "none.png", model=model) is None and not (tmp_path / "none.png").exists()
    assert plots.contact_loads(load_model("go1"), motion) is None


def test_a_single_step_is_drawn_as_bars(tmp_path):
    model = load_model("go1")
    q = np.tile(np.asarray(model.q_default), (2, 1))
    u = np.linspace(-5, 5, model.nu)[None]
    motion = {"t": np.array([0, 1e-3]), "q": q, "v": np.full((2, model.nv), 1e-3), "u": u}
    controls, shares, velocity = plots.trajectory(motion, tmp_path / "trajectory.png", model=model).axes
    heights = [patch.get_height() for patch in controls.patches]
    np.testing.assert_allclose(heights[: model.nu], u[0])
    limits = np.asarray(model.control_upper) - np.asarray(model.control_lower)
    np.testing.assert_allclose(heights[model.nu :], limits, err_msg="behind each bar a band between its limits")
    assert [tick.get_text() for tick in controls.get_xticklabels()] == list(model.topology.actuators)
    np.testing.assert_allclose([patch.get_height() for patch in velocity.patches], 1e-3)
    used = np.array([patch.get_height() for patch in shares.patches[: model.nu]])
    np.testing.assert_allclose(used, np.abs(u[0]) / np.asarray(model.control_upper))
    count = len(model.topology.pairs) * 2
    impulse = np.zeros((1, 4, 3))
    impulse[0, :, 2] = 1e-3 * np.arange(1, 5)
    forces = plots.contacts(motion | {"impulse": impulse}, tmp_path / "contacts.png", model=model).axes[0]
    names = {tick.get_text() for tick in forces.get_xticklabels()}
    assert names <= {shape.name for shape in model.topology.shapes} and 1 <= len(names) <= count


def test_twelve_joints_are_small_multiples_with_their_limits(tmp_path):
    model, steps = load_model("go1"), 4
    q = np.tile(np.asarray(model.q_default), (steps + 1, 1))
    q[:, 7:] += 0.3 * np.linspace(0, 1, steps + 1)[:, None]
    u = np.linspace(-1, 1, steps)[:, None] * np.asarray(model.control_upper)
    motion = {"t": np.linspace(0, 1, steps + 1), "q": q, "v": np.zeros((steps + 1, model.nv)), "u": u}
    figure = plots.joints(motion, tmp_path / "joints.png", model=model)
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")] == ["FR", "FL", "RR", "RL"]
    torques = [ax for ax in figure.axes if ax.get_visible() and ax.get_ylabel().endswith("[N m]")]
    assert len(torques) == 12
    for ax, bound in zip(sorted(torques, key=lambda ax: ax.get_ylabel()), sorted(np.asarray(model.control_upper))[::-1]):
        low, high = ax.get_ylim()
        assert low < -bound < bound < high and len(ax.patches) == 3, "the line, and a band beyond each limit"
    assert plots.joints(cube_motion(4), tmp_path / "few.png", model=load_model("cube")) is None
    assert not (tmp_path / "few.png").exists()
