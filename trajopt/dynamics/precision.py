"""Constants that depend on the precision of the arithmetic, and products of matrices in the precision of their entries.

JAX multiplies matrices in single precision on recent GPUs with ten bits of mantissa (TensorFloat-32) unless it is asked for more.
Newton's method on contact problems does not converge in its usual three or four iterations then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threshold(NamedTuple):
    """A constant with its value in double and in single precision, whose resolution is 2e-16 and 1e-7."""

    double: float
    single: float

    def at(self, dtype: DTypeLike) -> float:
        """The value for arrays of `dtype`."""
        return self.double if dtype == jnp.float64 else self.single


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, whose products of matrices, and those of its derivatives, are computed in the precision of their entries."""

    @functools.wraps(function)
    def precise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise
