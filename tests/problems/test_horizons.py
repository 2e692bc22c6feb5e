"""Horizons in a few sizes: the same answers as in the horizon's own size, and no other program for another number of steps."""

from __future__ import annotations

import functools

import control_cases
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from trajopt import dynamics, load_model, solvers
from trajopt.dynamics import System
from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem, horizons, oracle
from trajopt.problems import residuals as r

T = 13  # in size 15

# Sums over T and over P terms are rounded in another order, relative 1e-15; optima, stationary to 1e-7 of the scale, are as
# near to each other, and gains, which no tolerance holds, move with them.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.mark.check
def test_sizes_are_never_smaller_and_a_third_larger_at_most():
    steps = np.arange(1, 3001)
    sizes = np.array([horizons.size_of(int(n)) for n in steps])
    assert (sizes >= steps).all() and (np.diff(sizes) >= 0).all()
    assert all(horizons.size_of(int(size)) == size for size in np.unique(sizes))
    before = np.unique(sizes)
    assert (before[3:] <= before[2:-1] * 4 / 3).all()
    assert (sizes[steps > 100] <= 1.2 * steps[steps > 100]).all()
    assert {10, 20, 25, 30, 50, 100, 150, 200, 300, 400, 500, 1000, 2000} <= set(sizes.tolist())


def arm(steps: int = T, **changes) -> OptimalControlProblem:
    """Everything at once: a swing with costs that vary with time, an equality that couples controls, bounds on states and
    controls, an unknown start and an unknown stiffness, with their priors."""

    def step(x, u, t, p):
        return x + 0.1 * jnp.stack([x[1], u[0] - 0.5 * u[1] - p[0] * jnp.sin(x[0]) + 0.1 * jnp.cos(3.0 * t)])

    options = {
        "u0": np.array([0.3, 0.1]),
        "dt": 0.1,
        "start_time": 0.2,
        "stage_residual": lambda x, u, t, p: jnp.concatenate([0.3 * u, (x - jnp.stack([jnp.sin(2.0 * t), 0.0 * t]))]),
        "stage_cost": lambda x, u, t, p: 0.01 * jnp.cosh(u[1]),
        "terminal_residual": lambda x, p: 5.0 * (x - jnp.array([0.7, 0.0])),
        "initial_residual": lambda x, p: 3.0 * (x - jnp.array([0.1, 0.2])),
        "parameter_residual": lambda p: 2.0 * (p - 1.0),
        "equality": lambda x, u, t, p: u[:1] + u[1:] - 0.4,
        "terminal_inequality": lambda x, p: x[1:] - 0.3,
        "state_upper": np.array([np.inf, 0.8]),
        "control_lower": -1.0,
        "control_upper": 1.5,
        "free_initial_state": True,
        "parameters": np.array([0.8]),
    }
    return OptimalControlProblem("arm", step, steps, np.array([0.0, 0.1]), **options | changes)


@functools.cache
def cart_pole(backend: str) -> System:
    return System(load_model("cart-pole"), 0.05, dynamics.NoContact(), backend=backend)


def reach(backend: str = "native", steps: int = T, rows: int = T, effort=1e-2) -> OptimalControlProblem:
    """A task of residuals; references, and the weight of the velocity, vary over the steps."""
    system = cart_pole(backend)
    speed = np.stack([np.linspace(0.0, 0.5, rows), np.zeros(rows)], 1)
    stage = sum([r.Control(weight=effort), r.Velocity(reference=speed, weight=np.linspace(0.1, 0.3, rows)[:, None])])
    final = r.Posture(reference=np.stack([np.linspace(0.0, 0.2, rows), np.linspace(0.0, 0.6, rows)], 1), weight=3.0)
    return OptimalControlProblem(
        "reach", system, steps, system.initial_state(), stage_residual=stage, terminal_residual=final
    )


def random_walk(steps: int = T) -> OptimalControlProblem:
    """States, noise and a constant drift of a linear system from its measurements."""
    A = np.array([[1.0, 0.1], [-0.2, 0.9]])
    y = np.random.default_rng(3).normal(size=steps + 1)

    def measured(x, k):
        return (x[:1] - jnp.asarray(y)[k]) / 0.5

    return OptimalControlProblem(
        "walk", lambda x, u, t, p: jnp.asarray(A) @ x + u + p[0], steps, np.zeros(2), u0=np.zeros(2),
        xs0=np.random.default_rng(4).normal(size=(steps + 1, 2)), free_initial_state=True, parameters=np.zeros(1),
        stage_residual=lambda x, u, t, p: jnp.concatenate([measured(x, jnp.round(t).astype(int)), 2.0 * u]),
        terminal_residual=lambda x, p: measured(x, steps), initial_residual=lambda x, p: x,
        parameter_residual=lambda p: 10.0 * p, control_lower=-0.4, control_upper=0.4,
    )  # fmt: skip


def box(backend: str, **changes) -> OptimalControlProblem:
    problem = control_cases.pushed_box(T, **changes)
    system = System(problem.system.model, problem.system.dt, problem.system.contact, backend=backend)
    return problem.replace(dynamics=system)


CASES = {
    "everything, iLQR": (arm, solvers.iLQR()),
    "everything, multiple shooting": (arm, solvers.iLQR(shooting="multiple", regularisation="state", damping=1e-3)),
    "everything, DDP": (arm, solvers.DDP()),
    "parallel": (lambda: arm(control_lower=-np.inf, control_upper=np.inf), solvers.iLQR(riccati="parallel")),
    "quaternion": (lambda: control_cases.satellite(T), solvers.iLQR(shooting="multiple")),
    "residuals, native": (lambda: reach("native"), solvers.iLQR()),
    "residuals, fewer rows": (lambda: reach("native", rows=5), solvers.iLQR()),
    "residuals, more rows": (lambda: reach("native", rows=18), solvers.iLQR(shooting="multiple")),
    "estimation": (random_walk, solvers.GaussNewton()),
    "contact, native": (lambda: box("native"), solvers.iLQR()),
    "contact, native, DDP": (lambda: box("native"), solvers.DDP()),
    "contact, JAX": (lambda: box("jax"), solvers.iLQR()),
    "contact, aware": (lambda: box("native", gradient="complementarity-aware"), solvers.iLQR(max_iterations=5)),
}


def largest_difference(a, b) -> float:
    return max((float(np.max(np.abs(a[key] - b[key]), initial=0.0)) for key in b), default=0.0)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_the_horizon_s_own_size(case, monkeypatch):
    make, solver = CASES[case]
    found = solvers.solve(make(), solver)
    monkeypatch.setattr(oracle, "padded", lambda problem: problem)
    expected = solvers.solve(make(), solver)
    assert found.iterations == expected.iterations and found.status == expected.status
    assert found.evaluations == expected.evaluations and found.success == expected.success
    for key in ("xs", "us", "gains", "trace", "multipliers", "covariances", "terms", "trajectory"):
        a, b = getattr(found, key), getattr(expected, key)
        if isinstance(b, dict):
            assert a.keys() == b.keys()
            pairs = [(a[name], b[name]) for name in b if name != "time"]
        else:
            pairs = [(a, b)]
        for x, y in pairs:
            assert np.shape(x) == np.shape(y), key
            np.testing.assert_allclose(x, y, **CLOSE, err_msg=key)
    assert found.gains.shape[0] == T and found.xs.shape[0] == T + 1
    np.testing.assert_allclose(found.cost, expected.cost, rtol=1e-10)
    assert found.residuals.keys() == expected.residuals.keys()
    for name, value in expected.residuals.items():
        np.testing.assert_allclose(found.residuals[name], value, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("solver", [
    solvers.iLQR(), solvers.iLQR(shooting="multiple"), solvers.DDP(), solvers.GaussNewton(),
], ids=lambda solver: f"{solver.name}-{getattr(solver, 'shooting', '')}")  # fmt: skip
def test_another_horizon_of_one_size_compiles_nothing(solver):
    problem = reach()
    solvers.solve(problem, solver)
    with compilations() as count:
        found = solvers.solve(problem.replace(horizon=15), solver)
        solvers.solve(problem.replace(horizon=14, x0=np.full(4, 0.1), weights={"control": 0.02}), solver)
        solvers.solve(problem.replace(horizon=14, references={"velocity": np.zeros((14, 2))}), solver)  # of other rows
    assert count.programs == 0, count.names
    assert found.compile_time_s == 0 and found.us.shape == (15, 1)
    expected = solvers.solve(reach(steps=15), solver)
    np.testing.assert_array_equal(found.us, expected.us)
    with compilations() as count:
        longer = solvers.solve(problem.replace(horizon=16), solver)
    assert count.programs > 0 and longer.xs.shape == (17, 4)
    with compilations() as count:
        solvers.solve(problem.replace(horizon=20), solver)
    assert count.programs == 0, count.names


def test_guesses_end_with_a_shorter_horizon_and_stay_with_a_longer_one():
    us, xs = np.arange(2.0 * T).reshape(T, 2) / 100, np.arange(2.0 * (T + 1)).reshape(T + 1, 2) / 100
    problem = arm(u0=us, xs0=xs)
    shorter, longer = problem.replace(horizon=9), problem.replace(horizon=16)
    np.testing.assert_array_equal(shorter.u0, us[:9])
    np.testing.assert_array_equal(shorter.xs0, xs[:10])
    np.testing.assert_array_equal(longer.u0, np.concatenate([us, us[-1:], us[-1:], us[-1:]]))
    np.testing.assert_array_equal(longer.xs0[T:], np.tile(xs[-1], (4, 1)))
    assert longer.replace(tolerance=1e-3).u0.shape == (16, 2)  # validated anew
    assert arm().replace(horizon=9).replace(tolerance=1e-3, horizon=30).u0.shape == (30, 2)
    np.testing.assert_allclose(longer.times, 0.2 + 0.1 * np.arange(17))


@pytest.mark.check
@pytest.mark.parametrize("steps", [0, -3, 2.5, True, None, "20"])
def test_no_horizon_is_an_error(steps):
    with pytest.raises(OptionError, match="problem 'arm': horizon is .*; expected a number of steps of at least 1"):
        arm().replace(horizon=steps)


def test_checkpoints_go_on_and_belong_to_one_horizon(tmp_path):
    path, problem = tmp_path / "checkpoint.npz", arm()
    whole = solvers.solve(problem, solvers.iLQR())
    solvers.solve(problem, solvers.iLQR(), max_iterations=3, checkpoint=path)
    rest = solvers.solve(problem, solvers.iLQR(), resume=path)
    assert rest.iterations == whole.iterations
    np.testing.assert_array_equal(rest.us, whole.us)
    with pytest.raises(OptionError, match="cannot resume: .* other problem settings"):
        solvers.solve(problem.replace(horizon=14), solvers.iLQR(), resume=path)


def test_where_something_is_not_finite_is_a_step_of_the_problem():
    broken = arm(parameter_residual=None, terminal_residual=lambda x, p: jnp.sqrt(x - 100.0))
    assert f"non-finite at step {T}" in solvers.solve(broken, solvers.iLQR()).message
