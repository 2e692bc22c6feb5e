"""How the steps, or the shooting intervals, of a motion are worked on together, and the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

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
