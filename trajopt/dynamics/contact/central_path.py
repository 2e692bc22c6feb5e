r"""The contact problem on its central path: what `RelaxedContact` solves, and its derivative.

With rho > 0 (J) every row has an impulse, and v+ = v_free + M^-1 J^T lambda is a smooth function of what the rows depend on:

    normal rows and limits    lambda w = rho,  w = nu + b                                          lambda, w > 0
    friction, |tau| < s       s psi + tau . nu = rho,  s nu + psi tau = 0        s = mu lambda_n, or dt times the loss of a joint
    equality constraints      nu + b = 0

The second line is Dojo's Jordan product (arXiv 2203.00806); without psi it reads
tau = -2 s^2 nu / (rho + sqrt(rho^2 + 4 s^2 |nu|^2)).
Each row alone says how its impulse changes with its velocity, d lambda = -D d nu, so that a Newton step, and the derivative of a
solution, is one system in the velocities:

    (M + J^T D J) dv = right-hand side.

A primal-dual interior-point method solves the problem: lambda, w and tau are unknowns of their own and stay inside their
cones, the products lambda w of all rows are drawn towards a share of their mean, and towards rho at the end. psi follows from
the others: it is that of the path at the mean product.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.ncp import SLOWEST, TOLERANCE
from trajopt.dynamics.contact.rows import Rows
from trajopt.dynamics.precision import Threshold

LEAST_FRICTION = Threshold(1e-12, 1e-6)  # a smaller coefficient, or bound (N s), counts as this
INSIDE = 0.99  # share of the way to the boundary of the cones that a step may take
SHRINK, SHRINK_LESS = 0.1, 0.5  # of the mean product, after a nearly full step and after a shorter one
NEARLY_FULL = 0.9
ON_PATH = 1e-4  # relative error of a product, which the last iteration squares
PROXIMAL = Threshold(1e-9, 1e-5)  # of equality constraints, relative to their own mobility: redundant ones do no harm
ROUNDING = 8  # units of rounding that residuals are allowed
REFINEMENTS = 2  # of a linear system with equality constraints: each takes away what `PROXIMAL` leaves


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PathProblem:
    """The rows of a step in groups. M (nv, nv), free (nv,): mass matrix and velocity without impulses.

    U (k, nv), b (k,): rows with lambda w = rho, contacts' normals first; T (f, 2, nv): friction of contacts, then of joints,
    whose second direction is empty; mu (nc,); bound (nd,), N s; E (e, nv), error (e,): equality constraints; G_U (k,),
    G_T (f,), G_E (): mobility of the rows, 1/kg, of the equality constraints the largest; rho: J.
    """

    M: Float[Array, "nv nv"]
    free: Float[Array, " nv"]
    U: Float[Array, "k nv"]
    b: Float[Array, " k"]
    T: Float[Array, "f 2 nv"]
    mu: Float[Array, " nc"]
    bound: Float[Array, " nd"]
    E: Float[Array, "e nv"]
    error: Float[Array, " e"]
    G_U: Float[Array, " k"]
    G_T: Float[Array, " f"]
    G_E: Float[Array, ""]
    rho: Float[Array, ""]

    def largest_friction(self, normal: Float[Array, " k"]) -> Float[Array, " f"]:
        """s of every friction row at the impulses of the rows U."""
        return jnp.concatenate([self.mu * normal[: self.mu.shape[0]], self.bound])


class Impulses(NamedTuple):
    """normal (k,): of the rows U; friction (f, 2): of T; equality (e,)."""

    normal: Float[Array, " k"]
    friction: Float[Array, "f 2"]
    equality: Float[Array, " e"]


class Slopes(NamedTuple):
    """How the impulses of rows change with their velocity: dnormal = -normal dw, dfriction = -tangent dnu - turned ds.

    normal (k,), tangent (f, 2, 2), turned (f, 2); shrunk (f, 2): dfriction / drho at fixed nu and s.
    """

    normal: Float[Array, " k"]
    tangent: Float[Array, "f 2 2"]
    turned: Float[Array, "f 2"]
    shrunk: Float[Array, "f 2"]


class Groups(NamedTuple):
    """What belongs to the rows of a step, by group, with any axes after these: of U (k, ...), of T (f, 2, ...), of E (e, ...)."""

    normal: Float[Array, "k ..."]
    friction: Float[Array, "f 2 ..."]
    equality: Float[Array, "e ..."]


class PathPoint(NamedTuple):
    """Impulses and velocity v+ (nv,)."""

    impulses: Impulses
    velocity: Float[Array, " nv"]


class PathSolution(NamedTuple):
    """Impulses and velocity v+ (nv,) on the central path; residual: relative, as of `violation`; iterations made."""

    impulses: Impulses
    velocity: Float[Array, " nv"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]


class _Iterate(NamedTuple):
    """An iterate: v, impulses, slacks w (k,), the share of the last step, whether it began at a solution, iterations."""

    v: Float[Array, " nv"]
    impulses: Impulses
    w: Float[Array, " k"]
    share: Float[Array, ""]
    solved: Bool[Array, ""]
    iterations: Int[Array, ""]


# --- rows in groups ---------------------------------------------------------------------------------------------------


def grouped(sizes: tuple[int, ...], x: Float[Array, "m ..."]) -> Groups:
    """Entries of rows (m, ...) by group: U (k, ...), T (f, 2, ...), E (e, ...); the second of a joint's friction is zero."""
    contacts, limits, dry, _ = sizes
    cone, limit, joint, equality = jnp.split(x, (contacts, contacts + limits, contacts + limits + dry))
    cone = cone.reshape(-1, 3, *x.shape[1:])
    joint = jnp.stack([joint, jnp.zeros_like(joint)], 1)
    return Groups(jnp.concatenate([cone[:, 2], limit]), jnp.concatenate([cone[:, :2], joint]), equality)


def in_rows(sizes: tuple[int, ...], x: Impulses) -> Float[Array, " m"]:
    """Impulses in the order of the rows of a step."""
    nc = sizes[0] // 3
    cone = jnp.concatenate([x.friction[:nc], x.normal[:nc, None]], 1)
    return jnp.concatenate([cone.reshape(-1), x.normal[nc:], x.friction[nc:, 0], x.equality])


def path_point(sizes: tuple[int, ...], impulse: Float[Array, " m"], velocity: Float[Array, " nv"]) -> PathPoint:
    """The point of the impulses of a step's rows and its v+."""
    return PathPoint(Impulses(*grouped(sizes, impulse)), velocity)


def path_problem(
    rows: Rows, M: Float[Array, "nv nv"], half: Float[Array, "nv m"], free: Float[Array, " nv"], rho: Float[Array, ""]
) -> PathProblem:
    """The problem of the rows of a step. half: L^-1 J^T with M = L L^T."""
    U, T, E = grouped(rows.sizes, rows.J)
    b, _, error = grouped(rows.sizes, rows.offset)
    G_U, G_T, G_E = grouped(rows.sizes, jnp.sum(half * half, 0))
    floor, dry = LEAST_FRICTION.at(M.dtype), rows.bound[: rows.sizes[2]]
    return PathProblem(
        M, free, U, b, T, jnp.maximum(rows.mu, floor), jnp.maximum(dry, floor), E, error,
        _positive(G_U), _positive(jnp.max(G_T, 1, initial=0.0)), _positive(jnp.max(G_E, initial=0.0)), rho,
    )  # fmt: skip


def _positive(mobility: Array) -> Array:
    """Mobilities, of rows that nothing moves a small one."""
    return jnp.maximum(mobility, float(jnp.finfo(mobility.dtype).tiny) ** 0.5)


# --- the solution -----------------------------------------------------------------------------------------------------


def solve_on_path(
    problem: PathProblem, factor: Float[Array, "nv nv"], tolerance: float, max_iterations: int
) -> PathSolution:
    """The impulses at rho; factor: L with M = L L^T. One iteration follows the first that ends within the tolerance."""
    problem = jax.lax.stop_gradient(problem)

    def unfinished(at: _Iterate) -> Bool[Array, ""]:
        return (at.iterations < max_iterations) & ~at.solved

    last = jax.lax.while_loop(unfinished, lambda at: _iterate(problem, at, tolerance), _start(problem, factor))
    push = _generalised(problem, last.impulses)
    v = problem.free + linear_algebra.cho_solve_vector(factor, push)
    return PathSolution(last.impulses, v, violation(problem, last.impulses, v), last.iterations)


def violation(problem: PathProblem, x: Impulses, v: Float[Array, " nv"]) -> Float[Array, ""]:
    """How far the rows are from their laws at impulses and velocity, as a velocity over that of the problem.

    The distance of each row's (impulse times mobility, velocity) from the curve that is its law, to first order.
    """
    w, nu, s = problem.U @ v + problem.b, problem.T @ v, problem.largest_friction(x.normal)
    psi = _cone_slack(problem.rho, s, nu)
    normal = jnp.abs(x.normal * w - problem.rho) / (x.normal + jnp.abs(w) / problem.G_U)
    off = s[:, None] * nu + psi[:, None] * x.friction
    friction = _norm(off) / (s + psi / problem.G_T)
    equality = jnp.abs(problem.E @ v + problem.error)
    largest = jnp.max(jnp.concatenate([normal, friction, equality]), initial=0.0)
    return largest / _velocity_scale(problem, x, v)


def _velocity_scale(problem: PathProblem, x: Impulses, v) -> Float[Array, ""]:
    """The fastest velocity that rows have to change, at least 1e-3 m/s, and more where rounding alone is above the tolerance."""
    nc, f = problem.mu.shape[0], problem.T.shape[0]
    w = problem.U @ problem.free + problem.b
    loaded = jnp.concatenate([w[:nc] < 0, jnp.ones(f - nc, bool)])
    slip = jnp.where(loaded, _norm(problem.T @ problem.free), 0.0)
    closed = jnp.abs(problem.E @ problem.free + problem.error)
    speeds = jnp.concatenate([-w, slip, closed])
    eps = float(jnp.finfo(v.dtype).eps)
    cancels = jnp.max(jnp.abs(problem.U) @ jnp.abs(v) + problem.G_U * x.normal, initial=0.0)
    return jnp.maximum(jnp.max(speeds, initial=SLOWEST), ROUNDING * eps / TOLERANCE.at(v.dtype) * cancels)


def _start(problem: PathProblem, factor: Float[Array, "nv nv"]) -> _Iterate:
    """All products of normal rows equal: that of the largest impact."""
    w, nu = problem.U @ problem.free + problem.b, problem.T @ problem.free
    impact = jnp.max(jnp.where(w < 0, w * w / problem.G_U, 0.0), initial=0.0)
    rubbed = jnp.max(problem.bound * _norm(nu[problem.mu.shape[0] :]), initial=0.0)
    product = jnp.maximum(problem.rho, jnp.maximum(impact, rubbed))
    w = jnp.maximum(w, jnp.sqrt(product * problem.G_U))
    normal = product / w
    impulses = Impulses(normal, jnp.zeros_like(nu), jnp.zeros_like(problem.error))
    v = problem.free + linear_algebra.cho_solve_vector(factor, _generalised(problem, impulses))
    one = jnp.ones((), v.dtype)
    return _Iterate(v, impulses, w, one, jnp.zeros((), bool), jnp.zeros((), jnp.int32))


def _iterate(problem: PathProblem, at: _Iterate, tolerance: float) -> _Iterate:
    """A Newton step towards the products `target`, as far as the cones allow."""
    x, w, nu = at.impulses, at.w, problem.T @ at.v
    s = problem.largest_friction(x.normal)
    products = x.normal * w
    mean = jnp.mean(products) if products.shape[0] else problem.rho
    psi = _cone_slack(mean, s, nu)
    on_path = jnp.max(jnp.abs(products - problem.rho), initial=0.0) <= ON_PATH * problem.rho
    solved = on_path & (violation(problem, x, at.v) <= tolerance)
    shrink = jnp.where(at.share > NEARLY_FULL, SHRINK, SHRINK_LESS)
    target = jnp.maximum(problem.rho, shrink * mean)
    slopes = _row_slopes(problem, x, w, psi, nu)
    change = Impulses(
        (target - x.normal * (problem.U @ at.v + problem.b)) / w,
        _friction_change(x.friction, nu, s, psi, target),
        jnp.zeros_like(x.equality),
    )
    force = _generalised(problem, x) - problem.M @ (at.v - problem.free)
    dv, dx = _newton_step(problem, slopes, force, change, problem.E @ at.v + problem.error)
    dw = problem.U @ (at.v + dv) + problem.b - w
    fastest = jnp.max(jnp.concatenate([-dx.normal / x.normal, -dw / w]), initial=0.0)
    room = _room(s, x.friction, _friction_growth(problem, dx.normal), dx.friction)
    share = jnp.minimum(1.0, INSIDE * jnp.minimum(1.0 / jnp.maximum(fastest, 1e-12), jnp.min(room, initial=jnp.inf)))
    v, x, w = jax.tree.map(lambda value, step: value + share * step, (at.v, x, w), (dv, dx, dw))
    return _Iterate(v, x, w, share, solved, at.iterations + 1)


def _friction_change(tau, nu, s, psi, target) -> Float[Array, "f 2"]:
    """What the friction of a row gains at fixed nu and s in a Newton step towards the product `target`."""
    first = target - s * psi - jnp.sum(tau * nu, 1)
    second = -(s[:, None] * nu + psi[:, None] * tau)
    return _apply_inverse(tau, nu, s, psi, second - tau * (first / s)[:, None])


def _friction_growth(problem: PathProblem, dnormal: Float[Array, " k"]) -> Float[Array, " f"]:
    """ds of every friction row where the bounds of joints stay."""
    return jnp.concatenate([problem.mu * dnormal[: problem.mu.shape[0]], jnp.zeros_like(problem.bound)])


def _room(s, tau, ds, dtau) -> Float[Array, " f"]:
    """The share a > 0 of a step from which |tau + a dtau| < s + a ds holds no longer: the least root of a quadratic equation."""
    free, slope = (s - _norm(tau)) * (s + _norm(tau)), s * ds - jnp.sum(tau * dtau, 1)
    bend = ds * ds - jnp.sum(dtau * dtau, 1)
    inside = slope * slope - bend * free
    below = jnp.sqrt(jnp.maximum(inside, 0.0)) - slope
    meets = (inside >= 0) & (below > 0)
    return jnp.where(meets, free / jnp.where(meets, below, 1.0), jnp.inf)


# --- the linear system of a Newton step and of the derivative --------------------------------------------------------------


def path_tangents(
    problem: PathProblem,
    point: PathPoint,
    force: Float[Array, " nv"],
    velocity: Groups,
    dmu: Float[Array, " nc"],
    dbound: Float[Array, " nd"],
    drho: Float[Array, ""],
) -> tuple[Float[Array, " nv"], Impulses]:
    """(dv+, d impulses) from the tangents of the balance of momentum and of the rows' velocities at fixed v+ and impulses, of the
    coefficients and bounds of friction, and of rho."""
    x, v = point.impulses, point.velocity
    nu, s = problem.T @ v, problem.largest_friction(x.normal)
    w, psi = problem.rho / x.normal, _cone_slack(problem.rho, s, nu)
    slopes = _row_slopes(problem, x, w, psi, nu)
    dU, dT, dE = velocity
    normal = drho / w - slopes.normal * dU
    turned = jnp.concatenate([dmu * x.normal[: problem.mu.shape[0]], dbound])
    friction = slopes.shrunk * drho - (slopes.tangent @ dT[..., None])[..., 0] - slopes.turned * turned[:, None]
    return _newton_step(problem, slopes, force, Impulses(normal, friction, jnp.zeros_like(dE)), dE)


def _row_slopes(problem: PathProblem, x: Impulses, w, psi, nu) -> Slopes:
    """At any iterate: w and psi need not belong to the impulses."""
    tau, s = x.friction, problem.largest_friction(x.normal)
    eye = jnp.eye(2, dtype=nu.dtype)
    by_nu = s[:, None, None] * eye - tau[:, :, None] * tau[:, None, :] / s[:, None, None]
    by_s = nu - tau * (psi / s)[:, None]
    columns = [
        _apply_inverse(tau, nu, s, psi, column) for column in (by_nu[:, :, 0], by_nu[:, :, 1], by_s, -tau / s[:, None])
    ]
    return Slopes(x.normal / w, jnp.stack(columns[:2], 2), columns[2], columns[3])


def _apply_inverse(tau, nu, s, psi, y) -> Float[Array, "f 2"]:
    """(psi 1 - tau nu^T / s)^-1 y of every friction row."""
    along = jnp.sum(nu * y, 1) / (s * psi - jnp.sum(nu * tau, 1))
    return (y + tau * along[:, None]) / psi[:, None]


def _newton_step(
    problem: PathProblem, slopes: Slopes, force: Float[Array, " nv"], change: Impulses, error: Float[Array, " e"]
) -> tuple[Float[Array, " nv"], Impulses]:
    """(dv, dimpulses) with M dv = force + J^T dimpulses, where dimpulses = `change` - D J dv, and E dv = -error.

    change: at fixed velocity, of friction at fixed s too.
    """
    nc = problem.mu.shape[0]
    pressed = slopes.turned[:nc] * problem.mu[:, None]  # -dfriction / dnormal
    U, T, E = problem.U, problem.T, problem.E
    DU, DT = slopes.normal[:, None] * U, slopes.tangent @ T
    DT = DT.at[:nc].add(-pressed[:, :, None] * DU[:nc, None, :])
    friction = change.friction.at[:nc].add(-pressed * change.normal[:nc, None])
    flat = T.reshape(-1, T.shape[2])
    H = problem.M + U.T @ DU + flat.T @ DT.reshape(flat.shape)
    right = force + U.T @ change.normal + flat.T @ friction.reshape(-1)
    dv, equality = _with_equalities(H, E, problem.G_E, right, -error)
    return dv, Impulses(change.normal - DU @ dv, friction - DT @ dv, equality)


def _with_equalities(H, E, mobility, right, speed) -> tuple[Float[Array, " nv"], Float[Array, " e"]]:
    """(x, y) with H x - E^T y = right and E x = speed; of redundant rows the shortest y."""
    nv, e = H.shape[0], E.shape[0]
    if e == 0:
        return linear_algebra.solve_vector(H, right), speed
    soft = PROXIMAL.at(H.dtype) * mobility
    whole = jnp.block([[H, -E.T], [E, jnp.zeros((e, e), H.dtype)]])
    regular = whole.at[nv:, nv:].add(soft * jnp.eye(e, dtype=H.dtype))
    target = jnp.concatenate([right, speed])

    def refine(_, z):
        return z + linear_algebra.solve_vector(regular, target - whole @ z)

    z = jax.lax.fori_loop(0, 1 + REFINEMENTS, refine, jnp.zeros_like(target))
    return z[:nv], z[nv:]


def _generalised(problem: PathProblem, x: Impulses) -> Float[Array, " nv"]:
    """J^T lambda."""
    return problem.U.T @ x.normal + jnp.sum(problem.T * x.friction[:, :, None], (0, 1)) + problem.E.T @ x.equality


def _cone_slack(rho, s, nu) -> Float[Array, " f"]:
    """psi of the central path at s and nu: friction is -s nu / psi."""
    return (rho + jnp.sqrt(rho * rho + 4 * s * s * jnp.sum(nu * nu, 1))) / (2 * s)


def _norm(x: Float[Array, "f 2"]) -> Float[Array, " f"]:
    return jnp.sqrt(jnp.sum(x * x, 1))
