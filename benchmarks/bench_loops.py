"""Closed loops: step, and step plus Jacobian, by the compiled core and by JAX, and by the core without the loops; MuJoCo's step.

    taskset -c 1 python benchmarks/bench_loops.py [--chains 1,4]

Four-bar linkages that move, side by side in one model; every pin's row across the plane is redundant. Steps of a scan, each
waiting for the one before; MuJoCo's, from Python, holds its loops softly. Least (median) microseconds of the wall clock, least
of the CPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools

from bench_native import DT, STEPS, show, spans
from measure import banner, pin_to_one_core

BODIES = """<body name="crank{k}" pos="0 {k} 0"><joint name="a{k}"/><geom fromto="0 0 0 0 0 0.1" mass="0.2"/>
    <body name="coupler{k}" pos="0 0 0.1"><joint name="b{k}"/><geom fromto="0 0 0 0.3 0 0.1" mass="0.4"/></body></body>
  <body name="rocker{k}" pos="0.3 {k} 0"><joint name="c{k}"/><geom fromto="0 0 0 0 0 0.2" mass="0.3"/></body>"""
PIN = '<connect body1="coupler{k}" body2="rocker{k}" anchor="0.3 0 0.1"/>'


def linkages(count: int, pins: bool) -> str:
    """MJCF of `count` four-bar linkages, or of their bodies alone."""
    bodies = "".join(BODIES.format(k=k) for k in range(count))
    loops = "".join(PIN.format(k=k) for k in range(count)) if pins else ""
    motors = "".join(f'<motor joint="a{k}"/>' for k in range(count))
    return f"""<mujoco model="linkages"><default><geom type="capsule" size="0.01" contype="0" conaffinity="0"/>
      <joint axis="0 1 0"/></default><worldbody>{bodies}</worldbody><equality>{loops}</equality>
      <actuator>{motors}</actuator></mujoco>"""


def times(count: int, pins: bool, backend: str) -> None:
    """Of one implementation, from a state that moves along the loops."""
    import jax
    import jax.numpy as jnp

    from trajopt.dynamics import State, System
    from trajopt.models import load_model_from_string

    system = System(load_model_from_string(linkages(count, pins)), DT, backend=backend)
    start, u = system.initial_state(), jnp.full(count, 0.1)
    x, _ = system.step(dataclasses.replace(start, v=jnp.tile(jnp.array([1.0, -1.2, 0.6]), count)), u)

    def step(x):
        return system.step(x, u)[0].v

    def both(x):
        found = system.linearize(x, u)
        return found.x_next.v + found.A[0, 0] + found.B[0, 0]

    for label, function in (("step", step), ("step + Jacobian", both)):

        def chain(x, function=function):
            return jax.lax.scan(lambda q, _: (q + 0.0 * function(State(q, x.v))[0], None), x.q, None, STEPS)[0]

        words = f"{label}, {backend}" + ("" if pins else ", without loops")
        show(words, spans(functools.partial(jax.jit(chain), x), STEPS, 20))


def mujoco_times(count: int) -> None:
    """mj_step of the same linkages."""
    import mujoco

    m = mujoco.MjModel.from_xml_string(linkages(count, True))
    m.opt.timestep = DT
    d = mujoco.MjData(m)

    def step():
        mujoco.mj_step(m, d)
        return d.qvel

    show("MuJoCo mj_step", spans(step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", default="1,4")
    options = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner("jaxlib", "mujoco"))
    for count in map(int, options.chains.split(",")):
        print(f"{count} four-bar linkages, {3 * count} DoF, {3 * count} rows of which {2 * count} are independent")
        times(count, True, "native")
        times(count, False, "native")
        times(count, True, "jax")
        mujoco_times(count)


if __name__ == "__main__":
    main()
