"""go1-velocity, anymal-velocity: commands, what a walk misses of them, a change of the base's velocity, the source's settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import check_slope_of_rewards

from trajopt.dynamics import State
from trajopt.dynamics.contact.laws import SmoothedContact
from trajopt.learning import algorithm
from trajopt.learning.environment import Moment
from trajopt.learning.tasks import environment, task
from trajopt.learning.tasks.velocity import commanded, misses

KEY = jax.random.PRNGKey(0)
DRAWN = jnp.array([0.5, 0.0, 0.2, -0.5, 0.1, 0.0, 12.0, 0.3, -0.2, 11.0])


@pytest.fixture(scope="module")
def anymal():
    return environment("anymal-velocity")


def test_a_command_changes_once():
    times = jnp.array([0.0, 11.99, 12.0, 19.0])
    assert np.asarray(commanded(DRAWN, times)).tolist() == [[0.5, 0.0, 0.2]] * 2 + [[-0.5, 0.1, 0.0]] * 2
    assert np.asarray(commanded(DRAWN[:3], times)).tolist() == [[0.5, 0.0, 0.2]] * 4


def test_what_is_missed_is_that_of_whole_cycles_in_the_axes_of_the_base(anymal):
    """The base looks to the left and walks to its front at 0.5 m/s, turns at 0.1 rad/s in place of 0.2, sways within cycles;
    after 12 of 20 s everything is missed by 1 m/s and by 0.1 rad/s."""
    T, dt = anymal.limit, anymal.dt
    sway = 0.3 * np.sin(4 * np.pi * dt * np.arange(T + 1))
    turned = np.array([np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)])
    q = np.tile(np.r_[np.zeros(3), turned, np.zeros(12)], (T + 1, 1))
    v = np.zeros((T + 1, 18))
    v[:, 0], v[:, 1], v[:, 5] = sway, 0.5, 0.1
    xs, whole = State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(T)
    missed = misses(xs, DRAWN.at[4].set(0.0), dt)
    np.testing.assert_allclose(missed, [0.4 * 1.0, 0.1], atol=1e-3)  # one of 1,000 actions lies between the commands
    done = anymal.success(xs, whole, DRAWN.at[3].set(0.5).at[4].set(0.0))
    assert bool(done) and not bool(anymal.success(xs, whole, DRAWN))
    assert not bool(anymal.success(xs, whole - 1, DRAWN.at[3].set(0.5).at[4].set(0.0)))


def test_go1_is_to_cover_half_of_the_way_of_its_own_command():
    """Of commands from -1 to 1 m/s: -0.4 m/s for 10 s are 2 m backwards at least."""
    made = environment("go1-velocity", lower=(-1.0, 0.0, 0.0), upper=(1.0, 0.0, 0.0))

    def ends_at(x, command):
        q = jnp.zeros((made.limit + 1, 19)).at[-1, 0].set(x)
        return bool(made.success(State(q, jnp.zeros((made.limit + 1, 18))), made.limit, jnp.array([command, 0.0, 0.0])))

    assert ends_at(-2.1, -0.4) and not ends_at(-1.9, -0.4) and not ends_at(3.0, -0.4) and ends_at(2.1, 0.4)


def test_the_base_is_pushed_by_as_much_as_the_source_changes_its_velocity(anymal):
    """Over 0.1 s, the whole mass by (0.3, -0.2) m/s."""
    model = anymal.system.model
    x = State(jnp.asarray(model.keyframes["home"]), jnp.zeros(18))

    def at(time):
        return anymal.force(Moment(model, x, jnp.zeros(12), jnp.asarray(time), DRAWN))

    mass = float(np.asarray(model.mass).sum())
    np.testing.assert_allclose(0.1 * np.asarray(at(11.05))[:3], mass * np.array([0.3, -0.2, 0.0]), rtol=1e-12)
    assert not np.asarray(at(10.99)).any() and not np.asarray(at(11.1)).any()
    calm = environment("anymal-velocity", randomised=False)
    assert not calm.factors and not np.asarray(calm.drawn(KEY)[7:9]).any()


def test_rewards_and_settings_are_those_of_the_tables(anymal):
    """Tables 7 to 9. At home, moving as commanded, nothing but velocity, turning, height and feet is worth anything."""
    model, law = anymal.system.model, anymal.system.contact
    assert isinstance(law, SmoothedContact) and law.kappa == 300.0 and law.erp == 0.0
    assert (anymal.limit, anymal.substeps, float(anymal.system.dt), anymal.no, anymal.na) == (1000, 4, 0.005, 50, 12)
    v = jnp.zeros(18).at[0].set(0.5).at[5].set(0.2)
    at = Moment(model, State(jnp.asarray(model.keyframes["home"]), v), jnp.zeros(12), jnp.asarray(0.125), DRAWN)
    terms = {name: float(value) for name, value in anymal.reward(at, jnp.zeros(12), at).items()}
    lowest = {"velocity": 1.0, "turning": 0.5, "height": 1.0, "feet": 3.0 * 2 * np.exp(-0.01 / 0.05)}
    assert {name: value for name, value in terms.items() if abs(value) > 1e-12} == pytest.approx(lowest, rel=2e-3)
    shac = algorithm("SHAC", "anymal-velocity")
    assert (shac.environments, shac.length, shac.critic_epochs, shac.minibatches) == (128, 12, 16, 4)
    np.testing.assert_allclose(shac.rates(jnp.asarray(0.0)), [5e-3, 2e-3])
    np.testing.assert_allclose(shac.rates(jnp.asarray(1.0)), [1e-5, 1e-5], rtol=1e-6)
    assert task("anymal-velocity").samples["SHAC"] == 20_000 * shac.samples


@pytest.mark.slow
def test_returns_have_the_derivatives_of_differences(anymal):
    """Of three actions by the targets of all joints, feet on the floor; relative to the slope's size."""
    start, _ = anymal.reset(KEY)

    check_slope_of_rewards(anymal, start)
