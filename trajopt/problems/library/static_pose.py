r"""Static poses: configurations in which a robot can stand still on chosen shapes, and the proof that it can.

The pose nearest to a reference posture q_ref is sought whose support points touch the floor:

    minimise  1/2 |W (q (-) q_ref)|^2   subject to   phi_s(q) = 0 for every support s,
                                                     n . (c(q) - p_1(q)) = 0 for two supports,

phi_s being the distances of the supports' contact points, c the centre of mass, and n the horizontal normal of the line
through the two support points p_1, p_2: on two points a robot can be in equilibrium only when its centre of mass is exactly
above their line. Newton's method on the constraints, in the metric of W (sequential least squares).

The certificate looks for contact forces f and joint torques tau with

    h(q) = S tau + J(q)^T f,    |f_t| <= s mu f_n,    |tau_i| <= s tau_max,i

and the smallest s, the *use* of friction cones and torque limits; s < 1 proves that static equilibrium exists.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Float

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, kinematics
from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import closest
from trajopt.problems import programs
from trajopt.problems.guesses import equilibrium_terms
from trajopt.problems.library.replay import candidate_shapes

_MAX_ITERATIONS = 60
_CONVERGED = 2e-15
ON_A_LINE = 1e-9  # width over length of a support below which its corners lie on a line


@dataclasses.dataclass(frozen=True)
class PoseCertificate:
    """What was recomputed at a static pose. Lengths in m, forces in N, torques in N m.

    support_distance: largest |distance| of a support; clearance: least distance of any other contact candidate;
    com_offset: distance of the centre of mass, seen from above, to the line through two supports, or by how much it is
    *inside* the convex hull of three or more (negative: outside); limit_margin: least distance of a joint to its limits;
    equilibrium: largest residual of h = S tau + J^T f for the witness below; use: smallest s of the module's docstring, with
    the witness: force (ns, 3) in world axes on the robot, torque (nu,).
    """

    support_distance: float
    com_offset: float
    clearance: float
    limit_margin: float
    equilibrium: float
    use: float
    force: Float[np.ndarray, "ns 3"]
    torque: Float[np.ndarray, " nu"]

    def values(self) -> dict[str, float]:
        """The scalar entries by name."""
        return {
            "pose_support_distance": self.support_distance,
            "pose_com_offset": self.com_offset,
            "pose_clearance": self.clearance,
            "pose_limit_margin": self.limit_margin,
            "pose_equilibrium": self.equilibrium,
            "pose_use": self.use,
        }


@functools.partial(jax.jit, static_argnums=(2,))
def _constraints(model: Model, q, supports: tuple[int, ...]):
    """Constraint values and their tangent Jacobian."""

    def values(dq):
        moved = integrate(model, q, dq)
        contacts = collide(model, kinematics(model, moved))
        distance, point = contacts.distance[np.array(supports)], contacts.point[np.array(supports)]
        if len(supports) == 2:
            distance = jnp.concatenate([distance, _line_offset(centre_of_mass(model, moved), point)[None]])
        return distance, distance

    J, c = jax.jacfwd(values, has_aux=True)(jnp.zeros(model.nv, q.dtype))
    return c, J


def _line_offset(com, points):
    """Distance, seen from above, of `com` from the line through two points."""
    along = points[1] - points[0]
    normal = jnp.stack([-along[1], along[0]]) / jnp.sqrt(along[0] ** 2 + along[1] ** 2)
    return normal @ (com - points[0])[:2]


def candidates(model: Model, supports: Sequence[str]) -> tuple[int, ...]:
    """Indices of the contact candidates (order of `collide`) of the named shapes.

    Raises `UnknownNameError` for a name that is no shape with a contact pair.
    """
    top = model.topology
    owner = [top.shapes[shape].name for shape in candidate_shapes(model)]
    for name in supports:
        if name not in owner:
            raise UnknownNameError(f"model '{top.name}' has no contact shape '{name}'{closest(name, set(owner))}")
    return tuple(i for i, name in enumerate(owner) if name in supports)


def solve_static_pose(
    model: Model, reference: Float[np.ndarray, " nq"], supports: Sequence[str], *, base_weight: float = 0.1
) -> Float[np.ndarray, " nq"]:
    """The pose nearest to `reference` that touches the floor with the shapes `supports` (see the module's docstring).

    model: float64 leaves, free base first. base_weight: weight of the base's six coordinates relative to the joints'.
    Raises `OptionError` when the supports cannot be brought to the floor from this reference, or when a joint limit
    is violated by the result.
    """
    model = model.to_device()
    chosen = candidates(model, supports)
    weight = np.ones(model.nv)
    weight[:6] = base_weight
    start = jnp.asarray(reference, np.float64)
    q = start
    for _ in range(_MAX_ITERATIONS):
        c, C = (np.asarray(value) for value in _constraints(model, q, chosen))
        away = np.asarray(difference(model, start, q))
        # dq = -away + W^-2 C^T y moves to the point of the linearised constraints that is nearest to the reference.
        scaled = C / weight
        y = np.linalg.lstsq(scaled @ scaled.T, -c + C @ away, rcond=1e-13)[0]
        dq = -away + scaled.T @ y / weight
        if np.abs(c).max() <= _CONVERGED and np.abs(dq).max() <= 1e-12:
            break
        q = integrate(model, q, jnp.asarray(dq))
    if np.abs(c).max() > 1e-12:
        raise OptionError(
            f"model '{model.name}': supports {', '.join(supports)} stay {np.abs(c).max():.1e} m from the floor (or the centre "
            "of mass from their line); choose a reference posture nearer to a static one"
        )
    margin = _limit_margin(model, np.asarray(q))
    if margin < 0:
        raise OptionError(
            f"model '{model.name}': the static pose violates a joint limit by {-margin:.3g}; change the reference"
        )
    return np.asarray(q)


def certify(model: Model, q: Float[np.ndarray, " nq"], supports: Sequence[str]) -> PoseCertificate:
    """Recompute everything that makes q a static pose on `supports`, shapes on a horizontal floor.

    Nothing is raised for a pose that is not static: the caller judges the numbers.
    """
    model = model.to_device()
    chosen = list(candidates(model, supports))
    terms, _ = programs.run(equilibrium_terms, None, model, np.asarray(q, np.float64), effort=Effort.QUICK)
    contacts, columns, com, h, _ = jax.tree.map(np.asarray, terms)
    distance, point = contacts.distance, contacts.point[chosen]
    others = np.setdiff1d(np.arange(distance.size), chosen)
    friction = np.asarray(model.pair_friction)[contacts.pair[chosen]]
    J = columns[chosen].reshape(-1, model.nv)
    limits = np.minimum(np.abs(np.asarray(model.control_lower)), np.abs(np.asarray(model.control_upper)))
    force, torque, use = _witness(h, np.asarray(model.actuation), J, friction, limits)
    residual = h - np.asarray(model.actuation) @ torque - J.T @ force.ravel()
    return PoseCertificate(
        support_distance=float(np.abs(distance[chosen]).max()),
        com_offset=abs(float(_line_offset(com, point))) if len(chosen) == 2 else _inside(com[:2], point[:, :2]),
        clearance=float(distance[others].min(initial=np.inf)),
        limit_margin=_limit_margin(model, np.asarray(q)),
        equilibrium=float(np.abs(residual).max()),
        use=use,
        force=force,
        torque=torque,
    )


def _limit_margin(model: Model, q: np.ndarray) -> float:
    top = model.topology
    dofs = np.array(top.limited, int)
    value = q[top.scalar_q_of_dof[dofs]]
    return float(
        np.minimum(value - np.asarray(model.lower)[dofs], np.asarray(model.upper)[dofs] - value).min(initial=np.inf)
    )


def _inside(point: np.ndarray, corners: np.ndarray) -> float:
    """Distance of a point in the plane to the boundary of the convex hull of `corners`, positive inside; corners on a line have
    no inside."""
    middle = corners.mean(0)
    _, size, axes = np.linalg.svd(corners - middle)
    if size[1] <= ON_A_LINE * size[0]:
        along = (corners - middle) @ axes[0]
        nearest = middle + np.clip((point - middle) @ axes[0], along.min(), along.max()) * axes[0]
        return -float(np.linalg.norm(point - nearest))
    hull = scipy.spatial.ConvexHull(corners)
    return float(-(hull.equations[:, :2] @ point + hull.equations[:, 2]).max())


def _witness(h, S, J, friction, limits) -> tuple[np.ndarray, np.ndarray, float]:
    """Forces (ns, 3), torques and the smallest use s of cones and limits; the balance holds to rounding."""
    nu, ns = S.shape[1], friction.size
    A = np.concatenate([S, J.T], 1)
    scale = np.concatenate([np.where(np.isfinite(limits), limits, 1.0), np.full(3 * ns, max(np.abs(h).max(), 1.0))])
    A_scaled = A * scale
    particular = np.linalg.lstsq(A_scaled, h, rcond=1e-11)[0]
    _, s, Vt = np.linalg.svd(A_scaled)
    null = Vt[(s > 1e-11 * s[0]).sum() :].T

    def unpack(z):
        x = scale * (particular + null @ z[:-1])
        return x[:nu], x[nu:].reshape(ns, 3)

    def margins(z):
        torque, force = unpack(z)
        use, size = z[-1], scale[-1]
        cone = (use * friction * force[:, 2]) ** 2 - (force[:, :2] ** 2).sum(1)
        bounds = use - np.concatenate([torque, -torque]) / np.tile(scale[:nu], 2)
        return np.concatenate([cone / size**2, force[:, 2] / size, bounds])

    z0 = np.zeros(null.shape[1] + 1)
    torque, force = unpack(z0)
    z0[-1] = _use(torque, force, friction, limits) if (force[:, 2] > 0).all() else 2.0
    optimum = scipy.optimize.minimize(
        lambda z: z[-1], z0, jac=lambda z: np.eye(z.size)[-1], method="SLSQP",
        constraints={"type": "ineq", "fun": margins}, options={"ftol": 1e-9, "maxiter": 200},
    )  # fmt: skip
    witnesses = [(_use(t, f, friction, limits), t, f) for t, f in (unpack(z0), unpack(optimum.x))]
    use, torque, force = min(witnesses, key=lambda witness: witness[0])
    return force, torque, use


def _use(torque, force, friction, limits) -> float:
    """Largest share of a friction cone or of a torque limit; infinite when a support would have to pull."""
    if (force[:, 2] < 0).any():
        return float("inf")
    tangential = np.hypot(force[:, 0], force[:, 1])
    cone = np.divide(tangential, friction * force[:, 2], out=np.full(tangential.shape, np.inf), where=force[:, 2] > 0)
    return float(max(cone.max(initial=0.0), (np.abs(torque) / limits).max(initial=0.0)))
