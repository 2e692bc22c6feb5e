"""Push-outs and bounces that contradict the rows give way: docs/contact-semantics.md, "Where push-outs contradict each other"."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import needs_core

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import State, System
from trajopt.models import load_model_from_string
from trajopt.result import Status

BACKENDS = ["jax", pytest.param("native", marks=needs_core)]
SLOW_IN_JAX = [pytest.param("jax", marks=pytest.mark.slow), BACKENDS[1]]
DT = 1e-3

# A box on a slide whose lower limit lies behind a wall that the box touches at q = 0, or overlaps at q > 0.
WALL = """<mujoco><option gravity="0 0 0"/><worldbody><geom type="box" size=".1 .1 .1" pos=".2 0 0"/><body>
  <joint type="slide" axis="1 0 0" range=".3 1"/><geom type="box" size=".1 .1 .1" mass="1"/></body></worldbody></mujoco>"""
# A hinge beyond its limit, whose ball the floor stops on the way back.
HINGE = """<mujoco><option gravity="0 0 -9.81"/><worldbody><geom type="plane" size="1 1 1" pos="0 0 -0.05"/>
  <body><joint type="hinge" axis="0 1 0" range="10 90"/><geom type="sphere" size="0.05" pos="0.5 0 0" mass="2"/></body>
</worldbody></mujoco>"""
# A ball on a rail between two walls 0.2 m apart, which it both overlaps.
SQUEEZED = """<mujoco><option gravity="0 0 0"/><worldbody><geom type="box" size=".1 1 1" pos="-.195 0 0"/>
  <geom type="box" size=".1 1 1" pos=".195 0 0"/>
  <body><joint type="slide" axis="1 0 0"/><geom type="sphere" size=".1" mass="1"/></body></worldbody></mujoco>"""
# The same ball, which touches both walls.
BOUNCING = SQUEEZED.replace(".195", ".2")

step = jax.jit(lambda system, x: system.step(x, jnp.zeros(system.nu)))  # compiled once a model


def system_of(scene: str, backend: str, **options) -> System:
    return System(load_model_from_string(scene), DT, RigidContact(**options), backend=backend)


def at(q: float, v: float = 0.0) -> State:
    return State(np.array([q]), np.array([v]))


@pytest.mark.parametrize("backend", SLOW_IN_JAX)
@pytest.mark.parametrize(
    "scene, q",
    [(WALL, 0.0), (WALL, 1e-3), (HINGE, 0.0), (SQUEEZED, 0.0)],
    ids=["limit against a wall", "limit against a wall it overlaps", "limit against the floor", "between two walls"],
)
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.StartWarning")
def test_contradicting_push_outs_are_dropped(scene, q, backend):
    """The bodies stay where they are: both rows forbid to move further in, and zero velocity obeys them."""
    x, info = step(system_of(scene, backend), at(q))
    assert info.status == Status.solved and bool(info.push_out_dropped)
    np.testing.assert_allclose(x.v, 0.0, atol=1e-12)
    assert np.abs(info.impulse).max() < 1.0  # what weight asks for, not a stress that grows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.StartWarning")
def test_push_outs_without_a_contradiction_stay(backend):
    """A joint beyond its limit comes back at `push_out_speed` where nothing is in its way."""
    x, info = step(system_of(WALL.replace('pos=".2 0 0"', 'pos="2 0 0"'), backend), at(0.0))
    assert info.status == Status.solved and not bool(info.push_out_dropped)
    np.testing.assert_allclose(x.v, 1.0, rtol=1e-12)


@pytest.mark.parametrize("backend", SLOW_IN_JAX)
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.StartWarning")
def test_a_dropped_push_out_has_no_slope(backend):
    """The floor holds the ball at v+ = 0 whatever its depth is, so that v+ does not depend on the state, and q+ is q."""
    system = system_of(HINGE, backend)
    derivative = system.linearize(at(1e-3), np.zeros(system.nu))
    assert bool(derivative.info.push_out_dropped)
    np.testing.assert_allclose(derivative.A, [[1.0, 0.0], [0.0, 0.0]], atol=1e-10)
    slope = jax.jacfwd(lambda q: system.step(State(q, jnp.zeros(1)), jnp.zeros(system.nu))[0].v)(jnp.full(1, 1e-3))
    np.testing.assert_allclose(slope, 0.0, atol=1e-10)


@pytest.mark.parametrize("backend", SLOW_IN_JAX)
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.StartWarning")
def test_a_batch_gives_the_single_answers(backend):
    """Beside a sample whose push-outs contradict each other the others keep theirs."""
    system = system_of(WALL, backend)
    q = jnp.array([[0.0], [0.35], [-0.2], [1e-3]])
    batch = jax.jit(jax.vmap(lambda q: step(system, State(q, jnp.zeros(1)))))(q)
    assert np.asarray(batch[1].push_out_dropped).tolist() == [True, False, False, True]
    for k in range(len(q)):
        single = step(system, State(q[k], jnp.zeros(1)))
        np.testing.assert_allclose(batch[0].v[k], single[0].v, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounces_that_contradict_each_other_are_dropped(backend):
    """A ball that touches both walls and moves at one of them cannot bounce off it through the other: it stops."""
    model = load_model_from_string(BOUNCING)
    model = model.replace(pair_restitution=jnp.ones_like(model.pair_restitution))
    system = System(model, DT, RigidContact(), backend=backend)
    x, info = step(system, at(0.0, 0.5))
    assert info.status == Status.solved and bool(info.push_out_dropped)
    np.testing.assert_allclose(x.v, 0.0, atol=1e-12)
