"""Processes of this machine as a `concurrent.futures.Executor`, each on cores of its own.

Each worker is a pool of one process. So a worker that dies breaks its own task alone, and that it was this task is known; the
next task starts a new process in its place. Processes are spawned, never forked: JAX's threads do not survive a fork. A process
inherits the cores of the thread that starts it, before any of its libraries counts them.

The executor that a word of the command line names: processes of this machine, or the workers of a dask scheduler.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any

from trajopt.errors import MissingExtraError, OptionError
from trajopt.solvers.sweeps.worker import TaskError, begin

GUARD = (
    "it may be the script that was started: what runs in it must stand below `if __name__ == '__main__':`, since every new "
    "process imports it"
)


class WorkerDiedError(TaskError):
    """The process that worked on a task ended."""


class Processes(Executor):
    """Runs functions in processes of this machine, which start with the first tasks and stay.

    A task whose process dies gets `WorkerDiedError`, which says how; the others go on. Left by an exception, such as that
    of Ctrl-C, the `with` block kills the processes; otherwise it waits for them.

    Options:
        workers: number of processes. Default: one for each core that this process may use. The cores are dealt out evenly;
            more workers than cores share them.
    """

    def __init__(self, workers: int | None = None) -> None:
        # Only Linux says which cores this process may use, and binds threads to them.
        cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
        self.workers = len(cores) if workers is None else workers
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise OptionError(f"workers is {workers!r}; expected a whole number of processes of at least 1")
        self._shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for k in range(self.workers):
            self._shares.put(share(cores, k, self.workers))
        self._lanes: list[_Lane] = []
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(self.workers, "trajopt-worker", self._begin_thread)

    def _begin_thread(self) -> None:
        cores = self._shares.get()
        if sys.platform == "linux":
            os.sched_setaffinity(0, cores)  # of this thread, and of the processes that it starts
        self._own.lane = _Lane()
        self._lanes.append(self._own.lane)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Let one of the processes call `fn(*args, **kwargs)`; all of them must be picklable."""
        return self._threads.submit(lambda: self._own.lane.run(fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks and end the processes when they have finished theirs."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for lane in self._lanes if wait else ():
            lane.close()

    def kill(self) -> None:
        """End the processes now; their tasks fail, waiting ones are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            lane.kill()
        self.shutdown()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.kill()


class _Lane:
    """One worker: a pool of one process, made anew when that is gone."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None
        self.process: multiprocessing.process.BaseProcess | None = None
        self.closed = False

    def run(self, function: Callable[..., Any], arguments: tuple, keywords: dict[str, Any]) -> Any:
        if self.closed:
            raise WorkerDiedError("the processes have been ended")
        started = self.pool is not None
        try:
            if self.pool is None:
                self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin)
                pid = self.pool.submit(os.getpid).result()
                self.process = next((child for child in multiprocessing.active_children() if child.pid == pid), None)
                started = True
            return self.pool.submit(function, *arguments, **keywords).result()
        except BrokenProcessPool as error:
            reason = f"its worker {_ending(self.process)}" if started else f"a worker ended while it started; {GUARD}"
            self.close()
            raise WorkerDiedError(reason) from error

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False)
        self.pool = self.process = None

    def kill(self) -> None:
        self.closed = True
        if self.process is not None:
            self.process.kill()


def _ending(process: multiprocessing.process.BaseProcess | None) -> str:
    """How a process ended, as a predicate."""
    if process is not None:
        process.join(1.0)
    code = None if process is None else process.exitcode
    if code is None:
        return "died"
    return f"ended with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def share(cores: list[int], k: int, workers: int) -> list[int]:
    """The cores of worker k: neighbours, each in one share; with more workers than cores, one core."""
    if workers >= len(cores):
        return [cores[k % len(cores)]]
    return cores[k * len(cores) // workers : (k + 1) * len(cores) // workers]


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
