"""Mass matrix and forward dynamics against Pinocchio and MuJoCo."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import PinocchioModel, mimic_model, mujoco_data, random_model, random_state, relative
from trajopt.dynamics.rigid_body import crba as module
from trajopt.dynamics.rigid_body import rnea as rnea_module

NAMES = ["free-tree", "fixed-base", "forest", "chain", "single-free", "single-hinge"]
TOLERANCE = 1e-12

crba, mass_matrix = jax.jit(module.crba), jax.jit(module.mass_matrix)
forward_dynamics = jax.jit(module.forward_dynamics)
rnea, inverse_dynamics = jax.jit(rnea_module.rnea), jax.jit(rnea_module.inverse_dynamics)


@pytest.mark.parametrize("name", NAMES)
def test_mass_matrix(name):
    model, compiled = random_model(name)
    judge = PinocchioModel(model)
    q, _, _ = random_state(model, 1)
    M = np.asarray(crba(model.to_device(), q))
    upper = np.triu(pin.crba(judge.pin, judge.data, judge.q(q)).reshape(model.nv, model.nv))
    assert relative(M, judge.matrix(upper + np.triu(upper, 1).T)) < TOLERANCE

    data = mujoco_data(compiled, q)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(compiled, data, full)
    assert relative(mass_matrix(model, q), full) < TOLERANCE
    assert relative(M, M.T) < 1e-15 and np.linalg.eigvalsh(M).min() > 0


@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], mimic_model])
def test_mass_matrix_is_the_jacobian_of_inverse_dynamics(build):
    model = build()
    q, v, a = random_state(model, 2)
    assert relative(jax.jit(jax.jacfwd(rnea, 3))(model.to_device(), q, v, a), crba(model.to_device(), q)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_forward_dynamics_is_mujocos(name):
    model, compiled = random_model(name)
    q, v, tau = random_state(model, 3)
    data = mujoco_data(compiled, q, v, force=tau)
    a = forward_dynamics(model.to_device(), q, v, tau)
    # Backward error: the acceleration is judged by the forces it balances, whatever the condition of M.
    residual = np.asarray(inverse_dynamics(model, q, v, a)) - tau
    scale = np.abs(np.asarray(mass_matrix(model, q))).max() * np.abs(np.asarray(a)).max()
    assert np.abs(residual).max() / scale < TOLERANCE
    assert relative(a, data.qacc) < 1e-10


def test_forward_dynamics_inverts_inverse_dynamics_with_mimic_joints():
    model = mimic_model()
    q, v, a = random_state(model, 4)
    assert relative(forward_dynamics(model.to_device(), q, v, inverse_dynamics(model, q, v, a)), a) < 1e-11


def test_precision_batches_and_gradients():
    model, _ = random_model("fixed-base")
    q, v, tau = (jnp.asarray(x) for x in random_state(model, 5))
    device = model.to_device()
    batch = [jnp.stack([x, x]) for x in (q, v, tau)]
    batched = jax.jit(jax.vmap(module.forward_dynamics, (None, 0, 0, 0)))(device, *batch)
    one = forward_dynamics(device, q, v, tau)
    assert relative(batched[1], one) < 1e-12
    single = forward_dynamics(model.to_device(jnp.float32), *(x.astype(jnp.float32) for x in (q, v, tau)))
    assert single.dtype == jnp.float32 and relative(single, one) < 1e-3
    forward = jax.jit(jax.jacfwd(module.forward_dynamics, 3))(device, q, v, tau)
    reverse = jax.jit(jax.jacrev(module.forward_dynamics, 3))(device, q, v, tau)
    assert relative(forward, reverse) < 1e-11
    assert relative(forward, np.linalg.inv(np.asarray(mass_matrix(model, q)))) < 1e-10


def test_a_singular_mass_matrix_is_reported_as_nan():
    model, _ = random_model("single-hinge")
    empty = model.replace(mass=0 * model.mass, inertia=0 * model.inertia, armature=0 * model.armature - 1.0)
    assert np.isnan(forward_dynamics(empty, *random_state(model, 0))).all()
