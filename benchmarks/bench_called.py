"""Steps called one by one from Python: free motion by explicit integrators and by impulses, and contact, beside `mj_step`.

    python benchmarks/bench_called.py [--models cart-pole:rk4,ur5:semi-implicit,go1:contact] [--processor]

Microseconds of `System.step` and `System.linearize` with their checks, of the same step in a compiled loop, and of MuJoCo's step
of the same file: by RK4 where ours is, by its Euler method elsewhere. "contact" is the default: hard contact, semi-implicit
Euler. Steps of 1 ms from the home or the default pose.
"""

import argparse

from measure import (
    banner,
    begin,
    markdown,
    microseconds,
    microseconds_in_loop,
    mujoco_calls,
    mujoco_model,
    step_and_linearize,
)
from results import record

MODELS = "cart-pole:rk4,double-cart-pole:rk4,double-cart-pole:euler,ur5:rk4,ur5:semi-implicit,go1:contact"


def called(name: str, scheme: str) -> tuple[float, ...]:
    """us: step and linearize as called, and in a loop."""
    import jax.numpy as jnp

    from trajopt.dynamics import NoContact, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, 1e-3) if scheme == "contact" else System(model, 1e-3, NoContact(), integrator=scheme)
    x, u = system.initial_state("home" if "home" in model.keyframes else None), jnp.zeros(system.nu)
    calls = (lambda: system.step(x, u)[0].v), (lambda: system.linearize(x, u).A)
    loops = step_and_linearize(system, x.v, u)
    return *map(microseconds, calls), *(microseconds_in_loop(function, x.q) for function in loops)


def mj_step(name: str, scheme: str) -> float:
    """us of MuJoCo's step."""
    import mujoco

    step, _, d = mujoco_calls(name, mujoco_model(name).qpos0, 0.0)
    d.model.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4 if scheme == "rk4" else mujoco.mjtIntegrator.mjINT_EULER
    return microseconds(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS, help="names of bundled models, each with a scheme")
    options = begin(parser)
    print(banner("mujoco"))
    rows = [(*entry.split(":"), *called(*entry.split(":")), mj_step(*entry.split(":"))) for entry in options.models.split(",")]
    for name, scheme, step, both, *_ in rows:
        record(f"called/{name}/{scheme}/step", step, "us")
        record(f"called/{name}/{scheme}/linearize", both, "us")
    head = ("us", "scheme", "step called", "linearize called", "step in a loop", "+ Jacobian in a loop", "`mj_step` from Python")
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
