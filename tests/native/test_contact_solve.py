"""The compiled contact solve against its definition and against the JAX path: hard, redundant and impossible problems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.contact import scenes

from native.contact_problems import STATUSES, solve_contacts
from trajopt import native
from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.solve.solve import solve

pytestmark = pytest.mark.skipif(not native.available(), reason=f"compiled core: {native.reason()}")
SOLVED, STALLED, INFEASIBLE, NON_FINITE = range(len(STATUSES))


def one(G, g, mu, init=None, **options):
    """The solution of a single problem, without the batch axis."""
    init = None if init is None else np.asarray(init, float)[None]
    batch = (np.asarray(a, float)[None] for a in (G, g, mu))
    return jax.tree.map(lambda a: np.asarray(a)[0], solve_contacts(*batch, init=init, **options))


def box_on_corners(speed=1.0, mass=1.0, seed=0):
    """(G, g) of a box of side 0.2 whose four lower corners touch, moving at random: G (12, 12) has rank 6."""
    rng = np.random.default_rng(seed)
    motion = speed * rng.normal(size=6)
    motion[2] -= speed
    return scenes.box_on_corners(motion[:3], motion[3:], mass)


def check_law(G, g, mu, out, tolerance=1e-10):
    """The solution by the definition of the law, and the reported numbers by their own."""
    assert out.status == SOLVED
    assert scenes.natural_residual(G, g, out.impulse, mu) <= tolerance
    cancelled = 1e-14 * (np.abs(G) @ np.abs(out.impulse) + np.abs(g)).max()
    np.testing.assert_allclose(out.velocity, G @ out.impulse + g, atol=cancelled)


@pytest.mark.parametrize("mu", [0.0, 0.4, 5.0])
@pytest.mark.parametrize("speed", [1e-3, 1.0])
@pytest.mark.parametrize("mass", [1e-4, 1.0, 1e4])
def test_redundant_contacts_of_a_box(mu, speed, mass):
    """Rank 6 of 12, and G and g differ in scale by eight orders of magnitude."""
    for seed in range(5):
        G, g = box_on_corners(speed, mass, seed)
        check_law(G, g, np.full(4, mu), one(G, g, np.full(4, mu)))


def test_bodies_of_very_different_mass():
    """Mass ratios up to 1e4, three tilted contacts a pair, friction from 0 to 1.5: at most one of 200 problems is unsolved, and
    is said to be; the others obey the law by its definition."""
    batch = [np.stack(a) for a in zip(*(scenes.stack_of_bodies(seed, ratio=1e4) for seed in range(200)), strict=True)]
    out = solve_contacts(*batch)
    solved = np.asarray(out.status) == SOLVED
    assert solved.sum() >= 199
    assert set(np.asarray(out.fallbacks).tolist()) == {0, 1, 2}, "every stage solves some"
    np.testing.assert_array_equal(np.asarray(out.status)[~solved], STALLED)
    for k, (G, g, mu) in enumerate(zip(*batch, strict=True)):
        # Where the impulses are large, rounding of G lambda is part of the residual's scale.
        assert not solved[k] or scenes.natural_residual(G, g, np.asarray(out.impulse[k]), mu) <= 2e-10


def test_agrees_with_the_reference():
    """Where impulse and velocity are unique, or selected, both implementations return the same ones and the same modes."""
    reference = jax.jit(lambda *problem: solve(make_ncp(*problem)))
    problems = [(*box_on_corners(0.3, seed=seed), np.full(4, 0.3 + 0.2 * (seed % 3))) for seed in range(40)]
    out = solve_contacts(*(np.stack(a) for a in zip(*problems, strict=True)))
    compared = 0
    for k, problem in enumerate(problems):
        expected = reference(*problem)
        if not expected.selected or not out.selected[k]:
            continue
        compared += 1
        scale = np.abs(problem[1]).max()
        np.testing.assert_allclose(out.velocity[k], expected.velocity, atol=1e-9 * scale)
        np.testing.assert_allclose(out.impulse[k], expected.impulse, rtol=0, atol=1e-8 * np.abs(expected.impulse).max())
        np.testing.assert_array_equal(out.mode[k], expected.modes.cone)
        assert bool(out.degenerate[k]) == bool(expected.degenerate)
    assert compared >= 30


def test_warm_start_changes_nothing():
    """100 starts, near and far, for a box that slides, turns and rests: one answer to 1e-9."""
    rng = np.random.default_rng(0)
    for seed, mu in ((0, 0.2), (1, 0.6), (2, 5.0)):
        G, g = box_on_corners(0.5, seed=seed)
        cold = one(G, g, np.full(4, mu))
        size = np.abs(cold.impulse).max()
        starts = size * 10.0 ** rng.uniform(-6, 1, size=(100, 1)) * rng.normal(size=(100, 12))
        starts[::2] += cold.impulse
        tiled = (np.tile(a, (100,) + (1,) * np.ndim(a)) for a in (G, g, np.full(4, mu)))
        warm = solve_contacts(*tiled, init=starts)
        np.testing.assert_array_equal(warm.status, SOLVED)
        np.testing.assert_allclose(warm.impulse, np.tile(cold.impulse, (100, 1)), rtol=0, atol=1e-9 * size)


def test_selected_impulse_has_least_norm():
    """No vector of the null space of the law's derivative shortens the impulse of a sliding, turning box."""
    ranks = []
    for seed in range(20):
        G, g = box_on_corners(0.5, seed=seed)
        out = one(G, g, np.full(4, 0.2))
        if not out.degenerate or not (out.mode == 2).any():
            continue
        rho = 1.0 / np.repeat(0.5 * (np.diag(G)[0::3] + np.diag(G)[1::3]), 3)
        rho[2::3] = 1.0 / np.diag(G)[2::3]

        def law(x, mode=out.mode, G=G, g=g, rho=rho):
            nu = G @ x + g
            y = (x - rho * nu).reshape(4, 3)
            length = jnp.sqrt(jnp.sum(y[:, :2] ** 2, 1))
            slid = jnp.concatenate([0.2 * y[:, 2:] * y[:, :2] / length[:, None], y[:, 2:]], 1)
            kept = jnp.where((mode == 2)[:, None], slid, jnp.where((mode == 1)[:, None], y, 0.0))
            return x - kept.reshape(12)

        _, values, vectors = np.linalg.svd(np.asarray(jax.jacfwd(law)(jnp.asarray(out.impulse))))
        null = vectors[values < 1e-10 * values[0]]
        ranks.append(len(null))
        assert np.abs(null @ out.impulse).max(initial=0.0) <= 1e-9 * np.linalg.norm(out.impulse)
    assert len(ranks) >= 5 and max(ranks) >= 1


def test_elastic_impact_bounces_back():
    """b = e v_n turns an approach at 2 m/s into a departure at 2 e m/s: nu_n = v_n+ + e v_n = 0."""
    v, e = np.array([0.3, 0.0, -2.0]), 0.7
    out = one(np.eye(3), v + np.array([0, 0, e * v[2]]), [0.5])
    check_law(np.eye(3), v + np.array([0, 0, e * v[2]]), np.array([0.5]), out)
    np.testing.assert_allclose(v[2] + out.impulse[2], -e * v[2], rtol=1e-12)


def test_limits_dry_and_bilateral_rows():
    """A limit holds, an open one does not; dry friction is bounded, an infinite bound never gives way."""
    G, g = np.diag([1.0, 2.0, 4.0, 1.0]), np.array([-0.5, 0.5, 3.0, 2.0])
    out = solve_contacts(G[None], g[None], np.zeros((1, 0)), np.ones((1, 2), bool), np.array([[0.1, np.inf]]))
    np.testing.assert_allclose(out.impulse[0], [0.5, 0.0, -0.1, -2.0], rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(out.mode[0], [1, 0, 0, 1])
    assert out.status[0] == SOLVED


def test_rows_that_do_not_exist_carry_no_impulse():
    G, g = box_on_corners()
    exists = np.array([[True, False, True, True]])
    out = solve_contacts(G[None], g[None], np.full((1, 4), 0.5), exists)
    kept = np.r_[0:3, 6:12]
    alone = one(G[np.ix_(kept, kept)], g[kept], np.full(3, 0.5))
    np.testing.assert_array_equal(out.impulse[0][3:6], 0.0)
    np.testing.assert_allclose(out.impulse[0][kept], alone.impulse, rtol=0, atol=1e-12)


@pytest.mark.parametrize("G, g", scenes.UNSTOPPABLE)
def test_infeasible_with_its_proof(G, g):
    out = one(G, g, np.full(len(g) // 3, 0.5))
    assert out.status == INFEASIBLE
    assert out.residual > 1e-3 and np.isfinite(out.impulse).all()


def test_an_impulse_that_rounding_alone_resists_solves_nothing():
    """Contacts that push one direction both ways, in G to rounding: impulses of 1e14 N s would "stop" the approach."""
    rng = np.random.default_rng(0)
    solved, shape = 0, (150, 4, 1)
    J = rng.normal(size=(150, 4, 3, 3))
    J[:, :, 2] = rng.normal(size=shape) * rng.normal(size=(150, 1, 3))
    J = J.reshape(150, 12, 3)
    g = (J @ rng.normal(size=(150, 3, 1)))[..., 0]
    g[:, 2::3] -= 1.0
    G, mu = J @ np.swapaxes(J, 1, 2), np.repeat(rng.choice([0.3, 0.8, 1.5], size=(150, 1)), 4, 1)
    out = jax.tree.map(np.asarray, solve_contacts(G, g, mu))
    for k in np.flatnonzero(out.status == SOLVED):
        assert np.abs(out.impulse[k]).max() < 1e6
        assert scenes.natural_residual(G[k], g[k], out.impulse[k], mu[k]) <= 1e-9
        solved += 1
    assert 5 < solved < 50 and (out.status == INFEASIBLE).sum() >= 98


@pytest.mark.parametrize("where", ["G", "g", "mu"])
def test_nan_is_said(where):
    G, g = box_on_corners()
    arguments = {"G": G, "g": g, "mu": np.full(4, 0.5)}
    arguments[where].flat[0] = np.nan
    assert one(**arguments).status == NON_FINITE


def test_nan_as_a_start_is_ignored():
    G, g = box_on_corners()
    cold = one(G, g, np.full(4, 0.5))
    warm = one(G, g, np.full(4, 0.5), init=np.full(12, np.nan))
    np.testing.assert_array_equal(cold.impulse, warm.impulse)


def test_no_rows():
    out = solve_contacts(np.zeros((2, 0, 0)), np.zeros((2, 0)), np.zeros((2, 0)))
    np.testing.assert_array_equal(out.status, SOLVED)
