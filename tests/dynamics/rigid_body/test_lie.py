"""Quaternions and SO(3) against SciPy, and their derivatives at the removable singularities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dynamics.models_for_tests import Jitted
from trajopt.dynamics.rigid_body import lie as module

lie = Jitted(module)
RNG = np.random.default_rng(1)
# Rotation vectors over all magnitudes: zero, the series' range, its border (|w| = 0.1), and near pi.
SCALES = [0.0, 1e-200, 1e-12, 1e-5, 0.03, 0.0999999, 0.1000001, 0.5, 2.0, 3.1, np.pi - 1e-9]


def vectors():
    units = RNG.normal(size=(len(SCALES), 3))
    return [s * u / np.linalg.norm(u) for s, u in zip(SCALES, units, strict=True)]


def scipy_quaternion(w):
    return np.roll(Rotation.from_rotvec(w).as_quat(), 1)


@pytest.mark.parametrize("w", vectors())
def test_exponential_and_logarithm(w):
    q = lie.quaternion_exp(jnp.asarray(w))
    np.testing.assert_allclose(q, scipy_quaternion(w), atol=2e-16, rtol=0)
    np.testing.assert_allclose(lie.quaternion_log(q), w, atol=1e-15, rtol=1e-15)
    np.testing.assert_allclose(lie.quaternion_log(-q), w, atol=1e-15, rtol=1e-15)
    R = lie.rotation_exp(jnp.asarray(w))
    np.testing.assert_allclose(R, Rotation.from_rotvec(w).as_matrix(), atol=1e-15, rtol=0)
    # Near pi the logarithm of a *matrix* loses half the digits of the axis' sign; the rotation itself is recovered.
    np.testing.assert_allclose(lie.rotation_exp(lie.rotation_log(R)), R, atol=1e-14, rtol=0)


def test_products_compose_rotations():
    a, b = RNG.normal(size=(2, 7, 4))
    a, b = lie.normalise_quaternion(jnp.asarray(a)), lie.normalise_quaternion(jnp.asarray(b))
    left = lie.rotation_from_quaternion(lie.quaternion_product(a, b))
    np.testing.assert_allclose(left, lie.rotation_from_quaternion(a) @ lie.rotation_from_quaternion(b), atol=1e-15)
    unit = lie.quaternion_product(a, lie.quaternion_conjugate(a))
    np.testing.assert_allclose(unit, np.tile([1.0, 0, 0, 0], (7, 1)), atol=1e-15)


@pytest.mark.parametrize("pivot", range(4))
def test_quaternion_of_a_matrix_at_every_pivot(pivot):
    q = np.full(4, 0.1)
    q[pivot] = 0.95
    q = jnp.asarray(q / np.linalg.norm(q))
    np.testing.assert_allclose(lie.quaternion_from_rotation(lie.rotation_from_quaternion(q)), q, atol=1e-15)


def test_zero_quaternion_is_the_identity_with_finite_derivatives():
    zero = jnp.zeros(4)
    np.testing.assert_array_equal(lie.rotation_from_quaternion(zero), np.eye(3))
    np.testing.assert_array_equal(lie.normalise_quaternion(zero), [1.0, 0, 0, 0])
    for function in (lie.rotation_from_quaternion, lie.normalise_quaternion):
        assert np.isfinite(jax.jacfwd(function)(zero)).all() and np.isfinite(jax.jacrev(function)(zero)).all()


@pytest.mark.parametrize("w", vectors()[:-1])
def test_right_jacobian(w):
    w = jnp.asarray(w)
    J = lie.right_jacobian(w)
    back = lie.quaternion_conjugate(lie.quaternion_exp(w))
    by_ad = jax.jit(jax.jacfwd(lambda x: lie.quaternion_log(lie.quaternion_product(back, lie.quaternion_exp(x)))))(w)
    np.testing.assert_allclose(J, by_ad, atol=1e-13)
    np.testing.assert_allclose(lie.right_jacobian_inverse(w) @ J, np.eye(3), atol=1e-13)


@pytest.mark.parametrize("function", [lie.quaternion_exp, lie.right_jacobian, lie.right_jacobian_inverse])
def test_first_and_second_derivatives_at_zero(function):
    zero = jnp.zeros(3)
    forward, reverse = jax.jit(jax.jacfwd(function))(zero), jax.jit(jax.jacrev(function))(zero)
    np.testing.assert_allclose(forward, reverse, atol=1e-15)
    h = 1e-4  # central difference of a function with third derivatives of order one: error h^2
    for k in range(3):
        step = h * jnp.eye(3)[k]
        difference = (function(zero + step) - function(zero - step)) / (2 * h)
        np.testing.assert_allclose(forward[..., k], difference, atol=1e-8)
    assert np.isfinite(jax.jit(jax.jacfwd(jax.jacrev(function)))(zero)).all()
