"""Pairs of moving bodies through `System`: rest, rolling, exchanged order, and the derivative of the step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics.collision.narrowphase import collide, collide_with_derivatives
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model_from_string

SHAPES = {
    "sphere": 'type="sphere" size="0.11"',
    "capsule": 'type="capsule" size="0.08 0.2"',
    "box": 'type="box" size="0.1 0.15 0.12"',
    "cylinder": 'type="cylinder" size="0.12 0.15"',
    "ellipsoid": 'type="ellipsoid" size="0.1 0.14 0.12"',
}


@functools.cache
def two_bodies(one: str, two: str, gravity: str = "0 0 -9.81"):
    """Two free bodies of the given shapes, the second one heavier."""
    text = f"""<mujoco model="{one}-on-{two}"><option gravity="{gravity}"/><default><geom friction="0.6"/></default><worldbody>
      <body name="a"><freejoint/><geom name="a" {SHAPES[one]} mass="1"/></body>
      <body name="b"><freejoint/><geom name="b" {SHAPES[two]} mass="2"/></body></worldbody></mujoco>"""
    return load_model_from_string(text).to_device()


@functools.cache
def contacts_of(one: str, two: str):
    """Compiled `collide_with_derivatives` of the two bodies, and of the same with the pair the other way round."""
    model = two_bodies(one, two)
    a, b = model.topology.pairs[0]
    back = model.replace(topology=dataclasses.replace(model.topology, pairs=((b, a),)))
    return tuple(jax.jit(lambda q, m=m: collide_with_derivatives(m, kinematics(m, q))) for m in (model, back)), back


@jax.jit
def plain_contacts(model, q):
    return collide(model, kinematics(model, q))


def touching(one, two, q, depth):
    """q with the first body moved along the normal of the deepest contact until that one has distance -depth."""
    q = np.array(q, float)
    for _ in range(3):
        contacts, _ = contacts_of(one, two)[0][0](q)
        k = int(np.argmin(contacts.distance))
        q[:3] -= (float(contacts.distance[k]) + depth) * np.asarray(contacts.normal[k])
    return q


PAIRS = [
    ("box", "box"), ("sphere", "sphere"), ("sphere", "box"), ("sphere", "capsule"), ("sphere", "cylinder"),
    ("capsule", "capsule"), ("capsule", "box"), ("capsule", "cylinder"),
]  # fmt: skip

# Pairs that the general function serves.
GENERAL = [("box", "cylinder"), ("cylinder", "cylinder"), ("capsule", "ellipsoid"), ("ellipsoid", "ellipsoid")]


def pose(one, two):
    """A tilted body above another one that is tilted too."""
    q1 = [0.03, -0.02, 0.4, *scenes.about([1.0, 0.2, 0.4], 0.3)]
    q2 = [0.0, 0.0, 0.0, *scenes.about([0.3, 1.0, -0.2], 0.15)]
    return touching(one, two, [*q1, *q2], 1e-4)


QUICK = [("box", "box"), ("sphere", "capsule")]
STEPS = [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in [*PAIRS, *GENERAL]]


@pytest.mark.parametrize(("one", "two"), STEPS)
def test_derivative_of_the_step(one, two):
    """A = dx+/dx of two free bodies in contact, both moving: normals, points and frames turn with both bodies."""
    model = two_bodies(one, two)
    system = System(model, dt=1e-3)
    q = pose(one, two)
    v = np.concatenate([[0.1, -0.2, -0.5, 0.4, 0.3, -0.6], [0.05, 0.1, 0.2, -0.3, 0.5, 0.2]])
    x = State(jnp.asarray(q), jnp.asarray(v))
    # phi / dt turns a shift of 1e-6 m into 1e-3 m/s; the depth of 1e-4 m keeps the contact closed.
    tolerances = {"options": {"levels": 4}, "relative": 1e-5, "untrusted": 0.1, "label": f"{one}-{two}"}
    jac = scenes.judged_slopes(system, x, jnp.zeros(0), (2e-6, 2e-6, 0, 0), **tolerances)
    assert float(jac.info.residual) < 1e-10
    assert np.abs(np.asarray(jac.info.impulse)).max() > 1e-2


def test_plane_on_a_moving_body():
    """A plane that belongs to a body: first in the pair, and moving."""
    model = scenes.model("forest")
    top = model.topology
    floor = next(k for k, s in enumerate(top.shapes) if s.kind == ShapeType.PLANE)
    tip = next(k for k, s in enumerate(top.shapes) if s.name == "tip")
    box = next(k for k, s in enumerate(top.shapes) if s.name == "box")
    shapes = list(top.shapes)
    shapes[floor] = dataclasses.replace(shapes[floor], node=shapes[box].node)
    moving = model.replace(topology=dataclasses.replace(top, shapes=tuple(shapes), pairs=((floor, tip),)))
    q = np.array([1.0, 0.2, 0.3, *scenes.about([1, 2, 3], 0.4), 0.5, 0.1, 0.9])
    contacts, world = plain_contacts(moving, q), plain_contacts(model, q)
    is_tip = np.array([top.pairs[int(p)][0] == tip for p in world.pair])
    centre = np.asarray(world.point)[is_tip][0] + [0, 0, 0.03]
    R = scenes.rotation(scenes.about([1, 2, 3], 0.4))
    np.testing.assert_allclose(contacts.distance, [R[:, 2] @ (centre - q[:3]) - 0.03], atol=1e-12)
    np.testing.assert_allclose(contacts.normal, [-R[:, 2]], atol=1e-12)
    assert int(contacts.node1[0]) == shapes[box].node and int(contacts.node2[0]) == shapes[tip].node


def test_a_ball_rolls_down_another():
    """Rolling without slip on a fixed ball: 7/10 v^2 = g (R + r) (cos a0 - cos a), and v = omega r."""
    text = """<mujoco model="balls"><default><geom friction="1"/></default><worldbody>
      <geom name="rock" type="sphere" size="0.5"/>
      <body name="ball"><freejoint/><geom name="ball" type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""
    model = load_model_from_string(text)
    dt, start = 2e-4, 0.3
    system = System(model, dt=dt)
    q = np.array([0.6 * np.sin(start), 0, 0.6 * np.cos(start), 1, 0, 0, 0])
    xs, info = system.rollout(State(q, np.zeros(6)), np.zeros((2200, 0)))
    x, v = np.asarray(xs.q), np.asarray(xs.v)
    radius = np.linalg.norm(x[-1, :3])
    angle = np.arctan2(x[-1, 0], x[-1, 2])
    assert 0.5 < angle < 0.8  # it begins to slip at 0.86
    assert abs(radius - 0.6) < 1e-4
    speed = np.linalg.norm(v[-1, :3])
    # First-order integration: the error is of order dt times the rate, 1e-3 relative here.
    np.testing.assert_allclose(0.7 * speed**2, 9.81 * 0.6 * (np.cos(start) - np.cos(angle)), rtol=5e-3)
    np.testing.assert_allclose(np.linalg.norm(v[-1, 3:]) * 0.1, speed, rtol=2e-3)
    assert np.asarray(info.residual).max() < 1e-9
