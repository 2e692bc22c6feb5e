"""Calls of the compiled core: a step, its Jacobian, a rollout, and the report of a step (`compiled` says what goes in)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trajopt import native
from trajopt.dynamics.compiled import CompiledSystem, given_candidates
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import ContactInfo, StepInfo
from trajopt.result import Status

# Layout of a report and its status, as in native/report.h and native/contact_solve.h.
HEAD, PER_CONTACT = 16, 13
STATUS = (Status.solved, Status.stalled, Status.infeasible, Status.non_finite)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What one step through the core returns: q+ and v+, its report (see `step_info`), the impulses of all rows of the model, the
    start of the next step's solve, and the pairs that could touch unseen (`StepInfo.dropped_pairs`)."""

    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    report: Float[Array, " r"]
    impulses: Float[Array, " m"]
    dropped_pairs: Int[Array, ""]


def native_step(
    compiled: CompiledSystem,
    model: Model,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    dt: Float[Array, ""],
    start: Float[Array, " m"] | None = None,
) -> CompiledStep:
    """State after dt under the generalised force tau. start: `CompiledStep.impulses` of the step before, without influence.

    No derivative is defined here; `native_linearize` has it.
    """
    given, _, unseen = given_candidates(compiled, model, _where_rows_act(compiled, model, q, v, dt), v, dt)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, tau, _start(compiled, start, q.dtype), given)
    shapes = _shapes(compiled, q.dtype)
    q_next, v_next, report, impulses = native.call(
        "step", shapes, *arguments, topology=compiled.key, moreau=compiled.moreau
    )
    return CompiledStep(q_next, v_next, report, impulses, unseen)


def native_linearize(
    compiled: CompiledSystem,
    model: Model,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    dt: Float[Array, ""],
    gain: Float[Array, "nv k"],
    start: Float[Array, " m"] | None = None,
) -> tuple[CompiledStep, Float[Array, "n n"], Float[Array, "n k"]]:
    """The step, A = d x+ / d x at fixed tau, and B = (d x+ / d tau) gain, in tangent coordinates [dq, dv].

    gain: d tau / d u for a derivative by controls, the identity for one by forces.
    """
    where = _where_rows_act(compiled, model, q, v, dt)
    given, slopes, unseen = given_candidates(compiled, model, where, v, dt, slopes=True)
    assert slopes is not None
    begin = _start(compiled, start, q.dtype)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, tau, begin, given, slopes, gain)
    n = 2 * compiled.topology.nv
    both = jax.ShapeDtypeStruct((n, n), q.dtype), jax.ShapeDtypeStruct((n, gain.shape[1]), q.dtype)
    shapes = (*_shapes(compiled, q.dtype), *both)
    q_next, v_next, report, impulses, A, B = native.call(
        "linearize", shapes, *arguments, topology=compiled.key, moreau=compiled.moreau
    )
    return CompiledStep(q_next, v_next, report, impulses, unseen), A, B


def native_rollout(
    compiled: CompiledSystem,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    taus: Float[Array, "T nv"],
    dt: Float[Array, ""],
    start: Float[Array, " m"] | None = None,
) -> CompiledStep:
    """The states after each of the T steps under taus, and their reports, all stacked; impulses: of the last step.

    Only for models none of whose candidates are handed over (`compiled.given` is 0): their loop is one of `native_step`.
    """
    steps = taus.shape[0]
    *single, last = _shapes(compiled, q.dtype)
    stacked = (jax.ShapeDtypeStruct((steps, *x.shape), q.dtype) for x in single)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, taus, _start(compiled, start, q.dtype))
    shapes = (*stacked, last)
    q_next, v_next, report, impulses = native.call(
        "rollout", shapes, *arguments, topology=compiled.key, moreau=compiled.moreau
    )
    return CompiledStep(q_next, v_next, report, impulses, jnp.zeros(steps, int))


def step_info(compiled: CompiledSystem, y: CompiledStep) -> StepInfo:
    """`StepInfo` of a step, as the JAX path gives it; active rows that do not fit into it are `overflow`."""
    report = y.report
    m = 3 * compiled.contacts + compiled.limits + compiled.dry
    impulse, rest = report[HEAD : HEAD + m], report[HEAD + m :].reshape(compiled.contacts, PER_CONTACT)
    whole = functools.partial(jnp.asarray, dtype=jnp.int32)
    contacts = ContactInfo(
        rest[:, 0], rest[:, 1:4], contact_frames(rest[:, 4:7]), impulse[: 3 * compiled.contacts].reshape(-1, 3),
        rest[:, 7].astype(int), rest[:, 8] > 0, rest[:, 9], *(rest[:, k].astype(int) for k in (10, 11, 12)),
    )  # fmt: skip
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status: Any = STATUS[0]
    for k, member in enumerate(STATUS[1:], 1):
        status = choose(whole(report[3]) == k, member, status)
    dropped = report[6].astype(int) + y.dropped_pairs
    return StepInfo(
        contacts, impulse, report[0], whole(report[1]), whole(report[2]), status, dropped, y.dropped_pairs, report[4] > 0,
        overflow_rows(report),
    )


def overflow_rows(report: Float[Array, " r"]) -> Int[Array, ""]:
    """Rows with an impulse that the report has no room for."""
    return jnp.asarray(report[7], dtype=jnp.int32)


def selected(report: Float[Array, " r"]) -> Bool[Array, ""]:
    """Whether the impulse is the shortest in its modes."""
    return report[5] > 0


def _where_rows_act(compiled: CompiledSystem, model: Model, q, v, dt) -> Array:
    """The configuration at which contacts are looked for: q, or Moreau's midpoint."""
    if not (compiled.moreau and compiled.given):
        return q
    return integrate(model, q, 0.5 * dt * v)


def _start(compiled: CompiledSystem, start, dtype) -> Array:
    return jnp.zeros(compiled.impulses, dtype) if start is None else start


def _shapes(compiled: CompiledSystem, dtype) -> tuple[jax.ShapeDtypeStruct, ...]:
    top = compiled.topology
    return tuple(jax.ShapeDtypeStruct((k,), dtype) for k in (top.nq, top.nv, compiled.report_size, compiled.impulses))
