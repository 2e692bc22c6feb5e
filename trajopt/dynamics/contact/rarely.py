"""A branch that a batch pays for only where somebody in it takes it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool


def rarely(needed: Bool[Array, ""], fn: Callable, operand):
    """fn(operand) where `needed`, else operand. Unlike `lax.cond`, a batch in which nobody needs fn does not pay for it."""

    def body(carry):
        return fn(carry[0]), jnp.zeros((), bool)

    return jax.lax.while_loop(lambda carry: carry[1], body, (operand, needed))[0]


@custom_vmap
def anywhere(needed: Bool[Array, ""]) -> Bool[Array, ""]:
    """`needed`, in a batch whether anybody in it needs it.

    As the predicate of `lax.cond` it keeps the branch a branch under `vmap`, and one that can be transposed (a batched predicate
    turns into a selection that cannot). Whoever does not need the branch has to get the same from it as without.
    """
    return needed


@anywhere.def_vmap
def _anywhere_in_a_batch(axis_size, in_batched, needed):
    return anywhere(jnp.any(needed) if in_batched[0] else needed), False
