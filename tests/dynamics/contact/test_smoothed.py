"""Smoothed contact: closed forms, the source's iteration, its limit, and derivatives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from dynamics.contact import scenes
from trajopt.dynamics import RigidContact, SmoothedContact, State, System, kappa_schedule
from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.sweeps import gauss_seidel
from trajopt.errors import OptionError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

DT, G, MASS = scenes.DT, scenes.GRAVITY, 2.0
# Two balls that may pass through each other on a line, and a floor for the first: a pair of bodies, limits, dry friction.
PAIR = """<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1" friction="0.5"/>
<body name="a"><joint name="a" type="slide" axis="0 0 1" limited="true" range="-1 3"/>
  <geom type="sphere" size="0.1" mass="2" friction="0.5"/></body>
<body name="b"><joint name="b" type="slide" axis="0 0 1" frictionloss="0.5"/>
  <geom type="sphere" size="0.1" mass="0.5" friction="0.5" conaffinity="0" contype="1"/></body>
</worldbody></mujoco>"""


@functools.cache
def ball(**options) -> System:
    return System(scenes.model("ball"), DT, contact=SmoothedContact(erp=0.0, **options), kappa=300.0)


@functools.cache
def pair() -> System:
    return System(load_model_from_string(PAIR), DT, contact=SmoothedContact(erp=0.0), kappa=300.0)


def above(height: float, velocity) -> State:
    """The ball with its lowest point at `height`."""
    return State(np.array([0.1, -0.2, 0.1 + height, 1, 0, 0, 0]), np.array(velocity, float))


def after(system: System, x: State, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """(v+, impulse) at a sharpness that is a leaf: one compiled step for all."""
    y, info = dataclasses.replace(system, kappa=jnp.asarray(kappa)).step(x, np.zeros(system.nu))
    assert info.status == Status.solved
    return np.asarray(y.v), np.asarray(info.impulse)


@pytest.mark.parametrize("height", [-0.02, -1e-3, 0.0, 1e-3, 0.02])
def test_an_impulse_is_scaled_by_the_sigmoid(height):
    """Falling straight: P = sigmoid(kappa depth) m (g dt - v_z), half of it at the touch."""
    _, impulse = after(ball(), above(height, [0, 0, -0.5, 0, 0, 0]), 300.0)
    scale = 1 / (1 + np.exp(300.0 * height))
    np.testing.assert_allclose(impulse, [0, 0, scale * MASS * (0.5 + G * DT)], rtol=1e-9, atol=1e-12)


def test_what_is_far_is_free():
    v, impulse = after(ball(), above(5.0, [0, 0, -0.5, 0, 0, 0]), 300.0)
    np.testing.assert_allclose(v, [0, 0, -0.5 - G * DT, 0, 0, 0], rtol=1e-14)
    assert not impulse.any()


@pytest.mark.parametrize("height", [-4e-3, 4e-3])
def test_the_limit_is_hard_contact_where_shapes_overlap(height):
    """At phi /= 0 the difference falls like exp(-kappa |phi|): the order in kappa is not algebraic."""
    x = above(height, [0.3, -0.1, -0.5, 1.0, 0, 0])
    hard = System(scenes.model("ball"), DT, contact=RigidContact(gap="detect", erp=0.0))
    limit = np.asarray(hard.step(x, np.zeros(0))[0].v)
    kappas = np.array([1e3, 1.5e3, 2e3, 2.5e3])
    errors = np.array([np.abs(after(ball(), x, kappa)[0] - limit).max() for kappa in kappas])
    np.testing.assert_allclose(np.diff(np.log(errors)) / np.diff(kappas), -abs(height), rtol=0.03)


def test_bodies_touch_at_a_distance_and_through_each_other():
    """Two contacts in a row, at centres that coincide, and at rest: nothing is NaN, and momentum of the pair is accounted for."""
    for heights in ([0.1, 0.3], [0.1001, 0.2999], [0.3, 0.3], [0.1, 0.1]):
        x = State(np.array(heights), np.zeros(2))
        y, info = pair().step(x, np.zeros(2))
        assert np.isfinite(np.asarray(y.v)).all() and np.isfinite(np.asarray(info.residual))
        assert info.status == Status.solved


def iteration(G, g, mu, depth, kappa, sweeps, r):
    """Smoothed, Alg. 1, word by word."""
    nc = len(mu)
    s = 1 / (1 + np.exp(-kappa * depth))
    block = lambda j, k: G[3 * j : 3 * j + 3, 3 * k : 3 * k + 3]  # noqa: E731

    def prox(y, mu):
        if y[2] <= 0:
            return np.zeros(3)
        length = np.hypot(y[0], y[1])
        return y if length <= mu * y[2] else np.array([*(mu * y[2] * y[:2] / length), y[2]])

    p = [-np.linalg.solve(block(j, j), g[3 * j : 3 * j + 3]) for j in range(nc)]
    for _ in range(sweeps):
        for j in range(nc):
            total = sum(block(j, k) @ p[k] * (1.0 if k == j else s[k]) for k in range(nc)) + g[3 * j : 3 * j + 3]
            p[j] = prox(p[j] - r[j] * total, mu[j])
    return np.concatenate([s[j] * p[j] for j in range(nc)])


@pytest.mark.parametrize("r_factor", ["row-sum", "determinant"])
def test_sweeps_are_those_of_the_source(r_factor):
    """On the cube's four corners, as plain arrays."""
    q, v = np.array([0, 0, 0.0995, *scenes.about([1.0, 0.3, 0.0], 0.02)]), np.array([0.3, -0.1, -1.0, 0.2, -0.4, 0.3])
    corners = 0.1 * np.array([[a, b, -1] for a in (-1, 1) for b in (-1, 1)], float)
    A, g, *_ = scenes.box_problem(q, v, DT, corners, np.zeros(4))
    depth, mu = np.array([2e-3, -1e-3, 0.0, 5e-3]), np.full(4, 0.4)
    blocks = A.reshape(4, 3, 4, 3).swapaxes(1, 2)
    if r_factor == "determinant":
        r = 1 / (1 + np.abs(np.linalg.det(blocks)).sum(1))
    else:
        r = 1 / np.abs(blocks[np.arange(4), np.arange(4)]).sum(2).max(1)
    scale = 1 / (1 + np.exp(-300 * depth))
    got = gauss_seidel(make_ncp(jnp.asarray(A), jnp.asarray(g), jnp.asarray(mu)), jnp.asarray(scale), 7, r_factor)
    np.testing.assert_allclose(got, iteration(A, g, mu, depth, 300.0, 7, r), rtol=1e-10, atol=1e-13)


def moved(system: System, x: State, z):
    """[q, v] after a step from x moved by [dq, dv] in coordinates, with kappa and the mass changed by the rest of z."""
    nq = x.q.shape[0]
    model = system.model.replace(mass=system.model.mass + z[-1])
    changed = dataclasses.replace(system, model=model, kappa=system.kappa + 1e3 * z[-2])
    y, info = changed.step(State(x.q + z[:nq], x.v + z[nq:-2]), jnp.zeros(system.nu))
    return jnp.concatenate([y.q, y.v, info.impulse])


value = jax.jit(moved)


@jax.jit
def both_jacobians(system: System, x: State):
    """Forward and reverse mode of one linearisation."""
    zero = jnp.zeros(x.q.shape[0] + x.v.shape[0] + 2)
    y, forward = jax.linearize(lambda z: moved(system, x, z), zero)
    backward = jax.linear_transpose(forward, zero)
    return jax.vmap(forward, out_axes=1)(jnp.eye(zero.size)), jax.vmap(lambda w: backward(w)[0])(jnp.eye(y.size))


@pytest.mark.parametrize("sweeps", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_derivatives(sweeps):
    """By state, kappa and mass, where the ball slides on the air above the floor and where it sticks in the floor."""
    system = ball(sweeps=sweeps)
    for x in (above(2e-3, [0.5, 0.1, -0.4, 0.3, -1.0, 0.2]), above(-1e-3, [1e-3, 0, -0.4, 0.0, 0.1, 0.2])):
        forward, reverse = both_jacobians(system, x)
        np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-11)
        estimate = ridders_jacobian(lambda z, x=x: np.asarray(value(system, x, z)), 15, 1e-4)
        compare(forward, estimate, untrusted=0.05, label=f"sweeps={sweeps}")


def test_sweeps_end_in_the_solved_law():
    """More sweeps come closer, and the residual, of the law that they would end in, says how close."""
    x = scenes.cube_state("landing")
    solved = System(scenes.model("cube"), DT, contact=SmoothedContact(erp=0.0))
    limit, info = solved.step(x, np.zeros(0))
    assert info.status == Status.solved
    errors = []
    for sweeps in (2, 200):
        y, info = dataclasses.replace(solved, contact=SmoothedContact(erp=0.0, sweeps=sweeps)).step(x, np.zeros(0))
        errors.append(np.abs(np.asarray(y.v - limit.v)).max())
        assert (info.status == Status.solved) == (float(info.residual) <= 1e-10)
        assert 1e-3 * errors[-1] < float(info.residual) < 1e3 * errors[-1] + 1e-12
    assert errors[1] < 1e-6 < 1e-3 < errors[0]


def test_restitution_acts_at_a_distance():
    """v_z+ = v_z - s ((1 + e) v_z - g dt) for an elastic ball at the sigmoid s; slow ones do not bounce."""
    system = ball()
    bouncing = dataclasses.replace(system, model=system.model.replace(pair_restitution=jnp.array([0.7])))
    s = 1 / (1 + np.exp(300.0 * 1e-3))
    v, _ = after(bouncing, above(1e-3, [0, 0, -0.5, 0, 0, 0]), 300.0)
    free = -0.5 - G * DT
    np.testing.assert_allclose(v[2], free - s * (free + 0.7 * -0.5), rtol=1e-9)
    slow, _ = after(bouncing, above(1e-3, [0, 0, -0.005, 0, 0, 0]), 300.0)
    np.testing.assert_allclose(slow[2], (1 - s) * (-0.005 - G * DT), rtol=1e-9)


def test_batches_in_single_precision():
    """float32 and vmap, the sharpness in the batch too; each as by itself in float64."""
    system = ball()
    single = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, system)
    heights, kappas = jnp.linspace(-0.01, 0.05, 4, dtype=jnp.float32), jnp.linspace(100.0, 900.0, 4, dtype=jnp.float32)
    x = above(0.0, [0.5, 0.1, -0.4, 0.3, -1.0, 0.2])

    def step(height, kappa):
        start = State(jnp.asarray(x.q, jnp.float32).at[2].add(height), jnp.asarray(x.v, jnp.float32))
        y, info = dataclasses.replace(single, kappa=kappa).step(start, jnp.zeros(0, jnp.float32))
        return y.v, info.residual

    v, residual = jax.jit(jax.vmap(step))(heights, kappas)
    assert v.dtype == jnp.float32 and float(residual.max()) < 1e-5
    for k in range(4):
        alone, _ = after(system, above(float(heights[k]), x.v), float(kappas[k]))
        np.testing.assert_allclose(v[k], alone, atol=2e-5)


def test_a_schedule_compiles_once():
    """kappa is a leaf: what a schedule gives is not compiled anew."""
    traces = []

    @jax.jit
    def height(system):
        traces.append(1)
        return system.kappa * system.dt

    for kappa in kappa_schedule(30.0, 3000.0, 3):
        height(dataclasses.replace(ball(), kappa=float(kappa)))
    assert len(traces) == 1
    np.testing.assert_allclose(kappa_schedule(30.0, 3000.0, 3), [30, 300, 3000])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmoothedContact(0.0), "kappa is 0.0, expected a positive number"),
        (lambda: SmoothedContact(sweeps=0), "sweeps is 0; it must be at least 1"),
        (lambda: SmoothedContact(sweeps=3, r_factor="det"), "r_factor is 'det'; did you mean 'determinant'"),
        (lambda: dataclasses.replace(ball(), kappa=-1.0), "kappa is -1.0"),
        (lambda: kappa_schedule(1.0, 10.0, 0), "count is 0"),
    ],
)
def test_errors_name_the_option(make, message):
    with pytest.raises(OptionError, match=message):
        make()
