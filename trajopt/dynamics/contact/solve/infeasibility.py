r"""The proof that a contact problem has no solution: a ray of admissible impulses that nothing resists and that cannot stop the
approach,

    r in the cone,    G r = 0,    g . r < 0.

Along r impulses grow without end and change no velocity: nu . r = g . r < 0 whatever the impulse, while normals that do not
approach need nu . r >= 0. (Where r has friction in it, sliding might still part the bodies: it is a proof for rest.)

Impulses are measured in units of sqrt(rho), in which the diagonal of G is one. The regularised impulse of such a problem is
r / eps + c + O(eps): r is its part in the null space of G, among the rows in which it is large.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, project, split
from trajopt.dynamics.contact.solve.conditional import cond_in_batch
from trajopt.dynamics.precision import Threshold

RESISTED = Threshold(1e-8, 1e-5)  # |G r| of a ray of length one: zero but for rounding
SUSPECT = 1e-3  # |G lambda| / |lambda| above which no ray is looked for
APPROACH = 1e-3  # share of sum |g_i r_i| that g . r has to be: what is left of velocities that G resists does not cancel better
PRESENT = Threshold(1e-6, 1e-4)  # share of the largest impulse below which a row has no part in the ray
# eps in (eps (G + eps I)^-1)^POWER, one on the null space of G: what G resists by 1e-4 (1e-2) falls to RESISTED.
REGULARISED, POWER = Threshold(1e-6, 1e-4), 4


def infeasible(ncp: NCP, lam: Float[Array, " m"], solved: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether the direction in which `lam` is large proves that the problem has no solution.

    `solved`: the residual says that `lam` is a solution. That is believed unless the approach along the ray goes on: it
    can be so large that the approach is below the rounding of what cancels.
    """
    x = _unbounded(ncp, lam)
    needed = _resistance(ncp, x) < SUSPECT
    ray = cond_in_batch(needed, lambda x: _in_null_space(ncp, x), x)
    nu = ncp.G @ lam + ncp.g
    stopped = _along_normals(ncp, nu, ray) > 0.5 * (ncp.g @ ray)
    return needed & is_ray(ncp, ray) & ~(solved & stopped)


def is_ray(ncp: NCP, ray: Float[Array, " m"]) -> Bool[Array, ""]:
    """Whether `ray`, of length one in units of sqrt(rho) or zero, proves that the problem has no solution."""
    small = RESISTED.at(ray.dtype)
    outside = jnp.linalg.norm((project(ncp, ray) - ray) / jnp.sqrt(ncp.rho))
    approach = ncp.g @ ray < -APPROACH * jnp.sum(jnp.abs(ncp.g * ray))
    return (_resistance(ncp, ray) < small) & (outside < small) & approach


def _unbounded(ncp: NCP, lam):
    """`lam` without what is bounded, dry friction, at length one (zero where it vanishes)."""
    cone, limit, dry = split(ncp, lam)
    return _of_length_one(ncp, jnp.concatenate([cone.reshape(-1), limit, jnp.where(jnp.isinf(ncp.bound), dry, 0.0)]))


def _of_length_one(ncp: NCP, x):
    largest = jnp.max(jnp.abs(x / jnp.sqrt(ncp.rho)), initial=0.0)
    x = x / jnp.where(largest > 0, largest, 1.0)  # first: the square of an impulse may overflow
    length = jnp.linalg.norm(x / jnp.sqrt(ncp.rho))
    return x / jnp.where(length > 0, length, 1.0)


def _resistance(ncp: NCP, x):
    return jnp.linalg.norm(jnp.sqrt(ncp.rho) * (ncp.G @ x))


def _along_normals(ncp: NCP, nu, ray):
    """nu . ray over normals and limits."""
    (cone, limit, _), (cone_ray, limit_ray, _) = split(ncp, nu), split(ncp, ray)
    return cone[:, 2] @ cone_ray[:, 2] + limit @ limit_ray


def _in_null_space(ncp: NCP, x):
    """The part of `x` in the null space of G among the rows where `x` is large, at length one."""
    unit = jnp.sqrt(ncp.rho)
    y = x / unit
    present = jnp.abs(y) > PRESENT.at(y.dtype) * jnp.max(jnp.abs(y), initial=0.0)
    y = jnp.where(present, y, 0.0)
    small = REGULARISED.at(y.dtype)
    eye = jnp.eye(y.shape[0], dtype=y.dtype)
    among = present[:, None] & present
    inverse = linear_algebra.inverse(jnp.where(among, unit[:, None] * ncp.G * unit, 0.0) + small * eye)
    for _ in range(POWER):
        y = small * (inverse @ y)
    return _of_length_one(ncp, y * unit)
