"""Complementarity-aware gradients: the two examples of Nimble IV-D, and what must not change."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.contact.step import step
from trajopt.dynamics.gradients.closed_form import step_jacobian
from trajopt.dynamics.gradients.complementarity import ComplementarityAware
from trajopt.dynamics.gradients.implicit import velocity_step
from trajopt.dynamics.system import State, System
from trajopt.models import load_model_from_string

DT, MASS, CARRIER = 1e-3, 0.1, 0.5
LAW = RigidContact(max_contacts=2, limits=False)
# A driven ball, and a passive one above it.
SCENE = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>
<body name="carrier"><joint name="stage" type="slide" axis="0 0 1"/><geom name="deck" type="sphere" size="0.2" mass="0.5"/></body>
<body name="ball"><joint name="height" type="slide" axis="0 0 1"/><geom name="hull" type="sphere" size="0.3" mass="0.1"/></body>
</worldbody><actuator><motor joint="stage"/></actuator></mujoco>"""
HIGH, RESTING = 3.0, 0.2 - 1e-4  # of the driven ball's centre


@functools.cache
def scene():
    return load_model_from_string(SCENE)


@functools.partial(jax.jit, static_argnums=0)
def aware(labellings, q, v, who, target):
    """(loss, d loss / d u) with the loss (height of joint `who` - target)^2 / 2 after one step without control."""
    model = scene().to_device()

    def loss(u):
        inputs = StepInputs(LAW, model, q, v, model.actuation @ u, jnp.asarray(DT))
        q_, out = step(inputs, ComplementarityAware(labellings))
        return 0.5 * ((q_ + DT * out.velocity)[who] - target) ** 2

    return jax.value_and_grad(loss)(jnp.zeros(1))


@jax.jit
def exact(q, v, who, target):
    model = scene().to_device()

    def loss(u):
        out = velocity_step(StepInputs(LAW, model, q, v, model.actuation @ u, jnp.asarray(DT)))
        return 0.5 * ((q + DT * out.velocity)[who] - target) ** 2

    return jax.value_and_grad(loss)(jnp.zeros(1))


def states():
    """Driven ball at rest on the floor; passive ball touching it in common fall, leaving slowly; both in free flight."""
    return {
        "resting": (jnp.array([RESTING, HIGH]), jnp.array([-1e-4, 0.0])),
        "carried": (jnp.array([HIGH, HIGH + 0.5]), jnp.array([0.0, 1e-3])),
        "flying": (jnp.array([HIGH, HIGH + 2.0]), jnp.array([0.4, 0.0])),
    }


@pytest.mark.slow
def test_a_ball_on_the_ground_is_lifted():
    """Nimble Fig. 3: the exact gradient of the height is zero, the aware one is that of the free ball."""
    q, v = states()["resting"]
    value, gradient = exact(q, v, 0, 5.0)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-16)
    for labellings in ("paper", "all"):
        same, lifted = aware(labellings, q, v, 0, 5.0)
        np.testing.assert_allclose(same, value, rtol=1e-14)
        np.testing.assert_allclose(lifted, [-np.sqrt(2 * value) * DT**2 / CARRIER], rtol=1e-10)


def test_pushing_down_keeps_the_ground():
    """A loss that wants the ball below the floor: the contact stays, and so does the gradient of zero."""
    q, v = states()["resting"]
    np.testing.assert_allclose(aware("all", q, v, 0, -5.0)[1], 0.0, atol=1e-16)


def test_a_ball_is_pushed_up_by_what_carries_it():
    """Nimble Fig. 4: touching without a force. Only with everything clamping does the carrier learn of the ball."""
    q, v = states()["carried"]
    value, gradient = exact(q, v, 1, 5.0)
    assert gradient == 0
    assert aware("paper", q, v, 1, 5.0)[1] == 0
    same, pushed = aware("all", q, v, 1, 5.0)
    np.testing.assert_allclose(same, value, rtol=1e-14)
    np.testing.assert_allclose(pushed, [-np.sqrt(2 * value) * DT**2 / (MASS + CARRIER)], rtol=1e-8)


def test_far_from_contact_the_gradient_is_exact():
    q, v = states()["flying"]
    np.testing.assert_allclose(aware("all", q, v, 0, 5.0)[1], exact(q, v, 0, 5.0)[1], rtol=1e-12)


def test_the_closed_form_takes_the_same_labels():
    """`relabelling` with `step_jacobian`: p^T d v+ / d tau is the reverse-mode gradient."""
    model = scene().to_device()

    @jax.jit
    def by_tau(q, v, p):
        inputs = StepInputs(LAW, model, q, v, jnp.zeros(2), jnp.asarray(DT))
        relabel = ComplementarityAware("all").relabelling(inputs, lambda v_plus: (jnp.zeros(2), p))
        return step_jacobian(inputs, relabel=relabel)[1].by_tau

    resting, up = states()["resting"], jnp.array([-2.0, 0.0])
    np.testing.assert_allclose(by_tau(*resting, up)[0, 0], DT / CARRIER, rtol=1e-9)
    np.testing.assert_allclose(by_tau(*resting, -up)[0, 0], 0.0, atol=1e-15)
    carried = by_tau(*states()["carried"], jnp.array([0.0, -2.0]))
    np.testing.assert_allclose(carried, np.full((2, 2), DT / (MASS + CARRIER)), rtol=1e-8)


def test_forward_mode_is_refused():
    q, v = states()["flying"]

    def velocity(tau):
        inputs = StepInputs(LAW, scene().to_device(), q, v, tau, jnp.asarray(DT))
        return step(inputs, ComplementarityAware("all"))[1].velocity

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jit(lambda tau: jax.jvp(velocity, (tau,), (tau,))).lower(v)


def test_a_free_body_is_relabelled_in_tangent_coordinates():
    """Orientations are quaternions: pulled up, the velocity of a ball at rest is carried on; pushed down, it is held."""
    model = load_model_from_string("""<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>
    <body><freejoint/><geom type="sphere" size="0.2" mass="0.5"/></body></worldbody></mujoco>""")
    system = System(model, DT, RigidContact(max_contacts=1, limits=False), gradient="complementarity-aware")
    x = State(jnp.array([0.0, 0.0, RESTING, 0.8, 0.0, 0.6, 0.0]), jnp.zeros(6))
    by_v = jax.jit(lambda p: system.linearize(x, jnp.zeros(0), adjoint=p).A[6:, 6:])
    up = np.zeros(12)
    up[8] = -1.0
    np.testing.assert_allclose(by_v(up), np.eye(6), atol=1e-9)
    np.testing.assert_allclose(by_v(-up)[2], np.zeros(6), atol=1e-9)
