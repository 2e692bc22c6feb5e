"""Contact rows that nothing can move, but for rounding: a contact level with a pivot has no tangential motion."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.solve.newton import regularisation
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.result import Status


@pytest.mark.parametrize("rounding", [0.0, 1e-18, 1e-12])
def test_they_do_not_spoil_the_others(rounding):
    """Two equal contacts stop a unit mass that falls at 1 m/s; a third cannot be moved along its tangents and is apart."""
    J = np.zeros((9, 3))
    J[0:3] = J[3:6] = np.eye(3)
    J[8, 2] = 1.0
    G = J @ J.T
    G[6, 6] = G[7, 7] = rounding
    g = J @ np.array([0.1, 0.0, -1.0]) + np.array([0.0] * 8 + [10.0])
    ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.ones(3))
    assert regularisation(ncp) > 1e-8
    solution = solve(ncp)
    assert solution.status == Status.solved and bool(solution.degenerate)
    np.testing.assert_allclose(solution.impulse, [-0.05, 0.0, 0.5] * 2 + [0.0] * 3, atol=1e-9)
    assert np.isfinite(solution.inverse).all()
