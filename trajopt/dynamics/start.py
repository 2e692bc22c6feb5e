"""Starts that a contact law has to push out of joint limits: said once, before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.contact.laws.base import PUSH_OUT_SPEED, ContactLaw, Law
from trajopt.dynamics.model import Model

_SHOWN = 6  # names in a warning


class StartWarning(UserWarning):
    """An initial configuration lies so far beyond joint limits or inside other shapes that it begins by being pushed out."""


def deep(law: Law, dt: float) -> float | None:
    """Violation (m, rad) from which a law pushes out at `push_out_speed`; None for a law that pushes nothing out by `erp`."""
    if not isinstance(law, ContactLaw) or law.erp == 0:
        return None
    return (PUSH_OUT_SPEED if law.push_out_speed is None else law.push_out_speed) * dt / law.erp


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


def warn_of_limits(where: str, model: Model, law: Law, dt: float, q: Float[np.ndarray, " nq"], stacklevel: int = 3) -> None:
    """Issue a `StartWarning` that names the joints whose limits q violates deeply, under a law that has limits."""
    depth = deep(law, dt)
    if depth is None or not law.limits:
        return
    found = deep_limits(model, q, depth)
    if found:
        listed = named([f"'{name}' (by {beyond:.3g})" for name, beyond in found])
        warnings.warn(
            f"{where}: the configuration is beyond the limits of {listed}; {_consequence(law)}. Start within "
            "model.lower and model.upper, or give the law limits=False",
            StartWarning,
            stacklevel=stacklevel,
        )


def warn_of_overlaps(where: str, law: Law, pairs: Sequence[tuple[str, str]], stacklevel: int = 3) -> None:
    """Issue a `StartWarning` that names pairs of shapes which overlap deeply; nothing for no pairs."""
    if pairs:
        listed = named([f"'{a}' and '{b}'" for a, b in pairs])
        warnings.warn(
            f"{where}: at the configuration shapes overlap: {listed}; {_consequence(law)}. Part them, or leave the "
            "pairs out by exclude= of load_model (<exclude> in MJCF)",
            StartWarning,
            stacklevel=stacklevel,
        )


def named(entries: Sequence[str]) -> str:
    """The first entries, and how many more there are."""
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more


def _consequence(law: Law) -> str:
    cap = law.push_out_speed if isinstance(law, ContactLaw) else None
    if cap is None:
        return "the first steps throw them out, however fast (push_out_speed=None)"
    return f"the first steps push them out at push_out_speed={cap:g} (m/s, rad/s)"
