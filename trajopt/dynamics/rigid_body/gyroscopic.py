r"""The gyroscopic torque of free and ball joints over a step, by the implicit midpoint rule.

With omega the angular velocity of such a joint in its body frame and I the inertia of all that it carries, the joints further
out locked, bias forces hold the torque omega x I omega. Taken at the beginning of a step of length h it adds energy in every
step, the more the faster and the slenderer the body. Over a step it is therefore the mean of the implicit midpoint rule,

    H (omega* - omega) = -h x x I x,      x = (omega + omega*) / 2,      H = I + armature,

which keeps the energy omega . H omega / 2 and, without armature, |I omega|, whatever h is. The bias forces get the correction

    c = x x I x - omega x I omega = -(H (omega* - omega) / h + omega x I omega),      O(h),

a torque on the three rotational coordinates of the joint. I is about the joint's pivot, and for a free joint about the centre of
mass of what it carries. In body axes it depends on the joints further out alone, so that with y = x or omega, D_y = (dI/dq) y and

    A_y = [y]x I - [I y]x,      K = H + h A_x / 2,

    dc/domega = A_x K^-1 H - A_omega,      dc/dq = x x D_x - omega x D_omega + A_x K^-1 (D_omega - D_x - h x x D_x / 2).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.model import Model, NodeType, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics, node_inertias, subtree_mask, to_user_dofs
from trajopt.dynamics.rigid_body.spatial import (
    cross,
    cross_force,
    cross_motion,
    inertia_times,
    multiply,
    rotate,
    skew,
    unpack_symmetric,
)

# Newton's method from omega converges to rounding in five iterations where a body turns by a radian in a step.
ITERATIONS = 8


@in_full_precision
def gyroscopic_correction(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], dt: Float[Array, ""] | float
) -> Float[Array, " nv"]:
    """What a step of length dt (s) adds to the bias forces of free and ball joints, generalised forces (nv,); zero elsewhere.

    A step of integrator "semi-implicit" is $M (v^+ - v) = dt (tau - h - c) + J^T lambda$ with this c (docs/contact-semantics.md).
    It is of the order of dt, and zero for what turns about a principal axis.
    """
    q, v = check_vector("q", q, model.nq), check_vector("v", v, model.nv)
    return correction_at(model, kinematics(model, q), v, dt)


def correction_at(
    model: Model, kin: Kinematics, v: Float[Array, " nv"], dt: Float[Array, ""] | float
) -> Float[Array, " nv"]:
    """`gyroscopic_correction` at kinematics already computed. Differentiable in everything, forward and reverse."""
    balls = _balls(model.topology)
    if not balls.count:
        return jnp.zeros_like(v)
    turning = _turning(model, kin, v, dt)
    return jnp.zeros_like(v).at[balls.dofs].set(turning.torque)


def correction_slopes(
    model: Model,
    kin: Kinematics,
    composite: Float[Array, "nvt 10"],
    v: Float[Array, " nv"],
    dt: Float[Array, ""] | float,
) -> tuple[Float[Array, " nv"], Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """(c, dc/dq, dc/dv) in closed form; composite: packed inertias of the subtrees of the tree's DoFs."""
    balls, dtype = _balls(model.topology), v.dtype
    nothing = jnp.zeros((model.nv, model.nv), dtype)
    if not balls.count:
        return jnp.zeros_like(v), nothing, nothing
    turning = _turning(model, kin, v, dt)
    x, omega, inertia = turning.midpoint, turning.omega, turning.inertia
    solve = functools.partial(_solve, _newton_matrix(turning.mass, inertia, x, dt))
    by_x, along_x, along_omega = _slope(inertia, x), skew(x), skew(omega)
    D_x, D_omega = (_inertia_slopes(model, kin, composite, turning, y) for y in (x, omega))
    moved = D_omega - D_x - 0.5 * dt * multiply(along_x, D_x)
    by_q = multiply(along_x, D_x) - multiply(along_omega, D_omega) + multiply(by_x, solve(moved))
    by_omega = multiply(by_x, solve(turning.mass)) - _slope(inertia, omega)
    return (
        jnp.zeros_like(v).at[balls.dofs].set(turning.torque),
        nothing.at[balls.dofs].set(to_user_dofs(model, by_q)),
        nothing.at[balls.dofs[:, :, None], balls.dofs[:, None, :]].set(by_omega),
    )


# --- private: the midpoint rule of one joint, or of several along leading axes --------------------------------------


@jax.custom_jvp
def midpoint_velocity(
    mass: Float[Array, "*b 3 3"], inertia: Float[Array, "*b 3 3"], omega: Float[Array, "*b 3"], dt: Float[Array, ""]
) -> Float[Array, "*b 3"]:
    """x of the module's docstring, mass being H, by Newton's method.

    omega* = 2 x - omega has the energy of omega, also where a body turns so far in a step that the iteration does not converge.
    """

    def newton(_, x):
        left = rotate(mass, x - omega) + 0.5 * dt * cross(x, rotate(inertia, x))
        return x - _solve(_newton_matrix(mass, inertia, x, dt), left[..., None])[..., 0]

    after = 2.0 * jax.lax.fori_loop(0, ITERATIONS, newton, omega) - omega
    energy, new = ((y * rotate(mass, y)).sum(-1, keepdims=True) for y in (omega, after))
    return 0.5 * (omega + jnp.sqrt(energy / jnp.where(new > 0, new, 1.0)) * after)


@midpoint_velocity.defjvp
def _midpoint_velocity_jvp(primals, tangents):
    """K dx = dH (omega - x) + H domega - dt/2 x x dI x - d(dt)/2 x x I x."""
    mass, inertia, omega, dt = primals
    dmass, dinertia, domega, ddt = tangents
    x = midpoint_velocity(*primals)
    right = rotate(dmass, omega - x) + rotate(mass, domega)
    right = right - 0.5 * cross(x, dt * rotate(dinertia, x) + ddt * rotate(inertia, x))
    return x, _solve(_newton_matrix(mass, inertia, x, dt), right[..., None])[..., 0]


def _slope(inertia: Float[Array, "*b 3 3"], y: Float[Array, "*b 3"]) -> Float[Array, "*b 3 3"]:
    """A_y = d(y x I y)/dy."""
    return multiply(skew(y), inertia) - skew(rotate(inertia, y))


def _newton_matrix(mass, inertia, x, dt) -> Float[Array, "*b 3 3"]:
    """K."""
    return mass + 0.5 * dt * _slope(inertia, x)


def _solve(matrix: Float[Array, "*b 3 3"], right: Float[Array, "*b 3 k"]) -> Float[Array, "*b 3 k"]:
    """matrix^-1 right, by Cramer's rule."""
    a, b, c = matrix[..., 0], matrix[..., 1], matrix[..., 2]
    cofactors = jnp.stack([cross(b, c), cross(c, a), cross(a, b)], -2)
    return multiply(cofactors, right) / (a * cofactors[..., 0, :]).sum(-1)[..., None, None]


# --- private: the joints of a model ---------------------------------------------------------------------------------


class _Balls:
    """Index tables of the ball joints: nodes, user DoFs (k, 3), and which belong to a free joint."""

    def __init__(self, top: Topology):
        self.nodes = np.flatnonzero(np.asarray(top.node_types) == NodeType.BALL)
        self.count = len(self.nodes)
        starts = np.array([start for _, start in top.ball_starts], int)
        self.dofs: Int[np.ndarray, "k 3"] = starts[:, None] + np.arange(3)
        above = np.asarray(top.parents, int)[self.nodes]
        kinds = np.append(np.asarray(top.node_types, int), -1)  # the last one: the world's
        self.free = kinds[above] == NodeType.TRANSLATION
        self.first_dof = top.v_starts[self.nodes]
        # Tree DoFs further out than the joint.
        self.beyond = (top.ancestor_mask & ~top.ancestor_mask.T)[:, self.first_dof].T


@functools.lru_cache(maxsize=256)
def _balls(top: Topology) -> _Balls:
    return _Balls(top)


@dataclasses.dataclass(frozen=True)
class _Turning:
    """The joints' rotations, the points that I is about (world axes, from the origin), I, H, omega, x and the torques c."""

    rotation: Float[Array, "k 3 3"]
    point: Float[Array, "k 3"]
    inertia: Float[Array, "k 3 3"]
    mass: Float[Array, "k 3 3"]
    omega: Float[Array, "k 3"]
    midpoint: Float[Array, "k 3"]
    torque: Float[Array, "k 3"]


def _turning(model: Model, kin: Kinematics, v: Float[Array, " nv"], dt) -> _Turning:
    balls, dtype = _balls(model.topology), v.dtype
    composite = (node_inertias(model, kin).T @ subtree_mask(model.topology, dtype)[:, balls.first_dof]).T
    total, first = composite[:, :1], composite[:, 1:4]
    centre, pivot = first / total, (kin.position - kin.origin)[balls.nodes]
    point = jnp.where(balls.free[:, None], centre, pivot)
    # From the origin to the centre of mass, and from there to the point.
    about = unpack_symmetric(composite[:, 4:]) + total[..., None] * (_square(centre) - _square(point - centre))
    rotation = kin.rotation[balls.nodes]
    inertia = multiply(jnp.swapaxes(rotation, -1, -2), multiply(about, rotation))
    mass = inertia + jnp.asarray(model.armature, dtype)[balls.dofs][:, :, None] * jnp.eye(3, dtype=dtype)
    omega = v[balls.dofs]
    x = midpoint_velocity(mass, inertia, omega, jnp.asarray(dt, dtype))
    torque = -2.0 / dt * rotate(mass, x - omega) - cross(omega, rotate(inertia, omega))
    return _Turning(rotation, point, inertia, mass, omega, x, torque)


def _square(r: Float[Array, "k 3"]) -> Float[Array, "k 3 3"]:
    """[r]x [r]x."""
    return multiply(skew(r), skew(r))


def _inertia_slopes(model: Model, kin: Kinematics, composite, turning: _Turning, y: Float[Array, "k 3"]):
    """(dI/dq_j) y in body axes, (k, 3, nvt): S_j x* I_j^C Y - I_j^C (S_j x Y) with Y the turning y about the point of I."""
    angular = rotate(turning.rotation, y)
    motion = jnp.concatenate([cross(turning.point, angular), angular], -1)[:, None]
    S = jnp.broadcast_to(kin.S, (motion.shape[0], *kin.S.shape))
    force = cross_force(S, inertia_times(composite, jnp.broadcast_to(motion, S.shape)))
    force = force - inertia_times(composite, cross_motion(S, jnp.broadcast_to(motion, S.shape)))
    moment = force[..., 3:] - cross(jnp.broadcast_to(turning.point[:, None], force[..., :3].shape), force[..., :3])
    beyond = jnp.asarray(_balls(model.topology).beyond, moment.dtype)[..., None]
    return jnp.swapaxes(multiply(moment * beyond, turning.rotation), -1, -2)
