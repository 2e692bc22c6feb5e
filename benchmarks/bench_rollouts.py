"""A generation of a sampling solver: rollouts of the half-cheetah with rigid contact in one call, beside MuJoCo's own.

    python benchmarks/bench_rollouts.py [--rollouts 1000] [--steps 100] [--chunks 1,8] [--batched 64] [--json FILE]

Random controls within the motors' limits, 10 ms steps, from the home pose lowered onto the floor; the same controls for both.
MuJoCo's `rollout` runs the same model file on one thread with its own, softened contact. `chunk` is that of the sampling
solvers: so many motions step together, one chunk after the other in one program; 1: one by one, not batched, which is their
default with hard contact on a CPU; 0: all at once. A batched step does for every motion what any of them needs, so batches
are measured on --batched rollouts only.
"""

from __future__ import annotations

import argparse
import json
import time

from bench_step_jacobian import bundled_path, standing
from measure import banner, pin_to_one_core

DT = 0.01
REPEATS = 3


def program(system, steps: int, chunk: int):
    """Compiled (q0, controls (rollouts, steps, nu)) -> (last configurations, iterations and residual of each step)."""
    import jax
    import jax.numpy as jnp

    from trajopt.dynamics import State

    def motion(q, us):
        def body(carry, u):
            x, warm = carry
            x, info = system.step(x, u, warm_start=warm)
            return (x, info.impulse), (info.iterations, info.residual)

        start = State(q, jnp.zeros(system.nv))
        warm = jax.eval_shape(lambda: system.step(start, us[0])[1].impulse)
        (x, _), found = jax.lax.scan(body, (start, jnp.zeros(warm.shape, warm.dtype)), us)
        return x.q, found

    def all_of_them(q, us):
        if chunk == 1:
            return jax.lax.map(lambda us: motion(q, us), us)
        batch = jax.vmap(motion, (None, 0))
        if not chunk:
            return batch(q, us)
        return jax.lax.map(lambda us: batch(q, us), us.reshape(-1, chunk, *us.shape[1:]))

    return jax.jit(all_of_them)


def ours(rollouts: int, steps: int, chunk: int, controls) -> dict:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import RigidContact, System
    from trajopt.models import load_model

    model = load_model("half-cheetah")
    system = System(model, DT, RigidContact(max_contacts=8))
    count = rollouts if not chunk else rollouts // chunk * chunk
    q, us = jnp.asarray(standing(model)), jnp.asarray(controls[:count, :steps])
    start = time.perf_counter()
    call = program(system, steps, chunk).lower(q, us).compile()
    compile_s = time.perf_counter() - start
    jax.block_until_ready(call(q, us))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        last, (iterations, residual) = jax.block_until_ready(call(q, us))
        times.append(time.perf_counter() - start)
    iterations = np.asarray(iterations)
    return {
        "engine": "trajopt",
        "chunk": chunk,
        "us_per_step": sorted(times)[REPEATS // 2] / (count * steps) * 1e6,
        "compile_s": compile_s,
        "iterations_median": float(np.median(iterations)),
        "iterations_worst_of_step": float(np.mean(iterations.reshape(-1, steps).max(0))),
        "not_converged": int(np.sum(np.asarray(residual) > 1e-8)),
        "not_finite": int(np.sum(~np.isfinite(np.asarray(last)))),
    }


def mujocos(steps: int, controls) -> dict:
    import mujoco
    import numpy as np
    from mujoco import rollout

    from trajopt.models import load_model

    m = mujoco.MjModel.from_xml_path(bundled_path("half-cheetah"))
    m.opt.timestep = DT
    d = mujoco.MjData(m)
    d.qpos[:] = standing(load_model("half-cheetah"))
    first = np.zeros(mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(m, d, first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    first = np.tile(first, (len(controls), 1))
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        states, _ = rollout.rollout(m, d, first, np.ascontiguousarray(controls[:, :steps]))
        times.append(time.perf_counter() - start)
    us = sorted(times[1:])[REPEATS // 2] / (len(controls) * steps) * 1e6
    return {"engine": "MuJoCo rollout", "us_per_step": us, "not_finite": int(np.sum(~np.isfinite(states)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--chunks", default="1,8")
    parser.add_argument("--batched", type=int, default=64)
    parser.add_argument("--json")
    args = parser.parse_args()
    pin_to_one_core()
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    print(banner("mujoco"))
    print(f"half-cheetah, {args.rollouts} rollouts of {args.steps} steps of {DT} s, float64; time per rollout step")
    controls = np.random.default_rng(0).uniform(-1, 1, (args.rollouts, args.steps, 6))
    rows = [mujocos(args.steps, controls)]
    print(f"  MuJoCo rollout, one thread   {rows[0]['us_per_step']:8.1f} us")
    for chunk in map(int, args.chunks.split(",")):
        row = ours(args.rollouts if chunk == 1 else min(args.batched, args.rollouts), args.steps, chunk, controls)
        rows.append(row)
        label = {0: "all at once", 1: "one by one"}.get(chunk, f"chunks of {chunk}")
        print(
            f"  trajopt, {label:<18}  {row['us_per_step']:8.1f} us  {row['us_per_step'] / rows[0]['us_per_step']:5.1f} x"
            f"   compile {row['compile_s']:.1f} s; contact iterations: median {row['iterations_median']:.0f}, worst of the "
            f"batch {row['iterations_worst_of_step']:.1f}; {row['not_converged']} steps above 1e-8, "
            f"{row['not_finite']} not finite"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
