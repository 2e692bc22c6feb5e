"""Branches that stay branches under `vmap`: a batch pays for them only where somebody in it takes them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.backend import backends
from jaxtyping import Array, Bool, Shaped

from trajopt.dynamics.precision import in_full_precision

CHUNKS, SMALLEST_CHUNK = 32, 64  # parts of a batch in lockstep; members of the smallest, below which a device is idle


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


def cond_in_batch(needed: Bool[Array, ""], fn: Callable, operand: Any):
    """fn(operand) where `needed`, else operand. Unlike `lax.cond`, a batch in which nobody needs fn does not pay for it."""

    def body(carry):
        return fn(carry[0]), jnp.zeros((), bool)

    return jax.lax.while_loop(lambda carry: carry[1], body, (operand, needed))[0]


def cond_one_at_a_time(
    needed: Bool[Array, ""],
    fn: Callable,
    value: Any,
    *given: Any,
    quick: Callable | None = None,
    part: Callable | None = None,
    place: Callable | None = None,
):
    """fn(value, *given), of the type of `value`, where `needed`, else `value`.

    In a batch on a CPU fn runs once for each who needs it, one after another, so that nobody waits for the slowest: long loops of
    very different lengths belong here. Elsewhere a batch runs `in_chunks`, where two functions (value, *given) -> (value, still
    needed) spare it work: quick comes before fn, for everybody, since what a device in lockstep does best is the same short work
    for all; and part, again and again where it is still needed, does what fn does. place: value -> integer, which part is next.
    """
    # `jax.vmap` traces them when it is applied, which may be after the caller has returned; `jit` keeps what was traced before.
    fn = jax.jit(in_full_precision(fn))
    quick = None if quick is None else in_full_precision(quick)
    whole = lambda *operands: (fn(*operands), jnp.zeros((), bool))  # noqa: E731
    part = whole if part is None else in_full_precision(part)

    @custom_vmap
    def single(needed, value, given):
        return cond_in_batch(needed, lambda x: fn(x, *given), value)

    @custom_vmap
    def batch(needed, value, given):
        if not accelerated():
            return in_turn(needed, value, given)
        lockstep = lambda *operands: in_chunks(part, *operands, quick=quick, place=place)  # noqa: E731
        return jax.lax.platform_dependent(needed, value, given, cpu=in_turn, default=lockstep)

    def in_turn(needed, value, given):
        def body(carry):
            needed, value = carry
            k = jnp.argmax(needed)
            mine, with_it = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, 0, False), (value, given))
            value = jax.tree.map(
                lambda all_of, one: jax.lax.dynamic_update_index_in_dim(all_of, one, k, 0), value, fn(mine, *with_it)
            )
            return needed.at[k].set(False), value

        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), body, (needed, value))[1]

    @single.def_vmap
    def _batch_of_single(axis_size, in_batched, *operands):
        out = batch(*_all_batched(axis_size, in_batched, operands))
        return out, jax.tree.map(lambda _: True, out)

    @batch.def_vmap
    def _batch_of_batches(axis_size, in_batched, *operands):
        operands = _all_batched(axis_size, in_batched, operands)
        inner = operands[0].shape[1]
        flat = jax.tree.map(lambda x: x.reshape((axis_size * inner, *x.shape[2:])), operands)
        out = jax.tree.map(lambda x: x.reshape((axis_size, inner, *x.shape[1:])), batch(*flat))
        return out, jax.tree.map(lambda _: True, out)

    return single(needed, value, given)


def accelerated() -> bool:
    """Whether a program may be for another device than a CPU. Where none can be, what is for others is not traced either."""
    return set(backends()) != {"cpu"}


def in_chunks(
    part: Callable,
    needed: Bool[Array, " b"],
    value: Any,
    given: Any,
    *,
    quick: Callable | None = None,
    place: Callable | None = None,
) -> Any:
    """The values of a batch in lockstep after `part`, as often as it is needed, for those who need it, a `CHUNKS`-th of the batch
    at a time.

    Only those at the same place are in one chunk, the first place before the others: what one place alone needs, and may take
    long, is done once for all who come there, and nobody waits for it elsewhere. quick, part, place: as in `cond_one_at_a_time`.
    """
    batch = needed.shape[0]
    if quick is not None:
        begun, unfinished = jax.vmap(quick)(value, *given)
        value = jax.tree.map(lambda new, old: jnp.where(along(needed, new), new, old), begun, value)
        needed = needed & unfinished
    size = min(batch, max(SMALLEST_CHUNK, -(-batch // CHUNKS)))
    nowhere = jnp.iinfo(jnp.int32).max

    def body(carry):
        needed, value = carry
        places = jnp.zeros(batch, jnp.int32) if place is None else jax.vmap(place)(value)
        places = jnp.where(needed, places, nowhere)
        members = jnp.argsort(places)[:size]
        # Where fewer are there, the first of them again: it takes no longer than itself.
        members = jnp.where(places[members] == places[members[0]], members, members[0])
        mine, with_it = jax.tree.map(lambda x: x[members], (value, given))
        done, unfinished = jax.vmap(part)(mine, *with_it)
        value = jax.tree.map(lambda all_of, some: all_of.at[members].set(some), value, done)
        return needed.at[members].set(unfinished), value

    return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), body, (needed, value))[1]


def along(needed: Bool[Array, " b"], x: Shaped[Array, "b ..."]) -> Bool[Array, "b ..."]:
    """What says of each row whether it is needed, in the shape that x has."""
    return needed.reshape(needed.shape + (1,) * (x.ndim - 1))


def _all_batched(axis_size: int, in_batched, operands):
    """`operands` with a leading axis of `axis_size` on each leaf."""
    spread = lambda x, batched: x if batched else jnp.broadcast_to(x, (axis_size, *jnp.shape(x)))  # noqa: E731
    return jax.tree.map(spread, tuple(operands), tuple(in_batched))
