"""Derivatives of tumbling cubes' rollouts by their velocity, by friction, and by eleven parameters: compiling, and time a step.

    python benchmarks/bench_parameters.py [--rollouts 100] [--steps 80] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from measure import banner, begin, markdown, write_json

SCENE = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 .1" friction="0.18"/><body name="cube"><freejoint/>
<geom type="box" size=".0524 .0524 .0524" mass="0.37" friction="0.18"/></body></worldbody></mujoco>"""
REPEATS = 3


def moved(model, kind: str, z):
    """The model with parameters scaled by z, that of no change being 1."""
    import jax.numpy as jnp

    if kind == "friction":
        return model.replace(pair_friction=model.pair_friction * z[0])
    if kind != "eleven parameters":
        return model
    return model.replace(
        pair_friction=model.pair_friction * z[0], pair_restitution=0.125 * z[1] * jnp.ones_like(model.pair_restitution),
        com=model.com + 0.01 * (z[2:5] - 1), inertia=model.inertia * z[5:8].reshape(1, 1, 3), gravity=model.gravity * z[8],
        shape_size=model.shape_size * z[9], mass=model.mass * z[10],
    )  # fmt: skip


def measured(kind: str, count: int, rollouts: int, steps: int) -> dict:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import State, System
    from trajopt.models import load_model_from_string

    system, rng = System(load_model_from_string(SCENE), dt=1 / 148), np.random.default_rng(0)
    q, v = np.zeros((rollouts, 7)), rng.normal(size=(rollouts, 6))
    q[:, 3:] = rng.normal(size=(rollouts, 4))
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    q[:, 2], v[:, 2] = 0.15, -1.0

    def motion(z, q, v):
        there = dataclasses.replace(system, model=moved(system.model, kind, z))
        return there.rollout(State(q, v + (z - 1 if kind == "velocity" else 0)), jnp.zeros((steps, 0)))[0].q

    slopes = motion if kind == "no derivative" else jax.jacfwd(motion)
    start = time.process_time()
    call = jax.jit(jax.vmap(slopes, (None, 0, 0))).lower(jnp.ones(count), q, v).compile()
    compile_s, times = time.process_time() - start, []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        jax.block_until_ready(call(jnp.ones(count), q, v))
        times.append(time.process_time() - start)
    return {"derivative": kind, "us_per_step": min(times) / rollouts / steps * 1e6, "compile_s": compile_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--json")
    options = begin(parser)
    print(banner())
    kinds = {"no derivative": 1, "velocity": 6, "friction": 1, "eleven parameters": 11}
    rows = [measured(kind, count, options.rollouts, options.steps) for kind, count in kinds.items()]
    head = ("derivative", "us a step", "compiling, s of processor time")
    print(markdown(head, [(row["derivative"], f"{row['us_per_step']:.1f}", f"{row['compile_s']:.1f}") for row in rows]))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
