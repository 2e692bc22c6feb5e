"""Dense linear algebra whose batches cannot stop a program on a CPU.

LAPACK's handlers of jaxlib 0.10.2 cut a large batch into pieces, hand these to XLA's thread pool and wait for them, in a
thread of that same pool. When as many such calls run at once as the pool has threads, all of them wait and nobody works: the
program never ends (docs/troubleshooting.md, section "A program that never ends"). A call with a single matrix works in
its own thread and waits for nobody.

The functions of this module have the values of their namesakes in `jax.numpy.linalg` and `jax.lax.linalg`, and their
derivatives of every order, forward and reverse; leading axes of their arguments, and those that `jax.vmap` adds, are a batch. On
CPUs a batch is a loop of calls with one matrix, which costs about 0.2 us more per matrix, 1 us with LU
(docs/notes/performance.md). On other devices it is one call of the device's library.

Matrices with one entry need no LAPACK.

Nothing else in the package calls `jax.numpy.linalg`, `jax.lax.linalg` or `jax.scipy.linalg` (but for norms of vectors).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, Int

from trajopt.native.interface import with_stated_interface

# --- matrices, one call each ----------------------------------------------------------------------------------------


def one_by_one(fn: Callable[..., Sequence[Array]]) -> Callable[..., Sequence[Array]]:
    """`fn` of matrices, mapped over leading axes of its arguments by a loop; of a single matrix, `fn` itself."""

    def looped(*operands: Array, **parameters: Any) -> Sequence[Array]:
        def call(*matrices: Array) -> Sequence[Array]:
            # Without the barriers XLA 0.10 for CPUs now and then rewrites a LAPACK call into one that it does not know.
            return lax.optimization_barrier(fn(*lax.optimization_barrier(matrices), **parameters))

        axes = operands[0].shape[:-2]
        if not axes:
            return call(*operands)
        count = math.prod(axes)
        rows = [x.reshape(count, *x.shape[-2:]) for x in operands]
        if count == 1:
            results = [y[None] for y in call(*(x[0] for x in rows))]
        else:
            results = list(lax.map(lambda row: call(*row), rows))
        return [y.reshape(*axes, *y.shape[1:]) for y in results]

    return looped


def _primitive(name: str, fn: Callable[..., Sequence[Array]], shapes: Callable[..., Sequence[Any]]) -> Primitive:
    """A primitive that is `fn`, of stacks of matrices with equal leading axes: a loop on CPUs, one call elsewhere.

    fn: of the operands and the parameters, also of stacks. shapes: (shape, dtype) of its results, from the operands' avals.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    eager = functools.partial(_bound, primitive)
    primitive.def_impl(jax.jit(eager, static_argnames=("lower", "transpose", "unit_diagonal")))
    primitive.def_abstract_eval(lambda *avals, **kw: [jax.core.ShapedArray(*one) for one in shapes(*avals, **kw)])
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    mlir.register_lowering(primitive, mlir.lower_fun(fn, multiple_results=True))
    looped = mlir.lower_fun(one_by_one(fn), multiple_results=True)
    mlir.register_lowering(primitive, with_stated_interface(looped), platform="cpu")
    return primitive


def _bound(primitive: Primitive, *operands: Array, **parameters: Any) -> Sequence[Array]:
    return primitive.bind(*operands, **parameters)


def _batched(primitive: Primitive, operands, axes, **parameters):
    """The batch becomes the first of the leading axes."""
    results = primitive.bind(*_stacked(operands, axes), **parameters)
    return results, [0] * len(results)


def _stacked(operands, axes) -> list[Array]:
    (size,) = {x.shape[axis] for x, axis in zip(operands, axes) if axis is not None}
    return [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes)
    ]


# --- triangular systems ---------------------------------------------------------------------------------------------


def triangular_solve(
    L: Float[Array, "*batch n n"],
    B: Float[Array, "*batch n k"],
    *,
    lower: bool = True,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> Float[Array, "*batch n k"]:
    """X with L X = B, or L^T X = B, for a triangular L; what is beyond the triangle, or on a unit diagonal, is not read."""
    axes = jnp.broadcast_shapes(L.shape[:-2], B.shape[:-2])
    L, B = jnp.broadcast_to(L, axes + L.shape[-2:]), jnp.broadcast_to(B, axes + B.shape[-2:])
    return _triangular_p.bind(L, B, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)[0]


def cho_solve(L: Float[Array, "*batch n n"], B: Float[Array, "*batch n k"]) -> Float[Array, "*batch n k"]:
    """X with L L^T X = B for a lower triangular L."""
    return triangular_solve(L, triangular_solve(L, B), transpose=True)


def cho_solve_vector(L: Float[Array, "*batch n n"], b: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """x with L L^T x = b for a lower triangular L."""
    return cho_solve(L, b[..., None])[..., 0]


def _triangular_call(L, B, *, lower, transpose, unit_diagonal):
    if L.shape[-1] == 1:
        return [B if unit_diagonal else B / L]
    X = lax.linalg.triangular_solve(
        L, B, left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit_diagonal
    )
    return [X]


def _triangular_batched(operands, axes, **parameters):
    L, B = operands
    if axes[0] is not None:
        return _batched(_triangular_p, operands, axes, **parameters)
    # One matrix, many right-hand sides: they are columns of a single call.
    columns = jnp.moveaxis(B, axes[1], -1)
    flat = columns.reshape(*columns.shape[:-2], columns.shape[-2] * columns.shape[-1])  # of no columns, too
    return [_triangular_p.bind(L, flat, **parameters)[0].reshape(columns.shape)], [columns.ndim - 1]


def _triangular_jvp(primals, tangents, *, lower, transpose, unit_diagonal):
    """L dX = dB - dL X, with the triangle of dL that is read."""
    L, B = primals
    dL, dB = tangents
    solve = functools.partial(_triangular_p.bind, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)
    (X,) = solve(L, B)
    if isinstance(dL, ad.Zero):
        return [X], solve(L, dB)
    part = jnp.tril(dL, -unit_diagonal) if lower else jnp.triu(dL, unit_diagonal)
    right = -_product(part.mT if transpose else part, X)
    return [X], solve(L, right if isinstance(dB, ad.Zero) else dB + right)


def _triangular_transposed(cotangents, L, B, *, lower, transpose, unit_diagonal):
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None, ad.Zero(B.aval)]
    return [None, triangular_solve(L, cotangent, lower=lower, transpose=not transpose, unit_diagonal=unit_diagonal)]


_triangular_p = _primitive("triangular_solve_one_by_one", _triangular_call, lambda L, B, **_: [(B.shape, B.dtype)])
batching.primitive_batchers[_triangular_p] = _triangular_batched
ad.primitive_jvps[_triangular_p] = _triangular_jvp
ad.primitive_transposes[_triangular_p] = _triangular_transposed


# --- positive definite matrices -------------------------------------------------------------------------------------


def cholesky(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """Lower triangular L with A = L L^T, from the lower triangle of A; NaN where A is not positive definite."""
    return _cholesky_p.bind(A)[0]


def symmetric_cholesky(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """`cholesky` of the symmetric part of A."""
    return cholesky((A + A.mT) / 2)


def _cholesky_jvp(primals, tangents):
    """dL = L Phi(L^-1 dA L^-T), Phi the lower triangle with half of the diagonal (Murray, arXiv 1602.07527)."""
    (dA,) = tangents
    L = cholesky(*primals)
    half = triangular_solve(L, triangular_solve(L, dA.mT).mT)
    phi = jnp.tril(half) / (1 + jnp.eye(L.shape[-1], dtype=L.dtype))
    return [L], [_product(L, phi)]


def _cholesky_call(A):
    if A.shape[-1] == 1:
        return [jnp.sqrt(A)]
    return [lax.linalg.cholesky(A, symmetrize_input=False)]


_cholesky_p = _primitive("cholesky_one_by_one", _cholesky_call, lambda A: [(A.shape, A.dtype)])
ad.primitive_jvps[_cholesky_p] = _cholesky_jvp


# --- general square matrices ----------------------------------------------------------------------------------------


def solve(A: Float[Array, "*batch n n"], B: Float[Array, "*batch n k"]) -> Float[Array, "*batch n k"]:
    """X with A X = B, by LU with partial pivoting; its derivatives use the same factors."""
    if A.ndim > 2:
        return jax.vmap(solve)(A, B)
    factors, permutation = _lu(lax.stop_gradient(A))
    return lax.custom_linear_solve(
        lambda X: _product(A, X),
        B,
        solve=lambda _, X: _lu_solve(factors, permutation, X),
        transpose_solve=lambda _, X: _lu_solve_transposed(factors, permutation, X),
    )


def solve_vector(A: Float[Array, "*batch n n"], b: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """x with A x = b, by LU with partial pivoting."""
    return solve(A, b[..., None])[..., 0]


def inverse(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """A^-1, by LU with partial pivoting."""
    return solve(A, jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape))


def _lu(A: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Int[Array, " n"]]:
    """L and U in one matrix, and the rows of A in the order of P A = L U."""
    factors, pivots = _lu_p.bind(A)
    return factors, lax.linalg.lu_pivots_to_permutation(pivots, A.shape[-1])


def _lu_solve(factors, permutation, B):
    half = triangular_solve(factors, B[permutation], unit_diagonal=True)
    return triangular_solve(factors, half, lower=False)


def _lu_solve_transposed(factors, permutation, B):
    half = triangular_solve(factors, B, lower=False, transpose=True)
    return triangular_solve(factors, half, transpose=True, unit_diagonal=True)[jnp.argsort(permutation)]


# `solve` differentiates without differentiating the factors, so that these have no derivative of their own.
def _lu_call(A):
    if A.shape[-1] == 1:
        return [A, jnp.zeros(A.shape[:-1], jnp.int32)]
    return lax.linalg.lu(A)[:2]


_lu_p = _primitive(
    "lu_one_by_one", _lu_call, lambda A: [(A.shape, A.dtype), (A.shape[:-1], jnp.dtype("int32"))]
)


# --- eigenvalues and singular values --------------------------------------------------------------------------------


def eigh(A: Float[Array, "*batch n n"]) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    """(w, V) with (A + A^T) / 2 = V diag(w) V^T, w ascending; derivatives where the eigenvalues are distinct."""
    V, w = _eigh_p.bind((A + A.mT) / 2)
    return w, V


def _eigh_jvp(primals, tangents):
    """dw = diag(V^T dA V), dV = V (F o V^T dA V) with F_ij = 1 / (w_j - w_i) (Giles 2008, section 3.1)."""
    (A,), (dA,) = primals, tangents
    V, w = _eigh_p.bind(A)
    gap = w[..., None, :] - w[..., :, None]
    F = jnp.where(gap == 0, 0.0, 1.0 / jnp.where(gap == 0, 1.0, gap))
    rotated = _product(V.mT, _product(dA, V))
    return [V, w], [_product(V, F * rotated), jnp.diagonal(rotated, axis1=-2, axis2=-1)]


_eigh_p = _primitive(
    "eigh_one_by_one",
    lambda A: lax.linalg.eigh(A, symmetrize_input=False),
    lambda A: [(A.shape, A.dtype), (A.shape[:-1], A.dtype)],
)
ad.primitive_jvps[_eigh_p] = _eigh_jvp


def svd(
    A: Float[Array, "*batch m n"],
) -> tuple[Float[Array, "*batch m k"], Float[Array, "*batch k"], Float[Array, "*batch k n"]]:
    """(U, s, V^T) with A = U diag(s) V^T, k = min(m, n), s descending; derivatives where singular values are distinct."""
    U, s, Vt = _svd_p.bind(A)
    return U, s, Vt


def _svd_jvp(primals, tangents):
    """Giles 2008, section 3.2, with what leaves the spaces of U and V where A is not square."""
    (A,), (dA,) = primals, tangents
    U, s, Vt = _svd_p.bind(A)
    V = Vt.mT
    dP = _product(U.mT, _product(dA, V))
    row, column = s[..., None, :], s[..., :, None]
    difference = (row + column) * (row - column)
    F = jnp.where(difference == 0, 0.0, 1.0 / jnp.where(difference == 0, 1.0, difference))
    twist = 0.5 * (dP - dP.mT) * (jnp.eye(s.shape[-1], dtype=s.dtype) * _reciprocal(row))
    dU = _product(U, F * (dP * row + (dP * row).mT) + twist)
    dV = _product(V, F * (column * dP + (column * dP).mT))
    if A.shape[-2] > A.shape[-1]:
        outside = _product(dA, V)
        dU = dU + (outside - _product(U, _product(U.mT, outside))) * _reciprocal(row)
    if A.shape[-2] < A.shape[-1]:
        outside = _product(dA.mT, U)
        dV = dV + (outside - _product(V, _product(Vt, outside))) * _reciprocal(row)
    return [U, s, Vt], [dU, jnp.diagonal(dP, axis1=-2, axis2=-1), dV.mT]


def _svd_shapes(A):
    *batch, m, n = A.shape
    k = min(m, n)
    return [((*batch, m, k), A.dtype), ((*batch, k), A.dtype), ((*batch, k, n), A.dtype)]


_svd_p = _primitive("svd_one_by_one", lambda A: list(lax.linalg.svd(A, full_matrices=False)), _svd_shapes)
ad.primitive_jvps[_svd_p] = _svd_jvp


# --- rank-deficient systems -----------------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def pinv(A: Float[Array, "m n"], rtol: float, hermitian: bool = False) -> Float[Array, "n m"]:
    """Pseudo-inverse of A, without the singular values of at most rtol times the largest.

    hermitian: A is symmetric, which is decomposed faster. The derivative is that at constant rank (Golub and Pereyra 1973).
    """
    U, s, Vt = _symmetric_svd(A) if hermitian else svd(A)
    s = jnp.where(s > rtol * s[:1], s, jnp.inf)
    return _product(Vt.mT, U.mT / s[:, None])


@pinv.defjvp
def _pinv_jvp(rtol, hermitian, primals, tangents):
    (A,), (dA,) = primals, tangents
    if hermitian:
        A, dA = (A + A.mT) / 2, (dA + dA.mT) / 2
    P = pinv(A, rtol, hermitian)
    left = _product(_product(P, P.mT), dA.mT)
    right = _product(dA.mT, _product(P.mT, P))
    change = left - _product(left, _product(A, P)) + right - _product(_product(P, A), right)
    return P, change - _product(P, _product(dA, P))


def _symmetric_svd(A: Float[Array, "n n"]):
    """`svd` of a symmetric matrix, from its eigenvalues in the order of falling size."""
    w, V = eigh(A)
    order = jnp.argsort(jnp.abs(w), stable=True)[::-1]
    U, w = V[:, order], w[order]
    return U, jnp.abs(w), (U * jnp.sign(w)).mT


def least_squares(A: Float[Array, "m n"], B: Float[Array, "m k"]) -> Float[Array, "n k"]:
    """X of least norm that minimises |A X - B|, without the singular values below max(m, n) eps times the largest."""
    U, s, Vt = svd(A)
    kept = (s > 0) & (s >= max(A.shape) * float(jnp.finfo(A.dtype).eps) * s[0])
    return _product(Vt.mT, jnp.where(kept, 1 / jnp.where(kept, s, 1.0), 0.0)[:, None] * _product(U.mT, B))


def _reciprocal(x: Array) -> Array:
    return jnp.where(x == 0, 0.0, 1.0 / jnp.where(x == 0, 1.0, x))


def _product(A: Array, B: Array) -> Array:
    return jnp.matmul(A, B, precision=lax.Precision.HIGHEST)
