"""Which variables a bound holds: the active set of every method that keeps bounds by projection.

Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM J. Control 1982.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from jaxtyping import Array, Bool, Float


@overload
def held_at_bound(
    x: Float[np.ndarray, "*n"],
    gradient: Float[np.ndarray, "*n"],
    lower: Float[np.ndarray, "*#n"],
    upper: Float[np.ndarray, "*#n"],
) -> Bool[np.ndarray, "*n"]: ...


@overload
def held_at_bound(
    x: Float[Array, "*n"], gradient: Float[Array, "*n"], lower: Float[Array, "*#n"], upper: Float[Array, "*#n"]
) -> Bool[Array, "*n"]: ...


def held_at_bound(x: Any, gradient: Any, lower: Any, upper: Any) -> Any:
    """Variables (*n) at a bound, or beyond it, against which a descent direction -gradient pushes them."""
    return ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
