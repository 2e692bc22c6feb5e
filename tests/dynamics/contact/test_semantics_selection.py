"""The selection of one solution among redundant ones, as docs/contact-semantics.md states it: unique, shortest, smooth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import needs_core
from ridders import Estimate, compare, ridders_jacobian
from scipy import optimize

from dynamics.contact import scenes
from dynamics.contact.scenes import solved_step as step
from trajopt.dynamics.contact.arrays import solve_ncp
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.ncp import SEPARATING, SLIDING, STICKING, make_ncp, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.solve.solve import consistent_solution, solve
from trajopt.dynamics.contact.step import solve_step
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.system import State, System
from trajopt.models import load_model_from_string
from trajopt.result import Status


def warm_starts(sys, x, u, count: int = 100):
    """Garbage of all sizes, the solution slightly off, scaled and sign-flipped, null-space shifts, neighbours' solutions."""
    rng = np.random.default_rng(7)
    _, info = sys.step(x, u)
    lam = np.asarray(info.impulse)
    size = max(np.abs(lam).max(), 1e-3)
    starts = [lam, -lam, 0.5 * lam, 2.0 * lam, 1e3 * lam, 1e-6 * lam]
    while len(starts) < count:
        kind = len(starts) % 4
        noise = rng.normal(size=lam.shape)
        if kind == 0:
            starts.append(10.0 ** rng.uniform(-3, 4) * size * noise)
        elif kind == 1:
            starts.append(lam + 10.0 ** rng.uniform(-14, -2) * size * noise)
        elif kind == 2:
            starts.append(lam * (1.0 + 10.0 ** rng.uniform(-6, 0) * noise))
        else:
            shift = 10.0 ** rng.uniform(-7, -2)
            near = State(
                scenes.integrate(sys.model, x.q, 0.01 * shift * rng.normal(size=sys.nv)),
                x.v + shift * rng.normal(size=sys.nv),
            )
            starts.append(np.asarray(sys.step(near, u)[1].impulse))
    return starts


def begun(sys, x, u, start):
    """The solved step whose contact solve begins at `start`, which a step of a `System` under `RigidContact` never does."""
    tau = sys.model.actuation @ u
    return solve_step(StepInputs(sys.contact, sys.model, x.q, x.v, tau, jnp.asarray(sys.dt), warm_start=start))


CASES = [("cube", "standing"), ("cube", "sliding"), ("cube", "landing"), ("go1", "standing"), ("go1", "sliding")]
SLOW = [pytest.param(n, k, marks=pytest.mark.slow) for n in ("h1", "atlas") for k in ("standing", "sliding", "landing")]


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", [*CASES, *SLOW])
def test_what_redundancy_leaves_open_does_not_depend_on_the_start(name, kind):
    """100 starts of the solve, where the law has one solution but for the null space: the velocity agrees to 1e-9 m/s, the
    selected impulse to 1e-7 of its size."""
    sys = scenes.system(name)
    x, u = (scenes.cube_state(kind), np.zeros(0)) if name == "cube" else scenes.robot_state(name, kind)
    solve_from = jax.jit(lambda start: begun(sys, x, u, start))
    reference = solve_from(np.zeros(len(sys.step(x, u)[1].impulse)))
    assert reference.solution.status == Status.solved
    lam = np.asarray(reference.solution.impulse)
    worst_v, worst_l = 0.0, 0.0
    for start in warm_starts(sys, x, u):
        step = solve_from(start)
        assert step.solution.status == Status.solved
        worst_v = max(worst_v, float(jnp.abs(step.velocity - reference.velocity).max()))
        worst_l = max(worst_l, float(np.abs(np.asarray(step.solution.impulse) - lam).max()))
    assert worst_v < 1e-9
    # The regularised problem is solved to 1e-12 of |g| and its null-space part is conditioned by 1/eps = 1e6: 1e-6 at worst.
    assert worst_l < 1e-6 * np.abs(lam).max()


@pytest.mark.parametrize("kind", ["standing", "sliding", "landing"])
def test_impulse_has_least_norm(kind):
    """No vector of the null space of the law's derivative shortens the impulse."""
    x, G, g, *_ = scenes.cube_problem(kind)
    info = step(scenes.system("cube"), x)[2]
    lam = np.asarray(info.impulse)
    modes = np.asarray(info.contacts.mode)

    def law(z):  # the modes' equations; velocities and impulses are comparable in size here (1 kg)
        nu = (G @ z + g).reshape(-1, 3)
        out = []
        for l, w, mode in zip(z.reshape(-1, 3), nu, modes, strict=True):
            if mode == SLIDING:
                out += [w[2], *(l[:2] + 0.4 * l[2] * w[:2] / np.linalg.norm(w[:2]))]
            else:
                out += list(w) if mode == STICKING else list(l)
        return np.array(out)

    # Central differences: h^2 = 1e-10 times third derivatives of order 1 / |nu_t|^2 (truncation), 1e-11 (rounding).
    h = 1e-5
    K = np.stack([(law(lam + h * e) - law(lam - h * e)) / (2 * h) for e in np.eye(12)], 1)
    _, s, Vt = np.linalg.svd(K)
    null = Vt[s < 1e-7 * s[0]]
    assert len(null) == {"standing": 6, "sliding": 1, "landing": 0}[kind]
    assert np.abs(null @ lam).max(initial=0.0) < 1e-8 * np.linalg.norm(lam)
    if kind == "standing":  # held contacts: the least-norm solution in closed form
        np.testing.assert_allclose(lam, -np.linalg.pinv(G, rcond=1e-10) @ g, atol=1e-10)


@pytest.mark.parametrize("tilt", [1e-6, 1e-5, 1e-4])
def test_turning_foot_sticks_with_all_contacts(tilt):
    """A cube pushed upright out of the floor: its four corners stick, at the impulse of least norm, without a fallback."""
    q = np.array([0, 0, 0.1 - 0.15 * tilt - 1e-5, *scenes.about([1.0, 0.3, 0.0], tilt)])
    _, _, info = step(scenes.system("cube"), State(q, np.zeros(6)))
    assert (np.asarray(info.contacts.distance) < 0).all()
    assert (np.asarray(info.contacts.mode) == STICKING).all()
    assert float(info.residual) < 1e-13 and int(info.fallbacks) == 0


def test_sliding_impulse_is_the_shortest_of_the_solution_set():
    """Brute force over the one-parameter family of solutions of a sliding, spinning cube."""
    x, G, g, *_ = scenes.cube_problem("sliding")
    lam = np.asarray(step(scenes.system("cube"), x)[2].impulse)
    w = np.array([1.0, -1, -1, 1])  # corners in the order (x, y) = (-,-), (-,+), (+,-), (+,+)

    def full(normal):  # friction for given normal impulses, by fixed-point iteration (contracts: it moves v by 0.1 %)
        z = np.zeros((4, 3))
        z[:, 2] = normal
        for _ in range(60):
            nu = (G @ z.ravel() + g).reshape(-1, 3)
            z[:, :2] = -0.4 * normal[:, None] * nu[:, :2] / np.linalg.norm(nu[:, :2], axis=1, keepdims=True)
        return z

    def member(t):  # the solution with component t along w
        basis = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1]]) / 4.0

        def equations(normal):
            nu = (G @ full(normal).ravel() + g).reshape(-1, 3)
            return np.concatenate([basis @ nu[:, 2], [w @ normal / 4.0 - t]])

        found = optimize.root(equations, np.full(4, lam.reshape(-1, 3)[:, 2].mean()), tol=1e-14)
        return full(found.x)

    size = np.linalg.norm(lam)
    for t in (-0.05 * size, 0.05 * size):  # the members of the family are solutions, and differ
        z = member(t)
        assert scenes.law_violation(z, (G @ z.ravel() + g).reshape(-1, 3), 0.4) < 1e-10
        assert np.linalg.norm(z.ravel() - lam) > 0.01 * size
    best = optimize.minimize_scalar(lambda t: np.sum(member(t) ** 2), bracket=(-0.02 * size, 0.02 * size), tol=1e-10)
    # A minimum of a smooth function is located to the square root of rounding: 1e-8 |lambda|; its value to rounding.
    np.testing.assert_allclose(size, np.sqrt(best.fun), rtol=1e-11)
    np.testing.assert_allclose(lam, member(best.x).ravel(), atol=1e-6 * size)


@pytest.mark.parametrize("kind", ["sliding", "standing"])
def test_selected_solution_derivative(kind):
    """d(v+, lambda) of a redundant problem against differences of the step itself, which recomputes the selection."""
    sys = scenes.system("cube")
    x = scenes.cube_state(kind)
    n = sys.nv

    def outputs(z):
        y, info = sys.step(State(scenes.integrate(sys.model, x.q, z[:n]), x.v + z[n:]), np.zeros(0))
        return np.concatenate([np.asarray(y.v), np.asarray(info.impulse)])

    # Steps well below the 1e-4 m of penetration (kink of the offset at phi = 0).
    estimate = ridders_jacobian(
        outputs, 2 * n, np.r_[np.full(n, 2e-5), np.full(n, 1e-3 if kind == "sliding" else 1e-4)]
    )
    got = _tangents(sys, x)
    compare(got[:n], Estimate(estimate.value[:n], estimate.error[:n]), label=f"{kind}: velocity")
    # Rounding of the selected impulse: 1e6 (one over the regularisation) times that of the residual, 1e-13 N s, over the step
    # of 1e-5 m: 1e-8, where the derivatives are up to dt^-1 erp / 4 = 50. So small entries are judged as 1 % of the largest.
    compare(got[n:], Estimate(estimate.value[n:], estimate.error[n:]), smallest=1e-2, label=f"{kind}: impulse")


@jax.jit
def _along(sys, q, v, z):
    def f(s):
        y, info = sys.step(State(integrate(sys.model, q, s * z[: sys.nv]), v + s * z[sys.nv :]), jnp.zeros(0))
        return jnp.concatenate([y.v, info.impulse])

    return jax.jvp(f, (jnp.zeros(()),), (jnp.ones(()),))[1]


def _tangents(sys, x):
    """d(v+, lambda)/d[dq, dv] by forward mode through `step`, with dq in tangent coordinates."""
    q, v = jnp.asarray(x.q), jnp.asarray(x.v)
    return np.stack([np.asarray(_along(sys, q, v, e)) for e in np.eye(2 * sys.nv)], 1)


def test_linear_systems_of_the_derivative_are_solved_to_rounding():
    """A box that turns about one of its corners: the shortest impulse slides elsewhere than the regularised one, and the
    preconditioner has to be that of the shortest."""
    corners, spin = scenes.box_corners((0.1, 0.1, 0.1))[::2], np.array([0.0, 0.0, 3.0])
    q, v = np.array([0, 0, 0.0999, 1, 0, 0, 0]), np.concatenate([-np.cross(spin, corners[0]), spin])
    G, g, *_ = scenes.box_problem(q, v, 1e-3, corners, 0.2 * (q[2] + corners[:, 2]) / 1e-3)
    ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(4, 0.6))
    solution = jax.jit(solve)(ncp)
    assert solution.degenerate and solution.selected and (solution.modes.cone == SLIDING).all()
    P = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    K = np.asarray(newton_matrix(ncp, P, ncp.G))
    right = K @ np.random.default_rng(0).normal(size=12)
    np.testing.assert_allclose(K @ consistent_solution(ncp, solution, right), right, atol=1e-13 * np.abs(right).max())


KNEE = """<mujoco><worldbody><geom type="plane" size="0 0 1" friction="0.8"/>
  <body pos="0 0 0.0499"><freejoint/><geom type="capsule" fromto="0 0 0 -0.3 0 0.3" size="0.05" mass="1" friction="0.8"/>
    <body><joint type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0.3" size="0.05" mass="0.7" friction="0.8"/></body></body></worldbody></mujoco>"""


@pytest.mark.parametrize("backend", ["jax", pytest.param("native", marks=needs_core)])
def test_where_the_shortest_impulse_breaks_the_law_the_limit_is_selected(backend):
    """A knee that hits the floor with the round ends of both links, in one point, which slide apart: each share of the normal
    impulse has another v+, and with the shortest impulse a link would turn back. Of equal rows the regularised problem makes
    equal impulses, here to the last digit, and the derivative is that of this selection."""
    sys = System(load_model_from_string(KNEE), 1e-3, backend=backend)
    u, n = np.zeros(sys.nu), sys.nv
    x = State(sys.initial_state().q, jnp.array([-0.09, -0.11, -0.35, 0.22, -2.98, -0.93, 1.27]))
    y, info = sys.step(x, u)
    closed = np.asarray(info.contacts.mode) != SEPARATING
    assert info.status == Status.solved and info.degenerate
    assert (np.asarray(info.contacts.mode)[closed] == SLIDING).all() and closed.sum() == 2
    one, two = np.asarray(info.contacts.impulse)[closed]
    np.testing.assert_allclose(one[2], two[2], rtol=1e-12)
    assert np.linalg.norm(one[:2] - two[:2]) > 0.5 * np.linalg.norm(one[:2])  # they slide to different sides

    def velocity(z):
        return np.asarray(sys.step(State(scenes.integrate(sys.model, x.q, z[:n]), x.v + z[n:]), u)[0].v)

    estimate = ridders_jacobian(velocity, 2 * n, np.r_[np.full(n, 1e-5), np.full(n, 1e-3)])
    compare(np.asarray(sys.linearize(x, u).A)[n:], estimate, label=backend)


def held_by_many(seed: int):
    """(J, c, mu) of two contacts of a body with three degrees of freedom, which hold it: G = J J^T, g = J c."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(6, 3)), rng.normal(size=3), np.full(2, 0.8)


def sliding_slowly(count: int):
    """The first `count` of these problems in which all contacts stick, but slide slowly in the regularised problem."""
    found = []
    for seed in range(400):
        J, c, mu = held_by_many(seed)
        solution = _solved(J, c, mu)
        if solution.status == Status.solved and (np.asarray(solution.modes.cone) == STICKING).all() and solution.slow.any():
            found.append((J, c, mu))
        if len(found) == count:
            return found
    raise AssertionError(f"only {len(found)} of 400 problems have a contact that slides slowly")


@jax.jit
def _solved(J, c, mu, eps=0.0):
    """The problem with G + eps I."""
    return solve(make_ncp(J @ J.T + eps * jnp.eye(6), J @ c, mu))


@pytest.mark.slow
def test_the_limit_is_that_of_the_regularised_problem():
    """Against the unique solutions of problems with eps of 4e-3, 2e-3, ... of G, extrapolated to zero."""
    for J, c, mu in sliding_slowly(4):
        solution = _solved(J, c, mu)
        assert bool(solution.degenerate) and not bool(solution.selected)
        sizes = 4e-3 * 0.5 ** np.arange(7)
        rows = [np.asarray(_solved(J, c, mu, eps).impulse) for eps in sizes]
        for k in range(1, len(rows)):  # Richardson
            rows = [(2**k * fine - coarse) / (2**k - 1) for coarse, fine in zip(rows, rows[1:], strict=False)]
        lam = np.asarray(solution.impulse)
        np.testing.assert_allclose(lam, rows[0], atol=1e-7 * np.abs(lam).max())
        on_cone = np.hypot(*lam.reshape(2, 3)[:, :2].T) / (mu * lam[2::3])
        np.testing.assert_allclose(on_cone[np.asarray(solution.slow)], 1.0, atol=1e-12)


@pytest.mark.slow
def test_impulses_on_their_cones():
    """d(impulse) of `solve_ncp` along changes of masses, velocities and friction, against differences of the solution."""
    rng = np.random.default_rng(0)

    @jax.jit
    def impulse(s, J, c, mu, dL, dc, dmu):
        L = J @ (jnp.eye(3) + s * dL)
        return solve_ncp(L @ L.T, L @ (c + s * dc), mu + s * dmu).impulse

    slope = jax.jit(jax.jacfwd(impulse))
    for problem in sliding_slowly(4):
        change = 0.2 * rng.normal(size=(3, 3)), 0.2 * rng.normal(size=3), 0.1 * rng.normal(size=2)
        case = *problem, *change
        estimate = ridders_jacobian(lambda z, case=case: np.asarray(impulse(z[0], *case)), 1, 1e-3)
        compare(np.asarray(slope(0.0, *case))[:, None], estimate, relative=1e-6, smallest=1e-2)
