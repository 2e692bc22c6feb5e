"""The impulse of least norm among redundant solutions, and its derivative, on plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import ridders
from scipy import optimize

from dynamics.contact import scenes
from trajopt.dynamics import solve_ncp
from trajopt.dynamics.contact.ncp import (
    SLIDING,
    STICKING,
    Modes,
    make_ncp,
    mode_map,
)
from trajopt.dynamics.contact.solve import selection
from trajopt.dynamics.contact.solve import solve as solve_module

MU = 0.4

smallest_norm, solve = jax.jit(selection.smallest_norm), jax.jit(solve_module.solve)
slope_of_modes = jax.jit(lambda ncp, lam, modes: jax.jacfwd(lambda x: mode_map(ncp, x, modes))(lam))
along = jax.jit(lambda p, t: jax.jvp(lambda *a: solve_ncp(*a).impulse, p, t)[1])


def ncp_of(G, g, mu=MU):
    return make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(len(g) // 3, mu))


def no_modes(count, mode):
    return Modes(jnp.full(count, mode), jnp.zeros(0, bool), jnp.zeros(0, bool))


def test_held_contacts_give_the_pseudoinverse():
    """Sticking contacts: least norm subject to G lambda = -g."""
    G, g = scenes.box_on_corners((0.01, 0.02, -1.0), (0.1, -0.1, 0.02))
    expected = -np.linalg.pinv(G, rcond=1e-10) @ g
    lam = smallest_norm(ncp_of(G, g), jnp.asarray(expected + 0.3 * null_of(G) @ np.ones(6)), no_modes(4, STICKING))
    np.testing.assert_allclose(lam, expected, atol=1e-12)
    np.testing.assert_allclose(solve(ncp_of(G, g)).impulse, expected, atol=1e-10)


def null_of(G):
    _, s, Vt = np.linalg.svd(G)
    return Vt[s < 1e-10 * s[0]].T


def test_frictionless_redundancy_is_a_quadratic_programme():
    """mu = 0: among all impulses that hold the box (some of its corners may lift) the one of least norm, by SLSQP."""
    for v, w in (((0, 0, -1.0), (0.0, 0, 0)), ((0.5, 0, -1.0), (1.5, -0.7, 0)), ((0, 0, -0.2), (6.0, 3.0, 0))):
        G, g = scenes.box_on_corners(v, w)
        out = solve(ncp_of(G, g, 0.0))
        lam = np.asarray(out.impulse)[2::3]
        N, n = G[2::3, 2::3], g[2::3]
        moving = np.asarray(out.velocity)[2::3]
        assert scenes.natural_residual(G, g, out.impulse, np.zeros(4)) < 1e-12
        # All solutions share the velocity: minimise |lambda|^2 with N lambda = velocity - n, lambda >= 0.
        best = optimize.minimize(
            lambda z: z @ z, lam, jac=lambda z: 2 * z, method="SLSQP", bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda z, N=N, c=n - moving: np.linalg.pinv(N) @ (N @ z + c)},
            options={"ftol": 1e-15},
        )  # fmt: skip
        np.testing.assert_allclose(lam @ lam, best.fun, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    "mode, v, w", [(SLIDING, (3.0, 1.0, -0.01), (0, 0, 2.0)), (STICKING, (0.01, 0.02, -1.0), (0.1, -0.1, 0.02))]
)
def test_derivative_of_the_selected_impulse(mode, v, w):
    """d(impulse) of `solve_ncp` along the masses and velocities of a box, against differences of the least-norm impulse.

    The directions G + s dG keep the range of G (they change the mass matrix, not the Jacobian): the corners stay coplanar,
    so that the perturbed problems are solvable in the same modes. The null-space part of the derivative must not vanish.
    """
    G, g = scenes.box_on_corners(v, w)
    rng = np.random.default_rng(1)
    root = np.linalg.svd(G)
    L = root.U[:, :6] * np.sqrt(root.S[:6])
    c = np.linalg.lstsq(L, g, rcond=None)[0]
    dL, dc, dmu = L @ (0.2 * rng.normal(size=(6, 6))), 0.2 * rng.normal(size=6), 0.1 * rng.normal(size=4)
    modes = no_modes(4, mode)

    def problem(s):
        moved = L + s * dL
        return make_ncp(jnp.asarray(moved @ moved.T), jnp.asarray(moved @ (c + s * dc)), jnp.asarray(MU + s * dmu))

    lam = solve(problem(0.0)).impulse
    estimate = ridders(lambda s: np.asarray(smallest_norm(problem(s), lam, modes)), 1e-3)
    size = np.abs(estimate.value).max()
    assert estimate.error.max() < 1e-7 * size
    primal = (jnp.asarray(L @ L.T), jnp.asarray(L @ c), jnp.full(4, MU))
    tangent = (jnp.asarray(dL @ L.T + L @ dL.T), jnp.asarray(dL @ c + L @ dc), jnp.asarray(dmu))
    derivative = along(primal, tangent)
    np.testing.assert_allclose(derivative, estimate.value, atol=1e-6 * size)
    ncp = problem(0.0)
    _, sv, Vt = np.linalg.svd(slope_of_modes(ncp, lam, modes))
    null = Vt[sv < 1e-9 * sv[0]]
    # Without that part the comparison above would fail by a factor of a hundred.
    assert mode == STICKING or np.abs(null @ np.asarray(derivative)).max() > 1e-4 * size
