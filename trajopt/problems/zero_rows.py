"""Which rows of a stage constraint are zero at a step, whatever the motion.

A constraint that holds at some steps only is a row times a weight that is zero at the others. The rule here is structural: the
constraint is traced at all times at once, and what is surely zero is followed through its operations, such as a product with a
weight that is zero at a time, a choice by a time, and sums, products and rearrangements of zeros. What it does not know counts
as not zero. So a row that is not used is zero at every motion, while one that is zero by a chance of numbers is kept.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Bool

from trajopt.problems.trajectory import ControlProblem

# Zero where their first operand is.
_OF_FIRST = frozenset(
    "neg abs sign sqrt cbrt sin tan tanh sinh asin atan asinh expm1 log1p square convert_element_type copy name div "
    "reduce_precision stop_gradient real".split()
)
# Sums and rearrangements of numbers: zero where those of them that are taken are.
_LINEAR = frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose slice rev concatenate pad reduce_sum cumsum dot_general "
    "dynamic_slice gather scatter-add scatter".split()
)
_OF_ALL = frozenset("add sub add_any max min".split())
_CALLS = frozenset("pjit jit custom_jvp_call custom_vjp_call closed_call remat checkpoint".split())


@dataclasses.dataclass(frozen=True)
class _Known:
    """A value that no motion changes."""

    value: Any

    @property
    def zero(self) -> np.ndarray:
        return np.asarray(np.asarray(self.value) == 0)


@dataclasses.dataclass(frozen=True)
class _Unknown:
    """A value that motions change, and where it is surely zero; None: nowhere."""

    zero: np.ndarray | None = None


_Value = _Known | _Unknown


def used_rows(problem: ControlProblem, kind: str) -> Bool[np.ndarray, "T m"]:
    """Which rows of "equality" or "inequality" a motion can make other than zero, at each step."""

    def rows(x: Any, u: Any, t: Any, p: Any) -> Any:
        return jax.vmap(lambda x, u, t: problem.stage(kind, x, u, t, p))(x, u, t)

    T = problem.horizon
    shapes = ((T, problem.nx), (T, problem.nu), (T,), (problem.n_p,))
    traced = jax.make_jaxpr(rows)(*(jax.ShapeDtypeStruct(shape, problem.dtype) for shape in shapes))
    times = _Known(jnp.asarray(problem.times[:-1], problem.dtype))
    (out,) = _followed(traced.jaxpr, traced.consts, [_Unknown(), _Unknown(), times, _Unknown()])
    shape = traced.out_avals[0].shape
    return np.ones(shape, bool) if out.zero is None else ~np.broadcast_to(out.zero, shape)


def _followed(jaxpr: Jaxpr, consts: Any, arguments: list[_Value]) -> list[_Value]:
    """The values that a program returns."""
    values: dict[Any, _Value] = dict(zip(jaxpr.constvars, map(_Known, consts), strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def read(atom: Any) -> _Value:
        if not isinstance(atom, Literal):
            return values[atom]
        kind: Any = atom.aval
        return _Known(np.asarray(atom.val, kind.dtype))

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        values |= zip(equation.outvars, _results(equation, operands), strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, operands: list[_Value]) -> list[_Value]:
    name = equation.primitive.name
    inner: Any = next((part for part in equation.params.values() if isinstance(part, ClosedJaxpr | Jaxpr)), None)
    if name in _CALLS and inner is not None:
        if isinstance(inner, ClosedJaxpr):
            return _followed(inner.jaxpr, inner.consts, operands)
        return _followed(inner, (), operands)
    several = len(equation.outvars) != 1
    known = [operand.value for operand in operands if isinstance(operand, _Known)]
    if inner is None and not several and len(known) == len(operands):
        return [_Known(equation.primitive.bind(*known, **equation.params))]
    if several or all(operand.zero is None for operand in operands):
        return [_Unknown() for _ in equation.outvars]
    return [_Unknown(_zero(equation, name, operands))]


def _zero(equation: Any, name: str, operands: list[_Value]) -> np.ndarray | None:
    """Where the one result of an operation is surely zero."""
    shapes = [atom.aval.shape for atom in equation.invars]
    zeros = [np.zeros(s, bool) if o.zero is None else o.zero for o, s in zip(operands, shapes, strict=True)]
    if name in _OF_FIRST or (name == "integer_pow" and equation.params["y"] > 0):
        return np.broadcast_to(zeros[0], equation.outvars[0].aval.shape)
    if name == "mul":
        return np.asarray(zeros[0] | zeros[1])
    if name in _OF_ALL:
        return np.asarray(zeros[0] & zeros[1])
    first = operands[0]
    if name == "select_n" and not isinstance(first, _Known):
        return np.asarray(np.all(zeros[1:], axis=0))
    if name not in _LINEAR and name != "select_n":
        return None
    # The operation on ones in the place of all that may be other than zero; indices and choices are themselves.
    given = []
    for k, (operand, atom) in enumerate(zip(operands, equation.invars, strict=True)):
        dtype = atom.aval.dtype
        choice = not jnp.issubdtype(dtype, jnp.floating) or (name == "select_n" and k == 0)
        if choice and not isinstance(operand, _Known):
            return None
        given.append(operand.value if choice and isinstance(operand, _Known) else jnp.asarray(~zeros[k], dtype))
    return np.asarray(np.asarray(equation.primitive.bind(*given, **equation.params)) == 0)

