"""What a step must keep: closed forms, momentum, energy, and independence of how the solver is started."""

import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.system import State, System
from trajopt.result import Status


@pytest.mark.parametrize("law", [RigidContact(), NoContact()])
def test_free_fall_is_exact(law):
    """Semi-implicit Euler: v_k = v_0 - k g dt, z_k = z_0 + k dt v_0 - g dt^2 k (k + 1) / 2, also with contact in the model."""
    sys = System(scenes.model("ball"), dt=1e-3, contact=law)
    xs, infos = sys.rollout(
        State(np.array([0, 0, 5.0, 1, 0, 0, 0]), np.array([1.0, -2, 3, 0.5, 0, 0])), np.zeros((200, 0))
    )
    k = np.arange(201)
    np.testing.assert_allclose(xs.v[:, 2], 3.0 - scenes.GRAVITY * 1e-3 * k, atol=1e-12)
    np.testing.assert_allclose(xs.q[:, 2], 5.0 + 3e-3 * k - scenes.GRAVITY * 1e-6 * k * (k + 1) / 2, atol=1e-12)
    np.testing.assert_allclose(xs.q[:, :2], 1e-3 * k[:, None] * [1.0, -2.0], atol=1e-12)
    np.testing.assert_allclose(xs.q[-1, 3:], scenes.about([1, 0, 0], 0.5 * 0.2), atol=1e-12)
    assert infos.impulse.size == 0 or np.all(np.asarray(infos.impulse) == 0)


def test_momentum_of_the_cube_balances():
    """Linear and angular momentum about the world's origin change by the impulses of gravity and contact, as reported."""
    sys = scenes.system("cube")
    inertia = 1.0 / 6.0 * 0.2**2
    for kind in ("standing", "sliding", "landing", "edge"):
        x = scenes.cube_state(kind)
        y, info = sys.step(x, np.zeros(0))
        force = np.einsum("kij,kj->ki", np.asarray(info.contacts.frame), np.asarray(info.contacts.impulse))
        weight = np.array([0, 0, -scenes.GRAVITY * 1e-3])
        np.testing.assert_allclose(np.asarray(y.v[:3]) - x.v[:3], force.sum(0) + weight, atol=1e-13)
        R, lever = scenes.rotation(x.q[3:]), np.asarray(info.contacts.point) - x.q[:3]
        turn = R @ (inertia * (np.asarray(y.v[3:]) - x.v[3:]))  # a cube's inertia is a multiple of the identity
        np.testing.assert_allclose(turn, np.cross(lever, force).sum(0), atol=1e-13)


def test_contact_does_not_create_energy():
    """A tumbling cube: kinetic plus potential energy never rises by more than the integrator and the push-out account for."""
    sys = scenes.system("cube", erp=0.0)
    xs, infos = sys.rollout(
        State(np.array([0, 0, 0.25, *scenes.about([1, 2, 3], 0.7)]), np.array([1.0, -0.5, 0, 3, -1, 2])),
        np.zeros((600, 0)),
    )
    q, v = np.asarray(xs.q), np.asarray(xs.v)
    energy = 0.5 * (v[:, :3] ** 2).sum(1) + 0.5 * (0.04 / 6) * (v[:, 3:] ** 2).sum(1) + scenes.GRAVITY * q[:, 2]
    assert np.all(np.asarray(infos.status == Status.solved))
    assert np.asarray(infos.contacts.mode).max() == 2 and energy[-1] < 0.6 * energy[0]
    # In flight the integrator loses g^2 dt^2 / 2; a corner caught before it touches (phi > 0) does no work by the floor but
    # its velocity row is evaluated at the old place: the error is of second order, (v dt) times the impulse's rate.
    assert np.diff(energy).max() < 2e-3 * energy[0]
