r"""Semismooth Newton on the natural map, with a regularisation that selects one solution and then vanishes.

Stage 1 solves the problem with G + eps I in place of G (eps relative to the diagonal, `REGULARISATION`). The regularised
problem has one solution where the original one has many, and as eps tends to zero that solution tends to one that does
not depend on where the iteration began; its modes are kept. Stage 2 removes eps: the residual of the *unregularised*
map is driven to rounding by iterative refinement, the factorised matrix of stage 1 serving as preconditioner. Its
corrections lie in the range of G for held contacts, so that no component of the null space enters again.

Globalisation of stage 1: the merit function 1/2 sum F^2 / rho falls in every accepted iteration (Armijo); when no step
length of the ladder achieves that, the stage ends and the caller falls back to another solver.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.ncp import NCP, classify, natural_map, newton_matrix, projection_jacobian, split

REGULARISATION = 1e-6
ARMIJO = 1e-4
STEP_LENGTHS = 8
BEYOND = 1e-6  # relative, by how much a step passes the first change of a mode
REFINEMENTS = 12


def regularisation(ncp: NCP) -> Float[Array, ""]:
    """eps of stage 1, 1/kg: `REGULARISATION` (its square root in single precision) times the smallest scale of a row."""
    dtype = ncp.G.dtype
    relative = REGULARISATION if dtype == jnp.float64 else 1e-4
    return relative / jnp.max(ncp.rho, initial=jnp.finfo(dtype).tiny)


def merit(ncp: NCP, F: Float[Array, "*b m"]) -> Float[Array, "*b"]:
    """1/2 sum F^2 / rho, J: what falls in every accepted iteration."""
    return 0.5 * jnp.sum(F * F / ncp.rho, -1)


def _map(ncp: NCP, lam, eps):
    nu = ncp.G @ lam + eps * lam + ncp.g
    return natural_map(ncp, lam, nu), nu


def newton_regularised(problem: NCP, init, eps, tol, max_iterations: int, stretch=1.0):
    """Stage 1, the problem with G + eps I from `init`: (lambda, iterations, converged).

    tol: velocity, m/s, to which the rounding of G lambda is added. stretch: by how much rho is larger than that of the problem.
    """
    ncp = dataclasses.replace(problem, rho=problem.rho * stretch)
    dtype = ncp.G.dtype
    rounding = 4 * jnp.finfo(dtype).eps * jnp.diagonal(ncp.G)
    ladder = jnp.asarray(0.5, dtype) ** jnp.arange(STEP_LENGTHS, dtype=dtype)
    Geps = ncp.G + eps * jnp.eye(ncp.G.shape[0], dtype=dtype)

    def solved(lam, nu):
        violation = jnp.max(jnp.abs(natural_map(ncp, lam, nu) / ncp.rho), initial=jnp.zeros((), dtype))
        return violation <= tol + jnp.max(rounding * jnp.abs(lam), initial=jnp.zeros((), dtype))

    def proceed(carry):
        lam, _, nu, k, stalled = carry
        return (k < max_iterations) & ~solved(lam, nu) & ~stalled

    def body(carry):
        lam, F, nu, k, _ = carry
        P = projection_jacobian(ncp, lam, nu, classify(ncp, lam, nu))
        K = newton_matrix(ncp, P, Geps)
        inverse = jnp.linalg.inv(K)
        step = inverse @ F
        step = step + inverse @ (F - K @ step)
        candidates = lam - ladder[:, None] * step
        nus = candidates @ Geps + ncp.g
        Fs = jax.vmap(lambda c, n: natural_map(ncp, c, n))(candidates, nus)
        accepted = merit(ncp, Fs) <= (1.0 - 2.0 * ARMIJO * ladder) * merit(ncp, F)
        first = jnp.argmax(accepted)
        stalled = ~jnp.any(accepted)
        keep = lambda new, old: jnp.where(stalled, old, new[first])  # noqa: E731
        return keep(candidates, lam), keep(Fs, F), keep(nus, nu), k + 1, stalled

    F0, nu0 = _map(ncp, init, eps)
    start = (init, F0, nu0, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    lam, _, nu, k, _ = jax.lax.while_loop(proceed, body, start)
    return lam, k, solved(lam, nu)


def past_first_event(problem: NCP, lam, eps, stretch):
    """The point on the Newton step of the problem with G + eps I that just passes the first contact to open, to close or to
    reach its cone; the whole step where there is none.

    Where contacts are redundant the solutions of the regularised problem move along the null space of K, as eps falls: too
    far for a line search, but in the direction of this step, until a mode changes. stretch: as in `newton_regularised`.
    """
    ncp = dataclasses.replace(problem, rho=problem.rho * stretch)
    nu = ncp.G @ lam + eps * lam + ncp.g
    step = regularised_inverse(ncp, lam, eps) @ natural_map(ncp, lam, nu)
    cone, limit, _ = split(ncp, lam - ncp.rho * nu)
    cone_rate, limit_rate, _ = split(ncp, step - ncp.rho * (ncp.G @ step + eps * step))
    unilateral = _positive_root(jnp.append(cone[:, 2], limit), jnp.append(cone_rate[:, 2], limit_rate))
    # |y_t - s r_t|^2 = mu^2 (y_n - s r_n)^2, a s^2 - 2 b s + c = 0, for contacts that stick: c < 0.
    weight = jnp.stack([jnp.ones_like(ncp.mu), jnp.ones_like(ncp.mu), -(ncp.mu**2)], -1)
    a, b, c = (jnp.sum(weight * x * y, -1) for x, y in ((cone_rate, cone_rate), (cone, cone_rate), (cone, cone)))
    inside = (c < 0) & (cone[:, 2] > 0) & ncp.exists[: ncp.nc]
    root = jnp.sqrt(jnp.maximum(b * b - a * c, 0.0))
    # The larger root of the two where a > 0; the smaller positive one, if any, where the cone opens along the step.
    away = jnp.where(b >= 0, (b + root) / jnp.where(a == 0, 1.0, a), -c / jnp.where(root == b, 1.0, root - b))
    boundary = jnp.where(inside & (a > 0) & (away > 0), away, jnp.inf)
    first = jnp.minimum(jnp.min(unilateral, initial=1.0), jnp.min(boundary, initial=1.0))
    return lam - first * (1.0 + BEYOND) * step


def _positive_root(value, rate):
    """Step length s > 0 at which value - s rate is zero, infinity without one."""
    length = value / jnp.where(rate == 0, 1.0, rate)
    return jnp.where((rate != 0) & (length > 0), length, jnp.inf)


def regularised_inverse(ncp: NCP, lam, eps):
    """Inverse of K for G + eps I at `lam`."""
    nu = ncp.G @ lam + eps * lam + ncp.g
    P = projection_jacobian(ncp, lam, nu, classify(ncp, lam, nu))
    return jnp.linalg.inv(newton_matrix(ncp, P, ncp.G + eps * jnp.eye(lam.shape[0], dtype=lam.dtype)))


def refine(ncp: NCP, lam, inverse, tol):
    """Stage 2: lambda of the unregularised problem, in the modes in which `inverse` was formed; `tol` is a velocity."""
    dtype = ncp.G.dtype

    def proceed(carry):
        return carry[4]

    def body(carry):
        x, before, size_before, k, _ = carry
        F, _ = _map(ncp, x, jnp.zeros((), dtype))
        size = jnp.max(jnp.abs(F / ncp.rho), initial=jnp.zeros((), dtype))
        better = size < size_before
        more = (size > tol) & (size < 0.5 * size_before) & (k < REFINEMENTS)
        kept = jnp.where(better, x, before)
        return jnp.where(more, x - inverse @ F, kept), kept, jnp.where(better, size, size_before), k + 1, more

    start = (lam, lam, jnp.full((), jnp.inf, dtype), jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(proceed, body, start)[0]
