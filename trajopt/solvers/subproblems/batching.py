"""How the steps, or the shooting intervals, of a motion are worked on together, and the samples of a batch.

One iteration, repeated inside a compiled program until it has converged: the loop of methods that run under `jit` and `vmap`.

Solvers that the outer loop drives (`loop.base`) call the same iterations one by one, and report each.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from trajopt.problems.expansions import twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem


def each(problem: OptimalControlProblem, fn: Callable, *arguments: Any) -> Any:
    """fn of each row of the arguments, stacked: in one batch, or on a CPU, with contact in JAX, one row after the other.

    The iterations and fallbacks of a contact solve differ from row to row. A batch in JAX pays for those of its slowest
    row in all of them, and for branches that only some rows take; a loop pays for each row's own. On a GPU the loop
    would cost more. In the compiled core a batch is such a loop.
    """
    native = problem.system is not None and problem.system.resolved_backend == "native"
    if native or twice_differentiable(problem) or jax.default_backend() != "cpu":
        return jax.vmap(fn)(*arguments)
    return jax.lax.map(lambda row: fn(*row), arguments)


def each_sample(fn: Callable, *arguments: Any) -> Any:
    """fn of each sample of the arguments, stacked: on a CPU one after the other, elsewhere in lockstep.

    Samples differ in their iterations and branches. In lockstep all of them wait for the slowest and pay for every branch that
    one of them takes; one after the other each pays for its own, and none for the launch of a program.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(fn)(*arguments)
    return jax.lax.map(lambda sample: fn(*sample), arguments)


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
