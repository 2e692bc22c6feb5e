"""The compiled passes of iLQR against those in JAX: the Riccati recursion, and the motion under a policy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from native.cases import needs_core, random_lq
from trajopt import dynamics, load_model
from trajopt.dynamics import State, System, random_configuration
from trajopt.dynamics.policies import follow_policy
from trajopt.solvers.subproblems.riccati import riccati, riccati_native

pytestmark = needs_core
SIZES = T, N, M = 9, 11, 5  # none is a multiple of the lanes


def agree(found, expected, tolerance=1e-10):
    """Rounding of T products of N x N matrices of condition 1e2."""
    for field in dataclasses.fields(expected):
        one, other = (np.asarray(getattr(policy, field.name)) for policy in (found, expected))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max(), err_msg=field.name)


@pytest.mark.parametrize("bound", [None, 0.05, 0.5])
def test_the_compiled_recursion_is_that_of_jax(bound):
    lq = random_lq(1, SIZES)
    box = () if bound is None else (jnp.full((T, M), -bound), jnp.full((T, M), 2 * bound))
    found, expected = jax.jit(riccati_native)(lq, *box), jax.jit(riccati)(lq, *box)
    agree(found, expected)
    if bound is not None:  # some controls are held, others are not
        held = np.all(np.asarray(expected.K) == 0, axis=2)
        assert held.any() and not held.all()
        np.testing.assert_array_equal(np.all(np.asarray(found.K) == 0, axis=2), held)


def test_a_batch_is_its_samples():
    lq = random_lq(3, SIZES, (2,))
    found = jax.jit(jax.vmap(riccati_native))(lq)
    for k in range(2):
        agree(jax.tree.map(lambda a, k=k: a[k], found), riccati(jax.tree.map(lambda a, k=k: a[k], lq)))


def test_lost_convexity_is_reported():
    lq = random_lq(0, SIZES)
    assert riccati_native(lq).convex
    lost = riccati_native(dataclasses.replace(lq, R=lq.R.at[4].add(-1e3 * jnp.eye(M))))
    assert not lost.convex and np.isnan(lost.K[4]).all() and np.isfinite(lost.K[5:]).all()


@functools.cache
def go1(backend: str) -> System:
    return System(load_model("go1"), 2e-3, dynamics.RigidContact(), backend=backend)


def test_the_compiled_motion_under_a_policy_is_that_of_steps():
    """Falling and landing, the base turned by more than half a turn from the states that the feedback is about."""
    system, steps = go1("native"), 12
    home = system.initial_state("home")
    rng = np.random.default_rng(0)
    far = np.asarray(random_configuration(system.model, jax.random.key(3)))
    qs = np.tile(np.asarray(home.q), (steps, 1))
    qs[:, 3:7] = far[3:7]
    bar = State(jnp.asarray(qs), jnp.asarray(0.1 * rng.normal(size=(steps, 18))))
    us, gains = jnp.asarray(rng.normal(size=(steps, 12))), jnp.asarray(3.0 * rng.normal(size=(steps, 12, 36)))
    lower, upper = jnp.full(12, -6.0), jnp.full(12, 5.0)
    x0 = State(home.q, jnp.asarray(0.2 * rng.normal(size=18)))
    found, controls, _ = jax.jit(follow_policy)(system, x0, bar.q, bar.v, us, gains, lower, upper)
    x = x0
    for k in range(steps):
        dx = jnp.concatenate([dynamics.difference(system.model, bar.q[k], x.q), x.v - bar.v[k]])
        u = jnp.clip(us[k] + gains[k] @ dx, lower, upper)
        np.testing.assert_allclose(controls[k], u, atol=1e-9)
        x, _ = system.step(x, u)
        np.testing.assert_allclose(found.q[k], x.q, atol=1e-9)
        np.testing.assert_allclose(found.v[k], x.v, atol=1e-8)
    assert (np.asarray(controls) == 5.0).any() and (np.abs(np.asarray(controls)) < 5.0).any()
