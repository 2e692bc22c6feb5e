"""Live progress of a run: a line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

_HEADER = f"{'iteration':>9}  {'cost':>10}  {'violation':>10}  {'step size':>10}  {'gradient':>10}  {'evaluations':>11}"
_KEPT = 12  # rows that stay visible on a terminal
_INTERVAL_S = 1.0  # between plain lines, after the first ones


def say(console: Console, text: str) -> None:
    """Print plain text: no markup, so that brackets survive, no wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def line(row: dict[str, float]) -> str:
    """One row of the trace as text."""
    numbers = "  ".join(f"{row[key]:10.3e}" for key in ("cost", "violation", "step_size", "gradient_norm"))
    return f"{int(row['iteration']):9d}  {numbers}  {int(row['evaluations']):11d}"


class Progress:
    """Callback of `solve` that shows iteration, cost, constraint violation, step size and gradient norm."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.rows: list[str] = []
        self.shown, self.last = 0, -math.inf
        self.pending: str | None = None
        self.live: Live | None = None

    def __enter__(self) -> Progress:
        if not self.quiet and self.console.is_terminal:
            self.live = Live(Text("compiling ..."), console=self.console, refresh_per_second=8)
            self.live.start()
        elif not self.quiet:
            say(self.console, _HEADER)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.pending is not None:
            say(self.console, self.pending)
        if self.live is not None:
            self.live.update(self._block(), refresh=True)
            self.live.stop()

    def _block(self) -> Text:
        return Text("\n".join([_HEADER, *self.rows[-_KEPT:]]))

    def __call__(self, row: dict[str, float]) -> None:
        if self.quiet:
            return
        text = line(row)
        if self.live is not None:
            self.rows.append(text)
            self.live.update(self._block())
            return
        now = time.perf_counter()
        if self.shown < _KEPT or now - self.last > _INTERVAL_S:
            say(self.console, text)
            self.shown, self.last, self.pending = self.shown + 1, now, None
        else:
            self.pending = text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as plain text; columns of numbers are right-aligned."""
    cells = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    numeric = [all(not row[i] or row[i][0] in "-0123456789" for row in rows) for i in range(len(columns))]
    lines = [
        "  ".join(f"{cell:>{w}}" if right else f"{cell:<{w}}" for cell, w, right in zip(row, widths, numeric)).rstrip()
        for row in cells
    ]
    return "\n".join([title, lines[0], "-" * max(map(len, lines)), *lines[1:]])
