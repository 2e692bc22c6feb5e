"""One small end-to-end answer a layer, against a closed form: what `make check` runs of the numerical code."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import trajopt
from trajopt import dynamics, models, problems, solvers
from trajopt.cli import main
from trajopt.viz import plots

pytestmark = pytest.mark.check

BALL = """
<mujoco model="ball"><worldbody>
  <geom name="floor" type="plane" size="1 1 1"/>
  <body pos="0 0 0.1"><joint name="height" type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="2"/></body>
</worldbody><actuator><motor joint="height"/></actuator></mujoco>"""


@pytest.mark.parametrize("module", [trajopt, problems, solvers], ids=lambda module: module.__name__)
def test_public_names_exist(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_problems_every_entry_of_the_library_can_be_loaded():
    for name in problems.names():
        entry = problems.registry.entry(name)
        assert callable(entry.load()) and entry.solver in solvers.names() and entry.summary, name


@pytest.mark.parametrize("name", models.bundled_models())
def test_models_every_bundled_model_is_read(name):
    model = models.load_model(name)
    assert model.nv > 0 and float(model.mass.sum()) > 0 and models.describe(model).startswith(name)


def test_dynamics_a_ball_on_the_floor_stays_and_one_that_is_pushed_rises():
    system = dynamics.System(models.load_model_from_string(BALL), dt=1e-2, contact=dynamics.RigidContact())
    weight = 2.0 * 9.81
    x, info = system.step(system.initial_state(), np.zeros(1))
    np.testing.assert_allclose(np.r_[x.q, x.v], 0.0, atol=1e-12)
    np.testing.assert_allclose(info.contacts.impulse[0], [0, 0, weight * 1e-2], atol=1e-12)
    held = system.linearize(system.initial_state(), np.zeros(1))
    np.testing.assert_allclose(held.B, 0.0, atol=1e-12)
    pushed = system.linearize(system.initial_state(), np.array([weight + 4.0]))
    np.testing.assert_allclose(pushed.x_next.v, 4.0 / 2.0 * 1e-2, atol=1e-12)
    np.testing.assert_allclose(pushed.B, [[0.5e-4], [0.5e-2]], atol=1e-12)


def reach(horizon: int = 5) -> problems.OptimalControlProblem:
    """A point from rest at 0 to 1 by controls that are velocities: u = 1 / horizon each is best."""
    return problems.OptimalControlProblem(
        "reach", lambda x, u, t: x + u, horizon, np.zeros(1), u0=np.zeros(1), stage_residual=lambda x, u, t: u,
        terminal_equality=lambda x: x - 1.0,
        display=problems.Display(control_names=("velocity",), control_units=("m/s",)),
    )  # fmt: skip


def test_problems_cost_and_violation_are_recomputed():
    problem = reach()
    motion = problem.rollout(jnp.zeros(1), jnp.full((5, 1), 0.2), jnp.zeros(0))
    np.testing.assert_allclose(problem.cost(motion), 0.5 * 5 * 0.04, rtol=1e-12)
    np.testing.assert_allclose(problem.terminal("terminal_equality", motion.xs[-1], motion.p), 0.0, atol=1e-12)


def test_solvers_least_squares_and_optimal_control():
    root = solvers.solve(problems.LeastSquaresProblem("root", lambda x: x * x - 2.0, np.ones(1)), solvers.GaussNewton())
    assert root.success and abs(root.x[0] - np.sqrt(2.0)) < 1e-9
    solution = solvers.solve(reach(), solvers.iLQR())
    assert solution.success
    np.testing.assert_allclose(solution.us, 0.2, atol=1e-5)


def test_viz_a_motion_is_drawn(tmp_path):
    t = np.linspace(0.0, 1.0, 6)
    motion = {"t": t, "q": t[:, None], "u": np.full((5, 1), 0.2)}
    figure = plots.trajectory(motion, tmp_path / "motion.png", control_names=("velocity",), control_units=("m/s",))
    assert figure.axes[1].get_ylabel() == "velocity\n[m/s]" and (tmp_path / "motion.png").stat().st_size > 1000


def test_cli_a_run_writes_its_summary(tmp_path, capsys):
    problems.register("root", lambda: problems.LeastSquaresProblem("root", lambda x: x * x - 2.0, np.ones(1)), "a root")
    try:
        assert main(["run", "root", "--out", str(tmp_path), "--quiet"]) == 0
        assert main(["list"]) == 0 and "root" in capsys.readouterr().out
    finally:
        problems.unregister("root")
    assert json.loads((tmp_path / "summary.json").read_text())["success"] is True
