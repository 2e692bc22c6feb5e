"""Does a program end that makes several batched LAPACK calls at once? With JAX's own it need not; with the package's it does.

    python benchmarks/batched_lapack.py [--threads 2] [--calls 4] [--repetitions 1000] [--seconds 60]

Runs the same Cholesky factorisations of a batch with `jax.numpy.linalg` and with `trajopt.dynamics.linear_algebra`, each in a
process that is ended after --seconds. docs/troubleshooting.md, section "A program that never ends", explains what happens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

PROGRAM = """
import sys
import jax, jax.numpy as jnp
from trajopt.dynamics import linear_algebra

cholesky = {"jax": jnp.linalg.cholesky, "trajopt": linear_algebra.symmetric_cholesky}[sys.argv[1]]
calls, repetitions = int(sys.argv[2]), int(sys.argv[3])

@jax.jit
def f(A):  # independent factorisations, which XLA runs at the same time
    return sum(cholesky(A @ A.mT + (k + 1) * jnp.eye(20)) for k in range(calls))

A = jax.random.normal(jax.random.key(0), (256, 20, 20))
for _ in range(repetitions):
    jax.block_until_ready(f(A))
"""


def outcome(which: str, threads: int, numbers: list[str], seconds: float) -> str:
    """After what time the program ends, or that it does not; numbers: of calls and repetitions."""
    # PJRT_NPROC is the number of threads in XLA's pool; without it, the number of cores that the process may use.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(threads), "NPROC": str(threads)}
    start = time.perf_counter()
    try:
        command = [sys.executable, "-c", PROGRAM, which, *numbers]
        done = subprocess.run(command, env=environment, timeout=seconds, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"has not ended after {seconds:g} s"
    if done.returncode != 0:
        return done.stderr
    return f"ends after {time.perf_counter() - start:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="in XLA's pool")
    parser.add_argument("--calls", default="4", help="batched calls that do not depend on each other")
    parser.add_argument("--repetitions", default="1000", help="of the program")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which the program is ended")
    args = parser.parse_args()
    numbers = [args.calls, args.repetitions]
    for which in ("jax", "trajopt"):
        print(f"{which}, {args.threads} threads: {outcome(which, args.threads, numbers, args.seconds)}", flush=True)


if __name__ == "__main__":
    main()
