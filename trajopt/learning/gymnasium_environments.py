"""Environments in the interface of gymnasium: one at a time, and as a vector that the compiled core steps in one call.

    gymnasium.make("trajopt.learning:trajopt/CartpoleSwingup-v0")
    gymnasium.make_vec("trajopt.learning:trajopt/CartpoleSwingup-v0", num_envs=64, vectorization_mode="vector_entry_point")

Actions are clipped to [-1, 1]. Needs the extra `learning`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from trajopt.dynamics.copies import WithoutCaches
from trajopt.errors import MissingExtraError, NonFiniteError
from trajopt.learning.environment import Environment, EnvironmentState, Outcome
from trajopt.learning.tasks import TASKS, environment
from trajopt.native.process import check_process

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

    _Env: Any = gymnasium.Env
    _VectorEnv: Any = VectorEnv
except ImportError:  # the classes can be named, not made
    gymnasium = None  # type: ignore[assignment]
    _Env = _VectorEnv = object


RESET, STEP = range(2)  # places in `_Made._programs`


def register() -> None:
    """Make the tasks known to gymnasium, as "trajopt/NAME". Raises `MissingExtraError` without gymnasium."""
    _require()
    here = __name__
    for name, task in TASKS.items():
        if f"trajopt/{task.gymnasium}" not in gymnasium.registry:
            gymnasium.register(
                f"trajopt/{task.gymnasium}", f"{here}:GymnasiumEnvironment", kwargs={"task": name},
                vector_entry_point=f"{here}:GymnasiumVector",
            )  # fmt: skip


def _require() -> None:
    if gymnasium is None:
        raise MissingExtraError("environments for gymnasium need gymnasium: pip install 'trajopt-contact[learning]'")


def _spaces(made: Environment) -> tuple[Any, Any]:
    """Of observations and of actions, of one environment."""
    everywhere = np.full(made.no, np.inf)
    seen = gymnasium.spaces.Box(-everywhere, everywhere, dtype=np.float64)
    return seen, gymnasium.spaces.Box(-1.0, 1.0, (made.na,), np.float32)


class _Made(WithoutCaches):
    """What is made of a task: in a copy and in another process anew, by the task's name and settings."""

    _task: str | Environment
    _settings: dict[str, Any]
    _programs: Any  # of a reset and of a step, compiled when they are first called

    @functools.cached_property
    def made(self) -> Environment:
        """The environment."""
        return self._task if isinstance(self._task, Environment) else environment(self._task, **self._settings)

    def _program(self, which: int) -> Callable[..., Any]:
        check_process()
        return self._programs[which]


class GymnasiumEnvironment(_Made, _Env):
    """An environment as a `gymnasium.Env`. `info` holds the terms of the reward.

    Options:
        task: the name of a task, whose settings follow by name, or an `Environment`.

    Raises `MissingExtraError` without gymnasium, and in `step` `NonFiniteError` naming the term that is not finite.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, task: str | Environment, **settings: Any) -> None:
        _require()
        self._task, self._settings = task, settings
        self.observation_space, self.action_space = _spaces(self.made)
        self._state: EnvironmentState | None = None

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any]:
        return jax.jit(self.made.reset), jax.jit(self.made.step)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " no"], dict[str, Any]]:
        """The beginning of an episode; options are ignored."""
        super().reset(seed=seed)
        self._state, seen = self._program(RESET)(_key(self.np_random))
        return np.asarray(seen, np.float64), {}

    def step(
        self, action: Float[np.ndarray, " na"]
    ) -> tuple[Float[np.ndarray, " no"], float, bool, bool, dict[str, float]]:
        """Observation, reward, whether terminated, whether truncated, terms of the reward."""
        assert self._state is not None, "reset comes first"
        steps = int(self._state.steps)
        self._state, outcome = self._program(STEP)(self._state, np.clip(np.asarray(action, self.made.dtype), -1.0, 1.0))
        _refuse(self.made, np.asarray(outcome.fault)[None], [steps])
        terms = {name: float(value) for name, value in outcome.terms.items()}
        seen = np.asarray(outcome.observation, np.float64)
        return seen, float(outcome.reward), bool(outcome.terminated), bool(outcome.truncated), terms


class GymnasiumVector(_Made, _VectorEnv):
    """Environments as a `gymnasium.vector.VectorEnv`, stepped as one batch.

    What has ended begins again in the same step, and `info["final_obs"]` holds what was observed before that.

    Options:
        task: the name of a task, whose settings follow by name, or an `Environment`.
        num_envs: number of environments.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, task: str | Environment, num_envs: int = 1, **settings: Any) -> None:
        _require()
        self._task, self._settings = task, settings
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = _spaces(self.made)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._states: EnvironmentState | None = None

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any]:
        return jax.jit(jax.vmap(self.made.reset)), jax.jit(jax.vmap(self.made.step_or_reset))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, "N no"], dict[str, Any]]:
        """The beginnings of episodes; options are ignored."""
        super().reset(seed=seed)
        self._states, seen = self._program(RESET)(jax.random.split(_key(self.np_random), self.num_envs))
        return np.asarray(seen, np.float64), {}

    def step(
        self, actions: Float[np.ndarray, "N na"]
    ) -> tuple[
        Float[np.ndarray, "N no"], Float[np.ndarray, " N"], Bool[np.ndarray, " N"], Bool[np.ndarray, " N"], dict[str, Any]
    ]:
        """As of one environment, for all."""
        assert self._states is not None, "reset comes first"
        steps = np.asarray(self._states.steps)
        outcome: Outcome
        clipped = np.clip(np.asarray(actions, self.made.dtype), -1.0, 1.0)
        self._states, seen, outcome = self._program(STEP)(self._states, clipped)
        _refuse(self.made, np.asarray(outcome.fault), steps)
        done = np.asarray(outcome.done)
        info: dict[str, Any] = {}
        if done.any():
            last = np.empty(self.num_envs, object)
            before = np.asarray(outcome.observation, np.float64)
            for k in np.flatnonzero(done):
                last[k] = before[k]
            info = {"final_obs": last, "_final_obs": done, "final_info": {}, "_final_info": done}
        flags = np.asarray(outcome.terminated), np.asarray(outcome.truncated)
        return np.asarray(seen, np.float64), np.asarray(outcome.reward, np.float64), *flags, info


def _key(random: np.random.Generator) -> Any:
    return jax.random.PRNGKey(int(random.integers(2**31)))


def _refuse(made: Environment, fault: Any, steps: Any) -> None:
    for k in np.flatnonzero(np.asarray(fault) >= 0):
        raise NonFiniteError(made.fault_at(int(fault[k]), int(steps[k])))
