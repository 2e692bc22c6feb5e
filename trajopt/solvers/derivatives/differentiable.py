"""`differentiable`: a solve as a function that JAX differentiates in reverse mode."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.arguments import holds_traced
from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.derivatives.parameters import checked, parameters, shifted
from trajopt.solvers.derivatives.sensitivity import Sensitivity, multipliers_of
from trajopt.solvers.solve import solve


class Optimum(NamedTuple):
    """What a differentiable solve returns.

    Attributes:
        xs: states (T+1, nx).
        us: controls (T, nu).
        parameters: free parameters (np,).
        cost: the optimal cost.
    """

    xs: Float[Array, "T1 nx"]
    us: Float[Array, "T nu"]
    parameters: Float[Array, " np"]
    cost: Float[Array, ""]


def differentiable(problem: Any, solver: Any = None, **arguments: Any) -> Callable[..., Optimum]:
    """A function of the problem's numbers that solves it and that `jax.grad` differentiates, by `sensitivity` at the solution.

        solved = differentiable(problem, iLQR())
        jax.grad(lambda w: jnp.sum((solved(weights={"control": w}).xs - wanted) ** 2))(2.0)

    It takes by name what `Sensitivity.apply` takes, here the new values, and returns an `Optimum`. Reverse mode alone; no `jit`
    and no `vmap` around it, as the solve is a loop in Python around compiled programs (other values compile nothing).

    Arguments:
        problem: an `OptimalControlProblem`.
        solver, arguments: of `solve`; with x0=solution every solve starts there, and so stays near that optimum.

    Raises what `solve`, `sensitivity` and `Sensitivity.apply` raise; a solve without success is a warning.
    """
    if not isinstance(problem, OptimalControlProblem):
        raise OptionError(f"differentiable: problem is {problem!r}; expected an OptimalControlProblem")
    run = jax.custom_vjp(lambda values: _solved(problem, solver, arguments, values)[0])

    def forward(values: dict[str, Any]) -> tuple[Optimum, Any]:
        return _solved(problem, solver, arguments, values)

    def backward(kept: Any, by: Optimum) -> tuple[dict[str, Any]]:
        values, motion, multipliers = kept
        own, by = placed(problem, values), jax.tree.map(np.asarray, by)
        found = Sensitivity(own, *jax.tree.map(np.asarray, (motion, multipliers)))
        names = [
            f"{key}.{name}" if name else key for key, one in values.items() for name in (one if isinstance(one, dict) else [""])
        ]
        return (jax.tree.map(jnp.asarray, found.vjp(by.xs, by.us, parameters=by.parameters, cost=by.cost, by=names)),)

    run.defvjp(forward, backward)

    def solved(**values: Any) -> Optimum:
        return run(checked(problem, values))

    return solved


def placed(problem: OptimalControlProblem, values: dict[str, Any]) -> OptimalControlProblem:
    """The problem with these values of its numbers."""
    known = parameters(problem)
    fields = {key: jax.tree.map(np.asarray, value) for key, value in values.items()}
    shifts = {
        key: {name: one - known[key][name] for name, one in value.items()}
        if isinstance(value, dict)
        else jax.tree.map(lambda a, b: a - b, value, known[key])
        for key, value in fields.items()
    }
    return shifted(problem, shifts)


def _solved(problem: OptimalControlProblem, solver: Any, arguments: dict[str, Any], values: Any) -> tuple[Optimum, Any]:
    """(the optimum, what its derivative takes)."""
    if holds_traced(values):
        raise OptionError(
            f"differentiable: problem '{problem.name}' is solved by a loop in Python, which jit and vmap cannot trace; call the "
            "function outside of them (jax.grad and jax.value_and_grad need no jit), and solve_batch for many samples"
        )
    own = placed(problem, values)
    solution = solve(own, solver, **arguments)
    if not solution.success:
        warnings.warn(f"differentiable: {solution.message}", stacklevel=4)
    motion = own.point_of(solution)
    p = jnp.asarray(motion.p)
    optimum = Optimum(jnp.asarray(motion.xs), jnp.asarray(motion.us), p, jnp.asarray(solution.cost, p.dtype))
    return optimum, (values, jax.tree.map(jnp.asarray, motion), jax.tree.map(jnp.asarray, multipliers_of(own, solution)))


