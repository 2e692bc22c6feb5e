"""The derivative rule of the velocity step against differences, and the closed-form Jacobian against the rule."""

import jax
import jax.numpy as jnp
import numpy as np

from dynamics.contact import scenes
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.gradients.closed_form import step_jacobian
from trajopt.dynamics.gradients.implicit import velocity_step

LAW = RigidContact()


def test_free_motion_without_rows():
    """NoContact: M dv = dt (tau - h), and its Jacobian is the free one."""
    model, x = scenes.model("cube"), scenes.cube_state("flight")
    tau = np.arange(6.0)
    arguments = tuple(jnp.asarray(a) for a in (x.q, x.v, tau, 1e-3))
    out, jac = jax.jit(lambda *a: step_jacobian(StepInputs(NoContact(), model, *a)))(*arguments)
    inertia = np.r_[np.ones(3), np.full(3, 0.04 / 6)]
    np.testing.assert_allclose(
        out.velocity, x.v + 1e-3 * (tau + [0, 0, -scenes.GRAVITY, 0, 0, 0]) / inertia, atol=1e-12
    )
    np.testing.assert_allclose(jac.by_tau, 1e-3 * np.diag(1 / inertia), atol=1e-15)
    np.testing.assert_allclose(jac.by_v, np.eye(6), atol=1e-12)  # a cube: no gyroscopic term
    np.testing.assert_allclose(jac.by_q, 0.0, atol=1e-12)


def test_warm_start_carries_no_derivative():
    model, x = scenes.model("cube"), scenes.cube_state("sliding")

    def f(init):
        q, v = jnp.asarray(x.q), jnp.asarray(x.v)
        inputs = StepInputs(LAW, model, q, v, jnp.zeros(6), jnp.asarray(1e-3), warm_start=init)
        return velocity_step(inputs).velocity.sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(f))(jnp.ones(12)), 0.0)
