"""A checkpoint of another problem is refused, and what differs is named, though all its arrays have the same sizes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.cli import main
from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError
from trajopt.models import load_model
from trajopt.problems import Defaults, LeastSquaresProblem, OptimalControlProblem
from trajopt.problems import residuals as r
from trajopt.solvers.loop.fingerprint import fingerprints

SOLVER = solvers.GaussNewton()


def valley(*, steep: float = 10.0, start: float = -1.2, lower: float = -5.0, tolerance: float = 1e-9) -> LeastSquaresProblem:
    return LeastSquaresProblem(
        "valley", lambda x: jnp.stack([1.0 - x[0], steep * (x[1] - x[0] ** 2)]), np.array([start, 1.0]), lower=lower,
        tolerance=tolerance,
    )  # fmt: skip


def pendulum(*, dt: float = 0.05, x0: float = 0.1, weight: float = 1.0, mass: float = 1.0, limit: float = 5.0, u0: float = 0.0):
    model = load_model("cart-pole")
    model = dataclasses.replace(model, mass=model.mass * mass)
    return OptimalControlProblem(
        "pole", System(model, dt, NoContact()), 5, model.q_default.tolist() + [x0, 0.0], u0=np.full(model.nu, u0),
        stage_residual=r.Velocity(weight=weight) + r.Control(weight=0.1), control_lower=-limit, control_upper=limit,
        defaults=Defaults("iLQR"),
    )  # fmt: skip


VALLEYS = [
    ({"steep": 11.0}, "another residual;"),
    ({"lower": -4.0}, "another lower;"),
    ({"lower": -4.0, "steep": 9.0}, "another lower, another residual;"),
]
PENDULUMS = [
    ({"dt": 0.06}, r"another dt, another dynamics\.dt;"),
    ({"x0": 0.2}, "another x0;"),
    ({"weight": 2.0}, r"another stage_residual\."),
    ({"mass": 1.1}, r"another dynamics\.model;"),
    ({"limit": 4.0}, "another control_lower, another control_upper;"),
]


@pytest.mark.parametrize(
    ("problem", "solver", "others", "guess"),
    [(valley, SOLVER, VALLEYS, {"start": 2.0, "tolerance": 1e-6}), (pendulum, solvers.iLQR(), PENDULUMS, {"u0": 0.5})],
)
def test_a_checkpoint_of_other_settings_is_refused_by_what_differs(problem, solver, others, guess, tmp_path):
    path = tmp_path / "checkpoint.npz"
    solvers.solve(problem(), solver, checkpoint=path, max_iterations=0)
    for changed, named in others:
        with pytest.raises(OptionError, match=f"was made with other problem settings: {named}") as caught:
            solvers.solve(problem(**changed), solver, resume=path)
        assert "give the same settings" in str(caught.value) and "start anew" in str(caught.value)
    whole = solvers.solve(problem(), solver, resume=path, max_iterations=1)
    assert whole.iterations == 1
    options = dataclasses.replace(solver, max_iterations=7)
    other = solvers.solve(problem(**guess), options, resume=path, max_iterations=1)  # guess, tolerance and options may be others
    np.testing.assert_array_equal(other.x, whole.x)


def test_the_command_line_refuses_other_settings(tmp_path, capsys):
    problems.register("valley", valley, "a bent valley")
    try:
        run = ["run", "valley", "--quiet", "--max-iterations", "1", "--out", str(tmp_path / "out")]
        assert main([*run, "--set", "steep=12"]) == 1
        before = (tmp_path / "out" / "checkpoint.npz").read_bytes()
        assert main([*run, "--resume"]) == 2
        assert "with other problem settings: another residual; give the same settings" in capsys.readouterr().err
        assert (tmp_path / "out" / "checkpoint.npz").read_bytes() == before
        assert main([*run, "--resume", "--set", "steep=12"]) == 1
    finally:
        problems.unregister("valley")


@pytest.mark.parametrize("name", ["cartpole-swingup", "cube-initial-velocity"])
def test_the_same_problem_has_the_same_fingerprints_and_every_setting_counts(name):
    own = fingerprints(problems.get(name))
    assert own == fingerprints(problems.get(name))
    for key, value in problems.settings(name).items():
        if isinstance(value, float):
            assert fingerprints(problems.get(name, **{key: 1.01 * value})) != own, key
