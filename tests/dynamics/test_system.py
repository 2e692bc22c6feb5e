"""The System: validation, transformations, conservation laws, and its derivatives against Ridders extrapolation."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from ridders import compare, ridders, ridders_jacobian

from dynamics.contact import scenes
from trajopt.dynamics import system as system_module
from trajopt.dynamics.contact.law import NoContact, RigidContact
from trajopt.dynamics.system import State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.result import Status


def cube_case(kind):
    return scenes.system("cube"), scenes.cube_state(kind), np.zeros(0)


def robot_case(name, kind):
    return (scenes.system(name), *scenes.robot_state(name, kind))


def forest_case(kind):
    """The box on the floor and the arm whose tip touches it, with dry friction at the elbow."""
    sys = scenes.system("forest")
    # The tip's height over the floor is 0.5 - 0.3 cos(a) - 0.25 cos(a + e) - 0.03 for the angles a and e.
    arm = {"touching": (0.6, -0.19), "limit": (-1.502, 0.4)}[kind]
    a = arm[0]
    elbow = np.arccos((0.47 - 0.3 * np.cos(a) + 1e-4) / 0.25) - a if kind == "touching" else arm[1]
    q = np.array([1.0, 0.2, 0.0999, *scenes.about([0, 0, 1], 0.4), a, 0.0, elbow])
    v = np.array([0.5, -0.2, 0, 0, 0, 1.0, 0.1 if kind == "touching" else -0.4, 0.05, -0.3])
    return sys, State(q, v), np.array([0.2, -0.1])


def slider_case(kind):
    sys = scenes.system("sliders")
    x, u = {
        "limit closing": (State(np.array([0.4995, 0.1]), np.array([2.0, 0.5])), np.array([0.3, -0.2])),
        "limit penetrated": (State(np.array([-0.501, 0.1]), np.array([-0.1, 0.5])), np.array([0.3, -0.2])),
        "dry friction slipping": (State(np.zeros(2), np.array([0.7, -0.3])), np.array([1.0, 1.0])),
        "dry friction holding": (State(np.zeros(2), np.zeros(2)), np.array([1.0, 0.2])),
    }[kind]
    return sys, x, u


def bouncing_case():
    sys = scenes.system("cube")
    model = sys.model.replace(pair_restitution=jnp.asarray([0.6]))
    return dataclasses.replace(sys, model=model), scenes.cube_state("landing"), np.zeros(0)


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
    ],
)
@pytest.mark.parametrize("method", ["step", "linearize"])
def test_arguments_are_checked_by_name(method, change, error, message, monkeypatch):
    def never(*_):
        raise AssertionError("the compiled function was reached")

    monkeypatch.setattr(system_module, f"_{method}", never)
    sys = scenes.system("cube")
    x = change.get("x", State(change.get("q", np.array([0, 0, 1.0, 1, 0, 0, 0])), change.get("v", np.zeros(6))))
    options = {k: change[k] for k in ("force", "warm_start") if k in change}
    with pytest.raises(error, match=message):
        getattr(sys, method)(x, change.get("u", np.zeros(0)), **options)


def test_options_are_checked():
    model = scenes.model("ball")
    for dt in (0.0, -1e-3, np.nan, np.inf):
        with pytest.raises(OptionError, match="dt is"):
            System(model, dt=dt)
    with pytest.raises(OptionError, match=r"gradient is 'implict'.*implicit"):
        System(model, dt=1e-3, gradient="implict")
    with pytest.raises(OptionError, match="contact is 'rigid', expected a contact law"):
        System(model, dt=1e-3, contact="rigid")
    for options, name in (
        ({"erp": 1.5}, "erp"),
        ({"gap": "closed"}, "gap"),
        ({"max_contacts": -1}, "max_contacts"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"solver": "newtn"}, "solver"),
        ({"damping": -1.0}, "damping"),
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
        go1.rollout(go1.initial_state(), us)


# -- transformations ---------------------------------------------------------------------------------------------------


def test_one_compilation_serves_all_systems_of_a_model():
    """Another System, other numbers in the model, another dt: the compiled step is used again."""
    from trajopt.models.registry import load_model_from_string

    first = scenes.system("ball")
    x = State(np.array([0, 0, 0.3, 1, 0, 0, 0]), np.zeros(6))
    first.step(x, np.zeros(0))
    size = system_module._step._cache_size()
    lighter = scenes.model("ball").replace(mass=scenes.model("ball").mass * 0.5)
    again = load_model_from_string(scenes.BALL)  # loaded anew: another Topology object, equal by value
    for sys in (System(lighter, dt=2e-3), scenes.system("ball"), System(again, dt=1e-3)):
        sys.step(x, np.zeros(0))
    assert system_module._step._cache_size() == size
    System(again, dt=1e-3, contact=RigidContact(erp=0.25)).step(x, np.zeros(0))
    assert system_module._step._cache_size() == size + 1, "the law is part of what is compiled"


def test_optional_arguments_do_not_compile_again():
    """A warm start or a force, from NumPy or from the last step, uses the step compiled without them."""
    sys = scenes.system("ball")
    x = State(np.array([0, 0, 0.3, 1, 0, 0, 0]), np.zeros(6))
    _, info = sys.step(x, np.zeros(0))
    size = system_module._step._cache_size()
    sys.step(x, np.zeros(0), warm_start=info.impulse)
    sys.step(x, np.zeros(0), warm_start=np.ones(3))
    sys.step(x, np.zeros(0), force=np.ones(6))
    assert system_module._step._cache_size() == size


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


# -- physics -----------------------------------------------------------------------------------------------------------


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


def test_warm_start_never_changes_a_rollout():
    sys, x, u = cube_case("sliding")
    for _ in range(20):
        cold, info = sys.step(x, u)
        for start in (info.impulse, -info.impulse, 100 * np.ones(12)):
            warm, _ = sys.step(x, u, warm_start=start)
            np.testing.assert_allclose(warm.v, cold.v, atol=1e-10)
        x = cold


def test_force_acts_like_an_actuator():
    sys, x, u = forest_case("touching")
    y, _ = sys.step(x, u)
    force = np.asarray(sys.model.actuation) @ u
    z, _ = sys.step(x, 0 * u, force=force)
    np.testing.assert_allclose(y.v, z.v, atol=1e-13)


# -- derivatives -------------------------------------------------------------------------------------------------------

QUICK = {
    **{f"cube {k}": (lambda k=k: cube_case(k)) for k in ("standing", "sliding", "landing", "edge", "flight")},
    **{
        f"sliders {k}": (lambda k=k: slider_case(k))
        for k in ("limit closing", "limit penetrated", "dry friction slipping", "dry friction holding")
    },
    **{f"forest {k}": (lambda k=k: forest_case(k)) for k in ("touching", "limit")},
    "cube bouncing": bouncing_case,
    "go1 standing": lambda: robot_case("go1", "standing"),
    "go1 landing": lambda: robot_case("go1", "landing"),
    "go1 sliding": lambda: robot_case("go1", "sliding"),
}
SLOW = {
    **{
        f"{n} {k}": (lambda n=n, k=k: robot_case(n, k))
        for n in ("h1", "atlas")
        for k in ("standing", "sliding", "landing", "flight")
    },
    "go1 flight": lambda: robot_case("go1", "flight"),
}
CASES = {**QUICK, **SLOW}
NAMES = [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]

# Steps of the differences: below the distances (1e-4 m) and speeds at which the modes of the states above change.
STEP_Q, STEP_V, STEP_U = 2e-5, 1e-4, 1e-2


def columns_of(sys, count=24):
    """All directions, or `count` of them at random for a large robot."""
    n = 2 * sys.nv + sys.nu
    return np.arange(n) if n <= 48 else np.sort(np.random.default_rng(0).choice(n, count, replace=False))


@pytest.mark.parametrize("name", NAMES)
def test_linearize_against_ridders(name):
    """A and B to 1e-6 relative, in tangent coordinates."""
    sys, x, u = CASES[name]()
    jac = sys.linearize(x, u)
    y, info = sys.step(x, u)
    np.testing.assert_allclose(jac.x_next.v, y.v, atol=1e-9)
    assert info.status == jac.info.status == Status.solved
    columns = columns_of(sys)
    h = np.r_[np.full(sys.nv, STEP_Q), np.full(sys.nv, STEP_V), np.full(sys.nu, STEP_U)]
    estimate = ridders_jacobian(scenes.tangent_step(sys, x, u), len(h), h, columns)
    compare(np.hstack([jac.A, jac.B])[:, columns], estimate, label=name)


@pytest.mark.parametrize("law", [{"erp": 1.0, "damping": 0.3}, {"gap": "detect", "erp": 0.0}, {"erp": 0.0}])
@pytest.mark.parametrize("kind", ["standing", "sliding", "edge"])
def test_linearize_under_other_laws(law, kind):
    sys, x = scenes.system("cube", **law), scenes.cube_state(kind)
    h = np.r_[np.full(6, STEP_Q), np.full(6, STEP_V)]
    compare(
        sys.linearize(x, np.zeros(0)).A, ridders_jacobian(scenes.tangent_step(sys, x, np.zeros(0)), 12, h), label=kind
    )


@pytest.mark.parametrize("name", ["cube sliding", "forest touching", "sliders limit closing", "cube bouncing"])
def test_forward_and_reverse_mode_agree_with_linearize(name):
    """JVP along, and VJP against, random directions: w^T [A B] z in three ways, and grad of a scalar."""
    sys, x, u = CASES[name]()
    jac = sys.linearize(x, u)
    matrix = np.hstack([jac.A, jac.B])
    from trajopt.dynamics.joints import difference, integrate

    q, v, u = jnp.asarray(x.q), jnp.asarray(x.v), jnp.asarray(u)
    n = sys.nv
    y0 = jac.x_next

    def f(z):
        y, _ = sys.step(State(integrate(sys.model, q, z[:n]), v + z[n : 2 * n]), u + z[2 * n :])
        return jnp.concatenate([difference(sys.model, y0.q, y.q), y.v])

    zero = jnp.zeros(matrix.shape[1])
    forward, backward = jax.jit(lambda z: jax.jvp(f, (zero,), (z,))[1]), jax.jit(lambda w: jax.vjp(f, zero)[1](w)[0])
    rng = np.random.default_rng(1)
    for _ in range(3):
        z, w = rng.normal(size=matrix.shape[1]), rng.normal(size=2 * n)
        scale = np.abs(matrix).max()
        # Redundant contacts: rounding times the inverse of the regularisation, see `ridders.compare`.
        np.testing.assert_allclose(forward(z), matrix @ z, atol=1e-10 * scale)
        np.testing.assert_allclose(backward(w), w @ matrix, atol=1e-10 * scale)


def test_gradient_through_a_rollout():
    """Reverse mode through 25 steps of a sliding, then still sliding cube against differences of the rollout."""
    sys, x, _ = cube_case("sliding")
    weights = np.random.default_rng(2).normal(size=7)

    @jax.jit
    def loss(v):
        xs, _ = sys.rollout(State(jnp.asarray(x.q), v), jnp.zeros((25, 0)))
        return jnp.asarray(weights) @ xs.q[-1]

    gradient = jax.jit(jax.grad(loss))(jnp.asarray(x.v))
    estimates = [ridders(lambda s, e=e: np.asarray(loss(jnp.asarray(x.v + s * e))), 1e-3) for e in np.eye(6)[[0, 1, 5]]]
    for got, estimate in zip(np.asarray(gradient)[[0, 1, 5]], estimates, strict=True):
        assert abs(got - estimate.value) < 1e-6 * np.abs(gradient).max() + 10 * estimate.error
        assert estimate.error < 1e-7 * np.abs(gradient).max()


PARAMETERS = {
    "cube sliding": (
        "mass",
        "com",
        "inertia",
        "pair_friction",
        "shape_size",
        "shape_position",
        "placement_position",
        "gravity",
    ),
    "cube bouncing": ("mass", "com", "inertia", "pair_friction", "pair_restitution", "shape_size", "gravity"),
    "forest touching": (
        "mass",
        "com",
        "inertia",
        "pair_friction",
        "shape_size",
        "placement_position",
        "armature",
        "damping",
        "stiffness",
        "frictionloss",
        "gravity",
    ),
    "sliders dry friction slipping": ("mass", "frictionloss", "damping", "armature"),
}


@pytest.mark.parametrize("case", list(PARAMETERS))
def test_parameter_derivatives_against_ridders(case):
    """d x+/d parameters along two random directions each (symmetric for the inertia), to 1e-6 relative."""
    sys, x, u = CASES[case]()
    jac = sys.linearize(x, u, parameters=PARAMETERS[case])
    y0 = jac.x_next
    rng = np.random.default_rng(5)
    for name in PARAMETERS[case]:
        leaf = np.asarray(getattr(sys.model, name))
        slope = np.asarray(jac.parameters[name])
        assert slope.shape == (2 * sys.nv, *leaf.shape)
        values, errors, got = [], [], []
        for _ in range(2):
            direction = rng.normal(size=leaf.shape)
            if name == "inertia":
                direction = direction + np.swapaxes(direction, -1, -2)

            def f(s, direction=direction, name=name, leaf=leaf):
                moved = dataclasses.replace(sys, model=sys.model.replace(**{name: jnp.asarray(leaf + s * direction)}))
                y, _ = moved.step(x, u)
                return np.concatenate([scenes.difference(sys.model, y0.q, y.q), np.asarray(y.v) - np.asarray(y0.v)])

            h = {
                "gravity": 1e-2,
                "stiffness": 1e-1,
                "damping": 1e-2,
                "frictionloss": 1e-2,
                "inertia": 1e-5,
                "shape_size": 1e-5,
                "shape_position": 1e-5,
                "placement_position": 1e-5,
            }
            estimate = ridders(f, h.get(name, 1e-4))
            values.append(estimate.value), errors.append(estimate.error)
            got.append(slope.reshape(2 * sys.nv, -1) @ direction.ravel())
        from ridders import Estimate

        compare(
            np.stack(got, 1),
            Estimate(np.stack(values, 1), np.stack(errors, 1)),
            label=f"{case}: {name}",
            untrusted=0.15,  # entries that are zero but for rounding cannot be judged
        )
