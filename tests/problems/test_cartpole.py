"""cartpole-swingup: the library's problem, on the bundled model, has the optimum of the hand-written one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import OPTIMA, cart_pole_rate, rk4

from trajopt import problems, solvers
from trajopt.errors import OptionError

KELLY = rk4(cart_pole_rate, 0.02)  # Kelly 2017, eqs. 6.1 and 6.2


def test_the_step_is_kellys():
    problem = problems.get("cartpole-swingup")
    x, u = np.array([0.3, 1.1, -0.4, 2.0]), np.array([3.0])
    # The bob of the file has a small inertia of its own (1e-9 kg m^2).
    got = jax.jit(problem.step)(jnp.asarray(x), jnp.asarray(u), jnp.zeros(()), jnp.zeros(0))
    np.testing.assert_allclose(got, KELLY(x, u, 0.0), atol=1e-9)
    np.testing.assert_array_equal(problem.control_upper, 20.0)
    assert (problem.state_lower[0], problem.state_upper[0]) == (-2.0, 2.0)


def test_the_optimum_of_the_bundled_model():
    solution = solvers.solve(problems.get("cartpole-swingup"), solvers.MultipleShooting())
    assert solution.success
    np.testing.assert_allclose(solution.cost, OPTIMA["cart-pole"], rtol=1e-6)
    x = np.zeros(4)
    for u in solution.us:
        x = KELLY(x, u, 0.0)
    np.testing.assert_allclose(x, [1.0, np.pi, 0, 0], atol=1e-5)
    assert np.abs(solution.us).max() <= 20 and np.abs(solution.xs[:, 0]).max() <= 2


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="track ends"):
        problems.get("cartpole-swingup", distance=2.5)
    with pytest.raises(OptionError, match="duration is -1.0"):
        problems.get("cartpole-swingup", duration=-1.0)
