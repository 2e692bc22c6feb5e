"""The alternating direction method of multipliers as a solver of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dynamics.contact import scenes
from trajopt.dynamics import State, solve_ncp
from trajopt.dynamics.contact.ncp import make_ncp, residual
from trajopt.dynamics.contact.solve.admm import admm


def test_admm_agrees_with_newton():
    """Two different methods, the same velocity where it is unique (sticking contacts)."""
    run = jax.jit(admm, static_argnums=4)
    corners = scenes.box_corners((0.1, 0.1, 0.1))[::2]
    for v, w in (((0.01, 0.02, -1.0), (0.1, -0.1, 0.01)), ((0.0, 0.0, -0.3), (0.0, 0.0, 0.0))):
        G, g, *_ = scenes.box_problem(np.array([0, 0, 0.1, 1, 0, 0, 0]), np.r_[v, w], 1e-3, corners, 0.0)
        ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(4, 0.8))
        lam, _ = run(ncp, jnp.zeros(12), jnp.asarray(0.0), jnp.asarray(1e-11), 20000)
        assert float(residual(ncp, lam)) < 1e-10
        np.testing.assert_allclose(G @ lam + g, solve_ncp(G, g, np.full(4, 0.8)).velocity, atol=1e-8)


def test_distant_contacts_do_not_make_it_diverge():
    """Of sixteen contacts of a plane mechanism two touch; the others have velocities of hundreds of m/s to close in a step."""
    model = scenes.model("half-cheetah")
    q = np.array(model.keyframes.get("home", model.q_default))
    q[1] -= np.min(scenes.distances(model, q)) + 1e-4
    x = State(q, np.zeros(model.nv))
    _, v, _ = scenes.solved_step(scenes.system("half-cheetah", solver="admm", tolerance=1e-9), x)
    _, expected, info = scenes.solved_step(scenes.system("half-cheetah"), x)
    assert np.any(info.impulse != 0)
    np.testing.assert_allclose(v, expected, atol=1e-7)
