"""Programs that tests start, signal and wait for."""

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A process that was started in the background ignores Ctrl-C, and so do its children unless they are told otherwise.
_HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

# A command that runs until it is stopped, with the folder of its results as its argument.
ENDLESS_RUN = """
import sys, numpy as np, jax.numpy as jnp
from trajopt import problems
from trajopt.cli import main

def factory():
    residual = lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    return problems.LeastSquaresProblem("toy", residual, np.array([-1.2, 1.0]), defaults=problems.Defaults("GradientDescent"))

problems.register("toy", factory, "takes a while")
sys.exit(main(["run", "toy", "--max-iterations", "100000000", "--out", sys.argv[1]]))
"""


def until(found: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    """Wait until `found()`, while the process lives."""
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.communicate()
        if time.monotonic() >= end:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


def until_it_goes_on(checkpoint: pathlib.Path, process: subprocess.Popen) -> None:
    """Wait until the process has written a checkpoint and then another: it has made iterations, however slowly."""
    until(checkpoint.exists, process)
    written = checkpoint.stat().st_mtime_ns
    until(lambda: checkpoint.stat().st_mtime_ns != written, process)


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
