"""What goes into a step and comes out of it: the state, the report on contacts and solve, and the linearisation."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Configuration and velocity of a model, and the state of its contact law.

    Attributes:
        q: configuration (nq,), as MuJoCo's qpos.
        v: velocity (nv,), as MuJoCo's qvel.
        contact: state of the contact law, None if it has none. Under `CompliantContact` the tangential deformation (k, 3),
            m, world axes, of each of the model's k candidate contacts; a step takes None as undeformed.
    """

    q: Float[Array, "*b nq"]
    v: Float[Array, "*b nv"]
    contact: Float[Array, "*b k 3"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContactInfo:
    """The contacts of one step, nc of them, world axes.

    Under a law at force level the impulse is force times dt (the mean force of the stages), the rest is as at the first
    evaluation of the forces, and mode 1 is friction below the bound of its cone.

    distance (m) and point (m) before the step, frame: columns tangent 1, tangent 2, normal (from body 2 to body 1);
    impulse in the frame, N s; mode: 0 separating, 1 sticking, 2 sliding; tied: touching at the end of the step, nu = 0,
    without impulse (docs/contact-semantics.md); node1, node2: bodies' nodes (n_nodes: world); pair: index into Topology.pairs;
    friction.
    """

    distance: Float[Array, "*b nc"]
    point: Float[Array, "*b nc 3"]
    frame: Float[Array, "*b nc 3 3"]
    impulse: Float[Array, "*b nc 3"]
    mode: Int[Array, "*b nc"]
    tied: Bool[Array, "*b nc"]
    friction: Float[Array, "*b nc"]
    node1: Int[Array, "*b nc"]
    node2: Int[Array, "*b nc"]
    pair: Int[Array, "*b nc"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """What happened in a step.

    Attributes:
        contacts: the contacts of the step (`ContactInfo`): distance, point, frame, impulse and mode of each.
        impulse (N s): of all rows (contacts, limits, dry friction, equality constraints), in N m s for rows of joints that
            turn; also the warm start of the next step.
        residual: recomputed violation of the contact law, a velocity relative to those of the problem
            (docs/contact-semantics.md).
        iterations: of the contact solver.
        fallbacks: the last stage of the contact solve that ran, a `Stage`: 0 Newton's method, 1 Gauss-Seidel, 2 the path of
            the regularised problem. Under `BoxedLCP` 1 is Lemke's method.
        status: how the contact solver ended, a `Status`.
        dropped: active rows that did not fit into max_contacts or max_limits, and pairs that did not fit into max_pairs.
        dropped_pairs: the pairs among them: those that could touch within the step by bounds of distance and velocity. The
            pairs that would touch may be fewer, never more.
        degenerate: whether the impulse is not unique; then one was selected (docs/contact-semantics.md, Selection).
        push_out_dropped: whether the velocities at which penetrations are pushed out, and those of bounces, contradicted the
            rows, so that the step was solved without them (docs/contact-semantics.md, Where push-outs contradict each other).
        overflow: rows with an impulse for which the report had no room, although the step was solved with them (compiled
            core only).

    residual, iterations, fallbacks and status carry no derivative. Explicit steps solve nothing: residual, iterations and
    fallbacks are zero, the status is solved or non_finite.

    `unpacked()` is a copy whose attributes are arrays of their own, whichever backend took the step.
    """

    contacts: ContactInfo
    impulse: Float[Array, "*b m"]
    residual: Float[Array, "*b"]
    iterations: Int[Array, "*b"]
    fallbacks: Int[Array, "*b"]
    status: eqx.Enumeration
    dropped: Int[Array, "*b"]
    dropped_pairs: Int[Array, "*b"]
    degenerate: Bool[Array, "*b"]
    overflow: Int[Array, "*b"]
    push_out_dropped: Bool[Array, "*b"]

    def unpacked(self) -> StepInfo:
        return self

    def one_sided(self, n: int) -> Bool[Array, " n"]:
        """None of the n columns of A: where some are, `Linearization.columns` says so."""
        return jnp.zeros(n, bool)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OutputSlope:
    """The derivative of an output y (m,) of a step in tangent coordinates: $dy = C dx + D du$.

    Attributes:
        C: derivative by the state, (m, n), in the unit of y per m, rad, m/s or rad/s.
        D: derivative by the controls, (m, nu), in the unit of y per unit of the control.
    """

    C: Float[Array, "*b m n"]
    D: Float[Array, "*b m nu"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Linearization:
    """x_next and its derivative in tangent coordinates: $dx_next = A dx + B du$ (+ parameters[name] dparameter).

    Tangent coordinates are dx = [dq (nv), dv (nv), contact state (row by row) where the law carries one]; n is their
    number. Under `jax.vmap` all arrays have the batch's axes in front.

    Attributes:
        x_next: the `State` after the step.
        A: derivative by the state, (n, n).
        B: derivative by the controls, (n, nu).
        info: the step's `StepInfo`.
        parameters: derivatives by physical parameters that were asked for, by name, (n, *shape of the parameter).
        columns: as `one_sided`, None where `info` holds it; read `one_sided`.
        outputs: derivatives of the outputs that were asked for, by name: `OutputSlope` of "impulse", `StepInfo.impulse` (m,),
            N s, in N m s for rows of joints that turn.
    """

    x_next: State
    A: Float[Array, "*b n n"]
    B: Float[Array, "*b n nu"]
    info: StepInfo
    parameters: dict[str, Array]
    columns: Bool[Array, "*b n"] | None = None
    outputs: dict[str, OutputSlope] = dataclasses.field(default_factory=dict)

    @property
    def one_sided(self) -> Bool[Array, "*b n_plus_nu"]:
        """The columns of [A, B] along which contacts contradict each other, so that the step has no derivative in its modes.

        They are the columns at fixed modes without the part that no impulse can answer, the limit of those of the regularised
        problem, in C of the outputs too. A control never contradicts.
        """
        *batch, n, nu = self.B.shape
        by_state = self.info.one_sided(n) if self.columns is None else self.columns
        return jnp.concatenate([jnp.broadcast_to(by_state, (*batch, n)), jnp.zeros((*batch, nu), bool)], -1)

    def __iter__(self):
        return iter((self.x_next, self.A, self.B))
