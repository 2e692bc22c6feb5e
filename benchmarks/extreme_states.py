"""The longest call of a step and of a Jacobian at extreme states: no call of the core may take long, whatever it is asked.

    python benchmarks/extreme_states.py [--models humanoid,go1,h1] [--count 33334] [--seed 0]

Of each model so many states, dt of 1 ms, in turn: *buried*, turned at random with joints up to 1 rad off home, up to
10 m lower, with velocities up to 100 (m/s, rad/s); *thrown*, the home posture with positions up to 1e6 off and velocities up to
1e7. Each is stepped and linearised by the core, called from Python. Columns: states, the longest of `step` and of `linearize` in
seconds of the processor, calls above 0.1 s, steps that were not solved.
"""

from __future__ import annotations

import argparse
import time

from measure import banner, markdown, pin_to_one_core

pin_to_one_core()

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import State, System  # noqa: E402
from trajopt.result import Status  # noqa: E402

LONG = 0.1  # s


def states(model, count: int, seed: int):
    """(q, v) one after the other."""
    rng, home = np.random.default_rng(seed), np.asarray(model.keyframes.get("home", model.q_default), float)
    base = next(j.q_start for j in model.topology.joints if j.kind == "free")
    for k in range(count):
        v = 10.0 ** rng.uniform(-3, 2 if k % 2 == 0 else 7) * rng.normal(size=model.nv)
        if k % 2 == 0:
            q, turn = home + rng.uniform(-1, 1, len(home)), rng.normal(size=4)
            q[base : base + 7] = (
                *home[base : base + 2],
                home[base + 2] - 10.0 ** rng.uniform(-3, 1),
                *turn / np.linalg.norm(turn),
            )
        else:
            q = home + 10.0 ** rng.uniform(-4, 6) * rng.normal(size=len(home))
        yield jnp.asarray(q), jnp.asarray(v)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="humanoid,go1,h1")
    parser.add_argument("--count", type=int, default=33_334, help="of each model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(banner())
    rows = []
    for name in options.models.split(","):
        system = System(load_model(name).to_device(), 1e-3, backend="native")
        u, longest, over, unsolved = jnp.zeros(system.nu), [0.0, 0.0], 0, 0
        for k, (q, v) in enumerate(states(system.model, options.count, options.seed)):
            x = State(q, v)
            for place, call in enumerate((system.step, system.linearize)):
                begun = time.process_time()
                found = jax.block_until_ready(call(x, u))
                took = time.process_time() - begun
                if k == 0:  # compiles
                    continue
                longest[place], over = max(longest[place], took), over + (took > LONG)
            unsolved += bool(found.info.status != Status.solved)
            if k % 5_000 == 4_999:  # a run that is ended has said what it saw
                print(name, k + 1, *longest, over, unsolved, flush=True)
        rows.append((name, options.count, *longest, over, unsolved))
    print(
        markdown(
            ("model", "states", "longest step, s", "longest linearize, s", f"calls above {LONG} s", "unsolved"), rows
        )
    )


if __name__ == "__main__":
    main()
