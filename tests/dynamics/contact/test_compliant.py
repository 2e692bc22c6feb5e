"""Compliant contact laws: their formulas, static and sliding closed forms on a box, derivatives, and refused input."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics import CompliantContact, RigidContact, SpringDamperContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import forces
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

G = scenes.GRAVITY
DT, STEPS = 1e-3, 500
FRICTION = 0.4  # of the bundled cube: side 0.2, 1 kg


# -- the laws, point by point -------------------------------------------------------------------------------------------


def hunt_crossley(law, depth, closing, slip, m, mu):
    """One point, from the equations 7.9 to 7.12 of the JaxSim thesis: normal, tangent, dm/dt."""
    k, c, kt, ct = law.stiffness, law.damping, law.tangential_stiffness, law.tangential_damping
    if depth <= 0:
        return 0.0, np.zeros(3), -(kt / ct) * m
    root = np.sqrt(depth)
    normal = max(0.0, root * (k * depth + c * closing))
    stick = -root * (kt * m + ct * slip)
    if np.linalg.norm(stick) <= mu * normal:
        return normal, stick, slip
    slide = mu * normal * stick / np.linalg.norm(stick)
    return normal, slide, (slide + root * kt * m) / (-root * ct)


def test_hunt_crossley_force_and_clutch():
    """Sticking, sliding, open, leaving (no pull), and without friction, against the equations."""
    law = CompliantContact(stiffness=2e5, damping=300.0, tangential_stiffness=1e5, tangential_damping=150.0)
    depth = np.array([1e-3, 1e-3, -1e-3, 1e-3, 1e-3, 0.0])
    closing = np.array([0.1, -0.2, 0.3, -2.0, 0.1, 0.5])
    slip = np.array([[1e-4, 2e-4, 0], [1.0, -0.5, 0], [1, 1, 0], [1, 0, 0], [0.1, 0.2, 0], [1, 0, 0]])
    m = 1e-4 * np.array([[1, -1, 0], [3, 1, 0], [2, 2, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]])
    mu = np.array([0.5, 0.5, 0.5, 0.5, 0.0, 0.5])
    got = law.force(*(jnp.asarray(a) for a in (depth, closing, slip, m, mu)))
    for i in range(len(depth)):
        normal, tangent, rate = hunt_crossley(law, depth[i], closing[i], slip[i], m[i], mu[i])
        np.testing.assert_allclose(got.normal[i], normal, rtol=1e-13)
        np.testing.assert_allclose(got.tangent[i], tangent, rtol=1e-13)
        np.testing.assert_allclose(got.rate[i], rate, rtol=1e-12)
    assert list(np.asarray(got.sliding)) == [False, True, False, True, True, False]


def test_spring_damper_force():
    """Smoothed, eqs. 17 and 18: damped on approach only, friction viscous up to its bound."""
    law = SpringDamperContact(stiffness=1e4, damping=50.0, friction_damping=20.0)
    depth, closing = np.array([1e-3, 1e-3, -1e-6, 1e-3]), np.array([0.2, -0.2, 1.0, 0.0])
    slip = np.array([[0.1, 0, 0], [0.6, -0.8, 0], [1, 0, 0], [0, 0, 0]], float)
    got = law.force(*(jnp.asarray(a) for a in (depth, closing, slip)), None, jnp.full(4, 0.5))
    np.testing.assert_allclose(got.normal, [20.0, 10.0, 0.0, 10.0], rtol=1e-14)
    np.testing.assert_allclose(got.tangent, [[-2, 0, 0], [-3.0, 4.0, 0], [0, 0, 0], [0, 0, 0]], rtol=1e-13)
    assert got.rate is None and list(np.asarray(got.sliding)) == [False, True, False, False]


@pytest.mark.parametrize("law", [CompliantContact(), SpringDamperContact()])
def test_derivatives_of_the_laws_are_finite_everywhere(law):
    """At rest, at d = 0, without friction, without slip: forward and reverse, no NaN and no infinity."""
    depth = jnp.asarray([0.0, 1e-3, 1e-3, -1.0, 0.0, 1e-300])
    closing = jnp.asarray([1.0, 0.0, -5.0, 0.0, 0.0, 1.0])
    mu = jnp.asarray([0.5, 0.0, 0.5, 0.5, 0.0, 0.5])

    def f(depth, closing, slip, m, mu):
        out = law.force(depth, closing, slip, m if law.carries_state else None, mu)
        return jnp.concatenate([out.normal, out.tangent.ravel()] + ([] if out.rate is None else [out.rate.ravel()]))

    at = (depth, closing, jnp.zeros((6, 3)), jnp.zeros((6, 3)), mu)
    for derivative in (jax.jacfwd, jax.jacrev):
        for leaf in jax.jit(derivative(f, argnums=(0, 1, 2, 3, 4)))(*at):
            assert np.isfinite(leaf).all()


# -- generalised forces -------------------------------------------------------------------------------------------------

PAIR = """<mujoco model="pair"><worldbody>
  <body name="a"><freejoint/><geom name="a" type="sphere" size="0.1" mass="2" friction="0.5"/></body>
  <body name="b" pos="0.1 0.1 0.1"><freejoint/><geom name="b" type="sphere" size="0.08" mass="1" friction="0.5"/></body>
</worldbody></mujoco>"""


def test_forces_between_two_moving_bodies():
    """tau = J^T f with the Jacobian of the rigid contact problem, f from the equations, an oblique normal that turns."""
    model, law = load_model_from_string(PAIR).to_device(), CompliantContact(damping=500.0)
    rng = np.random.default_rng(1)
    direction = np.array([0.5, -0.6, 0.7]) / np.linalg.norm([0.5, -0.6, 0.7])
    q = np.r_[
        0.3, 0.2, 0.1, scenes.about([1, 2, 3], 0.4), [0.3, 0.2, 0.1] + 0.179 * direction, scenes.about([0, 1, 2], 1.0)
    ]
    v = 0.3 * rng.normal(size=12)
    m = 1e-5 * rng.normal(size=(1, 3))

    @jax.jit
    def both(q, v, m):
        kin = kinematics(model, q)
        inputs = StepInputs(RigidContact(), model, q, v, jnp.zeros_like(v), jnp.asarray(DT))
        return forces(law, model, q, v, m), assemble(inputs, kin, collide(model, kin))

    got, rows = both(jnp.asarray(q), jnp.asarray(v), jnp.asarray(m))
    frame, nu = np.asarray(rows.frames[0]), np.asarray(rows.J) @ v
    n = frame[:, 2]
    tangential = m[0] - (m[0] @ n) * n
    mu = float(model.pair_friction[0])
    normal, tangent, rate = hunt_crossley(law, -float(rows.distance[0]), -nu[2], frame[:, :2] @ nu[:2], tangential, mu)
    np.testing.assert_allclose(got.tau, np.asarray(rows.J).T @ frame.T @ (normal * n + tangent), rtol=1e-9, atol=1e-12)
    decay = law.tangential_stiffness / law.tangential_damping
    np.testing.assert_allclose(got.point.rate[0], rate - decay * (m[0] @ n) * n, rtol=1e-9)
    assert normal > 1.0 and np.linalg.norm(tangent) > 0.1
    np.testing.assert_allclose(got.tau[:3] + got.tau[6:9], 0, atol=1e-12)  # action and reaction


def test_limits_and_dry_friction():
    """k d max(0, 1 + a d') away from the limit that is passed, on either side, and the smoothed Coulomb bound."""
    law = SpringDamperContact(limit_stiffness=2e3, limit_dissipation=3.0, friction_velocity=0.1)
    model = scenes.model("sliders")  # limits -0.5, 0.5 on the first, dry friction 3 and 0.5
    evaluate = jax.jit(lambda q, v: forces(law, model, q, v, None))
    for at, speed in ((0.502, 0.2), (-0.503, 0.1), (0.502, -0.5), (0.4, 1.0)):
        got = evaluate(jnp.asarray([at, 0.0]), jnp.asarray([speed, -0.1]))
        limit = 2e3 * max(0.0, abs(at) - 0.5) * max(0.0, 1 + 3 * np.sign(at) * speed)
        dry = [-3 * speed / np.hypot(speed, 0.1), 0.5 / np.sqrt(2)]
        np.testing.assert_allclose(got.tau, [dry[0] - np.sign(at) * limit, dry[1]], rtol=1e-12)
        np.testing.assert_allclose(got.limit, [limit], rtol=1e-12)
    free = SpringDamperContact(limits=False, joint_friction=False)
    off = jax.jit(lambda q, v: forces(free, model, q, v, None).tau)
    np.testing.assert_array_equal(off(jnp.asarray([0.6, 0.0]), jnp.ones(2)), 0)


# -- a box on the floor --------------------------------------------------------------------------------------------------


@functools.cache
def box(law, push: float = 0.0) -> System:
    """The cube under gravity and a horizontal force `push` (N) at its centre of mass; it has 1 kg."""
    model = scenes.model("cube")
    return System(model.replace(gravity=jnp.asarray([push, 0.0, -G])), DT, contact=law)


def rollout(law, push=0.0, v=0.0, depth=0.0):
    x = State(np.array([0, 0, 0.1 - depth, 1, 0, 0, 0]), np.array([v, 0, 0, 0, 0, 0]))
    xs, infos = box(law, push).rollout(x, np.zeros((STEPS, 0)))
    assert np.all(np.asarray(infos.status == Status.solved)) and np.all(np.asarray(infos.residual) == 0)
    return xs, infos


SOFT = SpringDamperContact()


def static_depth(law) -> float:
    """Four corners carry 1 kg: G = 4 k d^(3/2), or 4 k d."""
    return (G / (4 * law.stiffness)) ** (2 / 3 if isinstance(law, CompliantContact) else 1)


@pytest.mark.parametrize("law", [CompliantContact(), SOFT], ids=["compliant", "spring-damper"])
def test_box_rests_at_the_static_penetration(law):
    """Dropped from touching. The slower mode decays as exp(-54 t) (compliant): 2e-12 m are left after 0.5 s."""
    xs, infos = rollout(law)
    np.testing.assert_allclose(0.1 - np.asarray(xs.q)[-1, 2], static_depth(law), atol=1e-10)
    assert np.abs(xs.v[-1]).max() < 1e-8
    impulse = np.asarray(infos.contacts.impulse)[-1]
    np.testing.assert_allclose(impulse[:, 2], G * DT / 4, rtol=1e-6)  # force times dt
    assert np.all(np.asarray(infos.contacts.mode)[-1] == 1)


def test_friction_threshold():
    """Below mu m g the box settles; above, it accelerates at push / m - mu g; the impulses stay in the cone."""
    law = CompliantContact()
    xs, infos = rollout(law, push=0.9 * FRICTION * G, depth=static_depth(law))
    assert np.abs(xs.v[-1]).max() < 1e-6 and abs(float(xs.q[-1, 0])) < 1e-3
    assert np.all(np.asarray(infos.contacts.mode)[-1] == 1)
    force = np.asarray(infos.contacts.impulse)[-1].sum(0) / DT
    np.testing.assert_allclose(np.abs(force[:2]).max(), 0.9 * FRICTION * G, rtol=1e-3)

    push = 1.2 * FRICTION * G
    xs, infos = rollout(law, push=push, depth=static_depth(law))
    v = np.asarray(xs.v)[:, 0]
    # All corners slide and their normal forces add up to m g, but for the vertical oscillation after the start.
    np.testing.assert_allclose((v[-1] - v[STEPS // 2]) / (DT * STEPS / 2), push - FRICTION * G, rtol=1e-4)
    impulse = np.asarray(infos.contacts.impulse)
    assert np.all(np.linalg.norm(impulse[..., :2], axis=-1) <= FRICTION * impulse[..., 2] * (1 + 1e-9) + 1e-15)
    assert np.all(np.asarray(infos.contacts.mode)[-1] == 2)


@pytest.mark.parametrize("mu", [2.0, 0.0, 0.5])
def test_box_on_an_incline(mu):
    """20 degrees (JaxSim thesis, 7.5.3): g sin 20 without friction; at rest with 0.5 and 2, as tan 20 is 0.36."""
    flat, slope = box(CompliantContact()), np.deg2rad(20.0)
    gravity = G * np.array([np.sin(slope), 0.0, -np.cos(slope)])
    model = flat.model.replace(gravity=jnp.asarray(gravity), pair_friction=jnp.asarray([mu]))
    x = State(np.array([0, 0, 0.1, 1, 0, 0, 0]), np.zeros(6))
    xs, _ = dataclasses.replace(flat, model=model).rollout(x, np.zeros((STEPS, 0)))
    if mu == 0:
        np.testing.assert_allclose(xs.v[-1, 0], gravity[0] * STEPS * DT, rtol=1e-12)
    else:
        assert np.abs(xs.v[-1]).max() < 1e-4 and abs(float(xs.q[-1, 0])) < 2e-3


# -- derivatives -----------------------------------------------------------------------------------------------------------


def forest(law, integrator) -> tuple[System, State, np.ndarray]:
    """Box sliding, the arm's tip sticking, the shoulder past its limit, dry friction at the elbow."""
    model = scenes.model("forest")
    shoulder = 0.6
    upper = np.array(model.upper)
    upper[6] = shoulder - 1e-3
    sys = System(model.replace(upper=jnp.asarray(upper)), DT, contact=law, integrator=integrator)
    # The tip's height over the floor is 0.5 - 0.3 cos(a) - 0.25 cos(a + e) - 0.03 for the angles a and e.
    elbow = np.arccos((0.47 - 0.3 * np.cos(shoulder) + 3e-4) / 0.25) - shoulder
    q = np.array([1.0, 0.2, 0.0996, *scenes.about([0.2, 0.1, 1], 1e-3), shoulder, 0.0, elbow])
    v = np.array([0.5, -0.2, 0.01, 0.1, -0.1, 1.0, 0.01, 0.005, -0.03])
    contact = None
    if law.carries_state:
        contact = 2e-5 * np.random.default_rng(0).normal(size=(5, 3))
        contact[:, 2] = 0.0
    return sys, State(q, v, contact), np.array([0.2, -0.1])


@pytest.mark.parametrize("law, integrator", [(CompliantContact(), "semi-implicit"), (SOFT, "moreau")])
def test_linearize_against_ridders(law, integrator):
    """A, B and (of the first law) parameters to 1e-6 relative, sliding and sticking contact, a limit and dry friction at once."""
    sys, x, u = forest(law, integrator)
    parameters = dict.fromkeys(("mass", "pair_friction", "frictionloss") if law.carries_state else (), 1e-4)
    jac = scenes.judged_slopes(sys, x, u, (2e-6, 1e-4, 1e-7, 1e-2), parameters, label=type(law).__name__)
    y, info = sys.step(x, u)
    assert jac.A.shape == (sys.ndx, sys.ndx) and jac.B.shape == (sys.ndx, sys.nu)
    by_jax, _ = dataclasses.replace(sys, backend="jax").step(x, u)  # forces of JAX move the bodies through the core, or JAX does
    for one, other in zip(jax.tree.leaves(y), jax.tree.leaves(by_jax), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jac.x_next.v, y.v, atol=1e-12)
    assert set(np.asarray(info.contacts.mode)[info.contacts.distance < 0]) == {1, 2}
    assert float(np.abs(info.impulse[15:]).min()) > 1e-6, "limit and dry friction are at work"


# -- bad input ---------------------------------------------------------------------------------------------------------------


def test_bad_options_are_named():
    for make, name in (
        (lambda: CompliantContact(stiffness=0.0), "stiffness is 0.0"),
        (lambda: CompliantContact(damping=-1.0), "damping is -1.0"),
        (lambda: CompliantContact(tangential_damping=0.0), "tangential_damping is 0.0"),
        (lambda: SpringDamperContact(friction_damping=float("nan")), "friction_damping is nan"),
        (lambda: SpringDamperContact(limit_stiffness=-1.0), "limit_stiffness is -1.0"),
        (lambda: CompliantContact(max_contacts=-1), "max_contacts is -1"),
    ):
        with pytest.raises(OptionError, match=name):
            make()
    with pytest.raises(OptionError, match=r"dt is 0.005.*decays at.*500 per second.*dt = 0.004"):
        System(scenes.model("ball"), 5e-3, contact=CompliantContact())


def test_contact_state_is_checked():
    sys, x = box(CompliantContact()), scenes.cube_state("standing")
    assert sys.initial_state().contact.shape == (4, 3) and sys.ndx == 24
    with pytest.raises(ShapeError, match=r"x\.contact has shape \(3, 3\), expected \(4, 3\) for CompliantContact"):
        sys.step(State(x.q, x.v, np.zeros((3, 3))), np.zeros(0))
    with pytest.raises(NonFiniteError, match=r"x\.contact\[1, 2\] is nan"):
        bad = np.zeros((4, 3))
        bad[1, 2] = np.nan
        sys.step(State(x.q, x.v, bad), np.zeros(0))
    with pytest.raises(ShapeError, match=r"x\.contact has shape \(4, 3\), but RigidContact carries no state"):
        System(scenes.model("cube"), DT, contact=RigidContact()).step(State(x.q, x.v, np.zeros((4, 3))), np.zeros(0))
