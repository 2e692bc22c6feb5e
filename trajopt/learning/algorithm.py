"""What every algorithm is: options, a state that it learns in, and updates, each one compiled program."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from trajopt.errors import OptionError
from trajopt.learning.environment import Environment, EnvironmentState
from trajopt.learning.networks import Actor, Network, Normaliser, Policy
from trajopt.learning.rollouts import begin
from trajopt.names import NamedOptions, closest

DECAYS = ("linear", "geometric")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
    """The networks, the states of their optimisers, and where the environments are. Leaves are arrays: it is what is saved."""

    actor: Actor
    critic: Network
    target: Network
    actor_optimiser: Any
    critic_optimiser: Any
    normaliser: Normaliser
    states: EnvironmentState
    observations: Float[Array, "N no"]
    key: UInt32[Array, "2"]

    @property
    def policy(self) -> Policy:
        """What was learnt so far."""
        return Policy(self.actor, self.normaliser)


@dataclasses.dataclass(frozen=True)
class Update:
    """What an update reports: numbers by name, and of each action whether something was not finite (`Experience`)."""

    metrics: dict[str, Float[Array, ""]]
    fault: Int[Array, "T N"]
    steps: Int[Array, "T N"]


jax.tree_util.register_dataclass(Update)


@dataclasses.dataclass(frozen=True)
class Algorithm(NamedOptions, abc.ABC):
    """Base of the algorithms; immutable, its fields are the options.

    Options:
        environments: number of environments that run side by side.
        length: actions in each environment between two updates.
        discount: factor of a reward that comes one action later.
        lambda_: share of longer returns in the estimates of values and advantages, from 0 to 1.
        hidden: sizes of the actor's layers.
        critic_hidden: sizes of the critic's layers.
        deviation: standard deviation of the exploration at the start.
        actor_rate: learning rate of the actor at the start.
        critic_rate: learning rate of the critic at the start.
        final_rate: learning rates fall to this share of themselves.
        critic_final_rate: as `final_rate`, of the critic. None: the same.
        decay: how they fall: "linear", or "geometric", by the same factor with every update.
    """

    name: ClassVar[str]

    environments: int = 64
    length: int = 32
    discount: float = 0.99
    lambda_: float = 0.95
    hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (64, 64)
    deviation: float = 0.5
    actor_rate: float = 1e-3
    critic_rate: float = 1e-3
    final_rate: float = 0.1
    critic_final_rate: float | None = None
    decay: str = "linear"

    def __post_init__(self) -> None:
        for name in ("environments", "length"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise OptionError(f"{self.name}: {name} is {getattr(self, name)!r}, expected a whole number of at least 1")
        if self.decay not in DECAYS:
            raise OptionError(f"{self.name}: decay is '{self.decay}'{closest(str(self.decay), DECAYS)}")
        if self.critic_final_rate is None:
            object.__setattr__(self, "critic_final_rate", self.final_rate)
        for name in ("discount", "lambda_", "final_rate", "critic_final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{self.name}: {name} is {getattr(self, name)}, expected a number from 0 to 1")
        for name in ("deviation", "actor_rate", "critic_rate"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{self.name}: {name} is {getattr(self, name)}, expected a positive number")

    @property
    def samples(self) -> int:
        """Actions of an update."""
        return self.environments * self.length

    @abc.abstractmethod
    def optimisers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        """Of the actor and of the critic, for a learning rate of 1."""

    @abc.abstractmethod
    def update(self, environment: Environment, learner: Learner, progress: Float[Array, ""]) -> tuple[Learner, Update]:
        """Experience, and what is learnt from it. progress: share of the training that lies behind, which schedules follow."""

    def check(self, environment: Environment) -> None:
        """Raise `OptionError` for an environment that cannot be learnt from in this way."""

    def init(self, environment: Environment, key: UInt32[Array, "2"]) -> Learner:
        """Fresh networks, and environments at the beginning of an episode."""
        one, two, three, later = jax.random.split(key, 4)
        no, na, dtype = environment.no, environment.na, environment.dtype
        actor = Actor(no, na, self.hidden, self.deviation, dtype, one)
        critic = Network((no, *self.critic_hidden, 1), dtype, two)
        states, observations = begin(environment, three, self.environments)
        of_actor, of_critic = self.optimisers()
        return Learner(
            actor, critic, critic, of_actor.init(actor), of_critic.init(critic),
            Normaliser.of(no, dtype).updated(observations), states, observations, later,
        )  # fmt: skip

    def orders(self, key: UInt32[Array, "2"], epochs: int, minibatches: int) -> Int[Array, "parts size"]:
        """Indices of the samples in random order: for every epoch as many parts of one size."""
        size = self.samples // minibatches * minibatches
        keys = jax.random.split(key, epochs)
        orders = jax.vmap(lambda own: jax.random.permutation(own, self.samples)[:size])(keys)
        return orders.reshape(epochs * minibatches, -1)

    def rates(self, progress: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The learning rates of actor and critic."""
        assert self.critic_final_rate is not None
        return self._fallen(self.actor_rate, self.final_rate, progress), self._fallen(
            self.critic_rate, self.critic_final_rate, progress
        )

    def _fallen(self, start: float, share: float, progress: Any) -> Any:
        return start * (share**progress if self.decay == "geometric" else 1.0 - (1.0 - share) * progress)


def norm(gradient: Any) -> Float[Array, ""]:
    """Euclidean, over all leaves."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)))


def stepped(
    optimiser: optax.GradientTransformation, state: Any, gradient: Any, network: Any, rate: Float[Array, ""]
) -> tuple[Any, Any]:
    """The network and the optimiser's state after a step; both as they were where the gradient is not finite."""
    finite = jnp.isfinite(norm(gradient))
    with jax.numpy_dtype_promotion("standard"):  # optax raises decay rates to its whole-numbered count
        change, after = optimiser.update(gradient, state, network)
    moved = jax.tree.map(lambda w, d: w - rate * d, network, change)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), (moved, after), (network, state))
