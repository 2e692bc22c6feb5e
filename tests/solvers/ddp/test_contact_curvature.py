"""Curvature through contact: against differences, and what iterations gain by it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems
from trajopt.problems.contact_curvature import curvature_along, motion_curvature
from trajopt.problems.expansions import linear_dynamics, moved


def test_curvature_of_a_step_through_contact_against_central_differences():
    """d/dz (F^T lambda) column after column, from steps ten times as large, where the worm's chain is on the floor; and its
    product with one direction.

    Quotients of smooth columns are good to the square of the step and to rounding over it; where a contact opens within the
    larger step the two sides of its quotient differ, and nothing is compared.
    """
    problem = problems.get("jump-worm", steps=240)
    motion = problem.rollout(jnp.asarray(problem.initial_point.xs[0]), jnp.asarray(problem.u0), jnp.zeros(0))
    rng, size = np.random.default_rng(0), problem.n + problem.nu
    costates, directions = rng.normal(size=(241, problem.n)), rng.normal(size=(240, size))
    M = np.asarray(motion_curvature(problem, motion, jnp.asarray(costates)))
    products = np.asarray(curvature_along(problem, motion, jnp.asarray(costates), jnp.asarray(directions)))
    linear = jax.jit(linear_dynamics(problem))
    at = jax.jit(lambda x, u, z: moved(problem, x, u, jnp.zeros(0))(z)[:2])
    xs, us = np.asarray(motion.xs), np.asarray(motion.us)
    step, compared = 1e-6, 0
    np.testing.assert_allclose(M, np.swapaxes(M, 1, 2), atol=1e-12 * np.abs(M).max())
    for t in range(166, 240, 12):

        def pulled(z, t=t):
            x, u = at(xs[t], us[t], z)
            return np.asarray(linear(x, u, 0.0, jnp.zeros(0))[1]).T @ costates[t + 1]

        here, sides = pulled(np.zeros(size)), [[pulled(s * e) for e in step * np.eye(size)] for s in (1.0, -1.0)]
        ahead, behind = (np.stack(sides[0]) - here) / step, (here - np.stack(sides[1])) / step
        largest = np.abs(M[t]).max()
        if np.abs(ahead - behind).max() > 1e-2 * largest:
            continue
        expected = 0.5 * (ahead + behind)
        np.testing.assert_allclose(M[t], 0.5 * (expected + expected.T), atol=1e-6 * largest)
        np.testing.assert_allclose(products[t], expected.T @ directions[t], atol=1e-5 * largest)
        compared += 1
    assert compared >= 4 and np.abs(M[166:]).max() > 1e3


@pytest.fixture(scope="module")
def worm():
    """jump-worm with a cost of joint rates from 30 rad/s, in place of bounds and of the torques' cost."""

    def excess(x, u, t):
        return jnp.maximum(jnp.abs(x.v[2:]) / 30.0 - 1.0, 0.0)

    return dataclasses.replace(
        problems.get("jump-worm"), stage_residual=excess, state_lower=-np.inf, state_upper=np.inf
    )


def valley(problem, seed: int) -> np.ndarray:
    """Torques on the floor of the valley at a height of 0.26 m: the guess, -0.13 N m at the last joint that fade until the chain
    lands, and noise of 1e-3 N m. Along these torques the cost has a curvature of 50, and Gauss-Newton's model none."""
    ramp = np.maximum(1.0 - np.arange(problem.horizon) * problem.dt / 0.15, 0.0)
    noise = 1e-3 * np.random.default_rng(seed).normal(size=problem.u0.shape)
    return np.asarray(problem.u0) + noise - 0.13 * ramp[:, None] * np.array([0.0, 0.0, 1.0])
