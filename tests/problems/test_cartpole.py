"""cartpole-swingup: the library's problem, on the bundled model, has the optimum of the hand-written one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError

CASADI = 58.888335988  # by CasADi and IPOPT, multiple shooting with exact Hessians


def accelerations(q, v, u):
    """Kelly 2017, eqs. 6.1 and 6.2, the pole hanging at angle 0."""
    m1, m2, length, g = 1.0, 0.3, 0.5, 9.81
    s, c = np.sin(q[1]), np.cos(q[1])
    cart = (length * m2 * s * v[1] ** 2 + u + m2 * g * c * s) / (m1 + m2 * (1 - c * c))
    pole = -(length * m2 * c * s * v[1] ** 2 + u * c + (m1 + m2) * g * s) / (length * (m1 + m2 * (1 - c * c)))
    return np.array([cart, pole])


def rk4(x, u, h):
    f = lambda x: np.concatenate([x[2:], accelerations(x[:2], x[2:], u)])  # noqa: E731
    k1 = f(x)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    k4 = f(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def test_the_optimum_of_the_bundled_model():
    problem = problems.get("cartpole-swingup")
    step = jax.jit(problem.step)
    x, u = np.array([0.3, 1.1, -0.4, 2.0]), np.array([3.0])
    # The bob of the file has a small inertia of its own (1e-9 kg m^2).
    np.testing.assert_allclose(
        step(jnp.asarray(x), jnp.asarray(u), jnp.zeros(()), jnp.zeros(0)), rk4(x, u[0], 0.02), atol=1e-9
    )
    solution = solvers.solve(problem, solvers.MultipleShooting())
    assert solution.success
    np.testing.assert_allclose(solution.cost, CASADI, rtol=1e-6)
    x = np.zeros(4)
    for u in solution.us[:, 0]:
        x = rk4(x, u, 0.02)
    np.testing.assert_allclose(x, [1.0, np.pi, 0, 0], atol=1e-5)
    assert np.abs(solution.us).max() <= 20 and np.abs(solution.xs[:, 0]).max() <= 2


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="track ends"):
        problems.get("cartpole-swingup", distance=2.5)
    with pytest.raises(OptionError, match="duration is -1.0"):
        problems.get("cartpole-swingup", duration=-1.0)
