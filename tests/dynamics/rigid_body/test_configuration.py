"""Configurations on the manifold against MuJoCo's integratePos and differentiatePos."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from dynamics.models_for_tests import Jitted, random_model, random_state
from trajopt.dynamics.rigid_body import configuration as module
from trajopt.errors import ShapeError

joints = Jitted(module)
NAMES = ["free-tree", "fixed-base", "forest", "single-hinge"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 1.0, 3.0])
def test_integrate_and_difference_are_mujocos(name, scale):
    model, compiled = random_model(name)
    q, v, _ = random_state(model, 1)
    expected = q.copy()
    mujoco.mj_integratePos(compiled, expected, scale * v, 1.0)
    moved = joints.integrate(model, q, jnp.asarray(scale * v))
    np.testing.assert_allclose(moved, expected, atol=1e-14, rtol=0)

    target = random_state(model, 2)[0] if scale == 1.0 else expected
    tangent = np.zeros(model.nv)
    mujoco.mj_differentiatePos(compiled, tangent, 1.0, q, target)
    np.testing.assert_allclose(joints.difference(model, q, target), tangent, atol=1e-12, rtol=0)
    # The round trip ends at the target, or at its antipodal quaternion.
    back = joints.integrate(model, q, joints.difference(model, q, target))
    np.testing.assert_allclose(joints.difference(model, back, target), 0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_jacobians_of_integrate(name):
    model, _ = random_model(name)
    q, v, _ = (jnp.asarray(x) for x in random_state(model, 3))
    zero = jnp.zeros(model.nv)
    end = joints.integrate(model, q, v)
    tangent = lambda dq, dv: joints.difference(  # noqa: E731
        model, end, joints.integrate(model, joints.integrate(model, q, dq), v + dv)
    )
    by_q, by_dq = joints.integrate_jacobians(model, q, v)
    np.testing.assert_allclose(by_q, jax.jit(jax.jacfwd(tangent, 0))(zero, zero), atol=1e-13)
    np.testing.assert_allclose(by_dq, jax.jit(jax.jacfwd(tangent, 1))(zero, zero), atol=1e-13)


@pytest.mark.parametrize("name", ["forest", "single-hinge"])
def test_random_configurations_respect_limits_and_are_seeded(name):
    model, _ = random_model(name)
    scalar = model.topology.scalar_q_of_dof
    lower, upper = np.where(scalar >= 0, 0.2, -np.inf), np.where(scalar >= 0, 0.3, np.inf)
    model = model.replace(lower=lower, upper=upper)
    q = joints.random_configuration(model, jax.random.key(0))
    assert np.all((q[scalar[scalar >= 0]] >= 0.2) & (q[scalar[scalar >= 0]] <= 0.3))
    np.testing.assert_array_equal(q, joints.random_configuration(model, jax.random.key(0)))
    np.testing.assert_allclose(joints.normalise(model, q), q, atol=1e-15)


def test_wrong_shapes_are_named():
    with pytest.raises(ShapeError, match=r"dq has shape \(2,\), expected \(6,\)"):
        module.check_vector("dq", np.zeros(2), 6)
