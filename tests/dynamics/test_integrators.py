"""Integrators: closed forms, orders of convergence, drift, derivatives, and combinations that are refused."""

import dataclasses
import functools
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian
from scipy.integrate import solve_ivp
from scipy.special import ellipj

from dynamics.contact import scenes
from trajopt.dynamics import CompliantContact, NoContact, RigidContact, SpringDamperContact, State, System
from trajopt.dynamics.integrators import INTEGRATORS
from trajopt.errors import OptionError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from validation_experiments import drift

G = scenes.GRAVITY
ORDER = {"semi-implicit": 1, "moreau": 2, "euler": 1, "rk4": 4}

PENDULUM = """<mujoco model="pendulum"><worldbody><body name="bob"><joint name="pivot" axis="0 1 0"/>
  <inertial pos="0 0 -0.6" mass="1.3" diaginertia="0.02 0.02 0.02"/></body></worldbody></mujoco>"""
BODY = """<mujoco model="body"><worldbody><body name="body"><freejoint name="root"/>
  <inertial pos="0 0 0" mass="2" diaginertia="0.05 0.04 0.02"/></body></worldbody></mujoco>"""


@functools.cache
def free(source: str, integrator: str, dt: float) -> System:
    return System(load_model_from_string(source), dt, contact=NoContact(), integrator=integrator)


def run(sys: System, x: State, duration: float, steps: int) -> State:
    """The state after `steps` steps; dt is a leaf, so that all step sizes share one compiled step."""
    sys = dataclasses.replace(sys, dt=duration / steps)
    for _ in range(steps):
        x, info = sys.step(x, np.zeros(sys.nu))
        assert info.status == Status.solved
    return x


def observed_orders(errors) -> np.ndarray:
    """Of errors with halved steps."""
    return np.log2(np.asarray(errors[:-1]) / np.asarray(errors[1:]))


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_order_of_convergence_on_a_pendulum(integrator):
    """Released at rest from 1.2 rad: sin(angle / 2) = k cd(omega t), k = sin(0.6), in Jacobi's elliptic functions."""
    angle, duration = 1.2, 0.7
    k = np.sin(angle / 2)
    _, cn, dn, _ = ellipj(np.sqrt(1.3 * G * 0.6 / (0.02 + 1.3 * 0.36)) * duration, k * k)
    exact = 2 * np.arcsin(k * cn / dn)
    sys, x = free(PENDULUM, integrator, 1e-2), State(np.array([angle]), np.zeros(1))
    errors = [abs(float(run(sys, x, duration, n).q[0]) - exact) for n in (20, 40, 80)]
    # The observed order approaches the true one as 1 + O(h).
    np.testing.assert_allclose(observed_orders(errors), ORDER[integrator], atol=0.12 * ORDER[integrator])


@functools.cache
def tumbling() -> tuple[State, np.ndarray, np.ndarray]:
    """A free asymmetric body; attitude and spin after 0.4 s by SciPy's DOP853 of Euler's equations (1e-12)."""
    inertia, w0, duration = np.array([0.05, 0.04, 0.02]), np.array([1.0, 4.0, 6.0]), 0.4

    def rates(_, y):
        attitude, w = y[:4], y[4:]
        spin = 0.5 * scenes.quaternion_product(attitude, np.r_[0.0, w])
        return np.r_[spin, -np.cross(w, inertia * w) / inertia]

    start = scenes.about([1, 2, 3], 0.5)
    y = solve_ivp(rates, (0, duration), np.r_[start, w0], "DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
    x = State(np.r_[0.1, 0.2, 0.3, start], np.r_[1.0, -2.0, 3.0, w0])
    return x, y[:4] / np.linalg.norm(y[:4]), y[4:]


@pytest.mark.parametrize("integrator", ["moreau", "euler", "rk4"])
def test_free_body(integrator):
    """Flight is exact (but for Euler's first-order height), rotation has the scheme's order, quaternions stay unit."""
    x, attitude, spin = tumbling()
    sys = free(BODY, integrator, 1e-2)
    errors = []
    for n in (16, 32, 64):
        y = run(sys, x, 0.4, n)
        height = 0.3 + 3.0 * 0.4 - G * 0.4**2 / 2 + (G * 0.4**2 / (2 * n) if integrator == "euler" else 0.0)
        np.testing.assert_allclose(y.q[:3], [0.1 + 0.4, 0.2 - 0.8, height], atol=1e-12)
        np.testing.assert_allclose(y.v[:3], [1.0, -2.0, 3.0 - G * 0.4], atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(y.q[3:]), 1.0, atol=1e-14)
        turned = scenes.quaternion_product(attitude * [1, -1, -1, -1], np.asarray(y.q[3:]))
        errors.append(np.linalg.norm(turned[1:]) + np.linalg.norm(y.v[3:] - spin))
    # Both halves of the midpoint scheme are symmetric here, since its gyroscopic torques are those of the midpoint rule.
    order = {"moreau": 2, "euler": 1, "rk4": 4}[integrator]
    np.testing.assert_allclose(observed_orders(errors)[-1], order, atol=0.15 * order)


def ball_in_contact(integrator: str) -> tuple[System, State]:
    """The ball 2e-4 m inside the floor, deformed and turning, sticking throughout the steps of the tests."""
    sys = System(scenes.model("ball"), 1e-3, contact=CompliantContact(), integrator=integrator)
    x = State(
        np.array([0, 0, 0.0998, *scenes.about([1, 2, 0], 0.3)]),
        np.array([0.02, 0.01, -0.02, 0.1, 0.2, 0.05]),
        np.array([[3e-6, -2e-6, 0.0]]),
    )
    return sys, x


def test_rk4_integrates_the_contact_state():
    """Fourth order in q, v and the tangential deformation while the contact sticks, from differences of halved steps."""
    sys, x = ball_in_contact("rk4")
    runs = [run(sys, x, 4e-3, n) for n in (4, 8, 16, 32)]
    for part in (lambda y: y.q, lambda y: y.v, lambda y: y.contact):
        steps = [np.linalg.norm(part(b) - part(a)) for a, b in zip(runs[:-1], runs[1:], strict=True)]
        np.testing.assert_allclose(observed_orders(steps)[-1], 4, atol=0.5)
    # Impulses of the stages add up: the momentum of the ball balances.
    y, info = sys.step(x, np.zeros(0))
    np.testing.assert_allclose(
        info.contacts.frame[0] @ info.contacts.impulse[0],
        2.0 * (np.asarray(y.v) - x.v)[:3] + [0, 0, 2 * G * 1e-3],
        atol=1e-12,
    )


def test_rk4_linearization_against_ridders():
    sys, x = ball_in_contact("rk4")
    scenes.judged_slopes(sys, x, np.zeros(0), (1e-6, 1e-4, 1e-7, 0))


@pytest.mark.parametrize(
    "v", [(0.01, 0.02, 0, 0.1, 0.2, 0.3), (1.0, -0.5, -0.1, 0.4, 0.2, 0.3)], ids=["stick", "slide"]
)
def test_moreau_linearization_against_ridders(v):
    """Hard contact at the midpoint, in closed form: A and the parameters."""
    sys = System(scenes.model("ball"), 1e-3, contact=RigidContact(), integrator="moreau")
    x = State(np.array([0, 0, 0.0999, *scenes.about([1, 2, 0], 0.3)]), np.array(v, float))
    jac = scenes.judged_slopes(sys, x, np.zeros(0), (2e-5, 1e-4, 0, 0))
    y, info = sys.step(x, np.zeros(0))
    np.testing.assert_allclose(jac.x_next.q, y.q, atol=1e-14)
    assert int(info.contacts.mode[0]) == (1 if abs(v[0]) < 0.1 else 2)


@pytest.mark.parametrize("integrator", ["moreau", "rk4"])
def test_parameter_derivatives_against_ridders(integrator):
    """Of the tumbling body by its centre of mass: the configuration moves with the velocity's share of the step."""
    sys, (x, _, _) = free(BODY, integrator, 1e-2), tumbling()
    jac = sys.linearize(x, np.zeros(0), parameters=("com",))
    f = scenes.tangent_step(sys, x, np.zeros(0), "com")
    slopes = np.reshape(jac.parameters["com"], (12, -1))
    compare(slopes[:, 3:], ridders_jacobian(lambda z: f(np.r_[0, 0, 0, z]), 3, 1e-3))
    np.testing.assert_allclose(slopes[:, :3], 0, atol=1e-12)  # the node of the translation has no mass


def test_moreau_holds_a_resting_ball():
    sys = System(scenes.model("ball"), 1e-3, contact=RigidContact(), integrator="moreau")
    y = run(sys, State(np.array([0, 0, 0.1, 1, 0, 0, 0]), np.zeros(6)), 0.01, 10)
    np.testing.assert_allclose(y.q[:3], [0, 0, 0.1], atol=1e-13)
    np.testing.assert_allclose(y.v, 0, atol=1e-12)


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_free_floating_humanoid_drifts_with_the_order_of_the_scheme(integrator):
    """Astronaut experiment (JaxSim thesis, 8.2.2): 0.2 s of internal torques leave no momentum, 0.2 s without keep the energy.

    (momentum in N s and N m s, relative energy), with 10 ms and 5 ms.
    """
    found = []
    for dt in (1e-2, 5e-3):
        astronaut = dataclasses.replace(drift.astronaut(integrator), dt=dt)
        forces = np.stack([drift.torques(astronaut)[0], np.zeros(astronaut.nv)])
        momentum, energy, _ = drift.drift(astronaut, astronaut.initial_state(), jnp.asarray(forces), round(0.2 / dt), 1)
        found.append((np.abs(momentum[0]).max(), abs(energy[1, 0] / energy[0, 0] - 1)))
        assert energy[0, 0] > 0.1
    np.testing.assert_allclose(observed_orders(found)[0], ORDER[integrator], atol=0.3)
    assert np.all(np.asarray(found[1]) < {"euler": 0.1, "rk4": 1e-7}[integrator])


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_impulses_need_a_scheme_with_impulses(integrator):
    message = (
        rf"integrator '{integrator}' needs forces.*RigidContact is solved for impulses.*'semi-implicit' or 'moreau'"
    )
    with pytest.raises(OptionError, match=message):
        System(scenes.model("ball"), 1e-3, contact=RigidContact(), integrator=integrator)
    with pytest.raises(OptionError, match="NoContact with limits or dry joint friction is solved for impulses"):
        System(scenes.model("sliders"), 1e-3, contact=NoContact(limits=True), integrator=integrator)
    for law in (NoContact(), CompliantContact(), SpringDamperContact()):
        System(scenes.model("ball"), 1e-3, contact=law, integrator=integrator)
