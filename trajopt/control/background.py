"""A thread that does one task at a time with the newest thing it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Background:
    """Calls `work` with what it is given, in a thread; what comes while it is at work waits, the newest alone.

    An error of `work` is raised by the next `give` or `close`.
    """

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work
        self._news = threading.Condition()
        self._waiting: list[Any] = []
        self._open = True
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trajopt replanning", daemon=True)
        self._thread.start()

    def give(self, task: Any) -> None:
        """Hand over a task; one that still waits is forgotten."""
        self._raise()
        with self._news:
            self._waiting = [task]
            self._news.notify()

    def close(self) -> None:
        """End once the present task is done."""
        with self._news:
            self._open = False
            self._news.notify()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or not self._open)
                if not self._open:
                    return
                task = self._waiting.pop()
            try:
                self.work(task)
            except Exception as error:  # the caller's to handle, in the caller's thread
                self._error = error
