"""A first-order method that is not ended by its count of iterations while its answer still misses.

Methods of first order stop by the change of an iterate or by a count. Where the impulse is not unique, the iterate keeps
changing long after the law is met, so that the count is what ends them; where a contact creeps, convergence is sublinear and
the same count comes too early. The answer itself is judged instead, once a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ROUNDS = 50  # of `max_iterations` each; every state of the law contract needs 20 or fewer

Missed = Callable[[Float[Array, " m"]], Bool[Array, ""]]
Carry = tuple[Any, ...]


def in_rounds(
    proceed: Callable[[Carry], Bool[Array, ""]],
    body: Callable[[Carry], Carry],
    start: Carry,
    count: Callable[[Carry], Int[Array, ""]],
    length: int,
    missed: Callable[[Carry], Bool[Array, ""]] | None,
) -> Carry:
    """`body` while `proceed`, for `length` iterations; with `missed`, again while the answer misses, `ROUNDS` times at most.

    count: iterations so far, kept by the carry. The impulse's judgement is computed between rounds only.
    """

    def round_of(carry, number):
        return jax.lax.while_loop(lambda c: proceed(c) & (count(c) < number * length), body, carry)

    first = round_of(start, 1)
    if missed is None:
        return first

    def again(state):
        carry, number, unsolved = state
        return unsolved & proceed(carry) & (number <= ROUNDS)

    def next_round(state):
        carry, number, _ = state
        carry = round_of(carry, number)
        return carry, number + 1, missed(carry)

    return jax.lax.while_loop(again, next_round, (first, jnp.full((), 2, jnp.int32), missed(first)))[0]
