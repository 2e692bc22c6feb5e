"""Whether a policy holds elsewhere: in MuJoCo on the same model file, and where the parameters of the model are others.

    in_mujoco(environment, policy, bundled_file("hopper"), episodes=20).success_rate
    elsewhere(environment, policy, factors={"mass": (0.7, 1.3)}, episodes=64).success_rate

Episodes begin alike in both: with the same keys they have the same initial states, commands and pushes. `zero_policy` takes the
actions 0, which for tasks whose actions are targets of the joints is a PD controller.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.control.mujoco_plant import MujocoPlant
from trajopt.dynamics.state import State
from trajopt.errors import OptionError
from trajopt.learning.environment import Environment, EnvironmentState, Moment
from trajopt.learning.networks import Acting
from trajopt.learning.rollouts import play


@dataclasses.dataclass(frozen=True)
class Trial:
    """Episodes of a policy in one place.

    Attributes:
        where: the place, in words.
        success: of each episode, whether it was a success.
        returns: of each episode, the sum of its rewards, NaN where none are known.
        steps: of each episode, its number of actions.
        states: of each episode, from the first on (T + 1), the last one repeated after its end.
        drawn: of each episode, what was drawn for it.
    """

    where: str
    success: Bool[np.ndarray, " E"]
    returns: Float[np.ndarray, " E"]
    steps: Int[np.ndarray, " E"]
    states: State
    drawn: Float[np.ndarray, "E nd"]

    @property
    def success_rate(self) -> float:
        """Share of the episodes that were a success."""
        return float(self.success.mean())

    def __str__(self) -> str:
        return (
            f"{self.where}: {int(self.success.sum())} of {len(self.success)} episodes, return {np.median(self.returns):.4g}, "
            f"{self.steps.mean():.0f} actions"
        )


def zero_policy(environment: Environment) -> Acting:
    """The policy whose actions are all zero."""

    def act(observation: Float[Array, "*b no"]) -> Float[Array, "*b na"]:
        return jnp.zeros((*observation.shape[:-1], environment.na), observation.dtype)

    return act


def elsewhere(
    environment: Environment,
    policy: Acting,
    *,
    factors: Mapping[str, tuple[float, float]] | None = None,
    episodes: int = 64,
    seed: int = 0,
) -> Trial:
    """Episodes in the environment's own system; factors: of leaves of the model, in place of the environment's own."""
    made = environment if factors is None else dataclasses.replace(environment, factors=factors)
    program = jax.jit(lambda key: play(made, policy, key, episodes))
    played = program(jax.random.PRNGKey(seed))
    where = "System" if not made.factors else "System, " + ", ".join(f"{k} {a:g} to {b:g}" for k, (a, b) in made.factors.items())
    success, returns, steps, drawn = (np.asarray(a) for a in (played.success, played.returns, played.steps, played.drawn))
    return Trial(where, success, returns, steps, played.states, drawn)


def in_mujoco(
    environment: Environment,
    policy: Acting,
    model_file: str | os.PathLike,
    *,
    episodes: int = 16,
    seed: int = 0,
    dt: float | None = None,
) -> Trial:
    """Episodes in MuJoCo: its contact model and integrator, the same file, initial states, commands and pushes.

    dt: s, of MuJoCo's steps, a whole part of the system's; default the same. Between two of its steps controls and forces are
    those that the environment gives for the state there. Rewards are those of a function; of residuals, those of the states
    reached.
    """
    plant = MujocoPlant.from_file(model_file, float(environment.system.dt) if dt is None else dt)
    ticks = round(environment.dt / plant.dt)
    if plant.nx != environment.system.nq + environment.system.nv or plant.nu != environment.system.nu:
        raise OptionError(f"'{os.fspath(model_file)}' is another model than that of environment '{environment.name}'")
    if abs(ticks * plant.dt - environment.dt) > 1e-9:
        raise OptionError(f"dt is {plant.dt}; expected a whole part of the {environment.dt} s between two actions")
    programs = _Programs(environment, policy)
    played = [_episode(programs, plant, ticks, key) for key in jax.random.split(jax.random.PRNGKey(seed), episodes)]
    *numbers, states, drawn = zip(*played, strict=True)
    success, returns, steps = (np.array(column) for column in numbers)
    together = jax.tree.map(lambda *each: jnp.stack(each), *states)
    return Trial(f"MuJoCo, {plant.dt * 1e3:g} ms", success, returns, steps, together, np.array(drawn))


class _Programs:
    """The compiled parts of an environment that a plant of another kind needs."""

    def __init__(self, environment: Environment, policy: Acting) -> None:
        plain = dataclasses.replace(environment, factors={})
        nq, model, dtype = plain.system.nq, plain.system.model, plain.dtype
        self.environment = plain

        def moment(x: Any, action: Any, time: Any, drawn: Any) -> Moment:
            return Moment(model, State(x[:nq], x[nq:]), action, jnp.asarray(time, dtype), drawn)

        def act(x: Any, action: Any, time: Any, drawn: Any) -> Any:
            return policy(jnp.asarray(plain.observe(moment(x, action, time, drawn))))

        def drive(x: Any, action: Any, time: Any, drawn: Any) -> tuple[Any, Any]:
            at = moment(x, action, time, drawn)
            force = jnp.zeros(model.nv, dtype) if plain.force is None else plain.force(at)
            return plain.control(at), force

        def judge(before: Any, previous: Any, time: Any, u: Any, x: Any, action: Any, drawn: Any) -> tuple[Any, Any]:
            last = time + plain.dt - plain.system.dt
            one, other = moment(before, previous, last, drawn), moment(x, action, time + plain.dt, drawn)
            over = jnp.zeros((), bool) if plain.terminated is None else plain.terminated(other)
            reward = plain.reward_of(one, u, other)
            return reward, over

        self.act, self.drive, self.judge = jax.jit(act), jax.jit(drive), jax.jit(judge)
        self.reset = jax.jit(environment.reset)
        self.success = None if plain.success is None else jax.jit(plain.success)


def _episode(programs: _Programs, plant: MujocoPlant, ticks: int, key: Any) -> tuple[bool, float, int, State, Any]:
    environment = programs.environment
    state: EnvironmentState = programs.reset(key)[0]
    drawn = state.drawn
    plant.reset(np.concatenate([state.x.q, state.x.v]))
    xs, action, total, over = [plant.state], np.zeros(environment.na), 0.0, False
    last = ticks - max(round(float(environment.system.dt) / plant.dt), 1)  # its beginning is the moment before, of rewards
    steps = 0
    while steps < environment.limit and not over:
        time, previous = steps * environment.dt, action
        action = np.asarray(programs.act(xs[-1], previous, time, drawn))
        for tick in range(ticks):
            x = plant.state
            u, force = programs.drive(x, action, time + tick * plant.dt, drawn)
            if tick == last:
                before, control = x, u
            plant.step_with_force(np.asarray(u), np.asarray(force))
        xs.append(plant.state)
        reward, ended = programs.judge(before, previous, time, control, xs[-1], action, drawn)
        total, over, steps = total + float(reward), bool(ended) or not np.isfinite(xs[-1]).all(), steps + 1
    motion = np.array(xs + [xs[-1]] * (environment.limit + 1 - len(xs)))
    nq = environment.system.nq
    went_on = steps - int(over)
    states = State(jnp.asarray(motion[:, :nq]), jnp.asarray(motion[:, nq:]))
    good = not over if programs.success is None else bool(programs.success(states, went_on, drawn))
    return good, total, steps, states, drawn
