"""The boxed LCP on plain arrays, `solve_boxed_lcp`: against enumeration, bounded least squares and closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dynamics.contact import scenes
from trajopt.dynamics import solve_boxed_lcp, solve_ncp
from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.solve.lemke import lemke
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.result import Status


@jax.jit
def mixed(G, g, mu, exists, bound, init):
    """The solve with limits and dry friction, which `solve_boxed_lcp` leaves out."""
    return solve(make_ncp(G, g, mu, exists, bound, "box"), init, max_iterations=2000)


@jax.jit
def pivoting(G, g, mu, bound):
    """Lemke's method alone, without regularisation: (impulse, pivots)."""
    exists = jnp.ones(g.shape[0] - 2 * mu.shape[0] - bound.shape[0], bool)
    return lemke(make_ncp(G, g, mu, exists, bound, "box"), jnp.zeros(()), 1000)


def rows(nc: int, nl: int, nf: int):
    """Choices of every row's mode: (held, lambda, bound) as (row, [options]); 0 held, +-1 at a bound, None no impulse."""
    cone = [(None, None, None), *[(a, b, 0) for a, b in itertools.product((0, 1, -1), repeat=2)]]
    return [cone] * nc + [[(0,), (None,)]] * nl + [[(0,), (1,), (-1,)]] * nf


def enumerated(G, g, mu, limits, bound):
    """All solutions of a small problem: every combination of modes is solved and judged by the inequalities of the law."""
    nc, m, found = len(mu), len(g), []
    for choice in itertools.product(*rows(nc, limits, len(bound))):
        A, b = np.eye(m), np.zeros(m)
        modes = [mode for part in choice for mode in part]
        for i, mode in enumerate(modes):
            if mode == 0:
                A[i], b[i] = G[i], -g[i]
            elif mode is not None and i < 3 * nc:
                A[i, 3 * (i // 3) + 2] = -mode * mu[i // 3]
            elif mode is not None:
                b[i] = mode * bound[i - 3 * nc - limits]
        if np.linalg.matrix_rank(A) < m:
            continue
        lam = np.linalg.solve(A, b)
        if violation(lam, G @ lam + g, mu, limits, bound) < 1e-9 and not any(np.allclose(lam, x) for x in found):
            found.append(lam)
    return found


def violation(lam, nu, mu, limits=0, bound=()) -> float:
    """Largest violation of the law by its definition: signs, bounds and products (not scaled)."""
    nc = len(mu)
    normal = [*range(2, 3 * nc, 3), *range(3 * nc, 3 * nc + limits)]
    worst = max([0.0, *(max(-lam[i], -nu[i], abs(lam[i] * nu[i])) for i in normal)])
    friction = [(3 * k + j, mu[k] * lam[3 * k + 2]) for k in range(nc) for j in (0, 1)]
    friction += [(3 * nc + limits + k, b) for k, b in enumerate(bound)]
    for i, b in friction:  # at the bound against the motion, or no motion
        worst = max(worst, abs(lam[i]) - b, abs(nu[i] * lam[i] + b * abs(nu[i])))
    return worst


def random_problem(seed: int, nc: int, nl: int, nf: int):
    rng = np.random.default_rng(seed)
    m = 3 * nc + nl + nf
    L = rng.normal(size=(m, m))
    mu = rng.choice([0.0, 0.3, 0.6], size=nc)
    return L @ L.T + 0.1 * np.eye(m), rng.normal(size=m), mu, rng.choice([0.1, 0.5, 2.0], size=nf)


# -- against other methods ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nc, nl, nf", [(1, 1, 2), (2, 0, 0)])
def test_enumeration_of_active_sets(nc, nl, nf):
    """Random problems: the answer is one of the enumerated solutions, and the only one there is in nearly all cases."""
    corrected, unique = 0, 0
    for seed in range(40):
        G, g, mu, bound = random_problem(seed, nc, nl, nf)
        out = mixed(G, g, mu, np.ones(nc + nl, bool), bound, np.zeros(len(g)))
        assert out.status == Status.solved
        found = enumerated(G, g, mu, nl, bound)
        # Conditioning of G: at most 1e3; the regularisation is taken out again.
        assert min(np.abs(np.asarray(out.impulse) - x).max() / (1 + np.abs(x).max()) for x in found) < 1e-9
        unique += len(found) == 1
        corrected += int(out.iterations) > 0
        pivoted, _ = pivoting(G, g, mu, bound)
        assert min(np.abs(pivoted - x).max() / (1 + np.abs(x).max()) for x in found) < 1e-9
        again = mixed(G, g, mu, np.ones(nc + nl, bool), bound, out.impulse)
        assert int(again.iterations) <= 1 and int(again.fallbacks) == 0, "the solution itself is a right guess"
        np.testing.assert_allclose(again.impulse, out.impulse, atol=1e-11)
    assert unique >= 38 and corrected >= 5


def test_limits_and_dry_friction_are_a_bounded_least_squares_problem():
    """Constant bounds make the law the optimality of min 1/2 x^T G x + g^T x; rows that do not exist stay without impulse."""
    exists = np.array([True, True, False, True, True, False])
    for seed in range(10):
        rng = np.random.default_rng(seed)
        L = rng.normal(size=(12, 12)) + 0.3 * np.eye(12)
        G, g, bound = L @ L.T, 5 * rng.normal(size=12), rng.uniform(0.0, 3.0, size=6) * (np.arange(6) > 0)
        out = mixed(G, g, np.zeros(0), exists, bound, 10 * rng.normal(size=12))
        free = np.r_[exists, bound > 0]
        low, high = np.r_[np.zeros(6), -bound][free], np.r_[np.full(6, np.inf), bound][free]
        best = optimize.lsq_linear(L.T[:, free], -np.linalg.solve(L, g), (low, high), method="bvls", tol=1e-14)
        assert out.status == Status.solved
        np.testing.assert_allclose(np.asarray(out.impulse)[free], best.x, atol=1e-7 * (1 + np.abs(best.x).max()))
        np.testing.assert_array_equal(np.asarray(out.impulse)[~free], 0.0)


def test_planar_friction_is_the_disc():
    """Velocities along a tangent only: box and disc are the same interval, and both laws give the same answer."""
    for v in ((0.5, 0, -0.2), (0.01, 0, -0.2)):
        G, g = scenes.box_on_corners(v, (0, 0.2, 0))
        box, disc = (f(G, g, np.full(4, 0.4)) for f in (solve_boxed_lcp, solve_ncp))
        np.testing.assert_allclose(box.impulse, disc.impulse, atol=1e-9)
        np.testing.assert_allclose(box.velocity, disc.velocity, atol=1e-11)


# -- hard problems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.4, 5.0, 1e3])
@pytest.mark.parametrize("mass", [1.0, 1e-4, 1e4])
def test_redundant_contacts(mu, mass):
    """G has rank 6 of 12. The impulse is lawful, shortest in its modes, and the same from any start."""
    for v, w in (((0.3, -0.1, -0.2), (0.1, 0.2, 0.5)), ((0.01, 0.02, -1.0), (0.01, -0.02, 0.01))):
        G, g = scenes.box_on_corners(v, w, mass)
        mus = np.full(4, mu)
        out = solve_boxed_lcp(G, g, mus)
        lam, nu = np.asarray(out.impulse), np.asarray(out.velocity)
        assert out.status == Status.solved and bool(out.degenerate)
        np.testing.assert_allclose(nu, G @ lam + g, atol=1e-12 * (1 + mu))
        assert violation(lam / mass, nu, mus) < 1e-9 * (1 + mu)
        shortest = least_norm(G, g, mus, lam)
        np.testing.assert_allclose(lam, shortest, atol=1e-8 * np.abs(lam).max())
        rng = np.random.default_rng(1)
        for start in (lam, -lam, mass * rng.normal(size=12), 1e3 * mass * rng.normal(size=12)):
            other = solve_boxed_lcp(G, g, mus, init=start)
            np.testing.assert_allclose(other.velocity, nu, atol=1e-10)
            np.testing.assert_allclose(other.impulse, lam, atol=1e-7 * np.abs(lam).max())


def least_norm(G, g, mu, lam):
    """The impulse of least norm in the modes of `lam`, by a pseudo-inverse: the stabilisation of Nimble, App. B."""
    E = np.eye(len(lam))
    held = []
    for i, x in enumerate(lam):
        normal = 3 * (i // 3) + 2
        radius = mu[i // 3] * lam[normal]
        if i == normal and x > 1e-9 * np.abs(lam).max():
            held.append(i)
        elif i != normal and abs(x) < (1 - 1e-6) * radius:
            held.append(i)
        else:
            E[i, i] = 0.0
            if i != normal:
                E[i, normal] = np.sign(x) * mu[i // 3]
    # lambda = E z with z non-zero in held rows: G_held E z = -g_held; the shortest E z.
    return E[:, held] @ minimal(G[held] @ E[:, held], E[:, held], -g[held])


def minimal(A, E, b):
    """argmin |E z| over A z = b."""
    z = np.linalg.lstsq(A, b, rcond=1e-10)[0]
    _, s, Vt = np.linalg.svd(A)
    N = Vt[(s > 1e-10 * s[0]).sum() :].T
    return z - N @ np.linalg.lstsq(E @ N, E @ z, rcond=None)[0]


def test_random_redundant_problems():
    """Twelve rows of rank six, masses over four decades, friction to 1.5: solved from zero, most by pivoting, and lawful."""
    solved, pivoted = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        J, weight = rng.normal(size=(12, 6)), 10 ** rng.uniform(-2, 2, size=6)
        G, g, mu = (J * weight) @ J.T, J @ rng.normal(size=6), rng.choice([0.0, 0.3, 0.8, 1.5], size=4)
        out = solve_boxed_lcp(G, g, mu)
        pivoted += int(out.fallbacks)
        if out.status == Status.solved:
            solved += 1
            unit = 100.0  # the largest velocity of an impulse of one
            assert violation(unit * np.asarray(out.impulse), np.asarray(out.velocity), mu) < 1e-6
            np.testing.assert_allclose(out.velocity, G @ out.impulse + g, atol=1e-9)
        else:
            assert float(out.residual) > 1e-10
    assert solved >= 57 and pivoted >= 20, (solved, pivoted)


def test_walls_that_close_on_a_body_are_not_solved():
    """Two walls closing on a body from both sides: no impulse helps, and none is called a solution."""
    G = np.kron([[1.0, -1.0], [-1.0, 1.0]], np.diag([0.0, 0, 1])) + np.diag([1.0, 1, 0, 1, 1, 0])
    g = np.array([0, 0, -1.0, 0, 0, -1.0])
    out = solve_boxed_lcp(G, g, np.full(2, 0.5))
    assert out.status == Status.stalled
    assert np.isfinite(np.asarray(out.impulse)).all()
    # As a velocity: the residual is relative to a scale that grows with impulses that cancel.
    assert np.abs(np.asarray(out.velocity)[[2, 5]]).max() > 0.9 and float(out.velocity[2] + out.velocity[5]) < -1.0


def test_a_wrong_guess_is_not_accepted():
    """Starts in the modes of another problem: corrected or pivoted, never the guess's own answer."""
    G, g = scenes.box_on_corners((0.01, 0.02, -1.0), (0.01, -0.02, 0.01))
    stuck = solve_boxed_lcp(G, g, np.full(4, 0.8))
    moving = solve_boxed_lcp(G, g + np.tile([5.0, 0, 0], 4), np.full(4, 0.8), init=stuck.impulse)
    fresh = solve_boxed_lcp(G, g + np.tile([5.0, 0, 0], 4), np.full(4, 0.8))
    np.testing.assert_allclose(moving.impulse, fresh.impulse, atol=1e-9)
    lam = np.asarray(moving.impulse).reshape(4, 3)
    np.testing.assert_allclose(lam[:, 0], -0.8 * lam[:, 2], atol=1e-12)
    steps = 0
    for seed in range(20):
        G, g, mu, bound = random_problem(seed, 2, 0, 0)
        out = mixed(G, g, mu, np.ones(2, bool), bound, np.random.default_rng(seed).normal(size=6))
        assert out.status == Status.solved and violation(np.asarray(out.impulse), out.velocity, mu) < 1e-9
        steps += int(out.iterations) > 0
    assert steps >= 10
