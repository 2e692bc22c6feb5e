"""How often the boxed LCP's guess of the active set is right, and what a step costs (Nimble, App. B: above 95 %).

    python benchmarks/bench_boxed_lcp.py [--steps 1000] [--seeds 2]

Rollouts with dt = 1 ms, every step warm-started with the impulses of the one before. Half-cheetah: joints held around the default
posture while their targets swing, and motors driven by sines without feedback. Atlas: held in its standing posture, and
with swinging targets, under which it stumbles and falls. The gains are proportional to the inertia that a motor moves alone.
"""

from __future__ import annotations

import argparse
import time

from measure import banner, pin_to_one_core

pin_to_one_core()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import BoxedLCP, RigidContact, State, System  # noqa: E402
from trajopt.dynamics.contact.rows import row_count  # noqa: E402
from trajopt.dynamics.rigid_body.derivatives import dynamics_terms  # noqa: E402
from trajopt.result import Status  # noqa: E402

DT = 1e-3
STIFFNESS, DAMPING = 3000.0, 100.0  # 1/s^2 and 1/s, of the held joints
CASES = (  # model, name, swing of the targets (rad) or amplitude of the motors, held
    ("half-cheetah", "held, swinging", 0.5, True),
    ("half-cheetah", "driven", 3.0, False),
    ("atlas", "standing", 0.0, True),
    ("atlas", "swinging, falling", 0.2, True),
)


def rollout_of(system: System, swing: float, held: bool, steps: int):
    """A compiled function of (frequencies, phases): the infos of the steps that count."""
    model = system.model
    q0 = jnp.asarray(model.keyframes["home"] if "home" in model.keyframes else model.q_default)
    actuation = np.asarray(model.actuation)
    dof = np.array([np.flatnonzero(column)[0] for column in actuation.T])
    gear = actuation[dof, np.arange(model.nu)]
    coordinate = np.asarray(model.topology.scalar_q_of_dof)[dof]

    def rollout(frequency, phase):
        inertia = 1.0 / jnp.diag(jnp.linalg.inv(dynamics_terms(model, q0, jnp.zeros(model.nv)).M))[dof]

        def body(carry, t):
            x, warm_start = carry
            wave = swing * jnp.sin(2 * jnp.pi * frequency * t + phase)
            error = q0[coordinate] + wave - x.q[coordinate]
            u = inertia / gear * (STIFFNESS * error - DAMPING * x.v[dof]) if held else wave
            y, info = system.step(x, u, warm_start=warm_start)
            touching = jnp.any(info.contacts.mode > 0)
            return (y, info.impulse), (info.iterations, info.fallbacks, info.status == Status.solved, touching)

        start = (State(q0, jnp.zeros(model.nv)), jnp.zeros(row_count(system.contact, model)))
        return jax.lax.scan(body, start, DT * jnp.arange(steps, dtype=q0.dtype))[1]

    return jax.jit(rollout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    print(banner())
    for name, case, swing, held in CASES:
        model = load_model(name).to_device()
        shares, costs = [], {}
        for law in (BoxedLCP(), RigidContact()):
            rollout = rollout_of(System(model, dt=DT, contact=law), swing, held, options.steps)
            for seed in range(options.seeds):
                rng = np.random.default_rng(seed)
                wave = rng.uniform(0.5, 2.0, size=model.nu), rng.uniform(0, 2 * np.pi, size=model.nu)
                jax.block_until_ready(rollout(*wave))
                start = time.perf_counter()
                out = jax.block_until_ready(rollout(*wave))
                costs.setdefault(type(law).__name__, []).append((time.perf_counter() - start) / options.steps * 1e6)
                if isinstance(law, BoxedLCP):
                    iterations, fallbacks, solved, touching = (np.asarray(a) for a in out)
                    pivoted = fallbacks > 0
                    kinds = (iterations == 0, (iterations > 0) & ~pivoted, pivoted, ~solved, touching)
                    shares.append([100 * a.mean() for a in kinds])
        right, corrected, pivoted, unsolved, touching = np.mean(shares, 0)
        print(
            f"{name}, {case}: guess right on {right:.1f} % of steps, corrected on {corrected:.1f} %, "
            f"pivoting on {pivoted:.1f} %, unsolved {unsolved:.2f} %, "
            f"in contact {touching:.0f} %; step " + ", ".join(f"{k} {np.mean(v):.0f} us" for k, v in costs.items())
        )


if __name__ == "__main__":
    main()
