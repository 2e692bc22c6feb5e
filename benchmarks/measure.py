"""Timing for the benchmarks: one pinned core, warm medians, results blocked on, machine and versions printed."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import metadata


def pin_to_one_core() -> None:
    """Use one core and one thread, here and in XLA. Call before importing JAX."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


_clock = time.perf_counter
LOOP = 100  # steps of `in_loop`


def begin(parser: argparse.ArgumentParser, pinned: Callable[[argparse.Namespace], bool] = lambda _: True) -> argparse.Namespace:
    """The arguments, --processor among them; one core and one thread from now on where they are `pinned`, float64. Call before
    importing JAX."""
    global _clock
    text = "seconds of the processor, which hardly depend on what else runs, in place of the clock's"
    parser.add_argument("--processor", action="store_true", help=text)
    arguments = parser.parse_args()
    if pinned(arguments):
        pin_to_one_core()
    if arguments.processor:
        _clock = time.process_time
    import jax

    jax.config.update("jax_enable_x64", True)
    return arguments


def microseconds(call: Callable[[], object], *, batches: int = 11, seconds: float = 0.05) -> float:
    """Median over batches of the mean time of one call, after a warm-up; JAX results are waited for."""
    import jax

    jax.block_until_ready(call())
    start = _clock()
    jax.block_until_ready(call())
    count = max(1, int(seconds / max(_clock() - start, 1e-7)))
    means = []
    for _ in range(batches):
        start = _clock()
        for _ in range(count):
            result = call()
        jax.block_until_ready(result)
        means.append((_clock() - start) / count * 1e6)
    return statistics.median(means)


def once(call: Callable[[], object]) -> tuple[float, object]:
    """Microseconds of one call, and its result, which is waited for."""
    import jax

    start = _clock()
    result = jax.block_until_ready(call())
    return (_clock() - start) * 1e6, result


def microseconds_in_loop(function: Callable, q) -> float:
    """A step of `in_loop`."""
    return microseconds(in_loop(function, q)) / LOOP


def in_loop(function: Callable, q) -> Callable[[], object]:
    """A compiled scan of `LOOP` steps over function(q)."""
    loop = looped(function, LOOP)
    return lambda: loop(q)


def looped(function: Callable, steps: int) -> Callable:
    """A compiled scan of `steps` over function(q, ...), whose first result has the shape of q; each waits for the one before."""
    import jax
    import jax.numpy as jnp

    def loop(q, *given):
        def body(q, _):
            out = jax.tree.leaves(function(q, *given))
            return q + 0.0 * out[0], sum(jnp.sum(jnp.reshape(a, -1)[:1]) for a in out[1:])

        return jax.lax.scan(body, q, None, steps)

    return jax.jit(loop)


def step_and_linearize(system, v, u) -> tuple[Callable, Callable]:
    """q -> the next state, and q -> the next state, A and B."""
    from trajopt.dynamics import State

    def linearize(q):
        result = system.linearize(State(q, v), u)
        return result.x_next, result.A, result.B

    return (lambda q: system.step(State(q, v), u)[0]), linearize


def standing(model):
    """The home pose, lowered by 10 um so that the feet are in contact for every engine."""
    import numpy as np

    q = np.array(model.keyframes["home"], float)
    height = next((j.q_start + 2 for j in model.topology.joints if j.kind == "free"), None)
    if height is None:
        height = next(j.q_start for j in model.topology.joints if j.kind == "prismatic" and "z" in j.name)
    q[height] -= 1e-5
    return q


def mujoco_model(text: str, dt: float = 1e-3):
    """A bundled model by its name, or MJCF, in MuJoCo."""
    import mujoco

    from trajopt.models import bundled_file

    m = mujoco.MjModel.from_xml_string(text if text.startswith("<") else bundled_file(text).read_text())
    m.opt.timestep = dt
    return m


def mujoco_calls(text: str, q, v, dt: float = 1e-3, u=0.0, central: bool = False) -> tuple[Callable, Callable, object]:
    """`mj_step` and `mjd_transitionFD` (one-sided) from (q, v) of a bundled model by its name or of MJCF, and their data."""
    import mujoco
    import numpy as np

    m = mujoco_model(text, dt)
    d = mujoco.MjData(m)
    d.ctrl[:] = u
    A, B = np.zeros((2 * m.nv, 2 * m.nv)), np.zeros((2 * m.nv, m.nu))

    def step():
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_step(m, d)
        return d.qvel

    def jacobian():
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mjd_transitionFD(m, d, 1e-6, central, A, B, None, None)
        return A

    return step, jacobian, d


def write_json(path: str | None, results) -> None:
    """Results with machine and versions; nothing without a path."""
    if path:
        with open(path, "w") as file:
            json.dump({"machine": banner("mujoco", "pin"), "results": results}, file, indent=1)


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers with three digits."""

    def text(entry: object) -> str:
        if not isinstance(entry, float):
            return str(entry)
        return f"{entry:,.0f}" if abs(entry) >= 100 else f"{entry:.3g}"

    first, *others = (f"| {' | '.join(map(text, row))} |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def banner(*packages: str) -> str:
    """Machine and versions, one line."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = []
    for name in ("jax", "numpy", *packages):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} missing")
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{cpu}, {os.cpu_count()} cores, one pinned{load}; Python {platform.python_version()}, {', '.join(versions)}"
