"""Steps of models with many pairs of shapes, with the broad phase and with the narrow phase on every pair, in one run.

    python benchmarks/bench_broadphase.py [--models NAME,NAME]

box-N, capsule-N: N links in a row, every pair that does not share a joint; solo12: the robot of example-robot-data with its
convex meshes, 116 pairs; ur5: likewise, 20 pairs. Ten configurations each. candidates: contacts of all pairs, and of those that
go on to the narrow phase (of capsules max_pairs=8: by default all of them do). Compile times without the persistent cache.
difference: of the velocity after the step, the largest at configurations where nothing was dropped; dropped: the others.
"""

from __future__ import annotations

import argparse
import time

from measure import banner, begin, microseconds

CONFIGURATIONS = 10


def chain(kind: str, links: int) -> str:
    text, shape = "", {"capsule": 'type="capsule" size="0.04 0.08"', "box": 'type="box" size="0.08 0.03 0.05"'}[kind]
    for k in reversed(range(links)):
        joint = f'<joint axis="0 {k % 2} {1 - k % 2}" armature="0.01" damping="0.1"/>'
        turn = 'euler="0 90 0"' if kind == "capsule" else ""
        link = f'<geom {shape} pos="0.1 0 0" {turn} mass="0.5"/>'
        text = f'<body pos="{0.2 if k else 0} 0 {0 if k else 1}">{joint}{link}{text}</body>'
    return f'<mujoco><worldbody><geom type="plane" size="1 1 1"/>{text}</worldbody></mujoco>'


def model_of(name: str):
    import warnings

    from published_robots import PUBLISHED, folder

    from trajopt.models import load_model, load_model_from_string

    if name.startswith(("box-", "capsule-")):
        kind, links = name.split("-")
        return load_model_from_string(chain(kind, int(links)))
    file = {"solo12": PUBLISHED["Solo12"], "ur5": "ur_description/urdf/ur5_robot.urdf"}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model(folder() / file, ground=True, self_collision="all")  # as many pairs as there can be


def measure(name: str) -> dict:
    import jax
    import numpy as np

    from trajopt.dynamics import RigidContact, State, System
    from trajopt.dynamics.collision.narrowphase import contact_count

    model, rng = model_of(name), np.random.default_rng(0)
    states = [
        State(np.asarray(model.q_default) + 0.5 * rng.normal(size=model.nq), 0.3 * rng.normal(size=model.nv))
        for _ in range(CONFIGURATIONS)
    ]
    assert model.nq == model.nv, "configurations are changed as vectors"
    u = np.zeros(model.nu)
    row: dict = {"pairs": len(model.topology.pairs), "candidates": contact_count(model)}
    velocities, dropped = [], np.zeros(CONFIGURATIONS, int)
    for label, law in (
        ("all", RigidContact(max_pairs=row["pairs"])),
        ("nearest", RigidContact(max_pairs=8 if "capsule" in name else None)),
    ):
        system = System(model, 1e-3, contact=law)
        row[f"{label}_candidates"] = contact_count(model, law.pair_limit)
        step = jax.jit(lambda x, u, system=system: system.step(x, u))
        start = time.perf_counter()
        compiled = step.lower(states[0], u).compile()
        row[f"{label}_compile_s"] = time.perf_counter() - start
        row[f"{label}_us"] = [
            microseconds(lambda compiled=compiled, x=x: compiled(x, u), batches=3, seconds=0.02) for x in states
        ]
        found = [compiled(x, u) for x in states]
        velocities.append(np.stack([np.asarray(x.v) for x, _ in found]))
        dropped += np.array([int(info.dropped) for _, info in found])
    kept = dropped == 0
    row["difference"] = float(np.abs(velocities[0] - velocities[1])[kept].max(initial=0.0))
    row["dropped"] = int((~kept).sum())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="capsule-20,box-10,box-20,ur5,solo12")
    options = begin(parser)
    import jax
    import numpy as np

    jax.config.update("jax_enable_compilation_cache", False)
    print(banner())
    print(
        "model     pairs  candidates |  step, all   nearest (us)  ratio | compile, all  nearest | difference  dropped"
    )
    for name in options.models.split(","):
        row = measure(name)
        everything, nearest = (float(np.median(row[f"{label}_us"])) for label in ("all", "nearest"))
        print(
            f"{name:9} {row['pairs']:5d}  {row['candidates']:4d} {row['nearest_candidates']:4d}  | {everything:10.0f} "
            f"{nearest:9.0f} {everything / nearest:10.1f}  | {row['all_compile_s']:8.1f} s {row['nearest_compile_s']:8.1f} s "
            f"| {row['difference']:.0e} {row['dropped']:7d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
