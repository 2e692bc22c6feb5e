"""How robustly and how fast the contact solve in JAX works on problems recorded from rollouts.

    python benchmarks/bench_ncp.py [GROUP ...] [--write] [--failures DIR] [--record]

The problems (validation_experiments/contact_problems.py) are recorded once and kept in .cache/ncp; each is solved from zero,
one at a time on one core. --record only records what is missing; without that folder recording starts anew. Results are kept in
.cache/ncp/results.json, those of other scenes stay; --write puts all of them into the note ncp.md, with a dash for times
that were taken at a load above --calm. --failures: a folder for the unsolved problems (NumPy archives with G, g, mu, exists,
bound, and the solver's impulse). TRAJOPT_NATIVE_ISA=none leaves the last stage, the compiled core's, out.

Columns: problems; share solved to a residual of 1e-9, recomputed; median and 95th percentile of iterations; fallbacks (a later
stage than Newton ran) and failures per thousand problems; largest residual; microseconds per problem, mean.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time

from measure import banner, pin_to_one_core

if "--record" in sys.argv:  # programs that run once: compiled quickly, not well
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
else:
    pin_to_one_core()

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from validation_experiments import contact_problems  # noqa: E402
from validation_experiments.report import write_table  # noqa: E402

from trajopt.dynamics.contact.ncp import NCP  # noqa: E402

LIMIT = 1e-9
CHUNK = 20


def statistics(found: dict[str, np.ndarray]) -> dict[str, float]:
    """What the module's docstring lists."""
    unsolved = ~(found["residual"] <= LIMIT)
    return {
        "problems": len(unsolved),
        "solved_percent": 100.0 * float(np.mean(~unsolved)),
        "iterations_median": float(np.median(found["iterations"])),
        "iterations_95": float(np.percentile(found["iterations"], 95)),
        "fallbacks_per_1000": 1000.0 * float(np.mean(found["fallbacks"] > 0)),
        "failures_per_1000": 1000.0 * float(np.mean(unsolved)),
        "worst_residual": float(np.nanmax(found["residual"])),
        "us_per_problem": float(np.mean(found["us"])),
    }


def keep_failures(folder: pathlib.Path, scene: str, ncps: NCP, found: dict[str, np.ndarray], most: int = 5) -> None:
    """The worst problems that were not solved, as archives."""
    unsolved = np.flatnonzero(~(found["residual"] <= LIMIT))
    worst = unsolved[np.argsort(-found["residual"][unsolved])][:most]
    contact_problems.keep(folder, re.sub(r"[^a-z0-9]+", "-", scene.lower()), ncps, found, worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(contact_problems.GROUPS)}")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--calm", type=float, default=3.0, help="load up to which times are written")
    parser.add_argument("--failures", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=contact_problems.CACHE / "results.json")
    options = parser.parse_args()
    unknown = [group for group in options.groups if group not in contact_problems.GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(contact_problems.GROUPS)}")
    print(banner())
    if options.record:
        for group in options.groups or contact_problems.GROUPS:
            start = time.perf_counter()
            found = contact_problems.problems(group, options.steps, options.seeds)
            counts = {scene: len(ncps.g) for scene, ncps in found.items()}
            print(f"{group}: {counts}, {time.perf_counter() - start:.0f} s", flush=True)
        return
    print(f"{'scene':36s} {'problems':>8s} {'solved %':>8s} {'it 50':>6s} {'it 95':>6s} "
          f"{'fallb/k':>8s} {'fail/k':>7s} {'worst':>8s} {'us':>9s}")  # fmt: skip
    table: dict[str, dict[str, float]] = {}
    if options.out.exists():
        table = json.loads(options.out.read_text())["scenes"]
    for group in options.groups or contact_problems.GROUPS:
        for scene, ncps in contact_problems.problems(group, options.steps, options.seeds).items():
            found = contact_problems.solved(ncps, CHUNK)
            row = table[scene] = statistics(found) | {"load": os.getloadavg()[0]}
            if options.failures:
                keep_failures(options.failures, scene, ncps, found)
            print(f"{scene:36s} {row['problems']:8d} {row['solved_percent']:8.2f} "
                  f"{row['iterations_median']:6.0f} {row['iterations_95']:6.0f} {row['fallbacks_per_1000']:8.1f} "
                  f"{row['failures_per_1000']:7.1f} "
                  f"{row['worst_residual']:8.1e} {row['us_per_problem']:9.1f}",
                  flush=True)  # fmt: skip
            options.out.write_text(json.dumps({"machine": banner(), "scenes": table}, indent=1))
    if options.write:
        write(table, options.calm)


def time_of(row: dict[str, float], calm: float) -> str:
    """Microseconds per problem; a dash where other work on the machine spoilt them."""
    return f"{row['us_per_problem']:,.0f}" if row.get("load", np.inf) < calm else "-"


def write(table: dict[str, dict[str, float]], calm: float) -> None:
    """The table of docs/notes/validation/ncp.md."""
    rows = [[
        scene, r["problems"], f"{r['iterations_median']:.0f}", f"{r['iterations_95']:.0f}", f"{r['fallbacks_per_1000']:.1f}",
        f"{r['failures_per_1000']:.1f}", f"{r['worst_residual']:.0e}", time_of(r, calm),
    ] for scene, r in table.items()]  # fmt: skip
    header = ["scene", "problems", "iterations, median", "95th percentile", "fallbacks per 1,000", "unsolved per 1,000",
              "largest residual", "us per problem"]  # fmt: skip
    write_table("ncp", "newton", header, rows)


if __name__ == "__main__":
    main()
