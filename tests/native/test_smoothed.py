"""Smoothed contact in the compiled core: JAX's function, its derivatives, and gradient mode "smoothed"."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.contact import scenes
from dynamics.contact.test_smoothed import PAIR
from dynamics.system_cases import forest_case
from dynamics.test_output_slopes import OTHERS, impulse_of
from dynamics.test_system_derivatives import QUICK, SLOW, STEP_Q, STEP_U, STEP_V, columns_of
from ridders import compare, ridders_jacobian

from native.cases import DT, MATRIX, VELOCITY, check, compiled_of, needs_core, relative, states
from native.test_core import PLATE, SHAPES, pushed, standing_forest
from trajopt import load_model
from trajopt.dynamics import RigidContact, SmoothedContact, State, System
from trajopt.dynamics.contact.laws import SmoothedBox
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.errors import OptionError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

pytestmark = needs_core

ALL = {"max_contacts": 64, "max_limits": 64}  # the JAX path keeps all rows that act, as the core does
# Two boxes on each other, turned, with gaps of millimetres.
HEAP = """<mujoco model="heap"><worldbody>
  <geom type="plane" size="0 0 1" friction="0.5"/>
  <body pos="0 0 0.101"><freejoint/><geom type="box" size="0.2 0.15 0.1" mass="2" friction="0.5"/></body>
  <body pos="0.03 0.02 0.304" euler="2 1 30"><freejoint/><geom type="box" size="0.1 0.12 0.1" mass="1" friction="0.5"/></body>
</worldbody></mujoco>"""


def law(kappa: float = 300.0, **options) -> SmoothedContact:
    return SmoothedContact(kappa, **{**ALL, **options})


def both(model, contact, **options) -> tuple[System, System]:
    """(compiled core, JAX)."""
    return tuple(System(model, DT, contact=contact, backend=backend, **options) for backend in ("native", "jax"))


# -- the same function as JAX --------------------------------------------------------------------------------------------


def require_same_step(core: System, reference: System, x: State, u) -> None:
    require_same(core.step(x, u), reference.step(x, u))


def require_same(found, expected) -> None:
    (one, ours), (other, theirs) = found, expected
    assert ours.status == theirs.status == Status.solved
    assert relative(one.v, other.v) < VELOCITY and relative(one.q, other.q) < VELOCITY
    # Of contacts that bodies cannot follow in all directions both select the shortest impulse: to 1e-5, as for hard contact. JAX
    # may miss a direction without motion of a contact that is very soft: then its impulse is one of many, and a longer one.
    if ours.degenerate and not theirs.degenerate:
        assert np.linalg.norm(ours.impulse) <= np.linalg.norm(theirs.impulse) * (1 + 1e-9)
    else:
        assert relative(ours.impulse, theirs.impulse) < (1e-5 if ours.degenerate else 1e-7)
    for name in ("mode", "tied", "node1", "node2", "pair"):
        np.testing.assert_array_equal(getattr(ours.contacts, name), getattr(theirs.contacts, name), err_msg=name)
    assert int(ours.dropped) == int(theirs.dropped)
    # JAX may miss a direction without motion of a contact that is very soft.
    assert ours.degenerate or not theirs.degenerate


def forest_states(count: int, seed: int):
    """The box from 2 mm deep to 0.15 m over the floor, where no contact acts any more, and the tip of the arm in the floor."""
    model = scenes.model("forest")
    rng = np.random.default_rng(seed)
    for k in range(count):
        q, v, u = standing_forest(model, seed + k)
        q[2] = 0.1 + [-2e-3, 1e-3, 0.03, 0.09, 0.15][k % 5] * rng.uniform(0.5, 1.0)
        q[3:7] = scenes.about(rng.normal(size=3), 0.05)
        v[2] = -0.5
        yield State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(u)


def test_hard_and_soft_contacts_side_by_side():
    """The compliance of the box reaches 5e13 times its inverse mass, that of the tip and of the elbow's friction is none."""
    core, reference = both(scenes.model("forest"), law())
    for x, u in forest_states(10, seed=0):
        require_same_step(core, reference, x, u)


def test_bodies_push_each_other_at_any_distance():
    """At kappa = 10 / m two balls 1.5 m apart still meet, pairs that hard contact would leave out."""
    core, reference = both(load_model_from_string(PAIR), law(10.0, erp=0.0))
    for heights in ([0.1, 0.3], [0.2, 1.9], [0.3, 0.3], [2.0, 2.5]):
        x = State(jnp.asarray(heights), jnp.array([0.3, -0.8]))
        require_same_step(core, reference, x, jnp.zeros(core.nu))


def test_pairs_in_reach_act_whether_they_are_reported_or_not():
    """Seven balls on a line have 21 pairs, of which a report holds 16: all act, and `overflow` counts the others."""
    balls = "".join(
        f'<body pos="0 0 {0.3 * k}"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="1"/></body>'
        for k in range(7)
    )
    model = load_model_from_string(f"<mujoco><worldbody>{balls}</worldbody></mujoco>")
    x, u = State(np.zeros(7), -np.arange(7.0)), np.zeros(7)
    few, every = (System(model, DT, contact=SmoothedContact(5.0, **rows), backend="native") for rows in ({}, ALL))
    (one, part), (other, whole) = few.step(x, u), every.step(x, u)
    assert len(part.contacts.pair) == 16 and np.count_nonzero(np.asarray(whole.contacts.impulse)[:, 2]) == 21
    np.testing.assert_allclose(one.v, other.v, atol=1e-9)
    assert part.overflow == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper", "half-cheetah", "cube", "go1", "heap", "forest", "shapes", "plate"])
def test_jacobians_of_random_states(name):
    """v+, A, B, modes and the report, as for hard contact."""
    scene = {"heap": HEAP, "shapes": SHAPES, "plate": PLATE, "forest": scenes.FOREST}.get(name)
    model = load_model(name) if scene is None else load_model_from_string(scene)
    compiled, device, parameters = compiled_of(model, law())
    system = System(device, DT, contact=law(), backend="jax")
    given = states(model, RigidContact(), 12, seed=3) if scene is None else [pushed(device, seed) for seed in range(12)]
    for q, v, u in given:
        check(compiled, device, parameters, system, q, v, u)


# -- derivatives of the core's own step --------------------------------------------------------------------------------


def heap():
    model = load_model_from_string(HEAP).to_device()
    v = 0.3 * np.random.default_rng(4).normal(size=model.nv)
    v[2::6] -= 0.4
    return System(model, DT), State(np.asarray(model.q_default), v), np.zeros(0)


def bouncing():
    """A ball that bounces 2 mm above the floor, where hard contact would not be touched."""
    model = scenes.model("ball")
    model = model.replace(pair_restitution=jnp.full_like(model.pair_restitution, 0.4))
    v = np.array([0.3, -0.1, -0.8, 1.0, 0.4, 0.2])
    return System(model, DT), State(np.array([0.1, -0.2, 0.102, 1, 0, 0, 0]), v), np.zeros(0)


def over_the_floor():
    system, x, u = forest_case("touching")
    q = np.array(x.q)
    q[2] += 4e-3
    return system, State(q, x.v), u


OWN = {"moreau": OTHERS["moreau"], "mimic": OTHERS["mimic"], "heap": heap, "bouncing": bouncing, "over the floor": over_the_floor}


def touches(name: str) -> bool:
    """Whether a case has contacts that are near: the sliders have none."""
    return "sliders" not in name and "flight" not in name


EACH = [
    *(pytest.param(case, id=name) for name, case in {**QUICK, **OWN}.items() if touches(name)),
    *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items() if touches(name)),
]


@pytest.mark.parametrize("case", EACH)
def test_derivatives_against_ridders(case):
    """A, B, C and D to 1e-6, under erp = 0: the push-out has a kink where shapes touch."""
    system, x, u = case()
    system = dataclasses.replace(system, contact=SmoothedContact(200.0, erp=0.0, max_contacts=64), backend="native")
    found = system.linearize(x, u, outputs=("impulse",))
    y, info = system.step(x, u)
    assert info.status == found.info.status == Status.solved
    np.testing.assert_array_equal(found.x_next.v, y.v)
    columns = columns_of(system)
    h = np.r_[np.full(system.nv, STEP_Q), np.full(system.nv, STEP_V), np.full(system.nu, STEP_U)]
    estimate = ridders_jacobian(scenes.tangent_step(system, x, u), len(h), h, columns)
    compare(np.hstack([found.A, found.B])[:, columns], estimate, label="state")
    impulse = impulse_of(system, x, u)
    estimate = ridders_jacobian(lambda z: np.asarray(impulse(jnp.asarray(z))), len(h), h, columns)
    slopes = found.outputs["impulse"]
    compare(np.hstack([slopes.C, slopes.D])[:, columns], estimate, label="impulse")


# -- gradient mode "smoothed" ------------------------------------------------------------------------------------------


def modes(kappa: float = 200.0, **options) -> tuple[System, System]:
    """Hard contact with smoothed gradients, and smoothed contact, at a kappa."""
    hard = System(
        scenes.model("forest"),
        DT,
        contact=RigidContact(**ALL),
        gradient="smoothed",
        kappa=kappa,
        backend="native",
        **options,
    )
    return hard, dataclasses.replace(hard, contact=law(), gradient="implicit")


@pytest.mark.parametrize("integrator", ["semi-implicit", "moreau"])
def test_the_value_is_hard_and_the_derivative_smoothed(integrator):
    """d v+ and d impulse are those of smoothed contact; q+ moves with the v+ of hard contact."""
    hard, soft = modes(integrator=integrator)
    _, x, u = over_the_floor()
    step, value = hard.linearize(x, u, outputs=("impulse",)), dataclasses.replace(hard, gradient="implicit").step(x, u)
    other = soft.linearize(x, u, outputs=("impulse",))
    np.testing.assert_array_equal(step.x_next.v, value[0].v)
    np.testing.assert_array_equal(step.x_next.q, value[0].q)
    np.testing.assert_array_equal(step.info.impulse, value[1].impulse)
    assert relative(step.x_next.v, other.x_next.v) > 1e-3
    nv = hard.nv
    np.testing.assert_array_equal(step.A[nv:], other.A[nv:])
    np.testing.assert_array_equal(step.outputs["impulse"].C, other.outputs["impulse"].C)
    rest = DT if integrator == "semi-implicit" else 0.5 * DT

    def onward(z):  # the motion on the manifold at v+ of hard contact that moves as smoothed contact says
        q, v = integrate(hard.model, jnp.asarray(x.q), z[:nv]), x.v + z[nv : 2 * nv]
        q = q if integrator == "semi-implicit" else integrate(hard.model, q, rest * v)
        v_next = step.x_next.v + other.A[nv:] @ z[: 2 * nv] + other.B[nv:] @ z[2 * nv :]
        return difference(hard.model, step.x_next.q, integrate(hard.model, q, rest * v_next))

    expected = jax.jacfwd(onward)(jnp.zeros(2 * nv + hard.nu))
    np.testing.assert_allclose(np.hstack([step.A, step.B])[:nv], expected, atol=1e-13)


@functools.partial(jax.jit, static_argnums=0)
def both_modes(gradient: str, system: System, x: State, u):
    """A step's value, and its derivative along ones, forward, and of its sum, in reverse."""
    system = dataclasses.replace(system, gradient=gradient)

    def step(q, v, u):
        y, info = system.step(State(q, v), u)
        return y.q, y.v, info.impulse, info.contacts.distance

    given = (x.q, x.v, u)
    value, forward = jax.jvp(step, given, jax.tree.map(jnp.ones_like, given))
    return value, forward, jax.vjp(step, *given)[1](jax.tree.map(jnp.ones_like, value))


def require_same_derivatives(model, given, **options) -> None:
    core, reference = both(model, RigidContact(**ALL), gradient="smoothed", **options)
    assert core.resolved_backend == "native"
    for x, u in given:
        ours, theirs = both_modes("smoothed", core, x, u), both_modes("smoothed", reference, x, u)
        for part, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert relative(part, other) < MATRIX
        one, two = core.linearize(x, u), reference.linearize(x, u)
        assert relative(one.A, two.A) < MATRIX and relative(one.B, two.B) < MATRIX


MODES = [("forest", "semi-implicit"), ("forest", "moreau"), ("half-cheetah", "semi-implicit")]


@pytest.mark.slow
@pytest.mark.parametrize("name, integrator", MODES)
def test_the_mode_agrees_with_jax(name, integrator):
    if name == "forest":
        return require_same_derivatives(scenes.model("forest"), forest_states(5, seed=5), kappa=100.0, integrator=integrator)
    model, at = load_model(name), jnp.asarray
    given = [(State(at(q), at(v)), at(u)) for q, v, u in states(model, RigidContact(), 6, seed=6)]
    require_same_derivatives(model, given)


def test_a_batch_in_reverse_is_two_calls_of_the_core():
    """The hard step and the smoothed one's A and B; nothing of the JAX implementation's contact is in the program."""
    hard, _ = modes()
    _, x, u = over_the_floor()

    @jax.jit
    def slope(system: System, x: State, us):
        def loss(us):
            y, _ = jax.vmap(lambda u: system.step(x, u))(us)
            return jnp.sum(y.v**2) + jnp.sum(y.q)

        return jax.grad(loss)(us)

    us = jnp.asarray(u) + jnp.linspace(0.0, 1.0, 5)[:, None]
    x = State(jnp.asarray(x.q), jnp.asarray(x.v))
    text = slope.lower(hard, x, us).compile().as_text()
    assert text.count('custom_call_target="trajopt_steps') == text.count('custom_call_target="') == 2
    got = slope(hard, x, us)
    for k in range(5):
        found = hard.linearize(x, us[k])
        cotangent = jnp.concatenate(
            [
                jax.vjp(lambda d, q=found.x_next.q: integrate(hard.model, q, d), jnp.zeros(hard.nv))[1](
                    jnp.ones(hard.nq)
                )[0],
                2 * found.x_next.v,
            ]
        )
        np.testing.assert_allclose(got[k], cotangent @ found.B, rtol=1e-10)


# -- options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "contact, reason", [(SmoothedContact(sweeps=5), "sweeps=5"), (SmoothedBox(), "SmoothedBox is solved by the JAX")]
)
def test_what_stays_with_jax(monkeypatch, contact, reason):
    monkeypatch.delenv("TRAJOPT_BACKEND", raising=False)
    system = System(scenes.model("ball"), DT, contact=contact)
    assert system.resolved_backend == "jax" and reason in system.backend_reason
    with pytest.raises(OptionError, match=reason):
        dataclasses.replace(system, backend="native")
