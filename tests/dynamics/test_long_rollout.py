"""Rollouts that keep only some of their states for reverse mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError


@pytest.fixture(scope="module")
def system():
    return System(load_model("drone"), 1e-3, contact=NoContact())


def test_segments_change_neither_motion_nor_gradient(system):
    """Seven steps in segments of three, and one segment that is longer than the rollout."""
    x0, us = system.initial_state("home"), jnp.arange(7.0)[:, None]

    def loss(us, segment):
        xs, infos = system.rollout(x0, us, segment=segment)
        assert xs.q.shape == (8, 1) and infos.residual.shape == (7,)
        return jnp.sum(xs.q**2)

    plain, cut = [jax.jit(jax.value_and_grad(lambda us, k=k: loss(us, k)))(us) for k in (None, 3)]
    np.testing.assert_allclose(cut[0], plain[0], rtol=1e-14)
    np.testing.assert_allclose(cut[1], plain[1], rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda us: loss(us, 10))(us), plain[0], rtol=1e-14)


def test_a_segment_has_steps(system):
    with pytest.raises(OptionError, match="segment is 0, expected a number of steps"):
        system.rollout(system.initial_state("home"), np.zeros((3, 1)), segment=0)
