"""What many solves, and populations over processes, cost beyond the solving, and how far they would scale.

    python benchmarks/bench_sweeps.py                      # everything, two processes
    python benchmarks/bench_sweeps.py --parts task,limits --tasks 100

`task`: seconds of the sending process and of the wall clock for one task that does nothing but return a solution of the
catapult, with own processes and with a local dask scheduler, for keeping it on disk, and until a new worker answers.
`limits`: from these, the speed that so many workers would give. `generation`: CEM and CMA-ES over one and two processes of
`jax.distributed` on the loopback interface, and what its two collectives take. How much faster a table is, `trajopt compare` says
with and without `--workers`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = (0.1, 1.0, 10.0, 100.0)  # seconds of a task
WORKERS = (2, 10, 100, 1000, 10_000)


def processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    return {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")} | dict(os.environ) | {"PYTHONPATH": paths}


# -- what workers do ---------------------------------------------------------------------------------------------------


def echo(value: Any) -> Any:
    """A task that does nothing."""
    return value


# -- parts -------------------------------------------------------------------------------------------------------------


@contextmanager
def dask_cluster(workers: int) -> Iterator[str]:
    """The address of a dask scheduler with so many workers of one thread, in processes of their own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment(), "cwd": folder}
        dask, off = [sys.executable, "-m", "distributed.cli.dask_scheduler"], ["--dashboard-address", "127.0.0.1:0"]
        started = [subprocess.Popen([*dask, "--host", "127.0.0.1", "--port", str(port), *off], **quiet)]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nworkers", str(workers)]
        command += ["--nthreads", "1", "--no-nanny", *off] if workers == 1 else ["--nthreads", "1", *off]
        started.append(subprocess.Popen(command, **quiet))
        try:
            yield address
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait()


def per_task(executor: Executor, count: int) -> tuple[float, float]:
    """(wall, processor) seconds of this process for a task that returns a solution of the catapult's size."""
    from trajopt.solvers.sweeps.stream import stream

    value = {
        "xs": np.zeros((501, 10)),
        "us": np.zeros((500, 3)),
        "v": np.zeros((501, 5)),
        "impulse": np.zeros((500, 8, 3)),
    }
    for _ in stream(echo, [value] * 20, executor):
        pass
    start, used = time.perf_counter(), processor_seconds(resource.RUSAGE_SELF)
    for _ in stream(echo, [value] * count, executor):
        pass
    return (time.perf_counter() - start) / count, (processor_seconds(resource.RUSAGE_SELF) - used) / count


def task_part(count: int) -> dict[str, float]:
    """The costs of a task, s."""
    from trajopt.solvers import Processes
    from trajopt.solvers.sweeps import executor_for

    found = {}
    with Processes(2) as processes:
        start = time.perf_counter()
        processes.submit(echo, 0).result()
        found["start of a worker"] = time.perf_counter() - start
        found["task, own processes"], found["task, own processes, sender"] = per_task(processes, count)
    with dask_cluster(2) as address, executor_for(address) as executor:
        assert executor is not None
        found["task, dask"], found["task, dask, sender"] = per_task(executor, count)
    found["keeping a solution"] = keeping(50)
    return found


def keeping(count: int) -> float:
    """Seconds for writing a solution of the catapult to disk."""
    from trajopt.result import Status
    from trajopt.solvers.loop.solution import TRACE_KEYS, Solution
    from trajopt.solvers.sweeps.records import Results

    motion = {"q": np.zeros((501, 5)), "v": np.zeros((501, 5)), "impulse": np.zeros((500, 8, 3))}
    trace = {key: np.zeros(50) for key in TRACE_KEYS}
    solution = Solution(
        "catapult", "MultipleShooting", "implicit", "RigidContact", Status.solved, True, "", np.zeros(1500), 0.0, 1.0, {}, trace,
        50, 50, 0.0, 1.0, 0, xs=np.zeros((501, 10)), us=np.zeros((500, 3)), trajectory=motion,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        results, start = Results(folder), time.perf_counter()
        for k in range(count):
            results.put(str(k), solution, {"status": "solved"})
        return (time.perf_counter() - start) / count


GENERATION = """
import json, sys, time
import jax
jax.config.update("jax_enable_x64", True)
count, index, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
import numpy as np
from jax.experimental import multihost_utils
from trajopt import problems, solvers
from trajopt.solvers.sampling import processes
problem = problems.get("catapult")
spent = []
for name in ("process_allgather", "broadcast_one_to_all"):
    def timed(*a, inner=getattr(multihost_utils, name), **k):
        start = time.perf_counter()
        found = inner(*a, **k)
        spent.append(time.perf_counter() - start)
        return found
    setattr(multihost_utils, name, timed)
out = []
for make, population in ((solvers.CEM, 254), (solvers.CMAES, 126)):
    solver = make(population=population, knots=20, over_processes=True)
    solvers.solve(problem, solver, max_iterations=2)
    spent.clear()
    solution = solvers.solve(problem, solver, max_iterations=10)
    times = solution.trace["time"]
    steps = np.diff(times)
    words = np.zeros(1000, np.uint32)
    bare = []
    for k in range(50 if count > 1 else 0):
        start = time.perf_counter()
        processes.multihost_utils.process_allgather(words)
        bare.append(time.perf_counter() - start)
    out.append({"solver": solver.name, "generation": float(np.median(steps)), "least": float(np.min(steps)),
                "waiting": float(np.sum(spent[: len(spent) - len(bare)]) / 12) if spent else 0.0,
                "collective": float(np.median(bare)) if bare else 0.0,
                "iterates": [float(c).hex() for c in solution.trace["cost"]], "us": solution.us.tobytes().hex()[:4000]})
print(json.dumps(out))
"""


def generation_part() -> dict[int, list[dict[str, Any]]]:
    """What one generation takes over one and two processes, each pinned to a core of its own."""
    found = {}
    cores = sorted(os.sched_getaffinity(0))
    for count in (1, 2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = [
            subprocess.Popen(
                ["taskset", "-c", str(cores[k % len(cores)]), sys.executable, "-c", GENERATION, str(count), str(k), port],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
            )
            for k in range(count)
        ]  # fmt: skip
        texts = [process.communicate()[0] for process in started]
        found[count] = [json.loads(text.strip().splitlines()[-1]) for text in texts][0]
        for row in found[count]:
            print(
                f"{row['solver']}, {count} process(es): {1e3 * row['generation']:.0f} ms a generation "
                f"(least {1e3 * row['least']:.0f}), of which {1e3 * row['waiting']:.1f} in collectives, waiting for each "
                f"other included; a bare one of 4 kB {1e3 * row['collective']:.2f} ms"
            )
    same = [a["iterates"] == b["iterates"] and a["us"] == b["us"] for a, b in zip(found[1], found[2], strict=True)]
    print(f"the same iterates to the last bit: {same}")
    return found


def speed_up(workers: int, length: float, worker: float, sender: float) -> float:
    """How many times as fast as one process `workers` are: a task takes a worker `length + worker` s, and the sender, which has
    one after the other while the workers work, `sender` s."""
    return length / max((length + worker) / workers, sender)


def limits(task: float, sender: float) -> None:
    """The table of speed-ups, and where the sender is the limit."""
    print(
        "| task, s | "
        + " | ".join(f"{n} workers" for n in WORKERS)
        + " | the sender is busy from |\n"
        + "|---" * (len(WORKERS) + 2)
        + "|"
    )
    for length in LENGTHS:
        cells = [f"{speed_up(n, length, task, sender):.3g}" for n in WORKERS]
        print(f"| {length:g} | " + " | ".join(cells) + f" | {(length + task) / sender:.0f} workers |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="task,limits,generation", help="separated by commas")
    parser.add_argument("--tasks", type=int, default=500, help="tasks that do nothing (default 500)")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    from measure import banner

    print(banner("jax", "distributed"))
    if "task" in chosen or "limits" in chosen:
        costs = task_part(options.tasks)
        for name, value in costs.items():
            print(f"{name}: {1e3 * value:.2f} ms")
        sender = costs["task, dask, sender"] + costs["keeping a solution"]
        if "limits" in chosen:
            limits(costs["task, dask"], sender)
    if "generation" in chosen:
        generation_part()


if __name__ == "__main__":
    main()
