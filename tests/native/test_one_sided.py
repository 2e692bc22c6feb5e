"""Contacts that contradict each other along a direction: the column at fixed modes, without what no impulse can answer.

The oracle is a foot on a slanted rail, over a floor that holds it by friction. It can move neither along the floor nor into it,
two rows J = [s, c] for one degree of freedom. Moved along the rail by h its depth changes by c h, which asks for the velocity
-erp c h / dt of the normal row and for none of the tangential one. The limit of the regularised problem is the least-squares
compromise of both, J^T (J v + [0, erp c h / dt]) = 0: v = -c^2 erp / dt h, since s^2 + c^2 = 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published import robot_file, robots_folder

from native.cases import needs_core, two_feet
from trajopt import load_model
from trajopt.dynamics import RigidContact, State, System
from trajopt.models.registry import load_model_from_string

pytestmark = needs_core

RAIL = """<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1" friction="1"/>
<body pos="0 0 0.1"><joint type="slide" axis="0.5 0 0.8660254037844386"/>
  <geom type="sphere" size="0.1" mass="2" friction="1"/></body></worldbody></mujoco>"""
DT, ERP = 1e-2, 0.4


@pytest.mark.parametrize("backend", ["native", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_foot_on_a_slanted_rail(backend):
    system = System(load_model_from_string(RAIL), DT, contact=RigidContact(erp=ERP), backend=backend)
    found = system.linearize(State(np.zeros(1), np.zeros(1)), np.zeros(1))
    np.testing.assert_array_equal(found.one_sided, [True, False, False])
    np.testing.assert_allclose(found.A[:, 0], [1 - 0.75 * ERP, -0.75 * ERP / DT], rtol=1e-8)
    np.testing.assert_allclose(found.A[:, 1], 0.0, atol=1e-9)
    np.testing.assert_allclose(found.x_next.v, 0.0, atol=1e-12)


def test_columns_are_ordinary_where_nothing_contradicts():
    system = System(load_model_from_string(RAIL), DT, contact=RigidContact(erp=ERP), backend="native")
    above = system.linearize(State(np.array([1.0]), np.zeros(1)), np.zeros(1))
    assert not np.any(above.one_sided)
    np.testing.assert_allclose(above.A, [[1.0, DT], [0.0, 1.0]], atol=1e-12)


def test_a_batch_names_the_columns_of_each_sample():
    system = System(load_model_from_string(RAIL), DT, contact=RigidContact(erp=ERP), backend="native")
    q, v, u = np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.zeros((2, 1))
    found = jax.vmap(system.linearize)(State(q, v), u)
    np.testing.assert_array_equal(found.one_sided, [[True, False, False], [False, False, False]])
    for k in range(2):
        np.testing.assert_array_equal(found.A[k], system.linearize(State(q[k], v[k]), u[k]).A)


def standing_h1(depth: float) -> tuple[System, State]:
    """H1 on two flat feet, all corners of which are `depth` inside the floor."""
    system = System(load_model("h1"), 1e-3, backend="native")
    x = system.initial_state("home")
    lowest = float(np.min(system.step(x, np.zeros(system.nu))[1].contacts.distance))
    return system, State(x.q.at[2].add(-lowest - depth), x.v)


def test_legs_of_five_joints_on_flat_feet():
    """Rolling or turning a hip turns the foot, which no other joint of the leg can undo."""
    system, x = standing_h1(1e-5)
    found = system.linearize(x, np.zeros(system.nu))
    assert np.flatnonzero(found.one_sided).tolist() == [6, 7, 11, 12]  # yaw and roll of both hips
    assert np.isfinite(found.A).all()


def standing_states(count: int):
    """(q, v, u) of a standing H1: feet 0.1 to 100 um inside the floor, at rest or moving a little, torques of 0 to 50 N m."""
    system, x = standing_h1(0.0)
    rng, n = np.random.default_rng(5), system.nv
    for k in range(count):
        q = x.q.at[2].add(-(10.0 ** rng.uniform(-7, -4)))
        v = np.zeros(n) if k % 2 else 1e-3 * rng.normal(size=n) * (rng.uniform(size=n) < 0.2)
        yield system, State(q, jnp.asarray(v)), rng.normal(size=system.nu) * rng.choice([0, 1, 10, 50])


@pytest.mark.slow
def test_both_backends_agree_on_all_columns():
    """JAX refines with the inverse of the regularised problem, the core eliminates."""
    marked = 0
    for system, x, u in standing_states(30):
        core = system.linearize(x, u)
        reference = jax.jit(System(system.model, 1e-3, backend="jax").linearize)(x, u)
        marked += int(np.sum(core.one_sided))
        np.testing.assert_array_equal(core.one_sided, reference.one_sided)
        np.testing.assert_allclose(core.A, reference.A, atol=1e-8 * np.abs(reference.A).max())
    assert marked >= 30


@pytest.mark.filterwarnings("ignore::trajopt.models.ModelWarning")  # meshes that are not convex
def test_a_robot_that_lies_on_many_links():
    """Solo12 on its trunk, legs and feet: contacts slide where they contradict each other."""
    file = robot_file("solo_description/robots/solo12.urdf")
    system = System(load_model(file, floating_base=True, ground=True, package_dirs=(robots_folder(),)), 1e-3, backend="native")
    x, u = State(system.model.q_default.at[2].set(0.4), np.zeros(system.nv)), np.zeros(system.nu)
    _, motion = jax.lax.scan(lambda x, _: (system.step(x, u)[0],) * 2, x, None, 900)
    for k in (600, 700, 800):
        lying = State(motion.q[k], motion.v[k])
        linear = system.linearize(lying, u)
        assert np.sum(linear.one_sided) >= 2
        again = jax.jit(system.linearize)(lying, u)
        assert np.isfinite(linear.A).all() and np.array_equal(linear.A, again.A)


@pytest.mark.parametrize("backend", ["native", pytest.param("jax", marks=pytest.mark.slow)])
def test_two_feet_that_are_one_but_for_rounding(backend):
    """4e-8 m apart they are two rows of J, one of G = J M^-1 J^T in double precision. The law leaves the pitch free along which
    they contradict each other, and the derivative is that of feet in one place: which of them is in front plays no part."""
    x, u = State(np.zeros(2), np.zeros(2)), np.zeros(2)
    one, two = (System(load_model_from_string(two_feet(d)), DT, backend=backend).linearize(x, u) for d in (0.0, 4e-8))
    assert not np.any(two.one_sided)
    np.testing.assert_allclose(two.A, one.A, rtol=0, atol=1e-11 * np.abs(one.A).max())
    np.testing.assert_allclose(two.B, one.B, rtol=0, atol=1e-11 * np.abs(one.B).max())


def test_forward_and_reverse_mode_take_the_same_columns():
    system = System(load_model_from_string(RAIL), DT, contact=RigidContact(erp=ERP), backend="native")

    def velocity(q):
        return system.step(State(q, jnp.zeros(1)), jnp.zeros(1))[0].v[0]

    slope = -0.75 * ERP / DT
    np.testing.assert_allclose(jax.jvp(velocity, (jnp.zeros(1),), (jnp.ones(1),))[1], slope, rtol=1e-8)
    np.testing.assert_allclose(jax.grad(velocity)(jnp.zeros(1)), [slope], rtol=1e-8)
