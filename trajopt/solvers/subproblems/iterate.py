"""One iteration, repeated inside a compiled program until it has converged: the loop of methods that run under `jit` and `vmap`.

Solvers that the outer loop drives (`loop.base`) call the same iterations one by one, and report each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Carry = TypeVar("Carry")


def iterate(
    step: Callable[[Carry, Int[Array, ""]], tuple[Carry, Bool[Array, ""]]], first: Carry, limit: int
) -> tuple[Carry, Int[Array, ""]]:
    """(what the last iteration returned, how many there were), at most `limit`.

    step: a pure function (what the last iteration returned, its number from 0) -> (what this one returns, whether it was the
    last one); what is returned is a pytree of the structure, shapes and types of `first`. Not reverse differentiable.
    """

    def unfinished(loop: tuple[Carry, Array, Array]) -> Array:
        _, count, done = loop
        return (count < limit) & ~done

    def body(loop: tuple[Carry, Array, Array]) -> tuple[Carry, Array, Array]:
        carry, count, _ = loop
        carry, done = step(carry, count)
        return carry, count + 1, done

    start = (first, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    carry, count, _ = jax.lax.while_loop(unfinished, body, start)
    return carry, count
