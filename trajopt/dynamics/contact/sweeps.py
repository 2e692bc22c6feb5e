"""A step of a fixed number of Gauss-Seidel sweeps (`solve.gauss_seidel`), with s = sigmoid(kappa depth) for `SmoothedContact`.

What the sweeps leave undone is part of the step and of its derivative; `StepInfo.residual` measures it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws.base import SolverOptions
from trajopt.dynamics.contact.ncp import NCP, default_tolerance, residual
from trajopt.dynamics.contact.rows import Rows
from trajopt.dynamics.contact.solve.gauss_seidel import gauss_seidel
from trajopt.dynamics.contact.solve.solve import NCPSolution, solution_modes, solve_status


def swept_solution(problem: NCP, rigid_G: Float[Array, "m m"], rows: Rows, options: SolverOptions) -> NCPSolution:
    """The impulses after `options.sweeps` sweeps, and how well they solve `problem`, in which the sweeps would end.

    rigid_G: Delassus matrix without the compliance of smoothed contacts, whose part in the sweeps are the factors s. The
    impulse alone is differentiable.
    """
    assert options.sweeps is not None
    sweeps = options.sweeps
    scale = jnp.ones_like(rows.mu) if rows.softening is None else rows.softening.sharpness
    rigid = dataclasses.replace(problem, G=rigid_G, exists=rows.exists)
    impulse = gauss_seidel(rigid, scale, sweeps, options.r_factor)
    report = jax.lax.stop_gradient(_report(options.tolerance, problem, impulse, sweeps))
    return dataclasses.replace(report, impulse=impulse)


def _report(tolerance: float | None, problem: NCP, impulse, sweeps: int) -> NCPSolution:
    """How well `impulse` solves the problem."""
    m, dtype = impulse.shape[0], impulse.dtype
    velocity = problem.G @ impulse + problem.g
    tol = default_tolerance(dtype) if tolerance is None else tolerance
    size = residual(problem, impulse, tol)
    return NCPSolution(
        impulse, velocity, size, jnp.full((), sweeps, jnp.int32), jnp.zeros((), jnp.int32),
        solve_status(problem, impulse, size, tol), solution_modes(problem, impulse, velocity), jnp.zeros((), bool),
        jnp.ones((), bool), jnp.zeros(problem.nc, bool), jnp.zeros((m, m), dtype),
    )  # fmt: skip
