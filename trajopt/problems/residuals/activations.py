r"""Activations: what a residual's rows become before they are squared.

| activation | cost of a row r | |
|---|---|---|
| none | r^2 / 2 | quadratic; weighted by the residual's weight |
| `SmoothAbsolute(scale)` | sqrt(r^2 + scale^2) - scale | quadratic below the scale, |r| above it |
| `Saturated(scale)` | r^2 / 2 / (1 + r^2 / scale^2) | quadratic below the scale, scale^2 / 2 far above it |
| `Barrier(width)` | s - 1 - log s, s = r / width, below the width; 0 above | keeps a margin r positive |
| `Barrier(width, upper)` | the same, and of upper - r | keeps r between 0 and upper |

They return h(r) with h(r)^2 / 2 the cost, smooth wherever the cost is, so that Gauss-Newton Hessians stay free. The barrier's
slope and curvature start from zero and 1 at s = 1; below s = `RELAXED` h is continued by its tangent, so that it is finite, and
pulls back, where the margin is already negative.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.errors import OptionError
from trajopt.names import NamedOptions

RELAXED = 0.01  # share of the width
_SERIES = 1e-2  # y = 1 - s below which h is its series: six terms leave 1e-14


class Activation(NamedOptions, abc.ABC):
    """A function h of a residual's rows."""

    @abc.abstractmethod
    def __call__(self, r: Float[Array, " m"]) -> Float[Array, " m"]:
        """h(r), whose half square is the cost."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SmoothAbsolute(Activation):
    """$|r|$ with a rounded corner: the cost $sqrt(r^2 + scale^2) - scale$.

    Options:
        scale: width of the corner, in units of the residual.
    """

    scale: Any

    def __call__(self, r: Float[Array, " m"]) -> Float[Array, " m"]:
        scale = jnp.asarray(self.scale).astype(r.dtype)
        return r * jnp.sqrt(2.0 / (jnp.sqrt(r * r + scale * scale) + scale))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Saturated(Activation):
    """A cost that levels off (Geman, McClure): $r^2 / 2 / (1 + r^2 / scale^2)$, which never exceeds $scale^2 / 2$.

    For what matters once it is nearly met, such as the pose to land in: of two motions that fall, neither is much worse.

    Options:
        scale: error at which the cost is half of its limit, in units of the residual, or of `of`; a number, or one for each row.
        of: the activation whose cost is to level off, such as a `Barrier`. Default: none, a quadratic cost.
    """

    scale: Any
    of: Activation | None = None

    def __call__(self, r: Float[Array, " m"]) -> Float[Array, " m"]:
        h = r if self.of is None else self.of(r)
        return h / jnp.sqrt(1.0 + (h / jnp.asarray(self.scale).astype(h.dtype)) ** 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Barrier(Activation):
    """A wall at r = 0, felt from r = width on: the cost $s - 1 - log s$ with $s = r / width$ below the width, 0 above it.

    Options:
        width: distance from the wall at which it begins to be felt, in units of the residual.
        upper: a second wall at r = upper, felt from r = upper - width on; a number or one for each row, at least 2 width.
            Default: none. With `reference=lower` a residual is kept between lower and lower + upper.

    Raises `OptionError` for a width that is not positive and for walls that are nearer than 2 width.
    """

    width: Any
    upper: Any = None

    def __post_init__(self) -> None:
        width, upper = self.width, self.upper
        known = (int, float, list, tuple, np.ndarray, np.number)
        if not isinstance(width, known) or not (upper is None or isinstance(upper, known)):
            return  # leaves that are traced, or placeholders of a pytree
        if not (np.asarray(width, float) > 0).all():
            raise OptionError(f"Barrier: width is {width}; it must be positive")
        if upper is not None and not (np.asarray(upper, float) >= 2 * np.asarray(width, float)).all():
            raise OptionError(f"Barrier: upper is {upper}, width {width}; both walls need upper to be at least 2 width")

    def __call__(self, r: Float[Array, " m"]) -> Float[Array, " m"]:
        width = jnp.asarray(self.width).astype(r.dtype)
        lower = _relaxed_wall(r / width)
        if self.upper is None:
            return lower
        return lower - _relaxed_wall((jnp.asarray(self.upper).astype(r.dtype) - r) / width)  # one of the two is zero


def _relaxed_wall(s: Array) -> Array:
    """sqrt(2 (s - 1 - log s)) below 1, 0 above; below `RELAXED` its tangent."""
    edge = jnp.asarray(RELAXED, s.dtype)
    inside = _wall(jnp.clip(s, edge, 1.0))
    # h'(s) = (1 - 1/s) / h(s)
    slope = (1.0 - 1.0 / edge) / _wall(edge)
    return inside + jnp.where(s < edge, slope * (s - edge), 0.0)


def _wall(s: Array) -> Array:
    """sqrt(2 (s - 1 - log s)) for 0 < s <= 1."""
    y = 1.0 - s
    small = y < _SERIES
    far = jnp.where(small, 0.5, s)
    closed = jnp.sqrt(2.0 * (far - 1.0 - jnp.log(far)))
    # 2 (s - 1 - log s) = y^2 (1 + 2 y / 3 + 2 y^2 / 4 + 2 y^3 / 5 + ...)
    near = jnp.where(small, y, 0.0)
    series = 1.0 + near * (2 / 3 + near * (2 / 4 + near * (2 / 5 + near * (2 / 6 + near * (2 / 7 + near * (2 / 8))))))
    return jnp.where(small, near * jnp.sqrt(series), closed)
