"""Fifteen published robots dropped on flat ground: does every step get solved, is energy created, where do they come to rest.

    python benchmarks/dropped_robots.py [NAME ...]        # all, or those named; --list names them
    python benchmarks/dropped_robots.py --write           # and the tables of docs/notes/validation/dropped-robots.md
    python benchmarks/dropped_robots.py --turned 6 Talos  # unsolved steps of 1 ms alone, from starts turned at random

The files are those of the wheels that `model_survey.py` fetches into its cache (--cache: another such folder), besides a scene
of six shapes, written here as SDF. All get a free base, and the plane z = 0 where they have no ground; none is moved or
simplified but as the tables say: joints beyond their limits are put to the limit, pairs of links that overlap nevertheless are
left out. Lowered until 3 cm are left between the lowest shape and the ground, at rest, they fall for 2 s under `RigidContact()`
at dt = 1 ms, controls zero; servos hold the pose. Then again at dt / 2, and both without contact (`NoContact`).

Energy is kinetic and potential, springs included, less the work of the actuators. gain: largest E(t) - E(0). rise: largest
E(t) - E(s) of any s < t. drift: largest |E(t) - E(0)| without contact. Rows are kept in .cache/dropped_robots.

MuJoCo drops the robots that it can read from the same configuration at dt = 0.5 ms, its constraints as stiff as it lets them be
(`as_stiff_as_it_goes`); the height is that of the centre of mass of all that moves.
"""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

# Large programs that run for a second or two: folding the constants of meshes and optimising takes XLA minutes.
os.environ.setdefault("XLA_FLAGS", "--xla_disable_hlo_passes=constant_folding --xla_backend_optimization_level=1")

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import model_survey  # noqa: E402
import numpy as np  # noqa: E402
from dropped_scenes import (  # noqa: E402
    PACKAGES,
    ROBOTS,
    SHAPES,
    Robot,
    Unreadable,
    holding_control,
    load,
    peer_fall,
    turned,
)
from measure import banner, markdown  # noqa: E402
from validation_experiments.report import write_table  # noqa: E402

from trajopt.dynamics import (  # noqa: E402
    NoContact,
    RigidContact,
    State,
    System,
    actuation_force,
    centre_of_mass,
    closure_error,
    kinetic_energy,
    potential_energy,
)
from trajopt.dynamics.damping import stiff_joints  # noqa: E402
from trajopt.dynamics.model import Model  # noqa: E402
from trajopt.dynamics.start import named  # noqa: E402
from trajopt.result import Status  # noqa: E402

CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache"
KEPT = CACHE / "dropped_robots"
DT, SECONDS = 1e-3, 2.0
CHUNK = 500  # steps of one compiled rollout
PAGE = "dropped-robots"
FIGURES = ("largest", "gain", "rise", "closure", "closure at the end", "start", "height", "speed", "mass")


@jax.jit
def along(model: Model, q, v, u):
    """Energy, power of the actuators, closure error (largest) and height of the centre of mass at states (T, ...)."""

    def at(q, v):
        power = actuation_force(model, q, v, u)
        energy = kinetic_energy(model, q, v) + potential_energy(model, q)
        error = jnp.max(jnp.abs(closure_error(model, q)), initial=0.0)
        return energy, power, error, centre_of_mass(model, q)[2]

    return jax.lax.map(lambda x: at(*x), (q, v), batch_size=100)


def rolled(system: System, q: np.ndarray, u: np.ndarray) -> Iterator[tuple]:
    """(states, reports) of chunks of the motion from rest at q under constant controls."""
    x, us = State(jnp.asarray(q), jnp.zeros(system.nv)), jnp.tile(jnp.asarray(u), (CHUNK, 1))
    for _ in range(round(SECONDS / float(system.dt) / CHUNK)):
        xs, info = system.rollout(x, us)
        x = State(xs.q[-1], xs.v[-1])
        yield xs, info


def unsolved(info) -> int:
    """How many of the steps."""
    return int(np.sum(~np.asarray(info.status == Status.solved)))


def fall(system: System, q: np.ndarray, u: np.ndarray) -> dict[str, Any]:
    """What happens in `SECONDS` from rest at q under constant controls."""
    dt, qs, vs = float(system.dt), [jnp.asarray(q)[None]], [jnp.zeros((1, system.nv))]
    begun, counts = time.perf_counter(), {"unsolved": 0, "dropped": 0}
    for xs, info in rolled(system, q, u):
        qs.append(xs.q[1:])
        vs.append(xs.v[1:])
        counts["unsolved"] += unsolved(info)
        counts["dropped"] += int(np.sum(np.asarray(info.dropped) > 0))
        if not np.all(np.isfinite(np.asarray(xs.q[-1]))):
            return dict.fromkeys(FIGURES, float("inf")) | counts | {"seconds": time.perf_counter() - begun}
    took = time.perf_counter() - begun
    q_all, v_all = jnp.concatenate(qs), jnp.concatenate(vs)
    energy, force, error, height = (np.asarray(a) for a in along(system.model, q_all, v_all, jnp.asarray(u)))
    v = np.asarray(v_all)
    # The force is that before a step and constant over it; over the step the mean velocity gives its work on a kinetic energy.
    work = np.cumsum(dt * np.sum(force[:-1] * (v[:-1] + v[1:]) / 2, axis=1))
    energy = energy - np.r_[0.0, work] - energy[0]
    moving = np.abs(v).max(axis=1)
    last = slice(-round(0.1 / dt), None)
    return counts | {
        "seconds": took,
        "largest": float(np.abs(energy).max()), "gain": float(energy.max()),
        "rise": float((energy - np.minimum.accumulate(energy)).max()), "closure": float(error.max()),
        "closure at the end": float(error[last].max()), "start": float(height[0]), "height": float(height[-1]),
        "speed": float(moving[-1]), "mass": float(np.asarray(system.model.mass).sum()),
    }  # fmt: skip


def row(robot: Robot, cache: pathlib.Path) -> dict[str, Any]:
    """All that the tables say of one robot."""
    model, q, notes = load(robot, cache)
    u = holding_control(model, q)
    found: dict[str, Any] = {"name": robot.name, "kind": robot.kind, "nv": model.nv, "pairs": len(model.topology.pairs)}
    found |= {"notes": notes, "loops": model.topology.constrained}
    model = model.to_device()
    if implicit := stiff_joints(model, DT):
        joints = named([f"'{name}' ({share:.3g})" for name, share in implicit])
        notes.append(f"`implicit_damping=True`, since 1 ms is large for {joints}")
    for key, law in (("contact", RigidContact()), ("free", NoContact())):
        for half in (1, 2):
            system = System(model, DT / half, contact=law, implicit_damping=bool(implicit))
            found[f"{key} {half}"] = fall(system, q, u)
            found[f"backend {key}"] = system.resolved_backend
            print(robot.name, key, DT / half, found[f"{key} {half}"], flush=True)
    if not robot.path:
        found["peer"] = {"height": rest_of_shapes(model)}
        return found
    try:
        start, height, speed = peer_fall(cache / robot.path, cache / PACKAGES, model, q, u, SECONDS)
        found["peer"] = {"start": start, "height": height, "speed": speed}
    except Unreadable as error:
        found["peer"] = {"reason": str(error)}
    print(robot.name, "peer", found["peer"], flush=True)
    return found


def turned_falls(robot: Robot, cache: pathlib.Path, count: int) -> None:
    """Prints the unsolved steps of falls from starts turned at random, seed 0."""
    model, q, _ = load(robot, cache)
    system = System(
        model.to_device(), DT, contact=RigidContact(), implicit_damping=bool(stiff_joints(model.to_device(), DT))
    )
    u, rng = holding_control(model, q), np.random.default_rng(0)
    found = [sum(unsolved(info) for _, info in rolled(system, turned(model, q, rng), u)) for _ in range(count)]
    print(f"{robot.name}: {sum(found)} of {count * round(SECONDS / DT)} steps unsolved, by start {found}", flush=True)


def rest_of_shapes(model: Model) -> float:
    """Height of the common centre of mass of the six shapes lying on the ground."""
    heights = np.array([rest for _, rest in SHAPES.values()])
    masses = np.asarray(model.mass)[np.asarray(model.mass) > 0]
    return float(masses @ heights / masses.sum())


def joules(value: float) -> str:
    """An energy; of a fall that leaves the finite numbers: diverges."""
    if not np.isfinite(value):
        return "diverges"
    return f"{value:.1e}" if abs(value) >= 1e-12 else "0"


def tables(rows: list[dict[str, Any]]) -> list[tuple[str, tuple[str, ...], list[tuple]]]:
    """(marker, head, rows) of the tables."""
    main, starts, loops = [], [], []
    for r in rows:
        one, two, free, half = (r[key] for key in ("contact 1", "contact 2", "free 1", "free 2"))
        peer = r["peer"]
        ended = f"{peer['height']:.4f}" if "height" in peer else "-"
        main.append((
            r["name"], r["kind"], r["nv"], r["pairs"], f"{one['unsolved']}, {two['unsolved']}",
            f"{one['dropped']}, {two['dropped']}",
            f"{joules(one['gain'])}, {joules(two['gain'])}", f"{joules(one['rise'])}, {joules(two['rise'])}",
            f"{joules(free['largest'])}, {joules(half['largest'])}", f"{one['height']:.4f}, {two['height']:.4f}", ended,
            f"{one['speed']:.1e}", f"{one['seconds']:.1f}",
        ))  # fmt: skip
        notes = [*r["notes"], *([f"MuJoCo: {peer['reason']}"] if "reason" in peer else [])]
        starts.append((r["name"], "; ".join(notes) or "-"))
        if r.get("loops"):
            for step, at in ((DT, one), (DT / 2, two)):
                loops.append((r["name"], f"{1e3 * step:g}", f"{at['closure']:.1e}", f"{at['closure at the end']:.1e}"))
    head = ("robot", "kind", "nv", "pairs", "unsolved", "steps with dropped rows", "gain, J", "rise, J", "drift, J", "height, m",
            "MuJoCo, m", "speed at the end", "seconds")  # fmt: skip
    return [
        ("falls", head, main), ("starts", ("robot", "start"), starts),
        ("loops", ("robot", "dt, ms", "largest closure error, m", "in the last 0.1 s, m"), loops),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="robots to drop; all without")
    parser.add_argument("--list", action="store_true", help="name the robots")
    parser.add_argument(
        "--turned", type=int, metavar="N", help="count unsolved steps from N starts turned at random instead"
    )
    parser.add_argument("--cache", type=pathlib.Path, default=model_survey.CACHE, help="folder of the unpacked wheels")
    parser.add_argument("--write", action="store_true", help="write the tables of all kept rows into the documentation")
    args = parser.parse_args()
    by_name = {robot.name: robot for robot in ROBOTS}
    if args.list:
        return print("\n".join(by_name))
    if unknown := [name for name in args.names if name not in by_name]:
        parser.error(f"unknown robot {', '.join(unknown)}; there are {', '.join(by_name)}")
    model_survey.CACHE = args.cache
    KEPT.mkdir(parents=True, exist_ok=True)
    print(banner("mujoco"))
    for name in args.names or ([] if args.write else by_name):
        robot = by_name[name]
        if robot.path:
            model_survey.fetch(robot.path.split("/")[0])
        if args.turned:
            turned_falls(robot, args.cache, args.turned)
            continue
        (KEPT / f"{name}.json").write_text(json.dumps(row(robot, args.cache), indent=1))
    if args.turned:
        return None
    rows = [json.loads(path.read_text()) for path in (KEPT / f"{name}.json" for name in by_name) if path.exists()]
    if missing := [name for name in by_name if args.write and not (KEPT / f"{name}.json").exists()]:
        parser.error(f"the page wants rows of all robots; drop these first: {', '.join(missing)}")
    for marker, head, lines in tables(rows):
        if args.write:
            write_table(PAGE, marker, head, lines)
        else:
            print("\n" + markdown(head, lines))
    return None


if __name__ == "__main__":
    main()
