"""Implicit damping of joints: MuJoCo's Euler step, stability, derivatives, and the warning without it."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from native.cases import needs_core
from ridders import ridders

from dynamics.contact import scenes
from trajopt.dynamics import CompliantContact, DampingWarning, NoContact, RigidContact, State, System
from trajopt.errors import OptionError
from trajopt.models import load_model_from_string

DT = 5e-3
BACKENDS = ["jax", pytest.param("native", marks=needs_core)]

# A light hand on a heavy arm, its damper beyond what an explicit step bears: dt d / I is 5.4, and a spring besides.
ARM = """<mujoco model="arm"><compiler angle="radian"/><option timestep="0.005" integrator="Euler"/><worldbody>
  <geom name="floor" type="plane" size="1 1 1"/>
  <body pos="0 0 0.5"><joint name="shoulder" axis="0 1 0" damping="0.5"/>
    <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="1" contype="0" conaffinity="0"/>
    <body pos="0.3 0 0"><joint name="hand" axis="0 1 0" damping="0.4" STIFF/>
      <geom type="capsule" fromto="0 0 0 0.1 0 0" size="0.01" mass="0.1" contype="0" conaffinity="0"/>
      <body pos="0.1 0 0"><geom type="sphere" size="0.02" mass="0.001"/></body></body></body>
</worldbody><actuator><motor joint="shoulder"/><motor joint="hand"/></actuator></mujoco>"""
SPRING = 'stiffness="50" springref="0.2"'


def arm(stiff: str = SPRING, implicit: bool = True, contact=None, backend: str = "auto") -> System:
    model = load_model_from_string(ARM.replace("STIFF", stiff))
    law = RigidContact() if contact is None else contact
    return System(model, DT, law, backend=backend, implicit_damping=implicit)


def drawn(seed: int) -> tuple[State, np.ndarray]:
    rng = np.random.default_rng(seed)
    return State(rng.uniform(-0.5, 0.5, 2), rng.normal(size=2)), rng.normal(size=2)


def test_a_step_with_damping_is_mujocos():
    """Its Euler integrator treats damping, not springs, in the same way."""
    system = arm("", contact=NoContact())
    peer = mujoco.MjModel.from_xml_string(ARM.replace("STIFF", ""))
    for seed in range(5):
        x, u = drawn(seed)
        data = mujoco.MjData(peer)
        data.qpos[:], data.qvel[:], data.ctrl[:] = x.q, x.v, u
        mujoco.mj_step(peer, data)
        ours, _ = system.step(x, u)
        np.testing.assert_allclose(ours.v, data.qvel, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(ours.q, data.qpos, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_stays_bounded_where_the_explicit_step_does_not(backend):
    x, _ = drawn(0)
    ends = []
    for implicit in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DampingWarning)
            xs, _ = arm(implicit=implicit, contact=NoContact(), backend=backend).rollout(x, np.zeros((400, 2)))
        ends.append(np.abs(np.asarray(xs.v)))
    assert ends[0].max() < 100 and ends[0][-1].max() < 1e-3
    assert not ends[1].max() < 1e6


@pytest.mark.parametrize("law", [
    NoContact(), pytest.param(RigidContact(), marks=pytest.mark.slow),
    pytest.param(CompliantContact(tangential_damping=1e4), marks=pytest.mark.slow),
])  # fmt: skip
def test_slopes_are_those_of_the_step(law):
    """By state, control and parameters, against Ridders; damping and stiffness act as forces and beside the armature."""
    system = arm(contact=law)
    x, u = State(np.array([1.05, 0.4]), np.array([0.6, -0.3]), system.initial_state().contact), np.array([0.2, 0.1])
    scenes.judged_slopes(system, x, u, np.full(4, 1e-3), dict.fromkeys(("armature", "damping", "stiffness"), 1e-3))
    step = jax.jit(lambda system, x, u: system.step(x, u)[0].v)
    by_dt = jax.jvp(lambda dt: step(dataclasses.replace(system, dt=dt), x, u), (jnp.asarray(DT),), (jnp.asarray(1.0),))[1]
    longer = ridders(lambda h: np.asarray(step(dataclasses.replace(system, dt=DT + h), x, u)), 1e-4).value
    np.testing.assert_allclose(by_dt, longer, rtol=1e-6)


def test_a_step_too_large_names_the_joint():
    with pytest.warns(DampingWarning, match=r"'hand' \(5\.4\).*implicit_damping=True"):
        arm("", implicit=False)
    with pytest.warns(DampingWarning, match=r"'hand' \(5\.4\)"):
        dataclasses.replace(arm(""), implicit_damping=False)
    with pytest.warns(DampingWarning, match=r"'hand' \(20\.\d+\)"):
        arm('stiffness="300"', implicit=False)
    model = load_model_from_string(ARM.replace("STIFF", ""))
    System(model, 2e-4)
    jax.eval_shape(lambda dt: System(model, dt).step(*drawn(0))[0].v, 1e-3)  # nothing is known of a traced step


def test_wrong_options():
    with pytest.raises(OptionError, match="implicit_damping is 'yes', expected True or False"):
        arm(implicit="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="implicit_damping is for integrator 'semi-implicit' or 'moreau', not 'rk4'"):
        dataclasses.replace(arm(contact=NoContact()), integrator="rk4")
