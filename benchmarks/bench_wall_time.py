"""Where the wall time of `trajopt run` goes, from the start of the process, with an empty compilation cache and with a full one.

    python benchmarks/bench_wall_time.py [PROBLEM ...]     # default: go1-stand catapult

All cores; the rows are `wall_clock_s` of summary.json, beside the wall and processor time of the
process as seen from outside.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import measure
from results import record

COMMAND = "import sys; from trajopt.cli import main; sys.exit(main())"


def run(problem: str, folder: pathlib.Path, cache: pathlib.Path) -> dict[str, float]:
    """Parts of one run's wall time, the process's wall time and its processor time, s, the last hardly depending on what else the
    machine does. Raises `CalledProcessError` for a run that was not solved."""
    start, used = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "run", problem, "--quiet", "--out", str(folder)],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        check=True,
    )
    process, now = time.perf_counter() - start, os.times()
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    parts = json.loads((folder / "summary.json").read_text())["wall_clock_s"]
    return parts | {"process": process, "processor": processor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=["go1-stand", "catapult"])
    print(measure.banner().replace(", one pinned", ""))
    for problem in parser.parse_args().problems:
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            for cache in ("empty", "full"):
                spent = run(problem, place / "run", place / "cache")
                record(f"run/{problem}/{cache}-cache", spent["process"], "s")
                parts = "  ".join(f"{key} {value:.2f}" for key, value in spent.items())
                print(f"{problem}, {cache} cache: {parts}", flush=True)


if __name__ == "__main__":
    main()
