"""Elastic impacts in continuous time: two balls on a line, and what the time-stepped map says instead."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from trajopt.dynamics import RigidContact, State, System
from trajopt.models.registry import load_model_from_string

DT, STEPS = 0.05, 20
LINE = """<mujoco><option gravity="0 0 0"/><worldbody>
<body name="a"><joint name="a" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1" mass="1" friction="0"/></body>
<body name="b"><joint name="b" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1" mass="1" friction="0"/></body>
</worldbody></mujoco>"""
START = np.array([0.0, 0.41, 1.0, 0.0])  # the second ball at rest, struck after four steps


@functools.cache
def line() -> System:
    model = load_model_from_string(LINE)
    return System(model.replace(pair_restitution=jnp.ones(1)), DT, RigidContact(max_contacts=1))


def ends(system: System, z, mass, restitution):
    """Final positions from z = (x1, x2, v1, v2), for a second ball of some mass."""
    m = system.model
    model = m.replace(mass=m.mass.at[-1].set(mass), pair_restitution=jnp.array([1.0]) * restitution)
    xs, _ = dataclasses.replace(system, model=model).rollout(State(z[:2], z[2:]), jnp.zeros((STEPS, 2)))
    return xs.q[-1]


value = jax.jit(ends)


@jax.jit
def both(system: System, z, mass, restitution):
    y, push = jax.linearize(lambda z: ends(system, z, mass, restitution), z)
    pull = jax.linear_transpose(push, z)
    return jax.vmap(push, out_axes=1)(jnp.eye(4)), jax.vmap(lambda w: pull(w)[0])(jnp.eye(2))


def continuous(mass: float, restitution: float) -> np.ndarray:
    """Final positions after an impact, in closed form: x + v t before, reflected at the moment of impact.

    With x1 + 2 r and x2 as positions of the touching points the motion is that of points, whose final positions are linear in
    the initial state: q+ = X (q + v T) and a constant, X of a collision of masses 1 and m.
    """
    share = (1 + restitution) / (1 + mass)
    X = np.array([[1 - mass * share, mass * share], [share, 1 - share]])
    return np.hstack([X, DT * STEPS * X])


@pytest.mark.parametrize(("mass", "restitution"), [(1.0, 1.0), (3.0, 1.0), (0.02, 0.6)])
def test_two_balls_on_a_line(mass, restitution):
    system = dataclasses.replace(line(), gradient="bounce")
    forward, reverse = both(system, START, mass, restitution)
    np.testing.assert_allclose(forward, continuous(mass, restitution), atol=1e-12)
    np.testing.assert_allclose(reverse, forward, atol=1e-12)
    if mass == restitution == 1.0:
        np.testing.assert_allclose(forward[1], [1, 0, 1, 0], atol=1e-12)


@pytest.mark.slow
def test_the_exact_derivative_is_that_of_the_steps():
    """Where in a step the impact falls makes no difference to where the step ends: the position's derivative is 1."""
    forward, reverse = both(line(), START, 1.0, 1.0)
    estimate = ridders_jacobian(lambda d: np.asarray(value(line(), START + d, 1.0, 1.0)), 4, 1e-3)
    compare(forward, estimate)
    np.testing.assert_allclose(reverse, forward, atol=1e-12)
    np.testing.assert_allclose(forward[1, :2], [0, 1], atol=1e-12)
