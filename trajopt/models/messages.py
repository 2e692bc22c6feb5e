"""Warnings that a reader can take in: names listed up to a number, warnings of one kind in one line."""

import re
from collections.abc import Sequence

SHOWN = 6  # names in a warning
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|[-+]?\d[\d.e+-]*")
_NAME = re.compile(r"name=\"([^\"]*)\"|'([^']*)'")


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def grouped(messages: Sequence[str]) -> list[str]:
    """Messages that differ in names and numbers only as one: the first of them, how many more, and what they are about."""
    kinds: dict[str, list[str]] = {}
    for message in dict.fromkeys(messages):
        kinds.setdefault(_VARIABLE.sub("_", message), []).append(message)
    lines = []
    for first, *others in kinds.values():
        names = list(dict.fromkeys(_subject(message) for message in others))
        about = f": {listed(names)}" if all(names) else ""
        lines.append(f"{first} (and {len(others)} more of this kind{about})" if others else first)
    return lines


def _subject(message: str) -> str:
    """The first name in a message; of a path its last part."""
    match = _NAME.search(message)
    return (match[1] or match[2] or "").rstrip("/").rpartition("/")[2] if match else ""
