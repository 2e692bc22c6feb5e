"""The stages of a contact solve, where the last one is the compiled core's, and what proves that a problem has no solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.contact_problems import STATUSES, solve_contacts

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics import Stage
from trajopt.dynamics.contact.ncp import make_ncp, residual
from trajopt.dynamics.contact.solve.solve import solve, solve_status
from trajopt.result import Status

needs_core = pytest.mark.skipif(not native.available(), reason="no compiled core")

solve_one = jax.jit(solve)


def crowded(rng: np.random.Generator, contacts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(G, g, mu) of a body with as many freedoms as contacts, which a push along the ground moves twenty times as far as one into
    it, with a solution: impulses and velocities that obey the law are drawn first, open, sticking and sliding ones alike.

    Nothing resists many impulses of such a body, and along some of them the contacts approach.
    """
    J = rng.normal(size=(3 * contacts, contacts))
    J[2::3] *= 0.05
    impulse, velocity = np.zeros((2, contacts, 3))
    for lam, nu in zip(impulse, velocity, strict=True):
        way, mode = rng.normal(size=2), rng.integers(3)
        way /= np.linalg.norm(way)
        if mode == 0:
            nu[:] = *rng.normal(size=2), 0.1 * rng.exponential()
            continue
        lam[2] = 10.0 ** rng.uniform(-1, 3)
        lam[:2] = way * lam[2] * (rng.uniform() if mode == 1 else 1.0)
        nu[:2] = -way * rng.exponential() if mode == 2 else 0.0
    G = J @ J.T
    return G, velocity.ravel() - G @ impulse.ravel(), np.ones(contacts)


def batch_of(contacts: int, count: int = 150) -> list:
    """Arrays G, g, mu of so many crowded problems."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(np.stack(x)) for x in zip(*(crowded(rng, contacts) for _ in range(count)), strict=True)]


def stages(found) -> np.ndarray:
    return np.bincount(np.asarray(found.fallbacks), minlength=len(Stage))


def check_solved(problems, solved, impulses, share: float) -> None:
    """So many are solved, by the definition of the law."""
    solved = np.asarray(solved)
    assert solved.mean() >= share, np.flatnonzero(~solved)
    for k in np.flatnonzero(solved):
        G, g, mu = (np.asarray(x[k]) for x in problems)
        assert scenes.natural_residual(G, g, np.asarray(impulses[k]), mu) <= 1e-10


@pytest.mark.parametrize("contacts, share", [(2, 0.97), (3, 0.91)])
@needs_core
def test_a_ray_with_friction_does_not_end_the_search(contacts, share):
    """It proves that the contacts cannot rest, but nearly all of these slide, or rest along no ray."""
    problems = batch_of(contacts)
    found = solve_contacts(*problems)
    check_solved(problems, found.status == STATUSES.index("solved"), found.impulse, share)


@pytest.mark.parametrize("contacts, count, share", [(1, 900, 1.0), (2, 900, 0.98), (3, 500, 0.98), (4, 300, 0.85), (6, 50, 0.8)])
@needs_core
def test_a_problem_with_a_solution_is_never_called_infeasible(contacts, count, share):
    """Solutions are known, since the problems are made from them. One that is not found leaves the problem stalled."""
    problems = batch_of(contacts, count)
    found = solve_contacts(*problems)
    status = np.asarray(found.status)
    assert not (status == STATUSES.index("infeasible")).any(), np.flatnonzero(status == STATUSES.index("infeasible"))
    check_solved(problems, status == STATUSES.index("solved"), found.impulse, share)


@needs_core
def test_the_last_stage_is_the_core():
    """Under jit, one by one and as a batch, the same stages and solutions; all three stages end some of the searches."""
    problems = batch_of(2)
    one = lambda *problem: solve(make_ncp(*problem))  # noqa: E731
    found = jax.jit(jax.vmap(one))(*problems)
    assert (stages(found) > 0).all()
    check_solved(problems, found.status == Status.solved, found.impulse, 0.97)
    in_turn = jax.jit(lambda *problems: jax.lax.map(lambda p: one(*p), problems))(*problems)
    np.testing.assert_array_equal(in_turn.fallbacks, found.fallbacks)
    np.testing.assert_allclose(in_turn.velocity, found.velocity, atol=1e-9)


def test_without_the_core_the_ladder_ends_earlier(monkeypatch):
    """As on a GPU: what Gauss-Seidel leaves is stalled, and nothing else changes."""
    problems = batch_of(2)
    one = lambda *problem: solve(make_ncp(*problem))  # noqa: E731
    complete = jax.jit(jax.vmap(one))(*problems)
    monkeypatch.setattr(native, "available", lambda: False)
    found = jax.jit(jax.vmap(lambda *problem: one(*problem)))(*problems)
    assert stages(found)[Stage.PATH] == 0
    left = np.asarray(complete.fallbacks) == Stage.PATH
    np.testing.assert_array_equal(np.asarray(found.status == Status.stalled), left)
    np.testing.assert_array_equal(np.asarray(found.impulse)[~left], np.asarray(complete.impulse)[~left])
    check_solved(problems, found.status == Status.solved, found.impulse, 0.7)


def closing_walls(speed: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(G, g, mu, squeeze) of a bead between two walls that meet at 120 degrees and close on it at 1 m/s, while it flies out."""
    closing, c, s = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]), 0.5, np.sqrt(0.75)
    J = np.array([[[c, 0.0, -side * s], [0.0, 1.0, 0.0], [s, 0.0, side * c]] for side in (1.0, -1.0)])
    squeeze = np.einsum("kij,kj->ki", J, closing).ravel()
    J = J.reshape(6, 3)
    return J @ J.T, J @ [speed, 0.0, 0.0] - squeeze, np.full(2, 2.0), squeeze


@needs_core
@pytest.mark.parametrize(
    "speed, status",
    [(0.0, "infeasible"), (0.5, "infeasible"), (0.57, "infeasible"), (0.58, "solved"), (0.7, "solved")],
)
def test_all_modes_of_few_contacts_are_excluded(speed, status):
    """A bead leaves the walls that close on it at sqrt(3) / 3 m/s, and friction of 2 on both slows it down: it has to be
    faster. No ray of normal impulses shows that a slower one has no solution; that no combination of modes has one does."""
    G, g, mu, _ = closing_walls(speed)
    assert solve_contacts(G[None], g[None], mu[None]).status[0] == STATUSES.index(status)


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("speed, status", [(0.0, Status.infeasible), (0.5, Status.infeasible), (0.7, Status.solved)])
def test_an_approach_that_rounding_hides_goes_on(speed, status):
    """A bead between two walls that meet at 120 degrees and close on it at 1 m/s: nothing resists a squeeze along the way they
    close, which friction of 2 allows. A huge one leaves a residual below the tolerance, for what cancels is huge, and approaches
    by a quarter of what the ray does: that must not pass for sliding apart, which a bead faster than sqrt(3) / 3 m/s does."""
    G, g, mu, squeeze = closing_walls(speed)
    ncp = make_ncp(*(jnp.asarray(x) for x in (G, g, mu)))
    huge = jnp.asarray(5e14 * squeeze)
    assert float(residual(ncp, huge)) < 1e-10
    assert solve_status(ncp, huge, residual(ncp, huge), 1e-10) == Status.stalled
    assert solve_one(ncp).status == status
