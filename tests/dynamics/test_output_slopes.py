"""`linearize(outputs=("impulse",))`: against Ridders, both backends, every gradient mode, laws, batches and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import test_core, test_equalities
from native.cases import DT, MATRIX, needs_core, relative
from native.test_one_sided import DT as RAIL_DT
from native.test_one_sided import ERP, RAIL
from ridders import compare, ridders_jacobian

from dynamics import test_servos
from dynamics.contact import scenes
from dynamics.linkages import SPATIAL
from dynamics.system_cases import forest_case
from dynamics.test_system_derivatives import CASES, QUICK, STEP_Q, STEP_U, STEP_V
from trajopt.dynamics import CompliantContact, NoContact, RigidContact, SmoothedContact, State, System
from trajopt.dynamics.gradients.modes import GRADIENTS
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.step_arguments import checked_outputs
from trajopt.errors import OptionError, UnknownNameError
from trajopt.models.registry import load_model_from_string

IMPULSE = ("impulse",)


def slopes(system: System, x: State, u, **options):
    """[C, D] of the impulse."""
    found = system.linearize(x, u, outputs=IMPULSE, **options).outputs["impulse"]
    return np.hstack([found.C, found.D])


def impulse_of(system: System, x: State, u):
    """z = [dq, dv, du] -> the impulse of the step."""
    n = system.nv

    def f(z):
        moved = State(integrate(system.model, jnp.asarray(x.q), z[:n]), jnp.asarray(x.v) + z[n : 2 * n])
        return system.step(moved, jnp.asarray(u) + z[2 * n :])[1].impulse

    return f


def steps_of(system: System) -> np.ndarray:
    return np.r_[np.full(system.nv, STEP_Q), np.full(system.nv, STEP_V), np.full(system.nu, STEP_U)]


def judge(system: System, x: State, u, label: str) -> None:
    """C and D against Ridders' extrapolation of the step's impulse."""
    h = steps_of(system)
    estimate = ridders_jacobian(lambda z: np.asarray(impulse_of(system, x, u)(jnp.asarray(z))), len(h), h)
    found = slopes(system, x, u)
    n = found.shape[1] - system.nu  # a law's own state stands behind dq and dv
    compare(np.delete(found, np.s_[2 * system.nv : n], 1), estimate, label=label)


# -- cases of the core that the states of `CASES` leave out ---------------------------------------------------------------


def moreau():
    system, x, u = forest_case("touching")
    return dataclasses.replace(system, integrator="moreau"), x, u


def mimic():
    model = test_core.mimicking()
    q, v, _ = test_core.standing_forest(model, 6)
    return System(model, DT), State(q, v), np.ones(model.nu)


def closed_loops():
    """Welded and connected trees with a ball joint."""
    system = System(load_model_from_string(SPATIAL), DT)
    x = system.initial_state()
    return system, State(x.q, 0.3 * np.random.default_rng(1).normal(size=system.nv)), np.ones(system.nu)


def servos():
    return test_servos.arm("native"), test_servos.touching(-0.4), np.array([0.2, 0.5, 1.0])


def tied(kind: str):
    """A tie between two trees with ball, free, sliding and mimic joints, open by a few degrees and centimetres."""
    mixed = kind == "couplings"
    some = test_equalities.model(test_equalities.MIXED) if mixed else test_equalities.tied(kind)
    system = test_equalities.system_of(some, NoContact())
    return system, *test_equalities.moved(system.model, 2)


OTHERS = {"moreau": moreau, "mimic": mimic, "closed loops": closed_loops, "servos": servos}
OTHERS |= {f"tie, {kind}": lambda kind=kind: tied(kind) for kind in (*test_equalities.KINDS, "couplings")}
# No contact; dry friction at its bound.
CONSTANT = ("cube flight", "sliders dry friction slipping")
# A limit that pushes out at its largest speed: half of the differences are rounding. The backends are compared there.
TOO_SMALL = "sliders limit passed far"


@needs_core
@pytest.mark.parametrize("name", [name for name in (*QUICK, *OTHERS) if name != TOO_SMALL])
def test_core_against_ridders(name):
    """Sticking, sliding, separating, redundant contacts whose impulse is selected, joint limits, dry friction; A and B stay."""
    system, x, u = (OTHERS[name] if name in OTHERS else CASES[name])()
    system = dataclasses.replace(system, backend="native")
    plain, more = system.linearize(x, u), system.linearize(x, u, outputs=IMPULSE)
    np.testing.assert_array_equal(more.A, plain.A)
    np.testing.assert_array_equal(more.B, plain.B)
    assert plain.outputs == {}
    constant = np.abs(slopes(system, x, u)).max() < 1e-9
    assert constant == (name in CONSTANT)
    judge(system, x, u, name)
    if name in OTHERS:  # the others' A and B are those of JAX, which test_system_derivatives.py judges
        scenes.judged_slopes(system, x, u, (STEP_Q, STEP_V, 0, STEP_U), label=name)


FEW = [name for name in QUICK if name.startswith(("cube", "sliders"))]
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in QUICK if name not in FEW]


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("name", [*FEW, *MORE])
def test_both_backends_agree(name):
    system, x, u = CASES[name]()
    jac = {b: dataclasses.replace(system, backend=b).linearize(x, u, outputs=IMPULSE) for b in ("native", "jax")}
    for part in ("C", "D"):
        ours, theirs = (getattr(jac[b].outputs["impulse"], part) for b in ("native", "jax"))
        assert relative(ours, theirs) < MATRIX, part
    # The plain program leaves the branch of redundant contacts out where they stick: equal to rounding.
    assert relative(jac["jax"].A, dataclasses.replace(system, backend="jax").linearize(x, u).A) < 1e-12


@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_core), pytest.param("jax", marks=pytest.mark.slow)])
def test_contacts_that_contradict_each_other(backend):
    """Along the rail m dv+ = a . dlambda, also where contacts contradict each other (`native.test_one_sided`)."""
    system = System(load_model_from_string(RAIL), RAIL_DT, contact=RigidContact(erp=ERP), backend=backend)
    found = system.linearize(State(np.zeros(1), np.zeros(1)), np.zeros(1), outputs=IMPULSE)
    assert bool(found.one_sided[0])
    along = np.array([0.5, 0.0, np.sqrt(0.75)]) @ np.asarray(found.info.contacts.frame)[0]
    np.testing.assert_allclose(along @ found.outputs["impulse"].C[:3, 0], -2.0 * 0.75 * ERP / RAIL_DT, rtol=1e-5)


@needs_core
@pytest.mark.parametrize("name", ["cube sliding", "servos", "moreau"])
def test_forward_mode_of_the_step_takes_the_same_slopes(name):
    """Of the report, through `jit` and a batch of directions; and reverse mode."""
    system, x, u = (OTHERS[name] if name in OTHERS else CASES[name])()
    system = dataclasses.replace(system, backend="native")
    expected, f = slopes(system, x, u), impulse_of(system, x, u)
    zero = jnp.zeros(expected.shape[1])
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(zero), expected, atol=1e-12 * np.abs(expected).max())
    w = np.random.default_rng(0).normal(size=expected.shape[0])
    pulled = jax.jit(jax.grad(lambda z: jnp.asarray(w) @ f(z)))(zero)
    np.testing.assert_allclose(pulled, w @ expected, atol=1e-12 * np.abs(w @ expected).max())


@needs_core
@pytest.mark.parametrize("name", ["cube edge", "servos", "moreau"])
def test_contacts_of_the_report_move_as_differences_say(name):
    """Distance, point and frame of the report in forward mode through the core."""
    system, x, u = (OTHERS[name] if name in OTHERS else CASES[name])()
    system, n = dataclasses.replace(system, backend="native"), system.nv

    @jax.jit
    def geometry(z):
        moved = State(integrate(system.model, jnp.asarray(x.q), z[:n]), jnp.asarray(x.v) + z[n:])
        contacts = system.step(moved, jnp.asarray(u))[1].contacts
        return jnp.concatenate([contacts.distance, contacts.point.ravel(), contacts.frame.ravel()])

    h = np.r_[np.full(n, 1e-3), np.full(n, 1.0)]  # whatever the modes: geometry is smooth
    estimate = ridders_jacobian(lambda z: np.asarray(geometry(jnp.asarray(z))), 2 * n, h)
    compare(jax.jit(jax.jacfwd(geometry))(jnp.zeros(2 * n)), estimate, label=name)


# -- gradient modes, laws, errors -------------------------------------------------------------------------------------------

# A ball on two slides over the floor, with a motor each: it slides.
PUCK = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1" friction="0.5"/>
  <body pos="0 0 0.1"><joint name="along" type="slide" axis="1 0 0"/><joint name="up" type="slide" axis="0 0 1"/>
    <geom type="sphere" size="0.1" mass="2" friction="0.5"/></body>
</worldbody><actuator><motor joint="along"/><motor joint="up"/></actuator></mujoco>"""
SLIDES = (State(np.array([0.0, -1e-4]), np.array([0.3, -0.1])), np.array([0.5, -1.0]))


def puck(**options) -> System:
    return System(load_model_from_string(PUCK), DT, **options)


QUICK_MODES = ("implicit", "bounce")  # the others take longest to compile
OTHER_MODES = (g for g in GRADIENTS if g not in (*QUICK_MODES, "complementarity-aware"))


@pytest.mark.parametrize("gradient", [*QUICK_MODES, *(pytest.param(g, marks=pytest.mark.slow) for g in OTHER_MODES)])
def test_every_gradient_mode_has_its_own(gradient):
    """What the mode's forward mode says of the report. The puck slides along x: d lambda_t = mu d lambda_n against it."""
    system, (x, u) = puck(gradient=gradient), SLIDES
    expected = jax.jit(jax.jacfwd(impulse_of(system, x, u)))(jnp.zeros(6))
    found = slopes(system, x, u)
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
    if gradient in ("implicit", "bounce", "finite-difference"):  # the largest step of "ridders" lifts the puck
        # Pushed down by z within dt: m dv_n = d lambda_n, dv_n = -erp / dt dz, and nothing of v_n is left.
        normal = np.array([0.0, -2.0 * RigidContact().erp / DT, 0.0, -2.0, 0.0, -DT])
        np.testing.assert_allclose(found[2], normal, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found[:2], axis=0), 0.5 * np.abs(normal), rtol=1e-5, atol=1e-6)


def test_complementarity_aware_slopes_are_those_of_the_labels():
    """A loss that falls as the ball rises lets it go: no impulse, whatever moves; one that wants it down keeps the contact."""
    system, (x, u) = puck(gradient="complementarity-aware"), SLIDES
    up, down = np.array([0.0, -1.0, 0.0, -1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(slopes(system, x, u, adjoint=up), 0.0)
    np.testing.assert_allclose(slopes(system, x, u, adjoint=down), slopes(puck(), x, u), atol=1e-9)


@pytest.mark.parametrize("law", [SmoothedContact(), CompliantContact(), NoContact()], ids=lambda law: law.name)
def test_laws_against_ridders(law):
    """Of forces, the impulse is force times dt; without contact there is none."""
    system, (x, u) = puck(contact=law), SLIDES
    if not law.acts:
        assert slopes(system, x, u).shape == (0, 6)
        return
    judge(system, x, u, law.name)


def test_unknown_outputs_are_named():
    system, (x, u) = puck(), SLIDES
    with pytest.raises(UnknownNameError, match="no output 'impulses' to differentiate.*impulse"):
        system.linearize(x, u, outputs=("impulses",))
    with pytest.raises(OptionError, match=r"outputs is 'impulse', expected names in a tuple, such as \('impulse',\)"):
        checked_outputs("impulse")
