"""Networks of policies and values: perceptrons in equinox, whose leaves are arrays alone, and the observations' running
moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

Acting = Callable[[Float[Array, "*b no"]], Float[Array, "*b na"]]  # observations -> actions
CLIP = 10.0  # standard deviations beyond which an observation tells no more


class Network(eqx.Module):
    """A perceptron with ELUs (as in Smoothed, Table 6), of one vector or of any batch of them."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, sizes: Sequence[int], dtype: Any, key: UInt32[Array, "2"], last: float = 1.0) -> None:
        """sizes: of the input, of each layer's output; last: factor of the weights of the last layer."""
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [eqx.nn.Linear(m, n, dtype=dtype, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        scaled = (layers[-1].weight * last, jnp.zeros(sizes[-1], dtype))
        layers[-1] = eqx.tree_at(lambda layer: (layer.weight, layer.bias), layers[-1], scaled)
        self.layers = tuple(layers)

    def __call__(self, x: Float[Array, "*b m"]) -> Float[Array, "*b n"]:
        """The last layer's output."""
        for layer in self.layers[:-1]:
            x = jax.nn.elu(_linear(layer, x))
        return _linear(self.layers[-1], x)


def _linear(layer: eqx.nn.Linear, x: Any) -> Any:
    return x @ layer.weight.T + layer.bias


class Actor(eqx.Module):
    """A Gaussian whose mean is a network's output and whose deviation is the same everywhere, before the tanh that makes it an
    action."""

    network: Network
    log_deviation: Float[Array, " na"]

    def __init__(
        self, observations: int, actions: int, hidden: Sequence[int], deviation: float, dtype: Any, key: UInt32[Array, "2"]
    ) -> None:
        self.network = Network((observations, *hidden, actions), dtype, key, last=0.01)
        self.log_deviation = jnp.full(actions, jnp.log(deviation), dtype)

    def log_density(self, observation: Float[Array, "*b no"], z: Float[Array, "*b na"]) -> Float[Array, "*b"]:
        """log density of z."""
        error = (z - self.network(observation)) * jnp.exp(-self.log_deviation)
        return -(0.5 * error**2 + self.log_deviation + 0.5 * jnp.log(2 * jnp.pi)).sum(-1)

    def entropy(self) -> Float[Array, ""]:
        """Of the Gaussian."""
        return (self.log_deviation + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum()


class Normaliser(eqx.Module):
    """Mean and variance of all observations so far (Chan, Golub, LeVeque, 1983), by which they are normalised."""

    mean: Float[Array, " no"]
    variance: Float[Array, " no"]
    count: Float[Array, ""]

    @classmethod
    def of(cls, size: int, dtype: Any) -> Normaliser:
        """Of nothing seen yet."""
        return cls(jnp.zeros(size, dtype), jnp.ones(size, dtype), jnp.asarray(1e-4, dtype))

    def __call__(self, observation: Float[Array, "*b no"]) -> Float[Array, "*b no"]:
        """(observation - mean) / deviation, cut at `CLIP`."""
        return jnp.clip((observation - self.mean) / jnp.sqrt(self.variance + 1e-8), -CLIP, CLIP)

    def updated(self, observations: Float[Array, "*b no"], memory: float = float("inf")) -> Normaliser:
        """With a batch more; what came before it counts as at most `memory` observations, so that what is old is forgotten."""
        batch = observations.reshape(-1, observations.shape[-1])
        count, more = jnp.minimum(self.count, memory), jnp.asarray(batch.shape[0], batch.dtype)
        mean, total = batch.mean(0), count + more
        offset = mean - self.mean
        moment = self.variance * count + batch.var(0) * more + offset**2 * count * more / total
        return Normaliser(self.mean + offset * more / total, moment / total, total)


class Policy(eqx.Module):
    """What was learnt: observation -> action in (-1, 1), without exploration.

    Attributes:
        actor: the network.
        normaliser: mean and deviation by which observations are normalised.
    """

    actor: Actor
    normaliser: Normaliser

    def __call__(self, observation: Float[Array, "*b no"]) -> Float[Array, "*b na"]:
        """tanh of the Gaussian's mean."""
        return jnp.tanh(self.actor.network(self.normaliser(observation)))
