"""Policies elsewhere: in MuJoCo an episode is the same where the physics is, and factors of the model are those asked for."""

import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import SLIDER, slider

from trajopt.errors import OptionError
from trajopt.learning.tasks import environment, task
from trajopt.learning.transfer import elsewhere, in_mujoco, zero_policy
from trajopt.models import bundled_file


def towards_the_middle(observation):
    return jnp.tanh(-1.0 * observation[..., :1] - 1.2 * observation[..., 1:2])


def halfway(observation):
    return jnp.full((*observation.shape[:-1], 1), 0.5)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "slider.xml"
    path.write_text(SLIDER)
    return path


def test_an_episode_in_mujoco_is_that_of_the_system(file):
    """Without contact and damping both take semi-implicit Euler steps: sums of rewards agree to rounding."""
    ours = elsewhere(slider(), towards_the_middle, episodes=3)
    theirs = in_mujoco(slider(), towards_the_middle, file, episodes=3)
    np.testing.assert_allclose(theirs.returns, ours.returns, rtol=1e-9)
    np.testing.assert_array_equal(theirs.success, ours.success)
    assert (theirs.steps == 8).all() and "3 episodes" in str(theirs) and theirs.where == "MuJoCo, 50 ms"
    finer = in_mujoco(slider(), towards_the_middle, file, episodes=3, dt=0.01)
    assert 1e-6 < np.abs(finer.returns - ours.returns).max() < 0.5  # steps of first order


def test_a_force_acts_in_both(file):
    def pushed(moment):
        return jnp.where(moment.time < 0.25, 4.0, 0.0)[None]

    ours = elsewhere(slider(force=pushed), towards_the_middle, episodes=2)
    theirs = in_mujoco(slider(force=pushed), towards_the_middle, file, episodes=2)
    np.testing.assert_allclose(theirs.returns, ours.returns, rtol=1e-9)
    assert np.abs(ours.returns - elsewhere(slider(), towards_the_middle, episodes=2).returns).min() > 1e-2


def test_the_moment_before_is_that_of_the_last_step(file):
    """A reward of differences, such as accelerations, is of one step of the system in both, not of a whole action."""

    def reward(before, u, after):
        return {"acceleration": -((after.x.v - before.x.v) ** 2).sum() / 0.05, "time": after.time - before.time, "u": u.sum()}

    def moving(moment):  # the control changes within an action
        return jnp.clip(moment.action - moment.x.v + moment.time, -3.0, 3.0)

    made = slider(reward=reward, control=moving)
    ours = elsewhere(made, towards_the_middle, episodes=2)
    theirs = in_mujoco(made, towards_the_middle, file, episodes=2)
    np.testing.assert_allclose(theirs.returns, ours.returns, rtol=1e-9)
    held = slider(reward=reward)  # a constant control: the velocity changes by as much in five steps of a fifth
    finer = in_mujoco(held, halfway, file, episodes=2, dt=0.01)
    np.testing.assert_allclose(finer.returns, elsewhere(held, halfway, episodes=2).returns, rtol=1e-9)


@pytest.mark.slow
def test_other_parameters(file):
    same = elsewhere(slider(), towards_the_middle, episodes=8)
    heavy = elsewhere(slider(), towards_the_middle, factors={"mass": (4.0, 5.0)}, episodes=8)
    assert (heavy.returns != same.returns).all() and heavy.where == "System, mass 4 to 5"
    assert 0 <= heavy.success_rate <= 1 and zero_policy(slider())(jnp.zeros((3, 2))).shape == (3, 1)


def test_another_model_is_refused(file):
    with pytest.raises(OptionError, match="another model than that of environment 'slider'"):
        in_mujoco(slider(), towards_the_middle, bundled_file("hopper"))
    with pytest.raises(OptionError, match="whole part of the 0.1 s"):
        in_mujoco(slider(), towards_the_middle, file, dt=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, settings",
    [
        ("go1-velocity", {}),
        ("anymal-velocity", {}),
        ("humanoid-push", {"least": 0.0, "most": 1e-9}),
        ("humanoid-push", {"least": 0.0, "most": 1e-9, "randomised": True}),
    ],
)
def test_the_robots_stand_under_the_actions_zero(name, settings):
    """Targets of the joints at rest hold both upright: unpushed, in our steps and in MuJoCo's."""
    made = environment(name, duration=1.0, **settings)
    trials = [elsewhere(made, zero_policy(made), episodes=4)]
    trials.append(in_mujoco(made, zero_policy(made), bundled_file(task(name).model), episodes=2))
    assert all((trial.steps == 50).all() for trial in trials)
