"""A generation of a sampling solver: rollouts with rigid contact in one call, beside MuJoCo's own.

    python benchmarks/bench_rollouts.py [--models half-cheetah,go1] [--rollouts 1000] [--steps 100] [--json FILE]

Random controls, from the home pose lowered onto the floor: the same for both. MuJoCo's `rollout` runs the same model file on one
thread with its own, softened contact. Ours are `jax.vmap` of `System.rollout`, all settings being defaults.
"""

import argparse
import time

from measure import banner, begin, markdown, mujoco_model, standing, write_json

STEP = {"half-cheetah": 0.01, "go1": 0.005}  # s
SHARE = 0.2  # of the motors' limits, that controls are drawn from
REPEATS = 3


def drawn_controls(name: str, rollouts: int, steps: int):
    """Controls (rollouts, steps, nu), uniform within SHARE of the limits; the half-cheetah's within its limits."""
    import numpy as np

    from trajopt.models import load_model

    model = load_model(name)
    limit = np.asarray(model.control_upper) * (1.0 if name == "half-cheetah" else SHARE)
    return limit * np.random.default_rng(0).uniform(-1, 1, (rollouts, steps, len(limit)))


def in_one_call(name: str, controls) -> dict:
    """`jax.vmap` of `System.rollout` at default settings."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, STEP[name])
    x, us = State(jnp.asarray(standing(model)), jnp.zeros(system.nv)), jnp.asarray(controls)
    start = time.perf_counter()
    call = jax.jit(jax.vmap(system.rollout, (None, 0))).lower(x, us).compile()
    compile_s = time.perf_counter() - start
    seconds, (xs, info) = timed(lambda: jax.block_until_ready(call(x, us)))
    return {
        "engine": f"trajopt ({system.resolved_backend})",
        "us_per_step": seconds / us[..., 0].size * 1e6,
        "compile_s": compile_s,
        "not_converged": int(np.sum(np.asarray(info.residual) > 1e-8)),
        "not_finite": int(np.sum(~np.isfinite(np.asarray(xs.q)))),
    }


def timed(call) -> tuple[float, object]:
    """Median seconds of REPEATS calls after one, and the last result."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[REPEATS // 2], result


def mujocos(name: str, controls) -> dict:
    import mujoco
    import numpy as np
    from mujoco import rollout

    from trajopt.models import load_model

    m = mujoco_model(name, STEP[name])
    d = mujoco.MjData(m)
    d.qpos[:] = standing(load_model(name))
    first = np.zeros(mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(m, d, first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    first = np.tile(first, (len(controls), 1))
    seconds, (states, _) = timed(lambda: rollout.rollout(m, d, first, np.ascontiguousarray(controls)))
    us = seconds / controls[..., 0].size * 1e6
    return {"engine": "MuJoCo rollout", "us_per_step": us, "not_finite": int(np.sum(~np.isfinite(states)))}


def table(models: list[str], rollouts: int, steps: int) -> list[dict]:
    """Rows of both engines, MuJoCo's first for each model."""
    rows = []
    for name in models:
        controls = drawn_controls(name, rollouts, steps)
        found = [mujocos(name, controls), in_one_call(name, controls)]
        rows += [{"model": name, "times MuJoCo": r["us_per_step"] / found[0]["us_per_step"], **r} for r in found]
    return rows


def report(rows: list[dict]) -> str:
    head = ("model", "engine", "us a step", "times MuJoCo's", "steps not solved", "not finite")
    cells = [(r["model"], r["engine"], r["us_per_step"], r["times MuJoCo"], r.get("not_converged", ""), r["not_finite"])
             for r in rows]  # fmt: skip
    return markdown(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="half-cheetah,go1")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json")
    options = begin(parser)
    print(banner("mujoco"))
    print(f"{options.rollouts} rollouts of {options.steps} steps, float64, one thread each; time of a step of a rollout\n")
    rows = table(options.models.split(","), options.rollouts, options.steps)
    print(report(rows))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
