"""Placements, Jacobians and their derivatives against MuJoCo and Pinocchio."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import (
    Jitted,
    PinocchioModel,
    mimic_model,
    mujoco_data,
    random_model,
    random_state,
    relative,
)
from trajopt.dynamics.rigid_body import configuration as joints
from trajopt.dynamics.rigid_body import kinematics as module
from trajopt.errors import OptionError, ShapeError, UnknownNameError

kinematics = Jitted(module)
NAMES = ["free-tree", "fixed-base", "forest", "chain", "single-hinge"]
REFERENCES = {
    "world": pin.ReferenceFrame.WORLD,
    "local": pin.ReferenceFrame.LOCAL,
    "local-world-aligned": pin.ReferenceFrame.LOCAL_WORLD_ALIGNED,
}
TOLERANCE = 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_frame_placements_are_mujocos(name):
    model, compiled = random_model(name)
    q = random_state(model, 1)[0]
    data = mujoco_data(compiled, q)
    kin = kinematics.kinematics(model, q)
    for k, frame in enumerate(model.topology.frames):
        body = compiled.body(frame.name).id
        R = kin.rotation[frame.node]
        p = kin.position[frame.node] + R @ model.frame_position[k]
        if k == 2:
            R, p = kinematics.frame_placement(model, q, frame.name)
        np.testing.assert_allclose(R, data.xmat[body].reshape(3, 3), atol=1e-13)
        np.testing.assert_allclose(p, data.xpos[body], atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reference", REFERENCES)
def test_frame_jacobian_and_derivative_are_pinocchios(name, reference):
    model, _ = random_model(name)
    judge = PinocchioModel(model)
    q, v, _ = random_state(model, 2)
    for k in {0, len(model.topology.frames) - 1}:
        frame = model.topology.frames[k]
        placement = pin.SE3(np.eye(3), np.asarray(model.frame_position[k]))
        identifier = judge.pin.addFrame(
            pin.Frame(frame.name, judge.joint_of[frame.node], placement, pin.FrameType.OP_FRAME)
        )
        data = judge.pin.createData()
        pin.computeJointJacobians(judge.pin, data, judge.q(q))
        pin.updateFramePlacements(judge.pin, data)
        expected = pin.getFrameJacobian(judge.pin, data, identifier, REFERENCES[reference]).reshape(6, -1)
        got = kinematics.frame_jacobian(model, q, frame.name, reference)
        assert relative(got, expected[:, judge.inverse]) < TOLERANCE

        pin.computeJointJacobiansTimeVariation(judge.pin, data, judge.q(q), judge.v(v))
        pin.updateFramePlacements(judge.pin, data)
        expected = pin.getFrameJacobianTimeVariation(judge.pin, data, identifier, REFERENCES[reference]).reshape(6, -1)
        got = kinematics.frame_jacobian_derivative(model, q, v, frame.name, reference)
        assert np.abs(np.asarray(got) - expected[:, judge.inverse]).max() < TOLERANCE * max(np.abs(expected).max(), 1)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], mimic_model])
def test_jacobian_derivative_is_the_derivative_of_the_jacobian(build, reference):
    model = build()
    q, v, _ = (jnp.asarray(x) for x in random_state(model, 3))
    name = model.topology.frames[-1].name
    along = lambda t: kinematics.frame_jacobian(model, joints.integrate(model, q, t * v), name, reference)  # noqa: E731
    expected = jax.jit(jax.jacfwd(along))(jnp.zeros(()))
    got = kinematics.frame_jacobian_derivative(model, q, v, name, reference)
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["free-tree", "forest"])
def test_points_and_centre_of_mass(name):
    model, compiled = random_model(name)
    q, v, _ = random_state(model, 4)
    data = mujoco_data(compiled, q, v)
    for frame in (model.topology.frames[0], model.topology.frames[-1]):
        point = np.array([0.3, -0.2, 0.7])
        expected = np.zeros((3, compiled.nv))
        mujoco.mj_jac(compiled, data, expected, None, point, compiled.body(frame.name).id)
        assert relative(kinematics.point_jacobian(model, q, frame.node, jnp.asarray(point)), expected) < TOLERANCE
    expected = np.zeros((3, compiled.nv))
    mujoco.mj_jacSubtreeCom(compiled, data, expected, 0)
    assert relative(kinematics.com_jacobian(model, q), expected) < TOLERANCE
    assert relative(kinematics.centre_of_mass(model, q), data.subtree_com[0]) < TOLERANCE
    assert not np.any(kinematics.point_jacobian(model, q, -1, jnp.zeros(3)))


@pytest.mark.parametrize("build", [lambda: random_model("free-tree")[0], mimic_model])
def test_node_velocities_are_derivatives_of_placements(build):
    model = build()
    q, v, _ = (jnp.asarray(x) for x in random_state(model, 5))
    kin = kinematics.kinematics(model, q)
    twist = module.node_velocities(kin, model.topology, kinematics.expand_v(model, v))
    point = twist[:, :3] + jnp.cross(twist[:, 3:], kin.position - kin.origin)
    along = lambda t: kinematics.kinematics(model, joints.integrate(model, q, t * v))  # noqa: E731
    rate = jax.jit(jax.jacfwd(along))(jnp.zeros(()))
    np.testing.assert_allclose(point, rate.position, atol=1e-13)
    spin = rate.rotation @ jnp.swapaxes(kin.rotation, -1, -2)
    np.testing.assert_allclose(jnp.stack([spin[:, 2, 1], spin[:, 0, 2], spin[:, 1, 0]], -1), twist[:, 3:], atol=1e-13)


def test_derivatives_are_finite_at_a_zero_quaternion():
    model, _ = random_model("single-free")
    for jacobian in (jax.jacfwd, jax.jacrev):
        rate = jax.jit(jacobian(lambda q: module.kinematics(model, q).position))(jnp.zeros(model.nq))
        assert np.isfinite(rate).all()


def test_errors_name_what_is_wrong():
    model, _ = random_model("forest")
    q = random_state(model, 0)[0]
    with pytest.raises(UnknownNameError, match="no frame 't0b9'.*t0b0"):
        kinematics.frame_placement(model, q, "t0b9")
    with pytest.raises(OptionError, match="'body', expected one of world"):
        kinematics.frame_jacobian(model, q, "t0b0", "body")
    with pytest.raises(OptionError, match="node is 99"):
        kinematics.point_jacobian(model, q, 99, jnp.zeros(3))
    with pytest.raises(ShapeError, match=r"q has shape \(3,\)"):
        kinematics.expand_q(model, np.zeros(3))
