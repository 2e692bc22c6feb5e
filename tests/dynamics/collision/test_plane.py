"""Contacts of every supported shape against a plane, and their derivatives, against NumPy and differences."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from dynamics.collision import pair_judges as judge
from dynamics.contact import scenes
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.narrowphase import collide, contact_count
from trajopt.dynamics.collision.primitives.plane import (
    box_plane,
    capsule_plane,
    cylinder_plane,
    ellipsoid_plane,
    sphere_plane,
    vertices_plane,
)
from trajopt.dynamics.contact.laws import CompliantContact, RigidContact
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import System
from trajopt.errors import ModelError
from trajopt.models.registry import load_model_from_string

VERTICES = np.random.default_rng(0).normal(size=(7, 3)) * 0.2
SIZE = np.array([0.12, 0.25, 0.08])


def placement(seed):
    rng = np.random.default_rng(seed)
    quaternion = rng.normal(size=4)
    return scenes.rotation(quaternion / np.linalg.norm(quaternion)), rng.normal(size=3)


def reference(kind, R1, p1, R2, p2):
    """(distance, point, normal) from the definition: support points, their height over the plane and their feet on it."""
    normal = R2[:, 2]
    if kind == "sphere":
        centres, radius = p1[None], SIZE[0]
    elif kind == "capsule":
        centres, radius = p1 + np.array([1, -1])[:, None] * SIZE[1] * R1[:, 2], SIZE[0]
    else:
        centres, radius = p1 + (scenes.box_corners(SIZE) if kind == "box" else VERTICES) @ R1.T, 0.0
    distance = (centres - p2) @ normal - radius
    points = centres - (radius if kind == "sphere" else (radius + distance)[:, None]) * normal
    if kind in ("box", "mesh"):
        keep = np.sort(np.argsort(distance)[:4])
        distance, points = distance[keep], points[keep]
    return distance, points, np.tile(normal, (len(points), 1))


CALLS = {
    "sphere": lambda R1, p1, R2, p2: sphere_plane(R1, p1, jnp.asarray(SIZE), R2, p2),
    "capsule": lambda R1, p1, R2, p2: capsule_plane(R1, p1, jnp.asarray(SIZE), R2, p2),
    "box": lambda R1, p1, R2, p2: box_plane(R1, p1, jnp.asarray(SIZE), R2, p2),
    "mesh": lambda R1, p1, R2, p2: vertices_plane(jnp.asarray(VERTICES), R1, p1, R2, p2),
    "points": lambda R1, p1, R2, p2: vertices_plane(jnp.asarray(VERTICES), R1, p1, R2, p2, None),
}


COMPILED = {kind: jax.jit(call) for kind, call in CALLS.items()}


@pytest.mark.parametrize("kind", list(CALLS))
@pytest.mark.parametrize("seed", range(4))
def test_shapes_against_a_plane(kind, seed):
    (R1, p1), (R2, p2) = placement(seed), placement(seed + 50)
    got = COMPILED[kind](*(jnp.asarray(x) for x in (R1, p1, R2, p2)))
    for name, a, b in zip(("distance", "point", "normal"), got, reference(kind, R1, p1, R2, p2), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14, err_msg=name)


@jax.jit
def contacts_of(model, q):
    return collide(model, kinematics(model, q))


def test_contacts_of_a_scene():
    """Candidate contacts of two bodies: the box's four lowest corners and the ball at the arm's tip, nodes and pairs named."""
    model = scenes.model("forest")
    assert contact_count(model) == 5
    a, e = 0.5, 0.9
    q = np.array([1.0, 0.2, 0.3, *scenes.about([1, 2, 3], 0.4), a, 0.0, e])
    contacts = contacts_of(model, q)
    shapes = {spec.name: k for k, spec in enumerate(model.topology.shapes)}
    for k in range(5):
        one, two = model.topology.pairs[int(contacts.pair[k])]
        assert two == shapes["floor"] and int(contacts.node2[k]) == model.topology.n_nodes
        assert int(contacts.node1[k]) == model.topology.shapes[one].node
    corners = q[:3] + scenes.box_corners((0.15, 0.1, 0.1)) @ scenes.rotation(q[3:7]).T
    tip = np.array([-0.3 * np.sin(a) - 0.25 * np.sin(a + e), 0, 0.5 - 0.3 * np.cos(a) - 0.25 * np.cos(a + e)])
    distance, point = np.asarray(contacts.distance), np.asarray(contacts.point)
    is_tip = np.asarray([model.topology.pairs[int(p)][0] == shapes["tip"] for p in contacts.pair])
    np.testing.assert_allclose(distance[is_tip], tip[2] - 0.03, atol=1e-14)
    np.testing.assert_allclose(point[is_tip], [tip - [0, 0, 0.03]], atol=1e-14)
    lowest = corners[np.sort(np.argsort(corners[:, 2])[:4])]
    np.testing.assert_allclose(point[~is_tip], lowest * [1, 1, 0], atol=1e-14)
    np.testing.assert_allclose(distance[~is_tip], lowest[:, 2], atol=1e-14)
    np.testing.assert_allclose(contacts.normal, np.tile([0, 0, 1.0], (5, 1)), atol=1e-15)


@pytest.mark.parametrize("kind", list(CALLS))
def test_derivatives_by_the_motion_of_the_body(kind):
    """d [distance; point; normal] by a small translation and turn of body 1 about its centre, as `collide_with_derivatives`."""
    (R1, p1), (R2, p2) = placement(1), placement(60)

    def call(R1, p1, size1, R2, p2):
        return CALLS[kind](R1, p1, R2, p2)

    slope = np.asarray(jax.jit(lambda *a: slope_and_value(call, *a)[0])(*(jnp.asarray(x) for x in (R1, p1, SIZE, R2, p2))))

    def moved(z):
        angle = np.linalg.norm(z[3:])
        turn = scenes.rotation(scenes.about(z[3:], angle)) if angle > 0 else np.eye(3)
        distance, point, normal = reference(kind, turn @ R1, p1 + z[:3], R2, p2)
        return np.concatenate([distance[:, None], point, normal], 1).ravel()

    # Rounding 8 * 2e-16 over the finest step of 1e-3: 2e-12 for entries of order one, hence 1e-8 with the margin of ten.
    compare(slope.reshape(-1, 6), ridders_jacobian(moved, 6, 2e-2), relative=1e-8, smallest=1e-2)


@pytest.mark.parametrize("law", [RigidContact(), CompliantContact()])
def test_unsupported_pair_is_named(law):
    """A pair without a contact function is refused on construction of the System, with both shapes' names."""
    text = """<robot name="pin">
      <link name="nest"><collision name="nest"><geometry><box size="1 1 1"/></geometry></collision></link>
      <link name="pin"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"/></inertial>
        <collision name="tip"><geometry><sphere radius="0"/></geometry></collision></link>
      <joint name="j" type="floating"><parent link="nest"/><child link="pin"/></joint></robot>"""
    model = load_model_from_string(text)
    model = model.replace(topology=dataclasses.replace(model.topology, pairs=((1, 0),)))
    assert {spec.kind for spec in model.topology.shapes} == {ShapeType.BOX, ShapeType.POINTS}
    with pytest.raises(ModelError, match=r"no contact between a point set \('tip'\) and a box \('nest'\)"):
        System(model, dt=1e-3, contact=law)


# -- cylinders and ellipsoids ------------------------------------------------------------------------------------------

CURVED = {"cylinder": cylinder_plane, "ellipsoid": ellipsoid_plane}
both = pytest.mark.parametrize("kind", list(CURVED))


@functools.cache
def curved(kind):
    return jax.jit(jax.vmap(functools.partial(slope_and_value, CURVED[kind])))


def evaluate(kind, pose, dtype=np.float64):
    slope, value = curved(kind)(*(jnp.asarray(x, dtype) for x in pose))
    return np.asarray(slope), tuple(np.asarray(x) for x in value)


def surface_height(kind, size, point):
    """Zero on the surface of the shape, for a point in its axes."""
    if kind == "ellipsoid":
        return np.linalg.norm(point / size, axis=-1) - 1
    return np.maximum(np.hypot(point[..., 0], point[..., 1]) / size[..., 0], np.abs(point[..., 2]) / size[..., 1]) - 1


@both
def test_the_distance_of_curved_shapes_is_that_of_their_lowest_point(kind):
    R1, p1, size, R2, p2, _ = pose = judge.poses(seed=2)
    _, (distance, point, normal) = evaluate(kind, pose)
    up = R2[:, :, 2]
    along = np.einsum("nij,ni->nj", R1, up)  # the plane's normal in the shape's axes
    if kind == "ellipsoid":
        reach = np.linalg.norm(size * along, axis=1)
    else:
        reach = size[:, 0] * np.hypot(along[:, 0], along[:, 1]) + size[:, 1] * np.abs(along[:, 2])
    np.testing.assert_allclose(distance.min(1), np.sum((p1 - p2) * up, 1) - reach, atol=1e-13)
    if kind == "cylinder":  # its points lie on the plane, under those of the rims
        np.testing.assert_allclose(np.einsum("nki,ni->nk", point - p2[:, None], up), 0, atol=1e-13)
        point = point + distance[:, :, None] * normal
    np.testing.assert_allclose(distance, np.einsum("nki,ni->nk", point - p2[:, None], up), atol=1e-13)
    local = np.einsum("nij,nki->nkj", R1, point - p1[:, None])
    np.testing.assert_allclose(surface_height(kind, size[:, None], local), 0, atol=1e-12)
    np.testing.assert_allclose(normal, np.broadcast_to(up[:, None], normal.shape))


@both
def test_derivatives_of_curved_shapes(kind):
    judge.check_motion_slopes(lambda pose: evaluate(kind, pose), judge.poses(seed=2), 1e-3, 4, 1e-6, 0.98)


def test_patches_of_a_cylinder():
    """Upright: four points of the lower rim; on its side: both ends of the line that touches."""
    size, up = np.array([0.2, 0.3, 0.0]), np.eye(3)
    lying = scenes.rotation(scenes.about([0, 1, 0], np.pi / 2))
    for R, height in ((up, 0.3), (scenes.rotation(scenes.about([1, 0, 0], np.pi)), 0.3), (lying, 0.2)):
        pose = [np.asarray(x, float)[None] for x in (R, [0, 0, height + 0.01], size, up, [0, 0, 0], size)]
        _, (distance, point, _) = evaluate("cylinder", pose)
        touching = np.abs(distance[0] - 0.01) < 1e-12
        assert touching.sum() == (2 if R is lying else 4)
        spread = point[0][touching] - point[0][touching].mean(0)
        if R is lying:
            np.testing.assert_allclose(np.sort(point[0][touching][:, 0]), [-0.3, 0.3], atol=1e-12)
        else:
            np.testing.assert_allclose(np.linalg.norm(spread, axis=1), 0.2, atol=1e-12)
