"""A step under `RelaxedContact` in the terms of the other laws: its solution, and the tangents of its velocity and impulses."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.central_path import (
    grouped,
    in_rows,
    path_point,
    path_problem,
    path_tangents,
    solve_on_path,
)
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.ncp import NCP, TOLERANCE, classify
from trajopt.dynamics.contact.rows import Rows
from trajopt.dynamics.contact.solve.solve import NCPSolution
from trajopt.result import Status


def relaxed_solution(
    inputs: StepInputs,
    ncp: NCP,
    rows: Rows,
    M: Float[Array, "nv nv"],
    factor: Float[Array, "nv nv"],
    half: Float[Array, "nv m"],
    free: Float[Array, " nv"],
) -> tuple[Float[Array, " nv"], NCPSolution]:
    """(v+, solution) of a step at `inputs.rho`. ncp: the rigid problem of the same rows, by which contacts are named closed;
    factor: L with M = L L^T; half: L^-1 J^T."""
    assert inputs.rho is not None
    tolerance = TOLERANCE.at(free.dtype) if inputs.law.tolerance is None else inputs.law.tolerance
    problem = path_problem(rows, M, half, free, inputs.rho)
    found = solve_on_path(problem, factor, tolerance, inputs.law.max_iterations)
    impulse = in_rows(rows.sizes, found.impulses)
    velocity = rows.J @ found.velocity + rows.offset
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status = choose(found.residual <= tolerance, Status.solved, Status.stalled)
    status = choose(jnp.isfinite(found.residual), status, Status.non_finite)
    no, none = jnp.zeros((), bool), jnp.zeros((0, 0), free.dtype)
    return found.velocity, NCPSolution(
        impulse, velocity, found.residual, found.iterations, jnp.zeros((), jnp.int32), status,
        classify(ncp, impulse, velocity), no, ~no, jnp.zeros(rows.nc, bool), none,
    )  # fmt: skip


def relaxed_tangents(
    rows: Rows,
    factor: Float[Array, "nv nv"],
    half: Float[Array, "nv m"],
    impulse: Float[Array, " m"],
    velocity: Float[Array, " nv"],
    rho: Float[Array, ""],
    drho: Float[Array, ""],
    drows: Rows,
    force: Float[Array, " nv"],
    rate: Float[Array, " m"],
) -> tuple[Float[Array, " nv"], Float[Array, " m"]]:
    """(dv+, d impulse) of a solved step. force, rate: tangents of the balance of momentum and of nu at fixed v+ and impulse."""
    problem = path_problem(rows, factor @ factor.T, half, velocity, rho)
    point = path_point(rows.sizes, impulse, velocity)
    dbound = drows.bound[: rows.sizes[2]]
    dv, dimpulses = path_tangents(problem, point, force, grouped(rows.sizes, rate), drows.mu, dbound, drho)
    return dv, in_rows(rows.sizes, dimpulses)
