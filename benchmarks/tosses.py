"""Identification from the recorded tosses of a cube: `python benchmarks/tosses.py PATH`.

PATH: the archive of the tosses, or the folder of .pt files of their repository (`trajopt.estimation.tosses`). The cube,
nominal: edge 0.1048 m, 0.37 kg, 8.1e-4 kg m^2, friction 0.18, restitution 0.125. Printed: the identified values; for tosses
that were not used, the mean over samples, then tosses, of the position error (% of the edge) and of the rotation error
(degrees), from recorded first states and from those that the flight before the first contact gives; wall and processor time.
`--coverage N` fits groups of N tosses instead and counts how many of their intervals for the friction hold the value of all.
"""

import argparse
import pathlib
import tempfile
import time

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402

from trajopt import estimation, load_model  # noqa: E402
from trajopt.dynamics import RigidContact, System  # noqa: E402

EDGE = 0.1048
MODEL = """<mujoco model="toss"><worldbody>
<geom name="board" type="plane" size="0 0 0.1" contype="0" conaffinity="1" friction="0.18"/>
<body name="cube" pos="0 0 0.0524"><freejoint/><inertial pos="0 0 0" mass="0.37" diaginertia="8.1e-4 8.1e-4 8.1e-4"/>
<geom name="cube" type="box" size="0.0524 0.0524 0.0524" friction="0.18" contype="1" conaffinity="0"/></body>
</worldbody></mujoco>"""
PARAMETERS = ("friction", "impact_friction", "restitution", "gravity", "com", "inertia", "size", "ground")
SENSORS = (estimation.Pose("pose", noise=(5e-5, 5e-4)), estimation.Velocity("velocity", noise=(0.01, 0.1)))


def cube(dt: float) -> System:
    """The nominal cube on its board."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "toss.xml"
        path.write_text(MODEL)
        model = load_model(str(path))
    model = model.replace(pair_restitution=np.full_like(model.pair_restitution, 0.125))
    return System(model, dt, RigidContact(max_contacts=4))


def fitted(recordings: list, dt: float, seed: int = 0) -> estimation.Identification:
    """The documented call."""
    return estimation.identify(cube(dt), recordings, PARAMETERS, SENSORS, seed=seed)


def errors(predictions: list) -> str:
    """Mean errors of position and rotation, with the standard errors of the means."""
    position = [100 * np.linalg.norm(p.errors["pose"][:, :3], axis=1).mean() / EDGE for p in predictions]
    rotation = [np.degrees(np.linalg.norm(p.errors["pose"][:, 3:], axis=1).mean()) for p in predictions]
    cells = [f"{np.mean(x):6.2f} +- {np.std(x) / np.sqrt(len(x)):.2f}" for x in (position, rotation)]
    return f"position {cells[0]} % of the edge, rotation {cells[1]} degrees"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--training", type=int, default=300, help="tosses to fit; the next 100 are predicted")
    parser.add_argument("--dt", type=float, default=1 / 296)
    parser.add_argument("--coverage", type=int, metavar="N", help="fit groups of N tosses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=pathlib.Path)
    args = parser.parse_args()
    train, validation = split(args.path)
    tosses = estimation.read_tosses(args.path, train[: args.training])
    if args.coverage:
        return coverage(tosses, args.coverage, args.dt, args.seed)
    wall, processor = time.perf_counter(), time.process_time()
    fit = fitted(tosses, args.dt, args.seed)
    print(fit.describe())
    print(
        f"wall {time.perf_counter() - wall:.1f} s, processor {time.process_time() - processor:.1f} s, compiling included"
    )
    held_out = estimation.read_tosses(args.path, validation)
    for start in ("recorded", "estimated"):
        print(f"identified, {start} first states:   {errors(fit.predict(held_out, start))}")
        print(f"nominal, {start} first states:      {errors(fit.predict(held_out, start, nominal=True))}")
    if args.report:
        estimation.write_report(fit, args.report, held_out)


def split(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of training and validation tosses: as the archive says, else the first 300 files and the next 100."""
    if path.is_dir():
        return np.arange(300), np.arange(300, 400)
    with np.load(path) as archive:
        return archive["train"], archive["validation"]


def coverage(tosses: list, size: int, dt: float, seed: int) -> None:
    """Share of the intervals of disjoint groups that hold the value of all tosses."""
    whole = fitted(tosses, dt, seed)
    order = np.random.default_rng(seed).permutation(len(tosses))
    groups = [order[k : k + size] for k in range(0, len(tosses) - size + 1, size)]
    inside = []
    for k, group in enumerate(groups):
        fit = fitted([tosses[j] for j in group], dt, seed)
        inside.append((fit.intervals[:, 0] <= whole.values) & (whole.values <= fit.intervals[:, 1]))
        print(
            f"group {k}: friction {fit.values[0]:.4f}, interval {fit.intervals[0].round(4)}, holds {inside[-1][0]}",
            flush=True,
        )
    for label, share in zip(whole.labels, np.mean(inside, 0)):
        print(f"{label}: {100 * share:.0f} % of {len(groups)} intervals hold the value of all")


if __name__ == "__main__":
    main()
