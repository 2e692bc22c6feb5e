"""Direct calls of `step` and `linearize` through the compiled core: the numbers of compiled functions to the last bit, errors
that name the argument as before, and arrays that stay as they were handed out."""

import concurrent.futures
import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import needs_core

from dynamics import linkages
from trajopt import load_model
from trajopt.dynamics import Linearization, NoContact, RigidContact, SmoothedContact, State, StepInfo, System
from trajopt.errors import NonFiniteError, ShapeError
from trajopt.models import load_model_from_string

pytestmark = needs_core
DT = 1e-3
# Two servos with ranges on a pendulum of two links: their slopes are part of A, and their forces are clipped.
SERVOS = """<mujoco><worldbody><geom type="plane" size="1 1 0.1"/>
  <body pos="0 0 0.5"><joint name="a" axis="0 1 0" armature="0.1"/><geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
    <body pos="0 0 -0.3"><joint name="b" axis="0 1 0" armature="0.1"/><geom type="sphere" size="0.2"/></body></body></worldbody>
  <actuator><position joint="a" kp="20" kv="1" forcerange="-5 5"/><motor joint="b" gear="2"/></actuator></mujoco>"""
SYSTEMS = {
    "half-cheetah": lambda: System(load_model("half-cheetah"), DT, backend="native"),
    "go1": lambda: System(load_model("go1"), DT, backend="native"),
    "drone, whose rotors share degrees of freedom": lambda: System(load_model("drone"), DT, backend="native"),
    "servos": lambda: System(load_model_from_string(SERVOS), DT, backend="native"),
    "moreau": lambda: System(load_model("hopper"), DT, integrator="moreau", backend="native"),
    "smoothed": lambda: System(load_model("half-cheetah"), DT, contact=SmoothedContact(), kappa=200.0, backend="native"),
    "no contact": lambda: System(load_model("ur5"), DT, contact=NoContact(), backend="native"),
    "runge-kutta": lambda: System(load_model("double-cart-pole"), DT, contact=NoContact(), integrator="rk4", backend="native"),
    "euler, ball joints": lambda: System(load_model("drone"), DT, contact=NoContact(), integrator="euler", backend="native"),
    "implicit damping": lambda: System(load_model("go1"), DT, implicit_damping=True, backend="native"),
    "a closed loop": lambda: System(load_model_from_string(linkages.THREE), DT, contact=RigidContact(), backend="native"),
}  # fmt: skip


def draws(system: System, count: int, seed: int = 0) -> list[tuple[State, jax.Array]]:
    """States about the home pose or the default one, and controls."""
    frames, rng = system.model.keyframes, np.random.default_rng(seed)
    home = np.asarray(frames.get("home", system.model.q_default))
    drawn = []
    for _ in range(count):
        q, v = home + 0.01 * rng.normal(size=system.nq), rng.normal(size=system.nv)
        drawn.append((State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(rng.normal(size=system.nu))))
    return drawn


def as_numpy(x: State, u) -> tuple[State, np.ndarray]:
    return State(np.array(x.q), np.array(x.v)), np.array(u)


def same(one, other) -> None:
    one, other = jax.tree.leaves(one), jax.tree.leaves(other)
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_direct_call_has_the_bits_of_a_compiled_function(name):
    system = SYSTEMS[name]()
    assert system.resolved_backend == "native"
    step, linearize = jax.jit(lambda x, u: system.step(x, u)), jax.jit(lambda x, u: system.linearize(x, u))
    for x, u in draws(system, 5):
        expected = step(x, u), linearize(x, u)
        for arguments in ((x, u), (x, u), as_numpy(x, u)):  # the first call of all takes another way than those after it
            same(system.step(*arguments), expected[0])
            found = system.linearize(*arguments)
            assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
            same(found, expected[1])


@pytest.mark.parametrize("method", ["step", "linearize"])
@pytest.mark.parametrize("convert", [jnp.asarray, np.asarray])
def test_what_a_known_system_refuses_is_named_as_by_an_unknown_one(method, convert):
    def wrong(system: System):
        """Arguments and the error that each is to give."""
        q, v, u = np.array(system.initial_state("home").q), np.zeros(system.nv), np.zeros(system.nu)
        for value in (np.nan, np.inf, -np.inf):
            for k, (name, good) in enumerate({"x.q": q, "x.v": v, "u": u}.items()):
                bad = good.copy()
                bad[-1] = value
                arrays = [convert(bad if j == k else array) for j, array in enumerate((q, v, u))]
                yield arrays, NonFiniteError, rf"{name}\[{len(good) - 1}\] is {value}; every entry must be finite"
        yield [convert(a) for a in (q[:-1], v, u)], ShapeError, r"x\.q has shape"
        yield [convert(a) for a in (q, np.zeros((2, v.size)), u)], ShapeError, r"x\.v has shape .*jax\.vmap"
        yield [convert(a) for a in (q, v, np.zeros(u.size + 1))], ShapeError, r"u has shape"
        yield [jnp.asarray(q), jnp.asarray(v), jnp.asarray(u, jnp.float32)], ShapeError, "u is float32"

    system = SYSTEMS["go1"]()
    x, u = system.initial_state("home"), jnp.zeros(system.nu)
    for known in (False, True):
        if known:
            getattr(system, method)(x, u)
        for (q, v, control), error, message in wrong(system):
            with pytest.raises(error, match=message):
                getattr(system, method)(State(q, v), control)


def test_what_was_handed_out_stays_as_it_is():
    system = SYSTEMS["go1"]()
    kept, copies = [], []
    for k, (x, u) in enumerate(draws(system, 20)):
        x, u = as_numpy(x, u) if k % 2 else (x, u)
        for result in (system.step(x, u), system.linearize(x, u)):
            kept.append(result)
            if k % 4 < 2:  # others are read for the first time in the end
                copies.append([np.array(leaf) for leaf in jax.tree.leaves(result)])
            else:
                copies.append([np.array(leaf) for leaf in jax.tree.leaves(_again(system, x, u, result))])
        if k % 2:
            x.q[:], x.v[:], u[:] = 7.0, 7.0, 7.0  # the caller's arrays are the caller's
    for result, before in zip(kept, copies, strict=True):
        same(result, before)


def _again(system: System, x: State, u, like):
    return system.linearize(x, u) if isinstance(like, Linearization) else system.step(x, u)


def test_threads_have_the_bits_of_one():
    systems = [SYSTEMS[name]() for name in ("half-cheetah", "go1", "servos", "half-cheetah")]
    inputs = [draws(system, 30, seed) for seed, system in enumerate(systems)]

    def results(k: int) -> list:
        """Read while other threads call."""
        found = [(systems[k].step(x, u), systems[k].linearize(x, u)) for x, u in inputs[k] for _ in range(3)]
        return [np.array(leaf) for leaf in jax.tree.leaves(found)]

    alone = [results(k) for k in range(len(systems))]
    with concurrent.futures.ThreadPoolExecutor(len(systems)) as pool:
        for together, expected in zip(pool.map(results, range(len(systems))), alone, strict=True):
            same(together, expected)


def test_a_linearisation_is_whole_whatever_is_done_to_it():
    """Its report is read later: by JAX, by copies and by dataclasses alike."""
    system = SYSTEMS["half-cheetah"]()
    (x, u), *_ = draws(system, 1)
    expected = jax.jit(lambda x: system.linearize(x, u))(x)
    system.linearize(x, u)
    for use in (
        lambda y: y,
        copy.copy,
        copy.deepcopy,
        lambda y: pickle.loads(pickle.dumps(y)),
        lambda y: jax.tree.map(lambda leaf: leaf, y),
        lambda y: dataclasses.replace(y, columns=None),
        jax.jit(lambda y: y),
        jax.block_until_ready,
    ):
        found = use(system.linearize(x, u))
        assert isinstance(found, Linearization) and isinstance(found.info, StepInfo)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        same(found, expected)
        same(found.info.unpacked(), expected.info.unpacked())
        np.testing.assert_array_equal(found.one_sided, expected.one_sided)
    assert "x_next" in repr(system.linearize(x, u))
    with pytest.raises(AttributeError, match="'PackedStepInfo' has no attribute 'contact'"):
        system.linearize(x, u).info.contact  # noqa: B018


def test_a_report_that_nobody_reads_is_not_made():
    """The core looks for the closest contacts where they are read, and gives the same state and head either way."""
    system = SYSTEMS["half-cheetah"]()
    (x, u), *_ = draws(system, 1)

    def steps(read):
        def body(x, _):
            x, info = system.step(x, u)
            return x, (info.status, info.contacts.distance if read else x.v)

        return jax.jit(lambda x: jax.lax.scan(body, x, None, 3))

    kinds = [[f"whole = {kind}" in steps(read).lower(x).as_text() for kind in (0, 1)] for read in (False, True)]
    assert kinds == [[True, False], [False, True]]
    (end, (status, _)), (end_read, (status_read, _)) = steps(False)(x), steps(True)(x)
    same((end, status), (end_read, status_read))


def test_reports_that_are_asked_for_later_are_those_of_the_steps():
    """Of a rollout and of a call, whatever its owner has written into the arrays since."""
    system = SYSTEMS["half-cheetah"]()
    (x, u), *_ = draws(system, 1)
    us = jnp.stack([u, -u, 2 * u])
    same(system.rollout(x, us), jax.jit(system.rollout)(x, us))
    _, expected = system.step(x, u)
    x, u = as_numpy(x, u)
    _, info = system.step(x, u)
    x.q[:], u[:] = 0, 0
    same(info.unpacked(), expected.unpacked())
