"""An interrupt that is not lost.

Python raises KeyboardInterrupt wherever the signal finds it. Where nobody passes it on, in a callback of the garbage
collector (JAX has one) or in a finalizer, Python prints and forgets it, and a run without end would go on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def end_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a signal to end has come since; the signals' own handlers run as before.

    Python says nothing of an interrupt that it drops within the block: whoever asks the function hears of it. Outside the main
    thread, where signals never raise, the function always says no.
    """
    seen: list[int] = []
    replaced = {}
    tell = sys.unraisablehook

    def tell_others(dropped: Any) -> None:
        if not (seen and issubclass(dropped.exc_type, KeyboardInterrupt)):
            tell(dropped)

    def listen(number: int) -> None:
        handler = signal.getsignal(number)
        if not callable(handler):
            return

        def remember(received: int, frame: Any) -> Any:
            seen.append(received)
            return handler(received, frame)

        replaced[number] = (remember, handler)
        signal.signal(number, remember)

    if threading.current_thread() is threading.main_thread():
        listen(signal.SIGINT)
        listen(signal.SIGTERM)
        sys.unraisablehook = tell_others
    try:
        yield lambda: bool(seen)
    finally:
        for number, (remember, handler) in replaced.items():
            if signal.getsignal(number) is remember:
                signal.signal(number, handler)
        if sys.unraisablehook is tell_others:
            sys.unraisablehook = tell
