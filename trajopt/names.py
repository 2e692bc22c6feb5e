"""Names that the command line knows before it imports anything heavy, suggestions for mistyped ones, and counts of things."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SELF_COLLISION = ("auto", "all", "none")  # which links of one robot collide (`models.load_model`)


def counted(count: int, thing: str) -> str:
    """A number of things, in words that a message can hold: 1 iteration, 2 iterations."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def closest(name: str, known: Iterable[str], most: int = 5) -> str:
    """A sentence naming the known names closest to `name`, to append to an error message."""
    known = sorted(known)
    if not known:
        return "; there are none"
    near = difflib.get_close_matches(name, known, n=most, cutoff=0.4)
    if near:
        return "; did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; known are: {shown}"
