"""The broad phase: its bounds against `coal`, and steps with it against steps that look at every pair."""

import dataclasses
import functools

import coal
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dynamics.collision.pair_judges import distance_of
from trajopt.dynamics import CompliantContact, NoContact, RigidContact, State, System
from trajopt.dynamics.collision.broadphase import PairLimit, bounding_boxes, box_bounds, exact_bounds
from trajopt.dynamics.collision.convex.hulls import edges_of
from trajopt.dynamics.collision.convex.shapes import hull
from trajopt.dynamics.collision.narrowphase import collide, contact_count
from trajopt.dynamics.model import ShapeType as T
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import OptionError
from trajopt.models import load_model_from_string

KINDS = {
    T.SPHERE: "0.15",
    T.CAPSULE: "0.1 0.2",
    T.BOX: "0.1 0.2 0.3",
    T.CYLINDER: "0.15 0.2",
    T.ELLIPSOID: "0.1 0.2 0.3",
}
LINKS = 9
POSES = 40
# Of bounds and distances that are computed in different ways: rounding of coordinates of 1 m.
ROUNDING = 1e-12


@functools.cache
def shapes():
    """A model with two shapes of each kind, the meshes of 20 vertices off their origin."""
    corners = np.random.default_rng(3).normal(size=(2, 20, 3)) * [0.1, 0.15, 0.2] + [0.1, -0.05, 0.1]
    assets = "".join(
        f'<mesh name="m{k}" vertex="{" ".join(map(str, corner.ravel()))}"/>' for k, corner in enumerate(corners)
    )
    geoms = [f'type="{kind.name.lower()}" size="{size}"' for kind, size in KINDS.items() for _ in range(2)]
    geoms += [f'type="mesh" mesh="m{k}"' for k in range(2)]
    bodies = "".join(f"<body><freejoint/><geom {geom} mass='1'/></body>" for geom in geoms)
    return load_model_from_string(
        f"<mujoco><asset>{assets}</asset><worldbody>{bodies}</worldbody></mujoco>"
    ).to_device()


def placements(rng, count):
    """Rotations and positions of pairs of shapes, some overlapping."""
    rotation = Rotation.random(2 * count, rng).as_matrix().reshape(count, 2, 3, 3)
    position = rng.normal(size=(count, 2, 3))
    position[:, 0] = position[:, 1] + rng.normal(size=(count, 3)) * rng.choice([0.1, 0.3, 0.8], size=(count, 1))
    return rotation, position


def judge(model, k):
    """The shape of the library `coal`."""
    spec, size = model.topology.shapes[k], np.asarray(model.shape_size[k])
    if spec.kind == T.MESH:
        corners, triangles = coal.StdVec_Vec3s(), coal.StdVec_Triangle()
        for x in np.asarray(model.meshes[spec.mesh]):
            corners.append(x)
        for t in spec.triangles:
            triangles.append(coal.Triangle(*t))
        return coal.Convex(corners, triangles)
    return {
        T.SPHERE: lambda: coal.Sphere(size[0]),
        T.CAPSULE: lambda: coal.Capsule(size[0], 2 * size[1]),
        T.BOX: lambda: coal.Box(*(2 * size)),
        T.CYLINDER: lambda: coal.Cylinder(size[0], 2 * size[1]),
        T.ELLIPSOID: lambda: coal.Ellipsoid(*size),
    }[spec.kind]()


def test_box_bounds_are_below_the_distances_of_all_kinds():
    """And, of spheres, capsules and boxes that are apart, within 2 % of them, or 1 mm where they nearly touch."""
    model, rng = shapes(), np.random.default_rng(0)
    judges = [judge(model, k) for k in range(12)]
    pairs = [(i, j) for i in range(12) for j in range(i + 1, 12)]
    one, two = np.array(pairs).T

    @jax.jit
    def bounds(rotation, position):
        boxes = bounding_boxes(model, rotation, position)
        return box_bounds(boxes[one], boxes[two])

    checked = 0
    for _ in range(POSES):
        rotation = Rotation.random(12, rng).as_matrix()
        position = rng.normal(size=(12, 3)) * rng.choice([0.15, 0.4])
        for k, bound in enumerate(np.asarray(bounds(jnp.asarray(rotation), jnp.asarray(position)))):
            i, j = pairs[k]
            kinds = {model.topology.shapes[i].kind, model.topology.shapes[j].kind}
            places = ((rotation[i], position[i]), (rotation[j], position[j]))
            distance, _ = distance_of([judges[i], judges[j]], places)
            if distance < 0 and kinds & {T.CYLINDER, T.ELLIPSOID}:
                continue  # there the judge's penetration is not the smallest
            assert bound <= distance + 1e-9, (kinds, bound, distance)
            if distance > 0 and kinds <= {T.SPHERE, T.CAPSULE, T.BOX}:
                assert bound >= 0.98 * distance - 1e-3, (kinds, bound, distance)
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("kinds", [(T.CAPSULE, T.MESH), (T.CYLINDER, T.ELLIPSOID), (T.MESH, T.MESH)], ids=str)
def test_exact_bounds_are_within_two_percent_below_the_distance(kinds):
    model, rng = shapes(), np.random.default_rng(1)
    found = [k for k, spec in enumerate(model.topology.shapes) if spec.kind in kinds]
    ends = (
        [found[0], found[-1]] if kinds[0] == kinds[1] else [next(k for k in found if is_a(model, k, x)) for x in kinds]
    )
    judges = [judge(model, k) for k in ends]
    rotation, position = placements(rng, 200)
    sizes = [jnp.broadcast_to(model.shape_size[k], (200, 3)) for k in ends]
    hulls = [stacked_hull(model, k, 200) for k in ends]
    one, two = ((jnp.asarray(rotation[:, k]), jnp.asarray(position[:, k]), sizes[k]) for k in range(2))
    bounds = np.asarray(jax.jit(functools.partial(exact_bounds, kinds))(one, two, *hulls))
    radius = float(model.shape_size[ends[0]][0]) if kinds[0] == T.CAPSULE else 0.0
    apart = 0
    for R, p, bound in zip(rotation, position, bounds, strict=True):
        distance, _ = distance_of(judges, tuple(zip(R, p, strict=True)))
        if distance > 0:
            assert 0.98 * (distance + radius) - radius - 1e-3 <= bound <= distance + 1e-9
            apart += 1
        elif T.ELLIPSOID not in kinds:
            assert bound <= distance + 1e-9
    assert 50 < apart < 190


def is_a(model, k, kind):
    return model.topology.shapes[k].kind == kind


def stacked_hull(model, k, count):
    spec = model.topology.shapes[k]
    if spec.kind != T.MESH:
        return None
    one = hull(model.meshes[spec.mesh], jnp.asarray(np.array(spec.triangles)), jnp.asarray(edges_of(spec.triangles)))
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), one)


@functools.cache
def snake():
    """A chain of capsules over a floor, 28 pairs of links that are not neighbours."""
    axes = ("0 1 0", "0 0 1")
    chain = ""
    for k in reversed(range(LINKS)):
        joint = f'<joint axis="{axes[k % 2]}" armature="0.01" damping="0.1"/>'
        link = '<geom type="capsule" size="0.04" fromto="0.02 0 0 0.18 0 0" mass="0.5" friction="0.6"/>'
        chain = f'<body name="link{k}" pos="{0.2 if k else 0} 0 {0 if k else 2}">{joint}{link}{chain}</body>'
    floor = '<geom name="floor" type="plane" size="1 1 1"/>'
    return load_model_from_string(f"<mujoco><worldbody>{floor}{chain}</worldbody></mujoco>").to_device()


@functools.cache
def configurations(count=40):
    """Configurations (count, nq) in which the chain winds up."""
    rng = np.random.default_rng(5)
    q = np.zeros((count, LINKS))
    q[:, 0::2] = 1.6 + 0.3 * rng.normal(size=(count, 5))
    q[:, 1::2] = 0.3 * rng.normal(size=(count, 4))
    return jnp.asarray(q)


@functools.partial(jax.jit, static_argnums=0)
def contacts_of(limit, qs):
    """Contacts at the configurations, and the derivative of distance, point and normal along one change of everything."""
    model, rng = snake(), np.random.default_rng(6)
    along = {
        "shape_size": model.shape_size,
        "placement_position": model.placement_position,
        "shape_position": model.shape_position,
    }
    along = {name: jnp.asarray(rng.normal(size=leaf.shape)) for name, leaf in along.items()}
    dq = jnp.asarray(rng.normal(size=LINKS))

    def moved(q, t):
        changed = model.replace(**{name: getattr(model, name) + t * d for name, d in along.items()})
        return collide(changed, kinematics(changed, q + t * dq), limit)

    def single(q):
        contacts, slope = jax.jvp(functools.partial(moved, q), (0.0,), (1.0,))
        return contacts, jnp.concatenate([slope.distance[:, None], slope.point, slope.normal], 1)

    return jax.vmap(single)(qs)


def test_contacts_are_those_of_the_nearest_pairs():
    """Every contact is one of the full list, with its derivative, and none that is missing is closer than the bounds say."""
    model, limit = snake(), PairLimit(8, 8)
    assert len(model.topology.pairs) == 28 + LINKS
    full, part = contacts_of(None, configurations()), contacts_of(limit, configurations())
    assert full[0].culled is None and part[0].distance.shape[1] == 2 * (8 + LINKS) == contact_count(model, limit)
    touching = 0
    for k in range(len(configurations())):
        everything, slopes, some, some_slopes = (
            jax.tree.map(lambda x, k=k: np.asarray(x[k]), c) for c in (*full, *part)
        )
        culled = some.culled
        for field in ("pair", "node1", "node2", "distance", "point", "normal", "centre"):
            expected = getattr(everything, field)[culled.candidate]
            np.testing.assert_allclose(getattr(some, field), expected, rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(some_slopes, slopes[culled.candidate], rtol=0, atol=1e-9 * np.abs(slopes).max())
        missing = np.setdiff1d(np.arange(contact_count(model)), culled.candidate)
        assert everything.distance[missing].min() >= culled.bound[~culled.taken].min() - ROUNDING
        assert culled.bound[~culled.taken].min() >= culled.bound[culled.taken].max() - 1e-6
        touching += (some.distance < 0).sum()
    assert touching > 50


@functools.cache
def system(kind=RigidContact, **options):
    return System(
        snake(), 5e-3, contact=kind(**options), integrator="rk4" if kind is CompliantContact else "semi-implicit"
    )


def states():
    """Where links touch each other, and no pair is left out that could: two configurations, moving."""
    distance = np.asarray(contacts_of(None, configurations())[0].distance)
    chosen = np.flatnonzero(((distance < 0).sum(1) >= 2) & ((distance < 0.03).sum(1) < 8))[:2]
    assert len(chosen) == 2
    return [
        State(configurations()[k], jnp.asarray(0.3 * np.random.default_rng(int(k)).normal(size=LINKS))) for k in chosen
    ]


def test_a_step_and_its_derivatives_are_those_of_all_pairs():
    culled, full = (system(max_contacts=8, max_pairs=n) for n in (8, 100))
    for x in states():
        u = np.zeros(LINKS)
        got, expected = (s.linearize(x, u) for s in (culled, full))
        assert int(got.info.dropped) == int(expected.info.dropped) == 0
        assert float(jnp.abs(got.info.impulse).max()) > 1e-3
        for a, b in zip(
            jax.tree.leaves((got.x_next, got.A, got.B)),
            jax.tree.leaves((expected.x_next, expected.A, expected.B)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(1.0, float(np.abs(b).max())))


@pytest.mark.slow
def test_a_step_by_jax_is_that_of_all_pairs():
    """The nearest pairs are known as arrays alone, and what bodies cover within the step is looked at for them."""
    systems = [dataclasses.replace(system(max_contacts=8, max_pairs=n), backend="jax") for n in (8, 100)]
    x = states()[0]
    steps = [system.step(x, np.zeros(LINKS))[0] for system in systems]
    np.testing.assert_allclose(steps[0].v, steps[1].v, rtol=0, atol=1e-9 * float(jnp.abs(steps[1].v).max()))


def test_pairs_that_are_left_out_are_counted():
    """Never fewer than the pairs that touch unseen, none where all are far apart; and none without contact."""
    model, few = snake(), system(max_contacts=8, max_pairs=1)
    for x in states():
        _, info = few.step(x, np.zeros(LINKS))
        contacts = collide(model, kinematics(model, x.q))
        own = np.asarray(contacts.node2) < model.topology.n_nodes
        touch = np.unique(np.asarray(contacts.pair)[own & (np.asarray(contacts.distance) < 0)])
        assert len(touch) - 1 <= int(info.dropped_pairs) <= int(info.dropped)
    assert int(info.dropped_pairs) > 0
    straight = State(jnp.zeros(LINKS), jnp.zeros(LINKS))
    _, info = few.step(straight, np.zeros(LINKS))
    assert int(info.dropped) == int(info.dropped_pairs) == 0
    # Far apart still, but one joint turns so fast that links could meet.
    _, info = few.step(dataclasses.replace(straight, v=jnp.asarray(500.0 * np.eye(LINKS)[4])), np.zeros(LINKS))
    assert int(info.dropped_pairs) > 0
    _, info = system(NoContact).step(x, np.zeros(LINKS))
    assert int(info.dropped) == 0


def test_compliant_contact_keeps_its_state_with_the_pair():
    """The deformation of a contact stays that contact's while pairs come and go; of others it decays."""
    culled, full = (system(CompliantContact, max_contacts=8, max_pairs=n) for n in (8, 100))
    for x in states():
        deformation = 1e-4 * np.random.default_rng(0).normal(size=(contact_count(snake()), 3))
        x = dataclasses.replace(x, contact=jnp.asarray(deformation))
        (got, info), (expected, _) = (s.step(x, np.zeros(LINKS)) for s in (culled, full))
        assert int(info.dropped) == 0 and float(jnp.abs(info.impulse).max()) > 0
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("wrong", [0, -3, 2.5])
def test_max_pairs_must_be_a_count(wrong):
    with pytest.raises(OptionError, match=rf"max_pairs is {wrong}; (it must be|expected)"):
        RigidContact(max_pairs=wrong)
