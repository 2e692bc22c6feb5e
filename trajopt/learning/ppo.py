r"""Proximal policy optimisation (Schulman et al., arXiv 1707.06347), for actions of a Gaussian under a tanh.

    L(theta) = mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),      rho = pi(z | s) / pi_old(z | s)

A are generalised advantages, normalised in each minibatch; the tanh is a part of the environment, so that densities are those
of z. Details after Huang et al., "The 37 implementation details of PPO" (ICLR blog track, 2022), and Andrychowicz et al. (arXiv
2006.05990): minibatch epochs, values clipped like the ratio, entropy bonus, gradients clipped by their norm, Adam with epsilon
1e-5, learning rates that fall linearly, normalised observations, small last layer of the actor, truncated episodes that go on
by their value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from trajopt.learning.algorithm import Algorithm, Learner, Update, stepped
from trajopt.learning.environment import Environment
from trajopt.learning.networks import Actor
from trajopt.learning.returns import lambda_returns
from trajopt.learning.rollouts import explore


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples to learn from: normalised observations, what was drawn there with its density then, advantage, value then and
    target."""

    observation: Float[Array, "B no"]
    z: Float[Array, "B na"]
    log_density: Float[Array, " B"]
    advantage: Float[Array, " B"]
    value: Float[Array, " B"]
    target: Float[Array, " B"]


def policy_loss(actor: Actor, batch: Batch, clip: float) -> Float[Array, ""]:
    """-L of the module's docstring, with the advantages normalised."""
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    ratio = jnp.exp(actor.log_density(batch.observation, batch.z) - batch.log_density)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()


def value_loss(critic: Callable[[Float[Array, "B no"]], Float[Array, "B 1"]], batch: Batch, clip: float) -> Float[Array, ""]:
    """Half the mean square error of the values, the larger of those with and without the value kept near the one then.

    `clip` is in standard deviations of the targets.
    """
    value = critic(batch.observation)[:, 0]
    width = clip * (batch.target.std() + 1e-8)
    near = batch.value + jnp.clip(value - batch.value, -width, width)
    return 0.5 * jnp.maximum((value - batch.target) ** 2, (near - batch.target) ** 2).mean()


@dataclasses.dataclass(frozen=True)
class PPO(Algorithm):
    """Proximal policy optimisation (Schulman et al., arXiv 1707.06347), for actions of a Gaussian under a tanh.

    Options:
        epochs: how often an update goes through its samples.
        minibatches: number of parts into which an epoch divides the samples.
        clip: bound of the change of the ratio of probabilities, and of values.
        entropy: weight of the Gaussian's entropy in the loss.
        largest_norm: gradients are cut to this norm.
    """

    epochs: int = 10
    minibatches: int = 8
    clip: float = 0.2
    entropy: float = 1e-3
    largest_norm: float = 0.5

    name: ClassVar[str] = "PPO"

    def optimisers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        each = optax.chain(optax.clip_by_global_norm(self.largest_norm), optax.scale_by_adam(eps=1e-5))
        return each, each

    def update(self, environment: Environment, learner: Learner, progress: Float[Array, ""]) -> tuple[Learner, Update]:
        key, noise, order = jax.random.split(learner.key, 3)
        states, observations, seen = explore(
            environment, learner.actor, learner.normaliser, learner.states, learner.observations, noise, self.length
        )
        batch = self._batch(learner, seen)
        networks, losses = self._epochs(learner, batch, order, progress)
        actor, critic, of_actor, of_critic = networks
        after = Learner(
            actor, critic, learner.target, of_actor, of_critic, learner.normaliser.updated(seen.observation), states,
            observations, key,
        )  # fmt: skip
        ratio = jnp.exp(actor.log_density(batch.observation, batch.z) - batch.log_density)
        metrics = {
            "reward": seen.reward.mean(),
            "actor_loss": losses[0].mean(),
            "critic_loss": losses[1].mean(),
            "deviation": jnp.exp(actor.log_deviation).mean(),
            "divergence": (ratio - 1 - jnp.log(ratio)).mean(),
        }
        return after, Update(metrics, seen.fault, seen.steps)

    def _batch(self, learner: Learner, seen: Any) -> Batch:
        observation = learner.normaliser(seen.observation)
        values = learner.critic(observation)[..., 0]
        following = learner.critic(learner.normaliser(seen.next_observation))[..., 0]
        targets = lambda_returns(seen.reward, following, seen.terminated, seen.truncated, self.discount, self.lambda_)
        old = learner.actor.log_density(observation, seen.z)
        flat = (observation, seen.z, old, targets - values, values, targets)
        return Batch(*(a.reshape(-1, *a.shape[2:]) for a in flat))

    def _epochs(self, learner: Learner, batch: Batch, key: Any, progress: Any) -> tuple[Any, tuple[Any, Any]]:
        of_actor, of_critic = self.optimisers()

        def loss(actor: Actor, part: Batch) -> Any:
            return policy_loss(actor, part, self.clip) - self.entropy * actor.entropy()

        def minibatch(carry: Any, chosen: Any) -> tuple[Any, tuple[Any, Any]]:
            actor, critic, actor_state, critic_state = carry
            part = jax.tree.map(lambda a: a[chosen], batch)
            one, down = jax.value_and_grad(loss)(actor, part)
            two, slope = jax.value_and_grad(value_loss)(critic, part, self.clip)
            actor, actor_state = stepped(of_actor, actor_state, down, actor, self.rate(self.actor_rate, progress))
            critic, critic_state = stepped(of_critic, critic_state, slope, critic, self.rate(self.critic_rate, progress))
            return (actor, critic, actor_state, critic_state), (one, two)

        start = (learner.actor, learner.critic, learner.actor_optimiser, learner.critic_optimiser)
        return jax.lax.scan(minibatch, start, self.orders(key, self.epochs, self.minibatches))
