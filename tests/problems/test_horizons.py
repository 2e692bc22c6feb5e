"""The same problem over another horizon."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import solvers
from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem

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
