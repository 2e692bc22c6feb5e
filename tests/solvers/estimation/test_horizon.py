"""Gauss-Newton over a horizon against the dense solution and the Rauch-Tung-Striebel smoother."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from trajopt.errors import OptionError
from trajopt.problems import LeastSquaresProblem, OptimalControlProblem
from trajopt.problems.losses import robust
from trajopt.solvers import GaussNewton, Solution, iLQR, solve

T, N, M, K = 25, 3, 2, 2  # steps, states, noises, parameters
RNG = np.random.default_rng(4)
A = np.eye(N) + 0.3 * RNG.normal(size=(N, N))
A /= 1.05 * np.abs(np.linalg.eigvals(A)).max()
G, D = 0.3 * RNG.normal(size=(N, M)), 0.2 * RNG.normal(size=(N, K))
C = RNG.normal(size=(2, N))
MEAN, PRIOR = RNG.normal(size=N), np.diag([0.5, 1.0, 2.0])
P_MEAN, P_SD = np.array([0.3, -0.2]), np.array([1.5, 0.8])
SD = 0.1


def data() -> np.ndarray:
    rng, x, p, y = np.random.default_rng(7), MEAN + [0.5, -0.3, 1.0], np.array([1.0, -0.5]), []
    for _ in range(T + 1):
        y.append(C @ x + SD * rng.normal(size=2))
        x = A @ x + D @ p + G @ rng.normal(size=M)
    return np.array(y)


Y = data()


def linear_gaussian(**options) -> OptimalControlProblem:
    """Random walk of a linear system with two unknown constants in its drift."""
    y = jnp.asarray(Y)

    def measured(x, k):
        return (jnp.asarray(C) @ x - y[k]) / SD

    defaults = {
        "stage_residual": lambda x, u, t, p: jnp.concatenate([measured(x, jnp.round(t).astype(int)), u]),
        "terminal_residual": lambda x, p: measured(x, T),
        "initial_residual": lambda x, p: (x - jnp.asarray(MEAN)) / jnp.sqrt(jnp.asarray(np.diag(PRIOR))),
        "parameter_residual": lambda p: (p - jnp.asarray(P_MEAN)) / jnp.asarray(P_SD),
        "parameters": np.zeros(K),
        "free_initial_state": True,
    }
    step = lambda x, u, t, p: jnp.asarray(A) @ x + jnp.asarray(G) @ u + jnp.asarray(D) @ p  # noqa: E731
    step = options.pop("dynamics", step)
    return OptimalControlProblem("random walk", step, T, np.zeros(N), u0=np.zeros(M), **defaults | options)


@pytest.fixture(scope="module")
def smoothed() -> Solution:
    """From states that do not obey the dynamics."""
    return solve(linear_gaussian(xs0=np.random.default_rng(1).normal(size=(T + 1, N))), GaussNewton())


def dense():
    """Means and covariances of (x_0, p, u_0 .. u_T-1) by the normal equations, and the map from them to the states."""
    size = N + K + T * M
    states = [np.eye(N, size)]
    for k in range(T):
        noise = np.zeros((M, size))
        noise[:, N + K + k * M : N + K + (k + 1) * M] = np.eye(M)
        states.append(A @ states[-1] + D @ np.eye(K, size, N) + G @ noise)
    rows = [C @ S / SD for S in states] + [np.linalg.inv(np.sqrt(PRIOR)) @ np.eye(N, size)]
    rows += [np.diag(1 / P_SD) @ np.eye(K, size, N), np.eye(T * M, size, N + K)]
    right = [*(Y / SD), np.linalg.inv(np.sqrt(PRIOR)) @ MEAN, P_MEAN / P_SD, np.zeros(T * M)]
    J, b = np.concatenate(rows), np.concatenate(right)
    covariance = np.linalg.inv(J.T @ J)
    return covariance @ (J.T @ b), covariance, np.array(states)


def test_mean_and_covariances_are_the_dense_ones(smoothed):
    z, cov, S = dense()
    assert smoothed.success and smoothed.iterations <= 2
    np.testing.assert_allclose(smoothed.xs, S @ z, atol=1e-9)
    np.testing.assert_allclose(smoothed.parameters, z[N : N + K], atol=1e-9)
    np.testing.assert_allclose(smoothed.us.ravel(), z[N + K :], atol=1e-9)
    np.testing.assert_allclose(smoothed.covariances["states"], S @ cov @ S.transpose(0, 2, 1), atol=1e-9)
    np.testing.assert_allclose(smoothed.covariances["parameters"], cov[N : N + K, N : N + K], atol=1e-9)
    blocks = [cov[N + K + k * M : N + K + (k + 1) * M, N + K + k * M : N + K + (k + 1) * M] for k in range(T)]
    np.testing.assert_allclose(smoothed.covariances["controls"], blocks, atol=1e-9)


def test_mean_and_covariance_are_the_rauch_tung_striebel_smoothers(smoothed):
    F = np.block([[A, D], [np.zeros((K, N)), np.eye(K)]])
    Q = np.zeros((N + K, N + K))
    Q[:N, :N] = G @ G.T
    H, R = np.concatenate([C, np.zeros((2, K))], 1), SD**2 * np.eye(2)
    m, P = np.concatenate([MEAN, P_MEAN]), np.diag(np.concatenate([np.diag(PRIOR), P_SD**2]))
    filtered, predicted = [], []
    for y in Y:
        predicted.append((m, P))
        gain = P @ H.T @ np.linalg.inv(H @ P @ H.T + R)
        m, P = m + gain @ (y - H @ m), P - gain @ H @ P
        filtered.append((m, P))
        m, P = F @ m, F @ P @ F.T + Q
    means, covariances = [filtered[-1][0]], [filtered[-1][1]]
    for k in range(T - 1, -1, -1):
        (m, P), (ahead, spread) = filtered[k], predicted[k + 1]
        back = P @ F.T @ np.linalg.inv(spread)
        means.insert(0, m + back @ (means[0] - ahead))
        covariances.insert(0, P + back @ (covariances[0] - spread) @ back.T)
    np.testing.assert_allclose(smoothed.xs, np.array(means)[:, :N], atol=1e-9)
    np.testing.assert_allclose(smoothed.covariances["states"], np.array(covariances)[:, :N, :N], atol=1e-9)
    np.testing.assert_allclose(smoothed.parameters, means[0][N:], atol=1e-9)
    np.testing.assert_allclose(smoothed.covariances["parameters"], covariances[0][N:, N:], atol=1e-9)


def test_a_noise_at_its_bound_is_known_and_so_is_a_parameter(smoothed):
    """The smoother with the held unknowns left out, from the dense equations."""
    low = float(np.sort(smoothed.us[:, 0])[3])  # four of the first noise want to be below
    tight = linear_gaussian(control_lower=[low, -np.inf], parameter_upper=[0.1, np.inf])
    solution = solve(tight, GaussNewton())
    held = np.concatenate(
        [np.zeros(N, bool), [True, False], (np.arange(T * M) % M == 0) & (solution.us.ravel() <= low)]
    )
    assert solution.success and held.sum() > 2 and solution.parameters[0] == tight.parameter_upper[0]
    _, cov, S = dense()
    reduced = np.zeros_like(cov)
    reduced[np.ix_(~held, ~held)] = np.linalg.inv(np.linalg.inv(cov)[np.ix_(~held, ~held)])
    np.testing.assert_allclose(solution.covariances["states"], S @ reduced @ S.transpose(0, 2, 1), atol=1e-9)
    np.testing.assert_allclose(solution.covariances["parameters"], reduced[N : N + K, N : N + K], atol=1e-9)
    assert not solution.covariances["controls"][solution.us[:, 0] <= low][:, 0].any()


def pendulum(noisy: bool, **options) -> tuple[OptimalControlProblem, LeastSquaresProblem]:
    """Initial state and stiffness of a pendulum from noisy angles, without process noise: over the horizon, and as plain
    least squares in (x_0, p)."""
    dt, steps = 0.1, 40

    def step(x, u, t, p):
        return jnp.stack([x[0] + dt * x[1], x[1] - dt * p[0] * jnp.sin(x[0])])

    x, angles = np.array([1.0, 0.0]), []
    for _ in range(steps + 1):
        angles.append(x[0])
        x = np.asarray(step(x, None, 0.0, np.array([2.0])))
    y = jnp.asarray(np.array(angles) + 0.01 * noisy * np.random.default_rng(0).normal(size=steps + 1))
    start = np.array([0.5, 0.0])
    over = OptimalControlProblem(
        "pendulum", step, steps, start, dt=dt, u0=np.zeros(0), free_initial_state=True, parameters=np.array([1.5]),
        stage_residual=lambda x, u, t, p: (x[:1] - y[jnp.round(t / dt).astype(int)]) / 0.01,
        terminal_residual=lambda x, p: (x[:1] - y[-1]) / 0.01, **options,
    )  # fmt: skip

    def residual(z):
        motion = over.rollout(z[:2], jnp.zeros((steps, 0)), z[2:])
        return (motion.xs[:, 0] - y) / 0.01

    return over, LeastSquaresProblem("pendulum", residual, np.concatenate([start, [1.5]]))


def test_without_noise_inputs_it_is_single_shooting_least_squares(tmp_path):
    over, plain = pendulum(True)
    by_horizon, by_dense = solve(over, GaussNewton()), solve(plain, GaussNewton())
    assert by_horizon.success and by_dense.success
    np.testing.assert_allclose(np.concatenate([by_horizon.xs[0], by_horizon.parameters]), by_dense.x, rtol=1e-8)
    np.testing.assert_allclose(by_horizon.covariances["parameters"], by_dense.covariance[2:, 2:], rtol=1e-6)
    np.testing.assert_allclose(by_horizon.covariances["states"][0], by_dense.covariance[:2, :2], rtol=1e-6)
    again = Solution.load(by_horizon.save(tmp_path))
    assert sorted(again.covariances) == ["controls", "parameters", "states"]
    np.testing.assert_array_equal(again.covariances["states"], by_horizon.covariances["states"])


@pytest.mark.parametrize("third", [0.0, 1.0])
def test_what_is_not_determined_has_no_covariance_and_is_named(third):
    """A third parameter that does nothing, and one of which only its sum with the second matters; nothing known before."""

    def step(x, u, t, p):
        return jnp.asarray(A) @ x + jnp.asarray(G) @ u + jnp.asarray(D) @ p[:K].at[1].add(third * p[2])

    problem = linear_gaussian(parameters=np.zeros(K + 1), parameter_residual=None, dynamics=step)
    solution = solve(problem, GaussNewton())
    assert not solution.covariances
    assert "1 directions of the initial state and parameters are not determined" in solution.message


def test_general_costs_are_refused_with_the_remedy():
    problem = linear_gaussian(stage_cost=lambda x, u, t, p: jnp.sum(u**4))
    with pytest.raises(
        OptionError, match="has a stage_cost, which is no sum of squares; give stage_residual, or use iLQR"
    ):
        solve(problem, GaussNewton())
    assert solve(problem, iLQR(), max_iterations=0).iterations == 0


@pytest.mark.slow
def test_robust_rows_over_a_horizon_are_scipys_optimum():
    """Cauchy's loss on the measurements only, three of them spoilt."""
    spoilt = Y.copy()
    spoilt[[3, 10, 20]] += 5.0
    y = jnp.asarray(spoilt)
    measured = lambda x, k: robust((jnp.asarray(C) @ x - y[k]) / SD, "cauchy", 2.0)  # noqa: E731
    problem = linear_gaussian(
        stage_residual=lambda x, u, t, p: jnp.concatenate([measured(x, jnp.round(t).astype(int)), u]),
        terminal_residual=lambda x, p: measured(x, T),
    )
    solution = solve(problem, GaussNewton(tolerance=1e-9, max_iterations=200))
    z0, _, S = dense()

    def cost(z):
        squares = [z[N + K :], (z[:N] - MEAN) / np.sqrt(np.diag(PRIOR)), (z[N : N + K] - P_MEAN) / P_SD]
        r = ((S @ z) @ C.T - spoilt) / SD
        return 0.5 * (4 * np.log1p((r / 2) ** 2).sum() + sum(np.sum(s**2) for s in squares))

    exact = scipy.optimize.minimize(cost, np.concatenate([solution.xs[0], solution.parameters, solution.us.ravel()]))
    assert solution.success and solution.cost == pytest.approx(exact.fun, rel=1e-9)
    assert np.isfinite(solution.covariances["states"]).all()
