"""What a moving horizon keeps between updates, and what it answers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.state import State
from trajopt.estimation.covariances import solved
from trajopt.solvers.estimation.smoothing import marginals
from trajopt.solvers.subproblems.riccati import LQProblem, Policy


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prior:
    """Gaussian on (x (-) (q, v), o): mean (n,), and its information, the inverse of the covariance, (n, n)."""

    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    mean: Float[Array, " n"]
    information: Float[Array, "n n"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """The memory of the estimator, a pytree: states, constant errors, disturbances, controls, rows by channel (NaN where none
    was measured), which steps have happened, the prior on the first state and that on the second."""

    q: Float[Array, "N+1 nq"]
    v: Float[Array, "N+1 nv"]
    offset: Float[Array, " k"]
    w: Float[Array, "N nv"]
    u: Float[Array, "N nu"]
    rows: dict[str, Float[Array, "N w"]]
    happened: Float[Array, " N"]
    prior: Prior
    next_prior: Prior


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """What is known after an update.

    Attributes:
        x: the state now.
        offsets: constant errors of sensors, by channel, in the rows of their error.
        window: the states of the window, oldest first, stacked.
        chi_squared: cost of the window over half of its measurements; far above 1, noise or model are too optimistic.
    """

    x: State
    offsets: dict[str, Float[np.ndarray, " k"]]
    window: State
    chi_squared: float
    _solved: tuple = dataclasses.field(repr=False)

    @functools.cached_property
    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Of [dq, dv, constant errors] now, in tangent coordinates; computed when it is asked for."""
        return np.asarray(_last_covariance(*self._solved))


@jax.jit
def _last_covariance(lq: LQProblem, policy: Policy, hessian: Array) -> Array:
    """Covariance of the last state."""
    initial = solved(policy.P[0] + hessian, jnp.eye(len(hessian)))
    return marginals(lq, policy, jnp.zeros(lq.r.shape, bool), initial)[0][-1]
