"""Problems are data: other initial states, references and weights compile nothing; what is wrong with them is named.

The same problem over another horizon.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from trajopt import dynamics, load_model, solvers
from trajopt.dynamics import State, System
from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.problems import OptimalControlProblem
from trajopt.problems import residuals as r

TARGETS = ([0.0, np.pi / 2], [0.3, 0.0])


@functools.cache
def cart_pole() -> System:
    return System(load_model("cart-pole"), 0.05, dynamics.NoContact())


def task(target=TARGETS[0], effort=1e-2, x0=None, system=None):
    system = cart_pole() if system is None else system
    x0 = system.initial_state() if x0 is None else x0
    stage = sum([r.Control(weight=effort), r.Velocity(weight=0.1)])
    return OptimalControlProblem(
        "reach", system, 10, x0, stage_residual=stage, terminal_residual=r.Posture(reference=target, weight=3.0),
    )  # fmt: skip


@pytest.mark.parametrize("solver", [
    solvers.iLQR(), solvers.iLQR(shooting="multiple"), solvers.DDP(), solvers.SingleShooting(max_iterations=3),
    solvers.MultipleShooting(hessian="limited-memory"), solvers.CEM(max_iterations=2, population=8),
], ids=lambda solver: f"{solver.name}-{getattr(solver, 'shooting', '')}")  # fmt: skip
def test_other_numbers_compile_nothing_and_give_what_a_new_problem_gives(solver):
    problem, start = task(), np.array([0.2, 0.1, 0.0, -0.1])
    solvers.solve(problem, solver)
    other = problem.replace(x0=start, references={"posture": TARGETS[1]}, weights={"control": 0.05})
    with compilations() as count:
        found = solvers.solve(other, solver)
    assert count.programs == count.traces == 0, count.names
    assert found.compile_time_s == 0
    expected = solvers.solve(task(TARGETS[1], 0.05, start), solver)
    assert found.cost == expected.cost and found.terms == expected.terms
    np.testing.assert_array_equal(found.us, expected.us)
    np.testing.assert_array_equal(found.xs[0], start)
    assert found.residuals["initial_state_error"] == 0


def test_terms_add_up_to_the_cost():
    found = solvers.solve(task(), solvers.iLQR())
    assert set(found.terms) == {"control", "velocity", "terminal posture"}
    np.testing.assert_allclose(sum(found.terms.values()), found.cost, rtol=1e-12)
    control = 0.5 * 1e-4 * float((found.us**2).sum())
    np.testing.assert_allclose(found.terms["control"], control, rtol=1e-12)
    assert found.summary()["terms"] == found.terms


def test_residuals_are_constraints_too():
    """An equality at the end is reached; an inequality along the motion is kept."""
    system = cart_pole()
    problem = OptimalControlProblem(
        "reach", system, 20, system.initial_state(), stage_residual=r.Control(weight=0.1),
        terminal_equality=r.Posture(("cart",), reference=[0.5, 0.0]),
        inequality=r.Velocity(("cart",), name="speed").at_most([0.6, 0.0]),
    )  # fmt: skip
    found = solvers.solve(problem, solvers.iLQR())
    assert found.success, found.message
    assert abs(found.xs[-1, 0] - 0.5) < 1e-6
    assert 0.6 - 1e-3 < found.xs[:-1, 2].max() < 0.6 + 1e-6  # the bound is felt


def bounded(x0, **options):
    return OptimalControlProblem("f", lambda x, u, t: x + u, 3, x0, u0=0.0, stage_residual=lambda x, u, t: u, **options)


def test_a_scalar_is_a_vector_of_one():
    problem = bounded(0.5)
    assert problem.x0.shape == (1,) and problem.u0.shape == (3, 1)
    with pytest.raises(ShapeError, match="u0 has shape"):
        OptimalControlProblem("arm", System(load_model("ur5"), 0.01, dynamics.NoContact()), 3, np.zeros(12), u0=0.5)



BAD = [
    (lambda: task().replace(references={"postur": [0.0, 0.0]}), UnknownNameError, "no term 'postur'.*posture"),
    (lambda: task().replace(references={"posture": np.zeros(3)}), ShapeError, r"reference has shape \(3,\)"),
    (lambda: task().replace(x0=np.zeros(3)), ShapeError, "x0 has 3 entries"),
    (lambda: bounded(1.5, state_upper=1.0), OptionError, r"x0\[0\] is 1.5, beyond state_upper\[0\] = 1; widen"),
    (lambda: bounded(0.5, state_upper=1.0).replace(x0=-3.0, state_lower=-1.0), OptionError, r"x0\[0\] is -3, beyond state_lower"),
    (lambda: bounded(0.5, state_upper=1.0).replace(x0=2.0), OptionError, r"x0\[0\] is 2, beyond state_upper"),
    (lambda: task(x0=State(jnp.zeros(2, np.float32), jnp.zeros(2, np.float32))), OptionError,
     "x0 is float32 and the System's numbers are float64"),
    (lambda: OptimalControlProblem("c", System(load_model("cube"), 0.01), 3, np.zeros(13), stage_cost=lambda x, u, t: x.q[0]),
     OptionError, r"x0\[3:7\] is a quaternion of zeros"),
]  # fmt: skip


@pytest.mark.check
@pytest.mark.parametrize("make, error, message", BAD, ids=[message for *_, message in BAD])
def test_bad_numbers_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_free_initial_state_may_start_beyond_the_bounds():
    assert bounded(1.5, state_upper=1.0, free_initial_state=True).x0[0] == 1.5


T = 13


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
    assert whole.gains.shape[0] == T and whole.xs.shape[0] == T + 1
    solvers.solve(problem, solvers.iLQR(), max_iterations=3, checkpoint=path)
    rest = solvers.solve(problem, solvers.iLQR(), resume=path)
    assert rest.iterations == whole.iterations
    np.testing.assert_array_equal(rest.us, whole.us)
    with pytest.raises(OptionError, match="cannot resume: .* other problem settings"):
        solvers.solve(problem.replace(horizon=14), solvers.iLQR(), resume=path)
