"""Batches on devices that run them in lockstep: a short attempt for everybody, then those who need more, in chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics import branches
from trajopt.dynamics.contact.ncp import make_ncp, residual
from trajopt.dynamics.contact.solve import ladder
from trajopt.dynamics.contact.solve.newton import regularisation
from trajopt.dynamics.contact.solve.solve import solve

CONTACTS, DOF, BATCH = 6, 12, 200


def halvings(x, count):
    """x halved `count` times, by a loop whose length differs between members of a batch."""
    return jax.lax.fori_loop(0, count, lambda _, x: 0.5 * x, x)


@pytest.mark.parametrize("batch", [5, 65, 1000])
@pytest.mark.parametrize("at_a_time", [3, 9])
@pytest.mark.parametrize("quick", [False, True])
def test_chunks_give_everybody_its_own_answer(batch, at_a_time, quick):
    """The value is (x, halvings left): a part takes at most so many of them at a time, the quick attempt all of up to two."""
    rng = np.random.default_rng(batch)
    needed, x = jnp.asarray(rng.uniform(size=batch) < 0.4), jnp.asarray(rng.normal(size=batch))
    counts, factor = jnp.asarray(rng.integers(0, 9, batch)), jnp.asarray(rng.normal(size=batch))

    def part(value, factor):
        x, left = value
        now = jnp.minimum(left, at_a_time)
        return (halvings(x, now) * jnp.where(left > now, 1.0, factor), left - now), left > now

    def attempt(value, factor):
        x, left = value
        few = left < 3
        return (jnp.where(few, halvings(x, left) * factor, x), jnp.where(few, 0, left)), ~few

    found, left = branches.in_chunks(part, needed, (x, counts), (factor,), quick=attempt if quick else None)
    np.testing.assert_array_equal(found, np.where(needed, np.ldexp(x, -np.asarray(counts)) * factor, x))
    np.testing.assert_array_equal(left, np.where(needed, 0, counts))


def as_elsewhere(monkeypatch):
    """What other devices would run, on the CPU, where members are solved one after another."""
    for module in (branches, ladder):
        monkeypatch.setattr(module, "accelerated", lambda: True)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, cpu, default: default(*operands))


def problems(seed: int):
    """(G, g, mu) of a batch. A third of the problems approach with one contact to three, a third with any number; a third have
    contacts that are far besides."""
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(BATCH, 3 * CONTACTS, DOF))
    g = rng.normal(size=(BATCH, CONTACTS, 3))
    approaching = rng.integers(1, 4, BATCH)
    few = (np.arange(BATCH) % 3 != 1)[:, None] & (np.arange(CONTACTS) >= approaching[:, None])
    g[..., 2] = np.where(few, np.abs(g[..., 2]) + 5.0, g[..., 2])
    g[..., 2] *= np.where(few & (np.arange(BATCH) % 3 == 2)[:, None], 1e4, 1.0)
    return J @ J.swapaxes(1, 2) / DOF, g.reshape(BATCH, -1), rng.uniform(0.1, 0.6, (BATCH, CONTACTS))


@pytest.mark.slow
def test_a_batch_in_lockstep_has_the_solutions_of_its_members(monkeypatch):
    given = [jnp.asarray(a) for a in problems(0)]

    def solution(G, g, mu):
        found = solve(make_ncp(G, g, mu))
        return found.velocity, found.impulse, residual(make_ncp(G, g, mu), found.impulse), found.iterations

    alone = jax.jit(jax.vmap(solution))(*given)
    assert np.max(alone[2]) < 1e-10
    as_elsewhere(monkeypatch)
    lockstep = jax.jit(jax.vmap(lambda *a: solution(*a)))(*given)
    assert np.max(lockstep[2]) < 1e-10
    np.testing.assert_allclose(lockstep[0], alone[0], rtol=0, atol=1e-9 * 1e4)
    np.testing.assert_allclose(lockstep[1], alone[1], rtol=0, atol=1e-9)


def test_a_search_among_the_nearest_ends_where_it_solves_the_whole_problem():
    G, g, mu = problems(2)

    @jax.jit
    @jax.vmap
    def attempt(G, g, mu):
        ncp = make_ncp(G, g, mu)
        eps = regularisation(ncp)
        limits = ladder.Limits(jnp.asarray(1e-12), jnp.asarray(1e-14), 1e-10)
        return ladder.among_nearest(ncp, ladder.begun(ncp, jnp.zeros_like(g), eps), eps, limits, 50)

    found = attempt(*(jnp.asarray(a) for a in (G, g, mu)))
    ended = np.asarray(found.ended)
    few = np.arange(BATCH) % 3 != 1  # three contacts approach, or fewer
    assert ended[few].mean() > 0.8 > 0.5 > ended[~few].mean()
    for k in np.flatnonzero(ended):
        assert scenes.natural_residual(G[k], g[k], np.asarray(found.best.impulse[k]), mu[k]) < 1e-10
    assert not np.asarray(found.best.impulse)[~ended].any()
