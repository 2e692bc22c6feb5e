"""Every problem of the library, run as by its user: default solver, all optimisations of the compiler, on no particular core,
whatever the number of threads of XLA's pool. Each run has a time limit, so that one that waits for ever fails.

    make every-problem

runs this file alone. Problem, threads, exit status and seconds of each run are printed at the end.
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest
from ends_table import record
from lapack_calls import batched_in

from trajopt import problems

LIMIT_S = 1800  # a run takes seconds to minutes, of which most is compilation, on two cores that other tests use too
THREADS = (1, 2, 4)  # on machines with fewer cores they share them
# The tests' own way of compiling, which changes the order of execution.
NOT_THE_USERS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT")


def environment(threads: int, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in NOT_THE_USERS}
    return kept | {"JAX_PLATFORMS": "cpu", "NPROC": str(threads), "PJRT_NPROC": str(threads)} | more


def tail(path: pathlib.Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 300)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", problems.names())
def test_the_run_ends(name, threads, tmp_path):
    """Within the limit, with the documented exit status, and with no batched LAPACK call in any of its programs."""
    dump = {"JAX_DUMP_IR_TO": str(tmp_path / "programs")} if threads == 2 else {}
    code = "import sys; from trajopt.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", name, "--out", str(tmp_path / "run")]
    log, start = tmp_path / "log", time.monotonic()
    with open(log, "w") as stream:
        try:
            status: int | str = subprocess.run(
                command, env=environment(threads, **dump), stdout=stream, stderr=stream, timeout=LIMIT_S
            ).returncode
        except subprocess.TimeoutExpired:
            status = "none"
    record(name, threads, status, time.monotonic() - start)
    assert status == 0, tail(log)
    if threads == 2:
        assert not batched_in(tmp_path / "programs")


@pytest.mark.parametrize("threads", THREADS)
def test_xla_has_the_threads_asked_for(threads):
    code = (
        "import os, jax\n"
        "jax.block_until_ready(jax.numpy.ones(3) + 1)\n"
        "names = [open(f'/proc/self/task/{task}/comm').read().strip() for task in os.listdir('/proc/self/task')]\n"
        "print(names.count('tf_XLAEigen'))"
    )
    if not pathlib.Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc, which this system does not have")
    done = subprocess.run([sys.executable, "-c", code], env=environment(threads), capture_output=True, text=True)
    assert done.stdout.strip() == str(threads), done.stderr
