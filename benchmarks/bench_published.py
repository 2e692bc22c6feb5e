"""Published robots as their files are, meshes and all, fall on the ground: steps and Jacobians beside MuJoCo's of the same file.

    python benchmarks/bench_published.py [--models Go2,G1] [--seconds 1.0] [--processor]
    python benchmarks/bench_published.py --models Go2,G1 --rollouts 1000

Each robot of `PUBLISHED` in dropped_scenes.py begins at its default configuration, its lowest point a little above the ground,
falls and lies for a second, controls zero, at dt = 1 ms, all settings at their defaults, self-collision included. The time of a
step is that of windows of 50 steps of one compiled loop, that of a step with its Jacobian of a loop over ten states of each one.
MuJoCo reads the same file (bodies that overlap at the start do not collide in either) and falls by itself; its Jacobian is
`mjd_transitionFD`, one-sided differences, at the same moments. Each robot falls three times, and the least time of each window
counts, since others use the machine. Medians and largest over the windows, us.

--rollouts: that many motions of 100 steps from there with random velocities, in one call on all processors, beside MuJoCo's
`rollout` on two threads; medians of five calls of each, in turns.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

from measure import banner, begin, markdown
from results import record

DT, WINDOW, STATES, FALLS = 1e-3, 50, 10, 3
HEAD = ("us", "DoF", "pairs", "vertices", "step", "most", "+ Jacobian", "most", "`mj_step`", "most", "differences", "most",
        "step over `mj_step`", "differences over step + Jacobian")  # fmt: skip


def least(fall: Callable[[], Iterator[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """The least times of each window of some falls."""
    import numpy as np

    step, jacobian = np.min([list(fall()) for _ in range(FALLS)], axis=0).T.tolist()
    return step, jacobian


def ours(model, q, windows: int) -> tuple[list[float], list[float]]:
    """Microseconds of a step, and of a step with its Jacobian, in each window of the fall."""
    import jax
    import jax.numpy as jnp
    from measure import once

    from trajopt.dynamics import State, System

    system, u = System(model, DT), jnp.zeros(model.nu)
    fall = jax.jit(lambda x: jax.lax.scan(lambda x, _: (system.step(x, u)[0], x), x, None, WINDOW))

    def slopes(total, x):
        found = system.linearize(x, u)
        return total + found.A[0, 0] + jnp.sum(found.B[:1]), None

    linearize = jax.jit(lambda states: jax.lax.scan(slopes, 0.0, states)[0])
    start = State(jnp.asarray(q), jnp.zeros(model.nv))
    jax.block_until_ready(linearize(jax.tree.map(lambda a: a[:: WINDOW // STATES], fall(start)[1])))

    def one_fall() -> Iterator[tuple[float, float]]:
        found: Any
        x = start
        for _ in range(windows):
            took, found = once(functools.partial(fall, x))
            x, few = found[0], jax.tree.map(lambda a: a[:: WINDOW // STATES], found[1])
            yield took / WINDOW, once(functools.partial(linearize, few))[0] / STATES

    return least(one_fall)


def in_mujoco(name: str, model, q) -> tuple[Any, Any]:
    """MuJoCo's model of the file, and q in its order."""
    from dropped_scenes import PUBLISHED, compiled, folder

    peer, start = compiled(folder() / PUBLISHED[name], folder(), model, q)
    peer.opt.timestep = DT
    return peer, start


def mujocos(name: str, model, q, windows: int) -> tuple[list[float], list[float]] | None:
    """The same of MuJoCo; None where it does not read the file."""
    import mujoco
    import numpy as np
    from dropped_scenes import Unreadable
    from measure import once

    try:
        peer, start = in_mujoco(name, model, q)
    except Unreadable as error:
        print(f"{name}: MuJoCo: {error}")
        return None
    n = 2 * peer.nv
    A, B = np.zeros((n, n)), np.zeros((n, peer.nu))

    def one_fall() -> Iterator[tuple[float, float]]:
        data = mujoco.MjData(peer)
        data.qpos[:] = start
        for _ in range(windows):
            took = once(lambda: [mujoco.mj_step(peer, data) for _ in range(WINDOW)])[0]
            yield took / WINDOW, once(lambda: mujoco.mjd_transitionFD(peer, data, 1e-6, False, A, B, None, None))[0]

    return least(one_fall)


def rolled_out(name: str, model, q, count: int, steps: int = 100) -> tuple[float, float]:
    """Milliseconds of `count` rollouts in one call: ours, and MuJoCo's."""
    import jax
    import jax.numpy as jnp
    import mujoco
    import mujoco.rollout
    import numpy as np
    from measure import once

    from trajopt.dynamics import State, System

    system, us = System(model, DT), jnp.zeros((steps, model.nu))
    ours = jax.jit(jax.vmap(lambda v: system.rollout(State(jnp.asarray(q), v), us)[0].q[-1]))
    peer, start = in_mujoco(name, model, q)
    data, full = [mujoco.MjData(peer) for _ in range(2)], mujoco.mjtState.mjSTATE_FULLPHYSICS
    vs = np.random.default_rng(0).normal(size=(count, model.nv))
    states = np.zeros((count, mujoco.mj_stateSize(peer, full)))
    for state, v in zip(states, vs, strict=True):
        data[0].qpos[:], data[0].qvel[:] = start, v[: peer.nv]
        mujoco.mj_getState(peer, data[0], state, full)
    calls = (lambda: ours(vs), lambda: mujoco.rollout.rollout(peer, data, states, nstep=steps)[0])
    times = [[once(call)[0] / 1e3 for call in calls] for _ in range(6)][1:]
    return tuple(np.median(times, 0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, separated by commas; all by default")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the fall")
    parser.add_argument("--rollouts", type=int, help="motions in one call, in place of single steps")
    options = begin(parser, pinned=lambda options: options.rollouts is None)
    import numpy as np
    from dropped_scenes import PUBLISHED, model_of, put_down

    print(banner("mujoco", "example-robot-data"))
    rows = []
    for name in options.models.split(",") if options.models else PUBLISHED:
        model = model_of(name)
        q, windows = put_down(model, np.array(model.q_default, float)), round(options.seconds / DT / WINDOW)
        if options.rollouts is not None:
            own, peers = rolled_out(name, model, q, options.rollouts)
            print(
                f"{name}: {options.rollouts} rollouts {own:.1f} ms, MuJoCo {peers:.1f} ms, ratio {own / peers:.2f}",
                flush=True,
            )
            continue
        vertices = sum(len(mesh) for mesh in model.meshes)
        step, both = ours(model, q, windows)
        peer = mujocos(name, model, q, windows)
        found = [float(of(times)) for times in (step, both, *(peer or ())) for of in (np.median, np.max)]
        if peer is not None:
            found += [float(np.median(step) / np.median(peer[0])), float(np.median(peer[1]) / np.median(both))]
            key = name.replace(" published", "").replace(" ", "-")
            record(f"published/{key}/step-over-mujoco", found[-2], "of mj_step")
            record(f"published/{key}/step-jacobian", found[-1], "times MuJoCo's differences")
        missing = ["-"] * (len(HEAD) - 4 - len(found))
        rows.append((name, model.nv, len(model.topology.pairs), vertices, *found, *missing))
        print(*rows[-1], flush=True)
    if rows:
        print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
