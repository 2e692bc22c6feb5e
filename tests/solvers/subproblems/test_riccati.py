"""The Riccati pass against the dense KKT system and an enumeration of active sets."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lq_cases import M, N, T, dense_kkt, random_lq

from trajopt.solvers.subproblems.box_qp import box_qp
from trajopt.solvers.subproblems.riccati import LQProblem, adjoint, adjoint_of_policy, lq_rollout, riccati

FREE = (jnp.full(M, -jnp.inf), jnp.full(M, jnp.inf))
backward, rolled = jax.jit(riccati), jax.jit(lq_rollout)


@pytest.mark.parametrize("definite", [True, False])
def test_the_policy_solves_the_dense_kkt_system(definite):
    lq, x0 = random_lq(1, definite), np.random.default_rng(2).normal(size=N)
    xs, us, costates, cost = dense_kkt(lq, x0)
    policy = backward(lq)
    assert policy.convex
    got_x, got_u = rolled(lq, policy, x0)
    np.testing.assert_allclose(got_x, xs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got_u, us, rtol=1e-9, atol=1e-9)
    # The gradient of the cost to go along the solution is the multiplier of the dynamics; its value is the cost.
    slope = policy.p + np.einsum("tij,tj->ti", policy.P, xs)
    np.testing.assert_allclose(slope, costates, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(policy.c[0] + policy.p[0] @ x0 + 0.5 * x0 @ policy.P[0] @ x0, cost, rtol=1e-10)


def test_lost_convexity_is_reported():
    lq = random_lq(0)
    assert backward(lq).convex
    assert not backward(LQProblem(**{**vars(lq), "R": lq.R - 100.0 * np.eye(M)})).convex


def test_predicted_change_of_the_feed_forward():
    """From x_0 = 0 without defects the controls k and the feedback change the cost by slope + curvature / 2."""
    lq = random_lq(4)
    lq = LQProblem(**{**vars(lq), "d": np.zeros((T, N))})
    policy = backward(lq)
    np.testing.assert_allclose(policy.slope + 0.5 * policy.curvature, dense_kkt(lq, np.zeros(N))[3], rtol=1e-10)


def test_adjoint_is_the_gradient_of_the_rollout():
    lq = random_lq(5)

    def cost(us, x0):
        x, total = x0, jnp.zeros(())
        for t in range(T):
            total += lq.q[t] @ x + lq.r[t] @ us[t]
            x = lq.A[t] @ x + lq.B[t] @ us[t]
        return total + lq.q[T] @ x

    by_u, by_x0 = jax.jit(jax.grad(cost, argnums=(0, 1)))(jnp.zeros((T, M)), jnp.zeros(N))
    costates, gradient = jax.jit(adjoint)(lq)
    np.testing.assert_allclose(gradient, by_u, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(costates[0], by_x0, rtol=1e-11, atol=1e-12)


def test_controls_that_a_bound_holds_do_not_follow():
    """Gains count as zero of exactly those whose gradient pushes against the bound they are at, and where they are no numbers."""
    rng = np.random.default_rng(8)
    lq = random_lq(6)
    gains, low, high = jnp.asarray(rng.normal(size=(T, M, N))), -jnp.ones(M), jnp.ones(M)
    us = jnp.asarray(rng.choice([-1.0, 0.0, 1.0], size=(T, M)))
    found = adjoint_of_policy(lq, gains.at[0, 0, 0].set(jnp.nan), us, low, high)
    gradient = np.asarray(found[1])
    held = ((us == -1) & (gradient > 0)) | ((us == 1) & (gradient < 0))
    assert 0 < np.sum(held) < held.size
    kept = jnp.where(held[..., None], 0.0, gains).at[0].set(0.0)
    for one, other in zip(found, adjoint_of_policy(lq, kept, us, *FREE), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def enumerated(H, g, lower, upper):
    """The minimiser over the box by trying every assignment of variables to (lower, free, upper)."""
    n, best, at = g.size, np.inf, None
    for sides in itertools.product((-1, 0, 1), repeat=n):
        sides = np.array(sides)
        x = np.where(sides < 0, lower, np.where(sides > 0, upper, 0.0))
        free = sides == 0
        if free.any():
            x[free] = np.linalg.solve(H[np.ix_(free, free)], -(g + H @ np.where(free, 0.0, x))[free])
        value = x @ (0.5 * H @ x + g)
        if np.all((x >= lower - 1e-12) & (x <= upper + 1e-12)) and value < best:
            best, at = value, x
    return at


def test_projected_newton_against_enumeration():
    rng = np.random.default_rng(3)
    solve = jax.jit(jax.vmap(box_qp))
    W = rng.normal(size=(200, 4, 4))
    # Condition numbers to 1e4, so that held sets change along the way.
    H = W @ (10.0 ** rng.uniform(-2, 2, size=(200, 4, 1)) * W.transpose(0, 2, 1)) + 1e-3 * np.eye(4)
    g = 3.0 * rng.normal(size=(200, 4))
    lower, upper = -rng.uniform(0, 1, size=(200, 4)), rng.uniform(0, 1, size=(200, 4))
    got = solve(H, g, lower, upper)
    expected = np.stack([enumerated(*data) for data in zip(H, g, lower, upper)])
    np.testing.assert_allclose(got.x, expected, atol=1e-9)
    np.testing.assert_array_equal(got.free, (expected > lower) & (expected < upper))


def test_bounded_controls_in_the_pass():
    """Each k_t minimises its own cost to go over the box, and controls at a bound have no feedback."""
    lq = random_lq(7)
    lower, upper = -0.3 * np.ones((T, M)), 0.2 * np.ones((T, M))
    policy = jax.jit(riccati)(lq, lower, upper)
    held = 0
    for t in range(T):
        P, p = policy.P[t + 1], policy.p[t + 1]
        H = lq.R[t] + lq.B[t].T @ P @ lq.B[t]
        k = enumerated(H, lq.r[t] + lq.B[t].T @ (p + P @ lq.d[t]), lower[t], upper[t])
        np.testing.assert_allclose(policy.k[t], k, atol=1e-10)
        at = (k == lower[t]) | (k == upper[t])
        held += at.sum()
        assert not np.any(policy.K[t][at])
    assert 5 < held < T * M
    wide = jax.jit(riccati)(lq, np.full((T, M), -np.inf), np.full((T, M), np.inf))
    for one, other in zip(jax.tree.leaves(backward(lq)), jax.tree.leaves(wide), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
