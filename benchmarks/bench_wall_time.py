"""Where the wall time of `trajopt run` goes, from the start of the process, with an empty compilation cache and with a full one.

    python benchmarks/bench_wall_time.py [PROBLEM ...]     # default: go1-stand catapult

All cores; the rows are `wall_clock_s` of summary.json, beside the time that the process took as seen from outside.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import measure

COMMAND = "import sys; from trajopt.cli import main; sys.exit(main())"


def run(problem: str, folder: pathlib.Path, cache: pathlib.Path) -> dict[str, float]:
    """Parts of one run's wall time, s, and the process's time, s. Raises `CalledProcessError` for a run that was not solved."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "run", problem, "--quiet", "--out", str(folder)],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        check=True,
    )
    process = time.perf_counter() - start
    return json.loads((folder / "summary.json").read_text())["wall_clock_s"] | {"process": process}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=["go1-stand", "catapult"])
    print(measure.banner().replace(", one pinned", ""))
    for problem in parser.parse_args().problems:
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            for cache in ("empty", "full"):
                spent = run(problem, place / "run", place / "cache")
                parts = "  ".join(f"{key} {value:.2f}" for key, value in spent.items())
                print(f"{problem}, {cache} cache: {parts}", flush=True)


if __name__ == "__main__":
    main()
