"""Environments: rewards are minus costs, episodes end and begin again, derivatives are those of the motion, errors name the
term."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_cases import slider, summed_rewards

from trajopt.dynamics import RigidContact, System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.learning import Environment, around, tasks, within
from trajopt.learning.environment import Moment
from trajopt.learning.networks import Actor, Normaliser
from trajopt.learning.rollouts import begin, explore
from trajopt.models import load_model
from trajopt.problems import residuals as r

KEY = jax.random.PRNGKey(0)


def test_a_step_holds_the_action_and_the_reward_is_minus_the_cost_of_the_state_reached():
    environment = slider()
    state, seen = environment.reset(KEY)
    reached, outcome = environment.step(state, jnp.array([0.5]))
    q, v = float(state.x.q[0]), float(state.x.v[0])
    for _ in range(2):  # semi-implicit Euler under 1.5 N on 1 kg
        v += 0.05 * 1.5
        q += 0.05 * v
    np.testing.assert_allclose([reached.x.q[0], reached.x.v[0]], [q, v], rtol=1e-12)
    np.testing.assert_allclose(outcome.observation, [q, v], rtol=1e-12)
    wanted = {"posture": -0.5 * (2 * q) ** 2, "velocity": -0.5 * (0.3 * v) ** 2, "control": -0.5 * 0.15**2}
    assert set(outcome.terms) == set(wanted) and not outcome.done and int(outcome.fault) == -1
    for name, value in wanted.items():
        assert float(outcome.terms[name]) == pytest.approx(value, rel=1e-10)
    assert float(outcome.reward) == pytest.approx(sum(wanted.values()), rel=1e-10)
    np.testing.assert_array_equal(seen, [state.x.q[0], state.x.v[0]])


def test_episodes_that_are_over_begin_again_and_others_go_on():
    environment = slider(terminated=lambda moment: moment.x.q[0] > 0.8)
    states, _ = jax.vmap(environment.reset)(jax.random.split(KEY, 3))
    q = jnp.array([[0.85], [0.0], [0.0]])
    states = dataclasses.replace(states, x=dataclasses.replace(states.x, q=q, v=0 * q), steps=jnp.array([2, 7, 3]))
    following, seen, outcome = jax.vmap(environment.step_or_reset)(states, jnp.zeros((3, 1)))
    assert outcome.terminated.tolist() == [True, False, False] and outcome.truncated.tolist() == [False, True, False]
    assert following.steps.tolist() == [0, 0, 4]
    np.testing.assert_array_equal(outcome.observation[:, 0], q[:, 0])  # before the reset
    np.testing.assert_array_equal(seen[2], outcome.observation[2])
    assert (seen[:2, 0] != q[:2, 0]).all() and len(set(np.asarray(seen[:2, 0]).tolist())) == 2
    assert (following.key[0] != states.key[0]).any() and (following.key[2] == states.key[2]).all()


def test_the_derivative_of_a_return_is_that_of_differences():
    """Central differences of a polynomial of second degree in each action: exact but for rounding, 1e-16 / 1e-4."""
    environment = slider()
    state, _ = environment.reset(KEY)
    total = summed_rewards(environment, state)
    actions = jnp.asarray(np.random.default_rng(1).uniform(-0.5, 0.5, (5, 1)))
    slope, value = jax.jit(jax.grad(total))(actions), jax.jit(total)
    for k in range(5):
        step = jnp.zeros((5, 1)).at[k].set(1e-4)
        assert float(slope[k, 0]) == pytest.approx(float(value(actions + step) - value(actions - step)) / 2e-4, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["implicit", "smoothed", "complementarity-aware"])
def test_gradient_modes_through_contact(gradient):
    """A standing hopper pushes: all modes give a finite slope; the exact one is that of differences."""
    environment = tasks.environment("hopper").with_gradient(gradient)
    state, _ = environment.reset(KEY)
    total = summed_rewards(environment, state)
    actions = jnp.asarray(np.random.default_rng(1).uniform(-0.3, 0.3, (4, 3)))
    slope = jax.jit(jax.grad(total))(actions)
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0
    if gradient == "implicit":
        value = jax.jit(total)
        step = jnp.zeros((4, 3)).at[1, 1].set(1e-6)
        # steps have kinks: rounding 1e-10 of the contact solve over 1e-6
        assert float(slope[1, 1]) == pytest.approx(float(value(actions + step) - value(actions - step)) / 2e-6, rel=1e-3)


def test_factors_and_draws_belong_to_the_episode():
    environment = slider(factors={"mass": (0.5, 2.0)}, drawn=within([3.0], [4.0]), observe=lambda m: jnp.append(m.x.q, m.drawn))
    states, seen = jax.vmap(environment.reset)(jax.random.split(KEY, 4))
    assert ((seen[:, 1] >= 3) & (seen[:, 1] <= 4)).all() and len(set(np.asarray(seen[:, 1]).tolist())) == 4
    reached, _ = jax.vmap(environment.step)(states, jnp.ones((4, 1)))
    gained = np.asarray(reached.x.v - states.x.v)[:, 0]
    np.testing.assert_allclose(gained, 2 * 0.05 * 3.0 / np.asarray(states.factors["mass"]), rtol=1e-10)
    np.testing.assert_array_equal(reached.factors["mass"], states.factors["mass"])


def test_another_law_keeps_the_time_of_an_action():
    """Actions of 0.1 s: two steps of 0.05 s, or eight of 0.0125 s, of another law and with other rounding alone."""
    made = slider()
    other = made.with_contact(RigidContact(), 0.0125)
    assert (other.substeps, float(other.system.dt), other.dt) == (8, 0.0125, pytest.approx(made.dt))
    assert other.system.contact == RigidContact() and made.with_contact(RigidContact()).substeps == 2
    state, _ = made.reset(KEY)
    ends = [each.step(state, jnp.array([0.2]))[0].x for each in (made, other)]
    # v+ is the same; semi-implicit Euler's q differs by a dt T / 2 = 0.6 m/s^2 (0.05 - 0.0125) s 0.1 s / 2
    assert float(ends[1].v[0]) == pytest.approx(float(ends[0].v[0]), rel=1e-12)
    assert float(ends[0].q[0] - ends[1].q[0]) == pytest.approx(0.6 * 0.0375 * 0.1 / 2, rel=1e-9)


def test_exploration_begins_anew_where_an_episode_has_ended():
    """Ten actions in episodes of eight: those of `step_or_reset`, one environment after the other."""
    made, actor = slider(), Actor(2, 1, (4,), 0.5, jnp.float64, KEY)
    states, seen = begin(made, KEY, 3)
    normaliser = Normaliser.of(2, jnp.float64)
    *_, found = jax.jit(lambda states, seen: explore(made, actor, normaliser, states, seen, KEY, 10))(states, seen)
    one_by_one = jax.jit(jax.vmap(made.step_or_reset))
    for t in range(10):
        np.testing.assert_allclose(found.observation[t], seen, rtol=1e-12)
        states, seen, outcome = one_by_one(states, jnp.tanh(found.z[t]))
        np.testing.assert_array_equal(found.truncated[t], outcome.truncated)
    assert int(found.truncated.sum()) >= 3


def test_a_batch_does_not_end_all_at_once():
    states, _ = begin(slider(), KEY, 64)
    assert set(np.asarray(states.steps).tolist()) == set(range(8))


def test_a_function_gives_the_terms_of_the_reward():
    environment = slider(reward=lambda before, u, after: {"gain": after.x.q[0] - before.x.q[0], "effort": -(u[0] ** 2)})
    assert environment.fault_names == ("effort", "gain", "state")
    state, _ = environment.reset(KEY)
    _, outcome = environment.step(state, jnp.array([0.1]))
    assert float(outcome.reward) == pytest.approx(float(outcome.terms["gain"]) - 0.09)


@pytest.mark.slow
def test_residuals_of_a_step_ask_the_last_one_taken():
    model = load_model("cube")
    system = System(model, 1e-3, RigidContact())
    weight = float(model.mass.sum()) * 9.81e-3
    environment = Environment(
        "press", system, r.ContactImpulse("cube", reference=jnp.array([0.0, 0.0, weight])), 5,
        around(model, model.keyframes["home"]), substeps=2, control=lambda moment: moment.action, actions=0,
    )  # fmt: skip
    state, _ = environment.reset(KEY)
    _, outcome = environment.step(state, jnp.zeros(0))
    assert abs(float(outcome.reward)) < 1e-16  # it lies still, and the floor carries it


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"substeps": 0}, OptionError, "substeps is 0"),
        ({"reward": 3.0}, OptionError, "reward is 3.0"),
        ({"factors": {"masss": (1.0, 2.0)}}, UnknownNameError, "did you mean 'mass'"),
        ({"factors": {"mass": (2.0, 1.0)}}, OptionError, "least and the most"),
        ({"actions": 2}, OptionError, "one a motor, 1"),
    ],
)
def test_errors_name_the_argument(changes, error, text):
    with pytest.raises(error, match=text):
        slider(**changes)


def test_unknown_tasks_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'cartpole-swingup'"):
        tasks.environment("cartpole")


def test_the_sharpness_of_smoothed_contact_is_drawn_for_an_episode():
    """It takes the place of the law's own, 300 per m; a foot is 4 mm above the ground."""
    made = tasks.environment("quadruped-walk", randomised=False)
    soft = dataclasses.replace(made, factors={"kappa": (0.2, 0.3)})
    state, _ = made.reset(KEY)
    drawn = soft.reset(KEY)[0].factors
    assert 0.2 <= float(drawn["kappa"]) <= 0.3
    x = dataclasses.replace(state.x, q=state.x.q.at[2].add(0.004))
    given = {name: dataclasses.replace(state, x=x, factors=drawn if name == "soft" else {}) for name in ("soft", "sharp")}
    one, other = (jax.jit(made.step)(given[name], jnp.zeros(12))[0].x.v for name in ("soft", "sharp"))
    np.testing.assert_array_equal(other, jax.jit(made.step)(given["sharp"], jnp.zeros(12), jnp.asarray(300.0))[0].x.v)
    kappa = 300.0 * drawn["kappa"]
    np.testing.assert_array_equal(one, jax.jit(made.step)(given["sharp"], jnp.zeros(12), kappa)[0].x.v)
    assert float(jnp.abs(one - other).max()) > 1e-3


def test_penalties_stand_beside_the_costs_of_residuals():
    def changes(before, u, after):
        return {"change": -((after.action - before.action) ** 2).sum()}

    plain, made = slider(), slider(penalties=changes)
    state, _ = made.reset(KEY)
    state = dataclasses.replace(state, action=jnp.array([0.2]))
    outcome, without = (each.step(state, jnp.array([0.5]))[1] for each in (made, plain))
    assert set(outcome.terms) == {*without.terms, "change"} and float(outcome.terms["change"]) == pytest.approx(-0.09)
    assert float(outcome.reward) == pytest.approx(float(without.reward) - 0.09, rel=1e-12)
    assert made.fault_names == (*sorted(outcome.terms), "state")


def test_the_humanoid_is_pushed_on_ground_of_other_softness_and_pays_for_impacts():
    plain, made = (tasks.environment("humanoid-push", randomised=other) for other in (False, True))
    assert isinstance(plain.system.contact, RigidContact) and not plain.factors and plain.penalties is None
    assert made.factors.keys() == {"kappa", "pair_restitution", "pair_friction", "mass"}
    assert np.asarray(made.system.model.pair_restitution).min() == 0.1 and made.na == plain.na and made.no == plain.no
    state, _ = made.reset(KEY)
    v = state.x.v.at[6].add(0.01)  # 2 rad/s^2 of one joint in 5 ms, and one action that changes by 1
    at = Moment(made.system.model, state.x, jnp.zeros(made.na), jnp.zeros(()), state.drawn)
    after = dataclasses.replace(at, x=dataclasses.replace(state.x, v=v), action=jnp.zeros(made.na).at[0].set(1.0))
    terms = made.penalties(at, jnp.zeros(made.na), after)
    assert float(terms["action rate"]) == pytest.approx(-0.02) and float(terms["impact"]) == pytest.approx(-2.5e-7 * 4.0)
