r"""Short-horizon actor-critic (Xu et al., arXiv 2204.07137), as in Smoothed, section 4: gradients through the simulation.

    L(theta) = -1/(N h) sum_i [ sum_t gamma^(t - t_i) r_t + gamma^(h - t_i) V'(s_h) ]

over h actions in N environments, t_i being where the episode began (or the horizon). An episode that is truncated within the
horizon ends with its value, one that is terminated with nothing. dL/dtheta passes through rewards and steps in the gradient mode
of the system: `implicit`, `complementarity-aware`, `smoothed`. V', the target, follows the critic, which learns lambda-returns;
states at the beginning of the horizon carry no derivative.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, UInt32

from trajopt.dynamics.contact.laws.smoothed import check_kappa
from trajopt.errors import OptionError
from trajopt.learning.algorithm import Algorithm, Learner, Update, norm, stepped
from trajopt.learning.environment import Environment, EnvironmentState
from trajopt.learning.networks import Actor, Network
from trajopt.learning.returns import lambda_returns
from trajopt.learning.rollouts import Experience, explore
from trajopt.learning.slopes import scaled, slope_error


def horizon_weights(done: Bool[Array, "T N"], discount: float) -> Float[Array, "T N"]:
    """gamma^(t - t_i): 1 at the first step of the horizon and of each episode."""

    def body(weight: Array, over: Array) -> tuple[Array, Array]:
        return jnp.where(over, 1.0, discount * weight), weight

    return jax.lax.scan(body, jnp.ones(done.shape[1]), done)[1]


def horizon_loss(seen: Experience, next_values: Float[Array, "T N"], discount: float) -> Float[Array, ""]:
    """L of the module's docstring; next_values: V' of `Experience.next_observation`."""
    done = seen.terminated | seen.truncated
    weights = horizon_weights(done, discount)
    ends = done.at[-1].set(True) & ~seen.terminated
    value = jnp.where(ends, discount * weights * next_values, 0.0)
    return -(weights * seen.reward + value).mean()


@dataclasses.dataclass(frozen=True)
class SHAC(Algorithm):
    """Short-horizon actor-critic (Xu et al., arXiv 2204.07137): gradients pass through the simulation of a short horizon.

    The rewards of the horizon and the value of a target critic at its end are differentiated by the policy.

    Options:
        critic_epochs: how often an update of the critic goes through its samples.
        minibatches: number of parts into which an epoch divides the samples.
        target_rate: share of the critic that the target takes over with each update (0.8: the source keeps 0.2 of the old
            one).
        largest_norm: the actor's gradients are cut to this norm.
        critic_norm: the critic's gradients are cut to this norm.
        kappa (1/m): sharpness of `smoothed` gradients at the start and at the end; in between it changes in equal ratios.
            None: the system's own all the time.
        slopes: weight, in the critic's loss, of the derivatives of the horizon's returns by the states along it. 0: only the
            returns themselves are learnt from.
        restarts: whether, between two horizons, an environment begins anew with probability 1 - discount^length, in the middle
            of an episode: then states are met as often as the discounted return weighs them.
        memory: number of observations that what was observed before an update counts as at most, in what observations are
            normalised by. Infinite: nothing is forgotten.
        warm_up: share of the training over which the actor's learning rate rises from 0, while the critic learns what a random
            policy is worth.
    """

    actor_rate: float = 2e-3
    critic_rate: float = 2e-3
    critic_epochs: int = 16
    minibatches: int = 4
    target_rate: float = 0.8
    largest_norm: float = 1.0
    critic_norm: float = 10.0
    kappa: tuple[float, float] | None = None
    slopes: float = 0.0
    restarts: bool = False
    memory: float = float("inf")
    warm_up: float = 0.0

    name: ClassVar[str] = "SHAC"

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.kappa or ():
            check_kappa(value)
        if not self.slopes >= 0:
            raise OptionError(f"SHAC: slopes is {self.slopes}, expected a weight of at least 0")
        if not self.memory > 0:
            raise OptionError(f"SHAC: memory is {self.memory}, expected a positive number of observations")
        if not 0 <= self.warm_up < 1:
            raise OptionError(f"SHAC: warm_up is {self.warm_up}, expected a share of the training, from 0 to below 1")

    def check(self, environment: Environment) -> None:
        if self.kappa is not None and environment.system.mode.default_kappa is None:
            raise OptionError(
                f"kappa is {self.kappa}, but gradient '{environment.system.mode.name}' of environment '{environment.name}' "
                "smooths nothing: use gradient 'smoothed', or leave kappa out"
            )

    def optimisers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        def adam(norm: float) -> optax.GradientTransformation:  # the source's betas
            return optax.chain(optax.clip_by_global_norm(norm), optax.scale_by_adam(b1=0.7, b2=0.95))

        return adam(self.largest_norm), adam(self.critic_norm)

    def update(self, environment: Environment, learner: Learner, progress: Float[Array, ""]) -> tuple[Learner, Update]:
        key, noise, order = jax.random.split(learner.key, 3)
        kappa = None
        if self.kappa is not None:
            first, last = self.kappa
            kappa = first * (last / first) ** progress

        def loss(actor: Actor, shifts: Any) -> tuple[Any, Any]:
            states, observations, seen = explore(
                environment, actor, learner.normaliser, learner.states, learner.observations, noise, self.length, kappa, shifts
            )
            following = learner.target(learner.normaliser(seen.next_observation))[..., 0]
            return horizon_loss(seen, following, self.discount), (states, observations, seen, following)

        still = None
        if self.slopes:
            still = jnp.zeros((self.length, self.environments, 2 * environment.system.nv), environment.dtype)
        there, (slope, by_state) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(learner.actor, still)
        value, (states, observations, seen, following) = there
        of_actor, _ = self.optimisers()
        rate, critic_rate = self.rates(progress)
        if self.warm_up:
            rate = rate * jnp.minimum(progress / self.warm_up, 1.0)
        actor, actor_state = stepped(of_actor, learner.actor_optimiser, slope, learner.actor, rate)
        critic, critic_state, error = self._fit(learner, seen, following, by_state, order, critic_rate)
        share = self.target_rate
        target = jax.tree.map(lambda old, new: (1 - share) * old + share * new, learner.target, critic)
        if self.restarts:
            key, own = jax.random.split(key)
            anew = 1.0 - self.discount**self.length
            states, observations = restarted(environment, states, observations, own, anew)
        after = Learner(
            actor, critic, target, actor_state, critic_state, learner.normaliser.updated(seen.observation, self.memory), states,
            observations, key,
        )  # fmt: skip
        metrics = {
            "reward": seen.reward.mean(),
            "actor_loss": value,
            "critic_loss": error,
            "deviation": jnp.exp(actor.log_deviation).mean(),
            "gradient_norm": norm(slope),
        }
        return after, Update(metrics, seen.fault, seen.steps)

    def _fit(
        self, learner: Learner, seen: Experience, following: Any, by_state: Any, key: Any, rate: Any
    ) -> tuple[Network, Any, Any]:
        """The critic after `critic_epochs` of its lambda-returns; by_state: derivatives of the actor's loss by the states."""
        targets = lambda_returns(seen.reward, following, seen.terminated, seen.truncated, self.discount, self.lambda_)
        observation = learner.normaliser(seen.observation).reshape(self.samples, -1)
        targets = targets.reshape(-1)
        _, of_critic = self.optimisers()

        if self.slopes:
            wanted, jacobian = self._slopes(learner, seen, by_state)

        def loss(critic: Network, chosen: Any) -> Any:
            error = ((critic(observation[chosen])[:, 0] - targets[chosen]) ** 2).mean()
            if self.slopes:
                error = error + self.slopes * slope_error(critic, observation[chosen], wanted[chosen], jacobian[chosen])
            return error

        def minibatch(carry: Any, chosen: Any) -> tuple[Any, Any]:
            critic, state = carry
            error, slope = jax.value_and_grad(loss)(critic, chosen)
            return stepped(of_critic, state, slope, critic, rate), error

        orders = self.orders(key, self.critic_epochs, self.minibatches)
        (critic, state), errors = jax.lax.scan(minibatch, (learner.critic, learner.critic_optimiser), orders)
        return critic, state, errors.mean()

    def _slopes(self, learner: Learner, seen: Experience, by_state: Any) -> tuple[Any, Any]:
        """Derivatives by the state of the returns of the horizon, and of normalised observations, of all samples (`scaled`)."""
        assert seen.at is not None
        weights = horizon_weights(seen.terminated | seen.truncated, self.discount)[..., None]
        slopes = -self.samples * by_state / weights
        deviation = jnp.sqrt(learner.normaliser.variance + 1e-8)[:, None]
        return scaled(*(a.reshape(self.samples, *a.shape[2:]) for a in (slopes, seen.at.jacobian / deviation, seen.at.x)))


def restarted(
    environment: Environment,
    states: EnvironmentState,
    observations: Float[Array, "N no"],
    key: UInt32[Array, "2"],
    share: float,
) -> tuple[EnvironmentState, Float[Array, "N no"]]:
    """The environments, of which each is at the beginning of an episode instead with probability `share`."""
    which, own = jax.random.split(key)
    anew = jax.random.bernoulli(which, share, observations.shape[:1])
    fresh = jax.vmap(environment.reset)(jax.random.split(own, len(anew)))

    def chosen(new: Any, old: Any) -> Any:
        return jnp.where(anew.reshape(anew.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, fresh, (states, observations))
