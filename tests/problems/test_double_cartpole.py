"""double-cartpole-swingup: its motion against the Lagrangian of three point masses, and a solution to tolerance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import rk4

from trajopt import problems, solvers
from trajopt.errors import OptionError

MASSES = jnp.array([1.0, 0.3, 0.3])


def places(q):
    """(x, z) of cart and bobs; q: cart, angle of the first pole from hanging, of the second from the first."""
    a, b = q[1], q[1] + q[2]
    first = jnp.stack([q[0] + 0.5 * jnp.sin(a), -0.5 * jnp.cos(a)])
    second = first + 0.5 * jnp.stack([jnp.sin(b), -jnp.cos(b)])
    return jnp.stack([jnp.stack([q[0], 0.0 * q[0]]), first, second])


def rate(x, u):
    """d/dt dL/dv = dL/dq + (u, 0, 0)."""

    def lagrangian(q, v):
        velocity = jax.jvp(places, (q,), (v,))[1]
        return 0.5 * MASSES @ jnp.sum(velocity**2, 1) - 9.81 * MASSES @ places(q)[:, 1]

    q, v = x[:3], x[3:]
    M = jax.hessian(lagrangian, 1)(q, v)
    turned = jax.jacfwd(jax.grad(lagrangian, 1))(q, v) @ v
    force = jax.grad(lagrangian)(q, v) - turned + jnp.stack([u, 0.0 * u, 0.0 * u])
    return jnp.concatenate([v, jnp.linalg.solve(M, force)])


def test_the_motion_is_that_of_three_point_masses():
    problem = problems.get("double-cartpole-swingup")
    assert (problem.horizon, problem.dt) == (150, pytest.approx(0.02))
    step, expected = jax.jit(problem.step), jax.jit(rk4(rate, 0.02))
    x = np.array([0.3, 1.1, -0.7, -0.4, 2.0, 1.5])
    got = step(jnp.asarray(x), jnp.array([3.0]), jnp.zeros(()), jnp.zeros(0))
    # The bobs of the file have a small inertia of their own (1e-9 kg m^2).
    np.testing.assert_allclose(got, expected(x, 3.0, 0.0), atol=1e-8)
    upright = np.array([0.0, np.pi, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(problem.terminal("terminal_equality", jnp.asarray(upright), jnp.zeros(0)), 0.0)
    np.testing.assert_allclose(expected(upright, 0.0, 0.0), upright, atol=1e-12)


@pytest.mark.slow
def test_it_is_solved_to_tolerance():
    problem = problems.get("double-cartpole-swingup")
    solution = solvers.solve(problem, solvers.MultipleShooting())
    assert solution.success and solution.cost < 152.0
    # Every step is one of the point masses', to the solver's 1e-8 and the bobs' 1e-9 of inertia. A replay from the start would
    # measure rounding: three seconds through two inverted pendulums amplify these 1e-8 to 1e-2.
    xs, us = solution.xs, solution.us[:, 0]
    np.testing.assert_allclose(jax.vmap(rk4)(xs[:-1], us), xs[1:], atol=1e-7)
    np.testing.assert_allclose(xs[0], 0.0, atol=1e-9)
    np.testing.assert_allclose(xs[-1], [0, np.pi, 0, 0, 0, 0], atol=1e-9)
    assert np.abs(solution.us).max() <= 20 and np.abs(solution.xs[:, 0]).max() <= 2


@pytest.mark.slow
def test_sampling_swings_it_up():
    """Stochastic search arrives within a millimetre and a milliradian; no force at all leaves the poles hanging."""
    problem = problems.get("double-cartpole-swingup")
    solver = solvers.StochasticSearch(knots=30, population=300, diagonal=True)  # thirty covariances take longer to learn
    solution = solvers.solve(problem, solver, max_iterations=200)
    assert solution.residuals["terminal_equality"] < 1e-3 and solution.residuals["bound_violation"] == 0.0


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="track ends"):
        problems.get("double-cartpole-swingup", distance=-2.0)
    with pytest.raises(OptionError, match="duration is 0.0"):
        problems.get("double-cartpole-swingup", duration=0.0)
