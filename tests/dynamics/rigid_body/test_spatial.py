"""Spatial algebra against its 6 x 6 matrices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics.rigid_body import spatial

RNG = np.random.default_rng(0)
V, M, F = (jnp.asarray(RNG.normal(size=(5, 6))) for _ in range(3))
MASS = jnp.asarray(RNG.uniform(0.5, 2, size=5))
COM = jnp.asarray(RNG.normal(size=(5, 3)))
_A = RNG.normal(size=(5, 3, 3))
INERTIA = jnp.asarray(_A @ _A.transpose(0, 2, 1) + np.eye(3))
TOLERANCE = 1e-14  # a dozen products of numbers of order one to ten, in double precision


def packed():
    return spatial.pack_inertia(MASS[:, None], COM, spatial.pack_symmetric(INERTIA))


def dense():
    """Spatial inertias from the textbook: mass, first moment and the parallel-axis theorem."""
    out = np.zeros((5, 6, 6))
    for k in range(5):
        c = np.asarray(spatial.skew(COM[k]))
        m = float(MASS[k])
        out[k] = np.block([[m * np.eye(3), -m * c], [m * c, np.asarray(INERTIA[k]) - m * c @ c]])
    return out


def close(a, b, scale=1.0):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=TOLERANCE * 20 * scale)


def test_cross_products_are_their_matrices_and_dual():
    close(spatial.cross(V[:, :3], M[:, :3]), np.cross(V[:, :3], M[:, :3]))
    motion, force = spatial.motion_cross_matrix(V), spatial.force_cross_matrix(V)
    close(spatial.cross_motion(V, M), jnp.einsum("kij,kj->ki", motion, M))
    close(spatial.cross_force(V, F), jnp.einsum("kij,kj->ki", force, F))
    close(force, -jnp.swapaxes(motion, -1, -2))
    close(jnp.einsum("kij,kj->ki", spatial.force_cross_bar_matrix(F), V), spatial.cross_force(V, F))
    # Power is invariant when motion and force are carried along together.
    close((spatial.cross_motion(V, M) * F).sum(-1), -(M * spatial.cross_force(V, F)).sum(-1))


def test_cross_motion_satisfies_jacobi():
    a, b, c = V, M, F
    x = spatial.cross_motion
    close(x(a, x(b, c)) + x(b, x(c, a)) + x(c, x(a, b)), 0, scale=100)


def test_packed_inertia():
    close(spatial.inertia_matrix(packed()), dense())
    close(spatial.inertia_times(packed(), V), np.einsum("kij,kj->ki", dense(), V))
    symmetric = spatial.pack_symmetric(INERTIA)
    close(spatial.unpack_symmetric(symmetric), INERTIA)


def test_twelve_numbers_are_the_coriolis_matrix():
    I = jnp.asarray(dense())
    momentum = spatial.inertia_times(packed(), V)
    B = (
        spatial.force_cross_matrix(V) @ I
        - I @ spatial.motion_cross_matrix(V)
        + spatial.force_cross_bar_matrix(momentum)
    ) / 2
    numbers = spatial.coriolis(packed(), V)
    close(spatial.coriolis_times(numbers, M), jnp.einsum("kij,kj->ki", B, M), scale=10)
    transposed = jnp.einsum("kji,kj->ki", B, M)
    close(transposed[:, :3], 0, scale=10)
    close(spatial.coriolis_transposed_times(numbers, M), transposed[:, 3:], scale=10)


@pytest.mark.parametrize(
    "function, arguments",
    [
        (spatial.cross, lambda: (V[:, :3], M[:, :3])),
        (spatial.cross_motion, lambda: (V, M)),
        (spatial.cross_force, lambda: (V, F)),
        (spatial.inertia_times, lambda: (packed(), V)),
        (spatial.coriolis, lambda: (packed(), V)),
        (spatial.coriolis_times, lambda: (spatial.coriolis(packed(), V), M)),
        (spatial.coriolis_transposed_times, lambda: (spatial.coriolis(packed(), V), M)),
    ],
)
def test_components_in_front_are_the_transposed_result(function, arguments):
    close(function(*(a.T for a in arguments()), 0).T, function(*arguments()))


def test_small_matrix_products():
    a, b = INERTIA, jnp.asarray(_A)
    close(spatial.multiply(a, b), a @ b, scale=10)
    close(spatial.rotate(a, COM), jnp.einsum("kij,kj->ki", a, COM), scale=10)
    front = lambda x: jnp.moveaxis(x, 0, -1)  # noqa: E731
    close(spatial.multiply_columns(front(a), front(b)), front(a @ b), scale=10)
    close(spatial.rotate_columns(front(a), COM.T), spatial.rotate(a, COM).T, scale=10)
