"""A branch that a batch pays for only where somebody in it takes it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def rarely(needed: Bool[Array, ""], fn: Callable, operand):
    """fn(operand) where `needed`, else operand. Unlike `lax.cond`, a batch in which nobody needs fn does not pay for it."""

    def body(carry):
        return fn(carry[0]), jnp.zeros((), bool)

    return jax.lax.while_loop(lambda carry: carry[1], body, (operand, needed))[0]
