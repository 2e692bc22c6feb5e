"""Losses of PPO and SHAC against what they are by definition; options that mean nothing."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import slider

from trajopt.errors import OptionError, UnknownNameError
from trajopt.learning import PPO, SHAC, algorithm
from trajopt.learning.networks import Actor, Normaliser
from trajopt.learning.ppo import Batch, policy_loss, value_loss
from trajopt.learning.rollouts import Experience, explore
from trajopt.learning.shac import horizon_loss, horizon_weights

KEY = jax.random.PRNGKey(0)


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    actor = Actor(3, 2, (8,), 0.7, jnp.float64, KEY)
    seen, z, gain = random.normal(size=(50, 3)), random.normal(size=(50, 2)), random.normal(size=50) + 0.3
    old = actor.log_density(seen, z)
    return actor, Batch(*map(jnp.asarray, (seen, z, old, gain, random.normal(size=50), random.normal(size=50))))


def test_at_ratio_one_the_loss_is_zero_and_its_slope_the_policy_gradient(batch):
    """The advantages are normalised, so that their mean, the loss at ratio 1, is zero; the slope is mean A d log pi."""
    actor, given = batch
    value, slope = jax.value_and_grad(policy_loss)(actor, given, 0.2)
    assert abs(float(value)) < 1e-14
    gain = (given.advantage - given.advantage.mean()) / given.advantage.std()
    wanted = jax.grad(lambda actor: -(gain * actor.log_density(given.observation, given.z)).mean())(actor)
    for found, right in zip(jax.tree.leaves(slope), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-7)  # 1e-8 beside the deviation


def test_ratios_beyond_the_clip_have_no_slope_where_they_would_gain(batch):
    """At ratio e the samples with positive advantages are cut; what is left is the slope of the others."""
    actor, given = batch
    away = dataclasses.replace(given, log_density=given.log_density - 1.0)
    gain = (given.advantage - given.advantage.mean()) / given.advantage.std()
    slope = jax.grad(policy_loss)(actor, away, 0.2)

    def losing(actor):
        ratio = jnp.exp(actor.log_density(given.observation, given.z) - away.log_density)
        return -(ratio * jnp.minimum(gain, 0.0)).mean()

    for found, right in zip(jax.tree.leaves(slope), jax.tree.leaves(jax.grad(losing)(actor)), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-6)


def test_densities_are_those_of_a_gaussian(batch):
    actor, given = batch
    mean, deviation = actor.network(given.observation[0]), jnp.exp(actor.log_deviation)
    wanted = jax.scipy.stats.norm.logpdf(given.z[0], mean, deviation).sum()
    assert float(actor.log_density(given.observation[0], given.z[0])) == pytest.approx(float(wanted), rel=1e-12)


def test_values_are_kept_near_those_of_before(batch):
    _, given = batch

    def still(shift):
        return lambda observation: (given.value + shift)[:, None]

    error = 0.5 * ((given.value - given.target) ** 2).mean()
    assert float(value_loss(still(0.0), given, 0.2)) == pytest.approx(float(error))
    assert float(value_loss(still(5.0), given, 0.2)) >= float(0.5 * ((given.value + 5.0 - given.target) ** 2).mean()) - 1e-12


def test_the_normaliser_has_the_moments_of_everything_seen():
    data = np.random.default_rng(3).normal(2.0, 3.0, (30, 4))
    found = Normaliser.of(4, jnp.float64)
    for part in np.split(data, [7, 19]):
        found = found.updated(jnp.asarray(part))
    # the start counts as 1e-4 observations of mean 0 and variance 1, of 30
    np.testing.assert_allclose(found.mean, data.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.variance, data.var(0), rtol=1e-4)


def test_the_normaliser_forgets_what_lies_further_back_than_its_memory():
    """A past that counts as 10 observations beside a batch of 30: a quarter of the mean."""
    found = Normaliser.of(1, jnp.float64).updated(jnp.full((1000, 1), 8.0)).updated(jnp.full((30, 1), 4.0), memory=10.0)
    assert float(found.mean[0]) == pytest.approx(5.0, abs=1e-5) and float(found.count) == 40.0
    assert float(found.variance[0]) == pytest.approx(3.0, abs=1e-4)  # 3^2 / 4 + 1^2 * 3 / 4


def test_the_horizon_loss_is_the_discounted_sum_of_each_piece_of_an_episode():
    random = np.random.default_rng(4)
    T, N, discount = 7, 3, 0.9
    rewards, values, ends = random.normal(size=(T, N)), random.normal(size=(T, N)), random.uniform(size=(T, N))
    terminated, truncated = ends < 0.2, (ends >= 0.2) & (ends < 0.4)
    empty = jnp.zeros((T, N, 1))
    seen = Experience(empty, empty, empty, *map(jnp.asarray, (rewards, terminated, truncated)), None, None)
    total = 0.0
    for i in range(N):
        factor = 1.0
        for t in range(T):
            total += factor * rewards[t, i]
            over = terminated[t, i] or truncated[t, i]
            if (over or t == T - 1) and not terminated[t, i]:
                total += discount * factor * values[t, i]
            factor = 1.0 if over else discount * factor
    assert float(horizon_loss(seen, jnp.asarray(values), discount)) == pytest.approx(-total / (T * N), rel=1e-12)
    np.testing.assert_allclose(horizon_weights(jnp.zeros((4, 1), bool), 0.5)[:, 0], [1, 0.5, 0.25, 0.125])


@pytest.mark.slow
def test_the_gradient_of_shac_is_that_of_differences():
    """Through policy, steps, resets and the value at the end; tanh and ELU bend: h^2 = 1e-10 beside rounding 1e-16 / 1e-5."""
    environment, shac = slider(), SHAC(environments=3, length=6, hidden=(4,), critic_hidden=(4,))
    learner = shac.init(environment, KEY)

    def loss(actor):
        *_, seen = explore(environment, actor, learner.normaliser, learner.states, learner.observations, KEY, 6)
        return horizon_loss(seen, learner.target(learner.normaliser(seen.next_observation))[..., 0], 0.99)

    slope, value = jax.jit(jax.grad(loss))(learner.actor), jax.jit(loss)
    places = (
        lambda actor: actor.network.layers[0].weight,
        lambda actor: actor.network.layers[1].weight,
        lambda actor: actor.log_deviation,
    )  # fmt: skip
    for place in places:
        flat = place(learner.actor)
        first = (0,) * flat.ndim
        ends = [eqx.tree_at(place, learner.actor, flat.at[first].add(h)) for h in (1e-5, -1e-5)]
        wanted = float(value(ends[0]) - value(ends[1])) / 2e-5
        assert float(place(slope)[first]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_learning_rates_fall_as_they_are_told():
    straight, even = SHAC(actor_rate=1e-2, final_rate=0.1), SHAC(actor_rate=1e-2, final_rate=0.01, decay="geometric")
    assert [float(straight.rates(jnp.asarray(share))[0]) for share in (0.0, 0.5, 1.0)] == pytest.approx([1e-2, 5.5e-3, 1e-3])
    assert [float(even.rates(jnp.asarray(share))[0]) for share in (0.0, 0.5, 1.0)] == pytest.approx([1e-2, 1e-3, 1e-4])
    assert float(SHAC(critic_rate=1e-2, critic_final_rate=0.5).rates(jnp.asarray(1.0))[1]) == pytest.approx(5e-3)


@pytest.mark.parametrize(("wanted", "faster"), [(1e-9, False), pytest.param(1e9, True, marks=pytest.mark.slow)])
def test_rates_of_ppo_follow_the_divergence(wanted, faster):
    """One update of four minibatches: any divergence is above the one, and below the other, by more than a factor of 2."""
    made = slider()
    ppo = PPO(environments=4, length=2, epochs=2, minibatches=2, hidden=(), critic_hidden=(), divergence=wanted)
    learner = ppo.init(made, KEY)
    after, _ = jax.jit(lambda learner: ppo.update(made, learner, jnp.zeros(())))(learner)
    # the first minibatch is of the policy itself: its divergence is 0, so that rates rise, and fall by 1.5 in the other three
    assert float(after.actor_optimiser[-1]) == pytest.approx(1.5**4 if faster else 1.5**-2, rel=1e-6)


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(OptionError, match="PPO: environments is 0"):
        PPO(environments=0)
    with pytest.raises(OptionError, match="kappa"):
        SHAC(kappa=(100.0, -1.0))
    with pytest.raises(OptionError, match="smooths nothing"):
        SHAC(kappa=(100.0, 300.0)).check(slider())
    with pytest.raises(OptionError, match="decay is 'geometrical'; did you mean 'geometric'"):
        SHAC(decay="geometrical")
    with pytest.raises(OptionError, match="divergence is -1"):
        PPO(divergence=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'SHAC'"):
        algorithm("SHACK")
    with pytest.raises(OptionError, match="unexpected keyword argument 'horizon'"):
        algorithm("SHAC", horizon=3)
