"""Status of a solve: one enumeration for every solver, whose members are their own messages."""

from __future__ import annotations

import equinox as eqx


class Status(eqx.Enumeration):
    """How a solver or a contact solve ended. `Status[member]` is the message."""

    solved = "solved: the recomputed residual is within the tolerance"
    acceptable = "acceptable: no further progress, residual within the relaxed tolerance only"
    max_iterations = "stopped at the iteration limit; raise max_iterations or start from a better guess"
    time_budget = "stopped at the time budget; the best point so far is returned"
    line_search_failed = "the line search found no decrease; the gradient may be wrong or the problem non-smooth here"
    infeasible = "infeasible: the constraints cannot be satisfied together, to the solver's knowledge"
    non_finite = "non-finite values appeared in the dynamics or the cost; see the step reported with the solution"
    contact_failed = "the contact solver did not reach its tolerance; see the step reported with the solution"
    stalled = "stalled: the merit function can no longer be reduced and the residual is above the tolerance"
    interrupted = "interrupted by the user; the best point so far is returned"
