r"""Robust losses: residuals whose half squared norm is a robust cost.

A loss rho replaces 1/2 sum r_i^2 by 1/2 sum c^2 rho((r_i / c)^2), with rho(z) ~ z for small z, so that residuals below the
scale c keep their weight and larger ones lose it (SciPy's `least_squares` has the same names and the same `f_scale` c):

    linear    z
    soft_l1   2 (sqrt(1 + z) - 1)
    huber     z for z <= 1, else 2 sqrt(z) - 1
    cauchy    log(1 + z)
    arctan    arctan(z)
    tukey     (1 - (1 - z)^3) / 3 for z <= 1, else 1/3          the biweight; not in SciPy

`robust(r)` is the vector of r_i sqrt(rho(z_i) / z_i): its half squared norm is the robust cost, it is smooth at zero, and
Gauss-Newton on it, whose weights lie between those of Newton's method and of iteratively reweighted least squares, converges
to the minimum of the robust cost. Every solver that takes residuals takes these.

Huber, Ronchetti, Robust Statistics, 2009, chapters 3 and 7; Triggs et al., Bundle adjustment, 2000, section 4.3.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import closest


def _huber(z: Array) -> Array:
    large = jnp.maximum(z, 1.0)
    return jnp.where(z <= 1.0, 1.0, (2.0 * jnp.sqrt(large) - 1.0) / large)


def _cauchy(z: Array) -> Array:
    large = jnp.maximum(z, 1e-5)
    return jnp.where(z < 1e-5, 1.0 - z / 2.0 + z**2 / 3.0, jnp.log1p(large) / large)


def _arctan(z: Array) -> Array:
    large = jnp.maximum(z, 1e-4)
    return jnp.where(z < 1e-4, 1.0 - z**2 / 3.0, jnp.arctan(large) / large)


def _tukey(z: Array) -> Array:
    return jnp.where(z <= 1.0, 1.0 - z + z**2 / 3.0, 1.0 / (3.0 * jnp.maximum(z, 1.0)))


# rho(z) / z of every loss.
_SHARE: dict[str, Callable[[Array], Array]] = {
    "linear": jnp.ones_like,
    "soft_l1": lambda z: 2.0 / (1.0 + jnp.sqrt(1.0 + z)),
    "huber": _huber,
    "cauchy": _cauchy,
    "arctan": _arctan,
    "tukey": _tukey,
}
LOSSES = tuple(_SHARE)


def check_loss(loss: str, f_scale: float, where: str = "") -> None:
    """Raise `UnknownNameError` or `OptionError` unless this is a loss with a positive scale."""
    if loss not in _SHARE:
        raise UnknownNameError(f"{where}there is no loss '{loss}'{closest(str(loss), LOSSES)}")
    if not (np.isfinite(f_scale) and f_scale > 0):
        raise OptionError(f"{where}f_scale is {f_scale}; it must be a positive number, in units of the residual")


def robust(r: Float[Array, "*m"], loss: str = "huber", f_scale: float = 1.0) -> Float[Array, "*m"]:
    """The residual whose half squared norm is the robust cost of r.

    f_scale: c, the size above which a residual counts as an outlier, in units of r (Tukey: above which it has no weight).
    Raises `UnknownNameError` for a loss that does not exist, `OptionError` for a scale that is not positive.
    """
    check_loss(loss, f_scale)
    if loss == "linear":
        return r
    return r * jnp.sqrt(_SHARE[loss]((r / f_scale) ** 2))


def robust_slope(r: Float[Array, " m"], loss: str, f_scale: float) -> Float[Array, " m"]:
    """d robust(r)_i / d r_i."""
    return jax.jvp(lambda r: robust(r, loss, f_scale), (r,), (jnp.ones_like(r),))[1]


def robust_curvature(r: Float[Array, " m"], loss: str, f_scale: float) -> Float[Array, " m"]:
    """Second derivative of the robust cost by r_i: 1 for small residuals, negative where the loss is concave."""

    def cost(s: Array) -> Array:
        return 0.5 * robust(s, loss, f_scale) ** 2

    return jax.vmap(jax.grad(jax.grad(cost)))(r)
