"""`solve_ncp` on plain arrays: hard and degenerate problems, honest statuses, transformations and derivatives."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from ridders import Estimate, compare, ridders

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics import Stage, solve_boxed_lcp, solve_ncp
from trajopt.dynamics.contact.ncp import make_ncp, natural_map
from trajopt.dynamics.contact.solve.ladder import ROUNDS
from trajopt.dynamics.contact.solve.newton import merit, newton_regularised, regularisation
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.result import Status


def check(G, g, mu, out, tolerance=1e-10, scaled=True):
    """The reported numbers against the definition."""
    lam = np.asarray(out.impulse, float)
    own = scenes.natural_residual(G, g, lam, mu)
    assert own <= tolerance, f"residual {own:.1e} by its definition, {float(out.residual):.1e} reported"
    assert abs(own - float(out.residual)) <= 0.01 * tolerance + 0.5 * own
    np.testing.assert_allclose(out.velocity, G @ lam + g, atol=1e-12 * (1 + np.abs(G) @ np.abs(lam)).max())
    if scaled:  # the four statements of the law, in units of the effective mass and the velocity
        nc, size = len(mu), np.abs(g).max()
        unit = np.diag(G)[2::3, None]
        assert (
            scenes.law_violation(lam.reshape(nc, 3) * unit / size, np.asarray(out.velocity).reshape(nc, 3) / size, mu)
            < 1e-8
        )


# -- hard problems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.4, 5.0, 1e3])
@pytest.mark.parametrize("mass", [1.0, 1e-4, 1e4])
def test_redundant_contacts(mu, mass):
    """G has rank 6 of 12; any friction from none to practically infinite, any mass."""
    G, g = scenes.box_on_corners(mass=mass)
    out = solve_ncp(G, g, np.full(4, mu))
    assert out.status == Status.solved and bool(out.degenerate)
    check(G, g, np.full(4, mu), out)
    if mu == 0.0:  # the frictionless problem is a quadratic programme; the impulse of least norm among all solutions
        lam = np.asarray(out.impulse).reshape(4, 3)
        assert np.abs(lam[:, :2]).max() <= 1e-15 * np.abs(lam).max()


@pytest.mark.parametrize("corner", range(4))
@pytest.mark.parametrize("size", [1e-6, 1e-8, -1e-8, 1e-10, 1e-12])
def test_a_redundant_contact_that_barely_opens(corner, size):
    """Four sliding corners whose gaps contradict each other by less than the regularisation sees: one of them opens."""
    G, g = scenes.box_on_corners((0.055, -0.0055, -0.0073), (-0.026, 0.0, 0.035))
    g[3 * corner + 2] += size
    mu = np.full(4, 0.4)
    out = solve_ncp(G, g, mu)
    assert out.status == Status.solved
    check(G, g, mu, out)


def test_single_contact_closed_form():
    """G a multiple of the identity: separating, sticking and sliding in closed form."""
    mu, m = 0.5, 2.0
    for g, expected in (
        ([0.3, 0.1, 0.2], [0, 0, 0]),
        ([0.03, -0.04, -1.0], [-0.06, 0.08, 2.0]),
        ([3.0, -4.0, -1.0], [-0.6, 0.8, 2.0]),
        ([0.0, 0.0, -1.0], [0, 0, 2.0]),
    ):
        out = solve_ncp(np.eye(3) / m, np.array(g), np.array([mu]))
        np.testing.assert_allclose(out.impulse, expected, atol=1e-11)


@pytest.mark.parametrize("ratio", [1e4, 1e-4])
@pytest.mark.parametrize("solver, mu", [(solve_ncp, 0.0), (solve_boxed_lcp, 0.3)])
def test_mass_ratio(solver, mu, ratio):
    """A light block under a heavy one, and the reverse, on four contacts each, in closed form: they fall with speed 1, and where
    there is friction they slide along x. The lower contacts carry both momenta, the upper four that of the upper block."""
    m1, m2 = 1.0, ratio
    n = np.zeros((24, 4))  # (x, z) of the lower, (x, z) of the upper block
    n[0:12:3, 0] = n[2:12:3, 1] = 1.0
    n[12:24:3], n[14:24:3] = (-1.0, 0, 1.0, 0), (0, -1.0, 0, 1.0)
    slip = 1e3 if mu else 0.0
    G, g = (n / [m1, m1, m2, m2]) @ n.T, n @ [slip, -1.0, slip, -1.0]
    out = solver(G, g, np.full(8, mu))
    assert out.status == Status.solved
    lam = np.asarray(out.impulse).reshape(8, 3)
    # Condition number of the stack: the mass ratio.
    np.testing.assert_allclose(lam[:, 2], np.repeat([(m1 + m2) / 4, m2 / 4], 4), rtol=1e-8)
    if mu:
        np.testing.assert_allclose(lam[:4, 0], -mu * (m1 + m2) / 4, rtol=1e-8)
    else:
        np.testing.assert_allclose(lam[:, :2], 0, atol=1e-8 * (m1 + m2))


def test_zero_gravity_no_load():
    """g = 0 gives no impulse, and no NaN anywhere, also in the derivative."""
    G, _ = scenes.box_on_corners()
    out = solve_ncp(G, np.zeros(12), np.full(4, 0.5))
    assert out.status == Status.solved
    np.testing.assert_array_equal(np.asarray(out.impulse), 0.0)
    slope = jax.jacfwd(lambda g: solve_ncp(jnp.asarray(G), g, jnp.full(4, 0.5)).impulse)(jnp.zeros(12))
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)


def test_no_contact_at_all():
    out = solve_ncp(np.zeros((0, 0)), np.zeros(0), np.zeros(0))
    assert out.status == Status.solved and out.impulse.shape == (0,) and float(out.residual) == 0.0


def test_no_active_contact():
    G, g = scenes.box_on_corners(v=(0.3, -0.1, 0.2), w=(0.0, 0.0, 0.5))
    out = solve_ncp(G, g, np.full(4, 0.5))
    assert out.status == Status.solved and int(out.iterations) <= 1
    np.testing.assert_array_equal(np.asarray(out.impulse), 0.0)
    np.testing.assert_array_equal(np.asarray(out.velocity), g)


@pytest.mark.parametrize("G, g", scenes.UNSTOPPABLE)
def test_infeasible(G, g):
    """An approach that no impulse can stop: status infeasible, finite numbers, an honest residual."""
    nc = len(g) // 3
    out = solve_ncp(G, np.array(g, float), np.full(nc, 0.5))
    assert out.status == Status.infeasible
    assert np.isfinite(np.asarray(out.impulse)).all()
    # Of the approach of 1 m/s nothing is taken away, however large impulses that cancel make the scale.
    size = scenes.velocity_scale(G, np.array(g), np.asarray(out.impulse), nc, 0, 1e-10)
    assert float(out.residual) * size > 0.9
    np.testing.assert_allclose(out.residual, scenes.natural_residual(G, g, out.impulse, np.full(nc, 0.5)), rtol=1e-6)


# -- interface ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"g": np.array([0, np.nan, 0.0])}, NonFiniteError, r"g\[1\] is nan"),
        ({"G": np.full((3, 3), np.inf)}, NonFiniteError, r"G\[0, 0\] is inf"),
        ({"mu": np.array([np.nan])}, NonFiniteError, r"mu\[0\] is nan"),
        ({"init": np.array([0, 0, np.nan])}, NonFiniteError, r"init\[2\] is nan"),
        ({"g": np.zeros(4)}, ShapeError, r"g has shape \(4,\), expected \(3,\)"),
        ({"G": np.eye(4)}, ShapeError, r"G has shape \(4, 4\), expected \(3, 3\)"),
        ({"mu": np.zeros((1, 1))}, ShapeError, r"mu has shape \(1, 1\), expected \(nc,\)"),
        ({"init": np.zeros(2)}, ShapeError, r"init has shape \(2,\), expected \(3,\)"),
        ({"mu": np.array([-0.1])}, OptionError, r"mu\[0\] is -0.1"),
        ({"G": np.array([[1.0, 0, 0.5], [0, 1, 0], [0, 0, 1]])}, OptionError, "G is not symmetric"),
        ({"tol": 0.0}, OptionError, "tol is 0.0"),
        ({"max_iterations": 0}, OptionError, "max_iterations is 0"),
        ({"g": jnp.zeros(3, jnp.float32), "G": jnp.eye(3)}, ShapeError, "one dtype"),
        ({"G": np.eye(3) * 1j}, ShapeError, "G holds complex numbers"),
        ({"g": jnp.zeros(3, complex)}, ShapeError, "g holds complex numbers"),
        ({"g": np.array(["fast"] * 3)}, ShapeError, "g holds text"),
        ({"mu": np.array(["rough"])}, ShapeError, "mu holds text"),
        ({"mu": np.array([0.5j])}, ShapeError, "mu holds complex numbers"),
        ({"init": np.array([0, 0, 1j])}, ShapeError, "init holds complex numbers"),
        # Where types are checked at run time, the annotations of options speak first.
        ({"max_iterations": "many"}, (OptionError, jaxtyping.TypeCheckError), "max_iterations is 'many'|type.?check"),
        ({"tol": "fine"}, (OptionError, jaxtyping.TypeCheckError), "tol is 'fine'|type.?check"),
    ],
)
def test_arguments_are_checked_by_name(change, error, message):
    arguments = {"G": np.eye(3), "g": np.array([0, 0, -1.0]), "mu": np.array([0.5]), **change}
    with pytest.raises(error, match=message):
        solve_ncp(**arguments)


def test_transformations_agree():
    """jit, vmap and both give the single answers; batches mix easy, sliding, open and infeasible problems."""
    G, g = scenes.box_on_corners()
    gs = np.stack([g, -g, 3 * g, g + np.tile([2.0, 0, 0], 4), 0 * g])
    mu = np.full(4, 0.5)
    single = [solve_ncp(G, x, mu) for x in gs]
    batch = jax.jit(jax.vmap(lambda x: solve_ncp(jnp.asarray(G), x, jnp.asarray(mu))))(jnp.asarray(gs))
    # Redundant contacts: rounding of the residual times 1e6, the inverse of the regularisation.
    np.testing.assert_allclose(batch.impulse, np.stack([s.impulse for s in single]), atol=1e-9)
    np.testing.assert_allclose(batch.velocity, np.stack([s.velocity for s in single]), atol=1e-12)
    np.testing.assert_allclose(
        jax.jit(solve_ncp)(jnp.asarray(G), jnp.asarray(g), jnp.asarray(mu)).impulse, single[0].impulse, atol=1e-9
    )
    both = jax.vmap(lambda G, g: solve_ncp(G, g, jnp.full(1, 0.5)))(
        jnp.stack([jnp.eye(3), jnp.zeros((3, 3))]), jnp.tile(jnp.array([0.1, 0, -1.0]), (2, 1))
    )
    np.testing.assert_allclose(
        both.impulse[0], solve_ncp(np.eye(3), np.array([0.1, 0, -1.0]), np.full(1, 0.5)).impulse, atol=1e-12
    )
    np.testing.assert_array_equal(both.status == Status.solved, [True, False])
    proven = both.status[1] == (Status.infeasible if native.available() else Status.stalled)
    assert bool(proven)


def test_float32():
    G, g = (x.astype(np.float32) for x in scenes.box_on_corners())
    for mu in (0.0, 0.4, 5.0):
        out = solve_ncp(jnp.asarray(G), jnp.asarray(g), jnp.full(4, mu, jnp.float32))
        assert out.impulse.dtype == out.residual.dtype == jnp.float32
        assert out.status == Status.solved
        assert scenes.natural_residual(G, g, out.impulse, np.full(4, mu), tol=1e-5) < 1e-5


@pytest.mark.parametrize("start", [1.0, -1.0, 1e4, 1e-8])
def test_start_does_not_choose_the_solution(start):
    rng = np.random.default_rng(0)
    G, g = scenes.box_on_corners()
    mu = np.full(4, 0.4)
    reference = solve_ncp(G, g, mu)
    for _ in range(10):
        out = solve_ncp(G, g, mu, init=start * rng.normal(size=12))
        np.testing.assert_allclose(out.velocity, reference.velocity, atol=1e-10)
        np.testing.assert_allclose(out.impulse, reference.impulse, atol=1e-7)


def test_tolerance_and_iteration_limit_are_used(monkeypatch):
    """What single iterations do not solve is not called solved, and what is reported stays the residual; a tolerance below
    rounding asks for rounding."""
    G, g, mu = scenes.stack_of_bodies(3, ratio=1e4)
    ncp = make_ncp(*(jnp.asarray(x) for x in (G, g, mu)))
    monkeypatch.setattr(native, "available", lambda: False)
    out = jax.jit(functools.partial(solve, max_iterations=1))(ncp)
    own = scenes.natural_residual(G, g, out.impulse, mu)
    assert out.status == Status.stalled and out.fallbacks == Stage.GAUSS_SEIDEL and own > 1e-10
    assert int(out.iterations) <= 1 + ROUNDS
    np.testing.assert_allclose(out.residual, own, rtol=1e-6)
    monkeypatch.undo()
    G, g, mu = scenes.stack_of_bodies(3)
    exact = solve_ncp(G, g, mu, tol=1e-30)
    lam = np.asarray(exact.impulse)
    rounding = np.finfo(float).eps * (np.abs(G) @ np.abs(lam) + np.abs(g)).max()
    assert scenes.natural_residual(G, g, lam, mu) * scenes.velocity_scale(G, g, lam, len(mu), 0, 1e-10) <= 8 * rounding


@pytest.mark.parametrize("tilt", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("kind", ["sinking", "pushed"])
def test_sticking_contacts_that_contradict_each_other(kind, tilt):
    """Corners of a tilted, sinking box taken at different heights cannot all stick while it is pushed upright.

    The law is then met by slip of second order in the tilt, with friction at its bound inside the box: a solution of size
    1/tilt^2 in the direction in which impulses are redundant, which a regularised problem does not see.
    """
    q = np.array([0, 0, 0.1 - 0.15 * tilt, *scenes.about([1.0, 0.3, 0.0], tilt)])
    v = np.array([0.01, 0.005, 0, 0, 0, 0]) if kind == "pushed" else np.zeros(6)
    corners = scenes.box_corners((0.1, 0.1, 0.1))[::2]
    phi = q[2] + (corners @ scenes.rotation(q[3:]).T)[:, 2]
    assert (phi < 0).all()
    G, g, *_ = scenes.box_problem(q, v, 1e-3, corners, 0.2 * phi / 1e-3)
    out = solve_ncp(G, g, np.full(4, 0.4))
    check(G, g, np.full(4, 0.4), out)


# -- random problems ---------------------------------------------------------------------------------------------------


def share_solved(count: int, bodies: int, ratio: float) -> tuple[float, int, float]:
    solved, iterations, fallbacks = 0, [], 0
    for seed in range(count):
        G, g, mu = scenes.stack_of_bodies(seed, bodies, ratio)
        out = solve_ncp(G, g, mu)
        fallbacks += int(out.fallbacks) > 0
        iterations.append(int(out.iterations))
        if out.status == Status.solved:
            solved += 1
            check(G, g, mu, out, scaled=False)
        else:
            assert float(out.residual) > 1e-10, "not solved, though the residual says so"
    return solved / count, int(np.median(iterations)), fallbacks / count


def test_random_stacks_are_solved():
    """Three stacked bodies, nine contacts, frictions from 0 to 1.5, mass ratios up to 100.

    Random normals and lever arms make these harder than a simulation's; what is not solved must say so.
    """
    share, median, fallbacks = share_solved(60, 3, 1e2)
    assert share >= 0.95, f"{100 * share:.1f} % solved, {100 * fallbacks:.1f} % with fallbacks"
    assert median <= 30  # iterations of all attempts; more than half of these problems need a fallback


@pytest.mark.slow
@pytest.mark.parametrize("bodies, ratio", [(2, 1e4), (3, 1e4), (4, 1e2)])
def test_many_random_stacks_are_solved(bodies, ratio):
    share, _, fallbacks = share_solved(300, bodies, ratio)
    assert share >= 0.95, f"{100 * share:.1f} % solved, {100 * fallbacks:.1f} % with fallbacks"


# -- solvers -----------------------------------------------------------------------------------------------------------


def test_merit_falls_in_every_accepted_iteration():
    """Newton stopped after 1, 2, 3, ... iterations: the merit of the regularised problem never rises."""
    # The number of iterations is traced, so that one compilation serves them all; hence past the type checks, if on.
    run = jax.jit(getattr(newton_regularised, "__wrapped__", newton_regularised))
    merit_of = jax.jit(lambda ncp, x, eps: merit(ncp, natural_map(ncp, x, ncp.G @ x + eps * x + ncp.g)))
    boxes = [
        (*scenes.box_on_corners(), np.full(4, 0.4)),
        (*scenes.box_on_corners((0.01, 0.02, -1.0), (0.1, -0.2, 0.01)), np.full(4, 0.8)),
    ]
    for index, problem in enumerate([*boxes, *(scenes.stack_of_bodies(seed) for seed in range(6))]):
        ncp = make_ncp(*(jnp.asarray(x) for x in problem))
        eps = regularisation(ncp)
        value = lambda x, ncp=ncp, eps=eps: float(merit_of(ncp, x, eps))  # noqa: E731
        zero = jnp.zeros_like(ncp.g)
        merits = [value(zero)] + [value(run(ncp, zero, eps, jnp.asarray(1e-12), k)[0]) for k in range(1, 13)]
        assert all(later <= earlier for earlier, later in zip(merits[:-1], merits[1:], strict=True)), merits
        if index < len(boxes):
            assert merits[-1] < 1e-20 * merits[0], "Newton converges on a box"


# -- derivatives -------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "stack": lambda: scenes.stack_of_bodies(1),
    "box sliding": lambda: (*scenes.box_on_corners(), np.full(4, 0.4)),
    "box sticking": lambda: (*scenes.box_on_corners((0.01, 0.02, -1.0), (0.01, -0.02, 0.01)), np.full(4, 0.8)),
    "box frictionless": lambda: (*scenes.box_on_corners(), np.zeros(4)),
}
DERIVATIVE_CASES = [pytest.param(solve_ncp, case, id=case) for case in PROBLEMS]
DERIVATIVE_CASES += [pytest.param(solve_boxed_lcp, case, id=f"{case}, boxed") for case in PROBLEMS if case != "stack"]


@functools.cache
def _directional(solver):
    def along(G, g, mu, dG, dg, dmu):
        def f(G, g, mu):
            out = solver(G, g, mu)
            return out.impulse, out.velocity

        return jax.jvp(f, (G, g, mu), (dG, dg, dmu))[1]

    return jax.jit(along)


@pytest.mark.parametrize("solver, case", DERIVATIVE_CASES)
def test_derivatives_against_ridders(solver, case):
    """Forward mode in random directions of G, g and mu; directions of G keep its range (masses change, the Jacobian does not)."""
    G, g, mu = PROBLEMS[case]()
    rng = np.random.default_rng(4)
    root = np.linalg.svd(G)  # G = L L^T with L (m, rank)
    rank = int(np.sum(root.S > 1e-10 * root.S[0]))
    L = root.U[:, :rank] * np.sqrt(root.S[:rank])
    sticking_only = case != "box frictionless"
    got, values, errors = [], [], []
    for kind in ("G", "g", "mu"):
        dL = L @ (0.3 * rng.normal(size=(rank, rank))) * (kind == "G")
        # g = L c: the velocity before contact is a velocity of the mechanism.
        c = np.linalg.lstsq(L, g, rcond=None)[0]
        dc = 0.3 * rng.normal(size=rank) * (kind == "g")
        dmu = rng.uniform(0.1, 0.3, size=mu.shape) * (kind == "mu") * (mu > 0 if sticking_only else 0.0)

        def f(s, dL=dL, dc=dc, dmu=dmu, c=c):
            moved = L + s * dL
            out = solver(moved @ moved.T, moved @ (c + s * dc), mu + s * dmu)
            return np.concatenate([out.impulse, out.velocity])

        tangents = (dL @ L.T + L @ dL.T, dL @ c + L @ dc, dmu)
        forward = _directional(solver)(*(jnp.asarray(x) for x in (L @ L.T, L @ c, mu, *tangents)))
        estimate = ridders(f, 3e-3)
        got.append(np.concatenate(forward)), values.append(estimate.value), errors.append(estimate.error)
    # Rounding of a selected impulse: that of the residual times 1e6, one over the regularisation; so small entries of
    # d lambda are judged as 1 % of the largest. Velocities have no such amplification.
    got, values, errors = np.stack(got, 1), np.stack(values, 1), np.stack(errors, 1)
    m = len(g)
    # A third: while the box sticks its impulse does not depend on mu, and that column of differences is rounding alone.
    compare(got[:m], Estimate(values[:m], errors[:m]), untrusted=0.34, label=f"{case}: impulse")
    compare(got[m:], Estimate(values[m:], errors[m:]), untrusted=0.1, label=f"{case}: velocity")


@pytest.mark.parametrize("solver, case", DERIVATIVE_CASES)
def test_reverse_mode_is_the_transpose_of_forward_mode(solver, case):
    G, g, mu = (jnp.asarray(x) for x in PROBLEMS[case]())
    rng = np.random.default_rng(9)
    w_l, w_v = rng.normal(size=g.shape), rng.normal(size=g.shape)
    dG = rng.normal(size=G.shape)
    tangents = (
        jnp.asarray(dG + dG.T) * 0.1,
        jnp.asarray(rng.normal(size=g.shape)),
        jnp.asarray(rng.normal(size=mu.shape)),
    )
    by_l, by_v = _directional(solver)(G, g, mu, *tangents)

    def weighted(G, g, mu):
        out = solver(G, g, mu)
        return w_l @ out.impulse + w_v @ out.velocity

    gradient = jax.jit(jax.grad(weighted, argnums=(0, 1, 2)))(G, g, mu)
    backward = sum(float(jnp.sum(x * y)) for x, y in zip(gradient, tangents, strict=True))
    forward = float(w_l @ by_l + w_v @ by_v)
    assert all(np.isfinite(np.asarray(x)).all() for x in gradient)
    np.testing.assert_allclose(backward, forward, rtol=1e-8, atol=1e-8 * float(jnp.abs(by_l).max()))
