"""How robustly and how fast the three solvers of the contact problem work on problems recorded from rollouts.

    python benchmarks/bench_ncp.py [--steps 300] [--seeds 2] [--models go1 h1 ...] [--out ncp.json]

Every bundled robot is rolled out with dt = 1 ms under `RigidContact()`: held in its default posture with random base
velocities (standing, sliding), and dropped from a random orientation with limp joints (tumbling); and ten boxes are stacked
with offsets. Each step's problem is then solved anew, from zero, by each solver, one problem at a time on one core.

Columns: problems with at least one active contact; share solved to a residual of 1e-9, recomputed; median and 95th
percentile of iterations; fallbacks (Newton only) and failures per thousand problems; microseconds per problem.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

from measure import banner, pin_to_one_core

pin_to_one_core()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import RigidContact  # noqa: E402
from trajopt.dynamics.collision.pairs import collide  # noqa: E402
from trajopt.dynamics.contact.implicit import row_count, solve_primal  # noqa: E402
from trajopt.dynamics.contact.ncp import residual  # noqa: E402
from trajopt.dynamics.contact.solve import SOLVERS, solve  # noqa: E402
from trajopt.dynamics.derivatives import dynamics_terms  # noqa: E402
from trajopt.dynamics.joints import integrate  # noqa: E402
from trajopt.dynamics.kinematics import kinematics  # noqa: E402
from trajopt.models import load_model_from_string  # noqa: E402

DT, LIMIT = 1e-3, 1e-9
STIFFNESS, DAMPING = 3000.0, 100.0  # 1/s^2 and 1/s, of the held joints
ROBOTS = ("go1", "h1", "humanoid", "atlas", "anymal-c", "half-cheetah", "hopper", "panda", "ur5", "cube")


def stack_of_boxes(count: int = 10, ratio: float = 1.0) -> str:
    """MJCF of boxes on top of each other, offsets of 1 cm, random yaw, mass ratio between neighbours."""
    rng = np.random.default_rng(0)
    bodies = []
    for k in range(count):
        x, y = 0.01 * rng.uniform(-1, 1, size=2) / np.sqrt(2)
        yaw = rng.uniform(0, 2 * np.pi)
        mass = ratio if k % 2 else 1.0
        bodies.append(
            f'<body name="box{k}" pos="{x} {y} {0.1 + 0.2 * k}" quat="{np.cos(yaw / 2)} 0 0 {np.sin(yaw / 2)}">'
            f'<freejoint/><geom type="box" size="0.1 0.1 0.1" mass="{mass}" friction="0.6"/></body>'
        )
    floor = '<geom type="plane" size="0 0 1" friction="0.6"/>'
    return f'<mujoco model="stack"><worldbody>{floor}{"".join(bodies)}</worldbody></mujoco>'


def recorder(model, law: RigidContact, held: bool, steps: int):
    """A compiled function (q, v) -> the NCPs of the steps of a rollout, stacked."""
    n = model.nv
    q_home = jnp.asarray(model.keyframes["home"] if "home" in model.keyframes else model.q_default)
    of_dof = np.asarray(model.topology.scalar_q_of_dof)
    joints = np.flatnonzero(of_dof >= 0) if held else np.zeros(0, int)
    actuated = np.flatnonzero(np.abs(np.asarray(model.actuation)).sum(1) > 0)
    joints = np.intersect1d(joints, actuated)
    inertia = 1.0 / jnp.diag(jnp.linalg.inv(dynamics_terms(model, q_home, jnp.zeros(n)).M))[joints]

    def rollout(q, v):
        def body(carry, _):
            q, v, warm = carry
            error = q_home[of_dof[joints]] - q[of_dof[joints]]
            tau = jnp.zeros(n).at[joints].set(inertia * (STIFFNESS * error - DAMPING * v[joints]))
            solved = solve_primal(law, model, q, v, tau, jnp.asarray(DT), warm)
            v = solved.velocity
            return (integrate(model, q, DT * v), v, solved.impulse), solved.ncp

        start = (q, v, jnp.zeros(row_count(law, model)))
        return jax.lax.scan(body, start, None, length=steps)[1]

    return jax.jit(rollout)


def random_start(model, rng, tumbling: bool):
    """The default posture with random velocity; tumbling: turned at random, its lowest point 1 cm above the floor."""
    home = model.keyframes["home"] if "home" in model.keyframes else model.q_default
    q, v = jnp.asarray(home), jnp.asarray(0.5 * rng.normal(size=model.nv))
    if tumbling and model.nq > model.nv:  # a free base
        push = np.concatenate([np.zeros(3), 1.5 * rng.normal(size=model.nv - 3)])
        q = integrate(model, q, jnp.asarray(push))
        lowest = jnp.min(collide(model, kinematics(model, q)).distance)
        q = q.at[2].add(0.01 - lowest)
    return q, v


def statistics(ncps, active) -> dict[str, dict[str, float]]:
    """Per solver: what the module's docstring lists."""
    rows = {}
    kept = jax.tree.map(lambda a: a[active], ncps)
    count = int(np.sum(active))
    for name in SOLVERS:

        def one(ncp, name=name):
            out = solve(ncp, solver=name, tol=LIMIT if name != "newton" else None)
            return residual(ncp, out.impulse), out.iterations, out.fallbacks

        run = jax.jit(lambda ncps, one=one: jax.lax.map(one, ncps))
        jax.block_until_ready(run(kept))
        start = time.perf_counter()
        size, iterations, fallbacks = (np.asarray(a) for a in jax.block_until_ready(run(kept)))
        rows[name] = {
            "problems": count,
            "solved_percent": 100.0 * float(np.mean(size <= LIMIT)),
            "iterations_median": float(np.median(iterations)),
            "iterations_95": float(np.percentile(iterations, 95)),
            "fallbacks_per_1000": 1000.0 * float(np.mean(fallbacks > 0)),
            "failures_per_1000": 1000.0 * float(np.mean(~(size <= LIMIT))),
            "us_per_problem": (time.perf_counter() - start) / count * 1e6,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=[*ROBOTS, "stack 1", "stack 100"])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    print(banner())
    print(f"{'scene':28s} {'solver':7s} {'problems':>8s} {'solved %':>8s} {'it 50':>6s} {'it 95':>6s} "
          f"{'fallb/k':>8s} {'fail/k':>7s} {'us':>8s}")  # fmt: skip
    table = {}
    for name in options.models:
        stack = name.startswith("stack")
        model = load_model_from_string(stack_of_boxes(10, float(name.split()[1])), "mjcf") if stack else load_model(name)
        model = model.to_device()
        law = RigidContact(max_contacts=40 if stack else 16)
        for case, held in (("standing", True), ("tumbling", False)):
            if stack and held:
                continue
            record = recorder(model, law, held, options.steps)
            parts = []
            for seed in range(1 if stack else options.seeds):
                rng = np.random.default_rng(seed)
                q, v = random_start(model, rng, tumbling=not held)
                if stack:
                    q, v = jnp.asarray(model.q_default), jnp.zeros(model.nv)
                parts.append(record(q, v))
            ncps = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
            active = np.asarray(jnp.any(ncps.exists, 1) & jax.vmap(lambda p: residual(p, 0.0 * p.g) > 1e-9)(ncps))
            if not active.any():
                continue
            scene = f"{name}, {'at rest' if stack else case}"
            table[scene] = statistics(ncps, active)
            for solver, row in table[scene].items():
                print(f"{scene:28s} {solver:7s} {row['problems']:8d} {row['solved_percent']:8.2f} "
                      f"{row['iterations_median']:6.0f} {row['iterations_95']:6.0f} {row['fallbacks_per_1000']:8.1f} "
                      f"{row['failures_per_1000']:7.1f} {row['us_per_problem']:8.1f}", flush=True)  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
