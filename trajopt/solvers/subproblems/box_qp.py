"""Small convex quadratic programs over a box, by projected Newton.

    minimise 1/2 x^T H x + g^T x   subject to   lower <= x <= upper

An iteration holds the variables at a bound that the gradient pushes against, takes the Newton step in the others and
backtracks along its projection to Armijo's condition; once the held set is right, one step is exact.

Bertsekas 1982; Tassa, Mansard, Todorov, Control-limited differential dynamic programming, ICRA 2014, algorithm 1.

Which variables a bound holds: the active set of every method that keeps bounds by projection.

Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM J. Control 1982.
"""

from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.linear_algebra import cho_solve_vector, symmetric_cholesky


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


MAX_ITERATIONS = 50
_ARMIJO = 0.1
_SHRINK = 0.6
_TRIALS = 30
_ACCURACY = 100.0  # in units of rounding: the free gradient below it counts as zero


class BoxSolution(NamedTuple):
    """x (n,), the variables not held at a bound, and the Cholesky factor of H over these (identity elsewhere).

    The factor is not finite when H is not positive definite over the free variables.
    """

    x: Float[Array, " n"]
    free: Bool[Array, " n"]
    factor: Float[Array, "n n"]


def box_qp(
    H: Float[Array, "n n"],
    g: Float[Array, " n"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
    guess: Float[Array, " n"] | None = None,
) -> BoxSolution:
    """The minimiser; bounds may be infinite. guess (n,): where the search starts, projected into the box."""
    eps = jnp.finfo(H.dtype).eps
    x = jnp.clip(jnp.zeros_like(g) if guess is None else guess, lower, upper)

    def value(x: Array) -> Array:
        return jnp.vdot(x, 0.5 * (H @ x) + g)

    def face(x: Array) -> tuple[Array, Array, Array]:
        gradient = H @ x + g
        held = held_at_bound(x, gradient, lower, upper)
        # Rounding of the products bounds what the gradient can tell.
        noise = _ACCURACY * eps * (jnp.abs(H) @ jnp.abs(x) + jnp.abs(g))
        return gradient, ~held, jnp.all(held | (jnp.abs(gradient) <= noise))

    def proceed(carry: tuple) -> Array:
        _, done, iteration = carry
        return ~done & (iteration < MAX_ITERATIONS)

    def iterate(carry: tuple) -> tuple:
        x, _, iteration = carry
        gradient, free, _ = face(x)
        factor = _masked_factor(H, free)
        direction = -jnp.where(free, cho_solve_vector(factor, jnp.where(free, gradient, 0.0)), 0.0)

        def short(search: tuple) -> Array:
            step, trial = search
            fall = jnp.vdot(gradient, x - trial)
            return (value(trial) > value(x) - _ARMIJO * fall) & (step > _SHRINK**_TRIALS)

        def shorten(search: tuple) -> tuple:
            step = search[0] * _SHRINK
            return step, jnp.clip(x + step * direction, lower, upper)

        one = jnp.ones((), H.dtype)
        _, trial = jax.lax.while_loop(short, shorten, (one, jnp.clip(x + direction, lower, upper)))
        better = value(trial) < value(x)
        x_next = jnp.where(better, trial, x)
        return x_next, face(x_next)[2] | ~better, iteration + 1

    x, _, _ = jax.lax.while_loop(proceed, iterate, (x, face(x)[2], jnp.zeros((), jnp.int32)))
    free = face(x)[1]
    return BoxSolution(x, free, _masked_factor(H, free))


def _masked_factor(H: Array, free: Array) -> Array:
    both = free[:, None] & free[None, :]
    return symmetric_cholesky(jnp.where(both, H, jnp.eye(H.shape[0], dtype=H.dtype)))
