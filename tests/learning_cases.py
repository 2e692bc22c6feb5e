"""A small environment for the tests of learning: a mass on a slide is to be brought to the middle."""

import jax
import jax.numpy as jnp
import pytest

from trajopt.dynamics import NoContact, System
from trajopt.learning import Environment, around
from trajopt.models import load_model_from_string
from trajopt.problems import residuals as r

SLIDER = """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0" range="-2 2"/>
<inertial mass="1" pos="0 0 0" diaginertia="1e-3 1e-3 1e-3"/><geom type="sphere" size="0.1" contype="0" conaffinity="0"/></body>
</worldbody><actuator><motor joint="x" ctrlrange="-3 3"/></actuator></mujoco>"""


def slider(**changes) -> Environment:
    """Episodes of eight actions of two steps of 0.05 s each."""
    system = System(load_model_from_string(SLIDER), 0.05, NoContact())
    settings = {
        "reward": r.Posture(weight=2.0) + r.Velocity(weight=0.3) + r.Control(weight=0.1),
        "initial": around(system.model, jnp.zeros(1), position=1.0, velocity=0.5),
        "substeps": 2, "success": lambda xs, steps, drawn: jnp.abs(xs.q[-1, 0]) < 0.3,
    }  # fmt: skip
    return Environment("slider", system, limit=8, **settings | changes)


def summed_rewards(environment: Environment, start):
    """Of actions (T, nu) from a state: the sum of their rewards."""

    def total(actions):
        def body(state, action):
            state, outcome = environment.step(state, action)
            return state, outcome.reward

        return jax.lax.scan(body, start, actions)[1].sum()

    return total


def check_slope_of_rewards(environment: Environment, start) -> None:
    """Of three actions by twelve targets along a drawn direction, beside a central difference; relative to the slope's size."""
    total = summed_rewards(environment, start)
    actions = 0.1 * jax.random.normal(jax.random.PRNGKey(0), (3, 12))
    value, slope = jax.jit(total), jax.jit(jax.grad(total))(actions)
    along = jax.random.normal(jax.random.PRNGKey(1), actions.shape)
    wanted = float(value(actions + 1e-6 * along) - value(actions - 1e-6 * along)) / 2e-6
    assert float((slope * along).sum()) == pytest.approx(wanted, rel=1e-4, abs=1e-7)
