r"""Generalised forces of a `ForceLaw`: contacts, joint limits and dry joint friction at one state.

    tau = sum over contacts of (J_1 - J_2)^T f + limits + dry friction

computed from the bodies' velocities and wrenches, without Jacobians. Differentiable in model, q, v and deformation, forward
and reverse.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.pairs import Contacts, collide, contact_count
from trajopt.dynamics.contact.law import ForceLaw, PointForces
from trajopt.dynamics.kinematics import Kinematics, expand_v, kinematics, node_velocities
from trajopt.dynamics.model import Model
from trajopt.dynamics.rnea import project_forces
from trajopt.dynamics.spatial import cross


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forces:
    """Forces at one state.

    tau (nv,) generalised force of all of them; contact (n, 3) on body 1, N, world axes, of all candidates of the model, and
    rate (n, 3) of their deformation, None without state; candidates: those k of the pairs that were looked at, `point` and
    `friction` theirs; limit (nl,) and dry (nf,) generalised forces of limits (positive: away from the limit) and of dry
    friction (along the coordinate); kept (nc,) indices of the candidates that act, among the k, and places (nc,), among the n;
    dropped: others that penetrate, and dropped_pairs, pairs not looked at that could.
    """

    tau: Float[Array, " nv"]
    candidates: Contacts
    contact: Float[Array, "n 3"]
    rate: Float[Array, "n 3"] | None
    point: PointForces
    friction: Float[Array, " k"]
    limit: Float[Array, " nl"]
    dry: Float[Array, " nf"]
    kept: Int[Array, " nc"]
    places: Int[Array, " nc"]
    dropped: Int[Array, ""]
    dropped_pairs: Int[Array, ""]


def _closest(
    law: ForceLaw, model: Model, candidates: Contacts
) -> tuple[Bool[Array, " k"] | None, Int[Array, " nc"], Int[Array, ""]]:
    """Which candidates act (None: all), their indices in ascending order, and how many of the others penetrate."""
    count, distance = law.contact_rows(model), jax.lax.stop_gradient(candidates.distance)
    total = distance.shape[0]
    if total <= count:
        return None, jnp.arange(total), jnp.zeros((), int)
    _, index = jax.lax.top_k(-distance, count)
    index = jnp.sort(index)
    acts = jnp.zeros(total, bool).at[index].set(True)
    return acts, index, jnp.sum((distance < 0) & ~acts)


def forces(
    law: ForceLaw,
    model: Model,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    deformation: Float[Array, "n 3"] | None,
) -> Forces:
    """Forces of the law at (q, v, deformation); the candidates beyond the closest `max_contacts` have none."""
    kin = kinematics(model, q)
    contacts = collide(model, kin, law.pair_limit)
    culled, all_deformation = contacts.culled, deformation
    dropped_pairs = jnp.zeros((), int)
    if culled is not None:
        dropped_pairs = jnp.sum(~culled.taken & (culled.bound < 0))
        deformation = None if deformation is None else deformation[culled.candidate]
    acts, kept, dropped = _closest(law, model, contacts)
    depth = -contacts.distance if acts is None else jnp.where(acts, -contacts.distance, -1.0)
    velocity = _relative_velocity(model, kin, contacts, v)
    approach = jnp.sum(contacts.normal * velocity, -1)
    slip = velocity - approach[:, None] * contacts.normal
    pair_friction = jnp.asarray(model.pair_friction, q.dtype)
    friction = pair_friction[contacts.pair] if contacts.pair.shape[0] else jnp.zeros(0, q.dtype)
    along = None
    if deformation is not None:
        along = jnp.sum(contacts.normal * deformation, -1)[:, None] * contacts.normal
        deformation = deformation - along
    point = law.force(depth, -approach, slip, deformation, friction)
    if point.rate is not None and along is not None:
        point = dataclasses.replace(point, rate=point.rate - law.relaxation_rate * along)
    contact = point.normal[:, None] * contacts.normal + point.tangent
    joint, limit, dry = _joint_forces(law, model, q, v)
    tau = joint + _generalised(model, kin, contacts, contact)
    rate, places = point.rate, kept
    if culled is not None:
        # The contacts of pairs that were not looked at are apart: without force, and their deformation decays.
        places = culled.candidate[kept]
        contact = jnp.zeros((contact_count(model), 3), q.dtype).at[culled.candidate].set(contact)
        if rate is not None and all_deformation is not None:
            rate = (-law.relaxation_rate * all_deformation).at[culled.candidate].set(rate)
    return Forces(
        tau, contacts, contact, rate, point, friction, limit, dry, kept, places, dropped + dropped_pairs, dropped_pairs
    )


def _relative_velocity(model: Model, kin: Kinematics, contacts: Contacts, v) -> Float[Array, "k 3"]:
    """Velocity of body 1 at the contact point relative to body 2, world axes."""
    top, zero = model.topology, jnp.zeros((1, 6), v.dtype)
    twist = jnp.concatenate([node_velocities(kin, top, expand_v(model, v)), zero])
    origin = jnp.concatenate([kin.origin, zero[:, :3]])

    def velocity(node):
        return twist[node, :3] + cross(twist[node, 3:], contacts.point - origin[node])

    return velocity(contacts.node1) - velocity(contacts.node2)


def _generalised(model: Model, kin: Kinematics, contacts: Contacts, force: Float[Array, "k 3"]) -> Float[Array, " nv"]:
    """J^T of the forces on body 1 and their opposites on body 2."""
    mask = jnp.asarray(model.topology.dof_mask, force.dtype)
    origin = jnp.concatenate([kin.origin, jnp.zeros((1, 3), force.dtype)])

    def wrenches(node):
        return mask[node].T @ jnp.concatenate([force, cross(contacts.point - origin[node], force)], -1)

    subtree = wrenches(contacts.node1) - wrenches(contacts.node2)
    return project_forces(model, jnp.sum(kin.S * subtree, -1))


def _joint_forces(law: ForceLaw, model: Model, q, v):
    """(generalised force (nv,), forces of the limits, of dry friction); see `ForceLaw`."""
    top, dtype = model.topology, q.dtype
    tau = jnp.zeros(model.nv, dtype)
    limited = np.array(top.limited if law.limits else (), int)
    value, rate = q[top.scalar_q_of_dof[limited]], v[limited]
    below = jnp.asarray(model.lower, dtype)[limited] - value
    above = value - jnp.asarray(model.upper, dtype)[limited]
    low, high = _limit_force(law, below, -rate), _limit_force(law, above, rate)
    rubbing = np.array(top.friction_dofs if law.joint_friction else (), int)
    speed = v[rubbing]
    bound = jnp.asarray(model.frictionloss, dtype)[rubbing]
    dry = -bound * speed / jnp.sqrt(speed * speed + law.friction_velocity**2)
    return tau.at[limited].add(low - high).at[rubbing].add(dry), low + high, dry


def _limit_force(law: ForceLaw, depth, closing):
    passed = jnp.where(depth > 0, depth, 0.0)  # a side without limit is at infinity
    return law.limit_stiffness * passed * jnp.maximum(1.0 + law.limit_dissipation * closing, 0.0)
