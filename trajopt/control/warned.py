"""Warnings of a run of a receding horizon, with their likely cause and what helps."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from trajopt.control.recording import Recording
from trajopt.solvers.plan import row_names
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints

if TYPE_CHECKING:
    from trajopt.control.controller import Controller

SHARE = 0.2  # of late or rejected solves, and of plans that violate a constraint
KEPT = 1e-3  # violation of a plan, in the row's unit, that is none
DEPARTED = 2.0  # times what was planned that a plan costs at the next measurement where the plant departs from it


def warn_of(recording: Recording, controller: Controller) -> None:
    """Warn of more than one late or rejected solve in five, and of a constraint that more than one plan in five violates."""
    if not len(recording.latency):
        return
    rejected, where = float(1.0 - recording.accepted.mean()), f"problem '{controller.problem.name}': "
    warn_of_late(recording.latency, controller, stacklevel=4)
    if rejected > SHARE:
        warnings.warn(f"{where}{rejected:.0%} of the solves found no better plan; {_cause(recording)}", stacklevel=3)
    shares = (recording.violation > KEPT).mean(0)
    if (shares > SHARE).any():
        worst = int(np.argmax(shares))
        subject = controller.planner.problem
        stage, terminal = Constraints(subject).inequality()
        name, most = row_names(subject, stage.size, terminal.size)[worst], float(recording.violation[:, worst].max())
        warnings.warn(
            f"{where}{shares[worst]:.0%} of the plans violate '{name}', by up to {most:.3g}; a longer horizon or "
            "period, a start that keeps it, or less weight on what pulls against it, may help",
            stacklevel=3,
        )


def warn_of_late(seconds: Float[np.ndarray, " S"], controller: Controller, stacklevel: int = 2) -> bool:
    """Warn where more than one solve in five took longer than its period; whether there was a warning."""
    late = float((seconds > controller.period).mean())
    if late > SHARE:
        median = 1e3 * float(np.median(seconds))
        warnings.warn(
            f"problem '{controller.problem.name}': {late:.0%} of the solves took longer than their period of "
            f"{1e3 * controller.period:.3g} ms, {median:.3g} ms at the median; use a longer period, a shorter horizon, or fewer "
            "rollouts (population)",
            stacklevel=stacklevel,
        )
    return late > SHARE


def _cause(recording: Recording) -> str:
    """Why solves are rejected, as far as their costs tell."""
    fast = float(np.abs(np.diff(recording.xs, axis=0)).max())
    planned = np.maximum(recording.cost[:-1], 1e-12)
    growth = float(np.median(recording.cost_before[1:] / planned)) if len(planned) else 1.0
    if growth > DEPARTED:
        return (
            f"at the next measurement a plan costs {growth:.2g} times what was planned: the plant departs from the model (time "
            "step, friction, delay), or motions are so fast that the model's step is too long"
        )
    return (
        f"the state moves by up to {fast:.3g} in a tick; a velocity or control term with more weight, a smaller step of the "
        "model, or a guess (u0) nearer to a motion, may help"
    )
