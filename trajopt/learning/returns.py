r"""Estimates of values from rewards: lambda-returns, from which advantages follow.

    G_t = r_t + gamma (1 - e_t) ((1 - lambda) V_t+1 + lambda G_t+1),     A_t = G_t - V_t

for steps of an episode that goes on. Where it is terminated (e_t = 1) nothing follows; where it is truncated, and at the last
step given, V_t+1 takes the place of the bracket. V_t+1 is the value of what was observed after step t, before any reset. G is the
target of TD(lambda) (Sutton and Barto, 2018, eq. 12.19), A the generalised advantage (Schulman et al., arXiv 1506.02438, eq. 16).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def lambda_returns(
    rewards: Float[Array, "T N"],
    next_values: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    discount: float,
    lambda_: float,
) -> Float[Array, "T N"]:
    """G of the module's docstring, along the first axis."""

    def body(after: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, value, over, cut = given
        follows = jnp.where(cut, value, (1.0 - lambda_) * value + lambda_ * after)
        total = reward + discount * jnp.where(over, 0.0, follows)
        return total, total

    return jax.lax.scan(body, next_values[-1], (rewards, next_values, terminated, truncated), reverse=True)[1]
