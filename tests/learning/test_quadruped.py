"""quadruped-walk: the figures of the source's tables, its contact laws, and derivatives through its steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import check_slope_of_rewards

from trajopt.dynamics import State
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import RigidContact, SmoothedContact, SpringDamperContact
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import OptionError, UnknownNameError
from trajopt.learning import algorithm
from trajopt.learning.environment import Moment
from trajopt.learning.tasks import environment, task
from trajopt.learning.tasks.quadruped import observe, reward

KEY = jax.random.PRNGKey(0)


@pytest.fixture(scope="module")
def made():
    return environment("quadruped-walk")


def moment(made, v, action):
    q = made.system.model.keyframes["home"]
    return Moment(made.system.model, State(jnp.asarray(q), v), action, jnp.zeros(()), jnp.zeros(0))


def test_the_model_has_the_figures_of_the_source(made):
    """Table 3: torso 6.2 kg, shanks 2 kg, 20 N m; the back is 0.58 m high."""
    model, names = made.system.model, made.system.model.topology.node_names
    assert float(model.mass[names.index("base")]) == 6.2 and float(model.mass[names.index("LF_shank")]) == 2.0
    assert (np.asarray(model.control_upper) == 20.0).all() and float(model.keyframes["home"][2]) + 0.1 == pytest.approx(0.58)


def test_observations_and_rewards_are_those_of_the_tables(made):
    """Table 5 has 49 numbers. Table 4 at 1 m/s, at home, level: 1 + 0.5 exp(-0.03) + 0.5 + 0.12; half of that action's terms."""
    ahead = jnp.zeros(18).at[0].set(1.0)
    at = moment(made, ahead, jnp.zeros(12))
    assert observe(at).shape == (49,) and made.no == 49 and made.na == 12 and made.limit == 1000
    terms = reward(at, jnp.zeros(12), at)
    wanted = {"velocity": 1.0, "height": 0.5 * np.exp(-0.03), "upright": 0.5, "action": 0.12, "joint velocity": 0.0}
    assert {name: float(value) for name, value in terms.items()} == pytest.approx(wanted)
    busy = moment(made, ahead.at[7].set(2.0), jnp.full(12, -1.0))
    terms = reward(at, jnp.zeros(12), busy)
    assert float(terms["action"]) == pytest.approx(0.12 / np.e) and float(terms["joint velocity"]) == pytest.approx(-0.004)


def test_it_steps_under_the_laws_of_the_source():
    laws = {name: environment("quadruped-walk", contact=name) for name in ("smoothed", "hard", "relaxed", "soft")}
    assert float(laws["relaxed"].system.rho) == 0.01 and float(laws["relaxed"].with_gradient("implicit").system.rho) == 0.01
    assert isinstance(laws["smoothed"].system.contact, SmoothedContact) and laws["smoothed"].system.contact.kappa == 300.0
    assert isinstance(laws["hard"].system.contact, RigidContact)
    soft = laws["soft"].system.contact
    assert isinstance(soft, SpringDamperContact) and (soft.stiffness, soft.damping, soft.friction_damping) == (1.2e4, 30.0, 900.0)
    assert {name: (made.substeps, float(made.system.dt)) for name, made in laws.items()} == {
        "smoothed": (1, 0.01), "hard": (1, 0.01), "relaxed": (1, 0.01), "soft": (20, 0.0005),
    }  # fmt: skip
    assert all(made.system.integrator == "moreau" and made.dt == pytest.approx(0.01) for made in laws.values())
    with pytest.raises(UnknownNameError, match="no contact law 'softer'.*did you mean 'soft'"):
        environment("quadruped-walk", contact="softer")
    with pytest.raises(OptionError, match=r"dt is 0.003; expected a whole part of the 0.01 s between two actions"):
        laws["hard"].with_contact(SmoothedContact(), 0.003)


def test_episodes_begin_with_a_foot_on_the_ground(made):
    """None in it; the base is about as high as at home, the feet within what 0.2 rad in each joint move them by."""
    states, _ = jax.vmap(made.reset)(jax.random.split(KEY, 64))
    model = made.system.model
    distance = jax.vmap(lambda q: collide(model, kinematics(model, q)).distance)(states.x.q)
    assert distance.shape == (64, 4)
    assert made.factors.keys() == {"pair_friction", "mass"} and not environment("quadruped-walk", randomised=False).factors
    assert np.asarray(distance.min(1)) == pytest.approx(0.0, abs=1e-12) and float(distance.max()) < 0.2
    assert float(distance.max()) > 0.03 and np.asarray(states.x.q[:, 2]) == pytest.approx(0.48, abs=0.08)


def test_the_algorithms_have_the_settings_of_the_source():
    """Table 6: learning rates fall by 0.995 and 0.997 an update, from 0.002."""
    shac = algorithm("SHAC", "quadruped-walk")
    assert task("quadruped-walk").algorithm == "SHAC" and shac.restarts
    rates = [float(rate) for rate in shac.rates(jnp.asarray(0.1))]
    assert rates == pytest.approx([2e-3 * 0.995**100, 2e-3 * 0.997**100], rel=1e-6)
    assert (shac.environments, shac.length, shac.critic_epochs, shac.minibatches) == (64, 32, 16, 4)
    ppo = algorithm("PPO", "quadruped-walk")
    assert (ppo.environments, ppo.length, ppo.epochs, ppo.minibatches, ppo.divergence) == (2048, 24, 5, 4, 0.01)
    assert task("quadruped-walk").samples == {"PPO": 49_152_000, "SHAC": 2_048_000}


@pytest.mark.slow
@pytest.mark.parametrize("contact", ["smoothed", "hard", "relaxed", "soft"])
def test_returns_have_the_derivatives_of_differences(contact):
    """Of three actions by the targets of all joints, pressed onto the floor; relative to the slope's size."""
    made = environment("quadruped-walk", contact=contact)
    start, _ = made.reset(KEY)
    q = start.x.q.at[2].add(-0.03)
    start = dataclasses.replace(start, x=State(q, start.x.v))

    check_slope_of_rewards(made, start)
