"""Steps, and steps plus full Jacobian, a second on a GPU in single precision, and how far these are from double precision.

    python benchmarks/bench_gpu.py [--model go1] [--batches 1,64,1024,8192] [--profile FILE]

All settings are defaults: `jax.vmap` of `System(model, dt=1e-3).step` and of `.linearize`, the JAX implementation, at the home
pose 10 um inside the floor with velocities of deviation 0.02 (seed 0). Without a GPU the same runs on JAX's default device. Least
of ten calls, or of those that begin within five seconds, results waited for; compile times are those of all programs compiled
side by side. The compiled core of the same machine, double precision, runs the same batches on all of its processors in a process
of its own; its answers are what single precision is compared with: modes, velocities in m/s and rad/s, Jacobians relative to
their largest entry. --profile writes the device time of each kernel of the largest batch.
"""

import argparse
import collections
import concurrent.futures
import glob
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from measure import markdown, once, standing
from results import record

CALLS, CALLS_S = 10, 5.0


def states(model, batch: int):
    """(q, v) of a batch, single precision."""
    import numpy as np

    q = np.tile(standing(model), (batch, 1))
    return q.astype(np.float32), (0.02 * np.random.default_rng(0).normal(size=(batch, model.nv))).astype(np.float32)


def programs(model, backend: str, dtype) -> dict:
    """The step alone and with its Jacobian, of a batch."""
    import jax
    import jax.numpy as jnp

    from trajopt.dynamics import State, System

    system = System(model, dt=1e-3, backend=backend)
    u = jnp.zeros(system.nu, dtype)

    def step(q, v):
        x, info = system.step(State(q, v), u)
        return x.v, info.residual, info.status

    def linearize(q, v):
        result = system.linearize(State(q, v), u)
        info = result.info
        return result.x_next.v, info.residual, info.status, result.A, result.B, info.contacts.mode, info.fallbacks

    return {"step": jax.jit(jax.vmap(step)), "step and Jacobian": jax.jit(jax.vmap(linearize))}


def compiled(jobs: dict) -> dict:
    """key -> (compiled program, seconds until it was there) of key -> (function, arguments), side by side."""
    began = time.perf_counter()

    def compile_one(lowered):
        return lowered.compile(), time.perf_counter() - began

    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = {key: pool.submit(compile_one, fn.lower(*args)) for key, (fn, args) in jobs.items()}
        return {key: one.result() for key, one in found.items()}


def least(program, args) -> float:
    """Seconds of the fastest of `CALLS` calls, or of those that begin within `CALLS_S`, after a warm-up."""
    once(lambda: program(*args))
    times: list[float] = []
    while len(times) < CALLS and sum(times) < CALLS_S:
        times.append(1e-6 * once(lambda: program(*args))[0])
    return min(times)


def write_profile(program, args, path: pathlib.Path) -> None:
    """Device time and count of each kernel of one call."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(program(*args))
        (file,) = glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
        with gzip.open(file) as stream:
            events = json.load(stream)["traceEvents"]
    device = {e["pid"] for e in events if e.get("name") == "process_name" and "GPU" in e["args"]["name"]}
    total, count = collections.Counter(), collections.Counter()
    for event in events:
        if event.get("ph") == "X" and event["pid"] in device:
            total[event["name"]] += event["dur"]
            count[event["name"]] += 1
    rows = [f"{us:10.1f} us {count[name]:6d} {name}" for name, us in total.most_common()]
    path.write_text("\n".join([f"{sum(total.values()):10.1f} us {sum(count.values()):6d} all", *rows]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="go1")
    parser.add_argument("--batches", default="1,64,1024,8192")
    parser.add_argument("--core", type=pathlib.Path, help="file for the core's answers; runs the core alone")
    parser.add_argument("--profile", type=pathlib.Path, help="file for the device time of each kernel")
    options = parser.parse_args()
    sizes = [int(size) for size in options.batches.split(",")]
    if options.core:
        core_times(options.model, sizes, options.core)
        return
    import jax
    import numpy as np

    from trajopt.models import load_model
    from trajopt.result import Status

    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}", flush=True)
    model = load_model(options.model)
    ours = programs(model, "jax", np.float32)
    given = {size: jax.device_put(states(model, size), device) for size in sizes}
    jobs = {(name, size): (fn, given[size]) for size in reversed(sizes) for name, fn in ours.items()}
    rows, answers = [], {}
    for (name, size), (program, compile_s) in compiled(jobs).items():
        seconds = least(program, given[size])
        answers[name, size] = [np.asarray(a) for a in jax.tree.leaves(program(*given[size]))]
        record(f"gpu/{options.model}/{name.replace(' ', '-')}/{size}", size / seconds, "samples/s")
        rows.append([name, size, 1e3 * seconds, 1e6 * seconds / size, size / seconds, compile_s])
        print(f"{name}, batch of {size}: {1e3 * seconds:.2f} ms", flush=True)
        if options.profile and size == max(sizes) and name != "step":
            write_profile(program, given[size], options.profile)
    head = ("program", "batch", "ms", "us a sample", "samples a second", "compile s")
    print(markdown(head, [tuple(row) for row in rows]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "core.npz"
        # JAX's devices are chosen once in a process, and the core is for CPUs.
        command = [sys.executable, __file__, "--model", options.model, "--batches", options.batches, "--core", str(file)]
        subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        accuracy(answers["step and Jacobian", max(sizes)], list(np.load(file).values()), int(Status.solved._value))


def core_times(name: str, sizes: list[int], file: pathlib.Path) -> None:
    """Prints the times of the compiled core, and writes its answers for the largest batch, to `file`."""
    import jax
    import numpy as np

    from trajopt.models import load_model

    jax.config.update("jax_enable_x64", True)
    model = load_model(name)
    rows = []
    for size in sizes:
        given = [a.astype(np.float64) for a in states(model, size)]
        for label, program in programs(model, "native", np.float64).items():
            rows.append((label, size, size / least(program, given)))
            if label != "step" and size == max(sizes):
                np.savez(file, *[np.asarray(a) for a in jax.tree.leaves(program(*given))])
    print(f"the compiled core on {os.cpu_count()} processors")
    print(markdown(("program", "batch", "samples a second"), rows), flush=True)


def accuracy(single: list, double: list, solved_is: int) -> None:
    """Prints how far the answers in single precision are from those in double."""
    import numpy as np

    solved = single[2] == solved_is
    print(f"single precision: {int((~solved).sum())} of {len(solved)} unsolved; largest residual {single[1].max():.1e}")
    print(f"states by the stage of the search that solved them: {np.bincount(single[6]).tolist()}")
    same = (single[5] == double[5]).all(1)
    print(f"contacts have other modes in {int((~same).sum())}")
    for label, k in (("v+", 0), ("A", 3), ("B", 4)):
        far = np.abs(single[k] - double[k]).reshape(len(solved), -1).max(1)
        if k:
            far = far / np.abs(double[k]).reshape(len(solved), -1).max(1)
        quantiles = ", ".join(f"{x:.1e}" for x in np.quantile(far, (0.5, 0.99)))
        worst = f"{far.max():.1e}, where the modes are the same {far[same].max(initial=0.0):.1e}"
        print(f"{label}: median, 99th percentile, largest difference from double precision {quantiles}, {worst}")


if __name__ == "__main__":
    main()
