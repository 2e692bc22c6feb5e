"""Step, and step plus Jacobian, through the compiled core: in a scan, called from Python, in batches; MuJoCo in the same process.

    taskset -c 1 python benchmarks/bench_native.py [--models go1,atlas] [--rollouts]

Robots stand at home, 10 um inside the floor, at rest; all settings are defaults. In the scan every step begins at the same state
and waits for the one before. MuJoCo's Jacobian is its one-sided finite difference, `mjd_transitionFD`; its calls are from Python.
Times are in microseconds, of the wall clock least (median) of the spans, and least of the process's CPU clock: other processes
share the core, and spans that are too long are never undisturbed.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

from bench_step_jacobian import mujoco_calls, standing
from measure import banner, pin_to_one_core

MODELS = ("half-cheetah", "go1", "h1", "humanoid", "atlas")
DT = 1e-3
STEPS = 100  # of a scan
BATCHES = (64, 1024)


def spans(call, per: int = 1, tries: int = 60, span: float = 1e-3) -> list[tuple[float, float]]:
    """Microseconds (wall clock, CPU clock) of one of the `per` parts of a call, means over each of `tries` short spans."""
    import jax

    jax.block_until_ready(call())
    start = time.process_time()
    jax.block_until_ready(call())
    count = max(1, int(span / max(time.process_time() - start, 1e-6)))
    out = []
    for _ in range(tries):
        start, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            result = call()
        jax.block_until_ready(result)
        wall, cpu = time.perf_counter() - start, time.process_time() - used
        out.append((wall / count / per * 1e6, cpu / count / per * 1e6))
    return out


def show(label: str, times: list[tuple[float, float]]) -> None:
    wall, cpu = zip(*times, strict=True)
    print(f"  {label:42s} {min(wall):9.2f} ({statistics.median(wall):.2f}) CPU {min(cpu):.2f}", flush=True)


def core(name: str) -> None:
    """Times of the compiled core."""
    import jax
    import jax.numpy as jnp

    from trajopt import load_model
    from trajopt.dynamics import RigidContact
    from trajopt.dynamics.compiled import compile_system, pack_parameters
    from trajopt.dynamics.compiled_step import native_linearize, native_step

    model, law = load_model(name).to_device(), RigidContact()
    compiled = compile_system(model, law, "semi-implicit")
    parameters, dt = pack_parameters(compiled, model), jnp.asarray(DT)
    q, v, tau = jnp.asarray(standing(model)), jnp.zeros(model.nv), jnp.zeros(model.nv)

    def step(q, v, tau):
        return native_step(compiled, model, parameters, q, v, tau, dt)

    def both(q, v, tau):
        y, A, B = native_linearize(compiled, model, parameters, q, v, tau, dt, model.actuation)
        return y, A, B

    report = jax.jit(step)(q, v, tau).report
    print(f"{name}: {model.nv} DoF, {int(report[8])} contacts, {int(report[9])} rows, {int(report[1])} Newton iterations")
    for label, function in (("step", step), ("step + Jacobian", both)):

        def chain(q, function=function):
            def body(q, _):
                out = jax.tree.leaves(function(q, v, tau))
                return q + 0.0 * out[0], sum(jnp.reshape(x, -1)[0] for x in out[4:])

            return jax.lax.scan(body, q, None, STEPS)

        show(f"{label} in a scan, a step", spans(functools.partial(jax.jit(chain), q), STEPS))
        show(f"{label} from Python", spans(functools.partial(jax.jit(function), q, v, tau)))
        for batch in BATCHES:
            many = [jnp.tile(x, (batch, 1)) for x in (q, v, tau)]
            mapped = jax.jit(jax.vmap(function))
            show(f"{label}, batch of {batch}, a sample", spans(functools.partial(mapped, *many), batch, 20))


def rollouts(name: str, count: int = 100, steps: int = 100) -> None:
    """A step of rollouts from standing under random torques, in one call."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt import load_model
    from trajopt.dynamics import RigidContact
    from trajopt.dynamics.compiled import compile_system, pack_parameters
    from trajopt.dynamics.compiled_step import native_rollout

    model, law = load_model(name).to_device(), RigidContact()
    compiled = compile_system(model, law, "semi-implicit")
    parameters, dt = pack_parameters(compiled, model), jnp.asarray(DT)
    q, v = jnp.asarray(standing(model)), jnp.zeros(model.nv)
    u = np.random.default_rng(0).normal(size=(count, steps, model.nu))
    taus = jnp.asarray(u @ np.asarray(model.actuation).T)
    run = jax.jit(jax.vmap(lambda taus: native_rollout(compiled, parameters, q, v, taus, dt)))
    unsolved = int((np.asarray(run(taus).report)[..., 3] != 0).sum())
    show(f"{count} rollouts of {steps} steps, a step", spans(functools.partial(run, taus), count * steps, 10))
    print(f"  {'steps left unsolved':42s} {unsolved} of {count * steps}")


def mujoco_times(name: str) -> None:
    """mj_step and mjd_transitionFD of the same file."""
    from trajopt import load_model

    step, differences, d = mujoco_calls(name, standing(load_model(name)), 0)
    for _ in range(100):
        step()
    show(f"MuJoCo mj_step, {d.ncon} contacts", spans(step))
    show("MuJoCo mjd_transitionFD, one-sided", spans(differences))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rollouts", action="store_true", help="rollouts under random torques too")
    options = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    from trajopt import native

    print(banner("jaxlib", "mujoco"))
    print(f"instruction set {native.instruction_set()}")
    for name in options.models.split(","):
        core(name)
        if options.rollouts:
            rollouts(name)
        mujoco_times(name)


if __name__ == "__main__":
    main()
