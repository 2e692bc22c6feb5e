"""What certificates recompute is what `System.rollout` and `collide` give."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics import RigidContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.models import load_model
from trajopt.problems import programs
from trajopt.problems.library.replay import candidate_shapes, replay


@pytest.mark.parametrize("name", ["cube", "catapult", "go1"])
def test_candidates_belong_to_the_shapes_of_the_pairs_that_collide_lists(name):
    model = load_model(name)

    def pairs(subject, q):
        return collide(model, kinematics(model, q)).pair

    listed, _ = programs.run(pairs, None, jnp.asarray(model.q_default), effort=Effort.QUICK)
    assert candidate_shapes(model) == tuple(model.topology.pairs[k][0] for k in np.asarray(listed))


def test_a_replay_is_the_rollout():
    system = System(load_model("cube"), 1e-3, RigidContact(max_contacts=4))
    x0 = State(system.initial_state().q, jnp.array([1.0, 0.5, 0.0, 0.0, 0.0, 2.0]))
    us = jnp.zeros((20, system.nu))
    states, infos = replay(system, x0, us)
    expected, report = system.rollout(x0, us)
    # The same arithmetic in another order.
    np.testing.assert_allclose(states.q, expected.q, atol=1e-12)
    np.testing.assert_allclose(states.v, expected.v, atol=1e-11)
    np.testing.assert_allclose(infos.contacts.impulse, report.contacts.impulse, atol=1e-12)
