"""The report of a step through the compiled core: one array, from which the attributes of a `StepInfo` are read.

The tables below are those of native/report_layout.h: first the numbers of `HEAD`, then the reported impulses, then the numbers of
`CONTACT` for each reported contact.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.arguments import holds_traced, is_traced
from trajopt.dynamics.contact.rows import contact_frames
from trajopt.dynamics.state import ContactInfo, StepFields, StepInfo
from trajopt.native.contacts import STATUSES
from trajopt.result import Status

ONE_SIDED_BITS = 24  # columns of A that one number of the report names
HEAD = {
    name: k for k, name in enumerate([
        "residual", "iterations", "fallbacks", "status", "degenerate", "selected", "dropped", "overflow", "active_contacts",
        "active_rows", "passes", "push_out_dropped", *(f"one_sided_{k}" for k in range(13)),
    ])
}  # fmt: skip
CONTACT = {
    "distance": 1, "point": 3, "normal": 3, "mode": 1, "tied": 1, "friction": 1, "node1": 1, "node2": 1, "pair": 1,
}  # fmt: skip
NON_FINITE = STATUSES.index("non_finite")

_READ = frozenset(field.name for field in dataclasses.fields(StepFields))  # attributes that are read from a report


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedStepInfo(StepInfo):
    """A `StepInfo` in the one array in which the core reports, from which the attributes are read when they are asked for.

    A call that returned each of them as an array would cost several times what the step costs. `layout`: numbers of contacts,
    limits and rows of joint friction in the report; active rows that do not fit into it are `overflow`.
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
    head, dropped = jnp.zeros(len(HEAD), info.report.dtype), np.zeros(info.dropped_pairs.shape, jax.dtypes.float0)
    columns = {"distance": moved[:, :1], "point": moved[:, 1:4], "normal": moved[:, 4:], "friction": friction[:, None]}
    none = {name: jnp.zeros((friction.shape[0], size), info.report.dtype) for name, size in CONTACT.items()}
    contacts = jnp.concatenate(list((none | columns).values()), 1)
    return PackedStepInfo(jnp.concatenate([head, impulse, contacts.reshape(-1)]), dropped, info.layout)  # type: ignore[arg-type]


@functools.partial(jax.jit, static_argnums=0)
def _fields(layout: tuple[int, int, int], report: Float[Array, "*b r"], dropped_pairs: Int[Array, "*b"]) -> StepFields:
    """What a report says, of a step or of a batch of them."""
    read = functools.partial(_fields_of_one, layout)
    for _ in report.shape[:-1]:
        read = jax.vmap(read)
    return read(report, dropped_pairs)


def _fields_of_one(layout: tuple[int, int, int], report: Float[Array, " r"], dropped_pairs: Int[Array, ""]) -> StepFields:
    nc, limits, others = layout
    head = {name: report[k] for name, k in HEAD.items()}
    impulse, rows = jnp.split(report[len(HEAD) :], [3 * nc + limits + others])
    ends = list(itertools.accumulate(CONTACT.values()))
    columns = jnp.split(rows.reshape(nc, ends[-1]), ends[:-1], 1)
    of = {name: part[:, 0] if size == 1 else part for (name, size), part in zip(CONTACT.items(), columns, strict=True)}
    whole = functools.partial(jnp.asarray, dtype=jnp.int32)
    contacts = ContactInfo(
        of["distance"], of["point"], contact_frames(of["normal"]), impulse[: 3 * nc].reshape(nc, 3),
        of["mode"].astype(int), of["tied"] > 0, of["friction"], *(of[name].astype(int) for name in ("node1", "node2", "pair")),
    )  # fmt: skip
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status: Any = Status.solved
    for k, name in enumerate(STATUSES):
        status = choose(whole(head["status"]) == k, getattr(Status, name), status)
    return StepFields(
        contacts, impulse, head["residual"], whole(head["iterations"]), whole(head["fallbacks"]), status,
        head["dropped"].astype(int) + dropped_pairs, dropped_pairs, head["degenerate"] > 0, whole(head["overflow"]),
        head["push_out_dropped"] > 0,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _one_sided(n: int, report: Float[Array, "*b r"]) -> Bool[Array, "*b n"]:
    columns = np.arange(n)
    words = report[..., HEAD["one_sided_0"] : len(HEAD)][..., columns // ONE_SIDED_BITS].astype(jnp.int32)
    return (words >> (columns % ONE_SIDED_BITS).astype(np.int32)) & 1 > 0
