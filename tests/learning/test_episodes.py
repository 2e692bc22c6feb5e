"""An episode as a motion: its states are those of the environment's steps, and of the system's steps under its controls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import slider

from trajopt.dynamics import RigidContact, State, System
from trajopt.learning import Environment, around, episode
from trajopt.models import load_model
from trajopt.problems import residuals as r


def towards_the_middle(observation):
    return jnp.tanh(-observation[..., :1] - 0.5 * observation[..., 1:])


def test_the_motion_is_that_of_the_actions():
    environment = slider()
    motion = episode(environment, towards_the_middle, seed=3)
    assert {key: value.shape for key, value in motion.items()} == {"t": (17,), "q": (17, 1), "v": (17, 1), "u": (16, 1)}
    np.testing.assert_allclose(motion["t"], 0.05 * np.arange(17), rtol=1e-12)
    state, seen = environment.reset(jax.random.PRNGKey(3))
    for k in range(8):
        np.testing.assert_allclose([motion["q"][2 * k], motion["v"][2 * k]], [state.x.q, state.x.v], rtol=1e-12)
        action = towards_the_middle(seen)
        np.testing.assert_allclose(motion["u"][2 * k : 2 * k + 2], [3 * action] * 2, rtol=1e-12)  # N, of a range of 3
        state, outcome = environment.step(state, action)
        seen = outcome.observation
    np.testing.assert_allclose(motion["q"][-1], state.x.q, rtol=1e-12)
    assert np.abs(motion["q"][0] - episode(environment, towards_the_middle, seed=4)["q"][0]) > 1e-3


def test_it_ends_where_the_episode_does():
    full = episode(slider(), towards_the_middle)
    short = episode(slider(terminated=lambda moment: moment.time > 0.25), towards_the_middle)
    assert short["t"][-1] == pytest.approx(0.3)  # the third action ends after 0.3 s
    assert {key: len(value) for key, value in short.items()} == {"t": 7, "q": 7, "v": 7, "u": 6}
    np.testing.assert_array_equal(short["q"], full["q"][:7])


@pytest.mark.slow
def test_impulses_are_those_of_the_steps():
    model = load_model("hopper")
    system = System(model, 0.01, RigidContact())
    environment = Environment(
        "drop", system, r.Velocity(), 20, around(model, model.q_default), substeps=2,
    )  # fmt: skip
    motion = episode(environment, lambda observation: jnp.zeros((*observation.shape[:-1], 3)))
    acting = np.flatnonzero(np.abs(motion["impulse"]).max((1, 2)) > 0)
    assert acting.size  # it stands or lands within 0.4 s
    k = acting[0]
    state = State(jnp.asarray(motion["q"][k]), jnp.asarray(motion["v"][k]))
    reached, info = system.step(state, jnp.asarray(motion["u"][k]))
    # The same step in another program: rounding, through a contact solve to 1e-10.
    np.testing.assert_allclose(motion["q"][k + 1], reached.q, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(motion["impulse"][k], info.contacts.impulse, rtol=1e-6, atol=1e-8)
