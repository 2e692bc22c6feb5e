r"""How contact forces and constraint velocities turn with the configuration, in closed form.

For a contact at P with world force F = C lambda between bodies 1 and 2 (Simple app. C and D; S, V, Psid as in `derivatives`,
V and Psid at the velocity u),

    d(J^T lambda)_j / dq_i = S_i . (S_j x* w_j^C)  [i ancestor of j or in its joint]  + J_ang,j . (dP_i x F) + J_j . (dC_i lambda)
    d(c_r . J u) / dq_i    = (V x* f_r) . S_i + f_r . Psid_i  [per body, signed]  + c_r . (omega x dP_i) + dc_r,i . (J u)

with w^C the contact wrenches summed over the subtree and f_r = [c_r; P x c_r]. The first term is the force fixed in the
*world*: a contact force does not turn with the body that it acts on.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.rows import Rows, contact_frames, signed_mask
from trajopt.dynamics.model import WORLD, Model, ShapeType, Topology
from trajopt.dynamics.rigid_body.crba import project_matrix
from trajopt.dynamics.rigid_body.derivatives import DynamicsTerms
from trajopt.dynamics.rigid_body.kinematics import Kinematics, expand_v, point_columns, to_user_dofs
from trajopt.dynamics.rigid_body.spatial import cross, cross_force, cross_motion


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContactGeometry:
    """Contacts and how they move with the tree DoFs (nc contacts, world axes).

    point (nc, 3), frames (nc, 3, 3), node1, node2; columns (nc, nvt, 3): relative velocity of the bodies at the point, per
    unit velocity; signed (nc, nvt): +1 moves body 1, -1 moves body 2; d_distance (nc, nvt), d_point (nc, nvt, 3), d_frames
    (nc, 3, 3, nvt), None where all normals are constant.
    """

    kin: Kinematics
    point: Float[Array, "nc 3"]
    frames: Float[Array, "nc 3 3"]
    node1: Array
    node2: Array
    columns: Float[Array, "nc nvt 3"]
    signed: Float[Array, "nc nvt"]
    d_distance: Float[Array, "nc nvt"]
    d_point: Float[Array, "nc nvt 3"]
    d_frames: Float[Array, "nc 3 3 nvt"] | None

    def sides(self, top: Topology):
        """(node of the body, sign) of both bodies, of the first alone where the second is always the world."""
        both = [(self.node1, 1.0), (self.node2, -1.0)]
        return both if _second_moves(top) else both[:1]


def _second_moves(top: Topology) -> bool:
    return any(top.shapes[two].node != WORLD for _, two in top.pairs)


def _fixed_normals(top: Topology) -> bool:
    """Whether every pair is against a plane of the world."""
    return not _second_moves(top) and all(top.shapes[two].kind == ShapeType.PLANE for _, two in top.pairs)


def contact_geometry(model: Model, kin: Kinematics, rows: Rows, slopes: Float[Array, "nc 7 6"]) -> ContactGeometry:
    """Geometry of the selected contacts; `slopes`: their derivative by the motion of body 1 (`collide_with_derivatives`)."""
    top, contacts = model.topology, rows.contacts
    dtype = kin.S.dtype
    signed = signed_mask(top, contacts, dtype)
    angular = kin.S[None, :, 3:]
    at_centre = point_columns(kin, top, contacts.centre)
    motion = jnp.concatenate([at_centre, jnp.broadcast_to(angular, at_centre.shape)], -1)
    motion = motion * signed[:, :, None]
    moved = jnp.sum(slopes[:, None, :, :] * motion[:, :, None, :], -1)  # (nc, nvt, 7)
    d_distance, d_point, d_normal = moved[..., 0], moved[..., 1:4], moved[..., 4:]
    if _second_moves(top):
        # A common rigid motion carries point and normal along.
        second = jnp.asarray(top.dof_mask, dtype)[contacts.node2][:, :, None]
        turn = angular * second
        d_point = d_point + at_centre * second + cross(turn, (contacts.point - contacts.centre)[:, None])
        d_normal = d_normal + cross(turn, contacts.normal[:, None])
    d_frames = None
    if not _fixed_normals(top):
        slope = jax.vmap(jax.jacfwd(lambda n: contact_frames(n[None])[0]))(contacts.normal)
        d_frames = jnp.einsum("kabc,kjc->kabj", slope, d_normal)
    columns = point_columns(kin, top, contacts.point) * signed[:, :, None]
    return ContactGeometry(
        kin, contacts.point, rows.frames, contacts.node1, contacts.node2, columns, signed, d_distance, d_point, d_frames
    )


def force_turning(model: Model, geometry: ContactGeometry, impulse: Float[Array, " m"]) -> Float[Array, "nv nv"]:
    """d(J^T impulse)/dq at fixed impulse (rows of limits and dry friction have constant directions)."""
    top, S = model.topology, geometry.kin.S
    nc = geometry.point.shape[0]
    dtype = S.dtype
    if nc == 0:
        return jnp.zeros((model.nv, model.nv), dtype)
    mask = jnp.asarray(top.dof_mask, dtype)
    lam = impulse[: 3 * nc].reshape(nc, 3)
    force = jnp.sum(geometry.frames * lam[:, None, :], -1)
    origins = jnp.concatenate([geometry.kin.origin, jnp.zeros((1, 3), dtype)])
    wrench = jnp.zeros((top.nv_tree, 6), dtype)
    for node, sign in geometry.sides(top):
        at_origin = jnp.concatenate([force, cross(geometry.point - origins[node], force)], -1)
        wrench = wrench + sign * (mask[node].T @ at_origin)
    product = cross_force(S, wrench) @ S.T
    turning = jnp.where(top.ancestor_mask, product, jnp.zeros_like(product))
    lever = _stack(S[None, :, 3:] * geometry.signed[:, :, None])
    turning = turning + lever.T @ _stack(cross(geometry.d_point, force[:, None]))
    if geometry.d_frames is not None:
        turned = jnp.sum(geometry.d_frames * lam[:, None, :, None], 2)
        turning = turning + _stack(geometry.columns).T @ turned.reshape(3 * nc, -1)
    return project_matrix(model, turning)


def velocity_turning(
    model: Model,
    terms: DynamicsTerms,
    geometry: ContactGeometry,
    v: Float[Array, " nv"],
    v_plus: Float[Array, " nv"],
    by_distance: Float[Array, " nc"],
    by_velocity: Float[Array, " nc"],
) -> Float[Array, "m3 nv"]:
    """d(J v+ + b)/dq of the contact rows at fixed v+ and v; b = by_distance phi + by_velocity (J v)_n on normal rows."""
    top, S, C, P = model.topology, geometry.kin.S, geometry.frames, geometry.point
    nc, dtype = P.shape[0], S.dtype
    mask = jnp.asarray(top.dof_mask, dtype)
    origins = jnp.concatenate([geometry.kin.origin, jnp.zeros((1, 3), dtype)])
    parents = np.asarray(top.parents, int)[top.dof_node] % (top.n_nodes + 1)
    after = mask[:-1] @ (S * expand_v(model, v_plus)[:, None])
    on_normal = by_velocity[:, None] * jnp.asarray(np.array([0.0, 0.0, 1.0]), dtype)
    rate = jnp.zeros((nc, 3, top.nv_tree), dtype)
    for moving, velocity, weight in ((v_plus, after, jnp.ones((nc, 3), dtype)), (v, terms.velocity, on_normal)):
        padded = jnp.concatenate([velocity, jnp.zeros((1, 6), dtype)])
        table = jnp.concatenate([S, cross_motion(padded[parents], S)], -1).T
        c = jnp.swapaxes(C, 1, 2) * weight[:, :, None]
        spin = jnp.zeros((nc, 3), dtype)
        for node, sign in geometry.sides(top):
            f = jnp.concatenate([c, cross((P - origins[node])[:, None], c)], -1)
            covector = jnp.concatenate([cross_force(padded[node][:, None], f), f], -1)
            row = (covector.reshape(3 * nc, 12) @ table).reshape(nc, 3, -1)
            rate = rate + sign * row * mask[node][:, None, :]
            spin = spin + sign * padded[node][:, 3:]
        # c . (spin x dP) = (c x spin) . dP
        rate = rate + cross(c, spin[:, None]) @ jnp.swapaxes(geometry.d_point, 1, 2)
        if geometry.d_frames is not None:
            relative = jnp.sum(geometry.columns * expand_v(model, moving)[None, :, None], 1)
            rate = rate + jnp.sum(geometry.d_frames * relative[:, :, None, None], 1) * weight[:, :, None]
    rate = rate + jnp.stack([jnp.zeros_like(geometry.d_distance)] * 2 + [by_distance[:, None] * geometry.d_distance], 1)
    return to_user_dofs(model, rate.reshape(3 * nc, -1))


def _stack(columns: Float[Array, "nc nvt 3"]) -> Float[Array, "m3 nvt"]:
    return jnp.swapaxes(columns, 1, 2).reshape(-1, columns.shape[1])
