"""The System's interface: validation, and the same answers under jit, vmap, rollout and in single precision.

Rollouts that keep only some of their states for reverse mode.

What a step must keep: closed forms, momentum, energy, and independence of how the solver is started.
"""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from compilations import compilations

from dynamics.contact import scenes
from dynamics.system_cases import cube_case, forest_case
from trajopt import load_model
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.system import State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

CONVERSIONS = {"jit(convert_element_type)", "jit(broadcast_in_dim)"}  # of arguments, by JAX itself
WRONG = (ShapeError, jaxtyping.TypeCheckError)

# -- validation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, error, message",
    [
        # The annotation `x: State` speaks first where shapes are checked at run time.
        (
            {"x": (np.zeros(7), np.zeros(6))},
            (ShapeError, jaxtyping.TypeCheckError),
            r"x is tuple, expected a State|checking parameter|typechecking parameter",
        ),
        ({"q": np.zeros(6)}, ShapeError, r"x\.q has shape \(6,\), expected \(7,\)"),
        ({"q": np.zeros((2, 7))}, ShapeError, r"x\.q has shape \(2, 7\).*jax\.vmap"),
        ({"v": np.zeros(7)}, ShapeError, r"x\.v has shape \(7,\), expected \(6,\)"),
        ({"u": np.zeros(3)}, ShapeError, r"u has shape \(3,\), expected \(0,\)"),
        ({"v": np.array([0, np.nan, 0, 0, 0, 0])}, NonFiniteError, r"x\.v\[1\] is nan"),
        ({"q": np.array([0, 0, np.inf, 1, 0, 0, 0])}, NonFiniteError, r"x\.q\[2\] is inf"),
        ({"force": np.zeros(5)}, ShapeError, r"force has shape \(5,\), expected \(6,\)"),
        ({"force": np.full(6, np.nan)}, NonFiniteError, r"force\[0\]"),
        ({"warm_start": np.zeros(3)}, ShapeError, r"warm_start has shape \(3,\), expected \(12,\)"),
        ({"v": jnp.zeros(6, jnp.float32)}, ShapeError, r"x\.v is float32 but the system's model is float64"),
        # Where shapes are checked at run time, the annotation of `State` speaks first for q and v.
        ({"q": np.array([0, 0, 1j, 1, 0, 0, 0])}, WRONG, r"x\.q holds complex numbers|type.?check"),
        ({"v": np.array(list("abcdef"))}, WRONG, r"x\.v holds text|type.?check"),
        ({"v": jnp.zeros(6, complex)}, WRONG, r"x\.v holds complex numbers|type.?check"),
        ({"u": np.zeros(0, complex)}, WRONG, r"u holds complex numbers|type.?check"),
        ({"u": "fast"}, WRONG, r"u holds text|type.?check"),
        ({"force": np.zeros(6, complex)}, WRONG, r"force holds complex numbers|type.?check"),
        ({"force": ["a"] * 6}, WRONG, r"force holds text|type.?check"),
        ({"warm_start": np.full(12, 1j)}, WRONG, r"warm_start holds complex numbers|type.?check"),
    ],
)
@pytest.mark.parametrize("method", ["step", "linearize"])
def test_arguments_are_checked_by_name_before_anything_is_compiled(method, change, error, message):
    sys = scenes.system("cube")
    x = change.get("x", State(change.get("q", np.array([0, 0, 1.0, 1, 0, 0, 0])), change.get("v", np.zeros(6))))
    options = {k: change[k] for k in ("force", "warm_start") if k in change}
    with compilations() as count, pytest.raises(error, match=message):
        getattr(sys, method)(x, change.get("u", np.zeros(0)), **options)
    assert count.names <= CONVERSIONS


@pytest.mark.check
def test_options_are_checked():
    model = scenes.model("ball")
    for dt in (0.0, -1e-3, np.nan, np.inf):
        with pytest.raises(OptionError, match="dt is"):
            System(model, dt=dt)
    with pytest.raises(OptionError, match=r"gradient is 'implict'.*implicit"):
        System(model, dt=1e-3, gradient="implict")
    with pytest.raises(OptionError, match="contact is 'rigid', expected a contact law"):
        System(model, dt=1e-3, contact="rigid")
    for dt in (None, "fast", 1e-3j, [1e-3], np.array("fast"), np.array(1j)):
        with pytest.raises(OptionError, match="dt is .*, expected a positive step in seconds"):
            System(model, dt=dt)
    for kappa in ("sharp", -1.0, 1j, np.nan):
        with pytest.raises(OptionError, match="kappa is .*, expected a positive number"):
            System(model, dt=1e-3, kappa=kappa)
    for wrong in ("banana", None, 3.0):
        with pytest.raises(OptionError, match=r"model is .*, expected a Model; trajopt\.load_model"):
            System(wrong, dt=1e-3)
    for options, name in (
        ({"erp": 1.5}, "erp"),
        ({"gap": "closed"}, "gap"),
        ({"max_contacts": -1}, "max_contacts"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"solver": "newtn"}, "solver"),
        ({"damping": -1.0}, "damping"),
        ({"erp": "some"}, "erp is 'some'"),
        ({"push_out_speed": 0.0}, "push_out_speed is 0.0; it must be positive"),
        ({"max_contacts": "many"}, "max_contacts is 'many'"),
        ({"max_iterations": "many"}, "max_iterations is 'many'"),
        ({"tolerance": "fine"}, "tolerance is 'fine'"),
    ):
        with pytest.raises(OptionError, match=name):
            RigidContact(**options)
    sys = scenes.system("cube")
    with pytest.raises(UnknownNameError, match=r"'hom'.*home"):
        sys.initial_state("hom")
    with pytest.raises(UnknownNameError, match=r"'masses'.*mass"):
        sys.linearize(sys.initial_state(), np.zeros(0), parameters=("masses",))
    with pytest.raises(ShapeError, match=r"us has shape \(4, 2\), expected \(T, 0\)"):
        sys.rollout(sys.initial_state(), np.zeros((4, 2)))
    go1 = scenes.system("go1")
    with pytest.raises(NonFiniteError, match=r"us\[3, 2\]"):
        us = np.zeros((5, 12))
        us[3, 2] = np.nan
        go1.rollout(go1.initial_state("home"), us)


# -- transformations ---------------------------------------------------------------------------------------------------


def test_one_compilation_serves_all_systems_of_a_model():
    """Another System, other numbers in the model, another dt: the compiled step is used again."""
    first = scenes.system("ball")
    x = State(np.array([0, 0, 0.3, 1, 0, 0, 0]), np.zeros(6))
    first.step(x, np.zeros(0))
    lighter = scenes.model("ball").replace(mass=scenes.model("ball").mass * 0.5)
    again = load_model_from_string(scenes.BALL)  # loaded anew: another Topology object, equal by value
    others = System(lighter, dt=2e-3), scenes.system("ball"), System(again, dt=1e-3)
    with compilations() as count:
        for sys in others:
            sys.step(x, np.zeros(0))
    assert count.programs == 0
    other_law = System(again, dt=1e-3, contact=RigidContact(erp=0.25))
    with compilations() as count:
        other_law.step(x, np.zeros(0))
    assert count.programs == 1, "the law is part of what is compiled"


def test_optional_arguments_do_not_compile_again():
    """A warm start or a force, from NumPy or from the last step, uses the step compiled without them."""
    sys = scenes.system("ball")
    x = State(np.array([0, 0, 0.3, 1, 0, 0, 0]), np.zeros(6))
    _, info = sys.step(x, np.zeros(0))
    with compilations() as count:
        sys.step(x, np.zeros(0), warm_start=info.impulse)
        sys.step(x, np.zeros(0), warm_start=np.ones(3))
        sys.step(x, np.zeros(0), force=np.ones(6))
    assert count.programs == 0


def test_step_under_jit_and_vmap():
    """jit and vmap give what single calls give; in one batch, flight, standing, sliding and landing side by side."""
    sys, _, u = cube_case("flight")
    kinds = ("flight", "standing", "sliding", "landing", "edge")
    single = [sys.step(scenes.cube_state(k), u)[0] for k in kinds]
    batch = State(*(jnp.stack([jnp.asarray(getattr(scenes.cube_state(k), f)) for k in kinds]) for f in ("q", "v")))
    together, info = jax.jit(jax.vmap(lambda x: sys.step(x, jnp.asarray(u))))(batch)
    # Other order of sums in the batched linear algebra: rounding, times the regularisation's 1e6 for redundant contacts.
    np.testing.assert_allclose(together.v, np.stack([y.v for y in single]), atol=1e-11)
    np.testing.assert_allclose(together.q, np.stack([y.q for y in single]), atol=1e-13)
    assert np.all(np.asarray(info.status == Status.solved))


def test_rollout_equals_repeated_steps():
    sys = scenes.system("forest")
    _, x, _ = forest_case("touching")
    rng = np.random.default_rng(0)
    us = 0.3 * rng.normal(size=(30, 2))
    xs, infos = sys.rollout(x, us)
    assert xs.q.shape == (31, sys.nq) and infos.impulse.shape[0] == 30
    start = None
    for t, u in enumerate(us):
        np.testing.assert_allclose(xs.q[t], x.q, atol=1e-10)
        np.testing.assert_allclose(xs.v[t], x.v, atol=1e-9)  # rounding grows through 30 steps of contact
        x, info = sys.step(x, u, warm_start=start)
        start = info.impulse
    np.testing.assert_allclose(xs.v[30], x.v, atol=1e-9)
    assert np.all(np.asarray(infos.status == Status.solved)) and np.asarray(infos.contacts.mode).max() > 0


def test_float32():
    """The same states in single precision: answers to 1e-4 of the velocities, leaves stay float32."""
    model = scenes.model("cube").to_device(jnp.float32)
    sys, exact = System(model, dt=1e-3), scenes.system("cube")
    for kind in ("standing", "sliding", "landing", "flight"):
        x = scenes.cube_state(kind)
        single = State(jnp.asarray(x.q, jnp.float32), jnp.asarray(x.v, jnp.float32))
        y, info = sys.step(single, jnp.zeros(0, jnp.float32))
        assert y.q.dtype == y.v.dtype == info.residual.dtype == info.impulse.dtype == jnp.float32
        assert info.status == Status.solved
        expected, _ = exact.step(x, np.zeros(0))
        # phi / dt: a distance of 1e-4 m known to 1e-8 m (rounding of a height of 0.1 m) over 1e-3 s: 1e-5 m/s, amplified by
        # the box's inertia to 1e-4 rad/s.
        scale = max(1.0, float(jnp.abs(expected.v).max()))
        np.testing.assert_allclose(y.v, expected.v, atol=2e-4 * scale)
        jac = sys.linearize(single, jnp.zeros(0, jnp.float32))
        assert jac.A.dtype == jnp.float32 and np.isfinite(jac.A).all()


@pytest.fixture(scope="module")
def system():
    return System(load_model("drone"), 1e-3, contact=NoContact())


def test_segments_change_neither_motion_nor_gradient(system):
    """Seven steps in segments of three, and one segment that is longer than the rollout."""
    x0, us = system.initial_state("home"), jnp.arange(7.0)[:, None]

    def loss(us, segment):
        xs, infos = system.rollout(x0, us, segment=segment)
        assert xs.q.shape == (8, 1) and infos.residual.shape == (7,)
        return jnp.sum(xs.q**2)

    plain, cut = [jax.jit(jax.value_and_grad(lambda us, k=k: loss(us, k)))(us) for k in (None, 3)]
    np.testing.assert_allclose(cut[0], plain[0], rtol=1e-14)
    np.testing.assert_allclose(cut[1], plain[1], rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda us: loss(us, 10))(us), plain[0], rtol=1e-14)


def test_a_segment_has_steps(system):
    with pytest.raises(OptionError, match="segment is 0, expected a number of steps"):
        system.rollout(system.initial_state("home"), np.zeros((3, 1)), segment=0)


@pytest.mark.parametrize("law", [RigidContact(), NoContact()])
def test_free_fall_is_exact(law):
    """Semi-implicit Euler: v_k = v_0 - k g dt, z_k = z_0 + k dt v_0 - g dt^2 k (k + 1) / 2, also with contact in the model."""
    sys = System(scenes.model("ball"), dt=1e-3, contact=law)
    xs, infos = sys.rollout(
        State(np.array([0, 0, 5.0, 1, 0, 0, 0]), np.array([1.0, -2, 3, 0.5, 0, 0])), np.zeros((200, 0))
    )
    k = np.arange(201)
    np.testing.assert_allclose(xs.v[:, 2], 3.0 - scenes.GRAVITY * 1e-3 * k, atol=1e-12)
    np.testing.assert_allclose(xs.q[:, 2], 5.0 + 3e-3 * k - scenes.GRAVITY * 1e-6 * k * (k + 1) / 2, atol=1e-12)
    np.testing.assert_allclose(xs.q[:, :2], 1e-3 * k[:, None] * [1.0, -2.0], atol=1e-12)
    np.testing.assert_allclose(xs.q[-1, 3:], scenes.about([1, 0, 0], 0.5 * 0.2), atol=1e-12)
    assert infos.impulse.size == 0 or np.all(np.asarray(infos.impulse) == 0)


def test_momentum_of_the_cube_balances():
    """Linear and angular momentum about the world's origin change by the impulses of gravity and contact, as reported."""
    sys = scenes.system("cube")
    inertia = 1.0 / 6.0 * 0.2**2
    for kind in ("standing", "sliding", "landing", "edge"):
        x = scenes.cube_state(kind)
        y, info = sys.step(x, np.zeros(0))
        force = np.einsum("kij,kj->ki", np.asarray(info.contacts.frame), np.asarray(info.contacts.impulse))
        weight = np.array([0, 0, -scenes.GRAVITY * 1e-3])
        np.testing.assert_allclose(np.asarray(y.v[:3]) - x.v[:3], force.sum(0) + weight, atol=1e-13)
        R, lever = scenes.rotation(x.q[3:]), np.asarray(info.contacts.point) - x.q[:3]
        turn = R @ (inertia * (np.asarray(y.v[3:]) - x.v[3:]))  # a cube's inertia is a multiple of the identity
        np.testing.assert_allclose(turn, np.cross(lever, force).sum(0), atol=1e-13)


def test_contact_does_not_create_energy():
    """A tumbling cube: kinetic plus potential energy never rises by more than the integrator and the push-out account for."""
    sys = scenes.system("cube", erp=0.0)
    xs, infos = sys.rollout(
        State(np.array([0, 0, 0.25, *scenes.about([1, 2, 3], 0.7)]), np.array([1.0, -0.5, 0, 3, -1, 2])),
        np.zeros((600, 0)),
    )
    q, v = np.asarray(xs.q), np.asarray(xs.v)
    energy = 0.5 * (v[:, :3] ** 2).sum(1) + 0.5 * (0.04 / 6) * (v[:, 3:] ** 2).sum(1) + scenes.GRAVITY * q[:, 2]
    assert np.all(np.asarray(infos.status == Status.solved))
    assert np.asarray(infos.contacts.mode).max() == 2 and energy[-1] < 0.6 * energy[0]
    # In flight the integrator loses g^2 dt^2 / 2; a corner caught before it touches (phi > 0) does no work by the floor but
    # its velocity row is evaluated at the old place: the error is of second order, (v dt) times the impulse's rate.
    assert np.diff(energy).max() < 2e-3 * energy[0]
