"""Rigid-body algorithms beside Pinocchio's C++ on the same robots, one pinned core.

    python benchmarks/bench_rigid_body.py [--models go1,h1,atlas] [--batch 1024]

Pinocchio (called from Python, its times include that call) reads the same bundled files. The batch is one `vmap`.
"""

from __future__ import annotations

import argparse
import importlib.resources

from measure import banner, microseconds, pin_to_one_core


def pinocchio_times(name: str) -> dict[str, float]:
    import numpy as np
    import pinocchio as pin

    model = pin.buildModelFromMJCF(str(importlib.resources.files("trajopt.models") / "bundled" / f"{name}.xml"))
    data = model.createData()
    rng = np.random.default_rng(0)
    q = pin.integrate(model, pin.neutral(model), 0.3 * rng.normal(size=model.nv))
    v, a = rng.normal(size=model.nv), rng.normal(size=model.nv)
    return {
        "RNEA": microseconds(lambda: pin.rnea(model, data, q, v, a)),
        "CRBA": microseconds(lambda: pin.crba(model, data, q)),
        "FD": microseconds(lambda: pin.aba(model, data, q, v, a)),
        "FD derivatives": microseconds(lambda: pin.computeABADerivatives(model, data, q, v, a)),
    }


def our_times(name: str, batch: int) -> tuple[dict[str, float], float]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics.rigid_body.configuration import integrate
    from trajopt.dynamics.rigid_body.crba import forward_dynamics, mass_matrix
    from trajopt.dynamics.rigid_body.derivatives import forward_dynamics_derivatives
    from trajopt.dynamics.rigid_body.rnea import rnea
    from trajopt.models import load_model

    model = load_model(name).to_device()
    rng = np.random.default_rng(0)
    q = integrate(model, model.q_default, jnp.asarray(0.3 * rng.normal(size=model.nv)))
    v, a = jnp.asarray(rng.normal(size=model.nv)), jnp.asarray(rng.normal(size=model.nv))
    single = {
        "RNEA": (lambda q, v, a: rnea(model, q, v, a), (q, v, a)),
        "CRBA": (lambda q: mass_matrix(model, q), (q,)),
        "FD": (lambda q, v, a: forward_dynamics(model, q, v, a), (q, v, a)),
        "FD derivatives": (lambda q, v, a: forward_dynamics_derivatives(model, q, v, a), (q, v, a)),
    }
    times = {}
    for key, (function, arguments) in single.items():
        compiled = jax.jit(function)
        times[key] = microseconds(lambda f=compiled, x=arguments: f(*x))
    many = jax.jit(jax.vmap(lambda q, v, a: forward_dynamics_derivatives(model, q, v, a)[1:]))
    stacked = tuple(jnp.broadcast_to(x, (batch, *x.shape)) for x in (q, v, a))
    return times, microseconds(lambda: many(*stacked)) / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="go1,h1,atlas")
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner("pin"))
    print("microseconds, float64; ratio = ours / Pinocchio")
    for name in arguments.models.split(","):
        ours, per_sample = our_times(name, arguments.batch)
        peer = pinocchio_times(name)
        for key, value in ours.items():
            print(f"{name:8s} {key:16s} {value:8.1f}   Pinocchio {peer[key]:7.1f}   {value / peer[key]:5.1f}x")
        derivatives = peer["FD derivatives"]
        print(f"{name:8s} {'FD derivatives':16s} {per_sample:8.1f}   per sample, batch {arguments.batch}: "
              f"{per_sample / derivatives:5.2f}x Pinocchio's single call", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
