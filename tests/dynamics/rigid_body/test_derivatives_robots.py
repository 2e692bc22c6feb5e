"""Every algorithm on the bundled robots and on published ones, against MuJoCo and Pinocchio.

Bundled models are judged by MuJoCo, which compiles the same file, and, for derivatives, by Pinocchio. Published URDF
files are judged by Pinocchio's own reader. Errors are relative to the largest entry, since some of those files hold
inertias that no body can have; asked for are 1e-10 and, for derivatives, 1e-8.
"""

from __future__ import annotations

import warnings

import jax
import mujoco
import numpy as np
import pinocchio as pin
import pytest
from published import robot_file

from dynamics.models_for_tests import PinocchioModel, random_state, relative
from trajopt import models
from trajopt.dynamics.rigid_body import aba, conventions, crba, derivatives, rnea
from trajopt.dynamics.rigid_body.kinematics import expand_q, expand_v

# Free and fixed bases, planar joints, springs, mimic joints: every kind of element once. The others run with the slow tests.
QUICK = ("atlas", "go1", "half-cheetah", "humanoid", "panda")
PUBLISHED_QUICK = ("human_description/robots/human.urdf", "talos_data/robots/talos_full_v2.urdf")
PUBLISHED_SLOW = (
    "a1_description/urdf/a1.urdf",
    "alexander_description/urdf/alexander_v1.lowerBodyOnly.urdf",
    "double_pendulum_description/urdf/double_pendulum_continuous.urdf",
    "icub_description/robots/icub_reduced.urdf",
    "ur_description/urdf/ur5_robot.urdf",
)


@jax.jit
def everything(model, q, v, a):
    """Forces, mass matrix, derivatives, and the accelerations that both forward dynamics return for those forces."""
    tau = rnea.inverse_dynamics(model, q, v, a)
    by_q, by_v, M = derivatives.rnea_derivatives(model, q, v, a)
    back = crba.forward_dynamics(model, q, v, tau)
    articulated = back if model.topology.mimics else aba.aba(model, q, v, tau)
    return {
        "tau": tau, "rnea": rnea.rnea(model, q, v, a), "M": M, "by_q": by_q, "by_v": by_v,
        "residual": [rnea.inverse_dynamics(model, q, v, x) - tau for x in (back, articulated)],
    }  # fmt: skip


def load(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", models.ModelWarning)
        return models.load_model(path, **options)


def tree_derivatives(model, q, v, a):
    """Pinocchio's derivatives of the forces of the tree, projected on the user's DoFs, springs and dampers added."""
    judge = PinocchioModel(model)
    q_tree, v_tree, a_tree = (np.asarray(f(model, x)) for f, x in ((expand_q, q), (expand_v, v), (expand_v, a)))
    pin.computeRNEADerivatives(judge.pin, judge.data, judge.q(q_tree), judge.v(v_tree), judge.v(a_tree))
    T = model.mimic_matrix()
    T = np.eye(model.nv) if T is None else np.asarray(T)
    scalar = model.topology.scalar_q_of_dof >= 0
    by_q = T.T @ judge.matrix(judge.data.dtau_dq) @ T + np.diag(model.stiffness * scalar)
    return by_q, T.T @ judge.matrix(judge.data.dtau_dv) @ T + np.diag(model.damping)


def check_inverses(model, got, a):
    """Backward error of both forward dynamics, and ABA of RNEA."""
    scale = np.abs(got["M"]).max() * np.abs(a).max() + np.abs(got["tau"]).max()
    for residual in got["residual"]:
        assert np.abs(residual).max() / scale < 1e-12


def check_against_pinocchios_reader(model, path, got, q, v, a):
    judge = pin.buildModelFromUrdf(str(path))
    data = judge.createData()
    joints = dict(zip(list(judge.names)[1:], list(judge.joints)[1:], strict=True))
    continuous = [name for name, joint in joints.items() if joint.nq > joint.nv]
    order = np.concatenate([np.arange(j.v_start, j.v_start + j.nv) for j in map(model.topology.joint, joints)])
    inverse = np.argsort(order)
    pair = conventions.to_pinocchio(model, q, v, joint_names=list(joints), continuous=continuous)
    q_pin, v_pin = (np.asarray(x) for x in pair)
    assert relative(got["rnea"], pin.rnea(judge, data, q_pin, v_pin, a[order])[inverse]) < 1e-10
    upper = np.triu(pin.crba(judge, data, q_pin))
    full = (upper + np.triu(upper, 1).T)[np.ix_(inverse, inverse)]
    assert relative(got["M"] - np.diag(model.armature), full) < 1e-10


def slow_unless(quick, names):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


published = pytest.mark.parametrize("file", slow_unless(PUBLISHED_QUICK, PUBLISHED_QUICK + PUBLISHED_SLOW))


@pytest.mark.parametrize("name", slow_unless(QUICK, models.bundled_models()))
def test_bundled(name):
    model = load(name)
    compiled = mujoco.MjModel.from_xml_path(str(models.bundled_file(name)))
    off = mujoco.mjtDisableBit
    compiled.opt.disableflags |= int(off.mjDSBL_CONSTRAINT)
    data = mujoco.MjData(compiled)
    for seed in range(2):
        q, v, a = random_state(model, seed)
        got = jax.tree.map(np.asarray, everything(model, q, v, a))
        data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
        mujoco.mj_inverse(compiled, data)
        assert relative(got["tau"], data.qfrc_inverse) < 1e-10
        full = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(compiled, data, full)
        assert relative(got["M"], full) < 1e-10
        by_q, by_v = tree_derivatives(model, q, v, a)
        # A mass on sliders alone has derivatives that vanish; rounding is then judged by the forces.
        scale = np.abs(data.qfrc_inverse).max()
        assert np.abs(got["by_q"] - by_q).max() < 1e-8 * max(np.abs(by_q).max(), scale)
        assert np.abs(got["by_v"] - by_v).max() < 1e-8 * max(np.abs(by_v).max(), scale)
        check_inverses(model, got, a)


@published
def test_published(file):
    path = robot_file(file)
    model = load(path, floating_base=False)
    q, v, a = random_state(model, 1)
    got = jax.tree.map(np.asarray, everything(model, q, v, a))
    if not model.topology.mimics:  # which Pinocchio's reader turns into joints of their own
        check_against_pinocchios_reader(model, path, got, q, v, a)
    # Pinocchio's derivatives need its joints depth first; the rebuilt model is, its own reader's need not be.
    by_q, by_v = tree_derivatives(model, q, v, a)
    assert relative(got["by_q"], by_q) < 1e-8
    assert relative(got["by_v"], by_v) < 1e-8
    check_inverses(model, got, a)


@published
def test_published_on_a_floating_base(file):
    floating = load(robot_file(file), floating_base=True)
    q, v, a = random_state(floating, 2)
    got = jax.tree.map(np.asarray, everything(floating, q, v, a))
    by_q, by_v = tree_derivatives(floating, q, v, a)
    assert relative(got["by_q"], by_q) < 1e-8
    assert relative(got["by_v"], by_v) < 1e-8
    check_inverses(floating, got, a)
