"""Steps of systems with servos: derivatives against Ridders, both backends, the range of a force in motion."""

import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model_from_string

# An arm whose tip touches the floor: a position servo, a velocity servo with a force range, and a damper on a tendon.
ARM = """<mujoco model="arm"><compiler angle="radian"/><worldbody>
  <geom name="floor" type="plane" size="0 0 1" friction="0.5" contype="0" conaffinity="1"/>
  <body name="upper" pos="0 0 0.5"><joint name="shoulder" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.8" contype="0" conaffinity="0"/>
    <body name="lower" pos="0 0 -0.3"><joint name="elbow" axis="0 1 0" armature="0.01"/>
      <geom name="tip" type="sphere" pos="0 0 -0.25" size="0.03" mass="0.5" friction="0.5" contype="1" conaffinity="0"/></body>
  </body>
  </worldbody><tendon><fixed name="cord"><joint joint="shoulder" coef="1"/><joint joint="elbow" coef="-0.5"/></fixed></tendon>
  <actuator><position joint="shoulder" kp="40" kv="2"/><velocity name="elbow" joint="elbow" kv="3" forcerange="-5 5"/>
    <damper name="brake" tendon="cord" kv="1.5" ctrlrange="0 3"/></actuator></mujoco>"""


def arm(backend, integrator="semi-implicit"):
    return System(load_model_from_string(ARM), scenes.DT, integrator=integrator, backend=backend)


def touching(sliding: float) -> State:
    """The tip 0.1 mm inside the floor: 0.5 - 0.3 cos a - 0.25 cos(a + e) - 0.03 = -1e-4."""
    a = 0.6
    e = np.arccos((0.47 - 0.3 * np.cos(a) + 1e-4) / 0.25) - a
    return State(np.array([a, e]), np.array([sliding, 0.3]))


needs_core = pytest.mark.skipif(not native.available(), reason="no compiled core")
BACKENDS = [pytest.param("jax", marks=pytest.mark.slow), pytest.param("native", marks=needs_core)]
CONTROLS = {"free": [0.7, 0.5, 1.2], "saturated": [0.7, 9.0, 1.2]}


@pytest.mark.parametrize("backend", BACKENDS)  # the quick tests have `test_backends_agree`
@pytest.mark.parametrize("integrator", ["semi-implicit", pytest.param("moreau", marks=pytest.mark.slow)])
def test_linearize_against_ridders(backend, integrator):
    """A and B in contact, with the feedback of the servos, where a force is free and where it is at its range."""
    sys = arm(backend, integrator)
    for label, u in CONTROLS.items():
        jac = scenes.judged_slopes(sys, touching(1.5), np.array(u), (2e-5, 1e-4, 0, 1e-3), label=label)
        assert (np.abs(np.asarray(jac.B)[:, 1]).max() == 0) == (label == "saturated")


@needs_core
@pytest.mark.parametrize("kind", CONTROLS)
def test_backends_agree(kind):
    """v+ to 1e-9, A and B to 1e-8 of the largest entry, the tip in contact."""
    x, u = touching(0.2), np.array(CONTROLS[kind])
    ours, theirs = (arm(backend).linearize(x, u) for backend in ("native", "jax"))
    for one, other, tolerance in ((ours.x_next.v, theirs.x_next.v, 1e-9), (ours.A, theirs.A, 1e-8), (ours.B, theirs.B, 1e-8)):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


def test_a_position_servo_holds_against_gravity():
    """At rest the torque of the servo, kp (u - q) - kv v, is that of gravity: 0.8 kg and 0.5 kg on two links."""
    xs, _ = arm("auto").rollout(State(np.array([1.2, -1.2]), np.zeros(2)), np.tile([1.2, 0.0, 0.0], (2000, 1)))
    (a, e), v = np.asarray(xs.q[-1]), np.asarray(xs.v[-1])
    assert np.abs(v).max() < 5e-2
    torque = 9.81 * (0.8 * 0.15 * np.sin(a) + 0.5 * (0.3 * np.sin(a) + 0.25 * np.sin(a + e)))
    # What remains of the motion: inertia 0.15 kg m^2 at the elbow's rate over its 2 s, kv 2 at the shoulder's.
    np.testing.assert_allclose(40 * (1.2 - a) - 2 * v[0], torque, atol=0.02)
