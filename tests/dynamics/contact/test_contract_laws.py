"""One contract for every contact law: jit and vmap agree, single precision keeps its accuracy, and nothing is ever NaN.

A ball and a capsule, free, over a floor, and a slider with a limit and dry friction: four contacts, one limit, one dry row.
The states hold what makes formulas divide by zero: shapes that touch exactly, centres that coincide, centres in the floor's
surface, a joint at its limit, no velocity at all, no deformation, and deep overlap at high speed.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.dynamics import (
    BoxedLCP,
    CompliantContact,
    NoContact,
    RigidContact,
    SmoothedContact,
    SpringDamperContact,
    State,
    System,
)
from trajopt.dynamics.contact.laws import ContactLaw, ForceLaw, NormalOffset, PointForces, Softening
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

SCENE = """<mujoco model="contract"><worldbody>
  <geom name="floor" type="plane" size="0 0 1" friction="0.5"/>
  <body name="ball" pos="0 0 0.1"><freejoint/><geom type="sphere" size="0.1" mass="1" friction="0.5"/></body>
  <body name="rod" pos="0.5 0 0.1"><freejoint/>
    <geom type="capsule" size="0.1 0.15" mass="2" friction="0.5"/></body>
  <body name="slider" pos="0 2 5"><joint type="slide" axis="1 0 0" limited="true" range="-0.5 0.5" frictionloss="0.3"/>
    <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
</worldbody></mujoco>"""
DT, BATCH, MANY = 1e-3, 256, 10_000
EXACT = np.array([np.sqrt(0.5), 0, np.sqrt(0.5), 0])  # the capsule's axis along x: both ends at one height



@dataclasses.dataclass(frozen=True, kw_only=True)
class Cushioned(ContactLaw):
    """A law of this file: nothing is pushed out, nothing bounces, and contacts give way by a share of their own G_jj."""

    yielding: float = 0.25

    has_closed_form: ClassVar[bool] = False

    def normal_offset(self, distance, velocity, restitution, dt):
        apart = distance > 0
        return NormalOffset(jnp.where(apart, distance / dt, 0.0), jnp.ones_like(apart), jnp.zeros_like(apart))

    def softening(self, distance, exists, kappa):
        factor = jnp.full_like(distance, self.yielding)
        return Softening(factor, exists, 1.0 / (1.0 + factor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnet(ContactLaw):
    """A law of this file with the closed-form Jacobian: penetration is pushed out in proportion to its square root."""

    def normal_offset(self, distance, velocity, restitution, dt):
        depth = jnp.where(distance < 0, -distance, 0.0)
        deep = depth > 0
        out = -jnp.where(deep, jnp.sqrt(jnp.where(deep, depth, 1.0)), 0.0)
        apart = distance > 0
        return NormalOffset(jnp.where(apart, distance / dt, out), jnp.ones_like(apart), jnp.zeros_like(apart))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spring(ForceLaw):
    """A law of this file at force level: a linear spring without friction."""

    def force(self, depth, closing, slip, deformation, friction):
        touching = depth > 0
        return PointForces(1e4 * jnp.where(touching, depth, 0.0), jnp.zeros_like(slip), jnp.zeros_like(touching), None)


LAWS = {
    "rigid": RigidContact(),
    "rigid, detect": RigidContact(gap="detect"),
    "boxed": BoxedLCP(),
    "smoothed": SmoothedContact(),
    "smoothed, swept": SmoothedContact(sweeps=10),
    "compliant": CompliantContact(),
    "spring-damper": SpringDamperContact(),
    "none": NoContact(),
    "own, cushioned": Cushioned(),
    "own, magnet": Magnet(),
    "own, spring": Spring(),
}
LONG = ("rigid, detect", "smoothed, swept", "own, magnet")
# Every law is in the quick tests, in both precisions; other options of one are in the slow ones.
EACH = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in LAWS]
KINDS = (
    "random",
    "resting",
    "ball in the rod",
    "ball at the rod's end",
    "touching each other",
    "still",
    "in the floor",
    "fast",
)


@functools.cache
def system(name: str, dtype: str = "float64") -> System:
    return System(load_model_from_string(SCENE).to_device(jnp.dtype(dtype)), DT, contact=LAWS[name])


def states(name: str, count: int, seed: int = 0, dtype: str = "float64") -> State:
    """A batch of states, the kinds of `KINDS` in turn; at half of them nothing moves and nothing is deformed."""
    rng = np.random.default_rng(seed)
    kind = np.arange(count) % len(KINDS)
    turn = rng.normal(size=(2, count, 4))
    turn /= np.linalg.norm(turn, axis=-1, keepdims=True)
    ball, rod = rng.uniform([-0.2, -0.2, 0.0], [0.2, 0.2, 0.3], size=(2, count, 3))
    v = rng.normal(size=(count, 13))
    slider = rng.choice([-0.5, 0.5, 0.4999, 0.51, 0.0], size=count)

    def where(name):
        return kind == KINDS.index(name)

    for resting in (where("resting"), where("touching each other")):
        ball[resting, 2] = rod[resting, 2] = 0.1  # the radius of both
        turn[0, resting], turn[1, resting] = (1, 0, 0, 0), EXACT
    rod[where("resting"), 0] += 1.0
    rod[where("touching each other")] = ball[where("touching each other")] + np.array([0, 0.2, 0])
    rod[where("ball in the rod")] = ball[where("ball in the rod")]
    end = where("ball at the rod's end")
    turn[1, end] = (1, 0, 0, 0)
    rod[end] = ball[end] + np.array([0, 0, 0.15])
    ball[where("in the floor"), 2] = rod[where("in the floor"), 2] = 0.0
    v[where("fast")] *= 100.0
    v[where("still")] = 0.0
    calm = rng.uniform(size=count) < 0.5
    v[calm] = 0.0
    q = np.concatenate([ball, turn[0], rod, turn[1], slider[:, None]], 1)
    contact = None
    if LAWS[name].carries_state:
        deformed = 1e-4 * rng.normal(size=(count, *system(name).initial_state().contact.shape))
        contact = jnp.asarray(np.where(calm[:, None, None], 0.0, deformed), dtype)
    return State(jnp.asarray(q, dtype), jnp.asarray(v, dtype), contact)


@jax.jit
def batch(system: System, x: State):
    return jax.vmap(lambda x: system.step(x, jnp.zeros(system.nu, x.q.dtype)))(x)


@jax.jit
def slopes(system: System, x: State):
    """Derivative of the next state along one direction, forward, and of their sum, in reverse."""

    def step(x):
        return system.step(x, jnp.zeros(system.nu, x.q.dtype))[0]

    def both(x):
        ones = jax.tree.map(jnp.ones_like, x)
        return jax.jvp(step, (x,), (ones,))[1], jax.vjp(step, x)[1](ones)[0]

    return jax.vmap(both)(x)


def numbers(tree) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]


def require_finite(tree, x: State, label: str) -> None:
    for leaf in numbers(tree):
        bad = np.flatnonzero(~np.isfinite(leaf.reshape(len(leaf), -1)).all(1))
        assert not bad.size, (
            f"{label}: {len(bad)} states, first {bad[0]} ({KINDS[bad[0] % len(KINDS)]}), q {x.q[bad[0]]}"
        )


@pytest.mark.parametrize("name", EACH)
def test_a_batch_gives_the_single_steps(name):
    """vmap over 256 states under jit: finite, dtypes kept, and what `System.step` gives alone."""
    sys, x = system(name), states(name, BATCH)
    y, info = batch(sys, x)
    require_finite((y, info), x, name)
    assert y.q.shape == (BATCH, 15) and y.v.dtype == info.impulse.dtype == jnp.float64
    np.testing.assert_allclose(np.linalg.norm(y.q[:, 3:7], axis=1), 1.0, atol=1e-13)
    solved = np.asarray(info.status == Status.solved)
    assert not np.asarray(info.status == Status.non_finite).any()
    if name != "smoothed, swept":  # its sweeps leave an error, which they report
        assert solved.mean() > 0.98, f"{solved.mean():.3f} solved"
    for k in [*range(len(KINDS)), *range(100, 100 + len(KINDS))]:
        alone, one = sys.step(jax.tree.map(lambda a, k=k: a[k], x), np.zeros(sys.nu))
        scale = max(1.0, float(np.abs(alone.v).max()))
        np.testing.assert_allclose(y.v[k], alone.v, atol=1e-8 * scale, err_msg=KINDS[k % len(KINDS)])
        assert bool(one.status == Status.solved) == solved[k]


@pytest.mark.parametrize("name", EACH)
def test_single_precision(name):
    """Dtypes stay float32, nothing is NaN, and random states move as in float64: to 1e-3 of the velocity.

    A position of 0.3 m is known to 3e-8 m, a gap or depth over the step of 1e-3 s to 3e-5 m/s.
    """
    x = states(name, BATCH, dtype="float32")
    y, info = batch(system(name, "float32"), x)
    assert {leaf.dtype for leaf in numbers((y, info))} == {np.dtype("float32")}
    require_finite((y, info), x, name)
    exact, _ = batch(system(name), jax.tree.map(lambda a: a.astype(jnp.float64), x))
    random = np.arange(BATCH) % len(KINDS) == 0
    v = np.asarray(exact.v)
    error = np.abs(np.asarray(y.v) - v).max(1) / np.maximum(1.0, np.abs(v).max(1))
    assert error[random].max() < 1e-3, error[random].max()


@pytest.mark.parametrize("count", [BATCH, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EACH)
def test_nothing_is_nan_in_many_states(name, count):
    sys, unsolved = system(name), 0
    for seed in range(1, 1 + -(-count // BATCH)):
        x = states(name, BATCH, seed)
        y, info = batch(sys, x)
        require_finite((y, info), x, f"{name}, seed {seed}")
        unsolved += int(np.sum(np.asarray(info.status != Status.solved)))
    if name != "smoothed, swept":  # ten sweeps do not converge, and say so
        assert unsolved == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_derivatives_are_finite_wherever_the_step_is_solved(name):
    """Forward and reverse, at every kind of state, kinks included."""
    for seed in range(4):
        x = states(name, BATCH, seed)
        require_finite(slopes(system(name), x), x, f"{name}, seed {seed}")


BALL = """<mujoco><option gravity="0 0 0"/><worldbody><geom name="floor" type="plane" size="0 0 1" friction="0.5"/>
  <body pos="0 0 0.1"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
    "law, height, expected, by_height",
    [
        # nu = (1 + a) G lambda + v = 0 and v+ = v + G lambda: v+ = a / (1 + a) v.
        (Cushioned(yielding=0.25), 0.1 - 1e-4, -0.2, 0.0),
        # v+ = sqrt(depth), its slope by the height -1 / (2 sqrt(depth)).
        (Magnet(), 0.1 - 1e-4, 1e-2, -50.0),
    ],
)
def test_a_law_of_ones_own_does_what_it_says(law, height, expected, by_height):
    """Step and Jacobian of a ball that comes down at 1 m/s; of `Magnet` in closed form, which differentiates its offset."""
    sys = System(load_model_from_string(BALL), DT, contact=law)
    x = State(np.array([height - 0.1]), np.array([-1.0]))
    jac = sys.linearize(x, np.zeros(sys.nu))
    np.testing.assert_allclose(jac.x_next.v, [expected], rtol=1e-9)
    np.testing.assert_allclose(sys.step(x, np.zeros(sys.nu))[0].v, [expected], rtol=1e-9)
    np.testing.assert_allclose(jac.A[1, 0], by_height, rtol=1e-7, atol=1e-9)
