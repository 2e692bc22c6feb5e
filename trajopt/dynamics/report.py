"""The report of a step through the compiled core: one array, from which the attributes of a `StepInfo` are read.

The tables below are those of native/report_layout.h: first the numbers of `HEAD`, then the reported impulses, then the numbers of
`CONTACT` for each reported contact. The closest contacts can cost more than the step, which those that are far have no part in:
the head comes alone, and the rest when it is asked for.
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
from trajopt.dynamics.state import ContactInfo, StepInfo
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

_OF_REPORT = ("contacts", "impulse", "overflow")  # attributes that are read from the whole report
_OF_HEAD = tuple(f.name for f in dataclasses.fields(StepInfo) if f.name not in (*_OF_REPORT, "dropped_pairs"))


class PackedStepInfo(StepInfo):
    """A `StepInfo` in the arrays in which the core reports, from which the attributes are read when they are asked for.

    A call that returned each of them as an array would cost several times what the step costs. head: begins with the numbers of
    `HEAD`; report: the whole one, None where it is to be left out; layout: numbers of contacts, limits and rows of joint
    friction in it; active rows that do not fit into it are `overflow`.
    """

    head: Float[Array, "*b h"]
    report: Float[Array, "*b r"] | None
    layout: tuple[int, int, int]

    def __init__(
        self,
        head: Float[Array, "*b h"],
        report: Float[Array, "*b r"] | None,
        dropped_pairs: Int[Array, "*b"],
        layout: tuple[int, int, int],
        make: Callable[[], Float[Array, "*b r"]] | None = None,
    ) -> None:
        """make: what makes the report when it is first read, in place of `report`."""
        fields = self.__dict__
        fields["head"], fields["dropped_pairs"], fields["layout"] = head, dropped_pairs, layout
        fields["report" if make is None else "_make"] = report if make is None else make

    def with_report(self, make: Callable[[], Float[Array, "*b r"]] | None) -> PackedStepInfo:
        """The same with the whole report that `make()` gives when it is first read; None: without one."""
        return PackedStepInfo(self.head, None, self.dropped_pairs, self.layout, make)

    def unpacked(self) -> StepInfo:
        return StepInfo(**{field.name: getattr(self, field.name) for field in dataclasses.fields(StepInfo)})

    def one_sided(self, n: int) -> Bool[Array, "*b n"]:
        """Which of the n columns of A are one-sided (`Linearization.one_sided`); none in the report of a step alone."""
        return _one_sided(n, self.head)

    def _kept(self, made: dict[str, Any], source: Any) -> dict[str, Any]:
        """`made`, kept unless it was made of numbers that are known where JAX traces, beyond which it means nothing."""
        if holds_traced(made) == is_traced(source):
            self.__dict__.update(made)
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "report" and (make := self.__dict__.get("_make")) is not None:
            return self._kept({name: make()}, self.head)[name]
        if name in _OF_HEAD:
            return self._kept(_fields_of_head(self.head, self.dropped_pairs), self.head)[name]
        if name in _OF_REPORT:
            return self._kept(_fields_of_report(self.layout, self.report), self.report)[name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def __getstate__(self) -> dict[str, Any]:
        """The arrays: what makes the report is not copied."""
        return {name: getattr(self, name) for name in ("head", "report", "dropped_pairs", "layout")}


jax.tree_util.register_pytree_node(
    PackedStepInfo,
    lambda info: ((info.head, info.report, info.dropped_pairs), info.layout),
    lambda layout, arrays: PackedStepInfo(*arrays, layout),
)


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
    dropped = np.zeros(info.dropped_pairs.shape, jax.dtypes.float0)
    columns = {"distance": moved[:, :1], "point": moved[:, 1:4], "normal": moved[:, 4:], "friction": friction[:, None]}
    none = {name: jnp.zeros((friction.shape[0], size), impulse.dtype) for name, size in CONTACT.items()}
    contacts = jnp.concatenate(list((none | columns).values()), 1)
    report = jnp.concatenate([jnp.zeros(len(HEAD), impulse.dtype), impulse, contacts.reshape(-1)])
    return PackedStepInfo(jnp.zeros_like(info.head), report, dropped, info.layout)  # type: ignore[arg-type]


@jax.jit
def _fields_of_head(head: Float[Array, "*b h"], dropped_pairs: Int[Array, "*b"]) -> dict[str, Any]:
    """The attributes that a head holds, of a step or of a batch of them."""
    of = {name: head[..., k] for name, k in HEAD.items()}
    whole = functools.partial(jnp.asarray, dtype=jnp.int32)
    status_of: Callable[..., Any] = _status
    for _ in head.shape[:-1]:
        status_of = jax.vmap(status_of)
    return {
        "residual": of["residual"], "iterations": whole(of["iterations"]), "fallbacks": whole(of["fallbacks"]),
        "status": status_of(whole(of["status"])), "dropped": of["dropped"].astype(int) + dropped_pairs,
        "degenerate": of["degenerate"] > 0, "push_out_dropped": of["push_out_dropped"] > 0,
    }  # fmt: skip


def _status(number: Int[Array, ""]) -> Any:
    """The status of a step from its position in `STATUSES`."""
    choose: Callable[..., Any] = Status.where  # its annotation takes members, which type checkers see as strings
    status: Any = Status.solved
    for k, name in enumerate(STATUSES):
        status = choose(number == k, getattr(Status, name), status)
    return status


@functools.partial(jax.jit, static_argnums=0)
def _fields_of_report(layout: tuple[int, int, int], report: Float[Array, "*b r"]) -> dict[str, Any]:
    """The attributes that are read from a whole report, of a step or of a batch of them."""
    nc, limits, others = layout
    batch, ends = report.shape[:-1], list(itertools.accumulate(CONTACT.values()))
    impulse, rows = jnp.split(report[..., len(HEAD) :], [3 * nc + limits + others], -1)
    columns = jnp.split(rows.reshape(*batch, nc, ends[-1]), ends[:-1], -1)
    of = {name: part[..., 0] if size == 1 else part for (name, size), part in zip(CONTACT.items(), columns, strict=True)}
    contacts = ContactInfo(
        of["distance"], of["point"], contact_frames(of["normal"]), impulse[..., : 3 * nc].reshape(*batch, nc, 3),
        of["mode"].astype(int), of["tied"] > 0, of["friction"],
        *(of[name].astype(int) for name in ("node1", "node2", "pair")),
    )  # fmt: skip
    return {"contacts": contacts, "impulse": impulse, "overflow": report[..., HEAD["overflow"]].astype(jnp.int32)}


@functools.partial(jax.jit, static_argnums=0)
def _one_sided(n: int, head: Float[Array, "*b h"]) -> Bool[Array, "*b n"]:
    columns = np.arange(n)
    words = head[..., HEAD["one_sided_0"] : len(HEAD)][..., columns // ONE_SIDED_BITS].astype(jnp.int32)
    return (words >> (columns % ONE_SIDED_BITS).astype(np.int32)) & 1 > 0
