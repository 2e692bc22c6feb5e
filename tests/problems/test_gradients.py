"""Gradient modes of a `System` reach the solvers' linearisation of an optimal control problem."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import problems
from trajopt.problems.transcription import linear_dynamics


def test_a_mode_of_the_system_is_not_replaced_by_differences():
    """The resting drone: d v+ / d u is zero under hard contact, and (1 - s) dt / m smoothed, s = sigmoid(300 depth)."""
    problem = problems.get("drone-takeoff").with_gradient("smoothed")
    x, u = jnp.asarray(problem.x0), jnp.zeros(1)
    _, F = jax.jit(lambda x, u: linear_dynamics(problem, "smoothed")(x, u, jnp.zeros(()), jnp.zeros(0)))(x, u)
    share = 1 / (1 + np.exp(-300.0 * 1e-4))
    np.testing.assert_allclose(F[1, 2], (1 - share) * 1e-3 / 0.1, rtol=1e-6)
