"""Constants that depend on the precision of the arithmetic, and products of matrices in the precision of their entries.

JAX multiplies matrices in single precision on recent GPUs with ten bits of mantissa (TensorFloat-32) unless it is asked for more.
Newton's method on contact problems does not converge in its usual three or four iterations then.
"""

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

DOUBLE = 'jax.config.update("jax_enable_x64", True)'  # the line that makes JAX's default precision float64
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threshold(NamedTuple):
    """A constant with its value in double and in single precision, whose resolution is 2e-16 and 1e-7."""

    double: float
    single: float

    def at(self, dtype: DTypeLike) -> float:
        """The value for arrays of `dtype`."""
        return self.double if dtype == jnp.float64 else self.single


class PrecisionWarning(UserWarning):
    """Numbers are float32 because float64 is not enabled in JAX."""


def warn_of_single_precision(dtype: DTypeLike) -> None:
    """Issue a `PrecisionWarning`, once in a process, where `dtype` is float32 and JAX has nothing better."""
    if dtype == np.float32 and not doubles_exist():
        _say_single_precision()


def doubles_exist() -> bool:
    """Whether float64 is enabled in JAX."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def precision_hint(dtype: DTypeLike) -> str:
    """What to say of an end without success in this precision; empty for float64."""
    if dtype != np.float32:
        return ""
    return f"precision may be the cause: numbers are float32, and {DOUBLE} at the start of the program makes them float64"


@functools.cache
def _say_single_precision() -> None:
    warnings.warn(
        f"numbers are float32, JAX's default: tolerances are 1e-5 in place of 1e-10, and solvers may end for want of precision; "
        f"{DOUBLE} at the start of the program makes them float64",
        PrecisionWarning,
        stacklevel=5,
    )


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, whose products of matrices, and those of its derivatives, are computed in the precision of their entries."""

    @functools.wraps(function)
    def precise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise
