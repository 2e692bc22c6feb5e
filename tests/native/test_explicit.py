"""Steps of free motion by Euler and Runge-Kutta in the compiled core: values and derivatives are those of JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from native.cases import needs_core, relative
from trajopt import load_model
from trajopt.dynamics import NoContact, State, System, random_configuration
from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.errors import DerivativeError
from trajopt.models import load_model_from_string

pytestmark = needs_core
DT = 5e-3
# A floating body with a ball joint, a spring, a motor and a servo.
TREE = """<mujoco><worldbody><body name="base" pos="0 0 1"><freejoint/><geom size="0.1 0.2 0.1" type="box" mass="2"/>
<body name="arm" pos="0.1 0 0"><joint name="shoulder" type="ball" damping="0.1"/>
<geom type="capsule" size="0.03" fromto="0 0 0 0.3 0.1 0"/>
<body name="hand" pos="0.3 0.1 0"><joint name="wrist" axis="0 1 0" stiffness="2" damping="0.05" armature="0.01"/>
<geom type="box" size="0.05 0.02 0.03" pos="0.05 0 0"/></body></body></body></worldbody>
<actuator><motor joint="wrist" gear="2"/><position joint="wrist" kp="3"/></actuator></mujoco>"""
LIBRARY = ("cart-pole", "double-cart-pole", "go1")


def pair(name: str, integrator: str) -> tuple[System, System]:
    """The same system with steps by the core and by JAX."""
    model = load_model(name) if name in LIBRARY else load_model_from_string(TREE)
    one, other = (System(model, DT, NoContact(), integrator=integrator, backend=b) for b in ("native", "jax"))
    assert (one.resolved_backend, other.resolved_backend) == ("native", "jax")
    return one, other


def states(system: System, count: int, fast: float = 3.0) -> tuple[State, jax.Array]:
    """Random states and controls, stacked."""
    rng = np.random.default_rng(7)
    q = np.stack([np.asarray(random_configuration(system.model, jax.random.key(k))) for k in range(count)])
    v = fast * rng.normal(size=(count, system.nv))
    return State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(rng.normal(size=(count, system.nu)))


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
@pytest.mark.parametrize("name", [*LIBRARY, "tree"])
def test_a_step_is_that_of_jax(name, integrator):
    one, other = pair(name, integrator)
    # Bodies that turn by half a radian a step, and ones that hardly turn: series and closed form of the rotations.
    for fast in (100.0, 1e-3):
        x, u = states(one, 20, fast)
        got, expected = (jax.jit(jax.vmap(lambda x, u, s=s: s.step(x, u)[0]))(x, u) for s in (one, other))
        assert relative(got.q, expected.q) < 1e-13 and relative(got.v, expected.v) < 1e-12
    y, info = one.step(State(x.q[3], x.v[3]), u[3])  # outside of any compiled function
    assert relative(y.v, expected.v[3]) < 1e-12 and relative(y.q, expected.q[3]) < 1e-13
    _, told = other.step(State(x.q[3], x.v[3]), u[3])
    assert jax.tree.structure(info.unpacked()) == jax.tree.structure(told.unpacked())
    for one_says, other_says in zip(jax.tree.leaves(info.unpacked()), jax.tree.leaves(told.unpacked()), strict=True):
        np.testing.assert_array_equal(one_says, other_says)
        assert one_says.dtype == other_says.dtype


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_the_jacobian_is_the_slope_of_steps(integrator):
    """Of a tree with free and ball joints, in tangent coordinates; servo and springs included. The oracle takes steps alone."""
    system, _ = pair("tree", integrator)
    n = 2 * system.nv
    directions = jnp.eye(n + system.nu)

    def beside(x, u, z):
        start = State(integrate(system.model, x.q, z[: system.nv]), x.v + z[system.nv : n])
        return system.step(start, u + z[n:])[0]

    def change(x, u, z):
        here, there = beside(x, u, -z), beside(x, u, z)
        return jnp.concatenate([difference(system.model, here.q, there.q), there.v - here.v])

    changes = jax.jit(jax.vmap(jax.vmap(change, (None, None, 0)), (0, 0, None)))
    linearize = jax.jit(jax.vmap(lambda x, u: system.linearize(x, u)))
    for fast in (100.0, 1e-3):  # series and closed form of the rotations
        x, u = states(system, 10, fast)
        found = linearize(x, u)
        slopes = [changes(x, u, h * directions) / (2 * h) for h in (1e-3, 5e-4)]
        expected = np.swapaxes((4 * slopes[1] - slopes[0]) / 3, 1, 2)  # Richardson's extrapolation
        for got, wanted in zip(np.concatenate([found.A, found.B], 2), expected, strict=True):
            assert relative(got, wanted) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cart-pole", "tree"])
def test_derivatives_are_those_of_jax(name):
    """By state, control, step and masses, forward and reverse."""
    one, other = pair(name, "rk4")
    x, u = jax.tree.map(lambda a: a[0], states(one, 1))
    ours, theirs = (s.linearize(x, u) for s in (one, other))
    assert relative(ours.A, theirs.A) < 1e-12 and relative(ours.B, theirs.B) < 1e-12
    at = arguments_of_energy(one)
    every = tuple(range(len(at)))
    for one_slope, other_slope in zip(*(jax.jit(jax.grad(energy(s), every))(*at) for s in (one, other)), strict=True):
        assert relative(one_slope, other_slope) < 1e-11


@pytest.mark.parametrize("integrator", ["rk4", "semi-implicit", "moreau"])
@pytest.mark.parametrize("name", ["cart-pole", "tree"])
def test_second_derivatives_are_those_of_jax(name, integrator):
    one, other = pair(name, integrator)
    at = arguments_of_energy(one)
    by_velocity, by_velocity_in_jax = (jax.jit(jax.hessian(energy(s), 1))(*at) for s in (one, other))
    assert relative(by_velocity, by_velocity_in_jax) < 1e-10


def energy(system):
    """A number of the state after a step, as a function of q, v, u, dt and the masses."""

    def total(q, v, u, dt, mass):
        changed = dataclasses.replace(system, dt=dt, model=system.model.replace(mass=mass))
        y, _ = changed.step(State(q, v), u)
        return jnp.vdot(y.v, y.v) + jnp.vdot(y.q, y.q)

    return total


def arguments_of_energy(system):
    x, u = jax.tree.map(lambda a: a[0], states(system, 1))
    return x.q, x.v, u, jnp.asarray(DT), jnp.asarray(system.model.mass)


def test_rollouts_and_policies_of_the_core():
    """A motion under feedback is one call; its states are those of the loop in JAX."""
    one, other = pair("double-cart-pole", "rk4")
    x0, T = one.initial_state(), 50
    us = jnp.asarray(np.random.default_rng(1).normal(size=(T, 1)))
    ours, theirs = (s.rollout(x0, us)[0] for s in (one, other))
    assert relative(ours.q, theirs.q) < 1e-11
    gains, reach = jnp.asarray(0.1 * np.random.default_rng(2).normal(size=(T, 1, 6))), jnp.full(1, 1.5)
    near = State(theirs.q[:-1] + 0.01, theirs.v[:-1])
    found = [follow_policy(s, x0, near.q, near.v, us, gains, -reach, reach) for s in (one, other)]
    for got, expected in zip(*(jax.tree.leaves(each) for each in found), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)


def test_states_that_are_not_finite_are_told():
    one, _ = pair("cart-pole", "rk4")
    x, info = jax.jit(lambda v: one.step(State(jnp.zeros(2), v), jnp.zeros(1)))(jnp.array([0.0, 1e200]))
    assert not np.all(np.isfinite(x.v)) and "non-finite" in str(info.status).lower().replace("_", "-")


def test_a_second_derivative_through_contact_is_refused():
    system = System(load_model("cube"), DT, backend="native")
    x, u = system.initial_state(), jnp.zeros(system.nu)
    with pytest.raises(DerivativeError, match="of steps that solve for impulses, .*DDP, hessian='differenced'"):
        jax.jacfwd(jax.jacfwd(lambda v: system.step(State(x.q, v), u)[0].v))(x.v)
