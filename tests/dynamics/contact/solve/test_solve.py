"""Modes, selection and the stages of the contact solve: single precision, what counts as a velocity of the problem, proofs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt import native
from trajopt.dynamics.contact.ncp import (
    SEPARATING,
    SLIDING,
    STICKING,
    make_ncp,
    residual,
    velocity_scale,
)
from trajopt.dynamics.contact.solve import solve as module
from trajopt.result import Status

solve = jax.jit(module.solve)


def normals(N, g, dtype, mu=0.0):
    """Contacts whose normals have the Delassus matrix N and whose tangents nothing couples."""
    count = len(g)
    G, full = np.kron(np.asarray(N), np.diag([0.0, 0.0, 1.0])), np.zeros(3 * count)
    tangents = np.arange(3 * count) % 3 < 2
    G[tangents, tangents] = np.repeat(np.diag(N), 2)
    full[2::3] = g
    return make_ncp(jnp.asarray(G, dtype), jnp.asarray(full, dtype), jnp.full(count, mu, dtype))


# -- single precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_tied_contacts_separate_in_either_precision(dtype):
    """The impulse that stops one contact brings the other exactly to rest: without an impulse of its own it separates."""
    rng = np.random.default_rng(0)
    for a, b, c in zip(rng.uniform(1.0, 3.0, 20), rng.uniform(-0.9, 0.9, 20), rng.uniform(1.0, 3.0, 20), strict=True):
        solution = solve(normals([[a, b], [b, c]], [-1.0, -b / a], dtype))
        assert solution.modes.cone[1] == SEPARATING, (a, b, c, solution.velocity, solution.impulse)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_regular_problems_are_not_called_degenerate(dtype):
    """Two contacts that share 97 % of their motion: the condition number is 66, far from a null space in either precision."""
    solution = solve(normals([[1.0, 0.97], [0.97, 1.0]], [-1.0, -1.0], dtype))
    assert not bool(solution.degenerate)
    redundant = solve(normals([[1.0, 1.0], [1.0, 1.0]], [-1.0, -1.0], dtype))
    assert bool(redundant.degenerate)

@pytest.mark.parametrize("dtype, slip", [(jnp.float64, 1e-7), (jnp.float32, 1e-5)])
def test_a_slip_of_unknown_direction_sticks(dtype, slip):
    """A slip, relative to the approach, whose direction rounding decides: a hundredth of it is reached by G lambda's rounding."""
    ncp = normals([[1.0]], [-1.0], dtype, mu=0.5)
    lam = jnp.asarray([-0.5, 0.0, 1.0], dtype)
    nu = jnp.asarray([slip, 0.0, 0.0], dtype)
    assert module.solution_modes(ncp, lam, nu).cone[0] == STICKING


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_a_distant_contact_leaves_slips_as_they_are(dtype):
    """A slip of a hundredth of the approach, of known direction, beside a contact whose gap of 1 m is a velocity of 1 km/s."""
    ncp = normals([[1.0, 0.0], [0.0, 1.0]], [-1.0, 1e3], dtype, mu=0.5)
    lam = jnp.asarray([-0.5, 0.0, 1.0, 0.0, 0.0, 0.0], dtype)
    nu = jnp.asarray([0.01, 0.0, 0.0, 0.0, 0.0, 1e3], dtype)
    assert module.solution_modes(ncp, lam, nu).cone[0] == SLIDING


def test_the_shortest_impulse_is_no_less_lawful_in_single_precision():
    """What selection returns meets the tolerance that the solution met before it."""
    ncp = normals([[1.0]], [-1.0], jnp.float32)
    lam = jnp.asarray([0.0, 0.0, 1.0], jnp.float32)
    worse = lam.at[2].add(5e-5)  # five times the tolerance
    kept, lawful = jax.jit(functools.partial(module.if_lawful, tol=1e-5))(ncp, lam, worse)
    assert not bool(lawful)
    np.testing.assert_array_equal(kept, lam)


def test_selection_does_not_unsolve():
    """An impulse that meets the tolerance by little is not given up for a shorter one that does not meet it."""
    ncp = normals([[1.0]], [-1.0], jnp.float64)
    lam = jnp.asarray([0.0, 0.0, 1.0 + 0.6e-10])
    shorter = jnp.asarray([0.0, 0.0, 1.0 - 5e-10])
    kept, lawful = jax.jit(functools.partial(module.if_lawful, tol=1e-10))(ncp, lam, shorter)
    assert not bool(lawful)
    np.testing.assert_array_equal(kept, lam)


# -- the velocities of a problem ---------------------------------------------------------------------------------------


def test_what_opens_is_no_velocity_of_the_problem():
    """A contact 0.4 m away and a joint 0.4 rad from its limit, dt = 1e-3: 1e-10 stays a share of the velocities that approach."""
    G = np.eye(8)
    g = np.array([0.01, 0.0, -0.02, 5.0, 5.0, 400.0, 400.0, 0.03])
    mu, exists, bound = jnp.array([0.5, 0.5]), jnp.array([True, True, True]), jnp.array([0.1])
    ncp = make_ncp(jnp.asarray(G), jnp.asarray(g), mu, exists, bound)
    lam = jnp.zeros(8)
    assert float(velocity_scale(ncp, lam)) == pytest.approx(0.03, rel=0.0)
    # A violation of 4e-8 m/s, once 1e-10 of 400 m/s.
    exact = solve(ncp).impulse
    off = exact.at[2].add(4e-8)
    assert float(residual(ncp, off)) > 1e-6
    assert float(residual(ncp, off)) == pytest.approx(
        scenes.natural_residual(G, g, off, np.asarray(mu), [0.1], limits=1), rel=1e-6
    )


def test_velocities_count_by_what_the_rows_do():
    """Each kind of row by itself, against the definition: approaching, opening, loaded, absent, rubbing."""
    base = np.array([3e-3, 4e-3, 2e-3, 5e-3, 6e-3])  # tangents and normal of a contact, limit, dry friction: g of each
    ones = jnp.ones(2, bool)

    def scale(g, lam=(0.0, 0, 0, 0, 0), exists=ones):
        ncp = make_ncp(jnp.eye(5), jnp.asarray(g), jnp.array([0.5]), exists, jnp.array([1e-3]))
        return float(velocity_scale(ncp, jnp.asarray(lam)))

    assert scale(base) == 6e-3  # dry friction alone: the contact and the limit open
    quiet = base * [1, 1, 1, 1, 0]
    assert scale(quiet) == 1e-3  # the floor
    assert scale(quiet * [1, 1, 1, -1, 1]) == 5e-3  # the limit approaches
    assert scale(quiet * [1, 1, -1, 1, 1]) == 4e-3  # the contact approaches: its tangents count
    assert scale(quiet, lam=(0.0, 0, 1e-6, 0, 0)) == 4e-3  # it is loaded
    assert scale(quiet * [1, 1, -1, -1, 1], exists=~ones) == 1e-3  # neither exists


def two_cubes(light: float, heavy: float, v, mu: float = 0.5, half: float = 0.1, dt: float = 1e-3):
    """(G, g, mu) of a light cube under a heavy one, four corners each, with velocities v (12,) and a step of gravity."""
    corners = np.array([[a, b, -half] for a in (-half, half) for b in (-half, half)])
    J, inverse_mass = np.zeros((24, 12)), np.zeros(12)
    for body, mass in enumerate((light, heavy)):
        inverse_mass[6 * body : 6 * body + 6] = np.r_[np.full(3, 1 / mass), np.full(3, 6 / (mass * (2 * half) ** 2))]

    def of_point(r):  # velocity of the point r of a body: v + omega x r
        return np.hstack([np.eye(3), np.cross(np.eye(3), r).T])

    for k, r in enumerate(corners):
        J[3 * k : 3 * k + 3, :6] = of_point(r)
        J[12 + 3 * k : 15 + 3 * k, 6:] = of_point(r)
        J[12 + 3 * k : 15 + 3 * k, :6] = -of_point(r * [1, 1, -1])
    v = np.array(v, float) - 9.81 * dt * (np.arange(12) % 6 == 2)
    return (J * inverse_mass) @ J.T, J @ v, np.full(8, mu)


@pytest.mark.parametrize("light, heavy", [(1e-3, 1e3), (1e-2, 1e3), (1e-3, 1e2)])
def test_a_light_cube_under_a_heavy_one_is_solved_to_rounding(light, heavy):
    """G lambda of 1e4 m/s cancels to 1e-2 m/s: its rounding, 1e-12 m/s, is all that is left, and that is solved."""
    G, g, mu = two_cubes(light, heavy, 1e-3 * np.random.default_rng(0).normal(size=12))
    solution = solve(make_ncp(*(jnp.asarray(x) for x in (G, g, mu))))
    lam = np.asarray(solution.impulse)
    cancels = (np.abs(G) @ np.abs(lam)).max()
    assert np.abs(g).max() < 2e-2 and cancels > 3e3
    assert solution.status == Status.solved
    violation = float(solution.residual) * scenes.velocity_scale(G, g, lam, 8, 0, 1e-10)
    assert violation <= 8 * np.finfo(float).eps * cancels


# -- infeasible, with its proof ----------------------------------------------------------------------------------------


def closing_walls(spin: float, seed: int = 0):
    """A cube between a floor and a ceiling that close on it at 0.2 m/s, four corners each: G of rank 6 of 24."""
    corners = np.array([[a, b, c] for c in (-0.1, 0.1) for a in (-0.1, 0.1) for b in (-0.1, 0.1)])
    J = np.zeros((24, 6))
    for k, r in enumerate(corners):
        up = -np.sign(r[2])
        J[3 * k : 3 * k + 3] = np.diag([1.0, up, up]) @ np.hstack([np.eye(3), np.cross(np.eye(3), r).T])
    g = J @ (spin * np.random.default_rng(seed).normal(size=6))
    g[2::3] -= 0.2
    return (J * np.r_[1, 1, 1, 150, 150, 150]) @ J.T, g, np.full(8, 0.5)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(
    "problem",
    [
        (np.zeros((3, 3)), np.array([0.0, 0.0, -1.0]), np.array([0.5])),
        (np.diag([1.0, 1.0, 0.0]), np.array([0.2, 0.0, -1.0]), np.array([0.5])),
        closing_walls(0.0),
        closing_walls(0.1),
    ],
)
def test_infeasible_has_its_proof(problem, dtype):
    """An impulse exists that nothing resists while the bodies approach along it: no impulse can be a solution. The core proves
    it; what JAX has in single precision says no more than that none was found."""
    proven = dtype == jnp.float64 and native.available()
    status = solve(make_ncp(*(jnp.asarray(x, dtype) for x in problem))).status
    assert status == (Status.infeasible if proven else Status.stalled)


@pytest.mark.parametrize("light, heavy", [(1e-3, 1e3), (1e-4, 1e3)])
def test_what_is_hardly_resisted_is_not_infeasible(light, heavy):
    """Squeezing the light cube under the heavy one moves next to nothing, but there is a solution: not solved, it is stalled."""
    ncp = make_ncp(*(jnp.asarray(x) for x in two_cubes(light, heavy, np.zeros(12))))
    squeeze = jnp.zeros(24).at[2::3].set(heavy)  # by what the heavy cube's weight calls for a hundred times over
    exact = solve(ncp)
    assert exact.status == Status.solved
    size = residual(ncp, squeeze)
    assert float(size) > 1e-10
    assert module.solve_status(ncp, squeeze, size, 1e-10) == Status.stalled


# -- stages and batches ------------------------------------------------------------------------------------------------


def heel():
    """Two corners of the heel of a standing H1 (recorded, dt 1 ms): pushing them along the ground all but lifts the foot."""
    upper = [
        [1.0217955352088766, 0.00525581543221939, -0.3336056486384964, 1.022132430462365, 0.00525732300499351,
         -0.3337011891311136],
        [0.8754797330175977, 0.1239833161898937, -0.06051683340928963, 0.8751854069514116, 0.06233322655605099],
        [0.2668361243841205, -0.3446464043979224, 0.12393390990525067, 0.2580501186569305],
        [1.0448578671930013, -0.06041513933868283, -0.3411365106673719],
        [0.8748915292098463, 0.06229995423119954],
        [0.2538756671527935],
    ]  # fmt: skip
    G = np.zeros((6, 6))
    for row, values in enumerate(upper):
        G[row, row:] = G[row:, row] = values
    g = np.array([-0.01380611360382684, -0.01518800330276887, -0.05247853278712645,
                  -0.01250073346923224, -0.01518216185641298, -0.05148412429722458])  # fmt: skip
    return G, g, np.full(2, 0.8)


def test_batches_give_the_single_answers():
    """A batch, and a batch of batches, in which some need later stages and others nothing at all."""
    G, g, mu = heel()
    gs = jnp.asarray(np.stack([g, 0.5 * g, -g, g + 0.3, 0.0 * g, 2.0 * g]))
    one = jax.jit(lambda x: module.solve(make_ncp(jnp.asarray(G), x, jnp.asarray(mu))))
    single = [one(x) for x in gs]
    assert len({int(s.fallbacks) for s in single}) > 1
    for batch in (jax.jit(jax.vmap(one))(gs), jax.jit(jax.vmap(jax.vmap(one)))(gs.reshape(2, 3, 6))):
        np.testing.assert_allclose(batch.impulse.reshape(6, 6), [s.impulse for s in single], atol=1e-12)
        np.testing.assert_array_equal(jnp.ravel(batch.fallbacks), [s.fallbacks for s in single])
