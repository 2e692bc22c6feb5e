"""Motions of a batch of environments under a policy: with exploration, to learn from, and without, to judge it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from trajopt.dynamics.state import State
from trajopt.errors import NonFiniteError
from trajopt.learning.environment import STATE, Environment, EnvironmentState, Outcome
from trajopt.learning.networks import Acting, Actor, Normaliser
from trajopt.learning.slopes import StateSlopes, moved


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Experience:
    """T actions in N environments. observation: before the action; z: what the actor drew, of which tanh is the action;
    next_observation: after it, before any reset; reward, terminated, truncated; fault, steps: `Outcome.fault` and the actions
    of the
    episode before this one; at: coordinates of the state, where shifts were given."""

    observation: Float[Array, "T N no"]
    z: Float[Array, "T N na"]
    next_observation: Float[Array, "T N no"]
    reward: Float[Array, "T N"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]
    fault: Int[Array, "T N"]
    steps: Int[Array, "T N"]
    at: StateSlopes | None = None


def begin(environment: Environment, key: UInt32[Array, "2"], count: int) -> tuple[EnvironmentState, Float[Array, "N no"]]:
    """`count` environments at the beginning of an episode, but for the actions counted, which differ, so that not all are
    truncated at once."""
    one, other = jax.random.split(key)
    states, observations = jax.vmap(environment.reset)(jax.random.split(one, count))
    steps = jax.random.randint(other, (count,), 0, environment.limit, int)
    return dataclasses.replace(states, steps=steps), observations


def explore(
    environment: Environment,
    actor: Actor,
    normaliser: Normaliser,
    states: EnvironmentState,
    observations: Float[Array, "N no"],
    key: UInt32[Array, "2"],
    length: int,
    kappa: Float[Array, ""] | None = None,
    shifts: Float[Array, "T N nx"] | None = None,
) -> tuple[EnvironmentState, Float[Array, "N no"], Experience]:
    """`length` actions in each environment, with resets: where they are then, what is observed there, and what happened.

    Differentiable in the actor through the environment's steps, and in shifts of the state before each action (`slopes.moved`).
    """
    deviation = jnp.exp(actor.log_deviation)

    def body(carry: tuple[EnvironmentState, Any], given: Any) -> tuple[tuple[EnvironmentState, Any], Experience]:
        (states, seen), (own, shift), at = carry, given, None
        if shift is not None:
            at = jax.vmap(functools.partial(StateSlopes.of, environment))(jax.lax.stop_gradient(states))
            states = jax.vmap(functools.partial(moved, environment))(states, shift)
            seen = jax.vmap(environment.observation)(states)
        noise = jax.random.normal(own, (seen.shape[0], environment.na), seen.dtype)
        z = actor.network(normaliser(seen)) + deviation * noise
        following, after, outcome = _step_all(environment, states, jnp.tanh(z), kappa)
        happened = Experience(
            seen, z, outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, outcome.fault, states.steps,
            at,
        )  # fmt: skip
        return (following, after), happened

    each = jax.random.split(key, length), shifts
    (states, observations), experience = jax.lax.scan(body, (states, observations), each)
    return states, observations, experience


def _step_all(
    environment: Environment, states: EnvironmentState, actions: Any, kappa: Any
) -> tuple[EnvironmentState, Any, Outcome]:
    """`Environment.step_or_reset` of a batch; beginnings of episodes are drawn where an episode has ended."""
    reached, outcome = jax.vmap(lambda state, action: environment.step(state, action, kappa))(states, actions)
    went_on = (reached, outcome.observation)

    def begun_anew() -> tuple[EnvironmentState, Any]:
        fresh = jax.vmap(environment.reset)(states.key)
        return jax.tree.map(lambda new, old: jnp.where(_along(outcome.done, new), new, old), fresh, went_on)

    following, seen = jax.lax.cond(outcome.done.any(), begun_anew, lambda: went_on)
    return following, seen, outcome


def refuse_faults(environment: Environment, fault: Int[np.ndarray, "T N"], steps: Int[np.ndarray, "T N"], update: int) -> None:
    """Raise `NonFiniteError` naming the step and the term where a reward or a state is not finite."""
    faults = np.argwhere(np.asarray(fault) >= 0)
    if not len(faults):
        return
    t, which = (int(k) for k in faults[0])
    of_state = environment.fault_names[int(fault[t, which])] == STATE
    remedy = "a smaller dt, or weaker controls" if of_state else "what that term divides by, or takes a root of"
    what = environment.fault_at(int(fault[t, which]), int(steps[t, which]))
    raise NonFiniteError(f"{what} (update {update}, environment {which}); training stops. Look at {remedy}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
    """E episodes: sums of rewards, actions before the end, success, states from the first on (T + 1), frozen after the end; what
    was drawn for each."""

    returns: Float[Array, " E"]
    steps: Int[Array, " E"]
    success: Bool[Array, " E"]
    states: State
    drawn: Float[Array, "E nd"]


def play(environment: Environment, policy: Acting, key: UInt32[Array, "2"], episodes: int) -> Episodes:
    """Whole episodes under the policy, without exploration and without the actions of the one before."""
    states, seen = jax.vmap(environment.reset)(jax.random.split(key, episodes))

    def body(carry: Any, _: None) -> tuple[Any, State]:
        states, seen, alive, total = carry
        reached, outcome = jax.vmap(environment.step)(states, policy(seen))
        total = total + jnp.where(alive, outcome.reward, 0.0)
        kept = jax.tree.map(lambda new, old: jnp.where(_along(alive, new), new, old), reached, states)
        seen = jnp.where(alive[:, None], outcome.observation, seen)
        return (kept, seen, alive & ~outcome.terminated, total), kept.x

    alive, total = jnp.ones(episodes, bool), jnp.zeros(episodes, environment.dtype)
    first = states.x
    (states, _, alive, total), xs = jax.lax.scan(body, (states, seen, alive, total), None, environment.limit)
    xs = jax.tree.map(lambda a, b: jnp.moveaxis(jnp.concatenate([a[None], b]), 0, 1), first, xs)
    if environment.success is None:
        reached = alive
    else:
        reached = jax.vmap(environment.success)(xs, jnp.where(alive, environment.limit, states.steps - 1), states.drawn)
    return Episodes(total, states.steps, reached, xs, states.drawn)


def _along(flags: Any, like: Any) -> Any:
    return flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim))
