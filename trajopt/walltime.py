"""Where the wall time of a command goes: at every moment one part is under way, from the start of the process on.

`part(name)` marks a stretch of code, of which inner ones take their share; outside of a command that keeps a `WallTime` it does
nothing. What JAX spends on tracing, lowering and compiling is taken out of the part it happens in and is a part of its own.
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

COMPILE, OTHER, TOTAL = "compile", "other", "total"
_COMPILING = "/jax/core/compile/"  # JAX's events: jaxpr_trace, jaxpr_to_mlir_module and backend_compile durations


class WallTime:
    """The timeline of one command, in seconds of `time.perf_counter`.

    started: when the command began; the time until the object is made belongs to the part `first`.
    """

    def __init__(self, started: float, first: str) -> None:
        self.started = started
        self._stretches: list[tuple[str, float, float]] = []  # one after the other, without gaps
        self._compiling: list[tuple[float, float]] = []  # in the order of their ends
        self._under_way, self._since = [OTHER], started
        self._close(first)

    def _close(self, name: str) -> None:
        """End the present stretch, which belongs to `name`."""
        now = time.perf_counter()
        self._stretches.append((name, self._since, now))
        self._since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Within the block, time belongs to `name`, but for what inner parts take."""
        self._close(self._under_way[-1])
        self._under_way.append(name)
        try:
            yield
        finally:
            self._close(self._under_way.pop())

    def compiled(self, seconds: float) -> None:
        """Something was traced, lowered or compiled for so long, until now."""
        now = time.perf_counter()
        self._compiling.append((now - seconds, now))

    def parts(self) -> dict[str, float]:
        """Seconds of every part until now, in the order in which they began, `compile` and `other` last."""
        self._close(self._under_way[-1])
        spans = _merged(self._compiling)
        seconds: dict[str, float] = {}
        for name, start, end in self._stretches:
            compiling = sum(max(min(end, b) - max(start, a), 0.0) for a, b in spans)
            seconds[name] = seconds.get(name, 0.0) + (end - start) - compiling
            seconds[COMPILE] = seconds.get(COMPILE, 0.0) + compiling
        return {key: seconds[key] for key in sorted(seconds, key=(COMPILE, OTHER).__contains__)}

    def document(self) -> dict[str, float]:
        """What summary.json holds: the parts, and the command's wall time at the moment they were closed, which is their sum."""
        parts = self.parts()
        return parts | {TOTAL: self._since - self.started}


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union: a function that is traced within another's tracing counts once."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def process_start() -> float:
    """When this process started, on the clock of `time.perf_counter`.

    From Linux's /proc; elsewhere the processor time used so far is taken for the process's age.
    """
    try:
        stat = pathlib.Path("/proc/self/stat").read_text()
        # Field 22 of proc(5), starttime; the name, field 2, is in parentheses and may hold anything.
        ticks = int(stat.rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        age = time.process_time()
    return time.perf_counter() - max(age, 0.0)


_kept: list[WallTime] = []  # at most one: that of the command under way
_listening: list[str] = []


@contextlib.contextmanager
def keeping(clock: WallTime) -> Iterator[WallTime]:
    """Within the block, `part` and JAX's compilations are entered into `clock`."""
    _kept.append(clock)
    try:
        yield clock
    finally:
        _kept.remove(clock)


def listen() -> None:
    """Hear of JAX's compilations from now on; once for a process."""
    import jax

    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_heard)
        _listening.append(_COMPILING)


def _heard(event: str, duration_secs: float, **about: str | int) -> None:
    if _kept and event.startswith(_COMPILING):
        _kept[-1].compiled(duration_secs)


def part(name: str) -> contextlib.AbstractContextManager[None]:
    """A stretch of the command under way, see `WallTime.part`; nothing where no command keeps its time."""
    return _kept[-1].part(name) if _kept else contextlib.nullcontext()


def spent() -> dict[str, float]:
    """`WallTime.document` of the command under way; empty where no command keeps its time."""
    return _kept[-1].document() if _kept else {}


def sentence(seconds: dict[str, float]) -> str:
    """ "wall time 5.21 s: import 1.90, load 0.20, ..." of `WallTime.document`."""
    parts = ", ".join(f"{key} {value:.2f}" for key, value in seconds.items() if key != TOTAL)
    return f"wall time {seconds[TOTAL]:.2f} s: {parts}"
