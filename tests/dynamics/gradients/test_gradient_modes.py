"""The contract of all gradient modes: finite, forward equal to reverse, no silent zero, and refused where undefined.

The derivative rule of the velocity step against differences, and the closed-form Jacobian against the rule.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics import (
    GRADIENTS,
    BoxedLCP,
    CompliantContact,
    GradientOptions,
    NoContact,
    RigidContact,
    SmoothedContact,
    SpringDamperContact,
    State,
    System,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import Need
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients import GradientMode
from trajopt.dynamics.gradients.bounce import Bounce
from trajopt.dynamics.gradients.closed_form import step_jacobian
from trajopt.dynamics.gradients.implicit import IMPLICIT, velocity_step
from trajopt.errors import DerivativeError, OptionError
from trajopt.models.registry import load_model_from_string

DT, MASS, G, MU = 1e-3, 2.0, 9.81, 0.5
# A body that slides in a plane on two round feet: redundant contacts.
SKID = """<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1" friction="0.5"/>
<body name="skid" pos="0 0 0.1"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
  <geom type="sphere" pos="-0.3 0 0" size="0.1" mass="1" friction="0.5"/>
  <geom type="sphere" pos="0.3 0 0" size="0.1" mass="1" friction="0.5"/></body></worldbody></mujoco>"""
LAWS = {
    "RigidContact": RigidContact(),
    "BoxedLCP": BoxedLCP(),
    "SmoothedContact": SmoothedContact(),
    "SmoothedContact, sweeps": SmoothedContact(sweeps=5),
    "NoContact": NoContact(),
    "CompliantContact": CompliantContact(),
    "SpringDamperContact": SpringDamperContact(),
}


@dataclasses.dataclass(frozen=True)
class Halfway(GradientMode, DerivativeRule):
    """A mode of this file: the mean of the exact derivative and of the one with reflected positions."""

    name = "halfway"
    need = Need.IMPACTS
    purpose = "mixes two derivatives of a hard contact law"

    def rule(self, law):
        return self

    def tangents(self, inputs, dinputs):
        outputs, exact = IMPLICIT.tangents(inputs, dinputs)
        _, reflected = Bounce().tangents(inputs, dinputs)
        return outputs, jax.tree.map(lambda a, b: a if a.dtype == jax.dtypes.float0 else 0.5 * (a + b), exact, reflected)


MODES = {**{name: name for name in GRADIENTS}, "halfway": Halfway()}
HARD = ("RigidContact", "BoxedLCP")
STATES = {  # q = (x, height of the feet's lowest points), v
    "touching": ([0.0, 0.0], [1.0, -0.5]),
    "tied": ([0.0, 0.0], [0.0, G * DT]),
    "degenerate": ([0.0, -1e-4], [1.0, -1e-3]),
    "near": ([0.0, 2e-3], [1.0, -0.5]),
    "separated": ([0.0, 1.0], [1.0, -0.5]),
}
FREE = np.block(
    [[np.eye(2), DT * np.eye(2), DT**2 / MASS * np.eye(2)], [np.zeros((2, 2)), np.eye(2), DT / MASS * np.eye(2)]]
)
# Without perturbations the bundled gradient is the exact one.
OPTIONS = GradientOptions(samples=4, position_deviation=0.0, velocity_deviation=0.0, control_deviation=0.0, sweeps=40)


@functools.cache
def skid():
    return load_model_from_string(SKID).to_device()


def defined(mode: str, law: str) -> bool:
    """The table of docs/gradients.md."""
    if mode in ("implicit", "finite-difference", "ridders", "randomized") or law == "NoContact":
        return True
    return law in HARD or (mode == "unrolled" and law.startswith("Smoothed"))


def coordinates(system: System, z):
    """[q, v] after a step from [q, v, u]."""
    y, _ = system.step(State(z[:2], z[2:4]), z[4:])
    return jnp.concatenate([y.q, y.v])


@jax.jit
def forward(system: System, zs):
    """Values and Jacobians (6 columns) of a batch of states, in forward mode."""

    def at(z):
        def twice(z):
            y = coordinates(system, z)
            return y, y

        jacobian, y = jax.jacfwd(twice, has_aux=True)(z)
        return y, jacobian

    return jax.lax.map(at, zs)


@jax.jit
def reverse(system: System, zs):
    return jax.lax.map(jax.jacrev(lambda z: coordinates(system, z)), zs)


def batch_of_states():
    return jnp.array([[*q, *v, 0.0, 0.0] for q, v in STATES.values()])


@functools.cache
def jacobians(mode: str, law: str) -> dict[str, np.ndarray]:
    """Jacobians of all states by their names, after what every mode has to satisfy."""
    system, zs = system_of(mode, law), batch_of_states()
    if mode == "complementarity-aware":  # reverse mode only
        jacobian = np.asarray(reverse(system, zs))
    else:
        y, jacobian = (np.asarray(a) for a in forward(system, zs))
        exact = dataclasses.replace(system, gradient="implicit")
        for value, (q, v) in zip(y, STATES.values(), strict=True):
            x, _ = exact.step(State(np.array(q), np.array(v)), np.zeros(2))
            np.testing.assert_allclose(value, np.concatenate([x.q, x.v]), atol=1e-12)
    assert np.isfinite(jacobian).all()
    found = dict(zip(STATES, jacobian, strict=True))
    differences = mode in ("finite-difference", "ridders")
    np.testing.assert_allclose(found["separated"], FREE, atol=1e-7 if differences else 1e-10)
    # A sliding body speeds up by u_x dt / m under any law: what friction takes does not depend on u_x.
    for state in ("touching", "degenerate"):
        assert abs(found[state][2, 4] * MASS / DT - 1) < 1e-6, state
    return found


def system_of(mode: str, law: str) -> System:
    return System(skid(), DT, contact=LAWS[law], gradient=MODES[mode], options=OPTIONS)


def quick_or_slow(mode: str, law: str):
    """Reverse mode takes longest to compile: of one law in every mode, and of one mode under every law, it is a quick test."""
    quick = law == "NoContact" or (mode, law) in (("implicit", "RigidContact"), ("unrolled", "SmoothedContact"))
    return pytest.param(mode, law, marks=() if quick else pytest.mark.slow)


# Complementarity-aware derivatives depend on the direction in the loss: they have no forward mode.
BOTH = [(mode, law) for mode in MODES for law in LAWS if defined(mode, law) and mode != "complementarity-aware"]


@pytest.mark.parametrize(("mode", "law"), [quick_or_slow(mode, law) for mode, law in BOTH])
def test_reverse_mode_is_the_transpose_of_forward_mode(mode, law):
    backward = np.asarray(reverse(system_of(mode, law), batch_of_states()))
    along = np.stack(list(jacobians(mode, law).values()))
    np.testing.assert_allclose(along, backward, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bounce", "unrolled", "randomized", "finite-difference", "halfway"])
def test_modes_that_agree_where_nothing_bounces_or_changes(mode):
    """In a fixed contact mode, inelastic, unperturbed, all of these are the exact derivative."""
    exact, found = jacobians("implicit", "RigidContact"), jacobians(mode, "RigidContact")
    tolerance = {"bounce": 1e-12, "unrolled": 1e-5, "randomized": 1e-9, "finite-difference": 1e-5, "halfway": 1e-12}[mode]
    np.testing.assert_allclose(found["degenerate"], exact["degenerate"], atol=tolerance)


def test_a_mode_of_ones_own():
    """A bouncing body: half of dq is reflected by `Halfway`, half is not; the value is the step's, `linearize` follows."""
    model = skid().replace(pair_restitution=jnp.ones_like(skid().pair_restitution))
    x, u = State(np.array([0.0, -1e-4]), np.array([0.0, -0.5])), np.zeros(2)
    law = RigidContact(max_contacts=2)
    jac = System(model, DT, law, gradient=Halfway()).linearize(x, u)
    # e = 1: X = -1 on the height, so that d q+ / d q is (1 - 1) / 2, up to how the velocity depends on the height.
    by_height, velocity = float(jac.A[1, 1]), float(jac.A[3, 1])
    np.testing.assert_allclose(by_height - DT * velocity, 0.0, atol=1e-9)
    np.testing.assert_allclose(jac.x_next.v, System(model, DT, law).step(x, u)[0].v, atol=1e-13)


@pytest.mark.slow
def test_smoothed_derivatives_see_the_floor_from_above():
    """2 mm above it, falling: v_z+ = (1 - s) v_free for one contact; with two in a row s is 2 s' / (1 + s')."""
    slope = jacobians("smoothed", "RigidContact")["near"][3, 1]
    # Two equal contacts in parallel, each of compliance e^(kappa phi): v+ = v_free c / (c + 2), c = exp(kappa phi).
    c = np.exp(300.0 * 2e-3)
    np.testing.assert_allclose(slope, (-0.5 - G * DT) * 300.0 * 2 * c / (c + 2) ** 2, rtol=1e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_with_every_law(mode, law):
    """Every mode, and every law but the boxed one, is in the quick tests; the combinations that slow_cases.txt names are not."""
    if defined(mode, law):
        jacobians(mode, law)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mode", MODES)
def test_undefined_combinations_are_refused_with_a_remedy(mode, law):
    if defined(mode, law):
        System(skid(), DT, contact=LAWS[law], gradient=MODES[mode])
        return
    with pytest.raises(OptionError, match=f"gradient is '{mode}', which .*{law.split(',')[0]}.*use 'implicit'"):
        System(skid(), DT, contact=LAWS[law], gradient=MODES[mode])


@pytest.mark.parametrize("mode", ["implicit", "smoothed", "bounce", "unrolled", "randomized", "finite-difference"])
def test_second_derivatives_raise(mode):
    system = System(skid(), DT, gradient=mode)
    z = jnp.array([0.0, -1e-4, 1.0, -1e-3, 0.0, 0.0])
    with pytest.raises(DerivativeError, match=f"gradient='{mode}' defines first derivatives only"):
        jax.jit(jax.jacfwd(jax.jacfwd(lambda z: coordinates(system, z)))).lower(z)


@pytest.mark.parametrize("mode", ["implicit", "randomized"])
def test_a_batch_inside_a_gradient(mode):
    """The loss of a batch of steps: reverse mode outside of `vmap`, where branches must not turn into selections."""
    system = System(skid(), DT, gradient=mode, options=OPTIONS)

    def loss(zs):
        return jnp.sum(jax.vmap(lambda z: coordinates(system, z))(zs))

    jax.jit(jax.grad(loss)).lower(jnp.zeros((3, 6)))


def test_a_fit_has_no_derivative_by_parameters():
    system = System(skid(), DT, gradient="randomized", options=GradientOptions(order=0))

    def height(mass):
        changed = dataclasses.replace(system, model=system.model.replace(mass=mass))
        return changed.step(State(np.zeros(2), np.zeros(2)), np.zeros(2))[0].q[1]

    with pytest.raises(DerivativeError, match="order 0 perturbs q, v and u alone"):
        jax.jit(jax.grad(height)).lower(system.model.mass)


@pytest.mark.slow
def test_bundled_gradients_weigh_what_lies_on_both_sides_of_a_contact():
    """At the touch, half of the pairs of perturbed states are in contact. With d = 1 mm of perturbation of the height alone,
    v_z+ is 0 or v_z - g dt: its mean has the slope 1/2 by v_z, and by the height that of the jump, v_free / (d sqrt(2 pi)), which
    derivatives inside the modes do not see. A fit to the steps does.
    """
    law = RigidContact(gap="detect", erp=0.0)
    only_height = {"position_deviation": 1e-3, "velocity_deviation": 1e-9, "control_deviation": 1e-9}
    x, u = State(np.zeros(2), np.array([0.0, -0.5])), np.zeros(2)

    def slopes(**options):
        system = System(skid(), DT, law, gradient="randomized", options=GradientOptions(**only_height, **options))
        return np.asarray(system.linearize(x, u).A)[3]

    np.testing.assert_allclose(slopes(samples=100, seed=3), [0, 0, 0, 0.5], atol=1e-9)
    jump = (-0.5 - G * DT) / (1e-3 * np.sqrt(2 * np.pi))
    fits = [slopes(samples=2000, order=0, seed=seed)[1] for seed in (0, 0, 1)]
    np.testing.assert_allclose(fits, jump, rtol=0.1)
    assert fits[0] == fits[1] != fits[2]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bounce", "randomized", "finite-difference"])
def test_rotations_are_differentiated_on_their_manifold(mode):
    """A ball that slides and spins: the same tangent Jacobians as the exact ones, where all of these agree."""
    exact = System(scenes.model("ball"), DT)
    x = State(
        np.array([0.1, -0.2, 0.0999, *scenes.about([1.0, 2.0, 0.5], 0.8)]), np.array([1.0, 0.3, -0.1, 2.0, -1.0, 0.5])
    )
    other = dataclasses.replace(exact, gradient=mode, options=OPTIONS)
    tolerance = 1e-6 if mode == "finite-difference" else 1e-9
    np.testing.assert_allclose(other.linearize(x, np.zeros(0)).A, exact.linearize(x, np.zeros(0)).A, atol=tolerance)

    @jax.jit
    def by_q(system):
        return jax.grad(lambda q: system.step(State(q, jnp.asarray(x.v)), jnp.zeros(0))[0].q @ jnp.arange(7.0))(
            jnp.asarray(x.q)
        )

    np.testing.assert_allclose(by_q(other), by_q(exact), atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["finite-difference", "ridders"])
def test_differences_by_parameters(mode):
    """`linearize(parameters=...)` and reverse mode by a leaf of the model, sliding."""
    q, v = STATES["degenerate"]
    x, u = State(np.array(q), np.array(v)), np.array([1.0, 0.5])
    exact = System(skid(), DT)
    # The feet are 1e-4 m inside the floor: the first step of Ridders, 1e-2 by default, has to stay below that.
    options = GradientOptions(difference_step=2e-5 if mode == "ridders" else None)
    system = dataclasses.replace(exact, gradient=mode, options=options)
    names = ("mass", "pair_friction")
    expected, found = exact.linearize(x, u, parameters=names), system.linearize(x, u, parameters=names)
    tolerance = 1e-6 if mode == "finite-difference" else 1e-8
    np.testing.assert_allclose(found.A, expected.A, atol=10 * tolerance)
    for name in names:
        np.testing.assert_allclose(found.parameters[name], expected.parameters[name], atol=tolerance)
        assert np.abs(expected.parameters[name]).max() > 1e-3

    def speed(mass):
        return dataclasses.replace(system, model=system.model.replace(mass=mass)).step(x, u)[0].v[0]

    by_mass = jax.jit(jax.grad(speed))(system.model.mass)
    np.testing.assert_allclose(by_mass, expected.parameters["mass"][2], atol=tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0; it must be at least 1"),
        ({"order": 2}, "order is 2, expected 1 .* or 0"),
        ({"order": 0, "velocity_deviation": 0.0}, "velocity_deviation is 0; it must be positive with order 0"),
        ({"position_deviation": -1.0}, "position_deviation is -1.0; it must be at least 0"),
        ({"difference_step": 0.0}, "difference_step is 0.0; it must be positive"),
        ({"sweeps": 0}, "sweeps is 0"),
        ({"order": 0, "samples": 5}, "samples is 5, but with order 0 the fit for model .* has 6 unknowns"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        System(skid(), DT, gradient="randomized", options=GradientOptions(**options))


LAW = RigidContact()


def test_free_motion_without_rows():
    """NoContact: M dv = dt (tau - h), and its Jacobian is the free one."""
    model, x = scenes.model("cube"), scenes.cube_state("flight")
    tau = np.arange(6.0)
    arguments = tuple(jnp.asarray(a) for a in (x.q, x.v, tau, 1e-3))
    out, jac = jax.jit(lambda *a: step_jacobian(StepInputs(NoContact(), model, *a)))(*arguments)
    inertia = np.r_[np.ones(3), np.full(3, 0.04 / 6)]
    np.testing.assert_allclose(
        out.velocity, x.v + 1e-3 * (tau + [0, 0, -scenes.GRAVITY, 0, 0, 0]) / inertia, atol=1e-12
    )
    np.testing.assert_allclose(jac.by_tau, 1e-3 * np.diag(1 / inertia), atol=1e-15)
    np.testing.assert_allclose(jac.by_v, np.eye(6), atol=1e-12)  # a cube: no gyroscopic term
    np.testing.assert_allclose(jac.by_q, 0.0, atol=1e-12)


def test_warm_start_carries_no_derivative():
    model, x = scenes.model("cube"), scenes.cube_state("sliding")

    def f(init):
        q, v = jnp.asarray(x.q), jnp.asarray(x.v)
        inputs = StepInputs(LAW, model, q, v, jnp.zeros(6), jnp.asarray(1e-3), warm_start=init)
        return velocity_step(inputs).velocity.sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(f))(jnp.ones(12)), 0.0)
