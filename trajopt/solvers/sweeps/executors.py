"""The executor that a word of the command line names: processes of this machine, or the workers of a dask scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor

from trajopt.errors import MissingExtraError, OptionError
from trajopt.solvers.sweeps.processes import Processes

SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://")
CONNECTING_S = "10s"  # until a scheduler that does not answer is given up


def check_workers(text: str) -> str:
    """`text`, if it is a number of processes or the address of a scheduler; raises `OptionError` otherwise."""
    if text.startswith(SCHEMES) or (text.isdecimal() and int(text) > 0):
        return text
    raise OptionError(
        f"workers is '{text}'; expected a number of processes, or a scheduler's address such as tcp://host:8786"
    )


@contextlib.contextmanager
def executor_for(workers: str | None) -> Iterator[Executor | None]:
    """Within the block, the executor that `workers` names: "4", processes of this machine; "tcp://host:8786", the workers of a
    dask scheduler; None: none, which means one after the other in this process.

    Raises `OptionError` for anything else and for a scheduler that does not answer, `MissingExtraError` without dask.
    """
    if workers is None:
        yield None
    elif not check_workers(workers).startswith(SCHEMES):
        with Processes(int(workers)) as processes:
            yield processes
    else:
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingExtraError(
                f"workers is '{workers}', a dask scheduler; dask.distributed is not installed: "
                "pip install 'trajopt-contact[distributed]'"
            ) from error
        try:
            client = Client(workers, timeout=CONNECTING_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"no scheduler answers at '{workers}' ({error}); start one with `dask scheduler`"
            ) from error
        with client:
            yield client.get_executor(pure=False)
