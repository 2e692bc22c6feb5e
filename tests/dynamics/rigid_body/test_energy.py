"""Energies and momenta: MuJoCo's and Pinocchio's values, and the laws they obey along the motion."""

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
from trajopt.dynamics.rigid_body import crba, rnea
from trajopt.dynamics.rigid_body import energy as module
from trajopt.dynamics.rigid_body import kinematics as kinematics_module
from trajopt.dynamics.rigid_body.configuration import integrate

energy = Jitted(module)
forward_dynamics, mass_matrix = Jitted(crba).forward_dynamics, Jitted(crba).mass_matrix
com_jacobian, bias_forces = Jitted(kinematics_module).com_jacobian, Jitted(rnea).bias_forces

NAMES = ["free-tree", "fixed-base", "forest", "single-hinge"]


@pytest.mark.parametrize("name", NAMES)
def test_energies_are_mujocos(name):
    model, compiled = random_model(name)
    compiled.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    q, v, _ = random_state(model, 1)
    data = mujoco_data(compiled, q, v)
    assert relative(energy.potential_energy(model, q), data.energy[0]) < 1e-12
    assert relative(energy.kinetic_energy(model, q, v), data.energy[1]) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_centroidal_momentum_is_pinocchios(name):
    model, _ = random_model(name)
    judge = PinocchioModel(model)
    q, v, _ = random_state(model, 2)
    expected = pin.computeCentroidalMomentum(judge.pin, judge.data, judge.q(q), judge.v(v)).vector
    assert relative(energy.centroidal_momentum(model, q, v), expected) < 1e-12
    matrix = pin.ccrba(judge.pin, judge.data, judge.q(q), judge.v(v)).reshape(6, -1)[:, judge.inverse]
    assert relative(energy.centroidal_momentum_matrix(model, q), matrix) < 1e-12


def test_centroidal_matrix_with_mimic_joints():
    model = mimic_model()
    q, v, _ = random_state(model, 3)
    A = energy.centroidal_momentum_matrix(model, q)
    assert relative(A @ v, energy.centroidal_momentum(model, q, v)) < 1e-12
    assert relative(A[:3], model.mass.sum() * np.asarray(com_jacobian(model, q))) < 1e-12


@pytest.mark.parametrize("build", [lambda: random_model("forest")[0], lambda: random_model("chain")[0], mimic_model])
def test_power_balance(build):
    """d/dt (kinetic + potential) = tau . v - v . damping v along the motion of the forward dynamics."""
    model = build()
    q, v, tau = (jnp.asarray(x) for x in random_state(model, 4))
    a = forward_dynamics(model, q, v, tau)

    @jax.jit
    def rate(q, v, a):
        def total(t):
            moved = integrate(model, q, t * v)
            return energy.kinetic_energy(model, moved, v + t * a) + energy.potential_energy(model, moved)

        return jax.jvp(total, (jnp.zeros(()),), (jnp.ones(()),))[1]

    power = float(tau @ v - v @ (model.damping * v))
    scale = float(jnp.abs(tau * v).sum() + (model.damping * v * v).sum())
    assert abs(float(rate(q, v, a)) - power) / scale < 1e-10
