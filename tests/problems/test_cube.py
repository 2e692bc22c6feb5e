"""The thrown cube: closed-form motions, the contact law along the solution, derivatives, and both estimation problems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.errors import OptionError
from trajopt.problems.library import cube

DT, T, G, MU, SIDE = 1e-3, 300, 9.81, 0.4, 0.2
INERTIA = SIDE**2 / 6


@pytest.fixture(scope="session")
def throw():
    return cube.thrown_cube()


@pytest.fixture(scope="session")
def velocity():
    problem = problems.get("cube-initial-velocity")
    return problem, solvers.solve(problem, solvers.GaussNewton(max_iterations=15))


@pytest.fixture(scope="session")
def impulse():
    problem = problems.get("cube-initial-impulse")
    return problem, solvers.solve(problem, solvers.GaussNewton())


@pytest.fixture(scope="session")
def final_pose(throw):
    """(v0, impulse) -> q_T by a plain rollout from rest on the floor."""
    run = jax.jit(lambda v, p: throw.final_pose(throw.rest, v, p / throw.system.dt))
    return lambda v, p: np.asarray(run(jnp.asarray(v, float), jnp.asarray(p, float)))


def turn(q) -> np.ndarray:
    return np.asarray(rotation_from_quaternion(jnp.asarray(q[3:])))


def test_sliding_without_spin_in_closed_form(final_pose):
    """Deceleration mu g: x_T = sum of dt (v - k mu g dt), k = 1..T."""
    v = np.array([2.0, 0, 0, 0, 0, 0])
    expected = T * DT * 2.0 - MU * G * DT**2 * T * (T + 1) / 2
    np.testing.assert_allclose(final_pose(v, np.zeros(6)), [expected, 0, 0.1, 1, 0, 0, 0], atol=1e-12)


def test_throw_clear_of_the_floor_in_closed_form(final_pose):
    """Impulse (1, 2, 3) N s and 0.01 N m s about z: ballistic flight of semi-implicit Euler, constant spin."""
    q = final_pose(np.zeros(6), [1, 2, 3, 0, 0, 0.01])
    height = 0.1 + T * DT * 3 - G * DT**2 * T * (T + 1) / 2
    np.testing.assert_allclose(q[:3], [T * DT, 2 * T * DT, height], atol=1e-12)
    half = 0.5 * T * DT * 0.01 / INERTIA
    np.testing.assert_allclose(q[3:], [np.cos(half), 0, 0, np.sin(half)], atol=1e-12)


def test_velocity_problem_is_solved_in_at_most_fifteen_iterations(velocity, final_pose):
    problem, solution = velocity
    np.testing.assert_array_equal(problem.x0, [2, 0, 0, 0, 0, 0])
    assert solution.success, solution.message
    assert solution.iterations <= 15
    assert pose_error(final_pose(solution.x, np.zeros(6)), final_pose([3, 1, 0, 0, 0, 2], np.zeros(6))) < 1e-10


def pose_error(q, target) -> float:
    """Largest component of the position difference and of the rotation between two poses, by rotation matrices."""
    relative = turn(target).T @ turn(q)
    skew = 0.5 * (relative - relative.T)[[2, 0, 1], [1, 2, 0]]  # the rotation vector, to third order
    return float(np.abs(np.concatenate([q[:3] - target[:3], skew])).max())


def test_velocity_solution_slides_throughout(velocity):
    _, solution = velocity
    assert np.all(solution.trajectory["impulse"][:, :, 2] > 0)
    np.testing.assert_allclose(solution.trajectory["q"][:, 2], 0.1, atol=1e-9)
    np.testing.assert_allclose(solution.x[[0, 1]], [3, 1], atol=1e-3)


def test_impulse_problem_is_solved_from_the_first_guess(impulse, final_pose):
    problem, solution = impulse
    np.testing.assert_array_equal(problem.x0, [*cube.impulse_guesses()[0], 0.0])
    assert solution.success, solution.message
    assert solution.residuals["final_pose_error"] < 1e-8
    target = final_pose(np.zeros(6), cube.IMPULSE_TRUTH)
    assert pose_error(final_pose(np.zeros(6), solution.x[:6]), target) < 1e-8
    assert abs(float(cube.lift(jnp.asarray(solution.x[6])))) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("guess", range(10))
def test_impulse_problem_is_solved_from_all_ten_guesses(guess, final_pose):
    solution = solvers.solve(problems.get("cube-initial-impulse", guess=guess), solvers.GaussNewton())
    assert solution.success, solution.message
    target = final_pose(np.zeros(6), cube.IMPULSE_TRUTH)
    assert pose_error(final_pose(np.zeros(6), solution.x[:6]), target) < 1e-8


@pytest.mark.slow
def test_direct_formulation_stalls():
    """Six unknowns, as in the paper: Gauss-Newton stops far from the target from every one of the ten guesses."""
    problem = problems.get("cube-initial-impulse", formulation="direct")
    for guess in cube.impulse_guesses():
        solution = solvers.solve(problem, solvers.GaussNewton(), x0=guess)
        assert not solution.success
        assert solution.residuals["final_pose_error"] > 1e-3


@pytest.mark.parametrize("throw_of", ["solution", "truth"])
def test_every_step_obeys_newton_and_coulomb(impulse, throw, throw_of):
    """Balance of impulses in NumPy, and Signorini and the cone at each contact, along the solution and the true throw."""
    p = impulse[1].x[:6] if throw_of == "solution" else np.array(cube.IMPULSE_TRUTH)
    us = throw.controls(jnp.asarray(p) / DT)
    states, infos = throw.system.rollout(throw_start(throw), us)
    q, v = np.asarray(states.q), np.asarray(states.v)
    lam, point = np.asarray(infos.contacts.impulse), np.asarray(infos.contacts.point)
    frame, gap = np.asarray(infos.contacts.frame), np.asarray(infos.contacts.distance)
    touched = 0
    for t in range(T):
        world = np.einsum("cij,cj->ci", frame[t], lam[t])
        first = p if t == 0 else np.zeros(6)
        linear = first[:3] + world.sum(0) + [0, 0, -G * DT]
        angular = first[3:] + turn(q[t]).T @ np.cross(point[t] - q[t, :3], world).sum(0)
        np.testing.assert_allclose(v[t + 1, :3] - v[t, :3], linear, atol=1e-12)
        np.testing.assert_allclose(v[t + 1, 3:] - v[t, 3:], angular / INERTIA, atol=1e-10)
        spin = turn(q[t]) @ v[t + 1, 3:]
        relative = np.einsum("cji,cj->ci", frame[t], v[t + 1, :3] + np.cross(spin, point[t] - q[t, :3]))
        normal = relative[:, 2] + np.where(gap[t] > 0, 1.0, 0.2) * gap[t] / DT
        assert lam[t, :, 2].min() > -1e-12 and normal.min() > -1e-9
        assert np.abs(lam[t, :, 2] * normal).max() < 1e-9
        assert np.all(np.hypot(lam[t, :, 0], lam[t, :, 1]) <= MU * lam[t, :, 2] + 1e-10)
        for k in np.flatnonzero(lam[t, :, 2] > 1e-9):
            touched += 1
            slip = relative[k, :2]
            np.testing.assert_allclose(lam[t, k, :2] * np.hypot(*slip), -MU * lam[t, k, 2] * slip, atol=1e-9)
    assert touched > 0


def throw_start(throw):
    from trajopt.dynamics.system import State

    return State(throw.rest, jnp.zeros(6))


@pytest.mark.parametrize("case", ["velocity", "impulse"])
def test_jacobian_against_central_differences(case, request):
    """At points inside a smooth piece: sliding, and lifted flight. Error of the quotient with h = 1e-5 of the scale: 1e-8."""
    problem, _ = request.getfixturevalue(case)
    x = np.array([2.5, 0.5, 0, 0, 0, 1.0]) if case == "velocity" else np.asarray(problem.x0)
    oracle = problem.compile("implicit")
    h = 1e-5 * problem.scale
    columns = [(oracle.residual(x + h * e) - oracle.residual(x - h * e)) / 2e-5 for e in np.eye(x.size)]
    J, quotient = oracle.linearize(x)[1] * problem.scale, np.stack(columns, 1)
    np.testing.assert_allclose(J, quotient, atol=1e-7 * np.abs(J).max())


def test_guesses_are_as_stated():
    truth = np.array(cube.IMPULSE_TRUTH)
    guesses = cube.impulse_guesses()
    np.testing.assert_array_equal(guesses, cube.impulse_guesses())
    for guess in guesses:
        factor = np.linalg.norm(guess[:3]) / np.linalg.norm(truth[:3])
        assert 0.3 <= factor <= 2.0
        np.testing.assert_allclose(np.linalg.norm(guess[3:]), factor * np.linalg.norm(truth[3:]), rtol=1e-12)
        cosine = guess[:3] @ truth[:3] / np.linalg.norm(guess[:3]) / np.linalg.norm(truth[:3])
        assert np.degrees(np.arccos(min(cosine, 1.0))) <= 30 + 1e-6
        np.testing.assert_allclose(guess[:3] @ guess[3:], factor**2 * truth[:3] @ truth[3:], atol=1e-12)


def test_bad_input_is_named():
    with pytest.raises(OptionError, match="setting guess is 10; expected a whole number, 0 to 9"):
        problems.get("cube-initial-impulse", guess=10)
    with pytest.raises(OptionError, match="setting formulation is 'lift'; expected one of lifted, direct"):
        problems.get("cube-initial-impulse", formulation="lift")
    with pytest.raises(OptionError, match="setting steps is 0; expected a whole number, 1 to 10000; the default is 300"):
        problems.get("cube-initial-velocity", steps=0)
