"""Shapes that pass each other (docs/contact-semantics.md): a body slides over the seams of flush shapes as over one, and nothing
that hits is let through.

A frictionless body keeps its velocity to rounding on one plane. Bodies start flush with the floor, MICRON above it, or below.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics import RigidContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.models import load_model_from_string
from trajopt.result import Status

CORE = pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason="needs the compiled core"))
HALF, TILE, SPEED = 0.1, 0.25, 2.0  # half extents of bodies and tiles, m; m/s
MICRON = 1e-5
CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
BODIES = {
    "box": 'type="box" size=".1 .1 .1"',
    "upright cylinder": 'type="cylinder" size=".1 .1"',
    "mesh": 'type="mesh" mesh="cube"',
    "lying cylinder": 'type="cylinder" size=".1 .1" euler="90 0 0"',
    "sphere": 'type="sphere" size=".1"',
    "capsule across": 'type="capsule" size=".1 .1" euler="90 0 0"',
    "capsule along": 'type="capsule" size=".1 .1" euler="0 90 0"',
    "ellipsoid": 'type="ellipsoid" size=".15 .12 .1"',
}
TILES = {
    "box": 'type="box" size=".25 .25 .1"',
    "mesh": 'type="mesh" mesh="tile"',
    "cylinder": 'type="cylinder" size=".3 .1"',
}

SLOWER = [pytest.param(body, marks=pytest.mark.slow) for body in ("upright cylinder", "mesh")]


def numbers(array) -> str:
    return " ".join(f"{x:.9g}" for x in np.ravel(array))


ASSET = (
    f'<asset><mesh name="cube" vertex="{numbers(HALF * CORNERS)}"/>'
    f'<mesh name="tile" vertex="{numbers(CORNERS * [TILE, TILE, HALF])}"/></asset>'
)


def floor(kind="box", joint=0.0, count=6, at=0.0, row=0.0) -> str:
    """A row of tiles along x, the first about `at`, their tops at height zero; row: their y."""
    return "".join(f'<geom {TILES[kind]} pos="{at + k * (2 * TILE + joint):.9g} {row} {-HALF}"/>' for k in range(count))


def scene(body: str, world: str, dt: float, backend="native", gravity="0 0 -9.81", friction=0.0, **options) -> System:
    """A free body, 1 kg, whose geom is `body`, in a world of these geoms."""
    model = load_model_from_string(
        f'<mujoco><compiler angle="degree"/><option gravity="{gravity}"/>{ASSET}<default><geom friction="{friction}"/></default>'
        f'<worldbody>{world}<body name="body"><freejoint/><geom {body} mass="1"/></body></worldbody></mujoco>'
    )
    return System(model, dt, contact=RigidContact(**options), backend=backend)


def state(position, velocity=(0, 0, 0), spin=(0, 0, 0)) -> State:
    return State(np.array([*position, 1, 0, 0, 0], float), np.array([*velocity, *spin], float))


def slide(system: System, start: State, seconds: float):
    x, info = system.rollout(start, np.zeros((round(seconds / float(system.dt)), 0)))
    assert np.all(np.asarray(info.status == Status.solved))
    return np.asarray(x.q), np.asarray(x.v)


def depth(system: System, q) -> float:
    """The largest penetration of a motion."""
    distance = jax.jit(jax.vmap(lambda q: jnp.min(collide(system.model, kinematics(system.model, q)).distance)))
    return -float(np.min(distance(q)))


def keeps_sliding(system: System, velocity=(SPEED, 0.0, 0.0), seconds=1.0, lift=0.0, loss=1e-9) -> None:
    q, v = slide(system, state((0, 0, HALF + lift), velocity), seconds)
    meshes = any(
        shape.kind == ShapeType.MESH for shape in system.model.topology.shapes
    )  # their vertices are in single precision
    np.testing.assert_allclose(v[:, :2], np.broadcast_to(velocity[:2], v[:, :2].shape), atol=1e-6 if meshes else loss)
    assert q[-1, 0] > velocity[0] * seconds * 0.99
    np.testing.assert_allclose(q[:, 2], HALF, atol=abs(lift) + 1e-8)


# -- sliding over seams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [CORE, pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("body", BODIES)
def test_a_body_slides_over_the_seam_of_flush_shapes(body, backend):
    for kind in ("box", "mesh") if backend == "native" else ("box",):
        keeps_sliding(scene(BODIES[body], floor(kind), 1e-3, backend))


@pytest.mark.slow
def test_a_box_slides_over_the_seam_of_flush_shapes_in_jax():
    keeps_sliding(scene(BODIES["box"], floor(count=2), 1e-3, "jax"), seconds=0.3)


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("dt", [2e-4, 5e-4, 1e-3, 2e-3, 5e-3])
@pytest.mark.parametrize("body", ["box", "upright cylinder", "mesh", "sphere", "capsule along"])
def test_seams_at_every_step_size(body, dt, backend):
    """Exactly flush, 10 um above, 2 um in the floor; straight on and askew."""
    for lift in (0.0, MICRON, -0.2 * MICRON):
        for velocity in ((SPEED, 0.0, 0.0), (1.3, 0.1, 0.0)):
            keeps_sliding(scene(BODIES[body], floor(), dt, backend), velocity, 0.5, lift, 1e-9 if lift <= 0 else 1e-6)


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("body", ["box", "upright cylinder", "mesh"])
def test_tiles_with_a_joint_between_them(body, backend):
    for dt in (2e-4, 1e-3, 5e-3):
        keeps_sliding(scene(BODIES[body], floor(joint=1e-3), dt, backend))


@pytest.mark.parametrize("backend", [CORE])
def test_two_rows_of_tiles_and_a_floor_of_cylinders(backend):
    for world in (floor(row=TILE) + floor(row=-TILE), floor("cylinder")):
        keeps_sliding(scene(BODIES["box"], world, 1e-3, backend))


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("body", ["box", "upright cylinder", "mesh"])
def test_a_body_slides_along_a_wall_of_boxes(body, backend):
    """Gravity presses it against the wall and the floor, both of several boxes."""
    wall = "".join(f'<geom type="box" size=".2 .1 .3" pos="{0.4 * k} {-2 * HALF} 0"/>' for k in range(5))
    system = scene(BODIES[body], floor() + wall, 1e-3, backend, gravity="0 -5 -9.81")
    keeps_sliding(system, seconds=0.6)


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("speed", [1e-3, 0.05])
def test_slow_bodies_pass_too(speed, backend):
    """Their motion in a step is less than what they are pressed into the floor."""
    for dt in (2e-4, 2e-3):
        front = HALF + 0.3 * speed
        world = floor(count=2, at=front - TILE)
        for body in ("box", "upright cylinder", "mesh"):
            for deep in (0.0, 0.5 * MICRON):
                q, v = slide(scene(BODIES[body], world, dt, backend), state((0, 0, HALF - deep), (speed, 0, 0)), 0.6)
                np.testing.assert_allclose(v[:, 0], speed, atol=1e-9)


@pytest.mark.parametrize("backend", [CORE])
def test_a_box_that_spins_over_a_seam_keeps_spinning(backend):
    """Its corners cross the seam by the turn alone, too."""
    for velocity in ((0.0, 0.0, 0.0), (1.0, 0.05, 0.0)):
        system = scene(BODIES["box"], floor(row=TILE) + floor(row=-TILE), 2e-3, backend)
        q, v = slide(system, state((0.2, 0.2, HALF), velocity, (0, 0, 5.0)), 0.8)
        np.testing.assert_allclose(v[:, 5], 5.0, atol=1e-8)
        np.testing.assert_allclose(q[:, 2], HALF, atol=1e-8)


@pytest.mark.parametrize("backend", [CORE])
def test_a_ball_rolls_over_seams(backend):
    system = scene(BODIES["sphere"], floor(), 5e-3, backend, friction=0.8)
    q, v = slide(system, state((0, 0, HALF), (SPEED, 0, 0), (0, SPEED / HALF, 0)), 1.0)
    np.testing.assert_allclose(v[:, 0], SPEED, atol=1e-3)
    np.testing.assert_allclose(q[:, 2], HALF, atol=1e-6)


# -- what hits is stopped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [CORE, pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("body", ["box", "sphere", "upright cylinder", "mesh"])
def test_thin_plates_stop_fast_bodies(body, backend):
    """30 m/s, 3 cm a step, at a plate of 2 mm: at its face, and at its edge."""
    for size, at in (((0.001, 0.5, 0.5), 0.5), ((0.2, 0.5, 0.001), 0.7)):
        world = f'<geom type="box" size="{numbers(size)}" pos="{at} 0 0"/>'
        system = scene(BODIES[body], world, 1e-3, backend, gravity="0 0 0")
        q, v = slide(system, state((0, 0.01, 0), (30.0, 0, 0)), 0.05)
        assert abs(q[:, 0].max() - (at - size[0] - HALF)) < 1e-6 and np.abs(v[-1]).max() < 1e-3


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("body", ['type="box" size=".005 .005 .005"', 'type="sphere" size=".005"'])
def test_small_bodies_do_not_jump_over_a_plate(body, backend):
    """A step leads from one side to the other, where the far side separates, which does not separate now."""
    world = '<geom type="box" size=".001 .5 .5" pos=".5 0 0"/>'
    for velocity in ((30.0, 0, 0), (30.0, 10.0, 0)):
        q, v = slide(scene(body, world, 1e-3, backend, gravity="0 0 0"), state((0, 0.01, 0), velocity), 0.03)
        assert abs(q[:, 0].max() - (0.5 - 0.001 - 0.005)) < 1e-6 and np.abs(v[-1, 0]) < 1e-3


@pytest.mark.parametrize("backend", [CORE])
@pytest.mark.parametrize("body", [pytest.param("box", marks=pytest.mark.slow), "sphere", *SLOWER])
def test_bodies_that_fly_at_the_rim_of_a_table_do_not_enter_it(body, backend):
    """From all sides of the edge, 2 to 10 mm a step: nothing comes deeper than half a step."""
    rng = np.random.default_rng(3)
    system = scene(BODIES[body], '<geom type="box" size=".3 .3 .02" pos="0 0 -.02"/>', 2e-3, backend)
    angle = rng.uniform(-0.4, 2.0, 12)
    where = np.stack([0.3 + 0.35 * np.cos(angle), rng.uniform(-0.2, 0.2, 12), 0.35 * np.sin(angle)], 1)
    aim = np.stack([rng.uniform(0.25, 0.32, 12), where[:, 1], rng.uniform(-0.02, 0.02, 12)], 1)
    velocity = (aim - where) / np.linalg.norm(aim - where, axis=1)[:, None] * rng.uniform(1, 5, (12, 1))
    struck = 0
    for p, v, w in zip(where, velocity, rng.uniform(-2, 2, (12, 3)), strict=True):
        q, after = slide(system, state(p, v, w), 0.3)
        struck += np.abs(np.diff(after[:, :3], axis=0)).max() > 0.5
        assert depth(system, q) < 0.5 * 2e-3 * np.linalg.norm(v), (p, v, w)
    assert struck > 5


@pytest.mark.parametrize("backend", [CORE])
def test_a_box_that_lands_half_on_a_tile_tips_over_its_edge(backend):
    """The tile holds it: what is over the tile's top stays above it, and the box turns towards the free side."""
    system = scene(BODIES["box"], floor(count=1), 1e-3, backend, friction=0.5)
    q, v = slide(system, state((TILE + 0.02, 0, HALF + 0.05), (0.5, 0, -1)), 0.12)
    assert depth(system, q) < 1e-4
    assert v[-1, 4] > 1.0 and q[:, 2].min() > 0.5 * HALF


@pytest.mark.parametrize("backend", [CORE])
def test_the_tip_of_a_rod_does_not_swing_through_a_plate(backend):
    """Its centre stands still: the motion of the shape is the turn alone, 2 cm a step at the tip."""
    world = '<geom type="box" size=".1 .3 .001" pos=".45 0 -.1"/>'
    system = scene('type="box" size=".5 .02 .02"', world, 2e-3, backend, gravity="0 0 0")
    q, v = slide(system, state((0, 0, 0), spin=(0, 20.0, 0)), 0.05)
    assert v[-1, 4] < 10.0 and depth(system, q) < 1e-3


# -- what the rule says ---------------------------------------------------------------------------------------------------


def passing_states():
    """The front of a box near the edge of a tile that it comes over, a little above its top or in it."""
    for gap in (1e-4, 5e-4, 1e-3):
        for height in (-2e-6, 1e-7, MICRON):
            yield gap, height, state((-TILE - HALF - gap, 0.02, HALF + height), (SPEED, 0.1, -height / 2e-3))


def test_a_pair_that_is_passed_has_the_contacts_of_the_face_that_it_passes():
    """In JAX; four points of the strip that the box comes to lie on, at its height, where they are now."""
    model = scene(BODIES["box"], floor(count=1), 1e-3, "jax").model
    near = jax.jit(lambda q, travel: collide(model, kinematics(model, q), None, travel))
    for gap, height, x in passing_states():
        found = near(x.q, 1e-3 * x.v)
        np.testing.assert_allclose(found.normal, np.tile([0.0, 0.0, 1.0], (4, 1)), atol=1e-14)
        np.testing.assert_allclose(found.distance, height, atol=1e-14)
        # The two corners of the box, and the edge of the tile where those of the box cross it.
        np.testing.assert_allclose(np.sort(found.point[:, 0]), np.repeat([x.q[0] + HALF, -TILE], 2), atol=1e-12)
        ordinary = near(x.q, 0.0 * x.v)
        assert np.asarray(ordinary.normal)[:, 0].max() < -0.5 and np.asarray(ordinary.distance).min() >= gap - 1e-12
        # Four times as fast downwards, or a plate that is in the way: the half-space of the nearest points.
        down = dataclasses.replace(x, v=np.array([*x.v[:2], -1.0, 0, 0, 0]))
        np.testing.assert_array_equal(near(x.q, 1e-3 * down.v).normal, ordinary.normal)


@pytest.mark.skipif(not native.available(), reason="needs the compiled core")
@pytest.mark.parametrize("body", ["box", pytest.param("sphere", marks=pytest.mark.slow), SLOWER[1]])
def test_core_and_jax_see_the_same_contacts(body):
    """In states about seams, of which some are passed: the contacts of the core's report are those of the narrow phase of JAX."""
    system = scene(BODIES[body], floor(row=TILE, count=2) + floor(row=-TILE, count=2), 2e-3)
    model = system.model
    near = jax.jit(lambda q, travel: collide(model, kinematics(model, q), None, travel))
    rng = np.random.default_rng(5)
    passed = 0
    for _ in range(40):
        height, speed = rng.choice([0.0, 1e-6, -1e-6, MICRON, 1e-3, 5e-3]), rng.uniform(0.1, 3)
        reach = 0.0 if body == "sphere" else HALF
        at = (TILE - reach - rng.uniform(0, 2e-3 * speed), rng.uniform(-0.2, 0.2), HALF + height)
        down = rng.choice([0.0, -height / 2e-3, -1.0])
        x = state(at, (speed, rng.uniform(-1, 1), down), rng.normal(size=3) * rng.choice([0.0, 0.1]))
        info = system.step(x, np.zeros(0))[1]
        found, ordinary = near(x.q, 2e-3 * x.v), near(x.q, 0 * x.v)
        passed += not np.allclose(found.normal, ordinary.normal)
        key = np.argsort(np.asarray(found.distance), kind="stable")[: info.contacts.distance.shape[0]]
        key = np.sort(key)
        np.testing.assert_allclose(info.contacts.distance, found.distance[key], atol=1e-12)
        np.testing.assert_allclose(info.contacts.point, found.point[key], atol=1e-10)
        np.testing.assert_allclose(info.contacts.frame[..., 2], found.normal[key], atol=1e-10)
    assert passed >= 5


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason="needs the compiled core")
@pytest.mark.parametrize("body", ["box", "upright cylinder", "sphere"])
def test_core_and_jax_take_the_same_steps_at_seams(body):
    core, other = (scene(BODIES[body], floor(count=2), 1e-3, backend, friction=0.3) for backend in ("native", "jax"))
    step = jax.jit(lambda x: other.step(x, jnp.zeros(0)))
    rng = np.random.default_rng(6)
    for _ in range(20):
        at = (TILE - HALF - rng.uniform(-0.002, 0.002), 0.03, HALF + rng.choice([1e-6, -1e-6, MICRON]))
        x = state(at, (*rng.uniform(-3, 3, 2), -0.005), 0.1 * rng.normal(size=3))
        np.testing.assert_allclose(core.step(x, np.zeros(0))[0].v, step(x)[0].v, atol=1e-9)


@pytest.mark.parametrize("backend", [CORE, pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("body", ["box", "sphere", "capsule across"])
def test_derivative_where_a_tile_is_passed(body, backend):
    """Contacts of the face that is passed carry load: A is that of the step, by Ridders' differences."""
    system = scene(BODIES[body], floor(count=1), 1e-3, backend, friction=0.3)
    u = np.zeros(0)
    # Askew: where faces are parallel, either may turn the normal.
    turn = np.array([1.0, 3e-4, 2e-4, 0.02])
    q = np.array([0.0, 0.02, 0.0, *turn / np.linalg.norm(turn)])
    R = np.asarray(rotation_from_quaternion(jnp.asarray(q[3:])))
    corners = {"box": HALF * CORNERS, "sphere": np.zeros((1, 3)), "capsule across": [[0, HALF, 0], [0, -HALF, 0]]}[
        body
    ] @ R.T
    q[0], q[2] = -TILE - corners[:, 0].max() - 4e-4, (0.0 if body == "box" else HALF) - corners[:, 2].min() + 1e-6
    x = State(q, np.array([SPEED, 0.1, -0.006, 0.002, -0.003, 0.1]))
    info = system.step(x, u)[1]
    assert np.asarray(info.contacts.impulse)[..., 2].max() > 1e-4
    np.testing.assert_allclose(np.asarray(info.contacts.frame)[0, :, 2], [0, 0, 1], atol=1e-12)
    scenes.judged_slopes(system, x, u, (1e-7, 1e-7, 0, 0), relative=1e-5, untrusted=0.2)
