"""Pseudo-inverse and null spaces by reflections, which take a batch together, against singular values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics.contact.solve.null_spaces import by_reflections, by_singular_values

SIZE = 14


def of_every_rank(dtype) -> np.ndarray:
    """Five matrices of each rank from 0 to `SIZE`, with singular values between 0.1 and 1."""
    rng = np.random.default_rng(0)

    def orthogonal():
        return np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]

    ranks = np.repeat(np.arange(SIZE + 1), 5)
    values = (rng.uniform(0.1, 1.0, SIZE) * (np.arange(SIZE) < rank) for rank in ranks)
    return np.array([orthogonal() * s @ orthogonal() for s in values], dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-4)])
def test_both_find_the_same_spaces_and_the_same_pseudo_inverse(dtype, tolerance):
    K = of_every_rank(dtype)
    found, expected = (jax.jit(jax.vmap(fn))(jnp.asarray(K)) for fn in (by_reflections, by_singular_values))
    np.testing.assert_allclose(expected[0], np.linalg.pinv(K, rcond=1e-4), rtol=0, atol=20 * tolerance)
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=20 * tolerance)
    for mine, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine @ mine.mT, other @ other.mT, rtol=0, atol=tolerance)
    _, N, Z = (np.asarray(x) for x in found)
    nullity = SIZE - np.repeat(np.arange(SIZE + 1), 5)
    for basis in (N, Z):
        gram = basis.mT @ basis
        np.testing.assert_allclose(gram, np.where(gram > 0.5, 1.0, 0.0), rtol=0, atol=tolerance)
        np.testing.assert_array_equal(np.round(np.trace(gram, axis1=1, axis2=2)), nullity)
    assert np.max(np.abs(K @ N)) < tolerance and np.max(np.abs(Z.mT @ K)) < tolerance
