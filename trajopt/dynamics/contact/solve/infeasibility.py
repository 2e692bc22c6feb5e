r"""The proof that a contact problem has no solution: a ray of admissible impulses that nothing resists and that cannot stop the
approach,

    r in the cone,    G r = 0,    g . r < 0.

Along r impulses grow without end and change no velocity: nu . r = g . r < 0 whatever the impulse, while normals that do not
approach need nu . r >= 0. Where r has friction in it that is a proof for rest alone: bodies that slide may still part.

Impulses are measured in units of sqrt(rho), in which the diagonal of G is one. The regularised impulse of such a problem is
r / eps + c + O(eps): r is its part in the null space of G, among the rows in which it is large.
"""

from __future__ import annotations

import enum

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import NCP, approach_scale, project, split
from trajopt.dynamics.contact.solve.conditional import cond_in_batch
from trajopt.dynamics.precision import Threshold

RESISTED = Threshold(1e-8, 1e-5)  # |G r| of a ray of length one: zero but for rounding
SUSPECT = 1e-3  # |G lambda| / |lambda| above which no ray is looked for
APPROACH = 1e-3  # share of sum |g_i r_i| that g . r has to be: what is left of velocities that G resists does not cancel better
AGAINST = Threshold(1e-6, 1e-3)  # share of the velocities of the problem that counts as an approach which goes on
ROUNDING = 8  # units of rounding of what cancels in G lambda, below which velocities are not known
PRESENT = Threshold(1e-6, 1e-4)  # share of the largest impulse below which a row has no part in the ray
# eps in (eps (G + eps I)^-1)^POWER, one on the null space of G: what G resists by 1e-4 (1e-2) falls to RESISTED.
REGULARISED, POWER = Threshold(1e-6, 1e-4), 4


class Proof(enum.IntEnum):
    """What a ray proves: nothing; that no impulse brings the contacts to rest; that none solves the problem, sliding or not."""

    NONE = 0
    NOTHING_HOLDS = 1
    NOTHING_HELPS = 2


def proof(ncp: NCP, lam: Float[Array, " m"], solved: Bool[Array, ""]) -> Int[Array, ""]:
    """The `Proof` that the direction in which `lam` is large gives.

    `solved`: the residual says that `lam` is a solution. Of contacts that could not rest that is believed, if the velocities are
    known well enough to say that they slide apart: what cancels in them can be so large that its rounding hides an approach.
    """
    x = _unbounded(ncp, lam)
    needed = _resistance(ncp, x) < SUSPECT
    ray = cond_in_batch(needed, lambda x: _in_null_space(ncp, x), x)
    cone, limit, dry = split(ncp, ray)
    normals = jnp.concatenate([(cone * jnp.asarray([0, 0, 1], ray.dtype)).reshape(-1), limit, dry])
    helps = needed & is_ray(ncp, _of_length_one(ncp, normals))
    holds = needed & is_ray(ncp, ray) & ~(solved & _slides_apart(ncp, lam, normals))
    found = jnp.where(holds, int(Proof.NOTHING_HOLDS), int(Proof.NONE))
    return jnp.where(helps, int(Proof.NOTHING_HELPS), found).astype(jnp.int32)


def refuted(ncp: NCP, lam: Float[Array, " m"], solved: bool | Bool[Array, ""], proven: int | Int[Array, ""]) -> Bool[Array, ""]:
    """Whether there is no solution, or `lam`, a solution by its residual (`solved`), is none: it has grown along a ray until
    rounding hides the approach. proven: a `Proof` that was found before; solutions that rounding does not touch go before it."""
    solved = jnp.asarray(solved)
    believed = solved & _known(ncp, lam)
    return (proof(ncp, lam, solved) != int(Proof.NONE)) | ((jnp.asarray(proven) != int(Proof.NONE)) & ~believed)


def _known(ncp: NCP, lam):
    """Whether the velocities at `lam` are known well enough to say what approaches."""
    cancels = jnp.max(jnp.abs(ncp.G) @ jnp.abs(lam), initial=jnp.zeros((), lam.dtype))
    return ROUNDING * jnp.finfo(lam.dtype).eps * cancels < _approach(ncp, lam)


def _approach(ncp: NCP, lam):
    """The least velocity that counts as an approach, m/s."""
    return AGAINST.at(lam.dtype) * approach_scale(ncp, lam)


def _slides_apart(ncp: NCP, lam, normals):
    """Whether velocities say that nothing approaches along the normals of a ray, and are known well enough to say it."""
    along = (ncp.G @ lam + ncp.g) @ normals
    return _known(ncp, lam) & (along > -_approach(ncp, lam) * jnp.sum(jnp.abs(normals)))


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
