"""A predicate that keeps a branch of a program a branch under `vmap`."""

from __future__ import annotations

import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool


@custom_vmap
def any_in_batch(needed: Bool[Array, ""]) -> Bool[Array, ""]:
    """`needed`, in a batch whether anybody in it needs it.

    As the predicate of `lax.cond` it keeps the branch a branch under `vmap`, and one that can be transposed (a batched predicate
    turns into a selection that cannot). Whoever does not need the branch has to get the same from it as without.
    """
    return needed


@any_in_batch.def_vmap
def _any_in_batch_of_batches(axis_size, in_batched, needed):
    return any_in_batch(jnp.any(needed) if in_batched[0] else needed), False
