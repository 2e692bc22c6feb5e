"""Pairs of shapes that the core collides: their contacts are those of JAX, their derivatives those of differences of steps, and
pairs that are left out because they are far away are counted where they could have touched."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import Estimate, compare, ridders_jacobian

from native.cases import check, compiled_of, needs_core, relative
from trajopt.dynamics import RigidContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.ncp import SLIDING
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.rigid_body.lie import quaternion_product, rotation_from_quaternion
from trajopt.models.registry import load_model_from_string

pytestmark = needs_core

SIZES = {
    "sphere": "0.1", "capsule": "0.06 0.12", "box": "0.1 0.14 0.08", "cylinder": "0.1 0.09", "ellipsoid": "0.1 0.15 0.07",
}  # fmt: skip
HULL = " ".join(f"{x:.3f}" for x in np.random.default_rng(7).uniform(-0.13, 0.13, 36))
# Every pair, in both orders.
PAIRS = list(itertools.product([*SIZES, "mesh"], repeat=2))


def two_bodies(kinds):
    """Two free bodies whose shapes sit askew on them, without weight."""
    geoms = ['type="mesh" mesh="hull"' if kind == "mesh" else f'type="{kind}" size="{SIZES[kind]}"' for kind in kinds]
    return load_model_from_string(f"""<mujoco model="two"><option gravity="0 0 0"/>
    <asset><mesh name="hull" vertex="{HULL}"/></asset><worldbody>
      <body name="one"><freejoint/><geom {geoms[0]} mass="1" euler="10 20 30" pos="0.01 0.02 -0.01"/></body>
      <body name="two" pos="0.5 0 0"><freejoint/><geom {geoms[1]} mass="0.7" euler="50 -20 5" pos="-0.01 0 0.02"/></body>
    </worldbody></mujoco>""")


def placements(model, count, seed):
    """Random orientations; centres 2 to 35 cm apart, the second body coming nearer at 2 m/s."""
    rng = np.random.default_rng(seed)
    q = np.tile(np.asarray(model.q_default), (count, 1))
    towards = rng.normal(size=(count, 3))
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    for at in (3, 10):
        turn = rng.normal(size=(count, 4))
        q[:, at : at + 4] = turn / np.linalg.norm(turn, axis=1, keepdims=True)
    q[:, 7:10] = towards * rng.uniform(0.02, 0.35, (count, 1))
    v = rng.normal(size=(count, model.nv))
    v[:, 6:9] -= 2 * towards
    return jnp.asarray(q), jnp.asarray(v)


@pytest.mark.parametrize("kinds", [("box", "box"), ("capsule", "box"), ("sphere", "cylinder")], ids="-".join)
def test_contacts_are_those_of_jax(kinds):
    """Of all pairs: `test_steps_and_jacobians_are_those_of_jax`."""
    model = two_bodies(kinds).to_device(jnp.float64)
    system, (q, v) = System(model, dt=1e-2, backend="native"), placements(model, 60, seed=0)
    found = jax.jit(jax.vmap(lambda q, v: system.step(State(q, v), jnp.zeros(0))[1].contacts))(q, v)
    expected = jax.jit(jax.vmap(lambda q: collide(model, kinematics(model, q))))(q)
    assert relative(found.distance, expected.distance) < 1e-12
    assert relative(found.point, expected.point) < 1e-12
    assert relative(found.frame[..., 2], expected.normal) < 1e-12
    assert (np.asarray(found.mode) > 0).any(1).sum() > 10


# Askew in its axes, so that the normals of a face's triangles are the same up to rounding.
TURNS, TILT = 2 * np.pi * np.arange(12) / 12, np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
PRISM = np.array([(0.1 * np.cos(a), 0.1 * np.sin(a), z) for z in (-0.05, 0.05) for a in TURNS])


def two_prisms():
    """Two free bodies without weight, meshes of one shape: flat faces of twelve corners, ten triangles each."""
    body = '<body name="{}"><freejoint/><geom type="mesh" mesh="prism" mass="1"/></body>'
    model = load_model_from_string(f"""<mujoco model="prisms"><option gravity="0 0 0"/>
    <asset><mesh name="prism" vertex="{" ".join(f"{x:.9g}" for x in PRISM.ravel())}"/></asset>
    <worldbody>{body.format("one")}{body.format("two")}</worldbody></mujoco>""")
    # MuJoCo's reader keeps vertices in single precision, in which faces are not flat, and turns them into axes of its own.
    read = model.shape_position[0] + model.meshes[0] @ np.asarray(model.shape_rotation[0]).T
    order = np.linalg.norm(PRISM - read[:, None], axis=2).argmin(1)
    plain = {"shape_rotation": np.tile(np.eye(3), (2, 1, 1)), "shape_position": np.zeros((2, 3))}
    return model.replace(meshes=(PRISM[order] @ TILT.T,) * len(model.meshes), **plain).to_device(jnp.float64)


def stacked(model, count, seed):
    """One prism on the other, askew in the world, turned against each other about their common axis."""
    rng = np.random.default_rng(seed)
    q = np.tile(np.asarray(model.q_default), (count, 1))
    for k in range(count):
        turn = rng.normal(size=4)
        one = turn / np.linalg.norm(turn)
        half = rng.uniform(-np.pi, np.pi) / 2
        about = np.concatenate([[np.cos(half)], np.sin(half) * TILT[:, 2]])
        axis = np.asarray(rotation_from_quaternion(jnp.asarray(one))) @ TILT[:, 2]
        q[k, 3:7], q[k, 10:14] = one, np.asarray(quaternion_product(jnp.asarray(one), jnp.asarray(about)))
        q[k, 7:10] = 0.0999 * axis + 0.02 * np.cross(axis, rng.normal(size=3))
    return jnp.asarray(q)


@pytest.mark.parametrize("size", [1.0, 0.97])
def test_flat_faces_of_many_triangles(size):
    """The triangle that stands for a face decides the corners of the patch: both backends choose the same. size: the vertices as
    the file has them, then smaller ones through the same compiled functions, which must not keep what they know of the first."""
    model = two_prisms()
    q, still = stacked(model, 40, seed=4), jnp.zeros((40, model.nv))
    contacts = jax.jit(jax.vmap(lambda system, q, v: system.step(State(q, v), jnp.zeros(0))[1].contacts, (None, 0, 0)))
    expected = jax.jit(jax.vmap(lambda model, q: collide(model, kinematics(model, q)), (None, 0)))
    for scale in (1.0, size):
        scaled = model.replace(meshes=tuple(scale * mesh for mesh in model.meshes))
        found, reference = contacts(System(scaled, dt=1e-2, backend="native"), q, still), expected(scaled, q)
        assert relative(found.distance, reference.distance) < 1e-12
        assert relative(found.point, reference.point) < 1e-12
    assert (np.abs(np.asarray(found.distance)).min(1) < 0.01).all()


@pytest.mark.parametrize("backend", ["native", pytest.param("jax", marks=pytest.mark.slow)])
def test_slopes_on_faces_that_are_flat_to_single_precision(backend):
    """A ball on a side of a prism, askew in the axes of its file, whose vertices MuJoCo reads in single precision: triangles of
    a side differ by 1e-7 rad, and the normal turns with the one that touches. Random states against Ridders."""
    corners = " ".join(f"{x:.9g}" for x in (PRISM @ TILT.T).ravel())
    model = load_model_from_string(f"""<mujoco model="flat"><option gravity="0 0 0"/>
    <asset><mesh name="prism" vertex="{corners}"/></asset><worldbody>
      <body name="one"><freejoint/><geom type="mesh" mesh="prism" mass="1"/></body>
      <body name="two"><freejoint/><geom type="sphere" size="0.03" mass="0.3"/></body></worldbody></mujoco>""")
    model = model.to_device(jnp.float64)
    system, n = System(model, dt=1e-3, backend=backend), model.nv
    hull, rng = np.asarray(model.meshes[0]), np.random.default_rng(1)
    triangles = np.array(next(shape.triangles for shape in model.topology.shapes if shape.triangles))

    @jax.jit
    def moved(q, v, z):
        y = system.step(State(integrate(model, q, z[:n]), v + z[n:]), jnp.zeros(0))[0]
        return jnp.concatenate([difference(model, q, y.q), y.v])

    touching = 0
    for k in rng.choice(len(triangles), 20, replace=False):
        a, b, c = hull[triangles[k]]
        outward = np.cross(b - a, c - a)
        above = (a + 2 * b + 3 * c) / 6 + 0.0299 * outward / np.linalg.norm(outward)
        turn, q = rng.normal(size=4), np.array(model.q_default)
        q[3:7] = turn / np.linalg.norm(turn)
        in_body = model.shape_position[0] + model.shape_rotation[0] @ above
        q[7:10] = q[:3] + np.asarray(rotation_from_quaternion(jnp.asarray(q[3:7])) @ in_body)
        q, v = jnp.asarray(q), jnp.asarray(0.3 * rng.normal(size=n))
        linear = system.linearize(State(q, v), jnp.zeros(0))
        if int(linear.info.contacts.mode[0]) == 0:
            continue
        touching += 1
        estimate = ridders_jacobian(lambda z, q=q, v=v: np.asarray(moved(q, v, jnp.asarray(z))), 2 * n, 1e-5)
        compare(linear.A[n:], Estimate(estimate.value[n:], estimate.error[n:]), relative=1e-5, untrusted=0.1, label=f"{k}")
    assert touching >= 10


@pytest.mark.parametrize("kind, beside", [("box", [0.1, 0.03]), ("cylinder", [0.06, 0.08])])
def test_rounding_does_not_move_a_ball_from_a_face_to_its_rim(kind, beside):
    """A ball whose centre is in the plane of a side, as where links move in parallel planes, or above the rim of a cap: in any
    orientation both backends let it touch the face at its own lowest point."""
    radius, half, count = 0.05, float(SIZES[kind].split()[-1]), 200
    model = load_model_from_string(f"""<mujoco model="tie"><option gravity="0 0 0"/><worldbody>
      <body name="one"><freejoint/><geom type="sphere" size="{radius}" mass="1"/></body>
      <body name="two"><freejoint/><geom type="{kind}" size="{SIZES[kind]}" mass="1"/></body>
    </worldbody></mujoco>""").to_device(jnp.float64)
    rng = np.random.default_rng(0)
    q = np.tile(np.asarray(model.q_default), (count, 1))
    turn = rng.normal(size=(count, 4))
    q[:, 10:14] = turn / np.linalg.norm(turn, axis=1, keepdims=True)
    q[:, 7:10] = rng.normal(size=(count, 3))
    rotation = np.asarray(jax.vmap(rotation_from_quaternion)(jnp.asarray(q[:, 10:14])))
    q[:, :3] = q[:, 7:10] + rotation @ np.array([*beside, half + radius - 1e-4])
    system = System(model, dt=1e-2, backend="native")
    still = jnp.zeros((count, model.nv))
    found = jax.jit(jax.vmap(lambda q, v: system.step(State(q, v), jnp.zeros(0))[1].contacts))(jnp.asarray(q), still)
    expected = jax.jit(jax.vmap(lambda q: collide(model, kinematics(model, q))))(jnp.asarray(q))
    lowest = q[:, :3] - radius * rotation[:, :, 2]
    for points in (found.point, expected.point):
        np.testing.assert_allclose(points[:, 0], lowest, rtol=0, atol=1e-12)


def held(kinds, backend, count, seed):
    """The system, placements q and v, their steps, and those in which at least two contacts hold the bodies and none slides."""
    model = two_bodies(kinds).to_device(jnp.float64)
    system = System(model, dt=1e-3, backend=backend)
    q, v = placements(model, count, seed)
    info = jax.jit(jax.vmap(lambda q, v: system.step(State(q, v), jnp.zeros(0))[1].unpacked()))(q, v)
    mode = np.asarray(info.contacts.mode)
    return system, q, v, info, np.flatnonzero(((mode > 0).sum(1) >= 2) & ~(mode == SLIDING).any(1))


@pytest.mark.parametrize("backend", ["native", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kinds", [("box", "box"), ("mesh", "box"), ("mesh", "cylinder")], ids="-".join)
def test_bodies_that_two_contacts_hold_are_held_by_many_impulses(kinds, backend):
    """Of two points' six rows at most five are independent: pushes along the line between them cancel."""
    _, _, _, info, found = held(kinds, backend, 100, seed=2)
    assert len(found) > 20
    assert np.asarray(info.degenerate)[found].all()


THROWN = """<mujoco model="cradle"><option gravity="0 0 0"/><worldbody>
  <body name="heavy"><freejoint/><geom type="sphere" size="0.1" mass="100"/></body>
  <body name="light" pos="0.1999 0 0"><freejoint/><geom type="sphere" size="0.1" mass="0.01"/></body>
  <body name="far" pos="{far} 0 0"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize(("far", "dropped"), [(0.55, 0), (0.45, 1)])
def test_a_pair_that_a_bounce_brings_together_is_counted(far, dropped):
    """A ball that rests is hit at 100 m/s: in 1 ms it covers 10 cm, towards one whose pair was 5 cm, or 15 cm, away."""
    model = load_model_from_string(THROWN.format(far=far))
    system = System(model, dt=1e-3, contact=RigidContact(max_contacts=1), backend="native")
    v = np.zeros(18)
    v[0] = 100
    _, info = system.step(State(jnp.asarray(model.q_default), jnp.asarray(v)), jnp.zeros(0))
    assert info.dropped == dropped


def test_a_pair_that_a_bounce_brings_together_acts():
    """Where all contacts act, the ball that is hit pushes the far one, as in JAX, which looks at all pairs: v+ is the same."""
    model = load_model_from_string(THROWN.format(far=0.45))
    v = np.zeros(18)
    v[0] = 100
    x = State(jnp.asarray(model.q_default), jnp.asarray(v))
    core, jax_ = (System(model, dt=1e-3, backend=backend).step(x, jnp.zeros(0)) for backend in ("native", "jax"))
    assert core[1].dropped == 0 and core[0].v[12] > 1.0
    np.testing.assert_allclose(core[0].v, jax_[0].v, rtol=0, atol=1e-9 * 100)


def test_a_pair_that_a_force_brings_together_acts():
    """All bodies rest, so that no pair but that which touches is a neighbour. Under a force that reaches 600 m/s within the step
    they close the gap of 20.01 cm to the far one and share their momentum with it."""
    model = load_model_from_string(THROWN.format(far=0.6))
    x, force = State(jnp.asarray(model.q_default), jnp.zeros(18)), jnp.zeros(18).at[0].set(100 * 600 / 1e-3)
    x_next, info = System(model, dt=1e-3, backend="native").step(x, jnp.zeros(0), force=force)
    v = np.asarray(x_next.v[::6])
    assert info.dropped == 0
    np.testing.assert_allclose(v[1] - v[2], 0.2001 / 1e-3, rtol=1e-9)
    np.testing.assert_allclose(np.dot([100, 0.01, 1], v), 100 * 600, rtol=1e-9)


def thrown_together(count=15):
    """Free balls, capsules and boxes on a grid, a little above a floor."""
    sizes = ["sphere", "capsule", "box"]
    bodies = "".join(
        f'<body pos="{0.32 * (k % 4)} {0.32 * (k // 4)} {0.2 + 0.05 * (k % 3)}"><freejoint/>'
        f'<geom type="{sizes[k % 3]}" size="{SIZES[sizes[k % 3]]}" mass="1"/></body>'
        for k in range(count)
    )
    return load_model_from_string(f"""<mujoco model="thrown"><worldbody>
    <geom type="plane" size="0 0 1"/>{bodies}</worldbody></mujoco>""").to_device(jnp.float64)


@pytest.mark.parametrize("speed", [0.3, 5.0, 100.0])
def test_what_is_left_out_does_not_depend_on_the_steps_before(speed):
    """Steps in a row, which keep a list of neighbours, are those of the same states in another order, of which each makes the
    list anew, and those that look at all pairs and shapes for a whole report. A quarter of the bodies moves; others are hit."""
    model = thrown_together()
    system, rng = System(model, dt=1e-3, backend="native"), np.random.default_rng(3)
    v = speed * rng.normal(size=(15, 6)) * np.array([1, 1, 1, 3, 3, 3]) * (np.arange(15) % 4 == 0)[:, None]
    u, steps = jnp.zeros(0), 200

    def on(x, _):
        x_next, _ = system.step(x, u)
        return x_next, (x, x_next.v)

    start = State(jnp.asarray(model.q_default), jnp.asarray(v.reshape(-1)))
    _, (x, in_a_row) = jax.jit(lambda x: jax.lax.scan(on, x, None, steps))(start)
    order = np.random.default_rng(4).permutation(steps)
    apart = jax.jit(jax.vmap(lambda x: system.step(x, u)[0].v))(jax.tree.map(lambda a: a[order], x))
    after, info = jax.jit(jax.vmap(lambda x: system.step(x, u)))(x)
    closed = (np.asarray(info.contacts.mode) > 0).any(1)
    assert closed.sum() > 20 and np.isfinite(in_a_row).all()
    np.testing.assert_array_equal(apart, in_a_row[order])
    np.testing.assert_allclose(after.v, in_a_row, rtol=0, atol=1e-9 * max(1.0, speed))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_steps_and_jacobians_are_those_of_jax(kinds):
    model, law = two_bodies(kinds), RigidContact()
    compiled, device, parameters = compiled_of(model, law)
    system = System(device, dt=1e-3, contact=law, backend="jax")
    for q, v in zip(*placements(model, 10, seed=2), strict=True):
        check(compiled, device, parameters, system, q, v, np.zeros(0))


def test_patches_of_many_vertices_on_a_plane_are_those_of_jax():
    """An egg, a disc and a needle, of which the core chooses among the low vertices where the others cannot be chosen."""
    k, turns = np.arange(200) + 0.5, np.linspace(0, 2 * np.pi, 60, endpoint=False)
    z, angle = 1 - k / 100, np.pi * (1 + np.sqrt(5)) * k
    ball = np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], 1)
    disc = np.concatenate([np.stack([0.2 * np.cos(turns), 0.2 * np.sin(turns), h + 0 * turns], 1) for h in (-0.004, 0.004)])
    hulls = {"egg": ball * [0.1, 0.12, 0.15], "disc": disc, "needle": ball * [0.3, 0.006, 0.006]}
    assets = "".join(f'<mesh name="{n}" vertex="{" ".join(f"{x:.9g}" for x in v.ravel())}"/>' for n, v in hulls.items())
    bodies = "".join(
        f'<body pos="{n} 0 0"><freejoint/><geom type="mesh" mesh="{name}" contype="1" conaffinity="0"/></body>'
        for n, name in enumerate(hulls)
    )
    model = load_model_from_string(f"""<mujoco model="plane"><asset>{assets}</asset><worldbody>
    <geom type="plane" size="0 0 1" contype="0" conaffinity="1"/>{bodies}</worldbody></mujoco>""").to_device(jnp.float64)
    rng, count = np.random.default_rng(11), 200
    q = np.tile(np.asarray(model.q_default), (count, 1))
    for at in (3, 10, 17):
        turn = rng.normal(size=(count, 4)) * np.append(1.0, rng.choice([1.0, 1e-2, 1e-4], 3))  # askew, or nearly flat
        q[:, at : at + 4] = turn / np.linalg.norm(turn, axis=1, keepdims=True)
    every = jax.jit(jax.vmap(lambda q: collide(model, kinematics(model, q))))
    system = System(model, dt=1e-3, backend="native")
    found = jax.jit(jax.vmap(lambda q: system.step(State(q, jnp.zeros(model.nv)), jnp.zeros(0))[1].contacts))(jnp.asarray(q))
    expected = every(jnp.asarray(q))
    assert relative(found.distance, expected.distance) < 1e-12 and relative(found.point, expected.point) < 1e-12
