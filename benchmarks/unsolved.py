"""Share of contact problems that stay unsolved, at random velocities about poses in contact, with the fallbacks it took.

    python benchmarks/unsolved.py [MODEL ...] [--count 5000] [--seed 0] [--kinds standing ...] [--failures DIR] [--batch 64]
    python benchmarks/unsolved.py [MODEL ...] --backend native --count 100000

Poses, in turn, each with dt of 1 and 5 ms: *standing*, the default posture with joints moved by 0.03 and its lowest point up to
0.1 mm in the ground; *landing*, the same, up to 2 mm above the ground and falling at 0.2 to 2 m/s; *fallen*, turned at random
with joints anywhere in their limits, as deep in the ground as standing. Velocities are normal with a standard deviation drawn
log-uniformly from 0.01 to 0.3 (rad/s, m/s); no control acts. Each problem is solved from zero, one at a time on one core.

Columns: problems; unsolved; those in which a later stage than Newton ran, by the last one; largest residual of the solved; mean,
99th and 99.9th percentile of Newton's iterations; microseconds per problem. --failures: a folder for the unsolved problems (NumPy
archives with G, g, mu, exists, bound, rho and impulse). --batch: time of one step of 64 states at once, beside that of 64 steps.
TRAJOPT_NATIVE_ISA=none leaves the last stage, the compiled core's, out: what a GPU has.
--backend native: whole steps through the compiled core in place of the contact problems alone; the times are those of the median,
the 99th and the 99.9th percentile of 2,000 steps of each model, each the least of five spans.
"""

import argparse
import os
import pathlib
import time

from measure import banner, microseconds, pin_to_one_core

pin_to_one_core()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

from contact_states import lifts, lowered  # noqa: E402
from validation_experiments.contact_problems import CACHE, FIELDS, keep, of_states, solved  # noqa: E402

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import Stage, State, System  # noqa: E402
from trajopt.dynamics.contact.ncp import NCP  # noqa: E402
from trajopt.dynamics.rigid_body.configuration import integrate  # noqa: E402
from trajopt.result import Status  # noqa: E402

MODELS = (
    "go1",
    "h1",
    "humanoid",
    "atlas",
    "anymal-c",
    "half-cheetah",
    "hopper",
    "cube",
    "catapult",
    "jump-worm",
    "drone",
)
KINDS = ("standing", "landing", "fallen")
STEPS = (1e-3, 5e-3)
POSES = 8  # poses of each kind for each dt: every pose serves many velocities
CHUNK = 50
TIMED, REPEATED = 2000, 20  # steps of the core that are timed by themselves, and how often each


def pose(model, kind: str, rng) -> np.ndarray:
    """A configuration of the given kind (see the module's docstring)."""
    top = model.topology
    q = np.array(model.keyframes.get("home", model.q_default), float)
    free = np.array([j for j in range(model.nv) if top.scalar_q_of_dof[j] >= 0], int)
    place = top.scalar_q_of_dof[free]
    low, high = np.asarray(model.lower)[free], np.asarray(model.upper)[free]
    if kind == "fallen":
        turn = np.zeros(model.nv)
        if len(top.ball_starts):
            turn[3:6] = 2.0 * rng.normal(size=3)
            q = np.array(integrate(model, jnp.asarray(q), jnp.asarray(turn)))
        bounded = np.isfinite(low) & np.isfinite(high)
        q[place[bounded]] = rng.uniform(low[bounded], high[bounded])
    else:
        q[place] = np.clip(q[place] + 0.03 * rng.normal(size=len(place)), low, high)
    gap = rng.uniform(0.0, 2e-3) if kind == "landing" else -rng.uniform(0.0, 1e-4)
    return lowered(model, q, gap)


def states(model, kinds, count: int, seed: int):
    """For each dt: (kinds, q, v) of `count` states in all."""
    rng = np.random.default_rng(seed)
    for dt in STEPS:
        poses = [(kind, pose(model, kind, rng)) for kind in kinds for _ in range(POSES)]
        chosen = [poses[k % len(poses)] for k in range(count // len(STEPS))]
        spread = np.exp(rng.uniform(np.log(0.01), np.log(0.3), size=len(chosen)))
        v = spread[:, None] * rng.normal(size=(len(chosen), model.nv))
        for (kind, _), row in zip(chosen, v, strict=True):
            if kind == "landing" and lifts(model):
                row[2 if model.nq > model.nv else 1] -= rng.uniform(0.2, 2.0)
        yield dt, np.array([kind for kind, _ in chosen]), np.stack([q for _, q in chosen]), v


def problems(name: str, kinds, count: int, seed: int) -> tuple[np.ndarray, NCP]:
    """Kind and `NCP` of each problem, kept in .cache/ncp."""
    path = CACHE / f"random-{name}-{'-'.join(kinds)}-{count}-{seed}.npz"
    if not path.exists():
        model = load_model(name).to_device()
        labels, parts = [], []
        for dt, kind, q, v in states(model, kinds, count, seed):
            labels.append(kind)
            parts.append(jax.tree.map(np.asarray, of_states(model, dt)(jnp.asarray(q), jnp.asarray(v))))
        ncps = jax.tree.map(lambda *a: np.concatenate(a), *parts)
        CACHE.mkdir(parents=True, exist_ok=True)
        np.savez(path, kind=np.concatenate(labels), **{field: getattr(ncps, field) for field in FIELDS})
    with np.load(path) as file:
        return file["kind"], NCP(**{field: file[field] for field in FIELDS})


def steps_of_the_core(name: str, kinds, count: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Kind and outcome of each step through the compiled core; NaN for the time of those that are not timed."""
    model, labels, parts = load_model(name), [], []
    for dt, kind, q, v in states(model.to_device(), kinds, count, seed):
        system = System(model, dt, backend="native")
        u = jnp.zeros(system.nu)

        def one(at, system=system, u=u):
            info = system.step(State(*at), u)[1]
            return {
                "residual": info.residual, "iterations": info.iterations, "fallbacks": info.fallbacks,
                "solved": info.status == Status.solved, "infeasible": info.status == Status.infeasible,
            }  # fmt: skip

        found = jax.tree.map(
            np.array, jax.jit(lambda at, one=one: jax.lax.map(one, at))((jnp.asarray(q), jnp.asarray(v)))
        )
        # Zeros that XLA does not know to be zeros keep it from taking the step out of the loop.
        again = jax.jit(lambda at, zeros, one=one: jax.lax.map(lambda z: one((at[0] + z, at[1]))["residual"], zeros))
        found["us"] = np.full(len(q), np.nan)
        for k in np.linspace(0, len(q) - 1, min(TIMED // len(STEPS), len(q))).astype(int):
            at = jnp.asarray(q[k]), jnp.asarray(v[k])
            spans = []
            for _ in range(5):
                start = time.perf_counter()
                jax.block_until_ready(again(at, jnp.zeros(REPEATED)))
                spans.append((time.perf_counter() - start) / REPEATED * 1e6)
            found["us"][k] = min(spans)
        labels.append(kind)
        parts.append(found)
    return np.concatenate(labels), {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def report_of_the_core(name: str, kind: str, found: dict[str, np.ndarray]) -> None:
    solved, iterations = found["solved"], found["iterations"]
    times = np.nanpercentile(found["us"], [50, 99, 99.9])
    print(f"{name:14s} {kind:9s} {len(solved):8d} {np.sum(~solved):8d} {np.sum(found['infeasible']):6d} "
          f"{np.sum(found['fallbacks'] > 0):9d} {found['residual'][solved].max(initial=0.0):8.1e} "
          f"{np.percentile(iterations, 99.9):6.0f} {times[0]:9.1f} {times[1]:9.1f} {times[2]:9.1f}", flush=True)  # fmt: skip


def report(name: str, kind: str, found: dict[str, np.ndarray]) -> None:
    solved, last = found["solved"], found["fallbacks"]
    stages = " ".join(f"{np.sum(last == stage):5d}" for stage in list(Stage)[1:])
    iterations = found["iterations"]
    print(f"{name:14s} {kind:9s} {len(solved):8d} {np.sum(~solved):8d} {np.sum(found['infeasible']):6d} {stages} "
          f"{found['residual'][solved].max(initial=0.0):8.1e} {iterations.mean():6.1f} {np.percentile(iterations, 99):6.0f} "
          f"{np.percentile(iterations, 99.9):6.0f} {found['us'].mean():9.1f}", flush=True)  # fmt: skip


def batch_times(name: str, size: int, spread: float) -> None:
    """Microseconds of one state's step in a batch of `size` standing states, and by itself."""
    system = System(load_model(name), dt=1e-3)
    home = np.asarray(system.model.keyframes.get("home", system.model.q_default))
    rng = np.random.default_rng(0)
    q = jnp.tile(jnp.asarray(lowered(system.model, home, 0.0)), (size, 1))
    v = jnp.asarray(spread * rng.normal(size=(size, system.model.nv)))
    u = jnp.zeros(system.nu)
    batch = jax.jit(jax.vmap(lambda q, v: system.step(State(q, v), u)[0].v))
    turns = jax.jit(lambda q, v: jax.lax.map(lambda a: system.step(State(*a), u)[0].v, (q, v)))
    together, one = (microseconds(lambda run=run: run(q, v), batches=3) / size for run in (batch, turns))
    print(f"{name}: batch of {size}, velocities of {spread:g}: {together:.0f} us a step, {one:.0f} us one at a time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--failures", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=0, metavar="SIZE")
    parser.add_argument("--backend", choices=("jax", "native"), default="jax")
    parser.add_argument("--spread", type=float, default=0.02, help="of the velocities of a batch")
    options = parser.parse_args()
    print(banner(), f"load {os.getloadavg()[0]:.1f}")
    if options.batch:
        for name in options.models:
            batch_times(name, options.batch, options.spread)
        return
    if options.backend == "native":
        print(f"{'model':14s} {'pose':9s} {'steps':>8s} {'unsolved':>8s} {'infeas':>6s} {'fallbacks':>9s} {'residual':>8s} "
              f"{'it 99.9':>7s} {'us':>8s} {'us 99':>9s} {'us 99.9':>9s}")  # fmt: skip
        for name in options.models:
            kind, found = steps_of_the_core(name, options.kinds, options.count, options.seed)
            for each in options.kinds:
                report_of_the_core(name, each, {key: value[kind == each] for key, value in found.items()})
        return
    print(f"{'model':14s} {'pose':9s} {'problems':>8s} {'unsolved':>8s} {'infeas':>6s} {'GS':>5s} {'path':>5s} "
          f"{'residual':>8s} {'it':>6s} {'it 99':>6s} {'99.9':>6s} {'us':>9s}")  # fmt: skip
    for name in options.models:
        kind, ncps = problems(name, options.kinds, options.count, options.seed)
        found = solved(ncps, CHUNK)
        if options.failures:
            keep(options.failures, name, ncps, found, np.flatnonzero(~found["solved"]))
        for each in options.kinds:
            report(name, each, {key: value[kind == each] for key, value in found.items()})


if __name__ == "__main__":
    main()
