"""The contact solver on plain arrays: frictional contact problems that do not come from a `System`."""

import dataclasses
import functools
from types import NoneType
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from trajopt.dynamics.arguments import require_finite, require_real
from trajopt.dynamics.contact.derivative import impulse_tangent
from trajopt.dynamics.contact.ncp import make_ncp
from trajopt.dynamics.contact.solve.solve import solve, zero_tangent
from trajopt.dynamics.precision import in_full_precision
from trajopt.errors import OptionError, ShapeError
from trajopt.options import check_number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NCPResult:
    """The answer of `solve_ncp` or `solve_boxed_lcp` for nc contacts.

    Attributes:
        impulse (N s): (3 nc,), for each contact along tangent 1, tangent 2 and the normal.
        velocity (m/s): G impulse + g, (3 nc,), in the same order.
        residual: recomputed violation of the law as a velocity, relative to the velocities of the problem.
        iterations: of Newton.
        fallbacks: the last stage that ran, a `Stage`.
        status: how the solver ended, a `Status`.
        degenerate: whether the impulse is not unique; then one is selected (docs/contact-semantics.md, Selection).
    """

    impulse: Float[Array, "*b m"]
    velocity: Float[Array, "*b m"]
    residual: Float[Array, "*b"]
    iterations: Int[Array, "*b"]
    fallbacks: Int[Array, "*b"]
    status: eqx.Enumeration
    degenerate: Bool[Array, "*b"]


@in_full_precision
def solve_ncp(
    G: Shaped[ArrayLike, "..."],
    g: Shaped[ArrayLike, "..."],
    mu: Shaped[ArrayLike, "..."],
    *,
    init: Shaped[ArrayLike, "..."] | None = None,
    tol: float | None = None,
    max_iterations: int = 50,
) -> NCPResult:
    """Solve the frictional contact problem of Simple eq. 1 with the exact second-order cone.

    Find lambda with $nu = G lambda + g$ such that, for every contact, $0 <= nu_n _|_ lambda_n >= 0$, $|lambda_t| <= mu lambda_n$,
    and $nu_t = 0$ or $lambda_t = -mu lambda_n nu_t / |nu_t|$.

    G (3 nc, 3 nc), symmetric positive semidefinite, may be singular; g (3 nc,); mu (nc,), not negative. init: a start for the
    impulses; it never changes which solution is returned (docs/contact-semantics.md, Selection). tol: residual that counts
    as solved, default 1e-10 in float64, 1e-5 in float32.

    Differentiable in G, g and mu, forward and reverse, by the implicit function theorem at fixed modes; jit and vmap. Raises
    `ShapeError`, `NonFiniteError` or `OptionError` naming the argument (values are checked where they are known: not under
    a transformation).
    """
    return solve_checked(Options(tol, max_iterations, "disc"), G, g, mu, init)


class Options(NamedTuple):
    """How to solve a problem on plain arrays: tol and max_iterations as in `solve_ncp`, cone of `NCP`."""

    tol: float | None
    max_iterations: int
    cone: str


def solve_checked(
    options: Options,
    G: Shaped[ArrayLike, "..."],
    g: Shaped[ArrayLike, "..."],
    mu: Shaped[ArrayLike, "..."],
    init: Shaped[ArrayLike, "..."] | None,
) -> NCPResult:
    """The problem solved after its arguments were checked; the errors are those of `solve_ncp`."""
    G, g, mu, init = _checked(G, g, mu, init)
    check_number("tol", options.tol, "(0, inf)", float, NoneType)
    check_number("max_iterations", options.max_iterations, "[1, inf)", int)
    return _solve_jit(options, G, g, mu, init)


def _checked(G, g, mu, init):
    arrays = {"G": G, "g": g, "mu": mu, "init": init}
    for name, value in arrays.items():
        if value is not None:
            require_real(name, value)
    floats = [x.dtype for x in arrays.values() if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)]
    dtype = floats[0] if floats else jnp.zeros(()).dtype
    if any(kind != dtype for kind in floats):
        raise ShapeError(f"G, g, mu and init must have one dtype, received {sorted({str(k) for k in floats})}")
    nc = np.shape(mu)[0] if np.ndim(mu) == 1 else -1
    expected = {"mu": (nc,), "g": (3 * nc,), "G": (3 * nc, 3 * nc), "init": (3 * nc,)}
    if nc < 0:
        raise ShapeError(f"mu has shape {np.shape(mu)}, expected (nc,): one friction coefficient per contact")
    for name, shape in expected.items():
        if arrays[name] is not None and np.shape(arrays[name]) != shape:
            raise ShapeError(f"{name} has shape {np.shape(arrays[name])}, expected {shape} for {nc} contacts (mu)")
    for name, value in arrays.items():
        if value is None or isinstance(value, jax.core.Tracer):
            continue
        require_finite(name, value)
        known = np.asarray(value)
        if name == "mu" and (known < 0).any():
            raise OptionError(
                f"mu[{int(np.argmax(known < 0))}] is {known.min()}; friction coefficients are not negative"
            )
        if name == "G" and known.size and np.abs(known - known.T).max() > 1e-6 * np.abs(known).max():
            raise OptionError("G is not symmetric; pass J M^-1 J^T")
    init = np.zeros(3 * nc) if init is None else init
    return tuple(x if isinstance(x, jax.Array) else jnp.asarray(np.asarray(x), dtype) for x in (G, g, mu, init))


@functools.partial(jax.jit, static_argnums=0)
def _solve_jit(options: Options, G, g, mu, init) -> NCPResult:
    impulse, velocity, solution = _solve(options, G, g, mu, jax.lax.stop_gradient(init))
    return NCPResult(
        impulse,
        velocity,
        solution.residual,
        solution.iterations,
        solution.fallbacks,
        solution.status,
        solution.degenerate,
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve(options: Options, G, g, mu, init):
    ncp = make_ncp(G, g, mu, cone=options.cone)
    solution = solve(ncp, init, tol=options.tol, max_iterations=options.max_iterations)
    return solution.impulse, solution.velocity, solution


@_solve.defjvp
@in_full_precision
def _solve_jvp(options: Options, primals, tangents):
    G, g, mu, _ = primals
    dG, dg, dmu, _ = tangents
    impulse, velocity, solution = _solve(options, *primals)
    ncp = make_ncp(G, g, mu, cone=options.cone)
    no_bound = jnp.zeros_like(ncp.bound)
    dlam = impulse_tangent(ncp, solution, dG @ impulse + dg, dmu, no_bound, lambda space, dG: space.N.T @ (dG @ space.w), dG)
    velocity_tangent = dG @ impulse + dg + G @ dlam
    return (impulse, velocity, solution), (dlam, velocity_tangent, zero_tangent(solution))


@in_full_precision
def solve_boxed_lcp(
    G: Shaped[ArrayLike, "..."],
    g: Shaped[ArrayLike, "..."],
    mu: Shaped[ArrayLike, "..."],
    *,
    init: Shaped[ArrayLike, "..."] | None = None,
    tol: float | None = None,
    max_iterations: int = 2000,
) -> NCPResult:
    """Solve the contact problem with box friction (Nimble, App. A), the boxed LCP of DART and ODE.

    Find lambda with $nu = G lambda + g$ such that, for every contact, $0 <= nu_n _|_ lambda_n >= 0$ and, for each of its two
    tangents t by itself, $|lambda_t| <= mu lambda_n$, and $nu_t = 0$ or $lambda_t = -mu lambda_n sign(nu_t)$.

    G (3 nc, 3 nc), symmetric positive semidefinite, may be singular; g (3 nc,); mu (nc,), not negative. init: where
    Newton's method starts, such as the impulses of the step before; where it ends at no solution Lemke's method takes over, and
    `NCPResult.fallbacks` is 1. max_iterations: of Newton in one attempt, and pivots. tol: residual that counts as solved, default
    1e-10 in float64, 1e-5 in float32.

    Where contacts are redundant the impulse of least norm in its modes is returned (Nimble, App. B), whatever init was
    (docs/contact-semantics.md, Selection). Differentiable in G, g and mu, forward and reverse, by the implicit function theorem
    at fixed modes; jit and vmap. Raises `ShapeError`, `NonFiniteError` or `OptionError` naming the argument, as `solve_ncp` does.
    """
    return solve_checked(Options(tol, max_iterations, "box"), G, g, mu, init)
