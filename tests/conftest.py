"""Shared set-up of the tests: float64, strict promotion, a persistent compilation cache, quick compilation, runtime
shape checking.

The configuration is made here because the package itself never changes JAX's global configuration.
"""

import ctypes
import gc
import importlib.util
import mmap
import os
import pathlib
import platform
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
# Half of what the tests compile are small programs that another test, worker or process has compiled before.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")


def known_to_xla(flags: list[str]) -> list[str]:
    """Those that the installed XLA has: it ends the process at one that it does not know."""
    folder = pathlib.Path(importlib.util.find_spec("jaxlib").origin).parent
    libraries = [path for path in folder.iterdir() if path.suffix in (".so", ".dylib", ".pyd")]
    with max(libraries, key=lambda path: path.stat().st_size).open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # The name of a flag stands there twice in a row; that of a field of options once.
            return [flag for flag in flags if content.find(b"\0%b%b\0" % (2 * (flag.partition("=")[0].encode(),))) >= 0]


if os.environ.get("TRAJOPT_QUICK_COMPILATION", "1") != "0":
    # Most programs of the tests run for less time than LLVM takes to optimise them: without, XLA takes a fifth of the time.
    # One LLVM module a program, in place of 32 that threads compile: a third less where every worker has one core.
    # Looking for the trip counts of loops and for what could leave them: a fifth, in programs of contact steps.
    # `make test-optimised` compiles them as users do.
    FLAGS = os.environ.get("XLA_FLAGS", "")
    QUICK = [
        "xla_cpu_use_fusion_emitters=false",
        "xla_cpu_parallel_codegen_split_count=1",
        "xla_cpu_enable_concurrency_optimized_scheduler=false",
        "xla_disable_hlo_passes=while-loop-invariant-code-motion,while-loop-trip-count-annotator,simplify-while-loops",
    ]
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    QUICK = [flag for flag in known_to_xla(QUICK) if flag.partition("=")[0] not in FLAGS]
    os.environ["XLA_FLAGS"] = " ".join([FLAGS, *(f"--{flag}" for flag in QUICK)])

import ends_table  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

if os.environ.get("TRAJOPT_SHAPE_CHECKS", "1") != "0":
    # Functions accept NumPy arrays wherever they accept JAX's; the annotation `Array` of the package means both here.
    jaxtyping.Array = jax.Array | np.ndarray
    jaxtyping.install_import_hook("trajopt", "shape_checking.check")


# Tracing makes many objects and hardly any garbage: looking for it as often as Python does by default costs a sixth of the time.
gc.set_threshold(200_000, 50, 100)

TIMES = os.environ.get("TRAJOPT_TEST_TIMES")  # a file to which each test adds its processor seconds


MOST_MAPS = 45_000  # Linux ends a process at 65,530
MOST_MEMORY = 3 << 30  # bytes; a worker that ran half of the whole suite and gave nothing back came to 9 << 30
COMPILES_S = 1.0  # processor time of a test that may have compiled something large


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Processor seconds of each test, set-up included, as it ends: unlike durations they hardly depend on what else runs, and
    they are there when a run is interrupted. `sort -n $TRAJOPT_TEST_TIMES | tail` shows what the tiers should be made of."""
    before = time.process_time()
    yield
    seconds = time.process_time() - before
    if TIMES:
        with open(TIMES, "a") as file:
            file.write(f"{seconds:8.2f} {item.nodeid}\n")
    if seconds > COMPILES_S:
        drop_programs()


def drop_programs() -> None:
    """Forget compiled programs before their memory maps, a dozen for each and more with all optimisations, become too many for
    one process, where a compilation that gets no more of them ends it; and give memory back before the machine has none.

    Most of a worker's memory is what XLA has freed and glibc keeps: forgetting programs alone gives hardly any of it back.
    """
    global most_memory
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists():
        return
    if resident() > most_memory:
        trim()
    if maps.read_bytes().count(b"\n") > MOST_MAPS or resident() > most_memory:
        jax.clear_caches()
        gc.collect()
        trim()
        most_memory = max(MOST_MEMORY, resident() + MOST_MEMORY // 2)  # of what is not given back


def trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    library = ctypes.CDLL(None)
    if "glibc" in " ".join(platform.libc_ver()):
        library.malloc_trim(0)


most_memory = MOST_MEMORY


def resident() -> int:
    """Bytes of this process in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


REFERENCE = ROOT / "tests" / "dynamics"
ASKED = os.environ.get("TRAJOPT_BACKEND")


@pytest.fixture(autouse=True)
def backend(request, monkeypatch):
    """Steps by the JAX implementation, the reference, where steps themselves are tested; elsewhere by what a user gets."""
    if ASKED is None and REFERENCE in request.path.parents:
        monkeypatch.setenv("TRAJOPT_BACKEND", "jax")


# Files whose tests compile for longest; they start first, so that no worker is left alone with one of them at the end.
LONGEST = (
    "test_contract.py", "test_docs.py", "test_goals.py", "test_planners.py", "test_continuation.py", "test_copies.py",
    "test_semantics.py", "test_environment.py", "test_residuals.py", "test_algorithms.py",
)  # fmt: skip


SLOW_LIMIT_S = 3600  # of a test marked slow that has no limit of its own; the others have the one of pyproject.toml


def pytest_ignore_collect(collection_path: pathlib.Path, config) -> bool | None:
    """Under `-m check` files without such a test are not even imported: collecting all of them takes longer than the tests."""
    if config.option.markexpr == "check" and collection_path.suffix == ".py":
        return "pytest.mark.check" not in collection_path.read_text() or None
    return None


def slow_cases() -> set[str]:
    lines = (ROOT / "tests" / "slow_cases.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items) -> None:
    slow = slow_cases()
    for item in items:
        if item.nodeid in slow or item.nodeid.partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


START = time.time()


def pytest_terminal_summary(terminalreporter) -> None:
    """Show the table of runs that test_every_problem_ends.py has made."""
    if ends_table.PATH.exists() and ends_table.PATH.stat().st_mtime > START:
        terminalreporter.section("every problem of the library, run to its end")
        terminalreporter.write(ends_table.PATH.read_text())
