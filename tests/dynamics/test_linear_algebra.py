"""Dense linear algebra: JAX's own values and derivatives, and batches that make no batched call of LAPACK on a CPU."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
from lapack_calls import batched_lapack_calls, lapack_calls

from trajopt.dynamics import linear_algebra

N = 5


def square(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, N))


def definite() -> np.ndarray:
    return square() @ square().T + N * np.eye(N)


def tall(columns: int = 3) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(N + 2, columns))


def jax_triangular(transpose: bool):
    return lambda L, B: jax.lax.linalg.triangular_solve(L, B, left_side=True, lower=True, transpose_a=transpose)


# name: (ours, JAX's, arguments)
CASES = {
    "cholesky": (
        linear_algebra.cholesky,
        lambda A: jax.lax.linalg.cholesky(A, symmetrize_input=False),
        (definite(),),
    ),
    "symmetric_cholesky": (linear_algebra.symmetric_cholesky, jnp.linalg.cholesky, (definite(),)),
    "triangular_solve": (linear_algebra.triangular_solve, jax_triangular(False), (definite(), square(2))),
    "triangular_solve, transposed": (
        lambda L, B: linear_algebra.triangular_solve(L, B, transpose=True),
        jax_triangular(True),
        (definite(), square(2)),
    ),
    "cho_solve": (
        linear_algebra.cho_solve,
        lambda L, B: jax.scipy.linalg.cho_solve((L, True), B),
        (np.linalg.cholesky(definite()), square(2)),
    ),
    "cho_solve_vector": (
        linear_algebra.cho_solve_vector,
        lambda L, b: jax.scipy.linalg.cho_solve((L, True), b),
        (np.linalg.cholesky(definite()), square(2)[0]),
    ),
    "solve": (linear_algebra.solve, jnp.linalg.solve, (square(), square(2))),
    "solve_vector": (linear_algebra.solve_vector, jnp.linalg.solve, (square(), square(2)[0])),
    "inverse": (linear_algebra.inverse, jnp.linalg.inv, (square(),)),
    "eigh": (linear_algebra.eigh, lambda A: tuple(jnp.linalg.eigh(A)), (definite(),)),
    "svd, tall": (linear_algebra.svd, lambda A: tuple(jnp.linalg.svd(A, full_matrices=False)), (tall(),)),
    "svd, wide": (linear_algebra.svd, lambda A: tuple(jnp.linalg.svd(A, full_matrices=False)), (tall().T,)),
    "pinv, tall": (
        lambda A: linear_algebra.pinv(A, 1e-10),
        lambda A: jnp.linalg.pinv(A, rtol=1e-10),
        (tall(),),
    ),
    "pinv, wide": (
        lambda A: linear_algebra.pinv(A, 1e-10),
        lambda A: jnp.linalg.pinv(A, rtol=1e-10),
        (tall().T,),
    ),
    "pinv, symmetric": (
        lambda A: linear_algebra.pinv(A, 1e-10, True),
        lambda A: jnp.linalg.pinv(A, rtol=1e-10, hermitian=True),
        (square() + square().T,),
    ),
    "least_squares": (
        linear_algebra.least_squares,
        lambda A, B: jnp.linalg.lstsq(A, B)[0],
        (tall(), tall(2)),
    ),
}
each_case = pytest.mark.parametrize("name", CASES)
# Both evaluate the same formulas; what differs is the order of a few sums.
ROUNDING = 1e-12


def assert_close(ours, theirs) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * (1 + np.max(np.abs(b))))


def total(fn):
    """A smooth number made of everything that `fn` returns."""
    return lambda *arguments: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(fn(*arguments)))


@each_case
def test_one_matrix_has_jaxs_values_bit_for_bit(name):
    ours, theirs, arguments = CASES[name]
    for a, b in zip(
        jax.tree.leaves(jax.jit(ours)(*arguments)), jax.tree.leaves(jax.jit(theirs)(*arguments)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@each_case
def test_derivatives_are_jaxs(name):
    """Forward, reverse and second derivatives, by every argument."""
    ours, theirs, arguments = CASES[name]
    arguments = tuple(map(jnp.asarray, arguments))
    every = tuple(range(len(arguments)))
    for derivative in (
        lambda fn: jax.jacfwd(total(fn), every),
        lambda fn: jax.grad(total(fn), every),
        lambda fn: jax.hessian(total(fn)),
    ):
        assert_close(jax.jit(derivative(ours))(*arguments), jax.jit(derivative(theirs))(*arguments))


def batches(arguments) -> tuple:
    scales = 1.0 + 0.1 * np.arange(6).reshape(2, 3)
    return tuple(jnp.asarray(scales.reshape(2, 3, *(1,) * a.ndim) * a) for a in arguments)


@pytest.mark.slow
@each_case
def test_batches_within_batches_and_their_derivatives(name):
    ours, theirs, arguments = CASES[name]
    stacks = batches(arguments)
    twice = lambda fn: jax.vmap(jax.vmap(fn))  # noqa: E731
    assert_close(jax.jit(twice(ours))(*stacks), jax.jit(twice(theirs))(*stacks))
    assert_close(jax.jit(twice(jax.grad(total(ours))))(*stacks), jax.jit(twice(jax.grad(total(theirs))))(*stacks))


@each_case
def test_no_batched_lapack_call_on_a_cpu(name):
    """LAPACK is called, with one matrix at a time, also in derivatives and in batches within batches."""
    ours, theirs, arguments = CASES[name]
    stacks = batches(arguments)
    for fn in (ours, jax.grad(total(ours)), jax.hessian(total(ours))):
        lowered = jax.jit(jax.vmap(jax.vmap(fn))).lower(*stacks)
        assert lapack_calls(lowered) and not batched_lapack_calls(lowered)
    assert batched_lapack_calls(jax.jit(jax.vmap(theirs)).lower(*(a[0] for a in stacks)))


ALL: tuple = tuple(jax.export.DisabledSafetyCheck.custom_call(f"{kind}") for kind in (
    "lapack_dpotrf_ffi", "lapack_dtrsm_ffi", "lapack_dgetrf_ffi", "lapack_dsyevd_ffi", "lapack_dgesdd_ffi",
    "cusolver_getrf_ffi", "cusolver_syevd_ffi", "cusolver_gesvd_ffi", "cusolver_gesvdj_ffi", "cu_lu_pivots_to_permutation",
))  # fmt: skip


def test_empty_matrices_and_empty_batches():
    empty = jnp.zeros((0, 0))
    assert linear_algebra.inverse(empty).shape == (0, 0)
    assert linear_algebra.cholesky(jnp.zeros((0, N, N))).shape == (0, N, N)
    assert jax.vmap(linear_algebra.inverse)(jnp.zeros((3, 0, 0))).shape == (3, 0, 0)


def test_what_is_not_positive_definite_becomes_nan():
    assert np.isnan(linear_algebra.cholesky(-jnp.eye(N))).any()
    mixed = linear_algebra.cholesky(jnp.stack([jnp.eye(N), -jnp.eye(N)]))
    assert np.isfinite(mixed[0]).all() and np.isnan(mixed[1]).any()


PACKAGE = pathlib.Path(linear_algebra.__file__).resolve().parents[1]
MODULES = {"jnp.linalg", "jax.numpy.linalg", "lax.linalg", "jax.lax.linalg", "jax.scipy.linalg", "jsp.linalg"}


def forbidden(tree: ast.Module) -> list[str]:
    """Uses of JAX's linear algebra in a module, but for the Euclidean norm of `jnp.linalg.norm(x)`, with or without an axis."""
    allowed = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "jnp.linalg.norm" and len(node.args) == 1
        if {keyword.arg for keyword in node.keywords} <= {"axis", "keepdims"}
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in MODULES and id(node) not in allowed:
            found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
            if "linalg" in (node.module or "") or any(alias.name == "linalg" for alias in node.names):
                found.append(ast.unparse(node))
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("jax")]
            found += [name for name in names if "linalg" in name]
    return found


def test_nobody_else_calls_jaxs_linear_algebra():
    home = pathlib.Path(linear_algebra.__file__).resolve()
    wrong = [
        f"{path.relative_to(PACKAGE)}: {use}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != home
        for use in forbidden(ast.parse(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "jnp.linalg.inv(x)", "jax.lax.linalg.cholesky(x)", "from jax.scipy.linalg import cho_solve", "jnp.linalg.norm(x, 2)",
        "jnp.linalg.norm(x, ord=2)", "from jax.numpy import linalg", "import jax.scipy.linalg as la", "f = jnp.linalg.norm",
    ],
)  # fmt: skip
def test_the_check_sees_a_forbidden_call(code):
    assert forbidden(ast.parse(code))
    assert not forbidden(ast.parse("jnp.linalg.norm(x, axis=-1)\nnp.linalg.inv(x)"))
