"""Penetrations that friction jams are kept (docs/contact-semantics.md, "Contacts that can jam"), in both implementations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import needs_core

from dynamics.contact.scenes import judged_slopes
from trajopt.dynamics.contact.jam import jams
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models import load_model_from_string
from trajopt.result import Status

DT, ERP, RADIUS = 1e-3, 0.2, 0.1
SLOPE = np.pi / 3  # of the rail, from the vertical: jams from mu = tan(30 degrees) on
BACKENDS = ["jax", pytest.param("native", marks=needs_core)]

RAIL = f"""<mujoco model="rail"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="MU"/>
  <body name="ball"><joint name="rail" type="slide" axis="{np.sin(SLOPE)} 0 {np.cos(SLOPE)}"/>
    <geom type="sphere" size="{RADIUS}" mass="2" friction="MU"/></body>
</worldbody><actuator><motor joint="rail"/></actuator></mujoco>"""

# A leg on two hinges, whose foot cannot move along the line to them.
LEG = """<mujoco model="leg"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="0.8"/>
  <body name="hip" pos="0 0 0.5"><joint name="roll" axis="1 0 0"/><geom type="sphere" size="0.01" mass="0.3"/>
    <body name="leg"><joint name="pitch" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -0.45" size="0.01" mass="1"/>
      <body name="foot" pos="0 0 -0.45"><geom type="sphere" size="0.06" mass="0.2" friction="0.8"/></body></body></body>
</worldbody><actuator><motor joint="roll"/><motor joint="pitch"/></actuator></mujoco>"""


step = jax.jit(lambda system, x, u: system.step(x, u))  # compiled once a model


def rail(mu: float, backend: str) -> System:
    return System(load_model_from_string(RAIL.replace("MU", str(mu))), DT, RigidContact(erp=ERP), backend=backend)


def leg(backend: str) -> System:
    return System(load_model_from_string(LEG), DT, RigidContact(erp=ERP), backend=backend)


def at_depth(depth: float) -> State:
    """The ball on the rail at rest, `depth` (m) in the floor."""
    return State(np.array([(RADIUS - depth) / np.cos(SLOPE)]), np.zeros(1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_jammed_contact_stays_where_it_is(backend):
    """No force of the floor drives the ball up the rail: it stays until it is pulled out; with less friction it comes out."""
    jammed, slips = rail(1.0, backend), rail(0.5, backend)
    for depth in (1e-6, 1e-3, 2e-2):
        x, info = step(jammed, at_depth(depth), np.zeros(1))
        assert info.status == Status.solved and abs(x.v[0]) < 1e-12
        x, info = step(slips, at_depth(depth), np.zeros(1))
        assert info.status == Status.solved
        np.testing.assert_allclose(x.v[0] * np.cos(SLOPE), min(ERP * depth / DT, 1.0), rtol=1e-9)
    pulled, _ = step(jammed, at_depth(1e-3), np.array([30.0]))
    np.testing.assert_allclose(pulled.v[0], DT * (30.0 / 2 - 9.81 * np.cos(SLOPE)), rtol=1e-9)
    # A gap is none of this, nor is an impact.
    above, _ = step(jammed, State(at_depth(-1e-4).q, np.array([-1.0])), np.zeros(1))
    np.testing.assert_allclose(above.v[0] * np.cos(SLOPE), -1e-4 / DT, rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_depth_has_no_slope(backend):
    for system, slope in ((rail(1.0, backend), 0.0), (rail(0.5, backend), -ERP / DT)):
        np.testing.assert_allclose(system.linearize(at_depth(1e-3), np.zeros(1)).A[1, 0], slope, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leg_without_a_knee_is_solved_in_the_ground(backend):
    """Roll and pitch cannot lengthen the leg: with its foot in the ground it is solved at any speed and torque."""
    system, rng = leg(backend), np.random.default_rng(0)
    for k in range(60):
        x = State(rng.uniform(-0.12, 0.12, 2), rng.normal(size=2) * 10.0 ** rng.uniform(-3, 0.5))
        _, info = step(system, x, 3 * rng.normal(size=2))
        assert info.status == Status.solved, k


@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.slow), BACKENDS[1]])
def test_its_slopes_are_those_of_the_step(backend):
    """Sliding foot in the ground, against Ridders."""
    x, u = State(np.array([0.08, -0.05]), np.array([1.3, 0.9])), np.array([0.4, -0.2])
    judged_slopes(leg(backend), x, u, (1e-3, 1e-3, 1e-3, 1e-3))


@needs_core
@pytest.mark.slow
def test_both_implementations_agree():
    rng = np.random.default_rng(1)
    for make in (leg, lambda backend: rail(0.57, backend), lambda backend: rail(0.58, backend)):  # about tan(30 degrees)
        one, other = make("jax"), make("native")
        n = one.nv
        for _ in range(20):
            q = rng.uniform(-0.12, 0.12, n) if n == 2 else at_depth(rng.uniform(-1e-3, 3e-3)).q
            x, u = State(q, rng.normal(size=n)), rng.normal(size=n)
            (a, info), (b, _) = step(one, x, u), step(other, x, u)
            assert info.status == Status.solved
            np.testing.assert_allclose(a.v, b.v, atol=1e-9)


def test_the_law_of_jamming_against_a_search():
    """Random rows of rank one to three: whether the null space of J^T meets the cone, by its singular vectors."""
    rng = np.random.default_rng(2)
    J, mu, expected = [], [], []
    for k in range(600):
        rank = k % 4
        rows = rng.normal(size=(3, rank)) @ rng.normal(size=(rank, 7)) * 10.0 ** rng.uniform(-2, 2)
        friction = 10.0 ** rng.uniform(-1.5, 1.5)
        null = np.linalg.svd(rows)[0][:, rank:]  # (3, 3 - rank)
        angle = np.linspace(0, np.pi, 20_001)
        d = null if rank >= 2 else null[:, :1] * np.cos(angle) + null[:, 1:2] * np.sin(angle) if rank else np.eye(3)[:, 2:]
        margin = (friction * np.abs(d[2]) - np.hypot(d[0], d[1])).max(initial=-1.0)
        if abs(margin) < 1e-3:
            continue
        J.append(rows), mu.append(friction), expected.append(margin > 0)
    found = jams(jnp.asarray(np.concatenate(J)), jnp.asarray(mu))
    np.testing.assert_array_equal(found, expected)
    assert 0.2 < np.mean(expected) < 0.8


@pytest.mark.slow
def test_what_is_free_never_jams():
    """A body that nothing holds is pushed out whatever its friction."""
    free = RAIL.replace(f'<joint name="rail" type="slide" axis="{np.sin(SLOPE)} 0 {np.cos(SLOPE)}"/>', "<freejoint/>")
    model = load_model_from_string(free.replace("MU", "50").replace('<actuator><motor joint="rail"/></actuator>', ""))
    system = System(model, DT, RigidContact(erp=ERP))
    for backend in ("jax", system.resolved_backend):
        x = State(np.array([0, 0, RADIUS - 1e-3, 1, 0, 0, 0]), np.zeros(6))
        moved, _ = step(dataclasses.replace(system, backend=backend), x, np.zeros(0))
        np.testing.assert_allclose(moved.v[2], ERP * 1e-3 / DT, rtol=1e-9)
