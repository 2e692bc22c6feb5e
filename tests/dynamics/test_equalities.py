"""Equality constraints: closed loops and coupled coordinates against closed forms, MuJoCo and Ridders."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from dynamics.contact import scenes
from dynamics.linkages import BARS, MIXED, SDF, THREE
from trajopt.dynamics import BoxedLCP, CompliantContact, NoContact, RigidContact, SmoothedContact, State, System
from trajopt.dynamics.contact.closures import closure_error, closure_rows
from trajopt.dynamics.rigid_body.configuration import integrate, random_configuration
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import ModelError, OptionError
from trajopt.models.builder import ModelWarning
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status


@jax.jit
def rows_of(model, q):
    """(e, J) of the equality constraints."""
    return closure_rows(model, kinematics(model, q), q)


@jax.jit
def slope_of(model, q):
    """de/dv by automatic differentiation."""
    return jax.jacfwd(lambda dq: closure_error(model, integrate(model, q, dq)))(jnp.zeros(model.nv))


@functools.cache
def model(text, *parts):
    return load_model_from_string(text % parts if parts else text)


def four_bar(dt=1e-3, **law) -> System:
    return System(model(BARS, "", ""), dt, RigidContact(**law))


def errors(system, xs):
    return np.abs(np.asarray(jax.jit(jax.vmap(lambda q: closure_error(system.model, q)))(xs.q))).max(1)


@pytest.mark.parametrize("text", [BARS % ("", ""), MIXED], ids=["four-bar", "mixed"])
def test_jacobian_is_the_slope_of_the_error(text):
    """J = de/dv at open and closed configurations, and e as MuJoCo's residuals of connect, joint and tendon."""
    ours = load_model_from_string(text).to_device()
    theirs = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(theirs)
    rng = np.random.default_rng(0)
    for _ in range(3):
        q = random_configuration(ours, jax.random.key(int(rng.integers(100))))
        q = jnp.where(jnp.isfinite(q), q, 0.0)
        error, J = rows_of(ours, q)
        np.testing.assert_allclose(J, slope_of(ours, q), atol=1e-13)
        data.qpos[:] = q
        mujoco.mj_forward(theirs, data)
        residual = data.efc_pos[data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY]
        if ours.topology.couplings:
            np.testing.assert_allclose(error[-2:], residual[-2:], atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(error[:3]), np.linalg.norm(residual[:3]), atol=1e-12)


@pytest.mark.slow
def test_a_four_bar_moves_as_its_closed_form():
    """Driven, without gravity: the angles keep the distance of the coupler's ends, which is its length (Freudenstein)."""
    system = four_bar()
    system = dataclasses.replace(system, model=system.model.replace(gravity=jnp.zeros(3)))
    xs, infos = system.rollout(system.initial_state(), np.full((400, 1), 0.02))
    assert np.all(infos.status == Status.solved)
    assert errors(system, xs).max() < 1e-4
    q = np.asarray(xs.q)
    assert np.ptp(q[:, 0]) > 0.25
    end = 0.1 * np.stack([np.sin(q[:, 0]), np.cos(q[:, 0])], 1)
    pin = np.array([0.3, 0]) + 0.2 * np.stack([np.sin(q[:, 2]), np.cos(q[:, 2])], 1)
    np.testing.assert_allclose(np.linalg.norm(pin - end, axis=1), np.hypot(0.3, 0.1), atol=1e-4)


def test_acceleration_is_mujocos():
    """M a + h = tau + J^T f with J a = -Jdot v: MuJoCo's hardest constraint from the same closed state, to what it is soft."""
    text = (BARS % ("", "")).replace("<equality>", "<option><flag/></option><equality>").replace(
        '<connect name="pin"', '<connect solref="-1e8 -2e4" solimp="0.99999 0.99999 0.001" name="pin"'
    )
    theirs = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(theirs)
    system = four_bar(dt=1e-6)
    x = system.initial_state()
    _, J = rows_of(system.model, x.q)
    v = np.linalg.svd(np.asarray(J))[2][2:].sum(0)  # a velocity along the motion
    data.qpos[:], data.qvel[:], data.ctrl[:] = x.q, v, 0.3
    mujoco.mj_forward(theirs, data)
    y, _ = system.step(State(x.q, jnp.asarray(v)), np.array([0.3]))
    # J(q) v+ = 0 instead of J(q+) v+: the centripetal part Jdot v is added, as the rows are those before the step.
    slope = jax.jit(jax.jacfwd(lambda q: rows_of(system.model, q)[1] @ v))(x.q)
    M = np.zeros((3, 3))
    mujoco.mj_fullM(theirs, data, M)
    J = np.asarray(J)[[0, 2]]
    MJ = np.linalg.solve(M, J.T)
    ours = (np.asarray(y.v) - v) / 1e-6 - MJ @ np.linalg.solve(J @ MJ, (np.asarray(slope) @ v)[[0, 2]])
    np.testing.assert_allclose(ours, data.qacc, atol=2e-3 * np.abs(data.qacc).max())


@pytest.mark.slow
def test_errors_fall_with_the_square_of_the_step():
    """At 4 rad/s of the crank below 1e-4 m at 1 ms, sixteen times smaller at a quarter of that; at rest below 1e-6."""
    worst = {}
    for dt in (1e-3, 2.5e-4):
        system = four_bar(dt)
        x = system.initial_state()
        _, J = rows_of(system.model, x.q)
        v = np.linalg.svd(np.asarray(J))[2][2:].sum(0)
        v = v * 4.0 / abs(v[0])
        xs, _ = system.rollout(State(x.q, jnp.asarray(v)), np.zeros((round(0.2 / dt), 1)))
        worst[dt] = errors(system, xs)[-1]
    assert worst[1e-3] < 1e-4
    np.testing.assert_allclose(worst[1e-3] / worst[2.5e-4], 16, rtol=0.1)
    damped = four_bar()
    damped = dataclasses.replace(damped, model=damped.model.replace(damping=jnp.full(3, 0.2)))
    xs, _ = damped.rollout(damped.initial_state(), np.zeros((3000, 1)))
    assert np.abs(xs.v[-1]).max() < 1e-2 and errors(damped, xs)[-1] < 1e-6


def test_redundant_loops_do_not_lock():
    """Three rockers on one coupler: 4 equations of which three are independent while closed; it swings like a pendulum."""
    system = System(model(THREE), 1e-3)
    xs, infos = system.rollout(system.initial_state(), np.tile([0.05, 0, 0, 0], (400, 1)))
    q = np.asarray(xs.q)
    assert np.all(infos.status == Status.solved) and np.max(infos.residual) < 1e-10
    assert q[-1, 0] > 0.25
    np.testing.assert_allclose(q[:, 2:], q[:, :1] * [1, 1], atol=1e-4)  # a parallelogram stays one
    np.testing.assert_allclose(q[:, 1], -q[:, 0], atol=1e-4)
    assert errors(system, xs).max() < 1e-4
    # Lagrange along the one motion: (m1/3 + m2/3 + m3/3 + m) l^2 a'' = tau + (m1/2 + ... + m) g l sin a, at the start.
    expected = 0.05 / (((0.2 + 0.3 + 0.3) / 3 + 0.4) * 0.2**2)
    np.testing.assert_allclose(np.asarray(xs.v)[1, 0] / 1e-3, expected, rtol=2e-2)  # rods as thick as 1 cm: 1.5 %


@pytest.mark.parametrize("backend", ["jax", "auto"])
def test_rows_that_move_nothing_say_nothing(backend):
    """A hinge tilted by 1e-6 gives the pin a row along y of that length, which cannot take an error back."""
    text = BARS % ("", "")
    tilted = text.replace('<joint name="c"/>', '<joint name="c" axis="1e-6 1 0"/>').replace('pos="0.3 0 0"', 'pos="0.3 1e-6 0"')
    system = System(model(tilted), 1e-3, backend=backend)
    xs, infos = system.rollout(system.initial_state(), np.full((200, 1), 0.2))
    assert np.all(infos.status == Status.solved)
    moving = np.asarray(four_bar().rollout(system.initial_state(), np.full((200, 1), 0.2))[0].q)
    np.testing.assert_allclose(xs.q, moving, atol=1e-4)
    assert np.ptp(np.asarray(xs.q)[:, 0]) > 0.2


def derivative(system, x, u, label):
    jac = scenes.judged_slopes(system, x, u, (2e-5, 1e-4, 0, 1e-3), label=label)
    assert jac.info.status == Status.solved
    return jac


@pytest.mark.parametrize("integrator", ["semi-implicit", pytest.param("moreau", marks=pytest.mark.slow)])
def test_linearize_against_ridders(integrator):
    """A and B on and off the closure, where d e / d q comes back as -erp, and by automatic differentiation."""
    system = dataclasses.replace(four_bar(), integrator=integrator)
    x = system.initial_state()
    for offset in (0.0, 1e-3):
        start = State(x.q + offset, jnp.array([1.0, -0.8, 0.4]))
        derivative(system, start, np.array([0.1]), f"{integrator} {offset}")


@pytest.mark.slow
@pytest.mark.parametrize("law", [RigidContact(), BoxedLCP(), NoContact()], ids=lambda law: law.name)
def test_derivatives_with_contact_welds_and_couplings(law):
    """Two welded boxes that slide on the floor, an arm with coupled joints; forward and reverse mode beside it."""
    system = System(model(MIXED), 1e-3, law)
    x = system.initial_state()
    q = x.q.at[2].add(-1e-4).at[9].add(-1e-4)
    v = jnp.zeros(system.nv).at[0].set(0.5).at[6].set(0.5).at[12].set(0.3)
    jac = derivative(system, State(q, v), np.zeros(system.nu), law.name)
    matrix = np.hstack([jac.A, jac.B])

    def f(z):
        n = system.nv
        y, _ = system.step(State(integrate(system.model, q, z[:n]), v + z[n : 2 * n]), z[2 * n :])
        return y.v

    zero = jnp.zeros(matrix.shape[1])
    direction = np.random.default_rng(0).normal(size=matrix.shape[1])
    scale = np.abs(matrix).max()
    np.testing.assert_allclose(jax.jvp(f, (zero,), (direction,))[1], matrix[system.nv :] @ direction, atol=1e-8 * scale)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=system.nv))
    np.testing.assert_allclose(jax.vjp(f, zero)[1](weight)[0], weight @ matrix[system.nv :], atol=1e-8 * scale)


@pytest.mark.slow
def test_redundant_loops_have_derivatives():
    """Those along the motion of the linkage and by controls; across it the default configuration opens the loops."""
    system = System(model(THREE), 1e-3)
    x = system.initial_state()
    start = State(x.q, jnp.array([1.0, -1.0, 1.0, 1.0]))
    derivative(system, start, np.array([0.1, 0.0, 0.0, 0.0]), "three rockers")


def test_welded_boxes_are_one_box():
    """Impulses last, rows in the order contacts, limits, dry, equalities; the sum of weights stands on the floor."""
    system = System(model(MIXED), 1e-3)
    x = system.initial_state()
    low = State(x.q.at[2].add(-1e-5).at[9].add(-1e-5), x.v)
    y, info = system.step(low, np.zeros(system.nu))
    assert info.status == Status.solved
    impulse = np.asarray(info.impulse)
    assert impulse.size == 3 * info.contacts.mode.size + 8
    np.testing.assert_allclose(y.v[:6], y.v[6:12], atol=1e-9)
    normal = np.asarray(info.contacts.impulse)[:, 2].sum()
    lift = 2.0 * float(y.v[2])  # 2 kg leave with what erp asks for
    np.testing.assert_allclose(normal - 2 * 9.81e-3, lift, atol=1e-9)
    np.testing.assert_allclose(impulse[-6], -(9.81e-3 + float(y.v[8])), atol=1e-9)  # on the lower box, of the upper one's weight


@pytest.mark.slow
def test_every_law_and_solver_holds_a_loop_alike():
    """Off the closure, with a redundant row and no contact: one linear problem, whoever solves it."""
    system = four_bar()
    x = system.initial_state()
    start, u = State(x.q + 1e-3, jnp.array([1.0, -0.8, 0.4])), np.array([0.1])
    expected = np.asarray(system.step(start, u)[0].v)
    laws = (RigidContact(), BoxedLCP(), NoContact(), SmoothedContact())
    for law in laws:
        y, info = dataclasses.replace(system, contact=law).step(start, u)
        assert info.status == Status.solved, law
        np.testing.assert_allclose(y.v, expected, atol=1e-9, err_msg=law.name)
    aware = dataclasses.replace(system, gradient="complementarity-aware").linearize(start, u, adjoint=np.ones(6))
    np.testing.assert_allclose(aware.A, system.linearize(start, u).A, atol=1e-9)


def test_loops_are_closed_when_a_model_is_loaded():
    """The nearest closed configuration, with a warning; an error with names where there is none."""
    text = MIXED.replace('polycoef="0 -0.5', 'polycoef="0.1 -0.5')
    with pytest.warns(ModelWarning, match="does not close the loops; it is moved by up to 0.08"):
        moved = load_model_from_string(text)
    assert np.abs(closure_error(moved.to_device(), jnp.asarray(moved.q_default))).max() < 1e-10
    apart = (BARS % ("", "")).replace("</equality>", '<connect name="far" site1="p" site2="q"/></equality>')
    apart = apart.replace("</worldbody>", '<site name="p" pos="2 0 0"/></worldbody>')
    apart = apart.replace('<body name="rocker" pos="0.3 0 0">', '<body name="rocker" pos="0.3 0 0"><site name="q"/>')
    with pytest.raises(ModelError, match="no configuration near the default closes the loops: off are .*'far' by"):
        load_model_from_string(apart)


@pytest.mark.parametrize("kind, rows", [("revolute", 5), ("ball", 3), ("fixed", 6), ("prismatic", 5)])
def test_sdf_loops(kind, rows):
    """A second joint above a link closes a loop, with the rows of its kind."""
    sdf = load_model_from_string(SDF % kind)
    [closure] = sdf.topology.closures
    assert closure.name == "pin" and len(sdf.topology.joints) == 3
    error, J = rows_of(sdf.to_device(), jnp.zeros(3))
    assert error.shape == (rows,)
    np.testing.assert_allclose(error, 0, atol=1e-15)
    # In the plane a hinge and a ball hold x and z; a weld, and a slide along y, the turn as well.
    assert np.linalg.matrix_rank(J) == {"revolute": 2, "ball": 2, "fixed": 3, "prismatic": 3}[kind]


def test_sdf_loops_of_other_joints_are_refused():
    with pytest.raises(ModelError, match="the joint closes a loop.*'universal'; expected one of revolute"):
        load_model_from_string(SDF % "universal")


def test_what_cannot_hold_loops_says_so():
    linkage = model(BARS, "", "")
    with pytest.raises(ModelError, match="'four-bar' has equality constraints, which CompliantContact"):
        System(linkage, 1e-3, CompliantContact())
    with pytest.raises(OptionError, match="integrator 'rk4' evaluates forces alone"):
        System(linkage, 1e-3, NoContact(), integrator="rk4")
    with pytest.raises(OptionError, match="gradient is 'bounce'.*equality constraints"):
        System(linkage, 1e-3, gradient="bounce")
