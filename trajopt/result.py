"""Status of a solve: one enumeration for every solver, whose members are their own names and messages."""

from typing import Any

import equinox as eqx

from trajopt.errors import UnknownNameError
from trajopt.names import closest


def _member(message: str) -> Any:
    """The message of a member, of which equinox makes the member; not `str`, which type checkers would take the member for."""
    return message


class Status(eqx.Enumeration):
    """How a solver or a contact solve ended. `Status[member]` is the message."""

    solved = _member("solved: the recomputed residual is within the tolerance")
    acceptable = _member("acceptable: no further progress; goals or certificate met, or stationary to the relaxed tolerance")
    max_iterations = _member("stopped at the iteration limit; raise max_iterations or start from a better guess")
    time_budget = _member("stopped at the time budget; the best point so far is returned")
    line_search_failed = _member("the line search found no decrease; the gradient may be wrong or the problem non-smooth here")
    infeasible = _member("infeasible: the constraints cannot be satisfied together, to the solver's knowledge")
    non_finite = _member("non-finite values appeared in the dynamics or the cost; see the step reported with the solution")
    contact_failed = _member("the contact solver did not reach its tolerance; see the step reported with the solution")
    stalled = _member("stalled: the merit function can no longer be reduced and the residual is above the tolerance")
    no_influence = _member("no control changes what the task asks for: smooth contact, sample first, or guess a touch")
    interrupted = _member("interrupted by the user; the best point so far is returned")


def status_names() -> tuple[str, ...]:
    """Names of all members."""
    return tuple(Status._name_to_item)


def status_name(status: Status) -> str:
    """Name of a member, as written to files: "solved"."""
    return next(name for name, member in Status._name_to_item.items() if bool(member == status))


# Of problems that set no tolerance, such as a fit whose residual ends where the noise is.
_WITHOUT_TOLERANCE = {
    "solved": "solved: the cost can no longer be reduced",
    "acceptable": "acceptable: no further progress; the cost can hardly be reduced",
    "stalled": "stalled: no step reduces the cost, which is not stationary to the solver's tolerance",
}


def status_message(status: Status, tolerance: bool = True) -> str:
    """The message of a member: "solved: the recomputed residual is within the tolerance".

    tolerance: whether the problem sets one.
    """
    message = str(Status[status])  # type: ignore[misc]
    return message if tolerance else _WITHOUT_TOLERANCE.get(status_name(status), message)


def status_named(name: str) -> Status:
    """The member of this name. Raises `UnknownNameError` with the closest names."""
    if name not in status_names():
        raise UnknownNameError(f"there is no status '{name}'{closest(name, status_names())}")
    return getattr(Status, name)
