"""Closed-form derivatives against Pinocchio, automatic differentiation and linearity in the inertial parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import PinocchioModel, mimic_model, random_model, random_state, relative
from trajopt.dynamics.rigid_body import crba as crba_module
from trajopt.dynamics.rigid_body import derivatives as module
from trajopt.dynamics.rigid_body import rnea as rnea_module
from trajopt.dynamics.rigid_body.configuration import integrate

NAMES = ["free-tree", "fixed-base", "forest", "chain", "single-free", "single-hinge"]
TOLERANCE = 1e-11  # asked for is 1e-8

rnea_derivatives = jax.jit(module.rnea_derivatives)
forward_dynamics_derivatives = jax.jit(module.forward_dynamics_derivatives)
inertial_regressor = jax.jit(module.inertial_regressor)
forward_dynamics, mass_matrix = jax.jit(crba_module.forward_dynamics), jax.jit(crba_module.mass_matrix)
rnea, inverse_dynamics = jax.jit(rnea_module.rnea), jax.jit(rnea_module.inverse_dynamics)
bias_forces, passive_forces = jax.jit(rnea_module.bias_forces), jax.jit(rnea_module.passive_forces)


@pytest.mark.parametrize("name", NAMES)
def test_rnea_derivatives_are_pinocchios(name):
    model, _ = random_model(name)
    judge = PinocchioModel(model)
    scalar = model.topology.scalar_q_of_dof >= 0
    for seed in range(2):
        q, v, a = random_state(model, seed)
        pin.computeRNEADerivatives(judge.pin, judge.data, judge.q(q), judge.v(v), judge.v(a))
        by_q, by_v, M = rnea_derivatives(model.to_device(), q, v, a)
        expected_q = judge.matrix(judge.data.dtau_dq) + np.diag(model.stiffness * scalar)
        assert relative(by_q, expected_q) < TOLERANCE
        assert relative(by_v, judge.matrix(judge.data.dtau_dv) + np.diag(model.damping)) < TOLERANCE
        assert relative(M, mass_matrix(model, q)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES[:-1])  # a single hinge without damping has no derivative by v to compare
def test_forward_dynamics_derivatives_are_pinocchios(name):
    """Without springs and dampers, which Pinocchio's algorithm does not know."""
    model, _ = random_model(name)
    model = model.replace(stiffness=0 * model.stiffness, damping=0 * model.damping)
    judge = PinocchioModel(model)
    judge.pin.armature = judge.v(model.armature)
    data = judge.pin.createData()
    q, v, tau = random_state(model, 3)
    pin.computeABADerivatives(judge.pin, data, judge.q(q), judge.v(v), judge.v(tau))
    a, by_q, by_v, inverse = forward_dynamics_derivatives(model.to_device(), q, v, tau)
    upper = np.triu(np.asarray(data.Minv).reshape(model.nv, model.nv))
    assert relative(a, judge.vector(data.ddq)) < 1e-10
    assert relative(by_q, judge.matrix(data.ddq_dq)) < 1e-9
    assert relative(by_v, judge.matrix(data.ddq_dv)) < 1e-9
    assert relative(inverse, judge.matrix(upper + np.triu(upper, 1).T)) < 1e-10


@pytest.mark.parametrize("build", [lambda: random_model("fixed-base")[0], mimic_model])
def test_closed_forms_are_automatic_derivatives(build):
    """With everything the equation of motion has: mimic joints, armature, damping, springs."""
    model = build()
    device = model.to_device()
    q, v, a = (jnp.asarray(x) for x in random_state(model, 4))
    zero = jnp.zeros(model.nv)
    tangent = lambda dq, v, a: inverse_dynamics(device, integrate(device, q, dq), v, a)  # noqa: E731
    expected = jax.jit(jax.jacfwd(tangent, (0, 1, 2)))(zero, v, a)
    for got, wanted in zip(rnea_derivatives(device, q, v, a), expected, strict=True):
        assert relative(got, wanted) < TOLERANCE

    tau = inverse_dynamics(device, q, v, a)
    tangent = lambda dq, v, tau: forward_dynamics(device, integrate(device, q, dq), v, tau)  # noqa: E731
    expected = jax.jit(jax.jacrev(tangent, (0, 1, 2)))(zero, v, tau)
    got = forward_dynamics_derivatives(device, q, v, tau)
    assert relative(got[0], a) < 1e-10
    for one, wanted in zip(got[1:], expected, strict=True):
        assert relative(one, wanted) < 1e-9


@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], mimic_model])
def test_shared_terms_are_the_equation_of_motion(build):
    model = build()
    q, v, a = random_state(model, 5)
    terms = jax.jit(module.dynamics_terms)(model.to_device(), q, v)
    assert relative(terms.M, mass_matrix(model, q)) < TOLERANCE
    assert relative(terms.h, np.asarray(bias_forces(model, q, v) - passive_forces(model, q, v))) < TOLERANCE
    assert relative(terms.M @ a + terms.h, inverse_dynamics(model, q, v, a)) < TOLERANCE
    assert relative(module.inverse_mass_matrix(terms.M) @ terms.M, np.eye(model.nv)) < 1e-10


@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], lambda: random_model("chain")[0], mimic_model])
def test_inverse_dynamics_is_linear_in_the_inertial_parameters(build):
    model = build()
    q, v, a = random_state(model, 6)
    Y = np.asarray(inertial_regressor(model, q, v, a))
    assert Y.shape == (model.nv, model.topology.n_nodes, 10)
    parameters = np.stack([_parameters(*body) for body in zip(model.mass, model.com, model.inertia, strict=True)])
    assert relative(np.einsum("vip,ip->v", Y, parameters), rnea(model, q, v, a)) < TOLERANCE

    # Each column alone: other bodies' parameters changed at random.
    other = np.random.default_rng(0).normal(size=parameters.shape)
    mass, com, inertia = zip(*(_body(row) for row in other), strict=True)
    changed = model.replace(mass=np.array(mass), com=np.array(com), inertia=np.array(inertia))
    assert relative(np.einsum("vip,ip->v", Y, other), rnea(changed, q, v, a)) < 1e-10


def test_regressor_is_pinocchios():
    model, _ = random_model("free-tree")
    judge = PinocchioModel(model)
    q, v, a = random_state(model, 7)
    expected = pin.computeJointTorqueRegressor(judge.pin, judge.data, judge.q(q), judge.v(v), judge.v(a))
    expected = expected.reshape(model.nv, -1, 10)[judge.inverse]
    order = [judge.joint_of[i] - 1 for i in range(model.topology.n_nodes)]
    assert relative(inertial_regressor(model, q, v, a), expected[:, order]) < TOLERANCE


def test_precision_and_batches():
    model, _ = random_model("free-tree")
    device = model.to_device()
    state = [jnp.asarray(x) for x in random_state(model, 8)]
    one = forward_dynamics_derivatives(device, *state)
    batch = [jnp.stack([x, x]) for x in state]
    batched = jax.jit(jax.vmap(module.forward_dynamics_derivatives, (None, 0, 0, 0)))(device, *batch)
    for x, y in zip(one, batched, strict=True):
        assert relative(y[1], x) < 1e-11
    single = forward_dynamics_derivatives(model.to_device(jnp.float32), *(x.astype(jnp.float32) for x in state))
    for x, y in zip(one, single, strict=True):
        assert y.dtype == jnp.float32 and relative(y, x) < 1e-2


def _parameters(m, c, inertia):
    J = inertia + m * (c @ c * np.eye(3) - np.outer(c, c))
    return np.array([m, *(m * c), J[0, 0], J[0, 1], J[1, 1], J[0, 2], J[1, 2], J[2, 2]])


def _body(row):
    m, c = row[0], row[1:4] / row[0]
    xx, xy, yy, xz, yz, zz = row[4:]
    J = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return m, c, J - m * (c @ c * np.eye(3) - np.outer(c, c))
