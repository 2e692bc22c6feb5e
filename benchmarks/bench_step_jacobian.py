"""Step, and step plus full Jacobian, of standing robots; MuJoCo on the same model files in the same run.

    python benchmarks/bench_step_jacobian.py [--models go1,h1,atlas] [--mjx] [--compile] [--json FILE]

MuJoCo's Jacobian is its one-sided finite difference, `mjd_transitionFD` (float64, the only one it has on a CPU). Ours is
`System.linearize`: the exact derivative, the step included. --mjx adds MJX's step and `jax.jacfwd` of it (its compile alone
takes half a minute a model). --compile measures cold and cached compile times in fresh processes.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import subprocess
import sys
import tempfile
import time

from measure import banner, microseconds, pin_to_one_core

CONTACTS = {"half-cheetah": 2, "go1": 4, "h1": 8, "humanoid": 9, "atlas": 8}


def ours(name: str) -> dict:
    """Times of the warm-started step and linearize at the home pose, 10 um inside the floor."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import RigidContact, State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, dt=1e-3, contact=RigidContact(max_contacts=CONTACTS[name]))
    q = standing(model)
    x = State(jnp.asarray(q), jnp.zeros(system.nv))
    u = jnp.zeros(system.nu)
    start = time.perf_counter()
    _, info = jax.block_until_ready(system.step(x, u))
    compile_step = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(system.linearize(x, u).A)
    compile_jacobian = time.perf_counter() - start
    warm = info.impulse
    closed = int(np.sum(np.asarray(info.contacts.mode) > 0))
    # Inside a compiled program, without the checks and the Python call of the public methods.
    step = jax.jit(lambda x, u, w: system.step(x, u, warm_start=w)[0])
    both = jax.jit(lambda x, u, w: matrices(system, x, u, w))
    return {
        "dof": system.nv,
        "contacts": closed,
        "step_us": microseconds(lambda: step(x, u, warm).v),
        "step_cold_us": microseconds(lambda: step(x, u, jnp.zeros_like(warm)).v),
        "step_jacobian_us": microseconds(lambda: both(x, u, warm)[0]),
        "call_step_us": microseconds(lambda: system.step(x, u, warm_start=warm)[0].v),
        "call_linearize_us": microseconds(lambda: system.linearize(x, u, warm_start=warm).A),
        "compile_step_s": compile_step,
        "compile_jacobian_s": compile_jacobian,
    }


def matrices(system, x, u, warm_start):
    result = system.linearize(x, u, warm_start=warm_start)
    return result.A, result.B


def standing(model):
    """The home pose, lowered by 10 um so that the feet are in contact for every engine."""
    import numpy as np

    q = np.array(model.keyframes["home"], float)
    height = next((j.q_start + 2 for j in model.topology.joints if j.kind == "free"), None)
    if height is None:
        height = next(j.q_start for j in model.topology.joints if j.kind == "prismatic" and "z" in j.name)
    q[height] -= 1e-5
    return q


def bundled_path(name: str) -> str:
    return str(importlib.resources.files("trajopt.models") / "bundled" / f"{name}.xml")


def mujoco_times(name: str) -> dict:
    import mujoco
    import numpy as np

    from trajopt.models import load_model

    m = mujoco.MjModel.from_xml_path(bundled_path(name))
    m.opt.timestep = 1e-3
    d = mujoco.MjData(m)
    q = standing(load_model(name))

    def step():
        d.qpos[:], d.qvel[:] = q, 0
        mujoco.mj_step(m, d)
        return d.qvel

    A, B = np.zeros((2 * m.nv, 2 * m.nv)), np.zeros((2 * m.nv, m.nu))

    def jacobian():
        d.qpos[:], d.qvel[:] = q, 0
        mujoco.mjd_transitionFD(m, d, 1e-6, 0, A, B, None, None)
        return A

    step()
    return {"contacts": int(d.ncon), "step_us": microseconds(step), "jacobian_us": microseconds(jacobian)}


def mjx_times(name: str) -> dict:
    import jax
    import jax.numpy as jnp
    import mujoco
    from mujoco import mjx

    from trajopt.models import load_model

    m = mujoco.MjModel.from_xml_path(bundled_path(name))
    m.opt.timestep = 1e-3
    mx = mjx.put_model(m)
    q = jnp.asarray(standing(load_model(name)))
    data = mjx.make_data(mx).replace(qpos=q)
    step = jax.jit(lambda d: mjx.step(mx, d))
    out = {"step_us": microseconds(lambda: step(data).qvel)}
    start = time.perf_counter()

    def velocity(q, v, u):
        return mjx.step(mx, data.replace(qpos=q, qvel=v, ctrl=u)).qvel

    jacobian = jax.jit(jax.jacfwd(velocity, (0, 1, 2)))
    arguments = (q, data.qvel, data.ctrl)
    jax.block_until_ready(jacobian(*arguments))
    out["compile_s"] = time.perf_counter() - start
    out["jacfwd_us"] = microseconds(lambda: jacobian(*arguments))
    return out


def compile_times(name: str) -> dict:
    """Cold and cached first call of linearize, each in a fresh process."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--child", name, "--cache", cache]
        cold, cached = (json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(2))
    return {"cold_s": cold, "cached_s": cached}


def child(name: str, cache: str) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    import jax.numpy as jnp

    from trajopt.dynamics import RigidContact, State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, dt=1e-3, contact=RigidContact(max_contacts=CONTACTS[name]))
    x, u = State(jnp.asarray(standing(model)), jnp.zeros(system.nv)), jnp.zeros(system.nu)
    start = time.perf_counter()
    jax.block_until_ready(system.linearize(x, u).A)
    print(json.dumps(time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="half-cheetah,go1,h1,humanoid,atlas")
    parser.add_argument("--mjx", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    if arguments.child:
        child(arguments.child, arguments.cache)
        return
    print(banner("mujoco", "mujoco-mjx"))
    print(f"{'model':13s} {'DoF':>4s} {'contacts':>8s} | {'step':>7s} {'cold':>7s} {'step+Jac':>9s} | {'MuJoCo step':>11s} "
          f"{'FD Jac':>8s} {'ratio':>6s}  (us)")  # fmt: skip
    table = {}
    for name in arguments.models.split(","):
        mine, peer = ours(name), mujoco_times(name)
        row = {"trajopt": mine, "mujoco": peer}
        print(f"{name:13s} {mine['dof']:4d} {mine['contacts']:4d}/{peer['contacts']:<3d} | {mine['step_us']:7.1f} "
              f"{mine['step_cold_us']:7.1f} {mine['step_jacobian_us']:9.1f} | {peer['step_us']:11.1f} "
              f"{peer['jacobian_us']:8.1f} {peer['jacobian_us'] / mine['step_jacobian_us']:5.1f}x", flush=True)  # fmt: skip
        if arguments.mjx:
            mjx = row["mjx"] = mjx_times(name)
            ratio = mjx["jacfwd_us"] / mine["step_jacobian_us"]
            print(f"              MJX step {mjx['step_us']:.0f} us, jacfwd {mjx['jacfwd_us']:.0f} us ({ratio:.0f}x), "
                  f"compile {mjx['compile_s']:.0f} s")  # fmt: skip
        if arguments.compile:
            row["compile"] = compile_times(name)
            print(f"              compile of step + Jacobian: cold {row['compile']['cold_s']:.1f} s, "
                  f"cached {row['compile']['cached_s']:.1f} s", flush=True)  # fmt: skip
        table[name] = row
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": banner("mujoco"), "results": table}, file, indent=1)


if __name__ == "__main__":
    main()
