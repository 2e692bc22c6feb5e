"""`RelaxedContact`: closed forms, its limit, its derivative by Ridders' extrapolation, and its contract."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from native.cases import needs_core
from ridders import ridders_jacobian

from dynamics.contact import scenes
from trajopt.dynamics import RelaxedContact, RigidContact, SmoothedContact, State, System
from trajopt.errors import DerivativeError, OptionError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

BALL = """<mujoco model="ball"><option gravity="0 0 {gravity}"/><worldbody>
  <geom type="plane" size="0 0 1" friction="0.5"/>
  <body pos="0 0 0.1"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
    <geom type="sphere" size="0.1" mass="2" friction="0.5"/></body></worldbody></mujoco>"""
BOX = """<mujoco model="box"><worldbody><geom type="plane" size="0 0 1" friction="0.5"/>
  <body pos="0 0 0.1"><freejoint/><geom type="box" size="0.2 0.2 0.1" mass="1" friction="0.5"/></body></worldbody></mujoco>"""
SLIDER = """<mujoco model="slider"><option gravity="0 0 0"/><worldbody><body><joint type="slide" axis="1 0 0" {joint}/>
  <inertial pos="0 0 0" mass="2" diaginertia="1 1 1"/></body></worldbody></mujoco>"""
# A ball that slides against a rod on the floor, an arm with a limit and dry friction, driven, and a loop of two bars.
SCENE = """<mujoco model="scene"><worldbody><geom type="plane" size="0 0 1" friction="0.5"/>
  <body name="ball" pos="0 0 0.12"><freejoint/><geom type="sphere" size="0.1" mass="1" friction="0.5"/></body>
  <body name="rod" pos="0.25 0 0.12"><freejoint/><geom type="capsule" size="0.1 0.15" mass="2" friction="0.7"/></body>
  <body name="arm" pos="0 2 1"><joint name="arm" axis="0 1 0" limited="true" range="-0.5 0.5" frictionloss="0.3"/>
    <inertial pos="0.2 0 0" mass="1" diaginertia=".1 .1 .1"/>
    <body pos="0.4 0 0"><joint axis="0 1 0"/><inertial pos="0.1 0 0" mass="0.5" diaginertia=".1 .1 .1"/></body></body></worldbody>
  <actuator><motor joint="arm"/></actuator>
  <equality><joint joint1="other" joint2="arm" polycoef="0 1 0.3 0 0"/></equality></mujoco>""".replace(
    '<joint axis="0 1 0"/>', '<joint name="other" axis="0 1 0"/>'
)
DT, MASS, G = 0.01, 2.0, 9.81


@functools.cache
def model(text: str, **values):
    return load_model_from_string(text.format(**values) if values else text)


def system(text: str, contact=None, dt: float = DT, **values) -> System:
    return System(
        model(text, **values), dt, contact=RelaxedContact(0.01) if contact is None else contact, backend="jax"
    )


def step(relaxed: System, x: State):
    """Without controls."""
    return relaxed.step(x, np.zeros(relaxed.nu))


def state(q, v) -> State:
    return State(jnp.asarray(q, float), jnp.asarray(v, float))


each_gap = pytest.mark.parametrize("gap", (0.03, 0.01, 0.001))
RHO_AT_REST, DT_AT_REST = 0.01, 1e-3


def impulse_across(gap: float) -> tuple[float, float]:
    """(lambda, sqrt((phi / dt)^2 + 4 rho / m)) of lambda (lambda / m + phi / dt) = rho, at rest."""
    root = np.sqrt((gap / DT_AT_REST) ** 2 + 4 * RHO_AT_REST / MASS)
    return 2 * RHO_AT_REST / (root + gap / DT_AT_REST), root


@each_gap
def test_bodies_at_rest_feel_a_gap(gap):
    """A force of rho / phi where the step is short."""
    relaxed = system(BALL, RelaxedContact(RHO_AT_REST), DT_AT_REST, gravity=0)
    y, info = step(relaxed, state([0, gap], [0, 0]))
    impulse, _ = impulse_across(gap)
    np.testing.assert_allclose(info.impulse[2], impulse, rtol=1e-12)
    np.testing.assert_allclose(y.v[1], impulse / MASS, rtol=1e-12)
    short = 5e-3 * (0.001 / gap) ** 2  # dt^2 rho / (m phi^2)
    np.testing.assert_allclose(impulse / DT_AT_REST, RHO_AT_REST / gap, rtol=short)


@each_gap
def test_bodies_at_rest_have_the_slope_of_a_gap(gap):
    """Of lambda, by the gap; none under the smoothed law."""
    relaxed = system(BALL, RelaxedContact(RHO_AT_REST), DT_AT_REST, gravity=0)
    impulse, root = impulse_across(gap)
    slope = relaxed.linearize(state([0, gap], [0, 0]), np.zeros(2)).A[3, 1]
    np.testing.assert_allclose(slope, -impulse / (DT_AT_REST * root) / MASS, rtol=1e-10)
    smoothed = system(BALL, SmoothedContact(), DT_AT_REST, gravity=0)
    assert float(jnp.abs(smoothed.linearize(state([0, gap], [0, 0]), np.zeros(2)).A[3, 1])) == 0.0


def test_a_body_hovers_where_the_force_carries_it():
    rho = 0.05
    y, info = step(system(BALL, RelaxedContact(rho), gravity=-G), state([0, rho / (MASS * G)], [0, 0]))
    np.testing.assert_allclose(y.v, 0.0, atol=1e-12)
    np.testing.assert_allclose(info.impulse[2], MASS * G * DT, rtol=1e-12)


@pytest.mark.parametrize("speed", (1e-6, 0.05, 1.0))
def test_friction_is_that_of_the_path(speed):
    """From sticking to sliding: tau = -2 s^2 nu / (rho + sqrt(rho^2 + 4 s^2 nu^2))."""
    rho = 1e-4
    y, info = step(system(BALL, RelaxedContact(rho), gravity=-G), state([0, 1e-4], [speed, 0]))
    slip, normal = float(y.v[0]), float(info.impulse[2])
    s = 0.5 * normal
    np.testing.assert_allclose(
        info.impulse[0], -2 * s**2 * slip / (rho + np.sqrt(rho**2 + (2 * s * slip) ** 2)), rtol=1e-9
    )
    assert abs(float(info.impulse[0])) < s
    np.testing.assert_allclose(slip, speed + float(info.impulse[0]) / MASS, rtol=1e-10)


@pytest.mark.parametrize("q", (0.0, 0.3, -0.499))
def test_both_limits_of_a_joint_push(q):
    rho = 0.02
    limited = system(SLIDER, RelaxedContact(rho), joint='limited="true" range="-0.5 0.5"')
    y, info = step(limited, state([q], [0]))
    low, high = (float(x) for x in info.impulse)
    v = (low - high) / MASS
    np.testing.assert_allclose(y.v[0], v, atol=1e-14)
    np.testing.assert_allclose([low * (v + (q + 0.5) / DT), high * (-v + (0.5 - q) / DT)], rho, rtol=1e-10)


def test_dry_friction_of_joints():
    rho, loss = 1e-3, 3.0
    rubbing = system(SLIDER, RelaxedContact(rho), joint='frictionloss="3"')
    y, info = step(rubbing, state([0], [0.1]))
    v, s = float(y.v[0]), loss * DT
    np.testing.assert_allclose(info.impulse[0], -2 * s**2 * v / (rho + np.sqrt(rho**2 + (2 * s * v) ** 2)), rtol=1e-9)


@pytest.mark.parametrize("v", ([0, 0, 0, 0, 0, 0], [1, 0.3, -1, 0, 0, 0], [0.1, 0.2, -2, 1, 0.5, 1]))
def test_the_limit_is_rigid_contact(v):
    """The distance to the rigid step falls with rho: ten times for a decade."""
    x = state([0, 0, 0.1, 1, 0, 0, 0], v)
    rigid = step(system(BOX, RigidContact()), x)[0].v
    steps = [step(dataclasses.replace(system(BOX), rho=rho), x) for rho in (1e-6, 1e-7, 1e-8)]
    assert all(info.status == Status.solved for _, info in steps)
    off = np.array([float(jnp.max(jnp.abs(y.v - rigid))) for y, _ in steps])
    np.testing.assert_allclose(off[:-1] / off[1:], 10.0, rtol=0.05)


def test_redundant_contacts_share_the_load():
    y, info = step(system(BOX, RelaxedContact(1e-3)), state([0, 0, 0.1, 1, 0, 0, 0], np.zeros(6)))
    normal = np.asarray(info.contacts.impulse)[:, 2]
    assert len(normal) == 4 and info.status == Status.solved and float(info.residual) < 1e-10
    np.testing.assert_allclose(normal, normal.mean(), rtol=1e-10)
    np.testing.assert_allclose(y.v[2], normal.sum() - G * DT, atol=1e-12)


@pytest.mark.slow
def test_no_contact_is_left_out_by_distance():
    """Where another contact becomes the closest nothing jumps; with max_contacts it does."""
    rows = system(BOX).contact.contact_rows(model(BOX))
    assert rows == 4
    two = """<mujoco><worldbody><geom type="plane" size="0 0 1"/>
      <body><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="1"/></body>
      <body pos="1 0 0"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""
    near, far = (state([0.2, 0.2 + d], [0, 0]) for d in (-1e-9, 1e-9))
    for law, jump in ((RelaxedContact(0.1), 0.0), (RelaxedContact(0.1, max_contacts=1), 0.1 / 0.1 * DT)):
        both = [step(system(two, law), x)[0].v for x in (near, far)]
        np.testing.assert_allclose(jnp.max(jnp.abs(both[0] - both[1])), jump, atol=0.01 * jump + 1e-8)


STATES = {
    "apart": ((0.12, 0.12, 0.0), 0.3),
    "touching": ((0.098, 0.101, 0.1), 0.5),
    "sliding": ((0.0995, 0.1002, 0.48), 2.0),
}


def scene_state(kind: str) -> tuple[State, np.ndarray]:
    (ball, rod, arm), fast = STATES[kind]
    rng = np.random.default_rng(3)
    turn = np.array([np.sqrt(0.5), 0.02, np.sqrt(0.5), 0.01])
    q = [0, 0, ball, 1, 0, 0, 0, 0.33, 0.02, rod, *turn / np.linalg.norm(turn), arm, arm + 0.3 * arm**2]
    return state(q, fast * rng.normal(size=14)), np.array([0.7])


@functools.cache
def scene() -> System:
    return System(model(SCENE), DT, contact=RelaxedContact(1e-3), backend="jax")


@pytest.mark.parametrize("kind", STATES)
def test_derivatives_by_state_and_control(kind):
    linear = scenes.judged_slopes(scene(), *scene_state(kind), np.full(4, 3e-4), label=kind)
    assert linear.info.status == Status.solved


@pytest.mark.slow
def test_derivatives_by_parameters_and_rho():
    """Forward by Ridders, in reverse the same numbers."""
    relaxed, (x, u) = scene(), scene_state("touching")
    names = ("mass", "frictionloss", "pair_friction", "shape_size", "lower")
    leaves = {name: jnp.asarray(getattr(relaxed.model, name)) for name in names}
    flat, restored = ravel_pytree((leaves, jnp.asarray(1e-3)))
    rng = np.random.default_rng(0)
    weights, along = jnp.asarray(rng.normal(size=relaxed.nv)), jnp.asarray(rng.normal(size=flat.shape))
    along = jnp.where(jnp.isfinite(flat), along * flat, 0.0)  # joints without a limit have one at infinity

    @jax.jit
    def weighted(z):
        values, rho = restored(z)
        return weights @ dataclasses.replace(relaxed, model=relaxed.model.replace(**values), rho=rho).step(x, u)[0].v

    forward = jax.jvp(weighted, (flat,), (along,))[1]
    np.testing.assert_allclose(jax.grad(weighted)(flat) @ along, forward, rtol=1e-10)
    by_rho = jax.grad(weighted)(flat)[-1]
    for slope, direction, h in ((forward, along, 1e-3), (by_rho, jnp.zeros_like(flat).at[-1].set(1.0), 3e-4)):
        differences = ridders_jacobian(lambda s, d=direction: np.atleast_1d(weighted(flat + s[0] * d)), 1, h)
        np.testing.assert_allclose(slope, differences.value[0, 0], rtol=1e-6)


@pytest.mark.slow
def test_a_second_derivative_is_refused():
    relaxed, (x, u) = scene(), scene_state("apart")
    with pytest.raises(DerivativeError):
        jax.hessian(lambda u: relaxed.step(x, u)[0].v[0])(jnp.asarray(u))


def test_jit_vmap_and_one_program_for_every_rho():
    relaxed, (x, u) = scene(), scene_state("touching")
    count = 0

    @jax.jit
    def counted(system, x, u):
        nonlocal count
        count += 1
        return system.step(x, u)[0].v

    values = (1e-1, 1e-2, 1e-3)
    by_system = [counted(dataclasses.replace(relaxed, rho=rho), x, u) for rho in values]
    by_law = [counted(System(model(SCENE), DT, contact=RelaxedContact(rho), backend="jax"), x, u) for rho in values]
    batched = jax.vmap(lambda rho: dataclasses.replace(relaxed, rho=rho).step(x, jnp.asarray(u))[0].v)(
        jnp.array(values)
    )
    assert count == 1
    np.testing.assert_array_equal(by_system, by_law)
    np.testing.assert_allclose(batched, by_system, rtol=1e-9, atol=1e-12)


def test_equality_constraints_hold():
    x, u = scene_state("touching")
    y, _ = scene().step(x, u)
    np.testing.assert_allclose(y.v[13], (1 + 2 * 0.3 * 0.1) * y.v[12], atol=1e-10)


@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.slow), pytest.param("native", marks=needs_core)])
def test_too_few_iterations_are_said(backend):
    x, u = scene_state("sliding")
    few = System(model(SCENE), DT, contact=RelaxedContact(1e-6, max_iterations=3), backend=backend)
    _, info = few.step(x, u)
    assert info.status == Status.stalled and float(info.residual) > 1e-10 and int(info.iterations) == 3


@pytest.mark.parametrize("rho", (0.0, -1.0, float("nan"), float("inf"), "much", jnp.array(-1.0), None))
def test_what_is_no_rho(rho):
    with pytest.raises(OptionError, match="rho"):
        System(model(BOX), DT, contact=RelaxedContact(rho), backend="jax")


def test_a_rho_below_rounding_names_the_remedy():
    with pytest.raises(OptionError, match=r"rho is 1e-20 J, below .* float64 .* use RigidContact\(\)"):
        System(model(BOX), DT, contact=RelaxedContact(1e-20), backend="jax")
    with pytest.raises(OptionError, match="float32"):
        System(model(BOX).to_device(jnp.float32), DT, contact=RelaxedContact(1e-8), backend="jax")


@pytest.mark.parametrize("gradient", ("complementarity-aware", "smoothed", "bounce", "unrolled"))
def test_modes_of_hard_contact_are_refused(gradient):
    with pytest.raises(OptionError, match="implicit"):
        System(model(BOX), DT, contact=RelaxedContact(0.1), gradient=gradient, backend="jax")


def test_a_law_given_anew_takes_its_rho_along():
    first = system(BOX, RelaxedContact(0.1))
    assert float(first.rho) == 0.1
    assert float(dataclasses.replace(first, rho=0.2).rho) == 0.2
    assert float(dataclasses.replace(first, contact=RelaxedContact(0.3)).rho) == 0.3
    assert dataclasses.replace(first, contact=RigidContact()).contact == RigidContact()
