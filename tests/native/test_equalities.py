"""Equality constraints in the compiled core: against a dense solution of their problem, Ridders and the JAX implementation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.linkages import BARS, MIXED, SDF, SPATIAL, THREE

from native.cases import DT, needs_core
from trajopt.dynamics import NoContact, RigidContact, State, System
from trajopt.dynamics.contact.closures import closure_rows
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

pytestmark = needs_core
KINDS = ("connect", "weld", "hinge", "slide")


@functools.cache
def model(text, *parts):
    return load_model_from_string(text % parts if parts else text)


def tied(kind):
    """`SPATIAL` with a tie of another kind."""
    spatial = model(SPATIAL)
    tie, anchor = spatial.topology.closures
    closures = (dataclasses.replace(tie, kind=kind), anchor)
    return spatial.replace(topology=dataclasses.replace(spatial.topology, closures=closures))


def loose(some):
    """The model without its equality constraints."""
    free = dataclasses.replace(some.topology, closures=(), couplings=())
    arms = np.zeros((0, 2, some.nv))
    return some.replace(
        topology=free, closure_rotation=np.zeros((0, 2, 3, 3)), closure_position=np.zeros((0, 2, 3)), coupling_arms=arms,
        coupling_reference=np.zeros((0, 2)), coupling_polynomial=np.zeros((0, 5)),
    )  # fmt: skip


def system_of(some, law=None, **options) -> System:
    return System(some, DT, law or RigidContact(), backend="native", **options)


def moved(some, seed, by=0.1, speed=1.0):
    """A state near the default configuration, random controls."""
    rng = np.random.default_rng(seed)
    q = integrate(some.to_device(), jnp.asarray(some.q_default), jnp.asarray(by * rng.normal(size=some.nv)))
    return State(q, jnp.asarray(speed * rng.normal(size=some.nv))), rng.normal(size=some.nu)


@jax.jit
def equations(some, q):
    """(e, J, M) at q."""
    return *closure_rows(some, kinematics(some, q), q), mass_matrix(some, q)


def dense(some, q, free, erp):
    """(impulses, v+, number of redundant rows): P J v+ + erp P e / dt = 0, the impulse of least norm; P leaves out singular
    values of J below 1e-4, its rows at length one."""
    e, J, M = (np.asarray(a) for a in equations(some.to_device(), q))
    length = np.linalg.norm(J, axis=1)
    length[length == 0] = 1
    U, s, _ = np.linalg.svd(J / length[:, None])
    s = np.r_[s, np.zeros(len(e) - len(s))]
    null, _ = np.linalg.qr(U[:, s < 1e-4] / length[:, None])
    P = np.eye(len(e)) - null @ null.T
    J, e = P @ J, P @ e
    MJ = np.linalg.solve(M, J.T)
    impulse = -np.linalg.pinv(J @ MJ, rcond=1e-9) @ (J @ free + erp / DT * e)
    return impulse, free + MJ @ impulse, int(np.sum(s < 1e-4))


@pytest.mark.parametrize("integrator", ["semi-implicit", "moreau"])
@pytest.mark.parametrize("kind", [*KINDS, "couplings"])
def test_impulses_solve_the_dense_problem(kind, integrator):
    """Open loops, independent rows; v_free is that of the model without loops."""
    some = model(MIXED) if kind == "couplings" else tied(kind)
    law = NoContact(erp=0.3)
    x, u = moved(some, 1)
    y, info = system_of(some, law, integrator=integrator).step(x, u)
    free, _ = system_of(loose(some), law, integrator=integrator).step(x, u)
    q = x.q if integrator == "semi-implicit" else integrate(some.to_device(), x.q, 0.5 * DT * x.v)
    impulse, v, redundant = dense(some, q, np.asarray(free.v), 0.3)
    assert info.status == Status.solved and not info.degenerate and not redundant
    np.testing.assert_allclose(info.impulse, impulse, atol=1e-9 * np.abs(impulse).max())
    np.testing.assert_allclose(y.v, v, atol=1e-9 * np.abs(v).max())


def test_redundant_rows_share_the_least_impulse():
    """Three rockers on a coupler that swings, the loops open by 1e-5: rows that nearly depend on each other are left
    out, and the impulse is the shortest."""
    some, law = model(THREE), RigidContact()
    system = system_of(some)
    begin = system.initial_state()
    xs, infos = system.rollout(State(begin.q, jnp.array([1.0, -1.0, 1.0, 1.0])), np.zeros((50, some.nu)))
    assert np.all(infos.status == Status.solved) and np.all(infos.degenerate)
    x, u = State(xs.q[-1] + 2e-5 * np.array([1.0, -0.5, 0.3, 0.8]), xs.v[-1]), np.zeros(some.nu)
    free, _ = system_of(loose(some)).step(x, u)
    impulse, v, redundant = dense(some, x.q, np.asarray(free.v), law.erp)
    assert redundant == 3  # two hinges' directions across the plane, and the third rocker
    y, info = system.step(x, u)
    np.testing.assert_allclose(y.v, v, atol=1e-9 * np.abs(v).max())
    np.testing.assert_allclose(info.impulse, impulse, atol=1e-7 * np.abs(impulse).max())


def test_every_door_gives_the_same_step():
    """Single steps, a rollout, a batch, and a state that is not finite."""
    system = system_of(tied("weld"))
    x, u = moved(system.model, 3, by=1e-3)
    us = np.stack([u, -u, 2 * u])
    xs, infos = system.rollout(x, us)
    many, reports = jax.jit(jax.vmap(system.step, (None, 0)))(x, jnp.asarray(us))
    for k, control in enumerate(us):
        one, info = system.step(x, control)
        np.testing.assert_array_equal(many.v[k], one.v)
        np.testing.assert_array_equal(reports.unpacked().impulse[k], info.impulse)
    y = x
    for k, control in enumerate(us):
        y, info = system.step(y, control)
        np.testing.assert_allclose(xs.v[k + 1], y.v, rtol=0, atol=1e-12)
    assert info.impulse.shape == (9,) and np.all(infos.status == Status.solved)
    poisoned = jax.jit(system.step)(State(x.q.at[9].set(jnp.nan), x.v), u)[1]
    assert poisoned.status == Status.non_finite and system.step(x, u)[1].status == Status.solved


def boxes(friction: float, speed: float, turn: float):
    """Two welded boxes that tip, slide, turn and stand on the floor, with friction that lets all four corners slide as well."""
    some = model(MIXED)
    some = some.replace(pair_friction=np.full_like(np.asarray(some.pair_friction), friction))
    q = jnp.asarray(some.q_default).at[2].add(-1e-4).at[9].add(-1.1e-4)
    v = jnp.zeros(some.nv).at[jnp.array([0, 6])].set(speed).at[jnp.array([5, 11])].set(turn).at[12].set(0.3)
    return some, State(q, v), np.zeros(some.nu)


def opened(some, seed, by=0.1):
    return some, *moved(some, seed, by)


OTHERS = {
    "linkage, closed": lambda: opened(model(BARS, "", ""), 4, 0.0),
    "three rockers": lambda: opened(model(THREE), 6, 1e-6),
    **{f"SDF, {kind}": lambda kind=kind: opened(model(SDF, kind), 5, 1e-3) for kind in ("revolute", "ball")},
    **{f"{kind} with mimic joints": lambda kind=kind: opened(tied(kind), 7) for kind in KINDS},
    **{f"boxes {case}": lambda case=case: boxes(*case) for case in ((0.4, 0.5, 0.3), (0.4, 0, 0), (0.1, 0.5, 0), (0.4, 0.05, 2))},
}
