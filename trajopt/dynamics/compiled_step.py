"""Calls of the compiled core: a step, its Jacobian, a rollout, and the report of a step (`compiled` says what goes in)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt import native
from trajopt.dynamics.arguments import holds_traced, is_traced
from trajopt.dynamics.compiled import CompiledSystem, given_candidates
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.state import ContactInfo, OutputSlope, StepFields, StepInfo
from trajopt.errors import OptionError
from trajopt.result import Status

# Layout of a report and its status, as in native/report_layout.h and native/contact_solve.h.
HEAD, PER_CONTACT = 25, 13
PUSH_OUT_DROPPED, ONE_SIDED, ONE_SIDED_BITS = 11, 12, 24
STATUS = (Status.solved, Status.stalled, Status.infeasible, Status.non_finite)
STATUS_AT, NON_FINITE = 3, 3  # where a report says it, and the last of them


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What one step through the core returns: q+ and v+, its report (see `step_info`), the impulses of all rows of the model, and
    the pairs that could touch unseen (`StepInfo.dropped_pairs`)."""

    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    report: Float[Array, " r"]
    impulses: Float[Array, " m"]
    dropped_pairs: Int[Array, ""]


def native_step(
    compiled: CompiledSystem,
    model: Model | None,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    dt: Float[Array, ""],
) -> CompiledStep:
    """State after dt under the generalised force tau. model: None will do where no candidates are handed over (`compiled.given`
    is 0).

    No derivative is defined here; `native_linearize` has it.
    """
    given, _, unseen = _given(compiled, model, q, v, dt, slopes=False)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, tau, given)
    shapes = _shapes(compiled, q.dtype)
    q_next, v_next, report, impulses = native.call(
        "step", shapes, *arguments, topology=compiled.key, integrator=compiled.scheme
    )
    return CompiledStep(q_next, v_next, report, impulses, unseen)


def native_linearize(
    compiled: CompiledSystem,
    model: Model | None,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    dt: Float[Array, ""],
    gain: Float[Array, "nv k"],
) -> tuple[CompiledStep, Float[Array, "n n"], Float[Array, "n k"]]:
    """The step, A = d x+ / d x at fixed tau, and B = (d x+ / d tau) gain, in tangent coordinates [dq, dv].

    gain: d tau / d u for a derivative by controls, the identity for one by forces.
    """
    y, (A, B) = _differentiated("linearize", compiled, model, parameters, q, v, tau, dt, gain)
    return y, A, B


def native_linearize_impulse(
    compiled: CompiledSystem,
    model: Model | None,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    dt: Float[Array, ""],
    gain: Float[Array, "nv k"],
) -> tuple[CompiledStep, Float[Array, "n n"], Float[Array, "n k"], OutputSlope]:
    """`native_linearize`, and the derivative of the reported impulses: C at fixed tau, D = (d impulse / d tau) gain."""
    y, (A, B, C, D) = _differentiated("linearize_impulse", compiled, model, parameters, q, v, tau, dt, gain)
    return y, A, B, OutputSlope(C, D)


def _differentiated(
    handler: str, compiled: CompiledSystem, model: Model | None, parameters, q, v, tau, dt, gain
) -> tuple[CompiledStep, list[Array]]:
    """The step and the matrices that a handler returns."""
    given, slopes, unseen = _given(compiled, model, q, v, dt, slopes=True)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, tau, given, slopes, gain)
    n, k = 2 * compiled.topology.nv, gain.shape[1]
    rows = (n,) if handler == "linearize" else (n, _row_count(compiled.report_layout))
    matrices = (jax.ShapeDtypeStruct((m, columns), q.dtype) for m in rows for columns in (n, k))
    shapes = (*_shapes(compiled, q.dtype), *matrices)
    results = native.call(handler, shapes, *arguments, topology=compiled.key, integrator=compiled.scheme)
    q_next, v_next, report, impulses = results[:4]
    return CompiledStep(q_next, v_next, report, impulses, unseen), results[4:]


def direct_step(
    compiled: CompiledSystem,
    constants: Float[Array, " c"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    u: Float[Array, " nu"],
    tau: Float[Array, " nv"],
    motors: int,
) -> list[Float[Array, " _"]]:
    """(report, q+, v+) of a single step. constants: the parameters, dt, and what else belongs to the system. motors: where it is
    not zero, the constants go on with the lever arms (nv, motors), and arms u is added to tau.

    Where q, v or u (which makes tau) holds a number that is not finite, the report's status says so and nothing else is defined.
    """
    top, dtype = compiled.topology, constants.dtype
    shapes = tuple(jax.ShapeDtypeStruct((k,), dtype) for k in (compiled.report_size, top.nq, top.nv))
    arguments = (constants, q, v, u, tau)
    return native.call("direct_step", shapes, *arguments, topology=compiled.key, integrator=compiled.scheme, motors=motors)


def direct_linearize(
    compiled: CompiledSystem,
    constants: Float[Array, " c"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    u: Float[Array, " nu"],
    tau: Float[Array, " nv"],
    gain: Float[Array, "nv k"],
    impulse: bool,
    motors: int,
) -> list[Float[Array, "..."]]:
    """([report, q+, v+], A, B) of a single step, otherwise as `native_linearize`; with C and D where `impulse` is true.

    motors: as for `direct_step`; where it is not zero the lever arms are the gain, and the one given is not read.
    """
    top, columns, dtype = compiled.topology, motors or gain.shape[1], constants.dtype
    n, size = 2 * top.nv, compiled.report_size + top.nq + top.nv
    matrices = [(n, n), (n, columns)]
    if impulse:
        m = _row_count(compiled.report_layout)
        matrices += [(m, n), (m, columns)]
    shapes = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in ((size,), *matrices))
    arguments = (constants, q, v, u, tau, gain)
    handler = "direct_linearize_impulse" if impulse else "direct_linearize"
    return native.call(handler, shapes, *arguments, topology=compiled.key, integrator=compiled.scheme, motors=motors)


def native_rollout(
    compiled: CompiledSystem,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    taus: Float[Array, "T nv"],
    dt: Float[Array, ""],
) -> CompiledStep:
    """The states after each of the T steps under taus, and their reports, all stacked; impulses: of the last step.

    Only for models none of whose candidates are handed over (`compiled.given` is 0): their loop is one of `native_step`.
    """
    steps = taus.shape[0]
    *single, last = _shapes(compiled, q.dtype)
    stacked = (jax.ShapeDtypeStruct((steps, *x.shape), q.dtype) for x in single)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, taus)
    shapes = (*stacked, last)
    q_next, v_next, report, impulses = native.call(
        "rollout", shapes, *arguments, topology=compiled.key, integrator=compiled.scheme
    )
    return CompiledStep(q_next, v_next, report, impulses, jnp.zeros(steps, int))


def native_follow(
    compiled: CompiledSystem,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    arms: Float[Array, "nv nu"],
    xs: Float[Array, "T nx"],
    us: Float[Array, "T nu"],
    gains: Float[Array, "T nu n"],
    lower: Float[Array, " nu"],
    upper: Float[Array, " nu"],
    dt: Float[Array, ""],
) -> tuple[Float[Array, "T nq"], Float[Array, "T nv"], Float[Array, "T nu"], Float[Array, " T"]]:
    """The states after each of the T steps under u = clip(us + gains (x (-) xs)), tau = arms u, these controls, and the residuals
    of the steps' contact solves.

    Only for models none of whose candidates are handed over (`compiled.given` is 0).
    """
    steps = us.shape[0]
    *single, last = _shapes(compiled, q.dtype)
    q_shape, v_shape, report = (jax.ShapeDtypeStruct((steps, *x.shape), q.dtype) for x in single)
    shapes = (q_shape, v_shape, jax.ShapeDtypeStruct(us.shape, q.dtype), report, last)
    arguments = (parameters, jnp.asarray(dt, q.dtype), q, v, arms)
    policy = (xs, us, gains, lower, upper)
    q_next, v_next, u, reports, _ = native.call(
        "follow", shapes, *arguments, *policy, topology=compiled.key, integrator=compiled.scheme
    )
    return q_next, v_next, u, reports[:, 0]


_READ = frozenset(field.name for field in dataclasses.fields(StepFields))  # attributes that are read from a report


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedStepInfo(StepInfo):
    """A `StepInfo` in the one array in which the core reports, from which the attributes are read when they are asked for.

    A call that returned each of them as an array would cost several times what the step costs. `layout`: numbers of contacts,
    limits and rows of joint friction in the report.
    """

    report: Float[Array, "*b r"]
    dropped_pairs: Int[Array, "*b"]
    layout: tuple[int, int, int] = dataclasses.field(metadata={"static": True})

    @property
    def _fields(self) -> StepFields:
        known = self.__dict__.get("_known")
        if known is None:
            known = _fields(self.layout, self.report, self.dropped_pairs)
            if holds_traced(known) == is_traced(self.report):  # else read where JAX traces, beyond which it means nothing
                self.__dict__["_known"] = known
        return known

    def unpacked(self) -> StepFields:
        return self._fields

    def one_sided(self, n: int) -> Bool[Array, "*b n"]:
        """Which of the n columns of A are one-sided (`Linearization.one_sided`); none in the report of a step alone."""
        return _one_sided(n, self.report)

    def __getattr__(self, name: str) -> Any:
        if name not in _READ:
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return getattr(self._fields, name)


def step_info(compiled: CompiledSystem, y: CompiledStep) -> PackedStepInfo:
    """`StepInfo` of a step, as the JAX path gives it; active rows that do not fit into it are `overflow`."""
    return PackedStepInfo(y.report, y.dropped_pairs, compiled.report_layout)


def packed_slope(info: PackedStepInfo, slope: StepInfo) -> PackedStepInfo:
    """The derivative `slope` of the separate attributes of a step's report as that of the packed report `info`.

    Of the contacts it holds that of distance, point, normal and friction; that of the frame follows from the normal's.
    """
    contacts = slope.contacts
    moved = jnp.concatenate([contacts.distance[:, None], contacts.point, contacts.frame[:, :, 2]], 1)
    return report_slope(info, slope.impulse, moved, contacts.friction)


def report_slope(
    info: PackedStepInfo, impulse: Float[Array, " m"], moved: Float[Array, "nc 7"], friction: Float[Array, " nc"]
) -> PackedStepInfo:
    """The derivative of a packed report from those of the impulses, of distance, point and normal of each contact, and of its
    coefficient of friction."""
    head, dropped = jnp.zeros(HEAD, info.report.dtype), np.zeros(info.dropped_pairs.shape, jax.dtypes.float0)
    rest = jnp.zeros((info.layout[0], PER_CONTACT - 7), info.report.dtype)
    rest = rest.at[:, 9 - 7].set(friction)
    report = jnp.concatenate([head, impulse, jnp.concatenate([moved, rest], 1).reshape(-1)])
    return jax.tree.unflatten(jax.tree.structure(info), [report, dropped])


@functools.partial(jax.jit, static_argnums=0)
def _fields(layout: tuple[int, int, int], report: Float[Array, "*b r"], dropped_pairs: Int[Array, "*b"]) -> StepFields:
    """What a report says, of a step or of a batch of them."""
    read = functools.partial(_fields_of_one, layout)
    for _ in report.shape[:-1]:
        read = jax.vmap(read)
    return read(report, dropped_pairs)


@functools.partial(jax.jit, static_argnums=0)
def _one_sided(n: int, report: Float[Array, "*b r"]) -> Bool[Array, "*b n"]:
    columns = np.arange(n)
    words = report[..., ONE_SIDED:HEAD][..., columns // ONE_SIDED_BITS].astype(jnp.int32)
    return (words >> (columns % ONE_SIDED_BITS).astype(np.int32)) & 1 > 0


def _fields_of_one(layout: tuple[int, int, int], report: Float[Array, " r"], dropped_pairs: Int[Array, ""]) -> StepFields:
    nc, m = layout[0], _row_count(layout)
    impulse, rest = report[HEAD : HEAD + m], report[HEAD + m :].reshape(nc, PER_CONTACT)
    whole = functools.partial(jnp.asarray, dtype=jnp.int32)
    contacts = ContactInfo(
        rest[:, 0], rest[:, 1:4], contact_frames(rest[:, 4:7]), impulse[: 3 * nc].reshape(nc, 3),
        rest[:, 7].astype(int), rest[:, 8] > 0, rest[:, 9], *(rest[:, k].astype(int) for k in (10, 11, 12)),
    )  # fmt: skip
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status: Any = STATUS[0]
    for k, member in enumerate(STATUS[1:], 1):
        status = choose(whole(report[STATUS_AT]) == k, member, status)
    return StepFields(
        contacts, impulse, report[0], whole(report[1]), whole(report[2]), status, report[6].astype(int) + dropped_pairs,
        dropped_pairs, report[4] > 0, overflow_rows(report), report[PUSH_OUT_DROPPED] > 0,
    )  # fmt: skip


def _row_count(layout: tuple[int, int, int]) -> int:
    """Impulses in a report."""
    return 3 * layout[0] + layout[1] + layout[2]


def overflow_rows(report: Float[Array, " r"]) -> Int[Array, ""]:
    """Rows with an impulse that the report has no room for."""
    return jnp.asarray(report[7], dtype=jnp.int32)


def selected(report: Float[Array, " r"]) -> Bool[Array, ""]:
    """Whether the impulse is the shortest in its modes."""
    return report[5] > 0


def _given(compiled: CompiledSystem, model: Model | None, q, v, dt, slopes: bool):
    """`given_candidates` where contacts are looked for: at q, or at Moreau's midpoint."""
    if not compiled.given:
        return jnp.zeros((0, 14), q.dtype), jnp.zeros((0, 42), q.dtype), jnp.zeros((), int)
    if model is None:
        raise OptionError(f"model is None, but {compiled.given} candidates of the model are handed over to the core")
    if compiled.integrator == "moreau":
        q = integrate(model, q, 0.5 * dt * v)
    return given_candidates(compiled, model, q, v, dt, slopes)


def _shapes(compiled: CompiledSystem, dtype) -> tuple[jax.ShapeDtypeStruct, ...]:
    top = compiled.topology
    return tuple(jax.ShapeDtypeStruct((k,), dtype) for k in (top.nq, top.nv, compiled.report_size, compiled.impulses))
