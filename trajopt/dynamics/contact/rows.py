r"""Constraint rows of one step: contacts, joint limits and dry joint friction, as nu = J v+ + b (docs/contact-semantics.md).

Row order as in `ncp`: three rows per contact (tangent 1, tangent 2, normal), one per limit, one per dry-friction DoF.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.broadphase import Culled
from trajopt.dynamics.collision.pairs import Contacts
from trajopt.dynamics.contact.law import ContactLaw, SmoothedContact
from trajopt.dynamics.kinematics import Kinematics, expand_v, mimic_matrix, node_velocities
from trajopt.dynamics.model import Model
from trajopt.dynamics.spatial import cross


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Constraint rows at (q, v).

    J (m, nv); offset (m,) is b, m/s; mu (nc,); exists (nc + nl,); bound (nf,) N s; distance (nc + nl,) m; contacts: the nc
    selected candidates; frames (nc, 3, 3), columns tangent 1, tangent 2, normal; impact (nc + nl,): the row bounces;
    limit_dof (nl,), limit_sign (nl,); dropped: rows left out that would be active, and pairs left out that could be;
    dropped_pairs: the latter.
    """

    J: Float[Array, "m nv"]
    offset: Float[Array, " m"]
    mu: Float[Array, " nc"]
    exists: Bool[Array, " ncl"]
    bound: Float[Array, " nf"]
    distance: Float[Array, " ncl"]
    contacts: Contacts
    selected: Int[Array, " nc"]
    frames: Float[Array, "nc 3 3"]
    restitution: Float[Array, " nc"]
    impact: Bool[Array, " ncl"]
    limit_dof: Int[Array, " nl"]
    limit_sign: Float[Array, " nl"]
    dropped: Int[Array, ""]
    dropped_pairs: Int[Array, ""]


def contact_frames(normal: Float[Array, "k 3"]) -> Float[Array, "k 3 3"]:
    """Right-handed frames whose third column is `normal`.

    Tangent 1 is the world's x axis made orthogonal to the normal, or the y axis where the normal is within 60 degrees of x.
    """
    x, y = jnp.eye(3, dtype=normal.dtype)[0], jnp.eye(3, dtype=normal.dtype)[1]
    seed = jnp.where((jnp.abs(jax.lax.stop_gradient(normal[:, :1])) < 0.5), x, y)
    along = jnp.sum(seed * normal, -1, keepdims=True)
    tangent = seed - along * normal
    tangent = tangent / jnp.sqrt(jnp.sum(tangent * tangent, -1, keepdims=True))
    return jnp.stack([tangent, cross(normal, tangent), normal], -1)


def signed_mask(top, contacts: Contacts, dtype):
    """(k, nv_tree): +1 where a DoF moves body 1 only, -1 where it moves body 2 only."""
    mask = jnp.asarray(top.dof_mask, dtype)
    return mask[contacts.node1] - mask[contacts.node2]


def point_columns(kin: Kinematics, top, point) -> Float[Array, "k nvt 3"]:
    """World velocity of the point `point` (k, 3) of a body moved by unit velocity of each tree DoF (not masked)."""
    origin = kin.origin[top.dof_node]
    return kin.S[None, :, :3] + cross(kin.S[None, :, 3:], point[:, None, :] - origin[None])


def project_columns(model: Model, J: Float[Array, "m nvt"]) -> Float[Array, "m nv"]:
    """Rows in the user's DoFs."""
    matrix = mimic_matrix(model, J.dtype)
    return J if matrix is None else J @ matrix


def assemble(model: Model, kin: Kinematics, candidates: Contacts, q, v, dt, law: ContactLaw) -> Rows:
    """Rows at the configuration q (kinematics `kin`) and velocity v for a step dt under `law`."""
    contacts, selected, dropped = _closest(model, kin, candidates, v, dt, law.contact_rows(model))
    dropped_pairs = _out_of_sight(model, kin, candidates.culled, v, dt)
    top, dtype = model.topology, q.dtype
    frames = contact_frames(contacts.normal)
    columns = point_columns(kin, top, contacts.point) * signed_mask(top, contacts, dtype)[:, :, None]
    J_contacts = jnp.sum(frames[:, :, :, None] * jnp.swapaxes(columns, 1, 2)[:, :, None, :], 1)
    J_contacts = project_columns(model, J_contacts.reshape(-1, top.nv_tree))

    limit_dof, limit_sign, limit_distance, dropped_limits = _closest_limits(model, q, v, dt, law.limit_rows(model))
    eye = jnp.eye(model.nv, dtype=dtype)
    friction_dofs = np.array(top.friction_dofs if law.joint_friction else (), int)
    J = jnp.concatenate([J_contacts, limit_sign[:, None] * eye[limit_dof], eye[friction_dofs]])
    bound = dt * jnp.asarray(model.frictionloss, dtype)[friction_dofs]

    k = contacts.distance.shape[0]
    friction = jnp.asarray(model.pair_friction, dtype)
    bounce = jnp.asarray(model.pair_restitution, dtype)
    mu = friction[contacts.pair] if k else jnp.zeros(0, dtype)
    restitution = bounce[contacts.pair] if k else jnp.zeros(0, dtype)
    distance = jnp.concatenate([contacts.distance, limit_distance])
    velocity = J @ v
    normal_velocity = jnp.concatenate([velocity[2 : 3 * k : 3], velocity[3 * k : 3 * k + limit_sign.shape[0]]])
    e = jnp.concatenate([restitution, jnp.zeros_like(limit_distance)])
    offset, exists, impact = normal_offset(law, distance, normal_velocity, e, dt, k)
    zero = jnp.zeros(k, dtype)
    b = jnp.concatenate([jnp.stack([zero, zero, offset[:k]], -1).reshape(-1), offset[k:], jnp.zeros_like(bound)])
    return Rows(
        J, b, mu, exists, bound, distance, contacts, selected, frames, restitution, impact, limit_dof, limit_sign,
        dropped + dropped_limits + dropped_pairs, dropped_pairs,
    )  # fmt: skip


def normal_offset(law: ContactLaw, distance, velocity, restitution, dt, contacts: int = 0):
    """b of the normal rows, which rows exist, and which bounce; the table of docs/contact-semantics.md.

    The first `contacts` rows are those of contacts, the others joint limits. Smoothed contacts exist at every distance, have
    no gap to close and bounce at a distance too.
    """
    open_ = distance > 0
    exists = ~open_ if law.gap == "detect" else jnp.ones_like(open_)
    closes = velocity + distance / dt < 0
    room = distance / dt
    if isinstance(law, SmoothedContact):
        reaching = jnp.arange(distance.shape[0]) < contacts
        exists, closes, room = exists | reaching, closes | reaching, jnp.where(reaching, jnp.zeros_like(room), room)
    impact = (restitution > 0) & (velocity < -law.rest_velocity) & closes & exists
    gap = jnp.where(open_, room, law.erp * distance / dt + law.damping * velocity)
    return jnp.where(impact, restitution * velocity, gap), exists, impact


def _closest(model: Model, kin: Kinematics, candidates: Contacts, v, dt, count: int):
    """The `count` closest candidates, and how many of the others would touch within the step."""
    total = candidates.distance.shape[0]
    if total <= count:
        return dataclasses.replace(candidates, culled=None), jnp.arange(total), jnp.zeros((), int)
    distance = jax.lax.stop_gradient(candidates.distance)
    _, index = jax.lax.top_k(-distance, count)
    index = jnp.sort(index)
    kept = candidates[index]
    active = distance + dt * _approach(model, kin, candidates, v) < 0
    left_out = jnp.ones(total, bool).at[index].set(False)
    return kept, index, jnp.sum(active & left_out)


def _approach(model: Model, kin: Kinematics, contacts: Contacts, v):
    """Normal velocity of every candidate, from the bodies' velocities; carries no derivative."""
    relative, _ = _relative_motion(model, kin, v, contacts.node1, contacts.node2, contacts.point)
    return jax.lax.stop_gradient(jnp.sum(contacts.normal * relative, -1))


def _relative_motion(model: Model, kin: Kinematics, v, node1, node2, point):
    """(velocity at the points (k, 3), angular velocity) of bodies 1 relative to bodies 2."""
    twist = jnp.concatenate([node_velocities(kin, model.topology, expand_v(model, v)), jnp.zeros((1, 6), v.dtype)])
    origin = jnp.concatenate([kin.origin, jnp.zeros((1, 3), v.dtype)])

    def velocity(node):
        return twist[node, :3] + cross(twist[node, 3:], point - origin[node])

    return velocity(node1) - velocity(node2), twist[node1, 3:] - twist[node2, 3:]


def _out_of_sight(model: Model, kin: Kinematics, culled: Culled | None, v, dt) -> Int[Array, ""]:
    """Pairs that the narrow phase has not seen and that could touch within the step.

    The distance of two shapes changes no faster than |v12(c)| + |w12| r, the relative velocity of the bodies at the centre c of
    a ball of radius r around either shape and their relative angular velocity.
    """
    if culled is None:
        return jnp.zeros((), int)
    kin, v, dt = jax.lax.stop_gradient((kin, v, dt))

    def fastest(centre, reach):
        parts = _relative_motion(model, kin, v, culled.node1, culled.node2, centre)
        linear, angular = (jnp.sqrt(jnp.sum(part * part, -1)) for part in parts)
        return linear + angular * reach

    closing = jnp.minimum(fastest(culled.centre1, culled.reach1), fastest(culled.centre2, culled.reach2))
    return jnp.sum(~culled.taken & (culled.bound < dt * closing))


def _closest_limits(model: Model, q, v, dt, count: int):
    """The `count` limited DoFs nearest to a limit at the end of the step: DoF, sign (+1 lower, -1 upper), distance."""
    top = model.topology
    dofs = np.array(top.limited, int)
    if count == 0:
        return jnp.zeros(0, int), jnp.zeros(0, q.dtype), jnp.zeros(0, q.dtype), jnp.zeros((), int)
    value = q[top.scalar_q_of_dof[dofs]]
    low = value - jnp.asarray(model.lower, q.dtype)[dofs]
    high = jnp.asarray(model.upper, q.dtype)[dofs] - value
    at_low = jax.lax.stop_gradient(low + dt * v[dofs]) <= jax.lax.stop_gradient(high - dt * v[dofs])
    sign = jnp.where(at_low, 1.0, -1.0).astype(q.dtype)
    distance = jnp.where(at_low, low, high)
    if len(dofs) <= count:
        return jnp.asarray(dofs), sign, distance, jnp.zeros((), int)
    predicted = jax.lax.stop_gradient(distance + dt * sign * v[dofs])
    _, index = jax.lax.top_k(-predicted, count)
    index = jnp.sort(index)
    left_out = jnp.ones(len(dofs), bool).at[index].set(False)
    return jnp.asarray(dofs)[index], sign[index], distance[index], jnp.sum((predicted < 0) & left_out)
