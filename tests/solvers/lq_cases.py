"""Random linear-quadratic problems and their solution by one dense solve, shared by the tests of Riccati and DDP."""

import numpy as np

from trajopt.solvers.subproblems.riccati import LQProblem

T, N, M = 13, 4, 2


def random_lq(seed: int, definite: bool = True) -> LQProblem:
    """Random data; with `definite` every stage cost is strictly convex, else R_t is indefinite and only P_{t+1} helps."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(T, N + M, N + M))
    H = W @ W.transpose(0, 2, 1) + 0.1 * np.eye(N + M)
    if not definite:
        H[:, N:, N:] = -0.05 * np.eye(M)
        H[:, :N, N:] *= 0.1
    V = rng.normal(size=(N, N))
    Q = np.concatenate([H[:, :N, :N], (V @ V.T)[None]])
    A = rng.normal(size=(T, N, N)) / np.sqrt(N)
    return LQProblem(
        A=A, B=rng.normal(size=(T, N, M)), d=rng.normal(size=(T, N)), Q=Q, R=H[:, N:, N:], S=H[:, :N, N:],
        q=rng.normal(size=(T + 1, N)), r=rng.normal(size=(T, M)),
    )  # fmt: skip


def dense_kkt(lq: LQProblem, x0: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(xs, us, costates, cost) by one dense solve of the optimality conditions; z = [x_0 .. x_T, u_0 .. u_{T-1}]."""
    nx, nz = (T + 1) * N, (T + 1) * N + T * M
    H, g = np.zeros((nz, nz)), np.concatenate([np.ravel(lq.q), np.ravel(lq.r)])
    C, e = np.zeros((nx, nz)), np.zeros(nx)
    C[:N, :N], e[:N] = np.eye(N), x0
    for t in range(T + 1):
        x, u, y = slice(t * N, t * N + N), slice(nx + t * M, nx + t * M + M), slice((t + 1) * N, (t + 2) * N)
        H[x, x] = lq.Q[t]
        if t < T:
            H[u, u], H[x, u], H[u, x] = lq.R[t], lq.S[t], lq.S[t].T
            C[y, x], C[y, u], C[y, y], e[y] = -lq.A[t], -lq.B[t], np.eye(N), lq.d[t]
    kkt = np.block([[H, C.T], [C, np.zeros((nx, nx))]])
    solution = np.linalg.solve(kkt, np.concatenate([-g, e]))
    z = solution[:nz]
    return z[:nx].reshape(-1, N), z[nx:].reshape(-1, M), -solution[nz:].reshape(-1, N), 0.5 * z @ H @ z + g @ z
