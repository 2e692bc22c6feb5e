"""What a ray of impulses that nothing resists proves, and what it does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics.contact.ncp import make_ncp, residual
from trajopt.dynamics.contact.solve import cascade
from trajopt.native.contacts import STATUSES, solve_contacts
from trajopt.result import Status

needs_core = pytest.mark.skipif(not native.available(), reason="no compiled core")


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


def by_jax(problems):
    """(solved, impulses) of the problems."""
    solve = jax.jit(lambda *problem: cascade.solve(make_ncp(*problem)))
    found = [solve(*(jnp.asarray(x) for x in problem)) for problem in problems]
    return np.array([x.status == Status.solved for x in found]), [x.impulse for x in found]


def by_the_core(problems):
    """The same."""
    found = solve_contacts(*(np.stack(x) for x in zip(*problems, strict=True)))
    return np.asarray(found.status) == STATUSES.index("solved"), found.impulse


@pytest.mark.parametrize("contacts, share", [(2, 0.97), (3, 0.91)])
@pytest.mark.parametrize("by", [by_jax, pytest.param(by_the_core, marks=needs_core)])
def test_a_ray_with_friction_does_not_end_the_search(by, contacts, share):
    """It proves that the contacts cannot rest, but nearly all of these slide, or rest along no ray."""
    rng = np.random.default_rng(0)
    problems = [crowded(rng, contacts) for _ in range(150)]
    solved, impulses = by(problems)
    assert solved.mean() >= share, np.flatnonzero(~solved)
    for k in np.flatnonzero(solved):
        G, g, mu = problems[k]
        assert scenes.natural_residual(G, g, impulses[k], mu) <= 1e-10


@pytest.mark.parametrize("speed, status", [(0.0, Status.infeasible), (0.5, Status.infeasible), (0.7, Status.solved)])
def test_an_approach_that_rounding_hides_goes_on(speed, status):
    """A bead between two walls that meet at 120 degrees and close on it at 1 m/s: nothing resists a squeeze along the way they
    close, which friction of 2 allows. A huge one leaves a residual below the tolerance, for what cancels is huge, and approaches
    by a quarter of what the ray does: that must not pass for sliding apart, which a bead faster than sqrt(3) / 3 m/s does."""
    closing, c, s = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]), 0.5, np.sqrt(0.75)
    J = np.array([[[c, 0.0, -side * s], [0.0, 1.0, 0.0], [s, 0.0, side * c]] for side in (1.0, -1.0)])
    squeeze = np.einsum("kij,kj->ki", J, closing).ravel()
    J = J.reshape(6, 3)
    ncp = make_ncp(*(jnp.asarray(x) for x in (J @ J.T, J @ [speed, 0.0, 0.0] - squeeze, np.full(2, 2.0))))
    huge = jnp.asarray(5e14 * squeeze)
    assert float(residual(ncp, huge)) < 1e-10
    assert cascade.solve_status(ncp, huge, residual(ncp, huge), 1e-10) == Status.infeasible
    assert cascade.solve(ncp).status == status
