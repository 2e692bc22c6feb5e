"""Inverse dynamics against Pinocchio and MuJoCo."""

from __future__ import annotations

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import PinocchioModel, mimic_model, mujoco_data, random_model, random_state, relative
from trajopt.dynamics.rigid_body import rnea as module
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.energy import potential_energy
from trajopt.dynamics.rigid_body.kinematics import expand_q, expand_v
from trajopt.errors import ShapeError

NAMES = ["free-tree", "fixed-base", "forest", "chain", "single-free", "single-hinge"]
TOLERANCE = 1e-12  # rounding over at most twelve bodies; asked for is 1e-10

rnea, inverse_dynamics = jax.jit(module.rnea), jax.jit(module.inverse_dynamics)
passive_forces, bias_forces = jax.jit(module.passive_forces), jax.jit(module.bias_forces)
generalised_gravity = jax.jit(module.generalised_gravity)


@pytest.mark.parametrize("name", NAMES)
def test_rnea_is_pinocchios(name):
    model, _ = random_model(name)
    judge = PinocchioModel(model)
    for seed in range(3):
        q, v, a = random_state(model, seed)
        expected = judge.vector(pin.rnea(judge.pin, judge.data, judge.q(q), judge.v(v), judge.v(a)))
        assert relative(rnea(model.to_device(), q, v, a), expected) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_inverse_dynamics_is_mujocos(name):
    """With armature, damping, springs and their references."""
    model, compiled = random_model(name)
    q, v, a = random_state(model, 5)
    data = mujoco_data(compiled, q, v)
    data.qacc[:] = a
    mujoco.mj_inverse(compiled, data)
    assert relative(inverse_dynamics(model.to_device(), q, v, a), data.qfrc_inverse) < TOLERANCE
    assert relative(passive_forces(model, q, v), data.qfrc_passive) < TOLERANCE
    assert relative(bias_forces(model, q, v), data.qfrc_bias) < TOLERANCE


def test_mimic_joints_enter_through_their_jacobian():
    model = mimic_model()
    free = dataclasses.replace(
        model, topology=dataclasses.replace(model.topology, mimics=()),
        mimic_multiplier=np.zeros(0), mimic_offset=np.zeros(0),
        **{k: np.zeros(model.topology.nv_tree) for k in
           ("armature", "damping", "frictionloss", "stiffness", "spring_reference", "lower", "upper")},
    )  # fmt: skip
    q, v, a = random_state(model, 6)
    T = np.asarray(model.mimic_matrix())
    judge = PinocchioModel(free)
    q_tree, v_tree, a_tree = expand_q(model, q), expand_v(model, v), expand_v(model, a)
    expected = judge.vector(pin.rnea(judge.pin, judge.data, judge.q(q_tree), judge.v(v_tree), judge.v(a_tree)))
    assert relative(rnea(model.to_device(), q, v, a), T.T @ expected) < TOLERANCE


@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], mimic_model])
def test_gravity_is_the_gradient_of_its_potential(build):
    model = build()
    model = model.replace(stiffness=np.zeros(model.nv))
    q, _, _ = (jnp.asarray(x) for x in random_state(model, 7))
    energy = lambda dq: potential_energy(model, integrate(model, q, dq))  # noqa: E731
    gravity = generalised_gravity(model, q)
    assert relative(gravity, jax.jit(jax.grad(energy))(jnp.zeros(model.nv))) < TOLERANCE
    assert relative(gravity, bias_forces(model, q, jnp.zeros(model.nv))) < TOLERANCE


def test_forces_do_not_depend_on_where_the_robot_stands():
    """The tree's own origin: 1e6 m away only the rounding of the position itself remains (1e-10 m)."""
    model, _ = random_model("free-tree")
    q, v, a = random_state(model, 8)
    far = q.copy()
    far[:3] = np.round(q[:3]) + np.array([1e6, -1e6, 1e6])
    near = q.copy()
    near[:3] = np.round(q[:3])
    assert relative(rnea(model.to_device(), far, v, a), rnea(model.to_device(), near, v, a)) < 1e-8


def test_precision_batches_and_both_modes_of_differentiation():
    model, _ = random_model("free-tree")
    device = model.to_device()
    q, v, a = (jnp.asarray(np.stack(x)) for x in zip(*(random_state(model, k) for k in range(3)), strict=True))
    batched = jax.jit(jax.vmap(module.rnea, (None, 0, 0, 0)))(device, q, v, a)
    assert relative(batched[2], rnea(device, q[2], v[2], a[2])) < 1e-13
    single = rnea(model.to_device(jnp.float32), *(x[0].astype(jnp.float32) for x in (q, v, a)))
    assert single.dtype == jnp.float32 and relative(single, batched[0]) < 1e-5
    forward = jax.jit(jax.jacfwd(module.rnea, 3))(device, q[0], v[0], a[0])
    reverse = jax.jit(jax.jacrev(module.rnea, 3))(device, q[0], v[0], a[0])
    assert relative(forward, reverse) < 1e-13


def test_a_model_of_numpy_arrays_takes_the_precision_of_the_state():
    model, _ = random_model("single-free")
    state = [x.astype(np.float32) for x in random_state(model, 0)]
    assert inverse_dynamics(model, *state).dtype == jnp.float32


def test_wrong_shapes_are_named():
    model, _ = random_model("single-free")
    q, v, a = random_state(model, 0)
    function = inspect.unwrap(module.rnea)  # past the shape checks of the test suite, if on
    with pytest.raises(ShapeError, match=r"v has shape \(7,\), expected \(6,\)"):
        function(model, q, q, a)
