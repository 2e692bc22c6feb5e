"""Batches are spread over XLA's threads: the numbers are those of single calls to the last bit, and nothing waits for ever."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np

from native.cases import needs_core
from trajopt import load_model
from trajopt.dynamics import State, System

pytestmark = needs_core
COUNT = 70  # of several pieces, the last one smaller


def cheetah() -> tuple[System, State]:
    """States about the home pose, some of them in contact."""
    system, rng = System(load_model("half-cheetah"), 5e-3, backend="native"), np.random.default_rng(0)
    home = np.asarray(system.initial_state("home").q)
    q, v = home + 0.05 * rng.normal(size=(COUNT, system.nq)), rng.normal(size=(COUNT, system.nv))
    return system, State(jnp.asarray(q), jnp.asarray(v))


def test_a_batch_is_its_samples_to_the_last_bit():
    system, x = cheetah()
    u = jnp.linspace(-1.0, 1.0, system.nu)
    us = jnp.tile(u, (5, 1))
    together = jax.jit(jax.vmap(lambda x: tuple(system.linearize(x, u))))(x)
    rolled, _ = jax.jit(jax.vmap(lambda x: system.rollout(x, us)))(x)
    alone, one = jax.jit(lambda x: tuple(system.linearize(x, u))), jax.jit(lambda x: system.rollout(x, us)[0])
    for k in range(COUNT):
        here = jax.tree.map(lambda a, k=k: a[k], x)
        for whole, part in zip(jax.tree.leaves(together), jax.tree.leaves(alone(here)), strict=True):
            assert np.array_equal(whole[k], part)
        assert np.array_equal(rolled.v[k], one(here).v)


def test_many_programs_at_once_end():
    """Handlers that wait inside of the pool whose threads they ask for: more of them than the pool has threads."""
    system, x = cheetah()
    program = jax.jit(jax.vmap(lambda x: system.step(x, jnp.zeros(system.nu))[0]))
    expected = np.asarray(program(x).v)

    def often(_: int) -> bool:
        return all(np.array_equal(program(x).v, expected) for _ in range(100))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(often, range(8)))
