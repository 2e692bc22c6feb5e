"""The end of a command whose main thread does not come back.

Python runs the handlers of signals in its main thread, between two of its own instructions. While that thread waits for a
compiled program, neither Ctrl-C nor a termination signal does anything; if the program never ends, nothing but SIGKILL
would. The handler in C, though, runs at once and writes the number of the signal to a file descriptor
(`signal.set_wakeup_fd`). A second thread reads it, and ends the process after the second signal.

An interrupt that Python raises in a callback of the garbage collector or in a finalizer is dropped; it is raised once more.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

BURST_S = 0.5  # signals closer than this count once: `timeout` sends two, to the process and to its group
PATIENCE_S = 3.0  # after the first signal until a hint is printed, and after the second until the process is ended
AGAIN_S = 0.01  # until a dropped interrupt is raised once more, by then outside of what dropped it
EXIT_STATUS = 1  # ran without reaching the tolerance
HINT = "waiting for compiled code to come back; a second Ctrl-C or termination signal ends the run now"


class Watchdog:
    """Counts the signals to end and ends the process after the second, whatever the main thread does.

    last_words: called in the watchdog's thread before the end, for the line that says what was kept. It may read files and
    must not touch JAX.
    """

    def __init__(self, last_words: Callable[[], str]) -> None:
        self.last_words = last_words
        self.count = 0  # of signals to end, bursts as one
        self.heard = False  # by the main thread
        self.again = False  # whether the next signal is one that was counted already
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="trajopt-watchdog", daemon=True)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; the process is no longer ended."""
        signal.set_wakeup_fd(self._previous)
        self._writer.close()  # the reader sees the end
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        last, hinted = -BURST_S, False
        deadline: float | None = None
        while True:
            wait = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            ready, now = select.select([self._reader], [], [], wait)[0], time.monotonic()
            if ready:
                received = self._reader.recv(64)
                if not received:
                    return
                if any(number in (signal.SIGINT, signal.SIGTERM) for number in received):
                    if now - last >= BURST_S and not self.again:
                        self.count += 1
                        deadline = now + PATIENCE_S if self.count <= 2 else deadline
                    last, self.again = now, False
            if deadline is not None and now >= deadline:
                if self.count >= 2:
                    self._end()
                deadline = None
                if not self.heard and not hinted:
                    hinted = True
                    _say(HINT)

    def _end(self) -> None:
        try:
            _say(f"ended by a second signal; {self.last_words()}")
        finally:
            os._exit(EXIT_STATUS)


def _say(text: str) -> None:
    """One line to standard error, past Python's buffers and their locks, which the main thread may hold."""
    shown = "\x1b[?25h" if sys.__stdout__ is not None and sys.__stdout__.isatty() else ""  # progress hides the cursor
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}trajopt: {text}\n".encode())


@contextlib.contextmanager
def heeding_signals(last_words: Callable[[], str]) -> Iterator[Callable[[], bool]]:
    """Within the block, Ctrl-C and a termination signal raise KeyboardInterrupt, those of a burst once; the second ends the
    process within a few seconds where the main thread does not. A KeyboardInterrupt that Python drops is raised once more.

    Yields a function that says whether a termination signal has come: who sends one waits for the end of the process, so that
    nothing is drawn any more. last_words: see `Watchdog`. Only in the main thread; elsewhere signals are left as they are.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield lambda: False
        return
    watchdog = Watchdog(last_words)
    raised = latest = 0
    terminated = False
    tell, timers = sys.unraisablehook, []

    def interrupt(number, frame) -> None:
        nonlocal raised, latest, terminated
        latest, terminated = number, terminated or number == signal.SIGTERM
        watchdog.heard = True
        time.sleep(0.05)  # lets the watchdog read and count this signal; the first counts in any case
        if raised == 0 or watchdog.count > raised:
            raised = max(watchdog.count, 1)
            raise KeyboardInterrupt

    def raise_again(dropped: Any) -> None:
        nonlocal raised
        if not (latest and issubclass(dropped.exc_type, KeyboardInterrupt)):
            tell(dropped)
            return
        raised, watchdog.again = watchdog.count - 1, True
        again = threading.Timer(AGAIN_S, signal.pthread_kill, (main.ident, latest))
        again.daemon = True
        again.start()
        timers.append(again)

    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    # Not where Ctrl-C is ignored, as in programs that a shell starts in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = raise_again
    try:
        yield lambda: terminated
    finally:
        sys.unraisablehook = tell
        for again in timers:
            again.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
        watchdog.close()
