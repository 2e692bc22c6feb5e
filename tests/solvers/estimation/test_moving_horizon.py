"""Moving-horizon estimation against the Kalman filter, and its consistency where there is none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from trajopt.dynamics import RigidContact, State, System
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.models import load_model
from trajopt.problems.library.cube import with_forces
from trajopt.solvers import MovingHorizon

A = np.array([[1.0, 0.1, 0.0], [-0.2, 0.95, 0.1], [0.0, 0.0, 1.0]])
B = np.array([[0.0], [0.1], [0.05]])
G = np.array([[0.05, 0.0], [0.1, 0.02], [0.0, 0.03]])
C = np.array([[1.0, 0.0, 0.3], [0.0, 0.0, 1.0]])
SD = np.array([0.1, 0.2])
MEAN, P0 = np.array([1.0, -0.5, 0.2]), np.array([[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.4]])
STEPS = 16
MISSING = (4, 9)


def linear(window: int) -> MovingHorizon:
    return MovingHorizon(
        lambda x, u, w: jnp.asarray(A) @ x + jnp.asarray(B) @ u + jnp.asarray(G) @ w,
        lambda x, y: (jnp.asarray(C) @ x - y) / jnp.asarray(SD),
        window, mean=MEAN, covariance=P0, measurement_size=2, control_size=1, noise_size=2,
    )  # fmt: skip


def stream() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, us, ys = rng.multivariate_normal(MEAN, P0), rng.normal(size=(STEPS, 1)), []
    for k in range(STEPS + 1):
        ys.append(C @ x + SD * rng.normal(size=2))
        if k < STEPS:
            x = A @ x + B @ us[k] + G @ rng.normal(size=2)
    return np.array(ys), us


def kalman(ys: np.ndarray, us: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    m, P, found = MEAN, P0, []
    for k, y in enumerate(ys):
        if k not in MISSING:
            gain = P @ C.T @ np.linalg.inv(C @ P @ C.T + np.diag(SD**2))
            m, P = m + gain @ (y - C @ m), P - gain @ C @ P
        found.append((m, P))
        if k < len(us):
            m, P = A @ m + B @ us[k], A @ P @ A.T + G @ G.T
    return found


@pytest.mark.parametrize("window", [1, 5, pytest.param(30, marks=pytest.mark.slow)])
def test_for_a_linear_system_it_is_the_kalman_filter(window):
    """Before and after the window is full, with two measurements missing, means and covariances."""
    ys, us = stream()
    mhe = linear(window)
    for k, (m, P) in enumerate(kalman(ys, us)):
        estimate = mhe.update(None if k in MISSING else ys[k], None if k == 0 else us[k - 1])
        assert bool(estimate.converged) and int(estimate.now) == min(k, window)
        np.testing.assert_allclose(estimate.x, m, atol=1e-8)
        np.testing.assert_allclose(estimate.covariance, P, atol=1e-8)
    assert mhe._advance._cache_size() == 1  # one program for all windows
    mhe.reset()
    np.testing.assert_allclose(mhe.update(ys[0]).x, kalman(ys, us)[0][0], atol=1e-8)


# A pendulum seen through the sine of its angle, from an initial angle that is hardly known.
DT, NOISE, SIGHT, FIRST = 0.1, 0.05, 0.05, np.diag([0.4**2, 1.0**2])
RUNS, LENGTH = 200, 30


def swing(x, u, w):
    v = x[1] - DT * 4.0 * jnp.sin(x[0]) + NOISE * w[0]
    return jnp.stack([x[0] + DT * v, v])


def seen(x, y):
    return (jnp.sin(x[:1]) - y) / SIGHT


def pendulum() -> MovingHorizon:
    return MovingHorizon(
        swing, seen, 8, mean=np.array([0.4, 0.0]), covariance=FIRST, measurement_size=1, noise_size=1, max_iterations=15
    )  # fmt: skip


def simulated() -> tuple[np.ndarray, np.ndarray]:
    """States (RUNS, LENGTH, 2) and measurements (RUNS, LENGTH, 1)."""
    rng = np.random.default_rng(2)
    x = np.array([0.4, 0.0]) + rng.normal(size=(RUNS, 2)) @ np.sqrt(FIRST)
    xs, ys = [], []
    for _ in range(LENGTH):
        xs.append(x)
        ys.append(np.sin(x[:, :1]) + SIGHT * rng.normal(size=(RUNS, 1)))
        v = x[:, 1] - DT * 4.0 * np.sin(x[:, 0]) + NOISE * rng.normal(size=RUNS)
        x = np.stack([x[:, 0] + DT * v, v], 1)
    return np.stack(xs, 1), np.stack(ys, 1)


def extended_kalman(ys: np.ndarray) -> np.ndarray:
    """Estimates (RUNS, LENGTH, 2) of the filter that linearises once."""
    found = np.zeros((RUNS, LENGTH, 2))
    for i in range(RUNS):
        m, P = np.array([0.4, 0.0]), FIRST
        for k in range(LENGTH):
            H = np.array([[np.cos(m[0]), 0.0]])
            gain = P @ H.T / (H @ P @ H.T + SIGHT**2)
            m, P = m + gain[:, 0] * (ys[i, k, 0] - np.sin(m[0])), P - gain @ H @ P
            found[i, k] = m
            bend = -DT * 4.0 * np.cos(m[0])
            F = np.array([[1.0 + DT * bend, DT], [bend, 1.0]])
            v = m[1] - DT * 4.0 * np.sin(m[0])
            g = np.array([[DT * NOISE], [NOISE]])
            m, P = np.array([m[0] + DT * v, v]), F @ P @ F.T + g @ g.T
    return found


def test_a_nonlinear_one_is_consistent_and_better_than_an_extended_kalman_filter():
    """200 runs in one batched program: e^T P^-1 e at three times is chi-squared with 2 degrees of freedom per run, and
    the last region of 95 % holds the state in 95 % of them (binomial band of 99.9 %)."""
    xs, ys = simulated()
    mhe = pendulum()

    def run(ys):
        step = lambda window, y: mhe.advance(window, y, jnp.zeros(0))  # noqa: E731
        return jax.lax.scan(step, mhe.start(), ys)[1]

    estimates = jax.jit(jax.vmap(run))(jnp.asarray(ys))
    error = np.asarray(estimates.x) - xs
    square = np.einsum("rki,rki->rk", error, np.linalg.solve(estimates.covariance, error[..., None])[..., 0])
    band = scipy.stats.chi2(2 * RUNS).ppf([0.005, 0.995]) / RUNS
    for k in (5, 15, LENGTH - 1):
        assert band[0] < square[:, k].mean() < band[1], k
    low, high = scipy.stats.binom(RUNS, 0.95).ppf([0.0005, 0.9995])
    assert low <= np.sum(square[:, -1] < scipy.stats.chi2(2).ppf(0.95)) <= high
    ekf = extended_kalman(ys) - xs
    assert np.mean(error**2) < 0.95 * np.mean(ekf**2)
    assert np.mean(estimates.converged) > 0.99


@pytest.mark.slow
def test_velocities_of_a_pushed_cube_are_found_through_hard_contact():
    """Poses and a wrench known up to its deviation; sticking, sliding and turning on the floor, on its manifold.

    The floor leaves 6 of the 12 directions free; e^T P^-1 e over these, once the window has moved on, is chi-squared with 3
    degrees of freedom for the velocity in the plane. Over 25 correlated steps the band is that of about 8 independent ones.
    """
    system = System(with_forces(load_model("cube")), 5e-3, RigidContact(max_contacts=4))
    model, rng = system.model, np.random.default_rng(5)
    push, sight = np.array([0.5] * 3 + [0.02] * 3), np.array([2e-3] * 3 + [5e-3] * 3)
    measured = lambda x, y: difference(model, y, x.q) / jnp.asarray(sight)  # noqa: E731
    x = State(model.q_default, jnp.array([0.5, 0.2, 0.0, 0.0, 0.0, 1.0]))
    first = State(model.q_default, jnp.zeros(6))
    guess = np.diag([1e-2] * 6 + [0.5, 0.5, 0.01, 0.01, 0.01, 1.0]) ** 2
    mhe = MovingHorizon(system, measured, 6, mean=first, covariance=guess, measurement_size=7, control_deviation=push)
    squares, slid, u = [], False, np.zeros(6)
    for k in range(40):
        y = integrate(model, x.q, jnp.asarray(sight * rng.normal(size=6)))
        estimate = mhe.update(y, u)
        if k >= 15:
            e = np.asarray(estimate.x)[[7, 8, 12]] - np.asarray(x.v)[[0, 1, 5]]
            P = np.asarray(estimate.covariance)[np.ix_([6, 7, 11], [6, 7, 11])]
            squares.append(e @ np.linalg.solve(P, e))
        u = np.array([8.0 * np.sin(0.2 * k), 4.0, 0.0, 0.0, 0.0, 0.1 * np.cos(0.2 * k)])
        x, info = system.step(x, jnp.asarray(u + push * rng.normal(size=6)))
        slid |= bool((info.contacts.mode == 2).any())
    low, high = scipy.stats.chi2(3 * 8).ppf([0.005, 0.995]) / 8
    assert slid and low < np.mean(squares) < high
    assert bool(estimate.converged)


def test_arguments_are_checked_before_anything_is_compiled():
    f, r = swing, seen
    good = {"mean": np.zeros(2), "covariance": np.eye(2), "measurement_size": 1, "noise_size": 1}
    with pytest.raises(OptionError, match="window is 0; expected a number of steps of at least 1"):
        MovingHorizon(f, r, 0, **good)
    with pytest.raises(OptionError, match="covariance has no Cholesky factor.*small variance"):
        MovingHorizon(f, r, 3, **good | {"covariance": np.zeros((2, 2))})
    with pytest.raises(ShapeError, match=r"covariance has shape \(3, 3\); expected \(2, 2\)"):
        MovingHorizon(f, r, 3, **good | {"covariance": np.eye(3)})
    with pytest.raises(OptionError, match="noise_size is missing: the length of w"):
        MovingHorizon(f, r, 3, **good | {"noise_size": None})
    with pytest.raises(OptionError, match="function takes its noise as w; leave control_deviation out"):
        MovingHorizon(f, r, 3, **good, control_deviation=1.0)
    mhe = MovingHorizon(f, r, 3, **good)
    with pytest.raises(NonFiniteError, match=r"measurement\[0\] is nan; it must be finite; pass None for a missing"):
        mhe.update([np.nan])
    with pytest.raises(ShapeError, match=r"measurement has shape \(2,\); expected \(1,\)"):
        mhe.update([0.0, 1.0])
    driven = linear(2)
    driven.update(np.zeros(2))
    with pytest.raises(OptionError, match=r"control is None; expected \(1,\) from the second update on"):
        driven.update(np.zeros(2))
