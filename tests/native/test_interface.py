"""Custom calls are stated to XLA in StableHLO's own attributes, in loops, batches and functions within functions."""

import re

import jax
import jax.numpy as jnp
import pytest

from trajopt import native
from trajopt.dynamics import State, System, linear_algebra
from trajopt.models import load_model

STATED = re.compile(
    r"stablehlo.custom_call @(?:lapack_|trajopt_)\w+\([^)]*\) \{api_version = 4 : i32, backend_config = \{"
)
ANY = re.compile(r"stablehlo.custom_call @(?:lapack_|trajopt_)")


def check(text: str) -> None:
    assert len(ANY.findall(text)) == len(STATED.findall(text)) > 0
    assert "mhlo.backend_config" not in text


def in_a_loop(A):
    return jax.lax.fori_loop(0, 3, lambda _, x: linear_algebra.solve(A, x), jnp.eye(3))


@pytest.mark.parametrize(
    "function",
    [
        jax.jit(in_a_loop),
        jax.jit(lambda A: jax.vmap(in_a_loop)(A[None])),
        jax.jit(lambda A: jax.jit(jax.vmap(linear_algebra.solve))(jnp.stack([A, A]), jnp.stack([A, A]))),
        jax.jit(jax.grad(lambda A: jnp.sum(linear_algebra.eigh(A)[0] ** 2))),
    ],
    ids=["loop", "batch of loops", "loop over a batch", "reverse mode"],
)
def test_calls_to_lapack(function):
    check(function.lower(2.0 * jnp.eye(3)).as_text())


@pytest.mark.skipif(not native.available(), reason="the compiled core is not built")
def test_calls_to_the_core():
    system = System(load_model("cart-pole"), dt=1e-2, backend="native")
    x, us = system.initial_state(), jnp.zeros((4, 1))
    check(jax.jit(lambda x: system.rollout(x, us)).lower(x).as_text())
    batch = State(jnp.tile(x.q, (3, 1)), jnp.tile(x.v, (3, 1)))
    check(jax.jit(jax.vmap(lambda x: system.linearize(x, us[0]).A)).lower(batch).as_text())
