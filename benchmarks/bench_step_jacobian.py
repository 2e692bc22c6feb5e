"""Step, and step plus full Jacobian, of standing robots; MuJoCo on the same model files in the same run.

    python benchmarks/bench_step_jacobian.py [--models go1,h1,atlas] [--rounds 3] [--mjx] [--compile] [--processor] [--json FILE]

All settings are defaults: `System(model, dt=1e-3)`, the backend that it resolves to, `max_contacts` as it comes. "In a loop" is a
step of a compiled `lax.scan`, in which every step waits for the one before; "called" is the public method, its checks included,
and one array of its answer, A in `linearize` ("x_next" reads the next state too, which is made when it is asked for);
"in a batch" is a sample of `jax.vmap` over 64. Velocities are zero, or drawn with deviation 0.02 (--moving, seed 0). Both engines
are timed in turn, --rounds times: clocks of virtual machines vary. Times are medians, ratios medians of those of the rounds, and
the least and greatest of these.

MuJoCo's Jacobian is its one-sided finite difference, `mjd_transitionFD` (float64, the only one it has on a CPU). Ours is
`System.linearize`: the exact derivative, the step included. --mjx adds MJX's step and `jax.jacfwd` of it (its compile alone
takes half a minute a model). --compile measures cold and cached compile times in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from measure import LOOP, banner, begin, in_loop, microseconds, step_and_linearize

BATCH = 64
Timers = dict[str, Callable[[], float]]


def ours(name: str, moving: bool) -> tuple[dict, Timers]:
    """What is known of step and linearize at the home pose, 10 um inside the floor, and what times them, us."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, dt=1e-3)
    x = State(jnp.asarray(standing(model)), jnp.asarray(velocity(model, moving)))
    u = jnp.zeros(system.nu)
    start = time.perf_counter()
    _, info = jax.block_until_ready(system.step(x, u))
    compile_step = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(system.linearize(x, u).A)
    compile_jacobian = time.perf_counter() - start
    closed = int(np.sum(np.asarray(info.contacts.mode) > 0))

    def whole(found):
        return found.A, found.B, found.x_next.q, found.x_next.v

    many = jnp.tile(x.q, (BATCH, 1))
    functions = step_and_linearize(system, x.v, u)
    batches = [jax.jit(jax.vmap(function)) for function in functions]
    loops = [in_loop(function, x.q) for function in functions]
    facts = {
        "backend": system.resolved_backend,
        "dof": system.nv,
        "contacts": closed,
        "compile_step_s": compile_step,
        "compile_jacobian_s": compile_jacobian,
    }
    return facts, {
        "step_us": lambda: microseconds(loops[0]) / LOOP,
        "step_jacobian_us": lambda: microseconds(loops[1]) / LOOP,
        "batch_step_us": lambda: microseconds(lambda: batches[0](many)) / BATCH,
        "batch_step_jacobian_us": lambda: microseconds(lambda: batches[1](many)) / BATCH,
        "call_step_us": lambda: microseconds(lambda: system.step(x, u)[0].v),
        "call_linearize_us": lambda: microseconds(lambda: system.linearize(x, u).A),
        "call_linearize_x_next_us": lambda: microseconds(lambda: whole(system.linearize(x, u))),
    }


def velocity(model, moving: bool):
    """Zero, or drawn with deviation 0.02 (rad/s, m/s)."""
    import numpy as np

    return 0.02 * moving * np.random.default_rng(0).normal(size=model.nv)


def standing(model):
    """The home pose, lowered by 10 um so that the feet are in contact for every engine."""
    import numpy as np

    q = np.array(model.keyframes["home"], float)
    height = next((j.q_start + 2 for j in model.topology.joints if j.kind == "free"), None)
    if height is None:
        height = next(j.q_start for j in model.topology.joints if j.kind == "prismatic" and "z" in j.name)
    q[height] -= 1e-5
    return q


def mujoco_calls(name: str, q, v) -> tuple[Callable, Callable, object]:
    """`mj_step` and `mjd_transitionFD` of a bundled model from (q, v), with dt = 1 ms, and their data."""
    import mujoco
    import numpy as np

    from trajopt.models import bundled_file

    m = mujoco.MjModel.from_xml_path(str(bundled_file(name)))
    m.opt.timestep = 1e-3
    d = mujoco.MjData(m)
    A, B = np.zeros((2 * m.nv, 2 * m.nv)), np.zeros((2 * m.nv, m.nu))

    def step():
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_step(m, d)
        return d.qvel

    def jacobian():
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mjd_transitionFD(m, d, 1e-6, 0, A, B, None, None)
        return A

    return step, jacobian, d


def theirs(name: str, moving: bool) -> tuple[dict, Timers]:
    """The same of MuJoCo."""
    from trajopt.models import load_model

    model = load_model(name)
    step, jacobian, d = mujoco_calls(name, standing(model), velocity(model, moving))
    step()
    return {"contacts": int(d.ncon)}, {"step_us": lambda: microseconds(step), "jacobian_us": lambda: microseconds(jacobian)}


def in_turn(name: str, moving: bool, rounds: int) -> tuple[dict, dict, dict[str, list[float]]]:
    """What is known and measured of ours and of MuJoCo's, and the ratios of every round: how many times faster than MuJoCo's
    differences a step with its Jacobian is, in a loop and called, and how long a step in a loop is beside `mj_step`."""
    (mine, timers), (peer, peer_timers) = ours(name, moving), theirs(name, moving)
    found, peer_found = ({key: [] for key in part} for part in (timers, peer_timers))
    for _ in range(rounds):
        for times, part in ((found, timers), (peer_found, peer_timers)):
            for key, timer in part.items():
                times[key].append(timer())

    def ratios(one: list[float], other: list[float]) -> list[float]:
        return [a / b for a, b in zip(one, other, strict=True)]

    differences = peer_found["jacobian_us"]
    shares = {
        "loop": ratios(differences, found["step_jacobian_us"]),
        "called": ratios(differences, found["call_linearize_us"]),
        "step": ratios(found["step_us"], peer_found["step_us"]),
    }
    middle, peer_middle = ({k: statistics.median(v) for k, v in times.items()} for times in (found, peer_found))
    return mine | middle, peer | peer_middle, shares


def spread(ratios: list[float]) -> str:
    """ "11.2x (9.1 to 13)": median, least and greatest."""
    return f"{statistics.median(ratios):.3g}x ({min(ratios):.3g} to {max(ratios):.3g})"


def mjx_times(name: str) -> dict:
    """MJX's step and `jax.jacfwd` of it. It computes every pair of shapes in every step: those that do not touch are left out."""
    import jax
    import jax.numpy as jnp
    import mujoco
    from mujoco import mjx

    from trajopt.models import bundled_file, load_model

    m = mujoco.MjModel.from_xml_path(str(bundled_file(name)))
    m.opt.timestep = 1e-3
    q = jnp.asarray(standing(load_model(name)))
    keep_what_touches(m, q)
    mx = mjx.put_model(m)
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


def keep_what_touches(m, q) -> None:
    """Shapes without contact at the configuration collide no more."""
    import mujoco
    import numpy as np

    d = mujoco.MjData(m)
    d.qpos[:] = q
    mujoco.mj_forward(m, d)
    idle = np.setdiff1d(np.arange(m.ngeom), np.unique(d.contact.geom))
    m.geom_contype[idle] = m.geom_conaffinity[idle] = 0


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

    from trajopt.dynamics import State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, dt=1e-3)
    x, u = State(jnp.asarray(standing(model)), jnp.zeros(system.nv)), jnp.zeros(system.nu)
    start = time.perf_counter()
    jax.block_until_ready(system.linearize(x, u).A)
    print(json.dumps(time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="half-cheetah,go1,h1,humanoid,atlas")
    parser.add_argument("--moving", action="store_true", help="random velocities in place of zero")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mjx", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = begin(parser)
    if arguments.child:
        child(arguments.child, arguments.cache)
        return
    print(banner("mujoco", "mujoco-mjx"))
    print(f"{'us':13s} {'DoF':>4s} {'contacts':>8s} | in a loop: {'step':>6s} {'+ Jac':>6s} | in a batch: {'step':>6s} "
          f"{'+ Jac':>6s} | called: {'step':>6s} {'+ Jac':>6s} {'x_next':>6s} | MuJoCo: {'step':>6s} {'differences':>11s} "
          "| times faster in a loop, called; step over mj_step")  # fmt: skip
    table = {}
    for name in arguments.models.split(","):
        mine, peer, shares = in_turn(name, arguments.moving, arguments.rounds)
        row = {"trajopt": mine, "mujoco": peer, "ratios": shares}
        print(f"{name:13s} {mine['dof']:4d} {mine['contacts']:4d}/{peer['contacts']:<3d} |            {mine['step_us']:6.1f} "
              f"{mine['step_jacobian_us']:6.1f} |             {mine['batch_step_us']:6.1f} {mine['batch_step_jacobian_us']:6.1f} "
              f"|         {mine['call_step_us']:6.1f} {mine['call_linearize_us']:6.1f} "
              f"{mine['call_linearize_x_next_us']:6.1f} |         {peer['step_us']:6.1f} "
              f"{peer['jacobian_us']:11.1f} | {', '.join(spread(x) for x in shares.values())}  ({mine['backend']}; first calls "
              f"{mine['compile_step_s']:.2f} and {mine['compile_jacobian_s']:.2f} s)", flush=True)  # fmt: skip
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
