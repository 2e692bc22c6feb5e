"""No program of the package makes a batched LAPACK call on a CPU: such calls can wait for each other for ever.

Programs are lowered, not compiled, or read from what JAX writes when a solver runs. `problems/test_every_problem_ends.py` reads
the programs of every problem of the library.
"""

from __future__ import annotations

import control_cases
import jax
import jax.numpy as jnp
import least_squares_cases
import numpy as np
import pytest
from dynamics.contact import scenes
from lapack_calls import batched_in, batched_lapack_calls, dumped_programs, lapack_calls

from trajopt import dynamics, solvers
from trajopt.dynamics.rigid_body import crba, derivatives
from trajopt.problems import LeastSquaresProblem
from trajopt.solvers.batch.jaxopt_lbfgs import JaxoptFit
from trajopt.solvers.estimation.moving_horizon import MovingHorizon
from trajopt.solvers.subproblems.riccati import LQProblem, riccati, riccati_parallel

BATCH = 3


@pytest.fixture(autouse=True)
def by_jax(monkeypatch):
    """The compiled core makes no LAPACK calls."""
    monkeypatch.setenv("TRAJOPT_BACKEND", "jax")


def stacked(tree):
    return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * BATCH), tree)


def cube(gradient: str = "implicit", contact=None):
    contact = dynamics.RigidContact() if contact is None else contact
    return dynamics.System(scenes.model("cube"), dt=1e-3, contact=contact, gradient=gradient)


def stepping(system):
    """A batch of steps, and the arguments."""
    x = stacked(scenes.cube_state("sliding"))
    return jax.vmap(lambda x: system.step(x, jnp.zeros(0))[0]), (x,)


def stepping_backwards(system):
    def fn(x):
        return jax.grad(lambda v: jnp.sum(system.step(dynamics.State(x.q, v), jnp.zeros(0))[0].v ** 2))(x.v)

    return jax.vmap(fn), stepping(system)[1]


def linearising(system):
    return jax.vmap(lambda x: system.linearize(x, jnp.zeros(0)).A), stepping(system)[1]


def rolling(system):
    return jax.vmap(lambda x: system.rollout(x, jnp.zeros((4, 0)))[0]), stepping(system)[1]


def delassus(solve):
    G = np.eye(6) + 0.1
    fn = jax.vmap(lambda g: jax.jacfwd(lambda g: solve(jnp.asarray(G), g, jnp.full(2, 0.5)).impulse)(g))
    return fn, (stacked(np.array([0.3, 0.1, -1.0] * 2)),)


def rigid_body(fn):
    model = scenes.model("forest")
    q = jnp.asarray(dynamics.System(model, dt=1e-3).initial_state().q)
    return jax.vmap(lambda v: fn(model, q, v, v)), (stacked(jnp.zeros(model.nv)),)


def lq(q, T: int = 4, n: int = 3, m: int = 2) -> LQProblem:
    eye = lambda k, count: jnp.stack([jnp.eye(k)] * count)  # noqa: E731
    return LQProblem(
        A=eye(n, T), B=jnp.ones((T, n, m)), d=jnp.zeros((T, n)), Q=eye(n, T + 1), R=eye(m, T), S=jnp.zeros((T, n, m)),
        q=q, r=jnp.ones((T, m)),
    )  # fmt: skip


def solving_lq(solve, **bounds):
    return jax.vmap(lambda q: solve(lq(q), **bounds).P), (stacked(jnp.ones((5, 3))),)


def moving_horizon():
    mhe = MovingHorizon(
        lambda x, u, w: x + 0.1 * w, lambda x, y: jnp.sin(x) - y, 3, mean=np.zeros(2), covariance=np.eye(2),
        measurement_size=2, control_size=0, noise_size=2,
    )  # fmt: skip
    return jax.vmap(lambda y: mhe.advance(mhe.start(), y, jnp.zeros(0))), (stacked(jnp.zeros(2)),)


def estimating():
    def residual(x, d):
        return jnp.concatenate([jnp.sin(x) - d, 0.1 * x])

    problem = LeastSquaresProblem("sine", residual, np.zeros(2), data=np.ones(2))
    iteration = solvers.GaussNewton().iteration(problem, "implicit", batched=True)

    def solved(data):
        at = lambda d: iteration.on(problem.with_leaves(d)).solve(jnp.zeros(2), 0.0, 20)  # noqa: E731
        return jax.vmap(at)(data)

    return solved, (stacked(jnp.ones(2)),)


def estimating_by_jaxopt():
    def residual(x, d):
        return jnp.concatenate([jnp.sin(x) - d, 0.1 * x])

    problem = LeastSquaresProblem("sine", residual, np.zeros(2), data=np.ones(2))

    def solved(data):
        at = lambda d: JaxoptFit(problem.with_leaves(d), solvers.LBFGS(), "implicit").solve(jnp.zeros(2))  # noqa: E731
        return jax.vmap(at)(data)

    return solved, (stacked(jnp.ones(2)),)


bound = np.full((4, 2), 0.1)
PROGRAMS = {
    "step": lambda: stepping(cube()),
    "step, ADMM": lambda: stepping(cube(contact=dynamics.RigidContact(solver="admm"))),
    "step, boxed LCP": lambda: stepping(cube(contact=dynamics.BoxedLCP())),
    "step, smoothed": lambda: stepping(cube(contact=dynamics.SmoothedContact(kappa=100.0))),
    "step, reverse mode": lambda: stepping_backwards(cube()),
    "step, bounce": lambda: stepping_backwards(cube("bounce")),
    "step, complementarity-aware": lambda: stepping_backwards(cube("complementarity-aware")),
    "step, randomized": lambda: stepping_backwards(cube("randomized")),
    "linearize": lambda: linearising(cube()),
    "rollout": lambda: rolling(cube()),
    "solve_ncp": lambda: delassus(dynamics.solve_ncp),
    "solve_boxed_lcp": lambda: delassus(dynamics.solve_boxed_lcp),
    "forward dynamics": lambda: rigid_body(crba.forward_dynamics),
    "forward dynamics, derivatives": lambda: rigid_body(derivatives.forward_dynamics_derivatives),
    "riccati": lambda: solving_lq(riccati),
    "riccati with bounds": lambda: solving_lq(riccati, lower=-bound, upper=bound),
    "riccati in parallel": lambda: solving_lq(riccati_parallel),
    "moving horizon": moving_horizon,
    "batch, Gauss-Newton": estimating,
    "batch, jaxopt": estimating_by_jaxopt,
}


SLOW = ("step, reverse mode", "rollout")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_the_package_s_functions(name):
    fn, arguments = PROGRAMS[name]()
    lowered = jax.jit(fn).lower(*arguments)
    assert lapack_calls(lowered), "the program has no linear algebra, so that nothing is tested"
    assert not batched_lapack_calls(lowered)


LEAST_SQUARES = ("GaussNewton", "LBFGS", "GradientDescent")


@pytest.mark.parametrize("name", solvers.names())
def test_the_programs_of_a_solver(name, tmp_path):
    if name in LEAST_SQUARES:
        problem = least_squares_cases.rosenbrock()
    else:
        problem = control_cases.double_integrator(4, control_lower=-20.0, control_upper=20.0)
    with dumped_programs(tmp_path):
        solvers.solve(problem, solvers.get(name), max_iterations=1)
    assert not batched_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, options",
    [("iLQR", {}), ("SingleShooting", {}), ("MultipleShooting", {}), ("CEM", {"standard_deviation": 1.0})],
)
def test_the_programs_of_a_solver_with_contact(name, options, tmp_path):
    with dumped_programs(tmp_path):
        solvers.solve(control_cases.pushed_box(4), solvers.get(name, **options), max_iterations=1)
    assert not batched_in(tmp_path)


def test_the_check_sees_a_batched_call(tmp_path):
    with dumped_programs(tmp_path):
        jax.block_until_ready(jax.jit(jnp.linalg.cholesky)(jnp.stack([jnp.eye(3)] * 2)))
    (calls,) = batched_in(tmp_path).values()
    assert calls == [("lapack_dpotrf_ffi", (2, 3, 3))]
