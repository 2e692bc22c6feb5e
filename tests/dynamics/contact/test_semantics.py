"""Every statement of docs/contact-semantics.md that names a test, against a closed form or an independent solution.

The selection among redundant solutions has its tests in test_semantics_selection.py. Tolerances: the solver ends at a
residual of 1e-12 of the largest velocity, and the closed forms below are well conditioned; 1e-11 absolute covers
velocities of a few m/s with a margin of ten. Where something else is meant, it is said.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dynamics.contact import scenes
from dynamics.contact.scenes import solved_step as step
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.contact.ncp import SEPARATING, SLIDING, STICKING, make_ncp, residual
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.dynamics.start import StartWarning
from trajopt.dynamics.system import State, System
from trajopt.models import load_model_from_string
from trajopt.result import Status

EXACT = 1e-11
MASS, RADIUS, MU, ERP = 2.0, 0.1, 0.5, scenes.ERP
INERTIA = 0.4 * MASS * RADIUS**2
TANGENT = 3.5 / MASS  # 1/m + r^2 / I of a solid sphere

compiled_residual, compiled_solve = jax.jit(residual), jax.jit(solve)


def ball(z=RADIUS - 1e-4, v=(0, 0, 0), w=(0, 0, 0)) -> State:
    return State(np.array([0.2, -0.3, z, 1, 0, 0, 0]), np.concatenate([v, w]).astype(float))


def ball_system(plane=None, **options):
    """The ball's System; leaves of the model given as options, law options too. plane: quaternion of the floor."""
    leaves = {k: options.pop(k) for k in ("pair_restitution", "pair_friction", "pair_impact_friction", "gravity") if k in options}
    sys = scenes.system("ball", **options)
    leaves = {k: jnp.asarray(np.atleast_1d(x), float) for k, x in leaves.items()}
    if plane is not None:
        turn = np.array(sys.model.shape_rotation)
        [k] = [k for k, shape in enumerate(sys.model.topology.shapes) if shape.name == "floor"]
        turn[k] = scenes.rotation(plane)
        leaves["shape_rotation"] = jnp.asarray(turn)
    return dataclasses.replace(sys, model=sys.model.replace(**leaves)) if leaves else sys


# -- the law -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plane", [(1.0, 0, 0, 0), scenes.about([1, 0, 0], 0.3), scenes.about([0.2, 1, 0], 1.2)])
def test_frame_convention(plane):
    """Right-handed frame (tangent 1, tangent 2, normal), normal from body 2 to body 1, impulse acting on body 1."""
    normal = scenes.rotation(plane)[:, 2]
    centre = (RADIUS - 1e-4) * normal
    v, w = np.array([0.3, -0.2, 0.1]) - 0.8 * normal, np.array([0.5, 0.2, -0.4])
    _, v_plus, info = step(ball_system(plane), State(np.array([*centre, 1, 0, 0, 0]), np.concatenate([v, w])))
    contacts = info.contacts
    frame, impulse = np.asarray(contacts.frame[0]), np.asarray(contacts.impulse[0])
    np.testing.assert_allclose(frame[:, 2], normal, atol=1e-15)
    np.testing.assert_allclose(frame.T @ frame, np.eye(3), atol=1e-15)
    np.testing.assert_allclose(np.cross(frame[:, 0], frame[:, 1]), frame[:, 2], atol=1e-15)
    # Tangent 1 is the horizontal x axis made orthogonal to the normal, or y where the normal is within 60 degrees of x.
    seed = np.array([1.0, 0, 0]) if abs(normal[0]) < 0.5 else np.array([0, 1.0, 0])
    tangent = seed - (seed @ normal) * normal
    np.testing.assert_allclose(frame[:, 0], tangent / np.linalg.norm(tangent), atol=1e-15)
    assert int(contacts.node1[0]) == 1 and int(contacts.node2[0]) == 2, "body 1 is the ball, body 2 the world"
    np.testing.assert_allclose(contacts.distance[0], -1e-4, atol=1e-15)
    np.testing.assert_allclose(contacts.point[0], centre - RADIUS * normal, atol=1e-15)
    # Newton and Euler for the ball, with the world impulse built from the frame. Angular velocity in body axes = world's.
    force = frame @ impulse
    free = v + scenes.DT * np.array([0, 0, -scenes.GRAVITY])
    np.testing.assert_allclose(v_plus[:3], free + force / MASS, atol=EXACT)
    np.testing.assert_allclose(v_plus[3:], w + np.cross(-RADIUS * normal, force) / INERTIA, atol=EXACT)
    # The component order: the third one stops the approach, v_n of body 1 relative to body 2.
    np.testing.assert_allclose(impulse[2], MASS * (ERP * 1e-4 / scenes.DT - free @ normal), rtol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 3.0])
def test_cone_is_circular(share):
    """A ball slid in 16 directions: closed form of the circular cone; a pyramid errs by up to 41 %, or sticks beyond it."""
    sys = ball_system()
    normal = MASS * (ERP * 1e-4 / scenes.DT + scenes.GRAVITY * scenes.DT)
    for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False) + 0.05:
        direction = np.array([np.cos(angle), np.sin(angle)])
        speed = share * MU * normal * TANGENT
        _, v_plus, info = step(sys, ball(v=[*(speed * direction), 0]))
        expected = -min(MU * normal, speed / TANGENT) * direction
        impulse = np.asarray(info.contacts.frame[0]) @ np.asarray(info.contacts.impulse[0])
        np.testing.assert_allclose(impulse, [*expected, normal], atol=1e-13)
        np.testing.assert_allclose(v_plus[:2], speed * direction + expected / MASS, atol=EXACT)
        assert int(info.contacts.mode[0]) == (STICKING if share < 1 else SLIDING)


@pytest.mark.parametrize("kind", ["landing", "edge", "standing"])
def test_law_holds_against_enumeration_of_modes(kind):
    """The cube's step equals the solution found by trying all 3^4 modes with a general root finder."""
    x, G, g, J, Minv, free = scenes.cube_problem(kind)
    _, v_plus, info = step(scenes.system("cube"), x)
    lam = np.asarray(info.contacts.impulse)
    nu = (J @ v_plus + (g - J @ free)).reshape(-1, 3)
    assert scenes.law_violation(lam, nu, 0.4) < EXACT
    np.testing.assert_allclose(v_plus, free + Minv @ J.T @ lam.ravel(), atol=EXACT)
    found = enumerate_modes(G, g, 0.4)
    assert found, "the reference found no solution"
    for solution in found:
        # The reference is solved to 1e-10; the velocity is unique in these states though the impulse may not be.
        np.testing.assert_allclose(v_plus, free + Minv @ J.T @ solution, atol=1e-8)


def enumerate_modes(G, g, mu) -> list[np.ndarray]:
    """All solutions of a cone problem, one per consistent assignment of modes, by least squares on each mode's equations."""
    found = []
    count = len(g) // 3
    scale = max(np.abs(g).max(), 1e-3)
    for modes in itertools.product((SEPARATING, STICKING, SLIDING), repeat=count):

        def equations(z, modes=modes):
            lam = z.reshape(-1, 3)
            nu = (G @ z + g).reshape(-1, 3)
            out = []
            for l, w, mode in zip(lam, nu, modes, strict=True):
                if mode == SEPARATING:
                    out += list(l)
                elif mode == STICKING:
                    out += list(w)
                else:
                    size = np.linalg.norm(w[:2])
                    out += [w[2], *(l[:2] + mu * l[2] * w[:2] / (size if size > 0 else 1.0))]
            return np.array(out)

        start = np.tile([0, 0, 0.1 * scale], count)
        z = start if modes == (STICKING,) * count else optimize.least_squares(equations, start, method="lm").x
        for _ in range(4):  # least-norm Newton steps: the equations of redundant contacts are singular
            slope = np.stack([(equations(z + h) - equations(z - h)) / 2e-6 for h in 1e-6 * np.eye(len(z))], 1)
            z = z - np.linalg.lstsq(slope, equations(z), rcond=1e-7)[0]
        if np.abs(equations(z)).max() < 1e-10 * scale:
            if scenes.law_violation(z.reshape(-1, 3), (G @ z + g).reshape(-1, 3), mu) < 1e-9:
                found.append(z)
    return found


def test_tied_contact_is_flagged():
    """Touching without load: zero impulse and zero velocity; separating, flagged, and differentiated as in free motion."""
    sys = scenes.system("cube")
    weightless = dataclasses.replace(sys, model=sys.model.replace(gravity=jnp.zeros(3)))
    at_rest = State(np.array([0, 0, 0.1, 1, 0, 0, 0]), np.zeros(6))
    _, v_plus, info = step(weightless, at_rest)
    assert np.asarray(info.contacts.tied).all() and (np.asarray(info.contacts.mode) == SEPARATING).all()
    np.testing.assert_array_equal(np.asarray(info.impulse), 0.0)
    np.testing.assert_array_equal(v_plus, 0.0)
    jac = weightless.linearize(at_rest, np.zeros(0))
    np.testing.assert_allclose(jac.A[6:, 6:], np.eye(6), atol=1e-12)
    # Loaded, open or leaving contacts are not tied.
    for x, system in (
        (at_rest, sys),
        (State(np.array([0, 0, 0.1001, 1, 0, 0, 0]), np.zeros(6)), weightless),
        (State(at_rest.q, np.array([0, 0, 0.1, 0, 0, 0])), weightless),
        (State(at_rest.q, np.array([0.1, 0, 0, 0, 0, 0])), weightless),
    ):
        assert not np.asarray(step(system, x)[2].contacts.tied).any()


def test_a_distant_contact_ties_nothing():
    """A ball that leaves the floor at 1 um/s is not tied, though another hangs 10 m above it and phi / dt there is 1e4 m/s."""
    ball = '<body pos="{x} 0 0.1"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1" mass="1"/></body>'
    model = load_model_from_string(
        '<mujoco><option gravity="0 0 0"/><worldbody><geom type="plane" size="0 0 1"/>'
        f"{ball.format(x=0)}{ball.format(x=5)}</worldbody></mujoco>"
    )
    sys = System(model, scenes.DT, RigidContact(max_contacts=3))
    info = sys.step(State(np.array([0.0, 10.0]), np.array([1e-6, 0.0])), np.zeros(sys.nu))[1]
    assert not np.asarray(info.contacts.tied).any()
    at_rest = sys.step(State(np.array([0.0, 10.0]), np.zeros(2)), np.zeros(sys.nu))[1]
    assert np.asarray(at_rest.contacts.tied).sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["standing", "sliding", "landing", "edge", "flight"])
def test_residual_is_recomputed(kind):
    """The reported residual is that of the returned impulse, by an implementation of the natural map of this test."""
    x, G, g, *_ = scenes.cube_problem(kind)
    info = step(scenes.system("cube"), x)[2]
    own = scenes.natural_residual(G, g, info.impulse, np.full(4, 0.4))
    # Both are rounding errors of a problem with velocities of order |g|: the same order, not the same digits.
    assert own < 1e-13 and float(info.residual) < 1e-13
    # Away from the solution the two must agree in all digits.
    rng = np.random.default_rng(0)
    ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(4, 0.4))
    for scale in (1e-6, 1e-3, 1.0):
        lam = np.asarray(info.impulse) + scale * rng.normal(size=12)
        np.testing.assert_allclose(
            compiled_residual(ncp, jnp.asarray(lam)), scenes.natural_residual(G, g, lam, np.full(4, 0.4)), rtol=1e-8
        )


def test_residual_of_an_unsolved_problem_is_honest():
    """Nothing resists (G = 0) and the bodies approach: the residual is that of the returned impulse, the status says why."""
    for G, g in ((np.zeros((3, 3)), [0, 0, -1.0]), (np.diag([1.0, 1.0, 0.0]), [0.5, 0, -1.0])):
        out = compiled_solve(make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(1, 0.5)))
        np.testing.assert_allclose(out.residual, scenes.natural_residual(G, g, out.impulse, [0.5]), rtol=1e-8)
        assert float(out.residual) > 0.1 and out.status == Status.infeasible


# -- the offset b ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap, speed", [(5e-4, 2.0), (1e-6, 0.3), (1e-3, 1.01), (2e-3, 1.0), (0.5, 3.0)])
def test_speculative_gap_closes_exactly(gap, speed):
    """An open contact closes its gap within the step and does not cross it; out of reach, it does nothing."""
    q, v_plus, info = step(ball_system(), ball(RADIUS + gap, v=[0, 0, -speed]))
    reached = speed + scenes.DT * scenes.GRAVITY
    expected = min(reached, gap / scenes.DT)
    np.testing.assert_allclose(v_plus[2], -expected, atol=EXACT)
    np.testing.assert_allclose(q[2] - RADIUS, gap - scenes.DT * expected, atol=1e-14)
    np.testing.assert_allclose(info.impulse[2], MASS * (reached - expected), atol=1e-11)


def test_detect_ignores_open_contacts():
    """With gap="detect" an open contact does not exist, however fast it closes; a touching one stops the body."""
    sys = ball_system(gap="detect", erp=0.0)
    q, v_plus, info = step(sys, ball(RADIUS + 1e-9, v=[0.5, 0, -2.0]))
    np.testing.assert_allclose(v_plus[:3], [0.5, 0, -2.0 - scenes.DT * scenes.GRAVITY], atol=1e-14)
    assert q[2] < RADIUS and np.all(np.asarray(info.impulse) == 0)
    for depth in (0.0, 1e-3):
        _, v_plus, _ = step(sys, ball(RADIUS - depth, v=[0, 0, -2.0]))
        np.testing.assert_allclose(v_plus[2], 0.0, atol=EXACT)
    # Restitution likewise only for contacts that exist.
    bouncing = ball_system(gap="detect", erp=0.0, pair_restitution=0.5)
    assert step(bouncing, ball(RADIUS + 1e-9, v=[0, 0, -2.0]))[1][2] < -2.0
    np.testing.assert_allclose(step(bouncing, ball(RADIUS, v=[0, 0, -2.0]))[1][2], 1.0, atol=EXACT)


@pytest.mark.parametrize("law", [{}, {"gap": "detect", "erp": 0.0}, {"erp": 1.0, "damping": 0.3}])
@pytest.mark.parametrize("depth", [0.0, 1e-4, 3e-3])
@pytest.mark.parametrize("speed", [0.0, 0.4])
def test_penetration_correction(law, depth, speed):
    """v_n+ = erp depth / dt, no more than 1 m/s, - k_d v_n of a penetrating ball; the tangential velocity stays."""
    sys = ball_system(**law, pair_friction=0.0)
    _, v_plus, _ = step(sys, ball(RADIUS - depth, v=[0.7, -0.2, -speed]))
    expected = min(law.get("erp", ERP) * depth / scenes.DT, 1.0) + law.get("damping", 0.0) * speed
    np.testing.assert_allclose(v_plus, [0.7, -0.2, expected, 0, 0, 0], atol=EXACT)


@pytest.mark.parametrize("e", [0.3, 1.0])
@pytest.mark.parametrize("phi", [-2e-4, 0.0, 3e-4])
def test_restitution(e, phi):
    """v_n+ = -e v_n with the gap dropped, with friction on the larger impulse; only above v_rest and only when it closes."""
    sys = ball_system(pair_restitution=e)
    _, v_plus, info = step(sys, ball(RADIUS + phi, v=[2.0, 0, -1.5]))
    normal = MASS * (1.5 * (1 + e) + scenes.DT * scenes.GRAVITY)
    slip = min(MU * normal, 2.0 / TANGENT)
    np.testing.assert_allclose(v_plus[:3], [2.0 - slip / MASS, 0, 1.5 * e], atol=EXACT)
    np.testing.assert_allclose(info.impulse[2], normal, atol=EXACT)
    # Slower than v_rest = 0.01 m/s: the row follows the gap's rule, whichever side of it.
    _, v_plus, _ = step(sys, ball(RADIUS + min(phi, 0.0), v=[0, 0, -0.0099]))
    np.testing.assert_allclose(v_plus[2], -ERP * min(phi, 0.0) / scenes.DT, atol=EXACT)
    _, v_plus, _ = step(sys, ball(RADIUS + min(phi, 0.0), v=[0, 0, -0.0101]))
    np.testing.assert_allclose(v_plus[2], 0.0101 * e, atol=EXACT)
    # Fast, but out of reach within the step.
    _, v_plus, _ = step(sys, ball(RADIUS + 2e-3, v=[0, 0, -1.5]))
    np.testing.assert_allclose(v_plus[2], -1.5 - scenes.DT * scenes.GRAVITY, atol=EXACT)


@pytest.mark.parametrize("backend", ["native", "jax"])
@pytest.mark.parametrize("phi", [5e-4, -1e-3])
def test_little_restitution_is_nearly_none(backend, phi):
    """The step is continuous in e at 0, and its derivative by the state is that of the blend between none and a whole rebound."""

    def after(e, speed=1.5, height=RADIUS + phi):
        sys = dataclasses.replace(ball_system(pair_restitution=e), backend=backend)
        return step(sys, ball(height, v=[2.0, 0, -speed]))[1][2]

    np.testing.assert_allclose(after(1e-9), after(0.0), atol=1e-6)
    gap = phi / scenes.DT * (1.0 if phi > 0 else ERP)
    np.testing.assert_allclose(after(0.004), 0.006 - 0.6 * gap, atol=EXACT)
    sys = dataclasses.replace(ball_system(pair_restitution=0.004), backend=backend)
    A = sys.linearize(ball(RADIUS + phi, v=[2.0, 0, -1.5]), np.zeros(0)).A
    by_height = (after(0.004, height=RADIUS + phi + 1e-7) - after(0.004, height=RADIUS + phi - 1e-7)) / 2e-7
    by_speed = (after(0.004, speed=1.5 - 1e-6) - after(0.004, speed=1.5 + 1e-6)) / 2e-6
    np.testing.assert_allclose(A[8, [2, 8]], [by_height, by_speed], rtol=1e-6)


@pytest.mark.parametrize("backend", ["native", "jax"])
def test_friction_of_a_bounce(backend):
    """A contact that bounces has another coefficient, with little restitution in part; what does not bounce keeps its own."""

    def slip(e, speed, factor=0.6):
        leaves = {"pair_restitution": e, "pair_impact_friction": factor}
        sys = dataclasses.replace(ball_system(**leaves), backend=backend)
        _, v_plus, info = step(sys, ball(RADIUS, v=[4.0, 0, -speed]))
        np.testing.assert_allclose(np.hypot(*info.impulse[:2]), float(info.contacts.friction[0]) * info.impulse[2], atol=EXACT)
        return (4.0 - v_plus[0]) * MASS / info.impulse[2]

    np.testing.assert_allclose(slip(0.3, 1.5), 0.6 * MU, atol=EXACT)
    np.testing.assert_allclose(slip(0.3, 1.5, factor=1.0), MU, atol=EXACT)
    np.testing.assert_allclose(slip(0.3, 0.009), MU, atol=EXACT)  # slower than v_rest: no impact
    np.testing.assert_allclose(slip(0.0, 1.5), MU, atol=EXACT)
    np.testing.assert_allclose(slip(0.004, 1.5), (1.0 - 0.4 * 0.4) * MU, atol=EXACT)


@pytest.mark.parametrize("cap", [1.0, 0.3, None])
def test_push_out_speed(cap):
    """What erp asks for is capped, for contacts (m/s) and for limits alike; None: as fast as erp says."""
    sys = ball_system(**({} if cap == 1.0 else {"push_out_speed": cap}))
    for depth in (1e-3, 4e-3, 2e-2):
        expected = min(ERP * depth / scenes.DT, np.inf if cap is None else cap)
        _, v_plus, _ = step(sys, ball(RADIUS - depth))
        np.testing.assert_allclose(v_plus[2], expected, atol=EXACT)
    if cap == 1.0:
        _, v_plus, _ = step(scenes.system("sliders"), State(np.array([0.52, 0]), np.zeros(2)))
        np.testing.assert_allclose(v_plus[0], -1.0, atol=EXACT)


def test_push_out_speed_is_a_mode_of_the_derivative():
    """d v+ / d phi of a ball below the floor: -erp / dt, and zero where the cap acts; that of the law's offset likewise."""
    sys = ball_system()
    for depth, slope in ((4e-3, -ERP / scenes.DT), (6e-3, 0.0)):
        x = ball(RADIUS - depth)
        np.testing.assert_allclose(sys.linearize(x, np.zeros(0)).A[8, 2], slope, atol=1e-9)
        by_distance = jax.grad(lambda phi: sys.contact.pushed_out(phi[None], jnp.asarray(scenes.DT))[0])
        np.testing.assert_allclose(by_distance(jnp.asarray(-depth)), -slope, atol=1e-9)


# Ankles whose default angle, zero, is half a radian outside their range, as published ants have them.
ANKLES = """<mujoco model="ankles"><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>
  <body name="torso"><freejoint/><geom type="sphere" size="0.25" mass="1"/>
    <body name="left" pos="0.3 0 0"><joint name="left" axis="0 1 0" range="0.52 1.2" armature="1"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.08" mass="0.1"/></body>
    <body name="right" pos="-0.3 0 0"><joint name="right" axis="0 1 0" range="-1.2 -0.52" armature="1"/>
      <geom type="capsule" fromto="0 0 0 -0.4 0 0" size="0.08" mass="0.1"/></body></body>
</worldbody></mujoco>"""


def test_joints_far_beyond_their_limits_come_back_slowly():
    """At 1 rad/s until erp asks for less, and then inside; without the cap at erp * 0.52 / dt = 104 rad/s."""
    sys = System(load_model_from_string(ANKLES), 1e-3, RigidContact(max_contacts=0))
    with pytest.warns(StartWarning, match="model 'ankles', the default: .*limits of 'left' .by 0.52., 'right'"):
        x = sys.initial_state()
    xs, _ = sys.rollout(x, np.zeros((500, sys.nu)))
    turning = np.asarray(xs.v)[1:, 6:]
    assert np.abs(turning).max() < 1 + 1e-9
    np.testing.assert_allclose(np.abs(turning), 1.0, atol=1e-9)
    np.testing.assert_allclose(np.abs(np.asarray(xs.q)[500, 7:]), 0.5, atol=1e-9)
    fast = dataclasses.replace(sys, contact=RigidContact(max_contacts=0, push_out_speed=None))
    np.testing.assert_allclose(np.abs(fast.step(x, np.zeros(sys.nu))[0].v[6:]), ERP * 0.52 / 1e-3, rtol=1e-9)


def test_limits_follow_the_table():
    """A slider of 3 kg at its upper and lower limit: gap closed exactly, penetration pushed out by erp, never pulled."""
    sys = scenes.system("sliders")
    for side in (1.0, -1.0):
        q, v_plus, _ = step(sys, State(side * np.array([0.4995, 0]), side * np.array([2.0, 0])))
        np.testing.assert_allclose(q[0], side * 0.5, atol=1e-14)
        np.testing.assert_allclose(v_plus[0], side * 0.5, atol=EXACT)
        _, v_plus, _ = step(sys, State(side * np.array([0.501, 0]), np.zeros(2)))
        np.testing.assert_allclose(v_plus[0], -side * ERP * 1e-3 / scenes.DT, atol=EXACT)
        # Leaving faster than the correction asks: only dry friction (3 N on 3 kg) acts.
        _, v_plus, _ = step(sys, State(side * np.array([0.501, 0]), -side * np.array([1.0, 0])))
        np.testing.assert_allclose(v_plus[0], -side * (1.0 - 3.0 / 3.0 * scenes.DT), atol=EXACT)


def test_dry_joint_friction():
    """|lambda| <= dt f_loss, against the motion, and exactly what stops it below that bound."""
    sys = scenes.system("sliders")
    for u in (-2.9, 0.0, 2.9):  # below 3 N: held
        _, v_plus, info = step(sys, State(np.zeros(2), np.zeros(2)), np.array([u, 0.4]))
        np.testing.assert_allclose(v_plus, 0.0, atol=1e-15)
        np.testing.assert_allclose(np.asarray(info.impulse)[-2:], scenes.DT * np.array([-u, -0.4]), atol=1e-15)
    _, v_plus, _ = step(sys, State(np.zeros(2), np.zeros(2)), np.array([4.5, -1.5]))
    np.testing.assert_allclose(v_plus, scenes.DT * np.array([1.5 / 3, -1.0 / 1]), atol=1e-15)
    _, v_plus, _ = step(sys, State(np.zeros(2), np.array([0.7, -0.3])))
    np.testing.assert_allclose(v_plus, [0.7 - scenes.DT * 3 / 3, -0.3 + scenes.DT * 0.5], atol=1e-14)
    _, v_plus, _ = step(
        sys, State(np.zeros(2), np.array([0.9e-3, -0.4e-3]))
    )  # stops within the step, does not turn round
    np.testing.assert_allclose(v_plus, 0.0, atol=1e-15)
