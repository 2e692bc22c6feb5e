"""The articulated-body algorithm: identity with inverse dynamics, Pinocchio's, and its compile-time behaviour."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from dynamics.models_for_tests import PinocchioModel, chain_model, mimic_model, random_model, random_state, relative
from trajopt.dynamics.rigid_body.aba import aba
from trajopt.dynamics.rigid_body.crba import forward_dynamics
from trajopt.dynamics.rigid_body.rnea import inverse_dynamics, passive_forces
from trajopt.errors import ModelError

NAMES = ["free-tree", "fixed-base", "forest", "chain", "single-free", "single-hinge"]
compiled_aba = jax.jit(aba)


@pytest.mark.parametrize("name", NAMES)
def test_identity_with_inverse_dynamics(name):
    model, _ = random_model(name)
    device = model.to_device()
    inverse = jax.jit(inverse_dynamics)
    for seed in range(3):
        q, v, a = random_state(model, seed)
        got = compiled_aba(device, q, v, inverse(device, q, v, a))
        assert relative(got, a) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_pinocchios_articulated_bodies(name):
    model, _ = random_model(name)
    judge = PinocchioModel(model)
    judge.pin.armature = judge.v(model.armature)
    q, v, tau = random_state(model, 4)
    applied = judge.v(tau + np.asarray(jax.jit(passive_forces)(model, q, v)))
    expected = judge.vector(pin.aba(judge.pin, judge.pin.createData(), judge.q(q), judge.v(v), applied))
    assert relative(compiled_aba(model.to_device(), q, v, tau), expected) < 1e-10


def test_deep_chain_compiles_as_a_scan():
    def program(length):
        model = chain_model(length)
        return str(jax.make_jaxpr(aba)(model, *random_state(model, 5)))

    assert program(60).count("scan[") == 2
    # Both need six rounds of pointer doubling; nothing else may depend on the depth.
    assert abs(len(program(60).splitlines()) - len(program(40).splitlines())) < 10
    model = chain_model(60)
    q, v, a = (0.3 * x for x in random_state(model, 5))
    tau = jax.jit(inverse_dynamics)(model, q, v, a)
    # 60 joints in series: the inertia felt by the first is 1e5 times that of the last.
    assert relative(compiled_aba(model.to_device(), q, v, tau), a) < 1e-9


def test_gradients_batches_and_precision():
    model, _ = random_model("fixed-base")
    device = model.to_device()
    q, v, tau = (jnp.asarray(x) for x in random_state(model, 6))
    expected = jax.jit(jax.jacfwd(forward_dynamics, (2, 3)))(device, q, v, tau)
    for mode in (jax.jacfwd, jax.jacrev):
        got = jax.jit(mode(aba, (2, 3)))(device, q, v, tau)
        assert relative(got[0], expected[0]) < 1e-10 and relative(got[1], expected[1]) < 1e-10
    batched = jax.jit(jax.vmap(aba, (None, 0, 0, 0)))(device, *(jnp.stack([x, x]) for x in (q, v, tau)))
    assert relative(batched[1], compiled_aba(device, q, v, tau)) < 1e-12
    single = compiled_aba(model.to_device(jnp.float32), *(x.astype(jnp.float32) for x in (q, v, tau)))
    assert single.dtype == jnp.float32 and relative(single, batched[0]) < 1e-3


def test_mimic_joints_are_refused():
    model = mimic_model()
    with pytest.raises(ModelError, match="mimic joints .*use forward_dynamics"):
        aba(model, *random_state(model, 0))
