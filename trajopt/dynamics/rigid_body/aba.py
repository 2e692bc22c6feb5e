"""Forward dynamics by articulated bodies (RBDA section 7.3), linear in the number of bodies.

All quantities are in world axes at the origin of their tree, so that a child's articulated inertia and bias force are
added to its parent's as they are. Nodes are arranged in levels of equal depth, padded to the widest level; the sweep
from the leaves and the sweep from the roots are two scans over the levels, so that compile time does not grow with the
depth. Within a level, with I^A and p^A the articulated inertia and bias force, c = V x S v and D the joint-space
inertia (armature on its diagonal):

    U = I^A S,  D = S^T U + armature,  u = tau - S^T p^A
    I^a = I^A - U D^-1 U^T,  p^a = p^A + I^a c + U D^-1 u          (added to the parent's I^A, p^A)
    a' = a_parent + c,  qdd = D^-1 (u - U^T a'),  a = a' + S qdd   (root's parent: -g)
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import NODE_NV, Model, Topology
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics, node_inertias, node_velocities
from trajopt.dynamics.rigid_body.rnea import lift, passive_forces
from trajopt.dynamics.rigid_body.spatial import cross_force, cross_motion, inertia_matrix, inertia_times
from trajopt.errors import ModelError


@in_full_precision
def aba(model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], tau: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Acceleration of the generalised forces tau, with armature, damping and springs; equals `crba.forward_dynamics`.

    Raises `ModelError` for a model with mimic joints, which couple DoFs across branches and do not fit the recursion.
    """
    top = model.topology
    if top.mimics:
        raise ModelError(
            f"aba: model '{top.name}' has mimic joints ({top.mimics[0].name}, ...), which the articulated-body "
            "recursion cannot represent; use forward_dynamics"
        )
    v, tau = check_vector("v", v, top.nv), check_vector("tau", tau, top.nv)
    kin = kinematics(model, q)
    dtype = kin.S.dtype
    levels = _levels(top)
    tables = _tables(model, kin, levels, v, tau + passive_forces(model, q, v))
    parent = jnp.asarray(levels.parent, dtype)
    width = levels.slots.shape[1]

    def from_leaves(children, level):
        inertia, force = level["I"] + children[0], level["p"] + children[1]
        S, c = level["S"], level["c"]
        U = inertia @ S
        D_inverse = _inverse(jnp.swapaxes(S, -1, -2) @ U + level["armature"][..., None] * jnp.eye(3, dtype=dtype))
        gain = U @ D_inverse
        u = level["tau"] - (S * force[..., None]).sum(-2)
        inertia = inertia - gain @ jnp.swapaxes(U, -1, -2)
        force = force + (inertia * c[..., None, :]).sum(-1) + (gain * u[..., None, :]).sum(-1)
        up = level["parent"]
        onto = (jnp.tensordot(up, inertia, 1), up @ force)
        return onto, {"S": S, "c": c, "gain": gain, "free": (D_inverse * u[..., None, :]).sum(-1), "parent": up}

    start = (jnp.zeros((width, 6, 6), dtype), jnp.zeros((width, 6), dtype))
    _, sweep = jax.lax.scan(from_leaves, start, tables | {"parent": parent}, reverse=True)

    def from_roots(above, level):
        own = level["parent"].T @ above + level["c"]
        qdd = level["free"] - (level["gain"] * own[..., None]).sum(-2)
        own = own + (level["S"] * qdd[..., None, :]).sum(-1)
        return own, qdd

    # The roots' parents, in the slots the first level refers to, accelerate with -g.
    gravity = jnp.broadcast_to(lift(model, dtype), (width, 6))
    _, qdd = jax.lax.scan(from_roots, gravity, sweep)
    return qdd.reshape(-1)[levels.where]


def _tables(
    model: Model, kin: Kinematics, levels: _Levels, v: Float[Array, " nv"], force: Float[Array, " nv"]
) -> dict[str, Float[Array, "levels width ..."]]:
    """What the sweeps read of every node, by level and slot: S, tau, armature, c, I and p, under the generalised `force`."""
    # Padded per-node quantities: S (n, 6, 3) with zero columns, and tau, armature with zeros and ones.
    dtype = kin.S.dtype
    present = jnp.asarray(levels.present, dtype)
    S = jnp.swapaxes(kin.S[levels.dofs], -1, -2) * present[:, None, :]
    applied = force[levels.dofs] * present
    armature = jnp.asarray(model.armature, dtype)[levels.dofs] * present + (1 - present)

    velocity = node_velocities(kin, model.topology, v)
    rate = (S * (v[levels.dofs] * present)[:, None, :]).sum(-1)
    packed = node_inertias(model, kin)
    tables = {
        "S": S,
        "tau": applied,
        "armature": armature,
        "c": cross_motion(velocity, rate),
        "I": inertia_matrix(packed),
        "p": cross_force(velocity, inertia_times(packed, velocity)),
    }
    # (levels, width, ...): padding slots hold a body without mass or joint, and are added to nothing.
    return {
        name: jnp.concatenate([table, jnp.full_like(table[:1], float(name == "armature"))])[levels.slots]
        for name, table in tables.items()
    }


class _Levels:
    """Index tables of the level-wise sweeps.

    - `dofs` (n, 3): tree DoFs of a node (repeated where it has fewer), `present` (n, 3) which of them exist;
    - `slots` (levels, width): node in every slot, n in the padding;
    - `parent` (levels, width, width): entry (a, b) is 1 where slot b's parent is in slot a of the level above; for
      roots, slot 0 of a fictitious level;
    - `where` (nv,): position of every DoF in the flattened (levels, width, 3) accelerations.
    """

    def __init__(self, top: Topology):
        counts = np.array([NODE_NV[t] for t in top.node_types])
        self.present = np.arange(3) < counts[:, None]
        self.dofs = np.where(self.present, top.v_starts[:, None] + np.arange(3), top.v_starts[:, None])
        depth = top.node_mask.sum(1).astype(int) - 1
        width = int(np.bincount(depth).max())
        self.slots = np.full((depth.max() + 1, width), top.n_nodes)
        self.parent = np.zeros((depth.max() + 1, width, width))
        slot = np.zeros(top.n_nodes, int)
        filled = np.zeros(depth.max() + 1, int)
        for i, parent in enumerate(top.parents):
            slot[i] = filled[depth[i]]
            filled[depth[i]] += 1
            self.slots[depth[i], slot[i]] = i
            self.parent[depth[i], slot[parent] if parent >= 0 else 0, slot[i]] = 1.0
        first = (depth * width + slot) * 3
        self.where = first[top.dof_node] + top.dof_axis


@functools.lru_cache(maxsize=256)
def _levels(top: Topology) -> _Levels:
    return _Levels(top)


def _inverse(matrix: Float[Array, "*b 3 3"]) -> Float[Array, "*b 3 3"]:
    """Inverse of symmetric positive definite 3 x 3 matrices by LDL^T."""
    m = matrix
    d0 = m[..., 0, 0]
    l10, l20 = m[..., 1, 0] / d0, m[..., 2, 0] / d0
    d1 = m[..., 1, 1] - l10 * m[..., 1, 0]
    l21 = (m[..., 2, 1] - l20 * m[..., 1, 0]) / d1
    d2 = m[..., 2, 2] - l20 * m[..., 2, 0] - l21 * l21 * d1
    one, zero = jnp.ones_like(d0), jnp.zeros_like(d0)
    rows = [
        jnp.stack([one, zero, zero], -1),
        jnp.stack([-l10, one, zero], -1),
        jnp.stack([l10 * l21 - l20, -l21, one], -1),
    ]
    lower = jnp.stack(rows, -2)
    scaled = lower / jnp.stack([d0, d1, d2], -1)[..., None]
    return jnp.swapaxes(lower, -1, -2) @ scaled
