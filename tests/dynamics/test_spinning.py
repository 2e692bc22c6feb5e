"""Fast rotations of free and ball joints: the midpoint rule keeps their energy, and the derivative is that of the step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian
from scipy.optimize import fsolve

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics import CompliantContact, NoContact, State, System, gyroscopic_correction
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.energy import centroidal_momentum, kinetic_energy, potential_energy
from trajopt.dynamics.rigid_body.rnea import bias_forces, passive_forces
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

BACKENDS = ["native", "jax"] if native.available() else ["jax"]
CORE = BACKENDS[0]
FLIGHT = '<option gravity="0 0 0"/>'
BODIES = {
    "pen": FLIGHT
    + '<worldbody><body><freejoint/><geom type="box" size=".005 .005 .1" density="700"/></body></worldbody>',
    "book": FLIGHT
    + '<worldbody><body><freejoint/><geom type="box" size=".1 .07 .015" density="700"/></body></worldbody>',
    # Its origin is 14 cm from its centre of mass.
    "offset": FLIGHT
    + """<worldbody><body><freejoint/>
      <geom type="box" size=".03 .01 .1" pos=".1 .05 -.08" euler="20 30 40" density="700"/></body></worldbody>""",
    "top": """<worldbody><body><joint type="ball"/><geom type="cylinder" size=".04 .005" pos="0 0 .05" mass=".1"/></body>
      </worldbody>""",
    "chain": """<worldbody><body><joint type="ball" armature="1e-3"/>
      <geom type="box" size=".02 .03 .1" pos="0 0 -.1" density="700"/>
      <body pos="0 0 -.2"><joint type="ball"/><geom type="box" size=".01 .03 .1" pos="0 0 -.1" density="700"/></body></body>
      </worldbody>""",
    # A free trunk with two limbs of two hinges and a slide, and a ball joint at the end of one.
    "tree": """<default><geom contype="0" conaffinity="0"/></default><worldbody>
      <body name="trunk"><joint type="free"/><geom type="box" size=".2 .1 .05" pos=".03 .02 .01" mass="2"/>
      <body pos=".2 0 0"><joint axis="0 1 0" armature="2e-3"/><geom type="capsule" fromto="0 0 0 .2 0 -.1" size=".02" mass=".5"/>
        <body pos=".2 0 -.1"><joint type="slide" axis="1 0 1"/>
          <geom type="box" size=".05 .02 .03" pos=".05 0 0" mass=".3"/></body></body>
      <body pos="-.2 .1 0"><joint axis="1 0 0"/><geom type="capsule" fromto="0 0 0 0 .2 .05" size=".02" mass=".4"/>
        <body pos="0 .2 .05"><joint type="ball" armature="1e-3"/><geom type="box" size=".05 .02 .03" pos=".02 .04 .01" mass=".2"/>
        </body></body></body></worldbody>""",
    "dropped": """<worldbody><geom type="plane" size="0 0 1"/>
      <body><freejoint/><geom type="box" size=".02 .03 .1" density="700" friction=".5"/></body></worldbody>""",
}
UP, TILTED = [1.0, 0, 0, 0], [np.cos(0.13), np.sin(0.13), 0, 0]
STARTS = {
    "pen": ([0, 0, 0, *UP], [0, 0, 0, 5, 0, 60]),
    "book": ([0, 0, 0, *UP], [0, 0, 0, 0.01, 15, 0.02]),  # about its unstable middle axis
    "offset": ([0, 0, 0, *UP], [0.1, 0.2, 0.3, 5, 20, 60]),
    "top": (TILTED, [0, 0, 150]),
    "chain": ([*UP, *UP], [0, 1, 5, 2, 3, 60]),
}


@functools.cache
def model(name: str):
    return load_model_from_string(f"<mujoco>{BODIES[name]}</mujoco>")


@functools.cache
def system(name: str, dt: float, backend: str = CORE, integrator: str = "semi-implicit", contact=None) -> System:
    law = {} if contact is None else {"contact": contact}
    return System(model(name), dt, backend=backend, integrator=integrator, **law)


def start(name: str, spin: float = 1.0) -> State:
    q, v = STARTS[name]
    v = np.array(v, float)
    v[-3:] *= spin
    return State(np.array(q, float), v)


def rolled(sys: System, x: State, duration: float = 3.0) -> State:
    xs, infos = sys.rollout(x, np.zeros((round(duration / float(sys.dt)), sys.nu)))
    assert np.all(infos.status == Status.solved)
    return xs


@jax.jit
def quantities(m, xs: State):
    """(energy, linear and angular momentum) along a motion."""
    at = lambda q, v: (kinetic_energy(m, q, v) + potential_energy(m, q), centroidal_momentum(m, q, v))  # noqa: E731
    return jax.vmap(at)(xs.q, xs.v)


def energies(name: str, xs: State) -> np.ndarray:
    return np.asarray(quantities(model(name), xs)[0])


correction = jax.jit(gyroscopic_correction)


@jax.jit
def free_terms(m, q, v):
    """(h without contact, M)."""
    return bias_forces(m, q, v) - passive_forces(m, q, v), mass_matrix(m, q)


def moving(name: str, seed: int, speed: float, height: float = 0.0) -> State:
    """A random state whose joints turn at about `speed`, rad/s."""
    rng, m = np.random.default_rng(seed), model(name)
    q = np.asarray(scenes.integrate(m, np.asarray(m.q_default, float), 0.4 * rng.standard_normal(m.nv)))
    q[2:3] += height
    return State(q, speed * rng.standard_normal(m.nv))


def check_steady(error: np.ndarray, bound: float) -> None:
    """An error of a motion is within a bound, and its last third is no worse than its first but for a hundredth of the bound."""
    first, *_, last = (part.max() for part in np.array_split(error, 3))
    assert error.max() <= bound and last <= 1.05 * first + 0.01 * bound


# -- energy and momentum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, spin, dt, integrator, backend",
    [
        ("pen", 1, 1e-3, "semi-implicit", CORE), ("pen", 200 / 60, 1e-3, "moreau", CORE), ("book", 1, 5e-3, "moreau", CORE),
        ("book", 1, 5e-3, "semi-implicit", CORE), ("pen", 200 / 60, 5e-3, "semi-implicit", "jax"),
        ("pen", 200 / 60, 5e-3, "moreau", "jax"),
    ],
)  # fmt: skip
def test_a_spinning_body_keeps_its_energy(name, spin, dt, integrator, backend):
    """To rounding, which 3,000 steps add up; its angular momentum keeps its size, and turns by some dt |omega| to and fro."""
    xs = rolled(system(name, dt, backend, integrator), start(name, spin))
    energy, momentum = (np.asarray(x) for x in quantities(model(name), xs))
    np.testing.assert_allclose(energy, energy[0], rtol=1e-11)
    momentum = momentum[:, 3:]
    size = np.linalg.norm(momentum[0])
    np.testing.assert_allclose(np.linalg.norm(momentum, axis=1), size, rtol=1e-11)
    turned = np.linalg.norm(momentum - momentum[0], axis=1) / size
    check_steady(turned, 1.5 * dt * np.linalg.norm(xs.v[0, 3:]))


@pytest.mark.parametrize("dt, bound, backend", [(1e-3, 0.02, CORE), (5e-3, 0.25, "jax")])
def test_a_top_keeps_its_energy(dt, bound, backend):
    """Gravity is explicit, at a configuration that a step turns by dt omega: what it does wrong is of the order of the step."""
    energy = energies("top", rolled(system("top", dt, backend), start("top")))
    np.testing.assert_allclose(energy, energy[0], rtol=bound)


@pytest.mark.parametrize("dt", [1e-3, 5e-3])
def test_a_body_turns_about_its_centre_of_mass_wherever_its_origin_is(dt):
    """The rotation keeps its energy about the centre of mass; the momentum of the body stays within the order of the step."""
    m, xs = model("offset"), rolled(system("offset", dt), start("offset"))
    inertia, w = np.asarray(m.inertia)[-1], np.asarray(xs.v[:, 3:])
    spin = np.einsum("ti,ij,tj->t", w, inertia, w)
    np.testing.assert_allclose(spin, spin[0], rtol=1e-11)
    linear = np.asarray(quantities(m, xs)[1])[:, :3]
    lever, fastest = np.linalg.norm(np.asarray(m.com)[-1]), np.linalg.norm(w, axis=1).max()
    check_steady(np.linalg.norm(linear - linear[0], axis=1), 1.2 * dt * fastest**2 * lever * np.asarray(m.mass).sum())


@pytest.mark.slow
def test_a_chain_of_ball_joints_is_held_to_the_order_of_the_step():
    """The coupling of the two is explicit: its error falls with the step, and a step of 5 ms does not diverge."""
    gains = []
    for dt in (5e-4, 1e-3, 5e-3):
        energy = energies("chain", rolled(system("chain", dt), start("chain")))
        gains.append(np.abs(energy / energy[0] - 1).max())
    assert gains[0] < 0.6 * gains[1] < 0.3 and gains[2] < 2


@pytest.mark.slow
def test_energy_is_bounded_where_no_iteration_converges():
    """A body that turns by many radians in a step, which no step resolves, gains nothing all the same."""
    rng = np.random.default_rng(3)
    for backend in BACKENDS:
        sys = system("book", 1e-2, backend)
        for dt_omega in (4.0, 4.0, 40.0, 40.0):
            spin = rng.standard_normal(3)
            x = State(np.array(STARTS["book"][0], float), np.r_[0, 0, 0, dt_omega / 1e-2 * spin / np.linalg.norm(spin)])
            energy = energies("book", rolled(sys, x, 1.0))
            np.testing.assert_allclose(energy, energy[0], rtol=1e-10)


def test_a_spinning_body_that_lands_comes_to_rest():
    """Contact takes energy away and never adds any, beyond what the push-out of one step may."""
    x = State(np.array([0, 0, 0.5, *TILTED]), np.array([0, 0, 0, 5.0, 10, 80]))
    energy = energies("dropped", rolled(system("dropped", 1e-3), x, 3.0))
    assert energy.max() < 1.02 * energy[0] and energy[-1] < 0.2 * energy[0]


# -- the equation of a step --------------------------------------------------------------------------------------------


def rotations(name: str) -> list[tuple[slice, slice | None]]:
    """DoFs of the rotations of free and ball joints, with those of the translation beside them."""
    slices = []
    for joint in model(name).topology.joints:
        at = joint.v_start
        if joint.kind == "free":
            slices.append((slice(at + 3, at + 6), slice(at, at + 3)))
        if joint.kind == "ball":
            slices.append((slice(at, at + 3), None))
    return slices


def midpoint_rule(after, w, H, inertia, dt):
    return H @ (after - w) + dt * np.cross((w + after) / 2, inertia @ (w + after) / 2)


def corrected_bias(name: str, x: State, dt: float) -> np.ndarray:
    """h + c, with I from the mass matrix, without the translations of a free joint, and the midpoint rule solved by SciPy."""
    m = model(name)
    h, M = (np.array(a) for a in free_terms(m, x.q, x.v))
    for at, beside in rotations(name):
        H = M[at, at]
        if beside is not None:
            H = H - M[at, beside] @ np.linalg.solve(M[beside, beside], M[beside, at])
        inertia, w = H - np.diag(np.asarray(m.armature)[at]), x.v[at]
        after = fsolve(midpoint_rule, w, (w, H, inertia, dt), xtol=1e-11)
        middle = (w + after) / 2
        h[at] += np.cross(middle, inertia @ middle) - np.cross(w, inertia @ w)
    return h


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["offset", "chain", "tree"])
def test_a_step_is_the_equation_of_motion_with_the_midpoint_rule(name, backend):
    dt, x = 5e-3, moving(name, 1, 20.0)
    sys = system(name, dt, backend, contact=NoContact())
    y, _ = sys.step(x, np.zeros(sys.nu))
    h, (plain, M) = corrected_bias(name, x, dt), free_terms(model(name), x.q, x.v)
    expected = x.v - dt * np.linalg.solve(M, h)
    np.testing.assert_allclose(y.v, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    known = plain + correction(model(name), x.q, x.v, dt)
    np.testing.assert_allclose(known, h, rtol=1e-9, atol=1e-9 * np.abs(h).max())


def test_nothing_is_corrected_where_nothing_turns_fast():
    arm = load_model_from_string(
        '<mujoco><worldbody><body><joint axis="0 1 0"/><geom size=".1"/></body></worldbody></mujoco>'
    )
    assert np.all(np.asarray(correction(arm, np.zeros(1), np.full(1, 50.0), 1e-3)) == 0)
    x = moving("tree", 2, 1.0)
    assert np.all(np.asarray(correction(model("tree"), x.q, np.zeros(model("tree").nv), 1e-3)) == 0)
    slow, fast = (np.asarray(correction(model("tree"), x.q, s * x.v, 1e-3)) for s in (1e-3, 1e-2))
    np.testing.assert_allclose(fast, 1e3 * slow, atol=1e-2 * np.abs(fast).max())  # of third order in the velocity


# -- derivatives -------------------------------------------------------------------------------------------------------


def state_of(name: str) -> State:
    if name == "dropped":  # a corner 1 mm inside the floor, turning at 60 rad/s
        return State(np.array([0, 0, 0.0995, *TILTED]), np.array([0.1, 0.2, -0.5, 3.0, 5, 60]))
    return start(name) if name in STARTS else moving(name, 3, 15.0)


@pytest.mark.parametrize(
    "name, integrator",
    [
        ("pen", "semi-implicit"),
        ("tree", "moreau"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [
            ("pen", "moreau"), ("tree", "semi-implicit"), ("chain", "semi-implicit"), ("chain", "moreau"),
            ("dropped", "semi-implicit"), ("dropped", "moreau"),
        ]),
    ],
)  # fmt: skip
def test_the_derivative_is_that_of_the_step(name, integrator):
    """Against Ridders' extrapolation, and both backends against each other."""
    x, found = state_of(name), []
    for backend in BACKENDS:
        sys = system(name, 5e-3, backend, integrator)
        found.append((sys.step(x, np.zeros(sys.nu))[0], sys.linearize(x, np.zeros(sys.nu))))
    y, jacobian = found[0]
    scenes.judged_slopes(system(name, 5e-3, CORE, integrator), x, np.zeros(sys.nu), (1e-4, 1e-2, 0, 1e-2), label=name)
    for other, slopes in found[1:]:
        np.testing.assert_allclose(other.v, y.v, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(slopes.A, jacobian.A, atol=1e-8 * np.abs(jacobian.A).max())


@pytest.mark.slow
def test_the_derivative_under_a_law_of_forces():
    x = state_of("tree")
    sys = system("tree", 2e-3, "jax", contact=CompliantContact())
    scenes.judged_slopes(sys, x, np.zeros(sys.nu), (1e-4, 1e-2, 0, 1e-2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_by_inertia_armature_and_step(backend):
    """dt is large enough for the correction to matter: without it these derivatives differ by per cents."""
    x, m, sys = moving("chain", 4, 40.0), model("chain"), system("chain", 1e-2, backend, contact=NoContact())

    def moved(scale, dt):
        scaled = sys.model.replace(inertia=m.inertia * scale[0], armature=m.armature * scale[1], com=m.com * scale[2])
        return System(scaled, dt, contact=NoContact(), backend=backend).step(x, jnp.zeros(sys.nu))[0].v

    by_scale, by_dt = jax.jit(jax.jacrev(moved, (0, 1)))(jnp.ones(3), 1e-2)
    moved = jax.jit(moved)
    estimate = ridders_jacobian(lambda z: np.asarray(moved(1 + z[:3], 1e-2 + z[3])), 4, np.r_[np.full(3, 1e-3), 1e-4])
    compare(np.c_[by_scale, by_dt], estimate)


@pytest.mark.slow
def test_transformations():
    """jit, vmap and reverse mode agree with single steps and the closed form."""
    xs = [moving("tree", k, 20.0) for k in range(3)]
    stacked = State(np.stack([x.q for x in xs]), np.stack([x.v for x in xs]))
    for backend in BACKENDS:
        sys = system("tree", 5e-3, backend)
        after = lambda x, sys=sys: sys.step(x, jnp.zeros(sys.nu))[0].v  # noqa: E731
        batch = jax.jit(jax.vmap(after))(stacked)
        for k, x in enumerate(xs):
            np.testing.assert_allclose(batch[k], sys.step(x, np.zeros(sys.nu))[0].v, rtol=1e-12, atol=1e-11)
        reverse = jax.jit(jax.jacrev(lambda v, after=after: after(State(xs[0].q, v))))(jnp.asarray(xs[0].v))
        A = np.asarray(sys.linearize(xs[0], np.zeros(sys.nu)).A)[sys.nv :, sys.nv :]
        np.testing.assert_allclose(reverse, A, atol=1e-11 * np.abs(A).max())
