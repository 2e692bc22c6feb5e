"""`RelaxedContact` through the compiled core: the step, A and B, and the impulses' derivative of the JAX implementation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.dynamics.contact.test_relaxed import STATES, scene, scene_state
from trajopt.dynamics import RelaxedContact, State, System
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status


def require_equal(jax_: System, core: System, x: State, u, label: str) -> None:
    """A and B to 1e-8 of the largest entry, velocities and impulses to 1e-9."""
    one, two = (system.linearize(x, u, outputs=("impulse",)) for system in (jax_, core))
    step, info = core.step(x, u)
    assert one.info.status == two.info.status == Status.solved, label
    np.testing.assert_array_equal(step.v, two.x_next.v)
    np.testing.assert_allclose(step.v, one.x_next.v, atol=1e-9 * max(1.0, float(jnp.abs(x.v).max())), err_msg=label)
    np.testing.assert_allclose(info.impulse, one.info.impulse, atol=1e-9, err_msg=label)
    np.testing.assert_array_equal(info.contacts.mode, one.info.contacts.mode)
    slopes = [(one.A, two.A), (one.B, two.B)]
    slopes += [(getattr(one.outputs["impulse"], k), getattr(two.outputs["impulse"], k)) for k in ("C", "D")]
    for a, b in slopes:
        np.testing.assert_allclose(a, b, atol=1e-8 * float(jnp.abs(a).max()), err_msg=label)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("integrator", ("semi-implicit", pytest.param("moreau", marks=pytest.mark.slow)))
def test_core_and_jax_agree(kind, integrator):
    """Contacts of balls and rods, limits, dry friction, a coupling of joints."""
    x, u = scene_state(kind)
    jax_ = dataclasses.replace(scene(), integrator=integrator)
    core = dataclasses.replace(jax_, backend="native")
    for rho in (1e-1, 1e-3, 1e-5):
        require_equal(*(dataclasses.replace(s, rho=rho) for s in (jax_, core)), x, u, f"{kind}, {integrator}, rho {rho}")


@pytest.mark.slow
def test_derivatives_by_state_and_by_rho_through_the_core():
    x, u = scene_state("touching")
    core, jax_ = dataclasses.replace(scene(), backend="native"), scene()

    def after(system, rho, v):
        return jnp.sum(dataclasses.replace(system, rho=rho).step(dataclasses.replace(x, v=v), jnp.asarray(u))[0].v ** 2)

    for place in (0, 1):
        slopes = [jax.grad(after, place + 1)(s, jnp.asarray(1e-3), x.v) for s in (core, jax_)]
        np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-8)


def test_a_rollout_is_its_steps():
    x, u = scene_state("apart")
    core = dataclasses.replace(scene(), backend="native")
    xs, infos = core.rollout(x, np.tile(u, (5, 1)))
    for k in range(5):
        x, _ = core.step(x, u)
        np.testing.assert_allclose(xs.v[k + 1], x.v, atol=1e-12)
    assert bool(jnp.all(infos.status == Status.solved))


def test_more_contacts_than_the_core_takes_are_said():
    balls = "".join(
        f'<body pos="{k} 0 1"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1"/></body>' for k in range(17)
    )
    crowd = load_model_from_string(f'<mujoco><worldbody><geom type="plane" size="0 0 1"/>{balls}</worldbody></mujoco>')
    system = System(crowd, 0.01, contact=RelaxedContact(0.1))
    assert system.resolved_backend == "jax" and "the compiled core takes 128" in system.backend_reason
