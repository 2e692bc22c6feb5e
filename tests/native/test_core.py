"""The compiled core computes the same function as the JAX implementation: v+, A, B, modes, geometry and the report."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.contact import scenes
from dynamics.models_for_tests import add_mimics

from native.cases import DT, MATRIX, VELOCITY, check, compiled_of, linearized, needs_core, relative, states, stepped
from trajopt import load_model, native
from trajopt.dynamics import NoContact, RigidContact, State, System
from trajopt.dynamics.compiled import compile_system, pack_parameters
from trajopt.dynamics.compiled_step import core_steps
from trajopt.dynamics.rigid_body import crba
from trajopt.dynamics.rigid_body.configuration import random_configuration
from trajopt.models.registry import bundled_models, load_model_from_string
from trajopt.result import Status

pytestmark = needs_core

# Every shape that the core collides with a plane, a foot of two balls, and two balls that touch each other.
SHAPES = """<mujoco model="shapes"><default><geom friction="0.7" contype="1" conaffinity="0"/></default><worldbody>
  <geom name="floor" type="plane" size="0 0 1" euler="4 7 0" contype="0" conaffinity="1"/>
  <body name="roller" pos="0 0 0.1"><freejoint/><geom type="cylinder" size="0.1 0.2" euler="80 10 0" mass="1"/></body>
  <body name="can" pos="1 0 0.2"><freejoint/><geom type="cylinder" size="0.1 0.2" euler="4 7 0" mass="1"/></body>
  <body name="egg" pos="2 0 0.1"><freejoint/><geom type="ellipsoid" size="0.1 0.15 0.2" euler="30 20 10" mass="1"/></body>
  <body name="foot" pos="3 0 0.1"><freejoint/><geom type="sphere" size="0.1" pos="0 0.2 0" mass="1"/>
    <geom type="sphere" size="0.08" pos="0.1 -0.2 0" mass="1"/></body>
  <body name="ball" pos="4 0 0.1"><freejoint/><geom name="ball" type="sphere" size="0.1" mass="1"/></body>
  <body name="other" pos="4.15 0 0.2"><freejoint/><geom name="other" type="sphere" size="0.1" mass="0.5"/></body>
</worldbody><contact><pair geom1="ball" geom2="other" friction="0.4 0.4 0 0 0"/></contact></mujoco>"""

# A plate that turns and carries a plane of its own, a box on it, both under gravity.
PLATE = """<mujoco model="plate"><default><geom friction="0.8" contype="1" conaffinity="0"/></default><worldbody>
  <geom name="floor" type="plane" size="0 0 1" contype="0" conaffinity="1"/>
  <body name="plate" pos="0 0 1"><joint name="tilt" axis="1 1 0"/><joint name="lift" type="slide" axis="0 0 1"/>
    <inertial pos="0 0 0" mass="3" diaginertia="1 1 1"/></body>
  <body name="box" pos="0 0 1.1"><freejoint/><geom name="box" type="box" size="0.15 0.1 0.1" mass="1"/></body>
</worldbody></mujoco>"""


def plate():
    """`PLATE` with its plane fixed to the plate: the ground moves."""
    model = load_model_from_string(PLATE)
    top = model.topology
    carried = tuple(dataclasses.replace(s, node=1) if s.name == "floor" else s for s in top.shapes)
    return model.replace(topology=dataclasses.replace(top, shapes=carried))


def mimicking():
    """The forest with the roll of its arm following the shoulder."""
    model = load_model_from_string(scenes.FOREST)
    model = add_mimics(model, {7: (6, -0.7, 0.2)})
    return dataclasses.replace(model, actuation=model.actuation[:, 6:8])


def standing_forest(model, seed):
    """A state of the forest: the box on the floor, the arm bent so that its tip is 0.1 mm inside; velocities of 0.5."""
    rng = np.random.default_rng(seed)
    q = np.asarray(model.q_default).copy()
    q[2] -= 1e-4
    shoulder = 0.3
    q[7], q[-1] = shoulder, np.arccos((0.5 - 0.3 * np.cos(shoulder) - 0.03 + 1e-4) / 0.25) - shoulder
    v = 0.5 * rng.normal(size=model.nv)
    v[2] = -0.05
    return q, v, rng.normal(size=model.nu)


def pushed(model, seed, lowered=1e-4):
    """A state near the default pose, its trees let into the ground a little, with velocities of 0.5."""
    from contact_states import lowered as let_down

    rng = np.random.default_rng(seed)
    q = let_down(model, np.asarray(model.q_default), -lowered)
    return q, 0.5 * rng.normal(size=model.nv), rng.normal(size=model.nu)


def compare(model, law, q, v, u, integrator="semi-implicit") -> None:
    compiled, device, parameters = compiled_of(model, law, integrator)
    check(compiled, device, parameters, System(device, dt=DT, contact=law, backend="jax", integrator=integrator), q, v, u)


@pytest.mark.parametrize("name", [pytest.param("cube", marks=pytest.mark.slow), "half-cheetah", "catapult"])
def test_random_states_of_bundled_models(name):
    model, law = load_model(name), RigidContact()
    compiled, device, parameters = compiled_of(model, law)
    system = System(device, dt=DT, contact=law, backend="jax")
    for q, v, u in states(model, law, 6, seed=0):
        check(compiled, device, parameters, system, q, v, u)


HELD = 1e-6  # share of the acceleration by a free motor below which what is left of it is rounding


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled_models())
def test_thousand_random_states(name):
    """All candidates and limits are rows of the JAX path, so that it leaves out none that acts; unsolved states are counted."""
    model = load_model(name)
    law = RigidContact(max_contacts=64, max_limits=64)
    compiled, device, parameters = compiled_of(model, law)
    system = System(device, dt=DT, contact=law, backend="jax")
    differ = unsolved = 0
    mass = jax.jit(crba.mass_matrix)
    for q, v, u in states(model, law, 1000, seed=1):
        expected = system.linearize(State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(u))
        y, A, B, info = linearized(compiled, device, parameters, q, v, u)
        if expected.info.status != Status.solved or info.status != Status.solved:
            unsolved += 1
            continue
        velocity, state = relative(y.v, expected.x_next.v), relative(A, expected.A)
        free = DT * np.linalg.solve(np.asarray(mass(device, jnp.asarray(q))), np.asarray(device.actuation))
        smallest = HELD * np.abs(free).max(initial=1e-300)
        control = np.abs(np.asarray(B) - expected.B).max(initial=0.0) / max(np.abs(expected.B).max(initial=0.0), smallest)
        differ += velocity >= VELOCITY or state >= MATRIX or control >= MATRIX
    assert unsolved <= 2
    assert differ == 0


def moving_plate():
    model, rng = plate(), np.random.default_rng(5)
    q = np.asarray(model.q_default).copy()
    q[4] -= 1e-4  # the box, into the plate
    return model, q, 0.3 * rng.normal(size=model.nv), np.zeros(model.nu)


def bouncing_ball():
    model = load_model_from_string(scenes.BALL)
    model = model.replace(pair_restitution=np.full(1, 0.6))
    return model, np.asarray(model.q_default).copy(), np.array([0.4, 0.1, -1.0, 0.2, 0.1, 3.0]), np.zeros(model.nu)


def of_model(model, state, seed):
    return model, *state(model, seed)


FOREST = functools.partial(load_model_from_string, scenes.FOREST)  # box and arm, dry friction, a limit, springs, geared motors
SHOWN = functools.partial(load_model_from_string, SHAPES)
LAWS = {
    "default": RigidContact(),
    "detect": RigidContact(gap="detect", erp=0.5, damping=0.3),
    "few": RigidContact(max_contacts=3, max_limits=1),
    "contacts-only": RigidContact(limits=False, joint_friction=False),
    "capped": RigidContact(push_out_speed=0.01),
    "none": NoContact(),
}
SCENES = {
    **{name: (lambda: of_model(FOREST(), standing_forest, 3), law, "semi-implicit") for name, law in LAWS.items()},
    "moreau": (lambda: of_model(FOREST(), standing_forest, 7), RigidContact(), "moreau"),
    "mimic joints": (lambda: of_model(mimicking(), standing_forest, 6), RigidContact(), "semi-implicit"),
    # With this limit JAX collides the balls, and hands them over.
    "shapes on a tilted plane": (lambda: of_model(SHOWN(), pushed, 4), RigidContact(max_pairs=8), "semi-implicit"),
    "a plane that moves": (moving_plate, RigidContact(erp=0.3), "semi-implicit"),
    "restitution": (bouncing_ball, RigidContact(), "semi-implicit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_scenes(name):
    make, law, integrator = SCENES[name]
    model, q, v, u = make()
    compare(model, law, q, v, u, integrator)


def test_elastic_balls_exchange_velocities():
    """Two equal balls head-on with e = 1: the struck one takes all (closed form); the pair is handed over by JAX."""
    text = """<mujoco><option gravity="0 0 0"/><worldbody>
      <body><joint type="slide" axis="1 0 0"/>
        <geom name="a" type="sphere" size="0.1" mass="1" contype="0" conaffinity="0"/></body>
      <body pos="0.2 0 0"><joint type="slide" axis="1 0 0"/>
        <geom name="b" type="sphere" size="0.1" mass="1" contype="0" conaffinity="0"/></body>
      </worldbody><contact><pair geom1="a" geom2="b"/></contact></mujoco>"""
    model = load_model_from_string(text).replace(pair_restitution=np.ones(1))
    compiled, device, parameters = compiled_of(model, RigidContact())
    y, _ = stepped(compiled, device, parameters, jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.zeros(model.nu))
    np.testing.assert_allclose(y.v, [0.0, 1.0], atol=1e-12)


def test_one_step_through_every_door():
    """jit, scan, rollout, vmap, nested vmap and vmap over parameters give the numbers of single calls."""
    model, law = load_model("cube"), RigidContact()
    compiled, device, parameters = compiled_of(model, law)
    some = [tuple(jnp.asarray(a) for a in s) for s in states(model, law, 6, seed=2)]
    qs, vs = jnp.stack([s[0] for s in some]), jnp.stack([s[1] for s in some])
    tau = jnp.zeros(model.nv)

    def step(parameters, q, v, tau):
        return core_steps(compiled, parameters, q, v, tau)

    single = [step(parameters, q, v, tau) for q, v in zip(qs, vs, strict=True)]
    expected = jnp.stack([y.v for y in single])
    inner = jax.vmap(step, (None, 0, 0, None))
    np.testing.assert_array_equal(inner(parameters, qs, vs, tau).v, expected)
    nested = jax.vmap(inner, (0, 0, 0, None))(jnp.tile(parameters, (2, 1)), qs.reshape(2, 3, -1), vs.reshape(2, 3, -1), tau)
    np.testing.assert_array_equal(nested.v.reshape(6, -1), expected)
    crossed = jax.vmap(jax.vmap(step, (None, None, 0, None)), (None, 0, None, None))(parameters, qs[:2], vs[:3], tau)
    np.testing.assert_array_equal(crossed.v[1, 2], step(parameters, qs[1], vs[2], tau).v)

    def body(carry, tau):
        y = step(parameters, *carry, tau)
        return (y.q, y.v), y.v

    taus = 0.1 * jax.random.normal(jax.random.key(0), (5, model.nv))
    _, scanned = jax.lax.scan(body, (qs[0], vs[0]), taus)
    rolled = jax.jit(lambda taus: core_steps(compiled, parameters, qs[0], vs[0], taus))(taus)
    np.testing.assert_array_equal(rolled.v, scanned)
    many = jax.vmap(functools.partial(core_steps, compiled, parameters, qs[0], vs[0]))(jnp.stack([taus, 2 * taus]))
    np.testing.assert_array_equal(many.v[0], rolled.v)


def test_nan_gives_a_status():
    model, law = load_model("go1"), RigidContact()
    compiled, device, parameters = compiled_of(model, law)
    q, v, u = (jnp.asarray(a) for a in states(model, law, 1, seed=3)[0])
    for place in ("q", "v", "u", "parameters"):
        arguments = {"parameters": parameters, "q": q, "v": v, "u": u}
        arguments[place] = arguments[place].at[0 if place != "parameters" else 16].set(jnp.nan)
        y, A, B, info = linearized(compiled, device, arguments["parameters"], *(arguments[k] for k in ("q", "v", "u")))
        assert info.status == Status.non_finite, place
    y, A, B, info = linearized(compiled, device, parameters, q, v, u)
    assert info.status == Status.solved  # nothing of it stays in the workspace
    assert np.isfinite(np.asarray(A)).all()


def test_impulses_beyond_the_report_are_counted():
    """Five cubes, twenty contacts, of which the report has room for sixteen."""
    cubes = "".join(
        f'<body pos="{k} 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="1" conaffinity="0"/></body>'
        for k in range(5)
    )
    floor = '<geom type="plane" size="0 0 1" contype="0" conaffinity="1"/>'
    model = load_model_from_string(f"<mujoco><worldbody>{floor}{cubes}</worldbody></mujoco>")
    compiled, device, parameters = compiled_of(model, RigidContact())
    y, info = stepped(compiled, device, parameters, device.q_default, jnp.zeros(model.nv), jnp.zeros(model.nu))
    assert int(np.count_nonzero(np.asarray(info.contacts.impulse)[:, 2])) == 16 and int(info.overflow) == 4
    assert info.impulse.shape == (48,)
    np.testing.assert_allclose(y.v, 0.0, atol=1e-12)  # they rest


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_instruction_sets_agree(monkeypatch, isa):
    monkeypatch.setenv("TRAJOPT_NATIVE_ISA", isa)
    if not native.available():
        pytest.skip(native.reason())
    model, law = load_model("cube"), RigidContact()
    results = []
    for q, v, _ in states(model, law, 4, seed=5):
        compiled, device, parameters = compiled_of(model, law)
        q, v = jnp.asarray(q), jnp.asarray(v)
        y = core_steps(compiled, parameters, q, v, jnp.zeros(6), gain=jnp.eye(6))
        monkeypatch.delenv("TRAJOPT_NATIVE_ISA")
        compile_system(model, law, "semi-implicit")
        best = core_steps(compiled, parameters, q, v, jnp.zeros(6), gain=jnp.eye(6))
        monkeypatch.setenv("TRAJOPT_NATIVE_ISA", isa)
        results.append((relative(y.v, best.v), relative(y.A, best.A)))
    assert np.max(results) < 1e-11


def test_a_long_chain_takes_the_generic_path():
    """60 joints: no size that the compiler knows."""
    body = '<body pos="0.1 0 0"><joint axis="{}"/><geom type="sphere" size="0.02" mass="0.1" contype="0" conaffinity="0"/>'
    axes = ("0 1 0", "0 0 1", "1 0 1")
    chain = "".join(body.format(axes[k % 3]) for k in range(60)) + "</body>" * 60
    model = load_model_from_string(f"<mujoco><worldbody>{chain}</worldbody></mujoco>")
    q = random_configuration(model.to_device(), jax.random.key(1))
    compare(model, NoContact(), q, 0.1 * np.ones(60), np.zeros(model.nu))


def test_arguments_of_the_wrong_size_are_named():
    model = load_model("cube")
    compiled, device, parameters = compiled_of(model, RigidContact())
    with pytest.raises(Exception, match="parameters holds"):
        stepped(compiled, device, parameters[:-1], device.q_default, jnp.zeros(6), jnp.zeros(0))[0].v.block_until_ready()


def test_packing_is_differentiable():
    """Every number of the model that a step depends on passes through the packing with its derivative."""
    model = load_model("cube").to_device()
    compiled = compile_system(model, RigidContact(), "semi-implicit")

    def packed(mass):
        return pack_parameters(compiled, model.replace(mass=mass), DT)

    slope = jax.jvp(packed, (model.mass,), (jnp.ones_like(model.mass),))[1]
    assert float(jnp.sum(slope)) == model.mass.shape[0]


def test_a_contact_that_others_hold_back_takes_its_share():
    """Without friction on a floor the four corners of a box are redundant by one, and the differences of the shortest impulse
    along the edges cancel, also where a turn would lift one corner that the push-out of the three others holds back."""
    box = """<mujoco><option gravity="0 0 -9.81"/><worldbody><geom type="plane" size="0 0 1" friction="0"/><body pos="0 0 0.0998">
      <freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" friction="0"/></body></worldbody></mujoco>"""
    system = System(load_model_from_string(box), 1e-3, backend="native")
    x = system.initial_state()
    spin = np.array([0.4, 0.2, 0.0])
    y, info = system.step(State(x.q, x.v.at[3:].set(jnp.asarray(spin))), np.zeros(system.nu))
    corners = np.asarray(info.contacts.point)[:4]
    pushed_out = float(y.v[2])  # m/s, of all four corners: the box has ceased to turn
    np.testing.assert_allclose(y.v[3:], 0.0, atol=1e-12)
    assert np.cross(spin, corners)[:, 2].max() > pushed_out + 9.81e-3  # without impulses this corner would leave
    normal = np.asarray(info.impulse).reshape(-1, 3)[:4, 2]
    assert np.all(normal > 1e-3)
    np.testing.assert_allclose(np.prod(np.sign(corners[:, :2]), 1) @ normal, 0.0, atol=1e-12)


@pytest.mark.parametrize("ratio", [1, 100])
def test_a_pile_at_rest_is_solved_at_once(ratio):
    """Ten boxes fall as one: whether the contacts between them close is up to the lowest, and rounding must not decide.
    ratio: of the masses of neighbours."""
    from validation_experiments.scenes import stack_xml

    model = load_model_from_string(stack_xml(ratio))
    system = System(model, 1e-3, RigidContact(max_contacts=40), backend="native")
    x = system.initial_state()
    xs, infos = system.rollout(x, jnp.zeros((200, 0)))
    assert np.abs(np.asarray(xs.q) - np.asarray(x.q)).max() < 1e-12
    assert np.all(np.asarray(infos.contacts.mode) > 0) and infos.contacts.mode.shape == (200, 40)
    assert np.max(infos.iterations) <= 3 and np.max(infos.fallbacks) == 0 and np.max(infos.residual) < 1e-10
