"""Slopes of values by the state: those of returns, of observations and of the critic, against differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import slider

from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError
from trajopt.learning import SHAC, Environment, around, train
from trajopt.learning.networks import Network
from trajopt.learning.rollouts import explore
from trajopt.learning.shac import horizon_loss, restarted
from trajopt.learning.slopes import coordinates, moved, observation_slope, scaled, slope_error
from trajopt.models import load_model
from trajopt.problems import residuals as r

KEY = jax.random.PRNGKey(0)
H = 1e-6  # of central differences of smooth functions of size 1: h^2 = 1e-12 beside rounding 1e-16 / h = 1e-10


def falling() -> Environment:
    """A body with a free joint, of which the height, the attitude and the velocity are observed."""
    model = load_model("cube")
    return Environment(
        "falling", System(model, 0.01, NoContact()), r.Velocity(), 5, around(model, model.q_default, 0.3, 0.5),
        control=lambda moment: jnp.zeros(model.nu), actions=1,
        observe=lambda moment: jnp.concatenate([moment.x.q[2:], moment.x.v * moment.x.q[2]]),
    )  # fmt: skip


def differences(function, nx):
    return np.stack([(function(H * e) - function(-H * e)) / (2 * H) for e in jnp.eye(nx)], -1)


def test_slopes_of_observations_are_those_of_differences():
    environment = falling()
    state, _ = environment.reset(KEY)
    found = observation_slope(environment, state)
    wanted = differences(lambda shift: environment.observation(moved(environment, state, shift)), 12)
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    assert (np.asarray(found)[:, :2] == 0).all() and np.abs(found[:, 2:]).max(0).min() > 0.1  # x and y are not observed


def test_a_critic_errs_by_what_its_slopes_lack():
    environment = falling()
    states, seen = jax.vmap(environment.reset)(jax.random.split(KEY, 3))
    critic = Network((environment.no, 8, 1), jnp.float64, KEY)
    slopes = jnp.stack([
        differences(lambda shift, k=k: critic(environment.observation(
            moved(environment, jax.tree.map(lambda a: a[k], states), shift)))[0], 12)
        for k in range(3)
    ])  # fmt: skip
    jacobian = jax.vmap(lambda state: observation_slope(environment, state))(states)
    assert float(slope_error(critic, seen, slopes, jacobian)) < 1e-14
    wanted = float((slopes**2).sum(-1).mean())
    assert float(slope_error(critic, seen, 2 * slopes, jacobian)) == pytest.approx(wanted, rel=1e-6)


def test_slopes_of_returns_are_those_of_differences():
    """The loss of a horizon as a function of shifts of the state before one of its actions, another one each time."""
    environment, shac = slider(), SHAC(environments=3, length=6, hidden=(4,), critic_hidden=(4,))
    learner = shac.init(environment, KEY)

    def loss(shifts):
        *_, seen = explore(
            environment, learner.actor, learner.normaliser, learner.states, learner.observations, KEY, 6, None, shifts
        )
        return horizon_loss(seen, learner.target(learner.normaliser(seen.next_observation))[..., 0], 0.99)

    still, value = jnp.zeros((6, 3, 2)), jax.jit(loss)
    slope = jax.jit(jax.grad(loss))(still)
    for place in ((0, 0, 0), (3, 1, 1), (5, 2, 0)):
        wanted = float(value(still.at[place].set(1e-5)) - value(still.at[place].set(-1e-5))) / 2e-5
        assert float(slope[place]) == pytest.approx(wanted, rel=1e-6, abs=1e-9) and abs(wanted) > 1e-6
    plain = explore(environment, learner.actor, learner.normaliser, learner.states, learner.observations, KEY, 6)[2]
    *_, seen = explore(environment, learner.actor, learner.normaliser, learner.states, learner.observations, KEY, 6, None, still)
    np.testing.assert_allclose(seen.reward, plain.reward, rtol=1e-12)  # shifts of zero are none
    assert plain.at is None and seen.at.jacobian.shape == (6, 3, 2, 2)
    np.testing.assert_array_equal(seen.at.x, seen.observation)  # the whole state, of a slide from 0


def test_units_are_those_of_the_states_and_what_is_too_steep_is_cut():
    jacobian = jnp.array([[[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]] * 5)
    slopes = jnp.array([[0.5, 0.0, 7.0]] * 3 + [[0.0, 50.0, 0.0], [jnp.inf, 0.0, 0.0]])
    states = jnp.array([[3.0, 0.0, 1.0], [-1.0, 4.0, 2.0], [3.0, 0.0, 1.0], [-1.0, 4.0, 2.0], [1.0, 2.0, 9.0]])
    found, units = scaled(slopes, jacobian, states)
    unit = np.sqrt(16 / 5)  # deviation of 1 +- 2, 1 +- 2, 1, and of the second column
    np.testing.assert_allclose(units[0], [[2 * unit, 0, 0], [0, 0.5 * unit, 0]])
    # The third is not observed. Of norms 1/2 (three), 50, inf the fourth is cut to three times their median, the fifth left out.
    np.testing.assert_allclose(found / unit, [[0.5, 0, 0]] * 3 + [[0, 1.5, 0], [0, 0, 0]])


def test_coordinates_are_tangent_ones():
    environment = falling()
    state, _ = environment.reset(KEY)
    shift = 0.1 * jnp.arange(12.0)
    start = dataclasses.replace(state, x=dataclasses.replace(state.x, q=environment.system.model.q_default, v=jnp.zeros(6)))
    np.testing.assert_allclose(coordinates(environment, moved(environment, start, shift)), shift, atol=1e-12)


def test_environments_begin_anew_with_the_share_asked_for():
    environment = slider()
    states, observations = jax.vmap(environment.reset)(jax.random.split(KEY, 400))
    states = dataclasses.replace(states, steps=states.steps + 3)
    for share in (0.0, 0.3, 1.0):
        after, seen = restarted(environment, states, observations, jax.random.PRNGKey(1), share)
        anew = np.asarray(after.steps) == 0
        assert abs(anew.mean() - share) < 4 * np.sqrt(share * (1 - share) / 400) + 1e-12  # four deviations of a binomial
        np.testing.assert_array_equal(seen, jax.vmap(environment.observation)(after))
        np.testing.assert_array_equal(seen[~anew], observations[~anew])
        assert (np.asarray(seen)[anew] != np.asarray(observations)[anew]).all()


@pytest.mark.slow
def test_shac_learns_from_slopes():
    """The slider is brought to the middle from anywhere."""
    shac = SHAC(environments=8, length=8, hidden=(16,), critic_hidden=(16,), actor_rate=1e-2, slopes=0.3, restarts=True)
    training = train(slider(), shac, samples=60 * shac.samples, evaluations=1, episodes=32)
    assert training.success and all(np.isfinite(row["critic_loss"]) for row in training.curve)


@pytest.mark.slow
def test_the_actor_waits_while_it_warms_up():
    environment, shac = slider(), SHAC(environments=2, length=4, hidden=(4,), critic_hidden=(4,), minibatches=2, warm_up=0.5)
    learner = shac.init(environment, KEY)
    for share, still in ((0.0, True), (0.25, False)):
        after, _ = jax.jit(lambda learner, share: shac.update(environment, learner, share))(learner, jnp.asarray(share))
        same = [bool((a == b).all()) for a, b in zip(jax.tree.leaves(after.actor), jax.tree.leaves(learner.actor), strict=True)]
        assert all(same) == still
        assert any((a != b).any() for a, b in zip(jax.tree.leaves(after.critic), jax.tree.leaves(learner.critic), strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [({"slopes": -0.1}, r"slopes is -0\.1"), ({"memory": 0.0}, r"memory is 0\.0"), ({"warm_up": 1.0}, r"warm_up is 1\.0")],
)
def test_options_that_mean_nothing_are_refused(options, text):
    with pytest.raises(OptionError, match="SHAC: " + text):
        SHAC(**options)
