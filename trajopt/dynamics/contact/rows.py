r"""Constraint rows of one step: contacts, joint limits, dry joint friction and equality constraints, as nu = J v+ + b
(docs/contact-semantics.md).

Row order as in `ncp`: three rows per contact (tangent 1, tangent 2, normal), one per limit, one per dry-friction DoF, those of
equality constraints, which to `ncp` are dry friction without a bound. Each
kind of row is an entry of `KINDS`: its count, its rows of J with what their offset depends on, and the set that its impulses
are projected on. A kind that is added is a class and its place in the table.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.narrowphase import Contacts
from trajopt.dynamics.contact.approach import count_missed_pairs
from trajopt.dynamics.contact.closures import closure_count, closure_rows, independent
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.jam import jams
from trajopt.dynamics.contact.laws.base import ContactLaw, Law, NormalOffset, Softening
from trajopt.dynamics.model import Model, Topology
from trajopt.dynamics.rigid_body.kinematics import Kinematics, point_columns, relative_motion, to_user_dofs
from trajopt.dynamics.rigid_body.spatial import cross

NO_LIMIT = 1e9  # m, rad: the distance of a limit at infinity, where both limits have rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Constraint rows at (q, v).

    J (m, nv); offset (m,) is b, m/s; mu (nc,), where nothing bounces `friction` (nc,); exists (nc + nl,); bound (nf,) N s;
    distance (nc + nl,) m; contacts: the nc selected candidates; frames (nc, 3, 3), columns tangent 1, tangent 2, normal;
    impact (nc + nl,): the row bounces;
    independent (k, k): projection of the equality constraints on what they say independently of each other, part of their J;
    push_out_dropped: the offset is `without_push_out` (m,), in which nothing is pushed out and nothing bounces;
    kept (nc + nl,): penetrations that are not pushed out, since friction can jam the contact;
    limit_dof (nl,), limit_sign (nl,); dropped: rows left out that would be active, and pairs left out that could be;
    dropped_pairs: the latter. softening: compliance of the contacts, None where they are rigid. sizes: number of rows of each of
    `KINDS`.
    """

    J: Float[Array, "m nv"]
    offset: Float[Array, " m"]
    without_push_out: Float[Array, " m"]
    push_out_dropped: Bool[Array, ""]
    mu: Float[Array, " nc"]
    friction: Float[Array, " nc"]
    exists: Bool[Array, " ncl"]
    bound: Float[Array, " nf"]
    distance: Float[Array, " ncl"]
    contacts: Contacts
    selected: Int[Array, " nc"]
    frames: Float[Array, "nc 3 3"]
    restitution: Float[Array, " nc"]
    impact: Bool[Array, " ncl"]
    kept: Bool[Array, " ncl"]
    limit_dof: Int[Array, " nl"]
    limit_sign: Float[Array, " nl"]
    dropped: Int[Array, ""]
    dropped_pairs: Int[Array, ""]
    independent: Float[Array, "k k"]
    softening: Softening | None = None
    sizes: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def nc(self) -> int:
        """Number of contacts."""
        return self.mu.shape[0]

    def dropping_push_out(self, dropped: Bool[Array, ""]) -> Rows:
        """The rows, where `dropped` with the offset `without_push_out`."""
        return dataclasses.replace(
            self,
            offset=jnp.where(dropped, self.without_push_out, self.offset),
            mu=jnp.where(dropped, self.friction, self.mu),
            push_out_dropped=self.push_out_dropped | dropped,
            impact=self.impact & ~dropped,
        )


def contact_frames(normal: Float[Array, "*k 3"]) -> Float[Array, "*k 3 3"]:
    """Right-handed frames whose third column is `normal`.

    Tangent 1 is the world's x axis made orthogonal to the normal, or the y axis where the normal is within 60 degrees of x.
    """
    x, y = jnp.eye(3, dtype=normal.dtype)[0], jnp.eye(3, dtype=normal.dtype)[1]
    seed = jnp.where((jnp.abs(jax.lax.stop_gradient(normal[..., :1])) < 0.5), x, y)
    along = jnp.sum(seed * normal, -1, keepdims=True)
    tangent = seed - along * normal
    tangent = tangent / jnp.sqrt(jnp.sum(tangent * tangent, -1, keepdims=True))
    return jnp.stack([tangent, cross(normal, tangent), normal], -1)


def signed_mask(top: Topology, contacts: Contacts, dtype: Any) -> Float[Array, "k nvt"]:
    """(k, nv_tree): +1 where a DoF moves body 1 only, -1 where it moves body 2 only."""
    mask = jnp.asarray(top.dof_mask, dtype)
    return mask[contacts.node1] - mask[contacts.node2]


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """The k rows of one kind: their part of J (k, nv) and, of the n of them that have a distance, distance and restitution.

    described: fields of `Rows` that belong to the kind alone. dropped: rows left out that would be active. bound: largest impulse
    of rows whose projection is an interval. error (k,): of equality constraints.
    """

    J: Float[Array, "k nv"]
    distance: Float[Array, " n"]
    restitution: Float[Array, " n"]
    described: dict[str, Any]
    dropped: Int[Array, ""]
    bound: Float[Array, " b"] | None = None
    error: Float[Array, " k"] | None = None


class RowKind(abc.ABC):
    """A kind of constraint row. projection: the set of its impulses, "cone", "unilateral" or "interval" (`ncp`)."""

    name: ClassVar[str]
    projection: ClassVar[str]
    normals: ClassVar[slice] = slice(0, 0)  # those of the kind's rows that have a distance and an offset

    @abc.abstractmethod
    def count(self, law: Law, model: Model) -> int:
        """Number of rows of one step."""

    @abc.abstractmethod
    def block(self, inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> RowBlock:
        """The rows at q (kinematics `kin`, candidate contacts there) and v."""

    def offset(self, law: ContactLaw) -> Callable[..., NormalOffset]:
        """(distance, velocity, restitution, dt) -> the law's offset of the rows that have a distance; velocity: their J v."""
        return law.normal_offset


class ContactRows(RowKind):
    """Three rows for each of the closest contacts: tangent 1, tangent 2, normal."""

    name, projection = "contacts", "cone"
    normals = slice(2, None, 3)

    def count(self, law: Law, model: Model) -> int:
        return 3 * law.contact_rows(model)

    def block(self, inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> RowBlock:
        law, model, dtype = inputs.law, inputs.model, inputs.q.dtype
        top = model.topology
        contacts, selected, dropped = _closest(inputs, kin, candidates, law.contact_rows(model))
        dropped_pairs = count_missed_pairs(inputs.model, kin, candidates.culled, inputs.v, inputs.dt)
        frames = contact_frames(contacts.normal)
        columns = point_columns(kin, top, contacts.point) * signed_mask(top, contacts, dtype)[:, :, None]
        J = jnp.sum(frames[:, :, :, None] * jnp.swapaxes(columns, 1, 2)[:, :, None, :], 1)
        J = to_user_dofs(model, J.reshape(-1, top.nv_tree))
        k = contacts.distance.shape[0]
        leaves = (model.pair_friction, model.pair_restitution, model.pair_impact_friction)
        friction, restitution, factor = (jnp.asarray(leaf, dtype)[contacts.pair] if k else jnp.zeros(0, dtype) for leaf in leaves)
        described = {
            "friction": friction, "mu": law.impact_friction(friction, factor, restitution), "contacts": contacts,
            "selected": selected, "frames": frames, "restitution": restitution, "dropped_pairs": dropped_pairs,
        }  # fmt: skip
        return RowBlock(J, contacts.distance, restitution, described, dropped + dropped_pairs)

    def offset(self, law: ContactLaw) -> Callable[..., NormalOffset]:
        return law.contact_offset


class LimitRows(RowKind):
    """One row for each of the limited DoFs that are nearest to a limit; where limits push from afar, two for each: the lower
    limits, then the upper ones."""

    name, projection = "limits", "unilateral"
    normals = slice(None)

    def count(self, law: Law, model: Model) -> int:
        return law.limit_rows(model)

    def block(self, inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> RowBlock:
        model = inputs.model
        nearest = _both_limits(inputs) if inputs.law.relaxed else _closest_limits(inputs, inputs.law.limit_rows(model))
        dof, sign, distance, dropped = nearest
        J = sign[:, None] * jnp.eye(model.nv, dtype=inputs.q.dtype)[dof]
        described = {"limit_dof": dof, "limit_sign": sign}
        return RowBlock(J, distance, jnp.zeros_like(distance), described, dropped)


class DryFrictionRows(RowKind):
    """One row for each DoF with dry joint friction."""

    name, projection = "dry friction", "interval"

    def count(self, law: Law, model: Model) -> int:
        return len(dry_friction_dofs(law, model))

    def block(self, inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> RowBlock:
        model, dtype = inputs.model, inputs.q.dtype
        dofs = dry_friction_dofs(inputs.law, model)
        bound = inputs.dt * jnp.asarray(model.frictionloss, dtype)[dofs]
        none = jnp.zeros(0, dtype)
        return RowBlock(jnp.eye(model.nv, dtype=dtype)[dofs], none, none, {}, jnp.zeros((), int), bound)


def dry_friction_dofs(law: Law, model: Model) -> Int[np.ndarray, " nf"]:
    """DoFs whose dry friction acts."""
    return np.array(model.topology.friction_dofs if law.joint_friction else (), int)


class EqualityRows(RowKind):
    """The rows of closed loops and coupled coordinates, whose impulses have no bound; b = erp e / dt."""

    name, projection = "equality constraints", "interval"

    def count(self, law: Law, model: Model) -> int:
        return closure_count(model.topology)

    def block(self, inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> RowBlock:
        model, dtype = inputs.model, inputs.q.dtype
        none, zero = jnp.zeros(0, dtype), jnp.zeros((), int)
        if not model.topology.constrained:
            described = {"independent": jnp.zeros((0, 0), dtype)}
            return RowBlock(jnp.zeros((0, model.nv), dtype), none, none, described, zero, none, none)
        error, J = closure_rows(model, kin, inputs.q)
        P = independent(J)
        unbounded = jnp.full(J.shape[0], jnp.inf, dtype)
        return RowBlock(P @ J, none, none, {"independent": P}, zero, unbounded, P @ error)

    def error_slope(self, law: ContactLaw, dt: Float[Array, ""]) -> Float[Array, ""]:
        """db/de."""
        return law.erp / dt


EQUALITIES = EqualityRows()
KINDS: tuple[RowKind, ...] = (ContactRows(), LimitRows(), DryFrictionRows(), EQUALITIES)


def row_count(law: Law, model: Model) -> int:
    """Number m of constraint rows of one step, and of entries of `StepInfo.impulse`."""
    return sum(kind.count(law, model) for kind in KINDS)


def assemble(inputs: StepInputs, kin: Kinematics, candidates: Contacts) -> Rows:
    """Rows of the step at its configuration (kinematics `kin`, candidate contacts there) and velocity."""
    blocks = [kind.block(inputs, kin, candidates) for kind in KINDS]
    J = jnp.concatenate([block.J for block in blocks])
    described = {name: value for block in blocks for name, value in block.described.items()}
    friction, nc = described["friction"], described["friction"].shape[0]
    distance = jnp.concatenate([block.distance for block in blocks])
    kept = jnp.zeros(distance.shape, bool).at[:nc].set(jams(J[: 3 * nc], friction) & (distance[:nc] < 0))
    felt = jnp.split(jnp.where(kept, 0.0, distance), np.cumsum([block.distance.shape[0] for block in blocks])[:-1])
    offset: list[Array] = []
    unpushed: list[Array] = []
    exists, impact = [], []
    sizes = tuple(block.J.shape[0] for block in blocks)
    velocities = jnp.split(J @ inputs.v, np.cumsum(sizes)[:-1])
    for kind, block, gap, velocity in zip(KINDS, blocks, felt, velocities, strict=True):
        asked_of = kind.offset(inputs.law)
        law_offset = asked_of(gap, velocity[kind.normals], block.restitution, inputs.dt)
        touching, still, dull = _without_push_out(True, gap, velocity[kind.normals], block.restitution)
        other = asked_of(touching, still, dull, inputs.dt)
        for offsets, found in ((offset, law_offset), (unpushed, other)):
            b = _on_normals(kind, found.offset, velocity.shape[0])
            offsets.append(b if block.error is None else EQUALITIES.error_slope(inputs.law, inputs.dt) * block.error)
        exists.append(law_offset.exists)
        impact.append(law_offset.impact)
    exists_here, bounces = jnp.concatenate(exists), jnp.concatenate(impact)
    described["mu"] = jnp.where(bounces[:nc], described["mu"], friction)
    return Rows(
        J=J,
        offset=jnp.concatenate(offset),
        without_push_out=jnp.concatenate(unpushed),
        push_out_dropped=jnp.zeros((), bool),
        exists=exists_here,
        bound=jnp.concatenate([block.bound for block in blocks if block.bound is not None]),
        distance=distance,
        impact=bounces,
        kept=kept,
        softening=inputs.law.softening(blocks[0].distance, exists_here[:nc], inputs.kappa),
        dropped=sum((block.dropped for block in blocks[1:]), blocks[0].dropped),
        sizes=sizes,
        **described,
    )


def _without_push_out(dropped, distance, velocity, restitution):
    """What a law takes the offset of rows from; where `dropped` so that none asks for a velocity: penetrations count as touching,
    and nothing bounces."""
    return (
        jnp.where(dropped & (distance < 0), 0.0, distance),
        jnp.where(dropped, 0.0, velocity),
        jnp.where(dropped, 0.0, restitution),
    )


def offset_slopes(inputs: StepInputs, rows: Rows) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """(db/d distance, db/d velocity before the step) of every row, zero where a row has no distance; an error is a distance."""
    by_distance: list[Array] = []
    by_velocity: list[Array] = []
    start, dtype = 0, inputs.q.dtype
    restitution = jnp.concatenate([rows.restitution, jnp.zeros_like(rows.distance[rows.nc :])])
    for kind, values in zip(KINDS, jnp.split(rows.J @ inputs.v, np.cumsum(rows.sizes)[:-1]), strict=True):
        velocity, size = values[kind.normals], values.shape[0]
        own = slice(start, start + velocity.shape[0])
        start = own.stop

        def offset(distance, velocity, kind=kind, own=own):
            felt = jnp.where(rows.kept[own], 0.0, distance)
            asked = _without_push_out(rows.push_out_dropped, felt, velocity, restitution[own])
            return kind.offset(inputs.law)(*asked, inputs.dt).offset

        if kind is EQUALITIES:
            by_distance.append(jnp.full(size, EQUALITIES.error_slope(inputs.law, inputs.dt), dtype))
            by_velocity.append(jnp.zeros(size, dtype))
            continue
        point, one, none = (rows.distance[own], velocity), jnp.ones_like(velocity), jnp.zeros_like(velocity)
        for slopes, direction in ((by_distance, (one, none)), (by_velocity, (none, one))):
            slopes.append(_on_normals(kind, jax.jvp(offset, point, direction)[1].astype(dtype), size))
    return jnp.concatenate(by_distance), jnp.concatenate(by_velocity)


def _on_normals(kind: RowKind, values: Float[Array, " n"], size: int) -> Float[Array, " k"]:
    """Values of a kind's rows that have a distance, zero on its `size` - n others."""
    if values.shape[0] == size:
        return values
    if not values.shape[0]:
        return jnp.zeros(size, values.dtype)
    step = kind.normals.step
    before = [jnp.zeros_like(values)] * (step - 1)
    return jnp.stack([*before, values], -1).reshape(-1)


def _closest(inputs: StepInputs, kin: Kinematics, candidates: Contacts, count: int):
    """The `count` closest candidates, and how many of the others would touch within the step."""
    total = candidates.distance.shape[0]
    if total <= count:
        return dataclasses.replace(candidates, culled=None), jnp.arange(total), jnp.zeros((), int)
    distance = jax.lax.stop_gradient(candidates.distance)
    _, index = jax.lax.top_k(-distance, count)
    index = jnp.sort(index)
    kept = candidates[index]
    active = distance + inputs.dt * _approach(inputs, kin, candidates) < 0
    left_out = jnp.ones(total, bool).at[index].set(False)
    return kept, index, jnp.sum(active & left_out)


def _approach(inputs: StepInputs, kin: Kinematics, contacts: Contacts):
    """Normal velocity of every candidate, from the bodies' velocities; carries no derivative."""
    relative, _ = relative_motion(inputs.model, kin, inputs.v, contacts.node1, contacts.node2, contacts.point)
    return jax.lax.stop_gradient(jnp.sum(contacts.normal * relative, -1))


def _both_limits(inputs: StepInputs):
    """Both limits of all limited DoFs: DoF, sign (+1 lower, -1 upper), distance, and that none is dropped."""
    model, q = inputs.model, inputs.q
    dofs = np.array(model.topology.limited if inputs.law.limits else (), int)
    value = q[model.topology.scalar_q_of_dof[dofs]]
    low = value - jnp.asarray(model.lower, q.dtype)[dofs]
    high = jnp.asarray(model.upper, q.dtype)[dofs] - value
    sign = jnp.concatenate([jnp.ones_like(low), -jnp.ones_like(high)])
    distance = jnp.minimum(jnp.concatenate([low, high]), NO_LIMIT)
    return jnp.asarray(np.concatenate([dofs, dofs])), sign, distance, jnp.zeros((), int)


def _closest_limits(inputs: StepInputs, count: int):
    """The `count` limited DoFs nearest to a limit at the end of the step: DoF, sign (+1 lower, -1 upper), distance."""
    model, q, v, dt = inputs.model, inputs.q, inputs.v, inputs.dt
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
