"""Derivative of the impulses of a solved contact problem at its modes, by the implicit function theorem."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.branches import any_in_batch
from trajopt.dynamics.contact.ncp import NCP, project_in_modes
from trajopt.dynamics.contact.solve import selection
from trajopt.dynamics.contact.solve.solve import NCPSolution, consistent_solution, solution_null_space

Tangents = TypeVar("Tangents")


def law_tangent(
    ncp: NCP, solution: NCPSolution, free: Float[Array, " m"], dmu: Float[Array, " nc"], dbound: Float[Array, " nf"]
) -> Float[Array, " m"]:
    """dlambda of the law at fixed modes, from the tangent `free` of nu at fixed impulse, of mu and of the friction bounds."""
    lam, nu, modes = solution.impulse, solution.velocity, solution.modes
    y = lam - ncp.rho * nu

    def branch(y, mu, bound):
        return project_in_modes(dataclasses.replace(ncp, mu=mu, bound=bound), y, modes)

    _, right = jax.jvp(branch, (y, ncp.mu, ncp.bound), (-ncp.rho * free, dmu, dbound))
    return consistent_solution(ncp, solution, right)


def impulse_tangent(
    ncp: NCP,
    solution: NCPSolution,
    free: Float[Array, " m"],
    dmu: Float[Array, " nc"],
    dbound: Float[Array, " nf"],
    through_G: Callable[[selection.NullSpace, Tangents], Float[Array, " m"]],
    tangents: Tangents,
) -> Float[Array, " m"]:
    """Derivative of the selected impulse, its component in the null space of a redundant problem included (`selection`).

    free, dmu, dbound: as in `law_tangent`. through_G: (null space, tangents) -> A^T dG w, linear in the tangents, from which
    the caller knows dG; called where the impulse is not unique.
    """
    lam = solution.impulse
    if lam.shape[0] == 0:
        return jnp.zeros_like(lam)
    dlam = law_tangent(ncp, solution, free, dmu, dbound)
    space = jax.lax.stop_gradient(solution_null_space(ncp, solution))

    def null_part(arguments):
        free, dmu, tangents, dlam = arguments
        through = through_G(space, tangents)
        return selection.null_space_tangent(ncp, space, lam, solution.selecting_modes, free, dmu, through, dlam)

    # Where the impulse is unique the null space is empty and its part is zero, whichever branch is taken.
    needed = any_in_batch(jax.lax.stop_gradient(solution.degenerate))
    linear = (free, dmu, tangents, dlam)
    return dlam + jax.lax.cond(needed, null_part, lambda _: jnp.zeros_like(lam), linear)
