"""How many random contact problems the compiled solve leaves unsolved, and what the hardest cost.

    python benchmarks/bench_contact_solve.py [--count 100000] [--robots go1 ...] [--seed 0] [--failures FOLDER]

The problems of random_contact_problems.py, an equal number of each robot, each solved from zero, one at a time. Rows enter as in
a step of the compiled core: contacts and limits that approach, or open slower than the fastest approach. Columns: problems; rows,
mean; unsolved; share that needed a fallback (Gauss-Seidel, other sweeps, continuation, restarts); share with more than one
solution; Newton iterations, median and 99th percentile; microseconds, median and 99th, 99.9th percentile and largest (least of
--repeats passes); largest residual. --failures: a folder for the unsolved problems, as archives.
"""

from __future__ import annotations

import argparse
import pathlib

from measure import banner, pin_to_one_core

pin_to_one_core()

import jax  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

from random_contact_problems import BATCH, POSES, ROBOTS, Problems, draw  # noqa: E402

from trajopt.native.contacts import ContactSolutions, solve_contacts  # noqa: E402


def rows_that_may_act(problems: Problems) -> np.ndarray:
    """Contacts and limits whose velocity without impulse is below the largest velocity that approaches or slides."""
    nc = problems.mu.shape[1]
    nl = problems.exists.shape[1] - nc
    g = problems.g
    normal = np.concatenate([g[:, 2 : 3 * nc : 3], g[:, 3 * nc : 3 * nc + nl]], 1)
    tangent = np.concatenate([g[:, 0 : 3 * nc : 3], g[:, 1 : 3 * nc : 3]], 1)
    fastest = np.maximum(np.abs(tangent).max(1, initial=1e-3), (-normal).max(1, initial=1e-3))
    return problems.exists & (normal < fastest[:, None])


def solved(problems: Problems, repeats: int) -> ContactSolutions:
    """Solutions of a batch, with the least time of `repeats` passes for each problem."""
    arguments = (problems.G, problems.g, problems.mu, rows_that_may_act(problems), problems.bound)
    passes = [jax.tree.map(np.asarray, solve_contacts(*arguments)) for _ in range(repeats)]
    return passes[0]._replace(nanoseconds=np.min([p.nanoseconds for p in passes], 0))


def row(label: str, s: ContactSolutions) -> str:
    share = [100 * np.mean(s.fallbacks == k) for k in range(1, 3)]
    us = 1e-3 * s.nanoseconds
    return (
        f"{label:24s} {len(s.status):7d} {s.rows.mean():5.1f} {int((s.status != 0).sum()):4d}  "
        + " ".join(f"{x:5.2f}" for x in share)
        + f" {100 * s.degenerate.mean():5.1f} {np.median(s.iterations):4.0f} {np.percentile(s.iterations, 99):4.0f}"
        + f" {np.median(us):7.2f} {np.percentile(us, 99):7.1f} {np.percentile(us, 99.9):7.0f} {us.max():8.0f}"
        + f" {s.residual.max():8.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--robots", nargs="*", default=list(ROBOTS), choices=ROBOTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--failures", type=pathlib.Path)
    options = parser.parse_args()
    print(banner())
    print(f"{'robot, pose':24s} {'count':>7s} {'rows':>5s} {'bad':>4s}  {'GS %':>5s} {'oth %':>5s} {'con %':>5s} {'res %':>5s}"
          f" {'deg %':>5s} {'it50':>4s} {'it99':>4s} {'us 50':>7s} {'us 99':>7s} {'us 99.9':>7s} {'us max':>8s}"
          f" {'residual':>8s}")  # fmt: skip
    everything = []
    for name in options.robots:
        source, parts, poses = draw(name, options.seed), [], []
        for k in range(-(-options.count // (BATCH * len(options.robots)))):
            problems = next(source)
            parts.append(solved(problems, options.repeats))
            poses.append(problems.pose)
            if options.failures:
                options.failures.mkdir(parents=True, exist_ok=True)
                for i in np.flatnonzero(parts[-1].status):
                    one = {field: value[i] for field, value in problems._asdict().items()}
                    np.savez(options.failures / f"{name}-{k * BATCH + i}.npz", **one)
        whole = ContactSolutions(*(np.concatenate([getattr(p, f) for p in parts]) for f in ContactSolutions._fields))
        everything.append(whole._replace(impulse=whole.residual, velocity=whole.residual, mode=whole.residual))
        pose = np.concatenate(poses)
        for k, label in enumerate(POSES):
            print(row(f"{name}, {label}", jax.tree.map(lambda a, here=pose == k: a[here], whole)), flush=True)
    total = ContactSolutions(*(np.concatenate([getattr(p, f) for p in everything]) for f in ContactSolutions._fields))
    print(row("all", total))


if __name__ == "__main__":
    main()
