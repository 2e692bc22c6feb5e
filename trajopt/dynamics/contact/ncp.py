r"""The contact law as an equation: projection map, modes and generalised derivative.

One velocity-level problem collects three kinds of rows, in this order:

    3 nc rows   cone contacts (tangent 1, tangent 2, normal): lambda in the cone |lambda_t| <= mu lambda_n,
                Signorini 0 <= lambda_n  _|_  nu_n >= 0, maximum dissipation (Simple eq. 1)
    nl rows     unilateral rows (joint limits): 0 <= lambda  _|_  nu >= 0
    nf rows     dry joint friction: |lambda| <= bound, lambda = -bound sign(nu) when nu != 0; equality constraints likewise,
                with an infinite bound: nu = 0

with nu = G lambda + g. Written with projections (Alart and Curnier 1991), with y = lambda - rho nu and any rho > 0,

    F(lambda) = lambda - proj(y) = 0,      proj: y_n -> max(0, y_n);  y_t -> disc of radius mu max(0, y_n);
                                                 y_f -> [-bound, bound]

which holds exactly at the solutions of the unrelaxed problem: no pyramid, no compliance. The De Saxce correction of
Simple eq. 1 is implied: the disc's radius is taken from the projected normal impulse.

`P`, the derivative of proj, selects the modes: separating (0), sticking (identity), sliding (tangential block of rank
one, coupled to the normal). The derivative of F is K = I - P + P rho G; it is the matrix of the Newton step and of the
implicit derivative alike.

With `cone="box"` the disc gives way to the box of the boxed LCP (Nimble, App. A): each tangent row is clipped by itself to
[-mu max(0, y_n), mu max(0, y_n)]. The law is then piecewise linear: a tangent row of a closed contact is held, or at its
upper or lower bound, which couples it to the normal by +mu or -mu (the matrix E of Nimble, App. A).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.precision import Threshold

TOLERANCE = Threshold(1e-10, 1e-5)  # relative residual that counts as solved
SLOWEST = 1e-3  # m/s: problems without faster velocities are solved to this share of the tolerance
# What separates a contact that is tied from one that carries an impulse, and an impulse from none, relative to
# `velocity_scale`: a tenth of the tolerance.
TIE = Threshold(1e-11, 1e-6)
KNOWN = Threshold(1e-6, 1e-1)  # share of the velocities of the problem that rounding may leave uncertain in a solution
SEPARATING, STICKING, SLIDING = 0, 1, 2
CLAMPED = 3  # normal row held, no friction: never a solution's mode, only a label (`complementarity`)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NCP:
    """A velocity-level contact problem nu = G lambda + g, rows ordered as in the module docstring.

    G (m, m) Delassus matrix, symmetric positive semidefinite, 1/kg; g (m,) velocity without impulse, m/s; mu (nc,)
    friction coefficients; exists (nc + nl,): rows that are part of the problem (others carry no impulse); bound (nf,)
    largest impulse of dry joint friction over the step; rho (m,) scaling of the projection map, kg; cone: friction stays in a
    "disc" (Coulomb) or, each tangent by itself, in an interval: in a "box".
    """

    G: Float[Array, "m m"]
    g: Float[Array, " m"]
    mu: Float[Array, " nc"]
    exists: Bool[Array, " ncl"]
    bound: Float[Array, " nf"]
    rho: Float[Array, " m"]
    cone: str = dataclasses.field(default="disc", metadata={"static": True})

    @property
    def nc(self) -> int:
        return self.mu.shape[0]

    @property
    def nl(self) -> int:
        return self.exists.shape[0] - self.mu.shape[0]


def make_ncp(
    G: Float[Array, "m m"],
    g: Float[Array, " m"],
    mu: Float[Array, " nc"],
    exists: Bool[Array, " ncl"] | None = None,
    bound: Float[Array, " nf"] | None = None,
    cone: str = "disc",
) -> NCP:
    """Assemble an `NCP`, with the scaling rho from the diagonal of G (per contact: one for the normal, one for both tangents)."""
    nc = mu.shape[0]
    dtype = G.dtype
    if exists is None:
        exists = jnp.ones(nc, bool)
    if bound is None:
        bound = jnp.zeros(0, dtype)
    diagonal = jnp.diagonal(G)
    tangent = 0.5 * (diagonal[0 : 3 * nc : 3] + diagonal[1 : 3 * nc : 3])
    cones = jnp.stack([tangent, tangent, diagonal[2 : 3 * nc : 3]], -1).reshape(3 * nc)
    effective = jnp.concatenate([cones, diagonal[3 * nc :]])
    # A row that nothing can move (next to no diagonal) gets the scale of the others; with no scale at all, 1. The
    # regularisation follows the smallest scale: it would vanish beside the others.
    largest = jnp.max(effective, initial=jnp.zeros((), dtype))
    moves = effective > float(jnp.finfo(dtype).eps) ** 0.5 * largest
    effective = jnp.where(moves, effective, jnp.where(largest > 0, largest, jnp.ones((), dtype)))
    return NCP(G, g, mu, exists, bound, 1.0 / effective, cone)


def nearest(ncp: NCP) -> tuple[NCP, Int[Array, " k"]]:
    """The problem of the half of the contacts and of the limits that approach fastest, and of all dry friction; and its rows in
    the whole problem, whose solution is the same where the other rows stay open."""
    cone, limit, dry = split(ncp, ncp.g)
    approach = jnp.where(ncp.exists, -jnp.concatenate([cone[:, 2], limit]), -jnp.inf)
    contacts = jax.lax.top_k(approach[: ncp.nc], (ncp.nc + 1) // 2)[1]
    unilateral = ncp.nc + jax.lax.top_k(approach[ncp.nc :], (ncp.nl + 1) // 2)[1]
    cones = (3 * contacts[:, None] + jnp.arange(3, dtype=contacts.dtype)).reshape(-1)
    others = 3 * ncp.nc + ncp.nl + jnp.arange(dry.shape[0], dtype=contacts.dtype)
    rows = jnp.concatenate([cones, 2 * ncp.nc + unilateral, others])
    exists = ncp.exists[jnp.concatenate([contacts, unilateral])]
    part = NCP(ncp.G[rows[:, None], rows], ncp.g[rows], ncp.mu[contacts], exists, ncp.bound, ncp.rho[rows], ncp.cone)
    return part, rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Modes:
    """Active modes of every row. cone (nc,): SEPARATING, STICKING, SLIDING (or CLAMPED); limit (nl,), dry (nf,): row is held.

    tangent (nc, 2), of box friction only: 0 held, +1 and -1 at the upper and lower bound. There SLIDING means that at least
    one of the two is at a bound.
    """

    cone: Array
    limit: Bool[Array, " nl"]
    dry: Bool[Array, " nf"]
    tangent: Int[Array, "nc 2"] | None = None

    def differ_from(self, other: Modes) -> Bool[Array, ""]:
        """Whether a row has another mode."""
        pairs = zip(jax.tree.leaves(self), jax.tree.leaves(other), strict=True)
        return jnp.any(jnp.concatenate([jnp.ravel(x != y) for x, y in pairs]))


def split(ncp: NCP, x: Float[Array, " m"]):
    """Rows of x as (nc, 3) cone rows, (nl,) limit rows and (nf,) dry-friction rows."""
    nc, nl = ncp.nc, ncp.nl
    return x[: 3 * nc].reshape(nc, 3), x[3 * nc : 3 * nc + nl], x[3 * nc + nl :]


def safe_norm(x: Float[Array, "..."], axis: int = -1):
    """Euclidean norm whose derivative at zero is zero instead of NaN."""
    square = jnp.sum(x * x, axis)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def project(ncp: NCP, y: Float[Array, " m"]) -> Float[Array, " m"]:
    """proj(y): nearest admissible impulses, row block by row block (see the module docstring)."""
    nc = ncp.nc
    cone, limit, dry = split(ncp, y)
    normal = jnp.where(ncp.exists[:nc], jnp.maximum(cone[:, 2], 0.0), 0.0)
    radius = ncp.mu * normal
    if ncp.cone == "box":
        tangent = jnp.clip(cone[:, :2], -radius[:, None], radius[:, None])
    else:
        length = safe_norm(cone[:, :2])
        inside = length <= radius
        shrink = jnp.where(inside, 1.0, radius / jnp.where(inside, 1.0, length))
        tangent = cone[:, :2] * shrink[:, None]
    limit = jnp.where(ncp.exists[nc:], jnp.maximum(limit, 0.0), 0.0)
    dry = jnp.clip(dry, -ncp.bound, ncp.bound)
    return jnp.concatenate([jnp.concatenate([tangent, normal[:, None]], 1).reshape(3 * nc), limit, dry])


def natural_map(ncp: NCP, lam: Float[Array, " m"], nu: Float[Array, " m"]) -> Float[Array, " m"]:
    """F = lambda - proj(lambda - rho nu), kg m/s; zero exactly where the law holds."""
    return lam - project(ncp, lam - ncp.rho * nu)


def default_tolerance(dtype: DTypeLike) -> float:
    """Residual (relative velocity, see `residual`) below which a problem counts as solved."""
    return TOLERANCE.at(dtype)


def residual(ncp: NCP, lam: Float[Array, " m"], tol: float | None = None) -> Float[Array, ""]:
    """Largest violation of the law as a velocity, |F / rho|, over `velocity_scale`, in which `tol` is that of the solve."""
    nu = ncp.G @ lam + ncp.g
    violation = jnp.max(jnp.abs(natural_map(ncp, lam, nu) / ncp.rho), initial=jnp.zeros((), lam.dtype))
    return violation / velocity_scale(ncp, lam, tol)


def solves(ncp: NCP, lam: Float[Array, " m"], size: Float[Array, ""], tol: float | None = None) -> Bool[Array, ""]:
    """Whether `lam`, of residual `size`, is a solution: within the tolerance, and not by an impulse so large that rounding hides
    what approaches. Where nothing resists an impulse, such as between two walls that close on a body, it may grow that far."""
    tol = default_tolerance(lam.dtype) if tol is None else tol
    return (size <= tol) & (_rounding(ncp, lam) <= KNOWN.at(lam.dtype) * approach_scale(ncp, lam))


def _rounding(ncp: NCP, lam: Float[Array, " m"]) -> Float[Array, ""]:
    """Of G lambda + g, m/s: 8 units in the last place of what cancels."""
    cancels = jnp.max(jnp.abs(ncp.G) @ jnp.abs(lam) + jnp.abs(ncp.g), initial=jnp.zeros((), lam.dtype))
    return 8 * float(jnp.finfo(lam.dtype).eps) * cancels


def velocity_scale(ncp: NCP, lam: Float[Array, " m"], tol: float | None = None) -> Float[Array, ""]:
    """The velocity s, m/s, that residuals are measured against at the impulse `lam`.

        s = max(1e-3 m/s, max over P of |g|, 8 eps max_i (|G| |lambda| + |g|)_i / tol)

    P: normals and limits that exist and approach (g < 0), tangents of contacts that approach or carry an impulse, all
    dry-friction rows. What opens is no velocity of the problem: the gap rate phi / dt of a distant contact. The last term is what
    cancels in G lambda + g, whose rounding no solver can remove; eps is the resolution of the dtype. tol: relative residual
    that counts as solved, default that of the dtype.
    """
    tol = default_tolerance(lam.dtype) if tol is None else tol
    return jnp.maximum(approach_scale(ncp, lam), _rounding(ncp, lam) / tol)


def approach_scale(ncp: NCP, lam: Float[Array, " m"]) -> Float[Array, ""]:
    """`velocity_scale` without the rounding of what cancels."""
    nc = ncp.nc
    cone, limit, dry = split(ncp, ncp.g)
    loaded = ncp.exists[:nc] & ((cone[:, 2] < 0) | (split(ncp, lam)[0][:, 2] > 0))
    tangents = jnp.where(loaded[:, None], jnp.abs(cone[:, :2]), 0.0).reshape(-1)
    unilateral = jnp.where(ncp.exists, -jnp.concatenate([cone[:, 2], limit]), 0.0)
    rows = jnp.concatenate([tangents, unilateral, jnp.abs(dry)])
    return jnp.maximum(jnp.max(rows, initial=jnp.zeros((), ncp.g.dtype)), SLOWEST)


def classify(ncp: NCP, lam: Float[Array, " m"], nu: Float[Array, " m"], tie: float = 0.0, slow: float = 0.0) -> Modes:
    """Modes at (lambda, nu). `tie`: relative size of y_n (as a velocity over `velocity_scale`) below which a contact with zero
    impulse and zero velocity counts as separating. `slow`: speed over `approach_scale` below which a contact on its cone counts
    as sticking: the direction of such a slip has no derivative that means anything."""
    nc = ncp.nc
    cone, limit, dry = split(ncp, lam - ncp.rho * nu)
    # Newton asks without thresholds, in every iteration: for it the scale is not computed.
    scale = velocity_scale(ncp, lam) if tie else jnp.zeros((), lam.dtype)
    threshold_c, threshold_l, _ = split(ncp, tie * scale * ncp.rho)
    closed = ncp.exists[:nc] & (cone[:, 2] > threshold_c[:, 2])
    radius = ncp.mu * jnp.maximum(cone[:, 2], 0.0)
    tangent = None
    # Without friction a closed contact slides, also at zero velocity.
    if ncp.cone == "box":
        held = (jnp.abs(cone[:, :2]) <= radius[:, None]) & (radius > 0)[:, None]
        tangent = jnp.where(held | ~closed[:, None], 0, jnp.where(cone[:, :2] >= 0, 1, -1))
        sticks = jnp.all(held, 1)
    else:
        slow_slip = safe_norm(split(ncp, nu)[0][:, :2]) < (slow * approach_scale(ncp, lam) if slow else 0.0)
        sticks = ((safe_norm(cone[:, :2]) <= radius) | slow_slip) & (radius > 0)
    mode = jnp.where(closed, jnp.where(sticks, STICKING, SLIDING), SEPARATING)
    return Modes(mode, ncp.exists[nc:] & (limit > threshold_l), jnp.abs(dry) < ncp.bound, tangent)


def projection_jacobian(ncp: NCP, lam: Float[Array, " m"], nu: Float[Array, " m"], modes: Modes):
    """P in blocks: (nc, 3, 3) for the cones and the (nl + nf,) diagonal of the scalar rows, for given modes."""
    y, _, _ = split(ncp, lam - ncp.rho * nu)
    dtype = lam.dtype
    sliding, sticking = modes.cone == SLIDING, modes.cone == STICKING
    eye2 = jnp.eye(2, dtype=dtype)
    if modes.tangent is not None:
        held = (sliding | sticking)[:, None] & (modes.tangent == 0)
        tangent = jnp.where(held[:, :, None], eye2, 0.0)
        u = modes.tangent.astype(dtype)
    else:
        u, per_length = _direction(y[:, :2], sliding)
        ratio = ncp.mu * jnp.maximum(y[:, 2], 0.0) * per_length
        tangent = ratio[:, None, None] * (eye2 - u[:, :, None] * u[:, None, :]) + jnp.where(
            sticking[:, None, None], eye2, 0.0
        )
    coupling = jnp.where(sliding[:, None], ncp.mu[:, None] * u, 0.0)
    closed = (modes.cone != SEPARATING).astype(dtype)
    bottom = jnp.stack([jnp.zeros_like(closed), jnp.zeros_like(closed), closed], -1)
    blocks = jnp.concatenate([jnp.concatenate([tangent, coupling[:, :, None]], 2), bottom[:, None, :]], 1)
    diagonal = jnp.concatenate([modes.limit, modes.dry]).astype(dtype)
    return blocks, diagonal


def _direction(x: Float[Array, "nc 2"], sliding: Bool[Array, " nc"]):
    """(x / |x|, 1 / |x|) of the contacts that slide, else zeros.

    The lengths of the others may be rounding alone: their powers, by which derivatives divide, would be zero.
    """
    length = safe_norm(jnp.where(sliding[:, None], x, 1.0))
    moving = sliding & (length > 0)
    per_length = jnp.where(moving, 1.0 / jnp.where(moving, length, 1.0), 0.0)
    return x * per_length[:, None], per_length


def projection_turning(
    ncp: NCP,
    lam: Float[Array, " m"],
    nu: Float[Array, " m"],
    modes: Modes,
    dy: Float[Array, " m"],
    dmu: Float[Array, " nc"],
):
    """The change of `projection_jacobian` in given modes, in blocks like it, with y = lambda - rho nu and with mu.

    Linear in dy and dmu. Only contacts that slide have one: of mu y_n u(y_t), u the direction of y_t, in the disc, of mu y_n u in
    the box.
    """
    (y, _, _), (dy, _, _) = split(ncp, lam - ncp.rho * nu), split(ncp, dy)
    sliding = modes.cone == SLIDING
    if modes.tangent is not None:
        tangent = jnp.zeros((ncp.nc, 2, 2), lam.dtype)
        coupling = jnp.where(sliding, dmu, 0.0)[:, None] * modes.tangent.astype(lam.dtype)
    else:
        u, per_length = _direction(y[:, :2], sliding)
        along = jnp.sum(u * dy[:, :2], 1)
        du = (dy[:, :2] - along[:, None] * u) * per_length[:, None]
        ratio = ncp.mu * y[:, 2] * per_length
        dratio = (dmu * y[:, 2] + ncp.mu * dy[:, 2] - ratio * along) * per_length
        across = jnp.eye(2, dtype=lam.dtype) - u[:, :, None] * u[:, None, :]
        turned = du[:, :, None] * u[:, None, :]
        tangent = dratio[:, None, None] * across - ratio[:, None, None] * (turned + turned.mT)
        coupling = dmu[:, None] * u + ncp.mu[:, None] * du
    top = jnp.concatenate([tangent, coupling[:, :, None]], 2)
    return jnp.concatenate([top, jnp.zeros_like(top[:, :1])], 1), jnp.zeros_like(lam[3 * ncp.nc :])


def apply_blocks(P: tuple[Float[Array, "nc 3 3"], Float[Array, " s"]], x: Float[Array, "m ..."]):
    """P x for P in blocks (see `projection_jacobian`) and x of shape (m,) or (m, k)."""
    blocks, diagonal = P
    nc = blocks.shape[0]
    tail = x.shape[1:]
    flat = x.reshape(x.shape[0], -1)
    cones = flat[: 3 * nc].reshape(nc, 1, 3, flat.shape[1])
    cones = jnp.sum(blocks[:, :, :, None] * cones, 2).reshape(3 * nc, flat.shape[1])
    return jnp.concatenate([cones, diagonal[:, None] * flat[3 * nc :]], 0).reshape(x.shape[:1] + tail)


def newton_matrix(
    ncp: NCP, P: tuple[Float[Array, "nc 3 3"], Float[Array, " s"]], G: Float[Array, "m m"]
) -> Float[Array, "m m"]:
    """K = I - P + P rho G, the derivative of the natural map."""
    m = G.shape[0]
    eye = jnp.eye(m, dtype=G.dtype)
    return eye + apply_blocks(P, ncp.rho[:, None] * G - eye)


def project_in_modes(ncp: NCP, y: Float[Array, " m"], modes: Modes):
    """The branch of `project` that given modes select: smooth, so that it has all derivatives (also in mu and bound)."""
    nc = ncp.nc
    cone, limit, dry = split(ncp, y)
    closed = modes.cone != SEPARATING
    if modes.tangent is not None:
        bounded, u = modes.tangent != 0, modes.tangent.astype(y.dtype)
    else:
        sliding = modes.cone == SLIDING
        bounded, u = sliding[:, None], _direction(cone[:, :2], sliding)[0]
    tangent = jnp.where(bounded, ncp.mu[:, None] * cone[:, 2:] * u, cone[:, :2])
    tangent = jnp.where((modes.cone == CLAMPED)[:, None], 0.0, tangent)
    out = jnp.where(closed[:, None], jnp.concatenate([tangent, cone[:, 2:]], 1), 0.0)
    bound = jnp.where(dry >= 0, ncp.bound, -ncp.bound)
    return jnp.concatenate([out.reshape(3 * nc), jnp.where(modes.limit, limit, 0.0), jnp.where(modes.dry, dry, bound)])


def mode_map(ncp: NCP, lam: Float[Array, " m"], modes: Modes):
    """F restricted to given modes: lambda - project_in_modes(lambda - rho (G lambda + g))."""
    nu = ncp.G @ lam + ncp.g
    return lam - project_in_modes(ncp, lam - ncp.rho * nu, modes)
