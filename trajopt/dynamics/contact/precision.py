"""Constants that depend on the precision of the arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike


class Threshold(NamedTuple):
    """A constant with its value in double and in single precision, whose resolution is 2e-16 and 1e-7."""

    double: float
    single: float

    def at(self, dtype: DTypeLike) -> float:
        """The value for arrays of `dtype`."""
        return self.double if dtype == jnp.float64 else self.single
