"""Contact problems of bundled robots at random velocities, in batches: the hard cases for a solver, not for a rollout.

    python benchmarks/random_contact_problems.py FOLDER [--count 600] [--seed 0]

A rollout settles and then asks for the same answer again and again. Here every problem is another one. Poses: *standing*, the
home posture with its lowest point 1e-5 m in the ground; *landing*, the same tilted and bent a little, falling, with a gap that
closes within the step; *fallen*, any orientation, joints anywhere in their limits, put down on the ground. All velocities are
normal with a deviation drawn log-uniformly from 0.01 to 0.3 (m/s, rad/s), every second one under random control; dt is 1 or 5 ms.
The script writes one archive for each robot with G, g, mu, exists and bound stacked, and pose and dt of every problem.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)

from contact_states import DEEPEST, gaps, lowered

from trajopt import load_model
from trajopt.dynamics import RigidContact
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.step import solve_step
from trajopt.dynamics.model import Model, NodeType

ROBOTS = ("go1", "h1", "humanoid", "atlas", "anymal-c", "half-cheetah", "hopper")
POSES = ("standing", "landing", "fallen")
STEPS = (1e-3, 5e-3)
SLOWEST, FASTEST = 0.01, 0.3
TILT, BEND = 0.02, 0.02
BATCH = 100


class Problems(NamedTuple):
    """A batch of problems nu = G lambda + g as in `ncp.NCP`, with the index of their pose and their step dt."""

    G: np.ndarray
    g: np.ndarray
    mu: np.ndarray
    exists: np.ndarray
    bound: np.ndarray
    pose: np.ndarray
    dt: np.ndarray


def posture(model: Model, pose: str, gap: float, rng) -> np.ndarray:
    """One q of the kind of `pose`, its lowest point `gap` above the ground."""
    top = model.topology
    home = np.asarray(model.keyframes.get("home", model.q_default))
    joints = np.flatnonzero(top.scalar_q_of_dof >= 0)
    sliding = {int(top.v_starts[i]) + k for i, t in enumerate(top.node_types) if t == NodeType.TRANSLATION for k in range(3)}
    for _ in range(100):
        q = home.copy()
        for j in joints:
            if j in sliding or pose == "standing":
                continue
            low, high, place = float(model.lower[j]), float(model.upper[j]), top.scalar_q_of_dof[j]
            if pose == "fallen" and np.isfinite(low) and np.isfinite(high):
                q[place] = rng.uniform(low, high)
            else:
                q[place] += BEND * rng.normal()
        for place, _ in top.ball_starts:
            turn = rng.normal(size=4)
            if pose == "landing":
                turn = q[place : place + 4] + TILT * turn
            if pose != "standing":
                q[place : place + 4] = turn / np.linalg.norm(turn)
        q = lowered(model, q, gap)
        if np.min(np.asarray(gaps(model, q)[0]), initial=0.0) > -DEEPEST:
            return q
    raise RuntimeError(f"no {pose} pose without deep penetration in 100 draws")


def recorder(model: Model):
    """A compiled function of a batch (q, v, tau, dt) to the arrays of its problems."""
    law = RigidContact()

    def one(q, v, tau, dt):
        ncp = solve_step(StepInputs(law, model, q, v, tau, dt)).ncp  # the solve itself is not compiled: nothing asks for it
        return ncp.G, ncp.g, ncp.mu, ncp.exists, ncp.bound

    return jax.jit(lambda *batch: jax.lax.map(lambda x: one(*x), batch))


def draw(name: str, seed: int) -> Iterator[Problems]:
    """Batches of `BATCH` problems of one robot without end, poses and steps in turn."""
    model = load_model(name)
    rng = np.random.default_rng([seed, ROBOTS.index(name)])
    record = recorder(model.to_device())
    limit = np.minimum(np.abs(np.asarray(model.control_upper)), 100.0)
    while True:
        q, v, tau, pose, dt = [], [], [], [], []
        for k in range(BATCH):
            kind = int(rng.integers(len(POSES)))
            speed = np.exp(rng.uniform(np.log(SLOWEST), np.log(FASTEST)))
            dt.append(STEPS[int(rng.integers(len(STEPS)))])
            gap = rng.uniform() * dt[-1] * speed if POSES[kind] == "landing" else -1e-5
            q.append(posture(model, POSES[kind], gap, rng))
            v.append(speed * rng.normal(size=model.nv))
            if POSES[kind] == "landing":
                v[-1][:3] -= np.array([0.0, 0.0, speed]) if model.nq > model.nv else 0.0
            u = 0.3 * np.where(np.isfinite(limit), limit, 1.0) * rng.normal(size=model.nu) * (k % 2)
            tau.append(np.asarray(model.actuation) @ u)
            pose.append(kind)
        arrays = [jnp.asarray(np.stack(a)) for a in (q, v, tau, dt)]
        yield Problems(*(np.asarray(a) for a in record(*arrays)), np.array(pose), np.array(dt))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--robots", nargs="*", default=list(ROBOTS), choices=ROBOTS)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.robots:
        batches, source = [], draw(name, options.seed)
        while BATCH * len(batches) < options.count:
            batches.append(next(source))
        whole = Problems(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))
        np.savez(options.folder / f"{name}.npz", **whole._asdict())
        print(f"{name}: {len(whole.g)} problems of {whole.g.shape[1]} rows", flush=True)


if __name__ == "__main__":
    main()
