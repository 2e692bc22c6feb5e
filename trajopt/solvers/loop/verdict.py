"""The one rule by which a point is a success, for single solves, batches and searches that try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trajopt.problems.goals import PREFIX
from trajopt.result import Status, status_name
from trajopt.solvers.loop.contract import Problem

NO_PROGRESS = ("stalled", "line_search_failed", "no_influence", "infeasible", "contact_failed")


def verdict(
    problem: Problem, status: Status, shortfalls: Sequence[str], cost: float, lacks_influence: Callable[[], bool] | None = None
) -> tuple[Status, bool]:
    """(the status that is reported, whether the point is a success).

    A success has a finite cost and no shortfalls, the sentences about what was recomputed there and is too large. It is also
    optimal, which the solver says by `solved`, unless for this problem feasibility is success: goals decide, or the tolerance of
    a residual. There no further progress at an answer is `acceptable`, whatever the solver holds of it. A solver that claims an
    optimum where there are shortfalls has stalled, or its contact solves have failed; goals that are not met leave the status,
    which says how the solver stopped, but for an optimum where no control changes what is asked (lacks_influence).
    """
    claimed = status_name(status)
    infeasible = [sentence for sentence in shortfalls if not sentence.startswith(PREFIX)]
    if infeasible and claimed in ("solved", "acceptable"):
        status = Status.contact_failed if infeasible[0].startswith("contact_residual") else Status.stalled
    if not shortfalls and claimed in NO_PROGRESS and problem.feasibility_is_success:
        status = Status.acceptable
    if shortfalls and not infeasible and claimed == "solved" and lacks_influence is not None and lacks_influence():
        status = Status.no_influence
    optimal = claimed == "solved" or problem.feasibility_is_success
    return status, bool(optimal and not shortfalls and np.isfinite(cost))
