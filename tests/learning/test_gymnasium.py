"""Environments for gymnasium: its own checker, the vector's batch, what is registered."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from learning_cases import slider

from trajopt.errors import NonFiniteError
from trajopt.learning.gymnasium_environments import GymnasiumEnvironment, GymnasiumVector
from trajopt.learning.tasks import TASKS


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning", "ignore:.*is different from the unwrapped version")
def test_gymnasium_checks_an_environment():
    check_env(GymnasiumEnvironment(slider()), skip_render_check=True)


def test_tasks_are_made_by_name():
    made = gymnasium.make("trajopt.learning:trajopt/CartpoleSwingup-v0")
    assert made.observation_space.shape == (5,) and made.action_space.shape == (1,)
    assert all(f"trajopt/{task.gymnasium}" in gymnasium.registry for task in TASKS.values())


def test_a_vector_is_its_environments_and_begins_again():
    vector = GymnasiumVector(slider(), num_envs=3)
    seen, _ = vector.reset(seed=5)
    same, _ = vector.reset(seed=5)
    np.testing.assert_array_equal(seen, same)
    assert vector.observation_space.contains(seen)
    for k in range(8):
        before = seen
        seen, reward, terminated, truncated, info = vector.step(np.full((3, 1), 0.4, np.float32))
        assert truncated.all() == (k == 7) and not terminated.any() and reward.shape == (3,)
    assert all(np.abs(last - old).max() < 0.5 for last, old in zip(info["final_obs"], before, strict=True))
    assert vector.observation_space.contains(seen)


def test_actions_are_clipped():
    one, two = GymnasiumEnvironment(slider()), GymnasiumEnvironment(slider())
    one.reset(seed=1), two.reset(seed=1)
    found, wanted = one.step(np.array([7.0])), two.step(np.array([1.0]))
    np.testing.assert_array_equal(found[0], wanted[0])


def test_a_reward_that_is_not_finite_is_named():
    made = GymnasiumEnvironment(slider(reward=lambda before, u, after: {"root": jnp.sqrt(0.25 - after.time)}))
    made.reset(seed=0)
    made.step(np.zeros(1)), made.step(np.zeros(1))
    with pytest.raises(NonFiniteError, match="term 'root' of the reward is not finite at step 2"):
        made.step(np.zeros(1))
