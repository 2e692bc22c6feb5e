"""Starts that a contact law has to push out of joint limits: said once, before the first step."""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.arguments import holds_traced
from trajopt.dynamics.contact.laws.base import Law, PushOut
from trajopt.dynamics.model import Model

_SHOWN = 6  # names in a warning


class StartWarning(UserWarning):
    """An initial configuration lies so far beyond joint limits or inside other shapes that it begins by being pushed out."""


def deep_limits(model: Model, q: Float[np.ndarray, " nq"], depth: float) -> list[tuple[str, float]]:
    """(joint, violation in m or rad) of the limits that q violates by more than `depth`."""
    top, found = model.topology, []
    lower, upper = np.asarray(model.lower), np.asarray(model.upper)
    for dof in top.limited:
        value = float(q[top.scalar_q_of_dof[dof]])
        beyond = max(float(lower[dof]) - value, value - float(upper[dof]))
        if beyond > depth:
            [name] = [joint.name for joint in top.joints if joint.v_start <= dof < joint.v_start + joint.nv]
            found.append((name, beyond))
    return found


def warn_of_start(where: str, model: Model, law: Law, dt: float | Float[Array, ""], q: Float[Array, " nq"]) -> None:
    """`warn_of_limits`, unless something is traced: then nothing is known yet."""
    if not holds_traced(model, dt, q):
        warn_of_limits(where, model, law, float(dt), np.asarray(q), stacklevel=5)


def warn_of_limits(
    where: str, model: Model, law: Law, dt: float, q: Float[np.ndarray, " nq"], stacklevel: int = 3
) -> None:
    """Issue a `StartWarning` that names the joints whose limits q violates deeply, under a law that has limits."""
    push = law.push_out(dt)
    found = [] if push is None or not law.limits else deep_limits(model, q, push.depth)
    if push is not None and found:
        listed = named([f"'{name}' (by {beyond:.3g})" for name, beyond in found])
        warnings.warn(
            f"{where}: the configuration is beyond the limits of {listed}; {push.consequence}. Start within model.lower and "
            "model.upper, or give the law limits=False",
            StartWarning,
            stacklevel=stacklevel,
        )


def warn_of_overlaps(where: str, push: PushOut, pairs: Sequence[tuple[str, str]], stacklevel: int = 3) -> None:
    """Issue a `StartWarning` that names pairs of shapes which overlap deeply; nothing for no pairs."""
    if pairs:
        listed = named([f"'{a}' and '{b}'" for a, b in pairs])
        warnings.warn(
            f"{where}: at the configuration shapes overlap: {listed}; {push.consequence}. Part them, or leave the pairs out by "
            "exclude= of load_model (<exclude> in MJCF)",
            StartWarning,
            stacklevel=stacklevel,
        )


def named(entries: Sequence[str]) -> str:
    """The first entries, and how many more there are."""
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more
