"""The derivative rule of the velocity step against differences, and the closed-form Jacobian against the rule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import Estimate, compare, ridders

from dynamics.contact import scenes
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.gradients.closed_form import step_jacobian
from trajopt.dynamics.gradients.implicit import velocity_step
from trajopt.dynamics.rigid_body.configuration import integrate

LAW = RigidContact()
CUBE = ("standing", "sliding", "landing", "edge", "flight")


@jax.jit
def _outputs(model, q, v, tau, dt):
    out = velocity_step(StepInputs(LAW, model, q, v, tau, dt))
    return out.velocity, out.impulse


@jax.jit
def _forward(model, q, v, tau, dt, dq, dv, dtau, ddt):
    def f(s):
        return _outputs(model, integrate(model, q, s * dq), v + s * dv, tau + s * dtau, dt + s * ddt)

    return jax.jvp(f, (jnp.zeros(()),), (jnp.ones(()),))[1]


@jax.jit
def _jacobian(model, q, v, tau, dt):
    return step_jacobian(StepInputs(LAW, model, q, v, tau, dt))[1]


@jax.jit
def _weighted(mass, com, friction, q, v, tau, dt, model, w_v, w_l):
    out = _outputs(model.replace(mass=mass, com=com, pair_friction=friction), q, v, tau, dt)
    return w_v @ out[0] + w_l @ out[1]


@jax.jit
def _both_modes(primal, tangent, *others):
    """(derivative of `_weighted` along the tangent, its gradient)."""
    f = lambda *p: _weighted(*p, *others)  # noqa: E731
    return jax.jvp(f, primal, tangent)[1], jax.grad(f, argnums=tuple(range(7)))(*primal)


@pytest.mark.parametrize("kind", CUBE)
def test_velocity_and_impulse_along_random_directions(kind):
    """d(v+, lambda) along directions of q, v, tau and dt together."""
    model, x = scenes.model("cube"), scenes.cube_state(kind)
    rng = np.random.default_rng(0)
    got, values, errors = [], [], []
    for _ in range(3):
        dq, dv, dtau, ddt = rng.normal(size=6), rng.normal(size=6), rng.normal(size=6), 1e-2 * rng.normal()

        def f(s, dq=dq, dv=dv, dtau=dtau, ddt=ddt):
            out = _outputs(
                model, scenes.integrate(model, x.q, s * dq), x.v + s * dv, s * dtau, jnp.asarray(1e-3 + s * ddt)
            )
            return np.concatenate(out)

        # Noise of the selected impulse: rounding of the residual times 1e6, the inverse of the regularisation.
        estimate = ridders(f, 1e-5)
        forward = _forward(model, *(jnp.asarray(a) for a in (x.q, x.v, np.zeros(6), 1e-3, dq, dv, dtau, ddt)))
        got.append(np.concatenate(forward)), values.append(estimate.value), errors.append(estimate.error)
    got, values, errors = np.stack(got, 1), np.stack(values, 1), np.stack(errors, 1)
    compare(got[:6], Estimate(values[:6], errors[:6]), label=f"{kind}: velocity")
    compare(got[6:], Estimate(values[6:], errors[6:]), untrusted=0.1, label=f"{kind}: impulse")


@pytest.mark.parametrize("kind", CUBE)
def test_closed_form_jacobian_equals_the_rule(kind):
    """`step_jacobian` column by column: the same linear equations by two independent routes."""
    model, x = scenes.model("cube"), scenes.cube_state(kind)
    arguments = tuple(jnp.asarray(a) for a in (x.q, x.v, np.zeros(6), 1e-3))
    jac = _jacobian(model, *arguments)
    zero = np.zeros(6)
    for name in ("by_q", "by_v", "by_tau"):
        columns = []
        for e in np.eye(6):
            d = {"by_q": (e, zero, zero), "by_v": (zero, e, zero), "by_tau": (zero, zero, e)}[name]
            columns.append(_forward(model, *arguments, *(jnp.asarray(a) for a in d), jnp.zeros(()))[0])
        expected = np.stack(columns, 1)
        np.testing.assert_allclose(
            getattr(jac, name), expected, atol=1e-10 * max(np.abs(expected).max(), 1e-2), err_msg=name
        )


@pytest.mark.parametrize("kind", ["standing", "sliding", "landing"])
def test_reverse_mode_is_the_transpose(kind):
    """w . (d outputs . z) from both sides, for outputs (v+, lambda) and all inputs including dt and the model's leaves."""
    model, x = scenes.model("cube"), scenes.cube_state(kind)
    rng = np.random.default_rng(2)
    w_v, w_l = jnp.asarray(rng.normal(size=6)), jnp.asarray(rng.normal(size=12))
    primal = (model.mass, model.com, model.pair_friction, *(jnp.asarray(a) for a in (x.q, x.v, np.zeros(6), 1e-3)))
    tangent = tuple(jnp.asarray(1e-2 * rng.normal(size=p.shape)) for p in primal)
    forward, gradient = _both_modes(primal, tangent, model, w_v, w_l)
    backward = sum(float(jnp.vdot(a, b)) for a, b in zip(gradient, tangent, strict=True))
    assert all(np.isfinite(np.asarray(a)).all() for a in gradient)
    np.testing.assert_allclose(backward, float(forward), rtol=1e-8)


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
