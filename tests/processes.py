"""Programs that tests start, signal and wait for."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# A process that was started in the background ignores Ctrl-C, and so do its children unless they are told otherwise.
_HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """A Python process that runs `code` and heeds Ctrl-C; it does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HEED + code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
