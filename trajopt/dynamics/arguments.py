"""Checks of what users pass: real, finite arrays of the model's precision, and numbers. Errors name the argument."""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from trajopt.errors import NonFiniteError, OptionError, ShapeError

_NOT_REAL = {"c": "complex numbers", "U": "text", "S": "text", "O": "objects", "M": "dates", "m": "durations"}


def require_real(name: str, value: Any) -> None:
    """Raise `ShapeError` for entries that are not real numbers: complex (nothing is cut off in silence), text, objects."""
    if isinstance(value, float | int):
        return
    try:
        kind = np.dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype).kind
    except (TypeError, ValueError):  # key types of JAX, ragged lists
        kind = "O"
    if kind in _NOT_REAL:
        raise ShapeError(f"{name} holds {_NOT_REAL[kind]}, expected an array of real numbers")


def require_finite(name: str, value: Any) -> None:
    """Raise `NonFiniteError` when a concrete array holds NaN or infinity, `ShapeError` where it is not real.

    Values of traced arrays pass, their types do not.
    """
    require_real(name, value)
    if isinstance(value, jax.core.Tracer):
        return
    known = np.asarray(value)
    if math.isfinite(known.sum()):
        return
    bad = np.argwhere(~np.isfinite(known))
    if bad.size:
        index = tuple(int(k) for k in bad[0])
        raise NonFiniteError(f"{name}[{', '.join(map(str, index))}] is {known[index]}; every entry must be finite")


def is_traced(*arrays: Any) -> bool:
    """Whether one of the arrays is known to JAX alone, inside of a function that it traces."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def holds_traced(*trees: Any) -> bool:
    """Whether an array in one of the `trees` is so."""
    return is_traced(*jax.tree.leaves(trees))


def in_precision(name: str, value: Any, dtype: Any) -> Shaped[Array, "..."]:
    """`value` as an array of the model's dtype. Arrays of another float dtype are refused, not rounded in silence."""
    require_real(name, value)
    if not isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if value.dtype != dtype:
        raise ShapeError(
            f"{name} is {value.dtype} but the system's model is {dtype}; convert one of them (what is made before "
            "jax_enable_x64 is set is float32)"
        )
    return value


def checked_array(name: str, value: Any, shape: tuple[int, ...], dtype: Any, where: str = "") -> Shaped[Array, "..."]:
    """`value` as an array of this shape in the model's dtype, of finite numbers; errors go on with `where`."""
    require_real(name, value)
    if np.shape(value) != shape:
        raise ShapeError(f"{name} has shape {np.shape(value)}, expected {shape}{where}")
    require_finite(name, value)
    return in_precision(name, value, dtype)


def positive_number(name: str, value: Any, meaning: str) -> Any:
    """A number as a float array; arrays, and what JAX puts in their place, as they are. `meaning`: what is expected.

    Raises `OptionError` for a number that is not positive, and for what is no real number at all.
    """
    if isinstance(value, numbers.Real):
        if not math.isfinite(value) or value <= 0:
            raise OptionError(f"{name} is {value}, expected {meaning}")
        return jnp.asarray(float(value))
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if value is None or isinstance(value, numbers.Complex | str | bytes | list | tuple | dict | set) or kind in _NOT_REAL:
        raise OptionError(f"{name} is {value!r}, expected {meaning}")
    return value
