"""What happens in another process: it is made to compute as the one that sent the task does, then it solves.

Such a process serves a sweep and nothing else. So it may set what the package never sets on its own: JAX's precision and
compilation cache, and how many threads XLA may start.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import threading
from collections import OrderedDict
from typing import Any

import jax

from trajopt.errors import TrajoptError
from trajopt.result import status_name
from trajopt.solvers.loop.fingerprint import fingerprint
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.solve import solve
from trajopt.solvers.sweeps.tasks import Reference, Task, pickled

# Of JAX's configuration: what changes numbers, and where compiled programs are kept.
SHARED = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
VARIABLES = ("TRAJOPT_BACKEND", "TRAJOPT_NATIVE_ISA")
KEPT = 8  # problems that a worker keeps with their compiled functions


class TaskError(Exception):
    """A task of a sweep did not give a solution."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """How the process that sends tasks computes, and which it is."""

    host: str
    process: int
    jax_settings: dict[str, Any]
    variables: dict[str, str]

    @classmethod
    def here(cls) -> Origin:
        """Of this process."""
        values = {name: jax.config.values[name] for name in SHARED}
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        return cls(socket.gethostname(), os.getpid(), values, variables)

    def adopt(self) -> None:
        """Let this process compute likewise; in the origin itself, such as one of its threads, nothing changes."""
        if (self.host, self.process) == (socket.gethostname(), os.getpid()):
            return
        for name, value in self.jax_settings.items():
            if jax.config.values[name] != value:
                jax.config.update(name, value)
        os.environ.update(self.variables)
        threads = _threads_of_dask()
        if threads is not None:
            os.environ.setdefault("NPROC", str(threads))  # the size of XLA's pool of threads, read when it starts


def _threads_of_dask() -> int | None:
    """How many threads this process has been given as a worker of dask; None elsewhere."""
    if "distributed.worker" not in sys.modules:
        return None
    try:
        return sys.modules["distributed.worker"].get_worker().state.nthreads
    except ValueError:
        return None


def begin() -> None:
    """First act of a process of `Processes`: Ctrl-C is for its parent, and it does not outlive that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="trajopt-parent", daemon=True).start()


@dataclasses.dataclass(frozen=True)
class Parcel:
    """A task on its way: the problem apart, so that a worker makes it once for all tasks about it.

    problem: pickled `Reference` or problem, and a name for it; task: pickled, without its problem.
    """

    origin: Origin
    name: str
    problem: bytes
    task: bytes


class Sender:
    """Makes parcels of tasks; what several tasks share is pickled once."""

    def __init__(self) -> None:
        self.origin = Origin.here()
        self._problems: dict[int, tuple[Any, str, bytes]] = {}  # with the problem itself, so that its id stays its own

    def parcel(self, task: Task) -> Parcel:
        """The parcel of a task."""
        if id(task.problem) not in self._problems:
            packed = pickled(task.problem)
            self._problems[id(task.problem)] = (task.problem, fingerprint(packed), packed)
        _, name, packed = self._problems[id(task.problem)]
        return Parcel(self.origin, name, packed, pickled(dataclasses.replace(task, problem=None)))


class Problems:
    """The problems that were made last, by name."""

    def __init__(self) -> None:
        self._made: OrderedDict[Any, Any] = OrderedDict()

    def get(self, name: Any, make: Any) -> Any:
        """The problem of this name, made by `make` where it is new."""
        if name not in self._made:
            self._made[name] = make()
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(name)
        return self._made[name]


_PROBLEMS = Problems()  # of this process


def solve_parcel(parcel: Parcel) -> Solution:
    """Solve a task in the process that it was sent to."""
    parcel.origin.adopt()
    task = pickle.loads(parcel.task)

    def make() -> Any:
        found = pickle.loads(parcel.problem)
        return found.make() if isinstance(found, Reference) else found

    solution = solve_task(_PROBLEMS.get(parcel.name, make), task)
    if status_name(solution.status) == "interrupted":
        raise TaskError("the worker was told to end while it solved")
    return solution


def solve_task(problem: Any, task: Task) -> Solution:
    """Solve a task with its problem made."""
    return solve(
        problem,
        task.solver,
        x0=task.start,
        gradient=task.gradient,
        seed=task.seed,
        time_budget=task.time_budget,
        max_iterations=task.max_iterations,
    )


def first_line(error: BaseException) -> str:
    """An error in one line: the message of trajopt's own, with the kind in front of others."""
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, TrajoptError | TaskError) else f"{type(error).__name__}: {text}".rstrip(": ")
