"""Round trips between conventions, and their meaning judged by Pinocchio's kinematics."""

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import Jitted, random_model, random_state
from trajopt.dynamics.model import FrameSpec, JointSpec, NodeType, Topology
from trajopt.dynamics.rigid_body import conventions, kinematics
from trajopt.errors import ModelError, OptionError, ShapeError, UnknownNameError

frame_jacobian, frame_placement = Jitted(kinematics).frame_jacobian, Jitted(kinematics).frame_placement


def every_joint():
    """free, ball, planar, continuous revolute and prismatic joints in one chain, here and in Pinocchio."""
    base, _ = random_model("single-free")
    rng = np.random.default_rng(0)
    T, B, P, R = NodeType.TRANSLATION, NodeType.BALL, NodeType.PRISMATIC, NodeType.REVOLUTE
    types = (T, B, B, P, P, R, R, P)
    joints = (
        JointSpec("free", "free", (0, 1), 0, 7, 0, 6),
        JointSpec("ball", "ball", (2,), 7, 4, 6, 3),
        JointSpec("planar", "planar", (3, 4, 5), 11, 3, 9, 3),
        JointSpec("wheel", "revolute", (6,), 14, 1, 12, 1),
        JointSpec("slider", "prismatic", (7,), 15, 1, 13, 1),
    )
    n, nv = len(types), 14
    axis = np.tile([0, 0, 1.0], (n, 1))
    axis[3], axis[4], axis[6] = [1, 0, 0], [0, 1, 0], [0, 1, 0]
    offset = np.zeros((n, 3))
    offset[[2, 3, 6, 7]] = rng.normal(size=(4, 3))
    top = Topology(
        "all", tuple(range(-1, n - 1)), types, tuple(f"n{i}" for i in range(n)), joints, (FrameSpec("tip", 7),)
    )
    zeros = np.zeros(nv)
    model = base.replace(
        topology=top, placement_rotation=np.tile(np.eye(3), (n, 1, 1)), placement_position=offset, axis=axis,
        reference=np.zeros(n), mass=np.ones(n), com=np.zeros((n, 3)), inertia=np.tile(np.eye(3), (n, 1, 1)),
        armature=zeros, damping=zeros, frictionloss=zeros, stiffness=zeros, spring_reference=zeros, lower=zeros,
        upper=zeros, actuation=np.eye(nv), control_lower=zeros, control_upper=zeros,
        frame_rotation=np.eye(3)[None], frame_position=np.zeros((1, 3)), q_default=np.zeros(16),
    )  # fmt: skip
    judge = pin.Model()
    parent = 0
    for joint, where in (
        (pin.JointModelFreeFlyer(), 0), (pin.JointModelSpherical(), 2), (pin.JointModelPlanar(), 3),
        (pin.JointModelRUBY(), 6), (pin.JointModelPZ(), 7),
    ):  # fmt: skip
        name = joints[parent].name
        parent = judge.addJoint(parent, joint, pin.SE3(np.eye(3), offset[where]), name)
    return model, judge


def test_from_and_to_pinocchio_describe_the_same_motion():
    model, judge = every_joint()
    q_pin = pin.integrate(judge, pin.neutral(judge), np.random.default_rng(1).normal(size=judge.nv))
    v_pin = np.random.default_rng(2).normal(size=judge.nv)
    options = {"joint_names": list(judge.names)[1:], "continuous": ("wheel",)}
    q, v = conventions.from_pinocchio(model, q_pin, v_pin, **options)
    data = judge.createData()
    pin.forwardKinematics(judge, data, q_pin, v_pin)
    R, p = frame_placement(model, q, "tip")
    np.testing.assert_allclose(R, data.oMi[5].rotation, atol=1e-13)
    np.testing.assert_allclose(p, data.oMi[5].translation, atol=1e-13)
    expected = pin.getVelocity(judge, data, 5, pin.ReferenceFrame.LOCAL_WORLD_ALIGNED).vector
    np.testing.assert_allclose(frame_jacobian(model, q, "tip", "local-world-aligned") @ v, expected, atol=1e-12)

    back_q, back_v = conventions.to_pinocchio(model, q, v, **options)
    np.testing.assert_allclose(back_q, q_pin, atol=1e-14)
    np.testing.assert_allclose(back_v, v_pin, atol=1e-14)


def test_other_joint_orders_round_trip():
    model, _ = every_joint()
    q, v, _ = random_state(model, 3)
    order = ["slider", "planar", "free", "wheel", "ball"]
    there = conventions.to_pinocchio(model, q, v, joint_names=order)
    assert there[0].shape == (17,) and float(there[0][0]) == q[15]
    back = conventions.from_pinocchio(model, *there, joint_names=order)
    np.testing.assert_allclose(back[0], q, atol=1e-14)
    np.testing.assert_allclose(back[1], v, atol=1e-14)


@pytest.mark.parametrize("representation", conventions.REPRESENTATIONS)
def test_base_velocity_representations(representation):
    model, _ = random_model("free-tree")
    q, v, _ = (jnp.asarray(x) for x in random_state(model, 4))
    base = model.topology.frames[0].name
    reference = {"mixed": "local-world-aligned", "body": "local", "inertial": "world"}[representation]
    # The free joint's frame is its body's: the Jacobian of that frame maps v to the same velocity.
    expected = frame_jacobian(model, q, base, reference) @ v
    velocity = jax.jit(lambda q, v: conventions.base_velocity(model, q, v, representation))(q, v)
    np.testing.assert_allclose(velocity, expected, atol=1e-13)
    back = conventions.from_base_velocity(model, q, jnp.zeros_like(v).at[6:].set(v[6:]), velocity, representation)
    np.testing.assert_allclose(back, v, atol=1e-14)


def test_limits_are_named():
    forest, _ = random_model("forest")
    q, v, _ = random_state(forest, 0)
    with pytest.raises(ModelError, match="3 kinematic trees"):
        conventions.base_velocity(forest, q, v)
    fixed, _ = random_model("single-hinge")
    with pytest.raises(ModelError, match="fixed base"):
        conventions.base_velocity(fixed, *random_state(fixed, 0)[:2])
    model, _ = random_model("single-free")
    q, v, _ = random_state(model, 0)
    with pytest.raises(OptionError, match="'hybrid', expected one of mixed, body, inertial"):
        conventions.base_velocity(model, q, v, "hybrid")
    every, _ = every_joint()
    q, v, _ = random_state(every, 0)
    with pytest.raises(UnknownNameError, match="no joint 'whel'.*'wheel'"):
        conventions.to_pinocchio(every, q, v, joint_names=["whel"])
    with pytest.raises(ShapeError, match="missing .*'slider'"):
        conventions.to_pinocchio(every, q, v, joint_names=["free", "ball", "planar", "wheel"])
    with pytest.raises(OptionError, match="'slider', which is prismatic"):
        conventions.to_pinocchio(every, q, v, continuous=["slider"])


def test_contacts_are_those_of_mujoco_in_its_order():
    """A cube at rest: the same frames (normal first) and, with soft contact settled, the same normal forces."""
    import importlib.resources

    import mujoco

    from trajopt.dynamics import RigidContact, State, System
    from trajopt.models import load_model

    m = mujoco.MjModel.from_xml_path(str(importlib.resources.files("trajopt.models") / "bundled" / "cube.xml"))
    d = mujoco.MjData(m)
    for _ in range(2000):
        mujoco.mj_step(m, d)
    system = System(load_model("cube"), 1e-3, RigidContact(erp=0.0))
    _, info = system.step(State(jnp.asarray(d.qpos), jnp.zeros(6)), jnp.zeros(0))
    frame, impulse = conventions.to_mujoco_contact(info.contacts.frame, info.contacts.impulse)
    back = conventions.from_mujoco_contact(frame, impulse)
    np.testing.assert_array_equal(back[0], info.contacts.frame)
    np.testing.assert_array_equal(back[1], info.contacts.impulse)
    force = np.zeros(6)
    mujoco.mj_contactForce(m, d, 0, force)
    weight = float(m.body_mass.sum() * 9.81)
    np.testing.assert_allclose(force[0] * d.ncon, weight, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(impulse)[:, 0].sum() / 1e-3, weight, rtol=1e-6)
    for k in range(4):
        ours, theirs = np.asarray(frame[k]), d.contact.frame[k].reshape(3, 3)
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-6)  # the normal; tangents span the same plane
        np.testing.assert_allclose(np.linalg.det(ours), np.linalg.det(theirs), atol=1e-12)
        np.testing.assert_allclose(ours[1:] @ theirs[0], 0, atol=1e-6)
