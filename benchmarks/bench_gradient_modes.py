"""A value and gradient through some steps of a batch of a learning task, by gradient mode: compiling, and a call.

    python benchmarks/bench_gradient_modes.py [--task hopper] [--modes implicit,smoothed] [--batch 16] [--steps 4]

The loss is the sum of the rewards under random actions about a mean, which it is differentiated by. Seconds of the process's CPU
clock; of calls the mean of 500, in milliseconds. `text` is the size of the program before XLA compiles it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from measure import banner

CALLS = 500


def program(task: str, mode: str, batch: int, steps: int):
    """(loss as a function of mean action, states and keys; those)."""
    import jax
    import jax.numpy as jnp

    from trajopt import learning

    environment = learning.tasks.environment(task)
    environment = dataclasses.replace(environment, system=dataclasses.replace(environment.system, gradient=mode))

    def loss(mean, states, keys):
        def body(states, key):
            action = jnp.tanh(mean + 0.1 * jax.random.normal(key, (batch, mean.size)))
            states, outcome = jax.vmap(environment.step)(states, action)
            return states, outcome.reward

        return jax.lax.scan(body, states, keys)[1].sum()

    states, _ = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.PRNGKey(1), batch))
    return loss, (jnp.zeros(environment.system.nu), states, jax.random.split(jax.random.PRNGKey(2), steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="hopper")
    parser.add_argument("--modes", default="implicit,smoothed")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    print(banner("jaxlib"))
    for mode in options.modes.split(","):
        loss, given = program(options.task, mode, options.batch, options.steps)
        start = time.process_time()
        lowered = jax.jit(jax.value_and_grad(loss)).lower(*given)
        traced = time.process_time() - start
        start = time.process_time()
        call = lowered.compile()
        compiled = time.process_time() - start
        jax.block_until_ready(call(*given))
        start = time.process_time()
        for _ in range(CALLS):
            jax.block_until_ready(call(*given))
        each = (time.process_time() - start) / CALLS
        print(
            f"{mode:22s} trace {traced:.2f} s, compile {compiled:.2f} s, a call {1e3 * each:.2f} ms, "
            f"text {len(lowered.as_text()) / 1e3:.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
