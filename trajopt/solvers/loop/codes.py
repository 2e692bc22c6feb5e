"""Statuses inside compiled programs: a whole number for each member of `Status`, and one for a sample that goes on."""

from __future__ import annotations

from trajopt.result import Status, status_named, status_names

CODES: dict[str, int] = {name: number for number, name in enumerate(status_names())}
GOING_ON = -1


def status_of(code: int) -> Status:
    """The status of a code."""
    return status_named(status_names()[code])
