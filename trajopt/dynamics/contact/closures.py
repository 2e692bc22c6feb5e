r"""Equality constraints of a model, e(q) = 0, with their exact Jacobian J = de/dv: closed loops and coupled coordinates.

A closure ties frame 1 of one body to frame 2 of another (or of the world). With x the origins and R the axes of the frames in the
world, R_12 = R_2^T R_1, c its third column, and the relative twist (v, w) of body 1 at x_1 in the axes of frame 2,

    translation   e = R_2^T (x_1 - x_2)                  de = v
    rotation      e = vee(R_12 - R_12^T) / 2             de = (tr(R_12) 1 - R_12) w / 2
    axis          e = (c_x, c_y)                         de = (w x c)_x,y

`KINDS` says which of these rows a kind of closure has. A coupling is y - y_0 = p(x - x_0), x and y being sums of coordinates of
hinges and slides, p a polynomial of degree four.

Rows that others imply (a plane linkage whose hinges all say so, a coupler held by three rockers) are redundant only where the
loop is closed exactly; an error of 1e-7 m would make them contradict each other and lock the linkage. `independent` removes
from rows and errors what belongs to singular values of J below `RANK`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.model import Model, Topology
from trajopt.dynamics.precision import Threshold, in_full_precision
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics, to_user_dofs
from trajopt.dynamics.rigid_body.spatial import cross

# Rows among [translation (3), rotation (3), axis (2)]; the third axis of the frames is that of the hinge or slide.
KINDS = {
    "connect": (0, 1, 2),
    "weld": (0, 1, 2, 3, 4, 5),
    "hinge": (0, 1, 2, 6, 7),
    "slide": (0, 1, 3, 4, 5),
}
# Singular values of J, its rows at length one, below which a row says what others say; errors of a moving loop are smaller.
RANK = Threshold(1e-4, 1e-3)


def closure_count(top: Topology) -> int:
    """Number of rows of the equality constraints."""
    return sum(len(KINDS[closure.kind]) for closure in top.closures) + len(top.couplings)


def closure_rows(
    model: Model, kin: Kinematics, q: Float[Array, " nq"]
) -> tuple[Float[Array, " k"], Float[Array, "k nv"]]:
    """(e, J) at q, `kin` being the kinematics there: closures in the model's order, then couplings. Metres and radians."""
    parts = [_closures(model, kin)] if model.topology.closures else []
    parts += [_couplings(model, q)] if model.topology.couplings else []
    error, J = zip(*parts, strict=True)
    return jnp.concatenate(error), jnp.concatenate(J)


def _closures(model: Model, kin: Kinematics) -> tuple[Float[Array, " k"], Float[Array, "k nv"]]:
    top, S = model.topology, kin.S
    dtype = S.dtype
    node = np.array([(closure.node1, closure.node2) for closure in top.closures]) % (top.n_nodes + 1)
    axes = jnp.concatenate([kin.rotation, jnp.eye(3, dtype=dtype)[None]])[node]
    origin = jnp.concatenate([kin.position, jnp.zeros((1, 3), dtype)])[node]
    own, place = jnp.asarray(model.closure_rotation, dtype), jnp.asarray(model.closure_position, dtype)
    frames = axes @ own
    points = origin + (axes @ place[..., None])[..., 0]
    R2, apart = frames[:, 1], points[:, 0] - points[:, 1]
    mask = jnp.asarray(top.dof_mask, dtype)
    signed = (mask[node[:, 0]] - mask[node[:, 1]])[:, :, None]
    arm = points[:, :1] - kin.origin[top.dof_node][None]
    linear = (S[None, :, :3] + cross(jnp.broadcast_to(S[None, :, 3:], arm.shape), arm)) * signed @ R2
    angular = S[None, :, 3:] * signed @ R2
    R12 = jnp.swapaxes(R2, 1, 2) @ frames[:, 0]
    trace = jnp.trace(R12, axis1=1, axis2=2)[:, None, None]
    vee = 0.5 * jnp.stack([R12[:, 2, 1] - R12[:, 1, 2], R12[:, 0, 2] - R12[:, 2, 0], R12[:, 1, 0] - R12[:, 0, 1]], 1)
    turning = 0.5 * (trace * angular - angular @ jnp.swapaxes(R12, 1, 2))
    third = R12[:, :, 2]
    tilting = cross(angular, jnp.broadcast_to(third[:, None], angular.shape))
    error = jnp.concatenate([(apart[:, None] @ R2)[:, 0], vee, third[:, :2]], 1)
    J = jnp.swapaxes(jnp.concatenate([linear, turning, tilting[..., :2]], 2), 1, 2)
    kept = np.array([8 * i + row for i, closure in enumerate(top.closures) for row in KINDS[closure.kind]], int)
    return error.reshape(-1)[kept], to_user_dofs(model, J.reshape(-1, top.nv_tree)[kept])


def _couplings(model: Model, q: Float[Array, " nq"]) -> tuple[Float[Array, " k"], Float[Array, "k nv"]]:
    dtype, scalar = q.dtype, model.topology.scalar_q_of_dof
    arms = jnp.asarray(model.coupling_arms, dtype)
    powers, reference = jnp.asarray(model.coupling_polynomial, dtype), jnp.asarray(model.coupling_reference, dtype)
    values = arms @ jnp.where(scalar >= 0, q[np.maximum(scalar, 0)], 0.0) - reference
    y, x = values[:, 0], values[:, 1]
    polynomial, slope = powers[:, 4], jnp.zeros_like(x)
    for k in (3, 2, 1, 0):  # Horner
        polynomial, slope = powers[:, k] + x * polynomial, polynomial + x * slope
    return y - polynomial, arms[:, 0] - slope[:, None] * arms[:, 1]


def independent(J: Float[Array, "k nv"]) -> Float[Array, "k k"]:
    """The orthogonal projection of k rows on what they say independently, the identity where none is redundant; no derivative.

    (It has one, of the order of the error of the loop, which vanishes with it.)
    """
    J = jax.lax.stop_gradient(J)
    k, dtype = J.shape[0], J.dtype
    length = jnp.sqrt(jnp.sum(J * J, 1))
    longest = jnp.max(length, initial=0.0)
    # A row that moves next to nothing is not blown up to one that does.
    unit = jnp.where(length > RANK.at(dtype) * longest, length, jnp.where(longest > 0, longest, 1.0))
    rows = J / unit[:, None]
    U, s, _ = linear_algebra.svd(rows @ rows.T)
    redundant = s < RANK.at(dtype) ** 2 * jnp.maximum(s[0], 1.0)
    null = jnp.where(redundant, U / unit[:, None], 0.0)  # z with z^T J = 0, in its non-zero columns
    gram = null.T @ null + jnp.diag(jnp.where(redundant, 0.0, 1.0).astype(dtype))
    return jnp.eye(k, dtype=dtype) - null @ linear_algebra.inverse(gram) @ null.T


def rows_at(model: Model, q: Float[Array, " nq"]) -> Float[Array, "k nv"]:
    """J at q, of which `gradients.closed_form` takes derivatives along the motion."""
    return closure_rows(model, kinematics(model, q), q)[1]


@in_full_precision
def closure_error(model: Model, q: Float[Array, " nq"]) -> Float[Array, " k"]:
    """How far the equality constraints of the model are from holding at q (m, rad, or the unit of a coupling)."""
    if not model.topology.constrained:
        return jnp.zeros(0, q.dtype)
    return closure_rows(model, kinematics(model, q), q)[0]
