"""Constraint rows: Jacobians against the motion of the geometry, offsets, and which rows are kept.

Contact rows that nothing can move, but for rounding: a contact level with a pivot has no tangential motion.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from dynamics.contact import scenes
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.rows import assemble, contact_frames
from trajopt.dynamics.contact.solve.newton import regularisation
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import State
from trajopt.result import Status

DT = scenes.DT


@functools.partial(jax.jit, static_argnums=3)
def _rows(model, q, v, law):
    kin = kinematics(model, q)
    inputs = StepInputs(law, model, q, v, jnp.zeros_like(v), jnp.asarray(DT))
    return assemble(inputs, kin, collide(model, kin))


def rows_of(name, q, v, law=None):
    return _rows(scenes.model(name), jnp.asarray(q), jnp.asarray(v), law or RigidContact())


def forest_state():
    q = np.array([1.0, 0.2, 0.3, *scenes.about([1, 2, 3], 0.4), 0.6, 0.1, 0.9])
    return q, np.random.default_rng(0).normal(size=9)


@pytest.mark.parametrize("seed", range(3))
def test_normal_rows_are_the_rate_of_the_distance(seed):
    """J_n = d phi / dq along tangent vectors, by differences of the distances."""
    q, v = forest_state()
    model = scenes.model("forest")
    rng = np.random.default_rng(seed)
    q[7:] += 0.3 * rng.normal(size=3)
    q[3:7] = scenes.about(rng.normal(size=3), rng.uniform(0.2, 1.0))
    rows = rows_of("forest", q, v)

    def distances(dq):
        return np.asarray(scenes.distances(model, scenes.integrate(model, q, dq)))

    compare(np.asarray(rows.J)[2:15:3], ridders_jacobian(distances, 9, 1e-2), relative=1e-7, smallest=1e-2)
    np.testing.assert_allclose(rows.distance[:5], distances(np.zeros(9)), atol=1e-15)


def test_rows_are_the_velocity_of_the_material_point():
    """All three rows of the box's corners: frame^T (velocity of the corner), which moves with the body."""
    q, v = forest_state()
    rows = rows_of("forest", q, v)
    box = np.asarray(rows.contacts.node1) == 1
    R = scenes.rotation(q[3:7])
    for k in np.flatnonzero(box):
        arm = np.asarray(rows.contacts.point[k]) - q[:3]
        velocity = v[:3] + np.cross(R @ v[3:6], arm)
        np.testing.assert_allclose(
            np.asarray(rows.J)[3 * k : 3 * k + 3] @ v, np.asarray(rows.frames[k]).T @ velocity, atol=1e-14
        )
    assert box.sum() == 4


def test_frames_are_orthonormal_and_continuous_off_the_seam():
    normals = np.random.default_rng(0).normal(size=(50, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    frames = np.asarray(contact_frames(jnp.asarray(np.vstack([normals, np.eye(3), -np.eye(3)]))))
    np.testing.assert_allclose(np.swapaxes(frames, 1, 2) @ frames, np.tile(np.eye(3), (56, 1, 1)), atol=1e-14)
    np.testing.assert_allclose(np.linalg.det(frames), 1.0, atol=1e-14)
    np.testing.assert_allclose(frames[:50, :, 2], normals, atol=1e-15)


@pytest.mark.parametrize(
    "law, phi, v, e, b, exists, impact",
    [
        (RigidContact(), 2e-3, -1.0, 0.0, 2.0, True, False),
        (RigidContact(), -1e-3, -1.0, 0.0, -0.2, True, False),
        (RigidContact(erp=1.0, damping=0.5), -1e-3, -1.0, 0.0, -1.5, True, False),
        (RigidContact(damping=0.5), 1e-3, -1.0, 0.0, 1.0, True, False),  # damping on closed rows only
        (RigidContact(), 0.0, -1.0, 0.0, 0.0, True, False),
        (RigidContact(gap="detect"), 1e-9, -1.0, 0.7, None, False, False),
        (RigidContact(gap="detect"), -1e-3, -1.0, 0.7, -0.7, True, True),
        (RigidContact(), 5e-4, -1.0, 0.7, -0.7, True, True),  # closes within the step
        (RigidContact(), 2e-3, -1.0, 0.7, 2.0, True, False),  # does not
        (RigidContact(), 0.0, -0.0099, 0.7, 0.0, True, False),  # slower than v_rest
        (RigidContact(), -6e-3, -1.0, 0.0, -1.0, True, False),  # 1.2 m/s, capped
        (RigidContact(push_out_speed=0.5, damping=0.5), -6e-3, -1.0, 0.0, -1.0, True, False),  # damping beside the cap
        (RigidContact(push_out_speed=None), -6e-3, -1.0, 0.0, -1.2, True, False),
        (RigidContact(), -6e-3, -1.0, 0.7, -0.7, True, True),  # an impact is no push-out
        (RigidContact(rest_velocity=0.2), -1e-5, -0.19, 0.7, -0.002, True, False),
        (RigidContact(), 5e-4, -1.0, 4e-3, 0.6 * 0.5 - 4e-3, True, True),  # 0.4 of the least restitution that counts whole
        (RigidContact(), -1e-3, -1.0, 4e-3, 0.6 * -0.2 - 4e-3, True, True),
    ],
)
def test_offset_table(law, phi, v, e, b, exists, impact):
    offset, there, bounces = law.normal_offset(jnp.array([phi]), jnp.array([v]), jnp.array([e]), jnp.asarray(DT))
    assert bool(there[0]) == exists and bool(bounces[0]) == impact
    if b is not None:
        np.testing.assert_allclose(offset[0], b, rtol=1e-12, atol=1e-15)


def test_limits_and_dry_friction_rows():
    """One row for the nearer limit with its sign, one per dry-friction DoF with bound dt f_loss."""
    rows = rows_of("sliders", np.array([0.3, 0.0]), np.zeros(2))
    np.testing.assert_array_equal(rows.J, [[-1.0, 0], [1, 0], [0, 1]])
    np.testing.assert_allclose(rows.distance, [0.2], atol=1e-15)
    np.testing.assert_allclose(rows.bound, DT * np.array([3.0, 0.5]), rtol=1e-14)
    np.testing.assert_allclose(rows.offset, [0.2 / DT, 0, 0], rtol=1e-13)
    rows = rows_of("sliders", np.array([-0.3, 0.0]), np.zeros(2))
    np.testing.assert_array_equal(rows.J[0], [1.0, 0])
    assert rows_of("sliders", np.zeros(2), np.zeros(2), NoContact()).J.shape == (0, 2)
    assert rows_of("sliders", np.zeros(2), np.zeros(2), RigidContact(limits=False, joint_friction=False)).J.shape == (
        0,
        2,
    )


def test_the_closest_contacts_are_kept_and_the_others_counted():
    """max_contacts = 3 on five candidates: the three closest, and every active one left out is reported."""
    q, _ = forest_state()
    everything = rows_of("forest", q, np.zeros(9))
    for velocity in (0.0, -1e3):  # at -1 km/s downwards every corner of the box reaches the floor within the step
        v = np.zeros(9)
        v[2] = velocity
        rows = rows_of("forest", q, v, RigidContact(max_contacts=3))
        distance = np.asarray(everything.distance)[:5]
        np.testing.assert_array_equal(np.sort(np.asarray(rows.distance)[:3]), np.sort(distance)[:3])
        kept = np.isin(distance, np.asarray(rows.distance)[:3])
        on_box = np.asarray(everything.contacts.node1) == 1
        active = (distance < 0) | (on_box & (velocity < 0))
        assert int(rows.dropped) == int((active & ~kept).sum())
    assert int(everything.dropped) == 0


def test_dropped_rows_are_reported_by_the_step():
    sys = scenes.system("cube", max_contacts=2)
    _, info = sys.step(scenes.cube_state("standing"), np.zeros(0))
    assert int(info.dropped) == 2 and info.contacts.distance.shape == (2,)
    _, info = sys.step(State(np.array([0, 0, 1.0, 1, 0, 0, 0]), np.zeros(6)), np.zeros(0))
    assert int(info.dropped) == 0


def test_the_nearest_limits_are_kept_and_the_others_counted():
    """Go1 with more joints at their limits than max_limits: the deepest kept, the others counted."""
    model = scenes.model("go1")
    x, _ = scenes.robot_state("go1", "flight")
    q = np.array(x.q)
    upper = np.asarray(model.upper)
    dofs = np.array([7, 8, 10, 13])  # joints, put beyond their upper limits by 1 mrad to 4 mrad
    for k, dof in enumerate(dofs):
        q[model.topology.scalar_q_of_dof[dof]] = upper[dof] + 1e-3 * (k + 1)
    rows = rows_of("go1", q, np.zeros(18), RigidContact(max_limits=2))
    assert sorted(np.asarray(rows.limit_dof).tolist()) == [10, 13]
    assert int(rows.dropped) == 2
    np.testing.assert_allclose(np.sort(np.asarray(rows.distance)[-2:]), [-4e-3, -3e-3], atol=1e-12)
    np.testing.assert_array_equal(rows.limit_sign, [-1.0, -1.0])
    assert int(rows_of("go1", q, np.zeros(18)).dropped) == 0


@pytest.mark.parametrize("rounding", [0.0, 1e-18, 1e-12])
def test_they_do_not_spoil_the_others(rounding):
    """Two equal contacts stop a unit mass that falls at 1 m/s; a third cannot be moved along its tangents and is apart."""
    J = np.zeros((9, 3))
    J[0:3] = J[3:6] = np.eye(3)
    J[8, 2] = 1.0
    G = J @ J.T
    G[6, 6] = G[7, 7] = rounding
    g = J @ np.array([0.1, 0.0, -1.0]) + np.array([0.0] * 8 + [10.0])
    ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.ones(3))
    assert regularisation(ncp) > 1e-8
    solution = solve(ncp)
    assert solution.status == Status.solved and bool(solution.degenerate)
    np.testing.assert_allclose(solution.impulse, [-0.05, 0.0, 0.5] * 2 + [0.0] * 3, atol=1e-9)
    assert np.isfinite(solution.inverse).all()
