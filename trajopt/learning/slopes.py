r"""Derivatives of values by the state, which returns that are differentiated through the simulation give beside their size.

    dG_t/dx_t,   dV(o(x))/dx = (do/dx)^T dV/do

G_t is the return from step t on, x moves by tangent coordinates of q and by changes of v, o are normalised observations. A critic
that fits both (Czarnecki et al., *Sobolev training*, arXiv 1706.04859; Fairbank and Alonso, *Value-gradient learning*, IJCNN
2012) learns 2 nv + 1 numbers of a sample for one, among them those that the actor's gradient asks it for at a horizon's end.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.learning.environment import Environment, EnvironmentState
from trajopt.learning.networks import Network

LARGEST = 3.0  # slopes of values are cut to this many times the median of their norms: a few falls have slopes of any size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StateSlopes:
    """A state by its `coordinates`, and what is observed there by its slope do/dx, before the normaliser."""

    x: Float[Array, "*b nx"]
    jacobian: Float[Array, "*b no nx"]

    @classmethod
    def of(cls, environment: Environment, state: EnvironmentState) -> StateSlopes:
        """Of an environment's state."""
        return cls(coordinates(environment, state), observation_slope(environment, state))


def moved(environment: Environment, state: EnvironmentState, shift: Float[Array, " nx"]) -> EnvironmentState:
    """The state after a shift: tangent coordinates of q, then a change of v; nx = 2 nv."""
    nv = environment.system.nv
    x = dataclasses.replace(
        state.x, q=integrate(environment.system.model, state.x.q, shift[:nv]), v=state.x.v + shift[nv:]
    )
    return dataclasses.replace(state, x=x)


def observation_slope(environment: Environment, state: EnvironmentState) -> Float[Array, "no nx"]:
    """do/dx, before the normaliser."""
    still = jnp.zeros(2 * environment.system.nv, environment.dtype)
    return jax.jacfwd(lambda shift: environment.observation(moved(environment, state, shift)))(still)


def coordinates(environment: Environment, state: EnvironmentState) -> Float[Array, " nx"]:
    """Tangent coordinates of q seen from the model's default configuration, then v."""
    model = environment.system.model
    start = jnp.asarray(model.q_default, environment.dtype)
    return jnp.concatenate([difference(model, start, state.x.q), state.x.v])


def scaled(
    slopes: Float[Array, "B nx"], jacobian: Float[Array, "B no nx"], states: Float[Array, "B nx"]
) -> tuple[Float[Array, "B nx"], Float[Array, "B no nx"]]:
    """Slopes of values, and of observations, by shifts in units of the states' deviations, with the former cut at `LARGEST`.

    states: `coordinates`. So a slope is what a value changes by over the states that are met. Of what is not observed no slope is
    asked.
    """
    unit = jnp.where((jacobian != 0).any((0, 1)), states.std(0), 0.0)
    slopes = slopes * unit
    size = jnp.linalg.norm(slopes, axis=-1)
    size = jnp.where(jnp.isfinite(size), size, jnp.inf)
    cut = jnp.minimum(1.0, LARGEST * jnp.median(size) / jnp.maximum(size, jnp.finfo(size.dtype).tiny))
    return jnp.where(cut[:, None] > 0, slopes * cut[:, None], 0.0), jacobian * unit


def slope_error(
    critic: Network, observation: Float[Array, "B no"], slopes: Float[Array, "B nx"], jacobian: Float[Array, "B no nx"]
) -> Float[Array, ""]:
    """Mean square of what the critic's slopes by the state lack, both as `scaled` gives them."""
    by_observation = jax.vmap(jax.grad(lambda o: critic(o)[0]))(observation)
    return ((jnp.einsum("bo,box->bx", by_observation, jacobian) - slopes) ** 2).sum(-1).mean()
