"""Derivatives that are defined once only: whoever differentiates them once more is told so."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from trajopt.errors import DerivativeError

Inputs = TypeVar("Inputs")


def first_order_only(mode: str, tree: Any) -> Any:
    """`tree` as it is; its derivative raises `DerivativeError`. Put the inputs of a derivative rule through it."""
    return _once(mode, tree)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(mode: str, tree):
    return tree


def _once_jvp(mode: str, primals, tangents):
    (tree,), (slopes,) = primals, tangents
    if all(is_zero(slope) for slope in jax.tree.leaves(slopes, is_leaf=is_symbolic)):
        return tree, slopes
    exact = mode == "implicit"
    where, instead = (" of steps that solve for impulses", "") if exact else ("", "'implicit' where no impulses are solved for, ")
    raise DerivativeError(
        f"gradient='{mode}' defines first derivatives only{where}, and a second one was asked for; use {instead}a solver that "
        "takes first derivatives (GaussNewton, iLQR, hessian='gauss-newton'), or one that differences them (DDP, "
        "hessian='differenced')"
    )


_once.defjvp(_once_jvp, symbolic_zeros=True)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is known to be zero, or belongs to an integer."""
    return isinstance(tangent, SymbolicZero) or getattr(tangent, "dtype", None) == jax.dtypes.float0


def is_symbolic(tangent: Any) -> bool:
    """Whether a tangent is known to be zero without an array."""
    return isinstance(tangent, SymbolicZero)


def still(tree: Any) -> Any:
    """Tangents of `tree` that are known to be zero."""
    return jax.tree.map(lambda leaf: SymbolicZero(jax.typeof(leaf).to_tangent_aval()), tree)


def instantiated(primals: Inputs, tangents: Inputs) -> Inputs:
    """The tangents with zeros in the place of symbolic ones."""

    def filled(slope: Any) -> Any:
        if not is_symbolic(slope):
            return slope
        integer = slope.dtype == jax.dtypes.float0
        return (np if integer else jnp).zeros(slope.shape, slope.dtype)

    slopes = jax.tree.leaves(tangents, is_leaf=is_symbolic)
    return jax.tree.unflatten(jax.tree.structure(primals), [filled(slope) for slope in slopes])


def slope_along(f: Callable[[Inputs], Any], start: Inputs, dstart: Inputs) -> Any:
    """That of f along those leaves of `start` that move."""
    moving = [not is_zero(slope) for slope in jax.tree.leaves(dstart, is_leaf=is_symbolic)]
    leaves, structure = jax.tree.flatten(start)

    def of_moving(*moved: jax.Array) -> Any:
        rest = iter(moved)
        given = [next(rest) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        return f(jax.tree.unflatten(structure, given))

    slopes = jax.tree.leaves(instantiated(start, dstart))
    at, along = (tuple(leaf for leaf, moves in zip(part, moving, strict=True) if moves) for part in (leaves, slopes))
    return jax.jvp(of_moving, at, along)[1]
