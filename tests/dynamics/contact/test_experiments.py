"""Textbook experiments, judged by their closed forms: the scenes of `benchmarks/validation.py`, in short."""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics import CompliantContact, RigidContact, State, System

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "benchmarks"))
from validation_experiments import friction, impacts, incline, scenes, stack

G, DT = scenes.EARTH, 1e-3


@pytest.mark.parametrize("excess", [-0.1, 0.1])
def test_a_box_sticks_below_the_friction_angle_and_slips_above(excess):
    """mu = 0.4; 0.1 degrees either side of atan(mu) = 21.80 degrees; above it, a = g (sin - mu cos)."""
    degrees = np.rad2deg(np.arctan(0.4)) + excess
    box = scenes.on_incline(scenes.model(scenes.box_xml()), degrees)
    xs, solved, *_ = scenes.rollout(System(box, dt=DT, contact=RigidContact()), scenes.at(z=0.1), 200)
    expected = np.outer(friction.box_law(degrees) * DT * np.arange(1, 201), np.eye(6)[0])
    assert solved.all() and (expected[-1, 0] > 1e-3) == (excess > 0)
    np.testing.assert_allclose(xs.v, expected, atol=1e-10)


@pytest.mark.parametrize(
    "law, tolerance", [(RigidContact(), 1e-10), pytest.param(CompliantContact(), 3e-2, marks=pytest.mark.slow)]
)
def test_a_box_pushed_in_steps(law, tolerance):
    """4.8 N, below mu m g = 4.9 N: it stays; 7.2 N: it accelerates; then it stops (JaxSim thesis, 7.5.2).

    Compliant: after it has stopped the corners spring back from mu g / (sqrt(d) k_t), at the speed of 2e-2 m/s.
    """
    pushes = np.repeat([2.4, 4.8, 7.2, 0.0], 50)
    _, v, solved = friction.pushed_box(law, pushes)
    exact = friction.speed_under(pushes, DT)
    assert solved and exact[149] > 0.1 and exact[-1] == 0
    np.testing.assert_allclose(v, exact, atol=tolerance)


@pytest.mark.parametrize("mu", [2.0, 0.5, 0.2, 0.0])
def test_a_box_on_an_incline_beside_mujoco(mu):
    """20 degrees, tan = 0.364 (thesis, Table 7.1): the closed form to rounding; MuJoCo, whose contact is soft, to 1e-2 m/s."""
    _, v = incline.ours(RigidContact(), mu, incline.lying(), steps=200)
    exact = incline.slides(mu) * DT * 200
    assert (exact > 0) == (mu < 0.364)
    np.testing.assert_allclose(v[-1], exact * np.eye(6)[0], atol=1e-10)
    np.testing.assert_allclose(incline.mujocos(mu, incline.lying(), steps=200)[1][-1, 0], exact, atol=1e-2)


@pytest.mark.slow
def test_a_box_dropped_on_an_incline():
    """Without friction nothing acts along the slope, whatever the impacts; with 0.5 it ends at rest."""
    t = DT * np.arange(1, incline.STEPS + 1)
    along = scenes.slope_gravity(incline.DEGREES, scenes.THESIS)[0]
    for law, way in ((RigidContact(), along * t * (t + DT) / 2), (CompliantContact(), along * t**2 / 2)):
        q, _ = incline.ours(law, 0.0, incline.start())
        np.testing.assert_allclose(q[:, 0] - incline.start()[0], way, atol=1e-11)
        _, v = incline.ours(law, 0.5, incline.start())
        assert np.abs(v[-500:]).max() < 1e-12


def test_a_sphere_rolls_down_an_incline():
    """Rolling without slipping: 5/7 g sin(theta)."""
    ball = scenes.on_incline(scenes.model(scenes.ball_xml()), 20.0)
    xs, solved, *_ = scenes.rollout(System(ball, dt=DT, contact=RigidContact()), scenes.at(z=0.1), 900)
    speed = friction.ball_law(20.0) * DT * np.arange(1, 901)
    assert solved.all() and friction.ball_law(20.0) == 5 / 7 * G * np.sin(np.deg2rad(20.0))
    np.testing.assert_allclose(np.asarray(xs.v)[:, 0], speed, atol=1e-10)
    np.testing.assert_allclose(np.asarray(xs.v)[:, 4], speed / 0.1, atol=1e-9)


def test_a_thrown_ball_ends_rolling():
    """At 5/7 of its horizontal speed. The impact is taken up to |v| dt above the floor, where friction has that much more
    leverage: 2/7 |v| dt / r of the speed. In flight energy is constant (JaxSim thesis, 7.5.1)."""
    t, z, v, energy, force, solved = impacts.thrown_ball(RigidContact(), DT, 0.9)
    impact = np.sqrt(1.0 + 2 * scenes.THESIS * 1.0)
    assert solved.all()
    assert abs(v[-1, 0] / (10 / 7) - 1) < 2 / 7 * impact * DT / impacts.RADIUS
    np.testing.assert_allclose(v[-1, 4] * impacts.RADIUS, v[-1, 0], rtol=1e-9)
    first = impacts.flights(force)[0]
    middle = energy - 0.5 * impacts.MASS * scenes.THESIS * DT * v[:, 2]
    assert len(first) > 300 and np.ptp(middle[first]) < 1e-12


@pytest.mark.parametrize("e", [0.5, 0.8, 1.0])
def test_bounce_heights_follow_the_square_of_the_restitution(e):
    """From 0.3 m. An impact may be taken a step early, |v| dt above the ground, and the ball leaves from a step further."""
    heights, _, speeds, solved = impacts.bounces(e, DT, seconds=1.3)
    assert solved and len(heights) >= 3
    np.testing.assert_allclose(speeds[:2], e, rtol=1e-9)
    for before, after in zip(heights[:2], heights[1:3]):
        assert abs(after - e**2 * before) < impacts.landing_error(e, before, DT)


@pytest.mark.parametrize("mass, e", [(1.0, 1.0), (3.0, 1.0), (1e-2, 1.0), (3.0, 0.5)])
def test_two_balls(mass, e):
    """The closed form; equal masses with e = 1 exchange their velocities, to rounding."""
    after, solved = impacts.meeting_balls(e, mass, 2.0, -0.5)
    assert solved
    np.testing.assert_allclose(after, impacts.central_impact(e, mass, 2.0, -0.5), rtol=0, atol=1e-14)
    if mass == e == 1.0:
        np.testing.assert_allclose(after, [-0.5, 2.0], atol=1e-15)


def test_momentum_of_colliding_bodies():
    """Linear momentum, bodies with their origin at the centre of mass: 1e-12 a step in flight, 1e-10 in collisions."""
    mass = np.array([1.0, 2.0, 3.0])
    scene = scenes.with_restitution(scenes.model(scenes.MEETING), 0.6)
    second = np.flatnonzero(np.asarray(scene.mass) == 1.0)[1]
    system = System(scene.replace(mass=jnp.asarray(scene.mass).at[second].set(2.0)), dt=DT, contact=RigidContact())
    v = np.array([1.0, 1.5, 0.1, 3, -2, 1, -1.0, 1.2, -0.1, 0, 2, 5, 0.2, -1.0, 0, 1.0, 0.3, -0.4])
    xs, solved, *_ = scenes.rollout(system, State(system.initial_state().q, jnp.asarray(v)), 400)
    velocities = np.concatenate([v[None], np.asarray(xs.v)]).reshape(-1, 3, 6)[:, :, :3]
    momentum = np.einsum("b,tbi->ti", mass, velocities)
    change = np.abs(np.diff(momentum, axis=0)).max(1)
    met = np.abs(np.diff(velocities, axis=0)).max((1, 2)) > 1e-9
    assert solved.all() and met.sum() >= 2 and (~met).sum() > 100
    assert change[met].max() < 1e-10 and change[~met].max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 100.0])
def test_ten_stacked_boxes_stay_at_rest(ratio):
    """Drift below 1e-4 m in 2 s."""
    moved, solved, iterations = stack.stacked(ratio)
    assert solved and iterations.max() < 30
    assert np.abs(moved).max() < 1e-4
