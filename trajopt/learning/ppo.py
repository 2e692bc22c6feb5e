r"""Proximal policy optimisation (Schulman et al., arXiv 1707.06347), for actions of a Gaussian under a tanh.

    L(theta) = mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),      rho = pi(z | s) / pi_old(z | s)

A are generalised advantages, normalised in each minibatch; the tanh is a part of the environment, so that densities are those
of z. Details after Huang et al., "The 37 implementation details of PPO" (ICLR blog track, 2022), and Andrychowicz et al. (arXiv
2006.05990): minibatch epochs, values clipped like the ratio, entropy bonus, gradients clipped by their norm, Adam with epsilon
1e-5, learning rates that fall linearly, normalised observations, small last layer of the actor, truncated episodes that go on
by their value.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from trajopt.errors import OptionError
from trajopt.learning.algorithm import Algorithm, Learner, Update, stepped
from trajopt.learning.environment import Environment
from trajopt.learning.networks import Actor
from trajopt.learning.returns import lambda_returns
from trajopt.learning.rollouts import explore

ADAPTED, RATES = 1.5, (1e-5, 1e-2)  # factor by which a learning rate is adapted, and its bounds, as in the source's program


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


def divergence(actor: Actor, batch: Batch) -> Float[Array, ""]:
    """Of the policy that the samples were drawn from, estimated by them: mean rho - 1 - log rho."""
    log_ratio = actor.log_density(batch.observation, batch.z) - batch.log_density
    return (jnp.exp(log_ratio) - 1 - log_ratio).mean()


def kept_factor() -> optax.GradientTransformation:
    """Changes nothing; its state is the factor of the learning rates."""
    return optax.GradientTransformation(
        lambda network: jnp.ones((), jax.tree.leaves(network)[0].dtype), lambda change, factor, network=None: (change, factor)
    )


@dataclasses.dataclass(frozen=True)
class PPO(Algorithm):
    """Proximal policy optimisation (Schulman et al., arXiv 1707.06347), for actions of a Gaussian under a tanh.

    Options:
        epochs: how often an update goes through its samples.
        minibatches: number of parts into which an epoch divides the samples.
        clip: bound of the change of the ratio of probabilities, and of values.
        entropy: weight of the Gaussian's entropy in the loss.
        largest_norm: gradients are cut to this norm.
        divergence: Kullback-Leibler divergence of a policy from that of the update's start that learning rates are adapted
            to, by 1.5 in each minibatch in which it is not within a factor of 2 (Rudin et al., CoRL 2022), in place of the
            fall to `final_rate`. None: they are not.
    """

    epochs: int = 10
    minibatches: int = 8
    clip: float = 0.2
    entropy: float = 1e-3
    largest_norm: float = 0.5
    divergence: float | None = None

    name: ClassVar[str] = "PPO"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence is not None and not self.divergence > 0:
            raise OptionError(f"PPO: divergence is {self.divergence}, expected a positive number, or None")

    def optimisers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        each = optax.chain(optax.clip_by_global_norm(self.largest_norm), optax.scale_by_adam(eps=1e-5))
        return (each if self.divergence is None else optax.chain(each, kept_factor())), each

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
        metrics = {
            "reward": seen.reward.mean(),
            "actor_loss": losses[0].mean(),
            "critic_loss": losses[1].mean(),
            "deviation": jnp.exp(actor.log_deviation).mean(),
            "divergence": divergence(actor, batch),
        }
        return after, Update(metrics, seen.fault, seen.steps)

    def _adapted(self, factor: Any, found: Any) -> Any:
        """The factor of the learning rates after a minibatch in which the divergence was `found`."""
        assert self.divergence is not None
        slower, faster = found > 2 * self.divergence, found < self.divergence / 2
        changed = jnp.where(slower, factor / ADAPTED, jnp.where(faster, factor * ADAPTED, factor))
        return jnp.clip(changed, *(rate / self.actor_rate for rate in RATES))

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
        actor_rate, critic_rate = self.rates(progress)

        def loss(actor: Actor, part: Batch) -> Any:
            return policy_loss(actor, part, self.clip) - self.entropy * actor.entropy()

        def minibatch(carry: Any, chosen: Any) -> tuple[Any, tuple[Any, Any]]:
            actor, critic, actor_state, critic_state = carry
            part = jax.tree.map(lambda a: a[chosen], batch)
            one, down = jax.value_and_grad(loss)(actor, part)
            two, slope = jax.value_and_grad(value_loss)(critic, part, self.clip)
            rates = (actor_rate, critic_rate)
            if self.divergence is not None:
                factor = self._adapted(actor_state[-1], divergence(actor, part))
                actor_state, rates = (*actor_state[:-1], factor), (self.actor_rate * factor, self.critic_rate * factor)
            actor, actor_state = stepped(of_actor, actor_state, down, actor, rates[0])
            critic, critic_state = stepped(of_critic, critic_state, slope, critic, rates[1])
            return (actor, critic, actor_state, critic_state), (one, two)

        start = (learner.actor, learner.critic, learner.actor_optimiser, learner.critic_optimiser)
        return jax.lax.scan(minibatch, start, self.orders(key, self.epochs, self.minibatches))
