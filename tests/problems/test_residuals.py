"""Residuals of tasks: values against MuJoCo and closed forms, derivatives against Ridders' extrapolation."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from ridders import Estimate, compare, ridders_jacobian

from trajopt import dynamics, load_model
from trajopt.dynamics import State, System, difference, integrate, random_configuration
from trajopt.dynamics.rigid_body.lie import quaternion_exp
from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.models import bundled_file
from trajopt.problems import OptimalControlProblem
from trajopt.problems import residuals as r
from trajopt.problems.residuals.base import StepOutcome
from trajopt.problems.task_expansion import task_expansion, task_rows


@functools.cache
def go1() -> System:
    return System(load_model("go1"), 0.01, dynamics.RigidContact(max_contacts=4), implicit_damping=True)


@functools.cache
def ur5() -> System:
    return System(load_model("ur5"), 0.02, dynamics.NoContact())


def any_state(system: System, seed: int = 0) -> State:
    q = np.asarray(random_configuration(system.model, jax.random.key(seed)))
    return State(jnp.asarray(q), jax.random.normal(jax.random.key(seed + 1), (system.nv,)))


def rows(term, system: System, x: State, u=None, t=0.0):
    u = jnp.zeros(system.nu) if u is None else jnp.asarray(u)
    return jax.jit(lambda x, u, t: term(x, u, t, StepOutcome(system, x, u)))(x, u, jnp.asarray(t))


def mujoco_at(name: str, x: State):
    model = mujoco.MjModel.from_xml_path(str(bundled_file(name)))
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = np.asarray(x.q), np.asarray(x.v)
    mujoco.mj_forward(model, data)
    mujoco.mj_subtreeVel(model, data)
    return model, data


# -- values ------------------------------------------------------------------------------------------------------------


def test_frames_are_where_mujoco_has_them_and_move_as_there():
    system = go1()
    x = any_state(system)
    model, data = mujoco_at("go1", x)
    body = model.body("FL_calf").id
    np.testing.assert_allclose(rows(r.FramePosition("FL_calf"), system, x), data.xpos[body], atol=1e-12)
    np.testing.assert_allclose(rows(r.Height("FL_calf"), system, x), data.xpos[body][2:], atol=1e-12)
    np.testing.assert_allclose(rows(r.FramePosition("FL_foot"), system, x), data.geom("FL_foot").xpos, atol=1e-12)
    velocity = np.zeros(6)  # [angular; linear], world axes
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
    found = rows(r.FrameVelocity("FL_calf"), system, x)
    np.testing.assert_allclose(found, np.concatenate([velocity[3:], velocity[:3]]), atol=1e-11)
    here = r.FrameOrientation("FL_calf", reference=data.xquat[body])
    np.testing.assert_allclose(rows(here, system, x), np.zeros(3), atol=1e-7)  # arc cosine of 1 - 1e-16


def test_an_orientation_error_is_the_rotation_vector_in_the_frames_axes():
    system = ur5()
    x = any_state(system)
    _, data = mujoco_at("ur5", x)
    turn = np.array([0.3, -0.5, 0.2])
    quaternion = np.zeros(4)
    mujoco.mju_mulQuat(quaternion, data.body("wrist_3_link").xquat, np.asarray(quaternion_exp(jnp.asarray(-turn))))
    term = r.FrameOrientation("wrist_3_link", reference=quaternion)
    np.testing.assert_allclose(rows(term, system, x), turn, atol=1e-12)
    place = np.concatenate([np.ones(3), quaternion])
    both = rows(r.FramePlacement("wrist_3_link", reference=place), system, x)
    np.testing.assert_allclose(both, np.concatenate([data.body("wrist_3_link").xpos - 1.0, turn]), atol=1e-12)


def test_a_relative_velocity_is_the_rate_of_the_relative_placement():
    system = go1()
    x, h = any_state(system), 1e-6
    position = r.FramePosition("FL_calf", relative_to="trunk")
    ahead, behind = (State(integrate(system.model, x.q, s * x.v), x.v) for s in (h, -h))
    rate = (rows(position, system, ahead) - rows(position, system, behind)) / (2 * h)
    found = rows(r.FrameVelocity("FL_calf", relative_to="trunk"), system, x)
    np.testing.assert_allclose(found[:3], rate, atol=1e-8)  # differences: h^2 and eps / h
    turned = rows(r.FrameOrientation("FL_calf", relative_to="trunk"), system, x)
    # the leg's joints alone move it: as many radians a second as their velocities add up to about their axes
    still = State(x.q, x.v.at[6:].set(0.0))
    np.testing.assert_allclose(rows(r.FrameVelocity("FL_calf", relative_to="trunk"), system, still), np.zeros(6), atol=1e-12)
    assert np.linalg.norm(turned) <= np.pi


def test_centre_of_mass_and_momentum_are_mujocos():
    system = go1()
    x = any_state(system)
    model, data = mujoco_at("go1", x)
    np.testing.assert_allclose(rows(r.CentreOfMass(), system, x), data.subtree_com[0], atol=1e-12)
    momentum = rows(r.CentroidalMomentum(), system, x)
    np.testing.assert_allclose(momentum[:3], model.body_subtreemass[0] * data.subtree_linvel[0], atol=1e-10)
    np.testing.assert_allclose(momentum[3:], data.subtree_angmom[0], atol=1e-10)


def test_joint_residuals_are_differences_of_coordinates():
    system = go1()
    x, u = any_state(system), np.linspace(-1.0, 1.0, 12)
    reference = np.asarray(system.model.q_default)
    np.testing.assert_allclose(rows(r.Posture(), system, x)[6:], x.q[7:] - reference[7:], atol=1e-12)
    back = integrate(system.model, jnp.asarray(reference), rows(r.Posture(), system, x))
    np.testing.assert_allclose(difference(system.model, x.q, back), np.zeros(18), atol=1e-7)
    np.testing.assert_allclose(rows(r.Velocity(("FL_thigh_joint", "FR_calf_joint")), system, x), x.v[np.array([10, 8])])
    np.testing.assert_allclose(rows(r.Control(reference=0.5, weight=2.0), system, x, u), 2.0 * (u - 0.5))
    margin = rows(r.LimitMargin(activation=None), system, x)
    np.testing.assert_allclose(margin[:12], x.q[7:] - np.asarray(system.model.lower)[6:])
    np.testing.assert_allclose(margin[12:], np.asarray(system.model.upper)[6:] - x.q[7:])


def test_impulses_are_what_changes_the_momentum():
    """From rest M (v+ - v) = dt (tau - h) + J^T lambda: the feet's impulses are the change of momentum and of the weight."""
    system = go1()
    x, u = system.initial_state("home"), np.linspace(-3.0, 3.0, 12)
    x = State(x.q.at[2].add(-0.01), x.v)  # the feet inside the ground: all four press
    after, info = system.step(x, jnp.asarray(u))
    assert (np.asarray(info.contacts.impulse)[:, 2] > 0).sum() >= 3
    total = sum(rows(r.ContactImpulse(f"{leg}_foot"), system, x, u) for leg in ("FL", "FR", "RL", "RR"))
    momentum = rows(r.CentroidalMomentum(), system, State(x.q, after.v))[:3]
    weight = float(np.asarray(system.model.mass).sum()) * np.asarray(system.model.gravity) * 0.01
    np.testing.assert_allclose(total, momentum - weight, atol=1e-10)
    acceleration = rows(r.Acceleration(), system, x, u)
    np.testing.assert_allclose(acceleration, (after.v - x.v) / 0.01, atol=1e-9)
    floor = rows(r.ContactImpulse("floor"), system, x, u)
    np.testing.assert_allclose(floor, -total, atol=1e-12)  # on the other body: the opposite


def test_a_cube_at_rest_and_one_that_slides():
    system, shape, floor = cube(), "cube", "floor"
    x = system.initial_state("home")
    pressure = rows(r.CentreOfPressure(shape), system, x)
    np.testing.assert_allclose(pressure[:2], x.q[:2], atol=1e-9)  # below its centre
    assert abs(float(rows(r.FrictionShare(shape), system, x)[0])) < 1e-6
    sliding = State(x.q, x.v.at[0].set(1.0))
    np.testing.assert_allclose(rows(r.FrictionShare(shape), system, sliding), [1.0], atol=1e-9)  # on the cone's boundary
    slip = np.asarray(rows(r.Slip(shape), system, sliding)).reshape(-1, 3)
    np.testing.assert_allclose(slip, np.tile([1.0, 0.0, 0.0], (4, 1)), atol=1e-9)
    lifted = State(x.q.at[2].add(0.01), x.v.at[0].set(1.0))
    faded = np.asarray(rows(r.Slip(shape, reach=5e-3), system, lifted)).reshape(-1, 3)
    np.testing.assert_allclose(faded[:, 0], np.exp(-2.0), atol=1e-9)  # two reaches above the floor
    np.testing.assert_array_equal(rows(r.Distance(shape, floor), system, x), rows(r.Clearance(shape), system, x))
    up = State(x.q.at[2].add(1.0), x.v)
    assert not np.any(rows(r.CentreOfPressure(shape), system, up)) and not np.any(rows(r.FrictionShare(shape), system, up))


def test_the_clearance_of_a_foot_is_its_height_less_its_radius():
    system = go1()
    x = any_state(system)
    x = State(x.q.at[2].set(2.0), x.v)
    index = [s.name for s in system.model.topology.shapes].index("FL_foot")
    radius = float(np.asarray(system.model.shape_size)[index, 0])
    height = rows(r.Height("FL_foot"), system, x)
    np.testing.assert_allclose(rows(r.Clearance("FL_foot"), system, x), height - radius, atol=1e-12)


# -- weights, references, activations -----------------------------------------------------------------------------------


def test_weights_and_references_may_vary_with_time():
    system = ur5()
    x = any_state(system)
    term = r.Control(reference=np.outer([0.0, 1.0, 2.0], np.ones(6)), weight=np.array([[1.0], [10.0]]))
    found = [rows(term, system, x, t=0.02 * k) for k in range(4)]
    expected = [0.0, -10.0, -20.0, -20.0]  # the last entries hold from there on
    np.testing.assert_allclose(found, np.outer(expected, np.ones(6)))


def test_activations_are_their_costs():
    s = np.array([0.02, 0.3, 0.985, 0.9999, 1.0, 3.0])
    cost = 0.5 * np.asarray(r.Barrier(0.2)(jnp.asarray(0.2 * s))) ** 2
    np.testing.assert_allclose(cost, np.where(s < 1, s - 1 - np.log(s), 0.0), rtol=1e-9, atol=1e-15)
    values = np.array([-2.0, 0.0, 1e-3, 5.0])
    cost = 0.5 * np.asarray(r.SmoothAbsolute(0.1)(jnp.asarray(values))) ** 2
    np.testing.assert_allclose(cost, np.sqrt(values**2 + 0.01) - 0.1, rtol=1e-9, atol=1e-17)
    cost = 0.5 * np.asarray(r.Saturated(0.1)(jnp.asarray(values))) ** 2
    np.testing.assert_allclose(cost, 0.5 * values**2 / (1 + 100 * values**2), rtol=1e-12)
    assert (cost < 0.005).all()  # scale^2 / 2
    walls = 0.5 * np.asarray(r.Saturated(0.3, of=r.Barrier(0.2))(jnp.asarray(0.2 * s))) ** 2
    barrier = np.where(s < 1, s - 1 - np.log(s), 0.0)
    np.testing.assert_allclose(walls, barrier / (1 + 2 * barrier / 0.09), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("at", [-0.3, 0.001, 0.0099, 0.0101, 0.5, 0.9899, 0.9901, 1.0, 2.0])
def test_the_barriers_slope(at):
    h = r.Barrier(1.0)
    found = jax.jacfwd(h)(jnp.array([at]))
    step = 1e-5 if abs(at - 1.0) > 1e-3 else 1e-9  # its slope has a jump at the width
    if at == 1.0:
        assert float(found[0, 0]) in (0.0, -0.5, -1.0)
        return
    compare(found, ridders_jacobian(lambda z: np.asarray(h(jnp.asarray(at + z))), 1, step), relative=1e-6)


def test_a_barrier_has_two_sides():
    both, one = r.Barrier(0.2, upper=1.0), r.Barrier(0.2)
    values = jnp.asarray([-0.1, 0.05, 0.3, 0.5, 0.9, 0.999, 1.2])
    np.testing.assert_allclose(both(values), one(values) - one(1.0 - values))
    cost = 0.5 * np.asarray(both(values)) ** 2
    np.testing.assert_allclose(cost[2:4], 0.0)
    assert cost[0] > cost[1] > 0 < cost[4] < cost[5] < cost[6]
    with pytest.raises(OptionError, match="upper is 0.3, width 0.2; both walls need upper to be at least 2 width"):
        r.Barrier(0.2, upper=0.3)
    with pytest.raises(OptionError, match="width is 0.0"):
        r.Barrier(0.0)


def test_the_barrier_of_single_precision_is_finite():
    h = r.Barrier(0.1)
    values = jnp.asarray([-1.0, 0.0, 1e-4, 0.0999, 0.1, 5.0], np.float32)
    out, slope = h(values), jax.jacfwd(h)(values)
    assert out.dtype == np.float32 and np.isfinite(out).all() and np.isfinite(slope).all()
    assert (np.diff(out) <= 0).all()


# -- derivatives ---------------------------------------------------------------------------------------------------------

ARM = [
    r.Posture(), r.Velocity(), r.Control(), r.LimitMargin(activation=None), r.FramePosition("tool"),
    r.FramePosition("tool", relative_to="forearm_link", activation=r.SmoothAbsolute(0.1)), r.FrameOrientation("tool"),
    r.FramePlacement("wrist_1_link", relative_to="shoulder_link"), r.FrameVelocity("tool"),
    r.FrameVelocity("tool", relative_to="forearm_link"), r.Height("tool", activation=r.Saturated(1.0)), r.CentreOfMass(),
    r.CentroidalMomentum(),
]  # fmt: skip
BODY = [
    r.Posture(), r.FramePlacement("cube"), r.FrameVelocity("cube"), r.CentroidalMomentum(), r.Clearance("cube"),
    r.Distance("cube", "floor", name="distance"), r.Slip("cube", reach=0.5),
]  # fmt: skip
OF_STATE = [("ur5", term) for term in ARM] + [("cube", term) for term in BODY]


@functools.cache
def cube() -> System:
    return System(load_model("cube"), 1e-3)


def jacobian_and_differences(term, system, x, u, step=1e-3):
    nv = system.nv
    sizes = 2 * nv + system.nu

    @jax.jit
    def f(z):
        moved = State(integrate(system.model, x.q, z[:nv]), x.v + z[nv : 2 * nv])
        return term(moved, u + z[2 * nv :], 0.0, StepOutcome(system, moved, u + z[2 * nv :]))

    jacobian = jax.jit(jax.jacfwd(f))(jnp.zeros(sizes))
    return jacobian, ridders_jacobian(lambda z: np.asarray(f(jnp.asarray(z))), sizes, step)


@functools.cache
def of_state(name: str):
    """Jacobian and differences of all of a model's, one below the other, and which rows are whose."""
    system, terms = (ur5(), ARM) if name == "ur5" else (cube(), BODY)
    x = any_state(system, seed=3)
    if name == "cube":
        turned = quaternion_exp(jnp.array([0.2, -0.3, 0.4]))
        x = State(jnp.concatenate([jnp.array([0.1, 0.2, 0.3]), turned]), x.v)
    u = jnp.zeros(system.nu)
    outcome = StepOutcome(system, x, u)
    sizes = [jax.eval_shape(lambda x, term=term: term(x, u, 0.0, outcome), x).size for term in terms]
    ends = dict(zip([term.label for term in terms], zip(np.cumsum([0, *sizes]), np.cumsum(sizes)), strict=False))
    return *jacobian_and_differences(sum(terms), system, x, u), ends


@pytest.mark.parametrize("name, term", OF_STATE, ids=[f"{name}-{term.label}" for name, term in OF_STATE])
def test_derivatives_of_the_state(name, term):
    jacobian, estimate, ends = of_state(name)
    own = slice(*ends[term.label])
    estimate = Estimate(estimate.value[own], estimate.error[own])
    assert np.abs(estimate.value).max() > 0
    # An entry that is zero has the rounding of the largest rows beside it.
    compare(jacobian[own], estimate, relative=1e-6, smallest=1e-2, label=term.label)


def pressed_drone():
    """The drone touching the floor, falling: a System whose step stops it, its state, control and contact impulse."""
    system = System(load_model("drone"), 1e-3, dynamics.RigidContact(erp=0.0))
    x = State(jnp.asarray(system.model.q_default), jnp.full(1, -0.01))
    x = State(x.q - rows(r.Clearance("drone"), system, x), x.v)
    return system, x, jnp.full(1, 0.2), r.ContactImpulse("drone")


def test_the_impulse_on_a_mass_that_is_stopped():
    """m (v+ - v) = dt (u - m g) + lambda with v+ = 0."""
    system, x, u, term = pressed_drone()
    mass = float(np.asarray(system.model.mass).sum())
    after, _ = system.step(x, u)
    assert abs(float(after.v[0])) < 1e-12
    found = rows(term, system, x, u)
    np.testing.assert_allclose(found, [0.0, 0.0, mass * 0.01 + 1e-3 * (mass * 9.81 - 0.2)], atol=1e-12)


@pytest.mark.slow
def test_the_derivative_of_that_impulse():
    """d lambda / d u = -dt, d lambda / d v = -m."""
    system, x, u, term = pressed_drone()
    by_u, by_v = jax.jacfwd(lambda u, v: rows(term, system, State(x.q, v), u), (0, 1))(u, x.v)
    np.testing.assert_allclose(by_u[2], [-1e-3], atol=1e-10)
    np.testing.assert_allclose(by_v[2], [-float(np.asarray(system.model.mass).sum())], atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "term", [r.ContactImpulse("FL_foot"), r.FrictionShare("FL_foot"), r.CentreOfPressure("FL_foot"), r.Acceleration()],
    ids=lambda term: term.label,
)  # fmt: skip
def test_derivatives_of_the_step(term):
    system = go1()
    x = system.initial_state("home")
    x = State(x.q.at[2].add(-0.005), x.v + 0.01 * jax.random.normal(jax.random.key(0), (18,)))
    u = jnp.linspace(-1.0, 1.0, 12)
    jacobian, estimate = jacobian_and_differences(term, system, x, u, step=1e-5)
    assert np.abs(estimate.value).max() > 0
    compare(jacobian, estimate, relative=1e-4, untrusted=0.1, label=term.label)


# -- errors ----------------------------------------------------------------------------------------------------------------


def task(stage, terminal=None, system=None):
    system = ur5() if system is None else system
    return OptimalControlProblem("task", system, 3, system.initial_state(), stage_residual=stage, terminal_residual=terminal)


BAD = [
    (lambda: task(r.FramePosition("tol")), UnknownNameError, "term 'frame position tol': .*no frame or shape 'tol'.*tool"),
    (lambda: task(r.FramePosition("tool", reference=np.zeros(2))), ShapeError, r"reference has shape \(2,\); expected \(3,\)"),
    (lambda: task(r.FramePosition("tool", weight=np.ones(2))), ShapeError, r"weight has shape \(2,\); expected a number, \(3,\)"),
    (lambda: task(sum([r.Control(), r.Control(weight=2.0)])), OptionError, "there are two terms 'control'"),
    (lambda: task(None, r.Control()), OptionError, "terminal_residual: term 'control': it depends on the control"),
    (lambda: task(None, r.Acceleration()), OptionError, "it depends on what a step finds"),
    (lambda: task(r.Posture(("elbow",))), UnknownNameError, "no joint 'elbow'"),
    (lambda: task(r.ContactImpulse("tool")), UnknownNameError, "no shape 'tool' that may touch"),
    (lambda: task(r.ContactImpulse("FL_foot"), None, System(load_model("go1"), 5e-3, dynamics.NoContact())), OptionError,
     "under which nothing touches"),
    (lambda: OptimalControlProblem("f", lambda x, u, t: x, 3, np.zeros(2), u0=np.zeros(1), stage_residual=r.Control()),
     OptionError, "stage_residual is made of residuals, which need a System"),
]  # fmt: skip


@pytest.mark.check
@pytest.mark.parametrize("make, error, message", BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_with_a_term_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


# -- the expansion of a task -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_terms_differentiated_by_what_they_depend_on_make_the_expansion_of_all_by_all():
    """Every kind of residual of states and controls: 1/2 |r|^2 and J^T J by all of [dq, dv, du], dense."""
    system = go1()
    x, u = any_state(system), jnp.arange(12.0)
    task = sum([
        r.Posture(weight=0.3), r.Velocity(weight=0.7), r.Control(weight=0.1), r.LimitMargin(), r.FramePosition("FL_calf"),
        r.Height("FR_foot", weight=2.0), r.FrameOrientation("trunk"), r.FramePlacement("RL_calf"), r.FrameVelocity("FL_foot"),
        r.FrameVelocity("FR_foot", relative_to="trunk"), r.CentreOfMass(), r.CentroidalMomentum(), r.Clearance("FL_foot"),
        r.Slip("RR_foot", reach=0.5),
    ])  # fmt: skip

    def all_rows(z):
        at = State(integrate(system.model, x.q, z[:18]), x.v + z[18:36])
        return task(at, u + z[36:], jnp.asarray(0.0), StepOutcome(system, at, u + z[36:]))

    value, gradient, H = jax.jit(lambda: task_expansion(system, task, x, u, jnp.asarray(0.0), 48))()
    J, rows_here = jax.jit(jax.jacfwd(all_rows))(jnp.zeros(48)), jax.jit(all_rows)(jnp.zeros(48))
    np.testing.assert_allclose(value, 0.5 * rows_here @ rows_here, rtol=1e-12)
    np.testing.assert_allclose(gradient, J.T @ rows_here, atol=1e-10 * np.abs(gradient).max())
    np.testing.assert_allclose(H, J.T @ J, atol=1e-10 * np.abs(H).max())
    found = jax.jit(lambda: task_rows(system, task, x, u, jnp.asarray(0.0), 48))()
    np.testing.assert_allclose(found[0], rows_here, atol=1e-12)
    np.testing.assert_allclose(found[1], J, atol=1e-10 * np.abs(J).max())


def test_constraints_keep_their_order_and_distances_have_the_slope_of_their_points():
    """Capsules of an arm beside a ball, apart and inside it: by automatic differentiation through the collision."""
    system = System(load_model("arm-obstacle"), 0.02, dynamics.NoContact())
    links = ("upper_arm", "forearm", "wrist_2")
    task = sum([r.Distance(links[0], other="obstacle").at_least(0.02), r.Velocity(weight=0.5)])
    task = sum([r.Distance(link, other="obstacle").at_least(0.02) for link in links[1:]], task)

    @jax.jit
    def both(q):
        x = State(q, jnp.arange(6.0))

        def all_rows(z):
            at = State(q + z[:6], x.v + z[6:])
            return task(at, None, 0.0, StepOutcome(system, at, None))

        zero = jnp.zeros(12)
        return task_rows(system, task, x, None, jnp.asarray(0.0), 12), all_rows(zero), jax.jacfwd(all_rows)(zero)

    for turn, inside in ((0.3, True), (0.7, False)):
        (found, slope), expected, J = both(jnp.array([turn, -0.9, 0.8, -1.3, -1.0, 0.3]))
        assert (np.asarray(expected)[[0, -2, -1]].max() > 0.02) == inside
        np.testing.assert_allclose(found, expected, atol=1e-13)
        np.testing.assert_allclose(slope, J, atol=1e-12)
