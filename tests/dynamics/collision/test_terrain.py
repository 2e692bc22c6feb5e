"""Contacts with height fields and smooth ground: bowls and inclines in closed form, differences, whole steps, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import ridders, ridders_jacobian

from dynamics.collision import pair_judges as judge
from dynamics.contact import scenes
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.terrain import ground_contacts, ground_height
from trajopt.dynamics.contact.laws import CompliantContact, RigidContact
from trajopt.dynamics.model import ShapeType as T
from trajopt.dynamics.model import Surface
from trajopt.dynamics.system import State, System
from trajopt.errors import ModelError, OptionError, UnknownNameError
from trajopt.models import load_model_from_string, on_terrain

VERTICES = np.random.default_rng(0).normal(size=(7, 3)) * 0.2
N = 24


def bowl(x, y, p):
    """A sphere of radius p[0] that touches z = 0 from above."""
    return p[0] - jnp.sqrt(p[0] ** 2 - x * x - y * y)


def waves(x, y, p):
    return p[0] * jnp.sin(p[1] * x) * jnp.cos(p[2] * y) + p[3] * x


@functools.cache
def compiled(kind, surface):
    def call(R1, p1, size1, R2, p2, size2, numbers):
        return ground_contacts(kind, surface, R1, p1, size1, R2, p2, size2, numbers, jnp.asarray(VERTICES, p1.dtype))

    return jax.jit(jax.vmap(functools.partial(slope_and_value, call), in_axes=(0,) * 6 + (None,)))


def evaluate(kind, surface, pose, numbers):
    slope, value = compiled(kind, surface)(*(jnp.asarray(x) for x in pose), jnp.asarray(numbers))
    return np.asarray(slope), tuple(np.asarray(x) for x in value)


def poses(height, seed=0):
    """Shapes of 0.05 to 0.15 m some centimetres around a ground that is tilted and shifted."""
    R1, _, size1, R2, p2, size2 = (x[:N].copy() for x in judge.poses(seed))
    above = np.random.default_rng(seed).uniform([-0.4, -0.4, -0.03], [0.4, 0.4, 0.25], (N, 3))
    above[:, 2] += [height(*x[:2]) for x in above]
    return R1, p2 + np.einsum("nij,nj->ni", R2, above), size1 * 0.3, R2, p2, np.full((N, 3), 0.9), above


@pytest.mark.parametrize("kind", [T.SPHERE, T.POINTS])
def test_a_bowl(kind):
    """In a spherical bowl the distance of a ball is R - |c - centre| - r, its normal points to the centre of the bowl."""
    bowl_radius, surface = 1.5, Surface(0, 1, function=bowl)
    pose = poses(lambda x, y: bowl_radius - np.sqrt(bowl_radius**2 - x * x - y * y))
    _, (distance, point, normal) = evaluate(kind, surface, pose[:6], [bowl_radius])
    R1, p1, size1, R2, p2 = pose[:5]
    centres = p1[:, None] if kind == T.SPHERE else p1[:, None] + np.einsum("nij,kj->nki", R1, VERTICES)
    radius = size1[:, :1] if kind == T.SPHERE else 0.0
    towards = p2[:, None] + bowl_radius * R2[:, None, :, 2] - centres
    far = np.linalg.norm(towards, axis=-1)
    near = far > 0.6  # elsewhere close to the centre of the bowl, where the closest point is not unique
    assert near.mean() > 0.9
    np.testing.assert_allclose(distance[near], (bowl_radius - far - radius)[near], atol=1e-9)
    np.testing.assert_allclose(normal[near], (towards / far[..., None])[near], atol=1e-8)
    on_bowl = point - normal * (distance[..., None] if kind == T.SPHERE else 0.0)
    on_bowl = np.linalg.norm(on_bowl - p2[:, None] - bowl_radius * R2[:, None, :, 2], axis=-1)
    np.testing.assert_allclose(on_bowl[near], bowl_radius, atol=1e-9)


def test_grid_is_interpolated_smoothly():
    """Heights at the nodes, continuous slopes between cells, level beyond the border."""
    rng = np.random.default_rng(0)
    rows, columns = 5, 4
    heights = rng.normal(size=rows * columns) * 0.1
    size = jnp.asarray([0.6, 0.8, 0.0])

    @jax.jit
    @jax.vmap
    def at(xy):
        height = ground_height(Surface(0, heights.size, rows, columns), size, jnp.asarray(heights))
        return height(xy), jax.grad(height)(xy)

    x, y = np.meshgrid(np.linspace(-0.6, 0.6, columns), np.linspace(-0.8, 0.8, rows))
    value, _ = at(np.stack([x, y], -1).reshape(-1, 2))
    np.testing.assert_allclose(value, heights, atol=1e-14)
    borders = np.stack([np.full(20, -0.2), np.linspace(-0.79, 0.79, 20)], 1)
    (low, low_slope), (high, high_slope) = at(borders - [1e-9, 0]), at(borders + [1e-9, 0])
    np.testing.assert_allclose(low, high, atol=1e-8)
    np.testing.assert_allclose(low_slope, high_slope, atol=1e-7)
    outside, slope = at(np.array([[0.7, 0.1], [5.0, 0.1]]))
    assert outside[0] == outside[1] and np.all(np.asarray(slope)[:, 0] == 0)


def test_derivatives_by_pose_and_by_parameters():
    numbers, surface = np.array([0.05, 4.0, 3.0, 0.1]), Surface(0, 4, function=waves)
    pose = poses(lambda x, y: float(waves(x, y, numbers)), seed=5)[:6]
    slope, _ = evaluate(T.BOX, surface, pose, numbers)

    def flat(value):
        return np.concatenate([value[0][..., None], *value[1:]], -1)

    def moved(s, j):
        z = s * np.eye(6)[j]
        turn = scenes.rotation(scenes.about(z[3:], abs(s))) if j > 2 and s else np.eye(3)
        return flat(evaluate(T.BOX, surface, (turn @ pose[0], pose[1] + z[:3], *pose[2:]), numbers)[1])

    for j in range(6):
        estimate = ridders(lambda s, j=j: moved(s, j), 1e-4, levels=3)
        trusted = estimate.error < 1e-7
        assert trusted.mean() > 0.9  # the others change corners
        np.testing.assert_allclose(slope[..., j][trusted], estimate.value[trusted], atol=1e-6)

    def by_parameters(p):
        return ground_contacts(T.BOX, surface, *(jnp.asarray(x[0]) for x in pose), p)

    forward = [np.asarray(x) for x in jax.jit(jax.jacfwd(by_parameters))(jnp.asarray(numbers))]
    expected = ridders_jacobian(lambda p: flat(evaluate(T.BOX, surface, pose, numbers + p)[1])[0].ravel(), 4, 1e-4)
    got = np.concatenate([forward[0][:, None], *forward[1:]], 1).reshape(-1, 4)
    np.testing.assert_allclose(got, np.asarray(expected.value), atol=1e-6)


BALL = """<mujoco model="ball-on-ground"><worldbody><geom name="floor" type="plane" size="0 0 1" friction="0.6"/>
  <body name="ball"><freejoint/><geom name="ball" type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""


@functools.cache
def ball_on_a_field():
    heights = 0.05 * np.random.default_rng(2).normal(size=(5, 5))
    return on_terrain(load_model_from_string(BALL), heights, half_extents=(0.8, 0.8))


@pytest.mark.slow
@pytest.mark.parametrize("law", [RigidContact(erp=1.0), CompliantContact(stiffness=1e4, damping=50.0)])
def test_derivative_of_a_step_by_the_heights(law):
    model = ball_on_a_field()
    system = System(model, dt=1e-3, contact=law)
    height = ground_height(
        model.topology.shapes[0].surface, jnp.asarray(model.shape_size[0]), jnp.asarray(model.terrain)
    )
    q = np.array([0.13, -0.21, float(height(jnp.asarray([0.13, -0.21]))) + 0.098, 1.0, 0, 0, 0])
    x, u = State(q, np.array([0.3, -0.2, -0.4, 0.5, 0.2, 0.1])), np.zeros(0)
    linear = system.linearize(x, u, parameters=("terrain",))
    assert linear.info.contacts.impulse[0, 2] > 1e-4

    def velocity(change):
        changed = model.replace(terrain=np.asarray(model.terrain) + change)
        return np.asarray(System(changed, dt=1e-3, contact=law).step(x, u)[0].v)

    estimate = ridders_jacobian(velocity, 25, 1e-4, levels=3)
    slope = np.asarray(linear.parameters["terrain"])[6:12]
    scale = np.abs(slope).max()
    assert scale > 1e-2
    np.testing.assert_allclose(slope, np.asarray(estimate.value), atol=1e-5 * scale)
    by_height = ridders_jacobian(scenes.tangent_step(system, x, u), 12, 1e-5, levels=3)
    np.testing.assert_allclose(
        np.asarray(linear.A)[:12, :12], by_height.value[:12], atol=1e-5 * np.abs(by_height.value).max()
    )


def test_wrong_terrain_is_refused():
    model = load_model_from_string(BALL)
    with pytest.raises(ModelError, match="height number 3 of the terrain is nan"):
        on_terrain(model, np.array([[0, 0], [0, np.nan]]), half_extents=(1, 1))
    with pytest.raises(OptionError, match=r"ground has shape \(3,\), expected at least 2 rows"):
        on_terrain(model, np.zeros(3), half_extents=(1, 1))
    with pytest.raises(OptionError, match="half_extents is None, expected two positive lengths"):
        on_terrain(model, np.zeros((2, 2)))
    with pytest.raises(OptionError, match=r"ground\(0, 0, parameters\) is inf"):
        on_terrain(model, lambda x, y, p: 1 / x)
    with pytest.raises(UnknownNameError, match="no plane 'flor'.*floor"):
        on_terrain(model, np.zeros((2, 2)), half_extents=(1, 1), floor="flor")
    with pytest.raises(OptionError, match="no plane: load it with ground=True"):
        on_terrain(ball_on_a_field(), np.zeros((2, 2)), half_extents=(1, 1))
