"""Optima of the optimal control problems in tests/solvers/control_cases.py, by CasADi and IPOPT.

    python -m venv /tmp/casadi && /tmp/casadi/bin/pip install casadi numpy
    /tmp/casadi/bin/python benchmarks/reference_optima.py

Each problem is written here once more, in CasADi, as multiple shooting with exact Hessians: the values are independent of
trajopt. Prints the costs that control_cases.py quotes.
"""

from __future__ import annotations

import casadi as ca
import numpy as np


def rk4(rate, dt):
    """One step of the classical Runge-Kutta method."""

    def step(x, u):
        k1 = rate(x, u)
        k2 = rate(x + dt / 2 * k1, u)
        k3 = rate(x + dt / 2 * k2, u)
        k4 = rate(x + dt * k3, u)
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return step


def optimum(steps, dt, rate, x0, nu, stage, *, terminal=None, final=None, path=None, u=None, x=None, guess=None):
    """(cost, IPOPT's status): sum of stage(x, u) plus terminal(x), with x_T = final, path(x) <= 0 and bounds on u and x."""
    nlp = ca.Opti()
    X, U = nlp.variable(len(x0), steps + 1), nlp.variable(nu, steps)
    step = rk4(rate, dt)
    cost = 0 if terminal is None else terminal(X[:, steps])
    for k in range(steps):
        nlp.subject_to(X[:, k + 1] == step(X[:, k], U[:, k]))
        cost += stage(X[:, k], U[:, k])
        if path is not None:
            nlp.subject_to(path(X[:, k]) <= 0)
        for i, (low, high) in (u or {}).items():
            nlp.subject_to(nlp.bounded(low, U[i, k], high))
        for i, (low, high) in (x or {}).items():
            nlp.subject_to(nlp.bounded(low, X[i, k + 1], high))
    nlp.subject_to(X[:, 0] == x0)
    if final is not None:
        nlp.subject_to(X[:, steps] == final)
    nlp.minimize(cost)
    states, controls = guess if guess is not None else (np.tile(x0, (steps + 1, 1)), np.zeros((steps, nu)))
    nlp.set_initial(X, states.T)
    nlp.set_initial(U, controls.T)
    nlp.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes", "tol": 1e-11, "max_iter": 3000})
    solution = nlp.solve()
    return float(solution.value(cost)), nlp.stats()["return_status"], nlp.stats()["iter_count"]


def cart_pole():
    m1, m2, length, g = 1.0, 0.3, 0.5, 9.81

    def rate(x, u):
        s, c = ca.sin(x[1]), ca.cos(x[1])
        a1 = (length * m2 * s * x[3] ** 2 + u + m2 * g * c * s) / (m1 + m2 * (1 - c**2))
        a2 = -(length * m2 * c * s * x[3] ** 2 + u * c + (m1 + m2) * g * s) / (length * m1 + length * m2 * (1 - c**2))
        return ca.vertcat(x[2], x[3], a1, a2)

    target = np.array([1.0, np.pi, 0.0, 0.0])
    guess = np.linspace(np.zeros(4), target, 101), np.zeros((100, 1))
    bounds = {"u": {0: (-20, 20)}, "x": {0: (-2, 2)}, "guess": guess}
    return optimum(100, 0.02, rate, np.zeros(4), 1, lambda x, u: u**2 * 0.02, final=target, **bounds)


def pendulum():
    dt, target = 4.0 / 80, np.array([np.pi, 0.0])
    rate = lambda x, u: ca.vertcat(x[1], u - 0.1 * x[1] - 9.81 * ca.sin(x[0]))  # noqa: E731
    guess = np.linspace(np.zeros(2), target, 81), 0.1 * np.ones((80, 1))
    return optimum(
        80,
        dt,
        rate,
        np.zeros(2),
        1,
        lambda x, u: 0.5 * dt * ((0.1 * x[1]) ** 2 + (0.3 * u) ** 2),
        terminal=lambda x: 50.0 * ca.sumsqr(x - target),
        u={0: (-4.0, 4.0)},
        guess=guess,
    )


def unicycle():
    dt = 5.0 / 50
    rate = lambda x, u: ca.vertcat(u[0] * ca.cos(x[2]), u[0] * ca.sin(x[2]), u[1])  # noqa: E731
    return optimum(
        50,
        dt,
        rate,
        np.array([0.0, 1.0, 0.0]),
        2,
        lambda x, u: dt * (u[0] ** 2 + 0.25 * u[1] ** 2),
        final=np.zeros(3),
        path=lambda x: 0.3**2 - (x[0] - 0.35) ** 2 - (x[1] - 0.7) ** 2,
        u={0: (-0.8, 0.8), 1: (-1.5, 1.5)},
        guess=(np.tile([0.0, 1.0, 0.0], (51, 1)), 0.1 * np.ones((50, 2))),
    )


def van_der_pol():
    dt = 10.0 / 50
    rate = lambda x, u: ca.vertcat((1 - x[1] ** 2) * x[0] - x[1] + u, x[0])  # noqa: E731
    stage = lambda x, u: dt * (ca.sumsqr(x) + u**2)  # noqa: E731
    return optimum(50, dt, rate, np.array([0.0, 1.0]), 1, stage, u={0: (-1, 1)}, x={0: (-0.25, np.inf)})


if __name__ == "__main__":
    print("CasADi", ca.__version__)
    for problem in (cart_pole, pendulum, unicycle, van_der_pol):
        cost, status, iterations = problem()
        print(f"{problem.__name__:12s} {cost:.9f}  {status} in {iterations} iterations")
