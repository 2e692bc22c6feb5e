"""Derivatives that are defined once only: whoever differentiates them once more is told so."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from trajopt.errors import DerivativeError


def first_order_only(mode: str, tree: Any) -> Any:
    """`tree` as it is; its derivative raises `DerivativeError`. Put the inputs of a derivative rule through it."""
    return _once(mode, tree)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(mode: str, tree):
    return tree


def _once_jvp(mode: str, primals, tangents):
    (tree,), (slopes,) = primals, tangents
    if all(is_zero(slope) for slope in jax.tree.leaves(slopes, is_leaf=lambda x: isinstance(x, SymbolicZero))):
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
