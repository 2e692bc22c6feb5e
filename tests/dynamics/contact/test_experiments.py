"""Textbook experiments under hard contact, judged by their closed forms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics.contact.law import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

G, DT = scenes.GRAVITY, scenes.DT


@functools.partial(jax.jit, static_argnums=2)
def rollout(system: System, x: State, steps: int):
    """(states after each step, impulse rows that were warm starts of the next, all solved)."""

    def body(carry, _):
        x, warm = carry
        y, info = system.step(x, jnp.zeros(system.nu), warm_start=warm)
        return (y, info.impulse), (y, info.status == Status.solved, info.iterations)

    _, info = system.step(x, jnp.zeros(system.nu))
    return jax.lax.scan(body, (x, jnp.zeros_like(info.impulse)), None, length=steps)[1]


def tilted(name: str, degrees: float) -> System:
    """The scene on an incline: gravity turned about y, so that it pulls along +x."""
    angle = np.deg2rad(degrees)
    gravity = jnp.asarray(G * np.array([np.sin(angle), 0.0, -np.cos(angle)]))
    return System(scenes.model(name).replace(gravity=gravity), dt=DT, contact=RigidContact())


@pytest.mark.parametrize("excess", [-0.1, 0.1])
def test_a_box_sticks_below_the_friction_angle_and_slips_above(excess):
    """mu = 0.4; 0.1 degrees either side of atan(mu) = 21.80 degrees; above it, a = g (sin - mu cos)."""
    degrees = np.rad2deg(np.arctan(0.4)) + excess
    xs, solved, _ = rollout(tilted("cube", degrees), State(jnp.asarray([0, 0, 0.1, 1, 0, 0, 0.0]), jnp.zeros(6)), 200)
    angle = np.deg2rad(degrees)
    acceleration = max(G * (np.sin(angle) - 0.4 * np.cos(angle)), 0.0)
    expected = np.outer(acceleration * DT * np.arange(1, 201), np.eye(6)[0])
    assert solved.all()
    np.testing.assert_allclose(xs.v, expected, atol=1e-10)


def test_a_sphere_rolls_down_an_incline():
    """Rolling without slipping: 5/7 g sin(theta)."""
    xs, solved, _ = rollout(tilted("ball", 20.0), State(jnp.asarray([0, 0, 0.1, 1, 0, 0, 0.0]), jnp.zeros(6)), 300)
    speed = 5.0 / 7.0 * G * np.sin(np.deg2rad(20.0)) * DT * np.arange(1, 301)
    assert solved.all()
    np.testing.assert_allclose(np.asarray(xs.v)[:, 0], speed, atol=1e-10)
    np.testing.assert_allclose(np.asarray(xs.v)[:, 4], speed / 0.1, atol=1e-9)


@pytest.mark.parametrize("e", [0.5, 0.8])
def test_bounce_heights_follow_the_square_of_the_restitution(e):
    """From 0.3 m. An impact may be taken a step early, |v| dt above the ground, and the ball leaves from a step further."""
    model = scenes.model("ball")
    system = System(model.replace(pair_restitution=0.0 * model.pair_restitution + e), dt=DT, contact=RigidContact())
    xs, solved, _ = rollout(system, State(jnp.asarray([0, 0, 0.4, 1, 0, 0, 0.0]), jnp.zeros(6)), 900)
    z, v = np.asarray(xs.q)[:, 2] - 0.1, np.asarray(xs.v)[:, 2]
    impacts = np.flatnonzero((v[1:] > 0) & (v[:-1] < 0)) + 1
    heights = [0.3] + [z[a:b].max() for a, b in zip(impacts, [*impacts[1:], None])][:2]
    assert solved.all() and len(heights) == 3
    np.testing.assert_allclose(v[impacts[:2]], -e * (v[impacts[:2] - 1]), rtol=1e-9)
    for before, after in zip(heights, heights[1:]):
        assert abs(after - e**2 * before) < (1 + e) * np.sqrt(2 * G * before) * DT


MEETING = """<mujoco model="meeting"><option gravity="0 0 0"/><default><geom friction="0.5"/></default><worldbody>
  <body name="a"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
  <body name="b" pos="0.21 0 0"><freejoint/><geom type="sphere" size="0.1" mass="{mass}"/></body>
  <body name="box" pos="0 0.5 0"><freejoint/><geom type="box" size="0.2 0.1 0.15" mass="3"/></body>
</worldbody></mujoco>"""


@functools.cache
def meeting() -> System:
    return System(load_model_from_string(MEETING.format(mass=1.0)), dt=DT, contact=RigidContact())


def with_masses(system: System, e: float, mass: float) -> System:
    model = system.model
    ball_b = np.flatnonzero(np.asarray(model.mass) == 1.0)[1]  # its inertia does not matter in a central impact
    masses = jnp.asarray(model.mass).at[ball_b].set(mass)
    return System(
        model.replace(mass=masses, pair_restitution=0.0 * model.pair_restitution + e), dt=DT, contact=RigidContact()
    )


@pytest.mark.parametrize("mass", [1.0, 3.0, 1e-2])
def test_two_elastic_balls(mass):
    """e = 1: equal masses exchange their velocities, to rounding; others follow the closed form."""
    system = with_masses(meeting(), 1.0, mass)
    x = system.initial_state()
    v = np.zeros(18)
    v[0], v[6] = 2.0, -0.5
    xs, solved, _ = rollout(system, State(x.q, jnp.asarray(v)), 20)
    after = np.asarray(xs.v)[-1]
    shared = (2.0 - 0.5 * mass) / (1.0 + mass)
    assert solved.all()
    np.testing.assert_allclose([after[0], after[6]], [2 * shared - 2.0, 2 * shared + 0.5], rtol=0, atol=1e-14)
    if mass == 1.0:
        np.testing.assert_allclose([after[0], after[6]], [-0.5, 2.0], atol=1e-15)


def test_momentum_of_colliding_bodies():
    """Linear momentum, bodies with their origin at the centre of mass: 1e-12 a step in flight, 1e-10 in collisions."""
    system = with_masses(meeting(), 0.6, 2.0)
    x = system.initial_state()
    v = np.array([1.0, 1.5, 0.1, 3, -2, 1, -1.0, 1.2, -0.1, 0, 2, 5, 0.2, -1.0, 0, 1.0, 0.3, -0.4])
    xs, solved, _ = rollout(system, State(x.q, jnp.asarray(v)), 400)
    mass = np.array([1.0, 2.0, 3.0])
    velocities = np.concatenate([v[None], np.asarray(xs.v)]).reshape(-1, 3, 6)[:, :, :3]
    momentum = np.einsum("b,tbi->ti", mass, velocities)
    change = np.abs(np.diff(momentum, axis=0)).max(1)
    met = np.abs(np.diff(velocities, axis=0)).max((1, 2)) > 1e-9
    assert solved.all() and met.sum() >= 2 and (~met).sum() > 100
    assert change[met].max() < 1e-10 and change[~met].max() < 1e-12


def stack(ratio: float, count: int = 10) -> str:
    """Boxes on top of each other, offsets up to 1 cm, random yaw, `ratio` between the masses of neighbours."""
    rng, bodies = np.random.default_rng(0), []
    for k in range(count):
        x, y = 0.01 * rng.uniform(-1, 1, size=2) / np.sqrt(2)
        yaw = rng.uniform(0, 2 * np.pi)
        bodies.append(
            f'<body name="box{k}" pos="{x} {y} {0.1 + 0.2 * k}" quat="{np.cos(yaw / 2)} 0 0 {np.sin(yaw / 2)}">'
            f'<freejoint/><geom type="box" size="0.1 0.1 0.1" mass="{ratio if k % 2 else 1.0}" friction="0.6"/></body>'
        )
    floor = '<geom type="plane" size="0 0 1" friction="0.6"/>'
    return f'<mujoco model="stack"><worldbody>{floor}{"".join(bodies)}</worldbody></mujoco>'


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 100.0])
def test_ten_stacked_boxes_stay_at_rest(ratio):
    """Drift below 1e-4 m in 2 s."""
    law = RigidContact(max_contacts=40)
    system = System(load_model_from_string(stack(ratio)), dt=DT, contact=law)
    x = system.initial_state()
    xs, solved, iterations = rollout(system, x, 2000)
    assert solved.all() and np.asarray(iterations).max() < 30
    assert np.abs(np.asarray(xs.q) - np.asarray(x.q)).max() < 1e-4
