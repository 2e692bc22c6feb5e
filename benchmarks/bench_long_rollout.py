"""Gradient of a long rollout of Go1 in reverse mode: time, memory of the program, and the most that the process needed.

    python benchmarks/bench_long_rollout.py [STEPS] [SEGMENT]

SEGMENT: steps between states that are kept; the steps between them are computed again (0: everything is kept). Springs in the
joints hold the robot on its four feet. What the process needs at most includes the compiler: XLA's older code generator, which
needs a third of the memory, unless XLA_FLAGS says --xla_cpu_use_fusion_emitters=true.
"""

from __future__ import annotations

import os
import resource
import sys
import time

from measure import banner, pin_to_one_core

pin_to_one_core()
if "xla_cpu_use_fusion_emitters" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import RigidContact, System  # noqa: E402


def peak() -> float:
    """Largest resident memory so far, MB."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    segment = (int(sys.argv[2]) if len(sys.argv) > 2 else 100) or None
    model = load_model("go1")
    legs = np.arange(model.nv) >= 6
    held = {
        "stiffness": 200.0 * legs,
        "damping": 5.0 * legs,
        "spring_reference": np.r_[np.zeros(6), model.keyframes["home"][7:]],
    }
    system = System(model.replace(**held), dt=1e-3, contact=RigidContact(max_contacts=8))
    x0 = system.initial_state("home")
    us = jnp.zeros((steps, system.nu))

    @jax.jit
    def slope(system, x0, us):
        """Of the mean height of the base by all torques."""
        return jax.value_and_grad(lambda us: jnp.mean(system.rollout(x0, us, segment=segment)[0].q[:, 2]))(us)

    print(banner())
    start = time.perf_counter()
    compiled = slope.lower(system, x0, us).compile()
    print(f"compilation  {time.perf_counter() - start:8.1f} s   peak {peak():8.0f} MB", flush=True)
    sizes = compiled.memory_analysis()
    if sizes is not None:
        parts = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
        print(f"the program needs {sum(getattr(sizes, part) for part in parts) / 1e6:.0f} MB")
    start = time.perf_counter()
    value, gradient = jax.block_until_ready(compiled(system, x0, us))
    took = time.perf_counter() - start
    print(f"gradient     {took:8.1f} s   peak {peak():8.0f} MB   {1e6 * took / steps:.0f} us per step")
    print(f"{steps} steps, segment {segment}; mean height {value:.4f} m, |gradient| {jnp.linalg.norm(gradient):.3e}")


if __name__ == "__main__":
    main()
