"""Inertias: those of several bodies as one, which no body can have, those of solids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import Model
from trajopt.models.descriptions import skew_square

Inertial = tuple[
    float, np.ndarray, np.ndarray
]  # mass (kg), centre of mass (m), inertia about it (kg m^2), one set of axes


def joined(parts: Sequence[Inertial]) -> Inertial:
    """Mass, centre of mass and inertia of several rigid parts, in the same axes."""
    mass = float(sum(m for m, _, _ in parts))
    com = np.zeros(3)
    if len(parts) == 1:
        com = np.asarray(parts[0][1], float)
    elif mass > 0:
        com = sum((m * c for m, c, _ in parts), np.zeros(3)) / mass
    inertia = np.zeros((3, 3))
    for m, c, about_com in parts:
        inertia += about_com + m * skew_square(c - com)
    return mass, com, (inertia + inertia.T) / 2


def impossible_inertias(model: Model) -> str | None:
    """A sentence about bodies whose principal moments are negative or break the triangle inequality; None if there are none."""
    bad = []
    for i, name in enumerate(model.topology.node_names):
        moments: Float[np.ndarray, "3"] = np.linalg.eigvalsh(model.inertia[i])
        scale = abs(moments).max()
        slack = 1e-6 * scale + 1e-15
        if moments[0] < -slack or moments[0] + moments[1] < moments[2] - slack:
            bad.append(f"'{name}' ({', '.join(f'{m:.3g}' for m in moments)})")
    if not bad:
        return None
    return (
        "no rigid body can have these principal moments of inertia (negative, or the largest above the sum of "
        f"the others): {', '.join(bad)}; the dynamics may be ill-posed"
    )
