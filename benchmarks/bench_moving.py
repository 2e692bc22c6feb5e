"""Step, and step plus Jacobian, from many random velocities, beside MuJoCo: what single states leave to chance.

    python benchmarks/bench_moving.py [--models go1,h1] [--states 200] [--velocity 0.02] [--processor]

Robots stand at home, 10 um inside the floor, with velocities drawn with deviation 0.02 (rad/s, m/s; seed 0); all settings are
defaults. Each state is stepped again and again in a compiled loop; medians and 90th percentiles are over the states. MuJoCo
starts its solver from the accelerations of its last step, which here are the answer itself; "from zero" it starts, as ours does,
without them (`mjDSBL_WARMSTART`). It is called from Python, ours runs inside a loop.
"""

import argparse

from measure import banner, begin, looped, markdown, microseconds, mujoco_calls, standing, step_and_linearize
from results import record

STEPS = 20  # of a loop
SPAN = {"batches": 3, "seconds": 2e-3}
HEAD = ("us", "contacts closed", "step", "90 %", "+ Jacobian", "90 %", "`mj_step`", "90 %", "from zero", "90 %", "over `mj_step`",
        "over one from zero")  # fmt: skip


def ours(model, q, velocities) -> tuple[list[float], list[float], list[int]]:
    """(microseconds of a step, of a step with its Jacobian, contacts that are closed) of each state."""
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import State, System

    system = System(model, dt=1e-3)
    u = jnp.zeros(system.nu)

    loops = [looped(lambda q, v, k=k: step_and_linearize(system, v, u)[k](q), STEPS) for k in (0, 1)]
    q = jnp.asarray(q)
    times: tuple[list[float], list[float]] = ([], [])
    closed = []
    for v in map(jnp.asarray, velocities):
        for loop, found in zip(loops, times, strict=True):
            found.append(microseconds(lambda loop=loop, v=v: loop(q, v), **SPAN) / STEPS)
        closed.append(int(np.sum(np.asarray(system.step(State(q, v), u)[1].contacts.mode) > 0)))
    return *times, closed


def mujocos(name: str, q, velocities, warm: bool) -> list[float]:
    """Microseconds of `mj_step` of each state."""
    import mujoco

    times = []
    for v in velocities:
        step, _, d = mujoco_calls(name, q, v)
        if not warm:
            d.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_WARMSTART
        times.append(microseconds(step, **SPAN))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="half-cheetah,go1,h1,humanoid,atlas")
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--velocity", type=float, default=0.02, help="deviation, rad/s and m/s")
    options = begin(parser)
    import numpy as np

    from trajopt.models import load_model

    print(banner("mujoco"))
    rows = []
    for name in options.models.split(","):
        model = load_model(name)
        q = standing(model)
        velocities = options.velocity * np.random.default_rng(0).normal(size=(options.states, model.nv))
        step, both, closed = ours(model, q, velocities)
        peers = [mujocos(name, q, velocities, warm) for warm in (True, False)]
        spread = [float(np.percentile(times, at)) for times in (step, both, *peers) for at in (50, 90)]
        ratios = [f"{np.median(np.divide(step, peer)):.2f}x" for peer in peers]
        record(f"step-over-mujoco/{name}/200-states", float(np.median(np.divide(step, peers[0]))), "of mj_step")
        rows.append((name, int(np.median(closed)), *spread, *ratios))
        print(*rows[-1], flush=True)
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
