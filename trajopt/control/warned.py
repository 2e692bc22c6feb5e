"""Warnings of a run of a receding horizon, with their likely cause and what helps."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from trajopt.control.recording import Recording

if TYPE_CHECKING:
    from trajopt.control.controller import Controller

SHARE = 0.2  # of late or rejected solves


def warn_of(recording: Recording, controller: Controller) -> None:
    """Warn of more than one late or rejected solve in five."""
    if not len(recording.latency):
        return
    late, rejected = float(recording.late.mean()), float(1.0 - recording.accepted.mean())
    name = controller.problem.name
    if late > SHARE:
        median = 1e3 * float(np.median(recording.latency))
        warnings.warn(
            f"problem '{name}': {late:.0%} of the solves took longer than their period of {1e3 * recording.period:.3g} ms, "
            f"{median:.3g} ms at the median; use a longer period, a shorter horizon, or fewer rollouts (population)",
            stacklevel=3,
        )
    if rejected > SHARE:
        warnings.warn(f"problem '{name}': {rejected:.0%} of the solves found no better plan; {_cause(recording)}", stacklevel=3)


def _cause(recording: Recording) -> str:
    """Why solves are rejected, as far as their costs tell."""
    fast = float(np.abs(np.diff(recording.xs, axis=0)).max())
    growth = np.median(recording.cost_before[1:] / np.maximum(recording.cost[:-1], 1e-12)) if len(recording.cost) > 1 else 1.0
    if np.median(recording.iterations) <= 1 and np.median(recording.latency) < 0.5 * recording.period and growth > 2:
        return "the plant departs from the plan, whose cost at the next measurement is {growth:.2g} times what was planned"
    if growth > 2:
        return (
            f"at the next measurement a plan costs {growth:.2g} times what was planned: the plant departs from the "
            "model (time step, friction, delay), or motions are so fast that the model's step is too long"
        )
    return (
        f"the state moves by up to {fast:.3g} in a tick; a velocity or control term with more weight, a smaller step of "
        "the model, or a guess (u0) nearer to a motion, may help"
    )
