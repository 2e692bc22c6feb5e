"""No program of the package makes a batched LAPACK call on a CPU: such calls can wait for each other for ever.

The package's linear algebra makes none, and nothing else calls JAX's (dynamics/test_linear_algebra.py). Here the programs of
solvers are read as JAX writes them when they run, and one that jaxopt makes; `problems/test_every_problem_ends.py` reads those of
every problem of the library.
"""

import control_cases
import jax
import jax.numpy as jnp
import least_squares_cases
import numpy as np
import pytest
from lapack_calls import batched_in, batched_lapack_calls, dumped_programs, lapack_calls

from trajopt import solvers
from trajopt.problems import LeastSquaresProblem
from trajopt.solvers.batch.jaxopt_lbfgs import JaxoptFit


@pytest.fixture(autouse=True)
def by_jax(monkeypatch):
    """The compiled core makes no LAPACK calls."""
    monkeypatch.setenv("TRAJOPT_BACKEND", "jax")


def test_a_batch_of_estimations():
    """By Gauss-Newton and by jaxopt."""

    def residual(x, d):
        return jnp.concatenate([jnp.sin(x) - d, 0.1 * x])

    problem = LeastSquaresProblem("sine", residual, np.zeros(2), data=np.ones(2))
    iteration = solvers.GaussNewton().iteration(problem, "implicit", batched=True)
    for solve in (
        lambda d: iteration.on(problem.on(d)).solve(jnp.zeros(2), 0.0, 20),
        lambda d: JaxoptFit(problem.on(d), solvers.LBFGS(), "implicit").solve(jnp.zeros(2)),
    ):
        lowered = jax.jit(jax.vmap(solve)).lower(jnp.ones((3, 2)))
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
