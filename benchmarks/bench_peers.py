"""Every peer in one run: MuJoCo, MJX, Pinocchio, Crocoddyl, and figures that others have printed; tables in Markdown.

    python benchmarks/bench_peers.py [--parts steps,dynamics,solvers,rollouts] [--models go1,atlas] [--mjx half-cheetah,go1]
                                     [--crocoddyl /tmp/crocoddyl/bin/python] [--json FILE]

One pinned core, float64, default settings, warm medians; about five minutes on an idle machine, half of which MJX's compilation
takes (--mjx "" leaves it out). The parts:

steps: step, and step with the exact Jacobian, in a compiled loop; `mj_step` and MuJoCo's one-sided finite differences
(`bench_step_jacobian`); `jax.jacfwd` of MJX's step, with those shapes only that touch; Nimble's figures, printed, not measured.
dynamics: RNEA, CRBA, ABA and its derivatives by Pinocchio's C++, called from Python, whose empty call is stated and taken off;
ours without contact, in a compiled loop: a whole step of the compiled core with A and B, which holds the derivatives of ABA and
the integration besides; and the derivatives of forward dynamics by the JAX implementation, called.
solvers: an iteration of iLQR and one of Crocoddyl's FDDP (`crocoddyl_problems.py`). Crocoddyl lives in an environment of its own,

    python -m venv /tmp/crocoddyl && /tmp/crocoddyl/bin/pip install crocoddyl==3.2.1 pin==4.0.0

rollouts: 1,000 rollouts of 100 steps, MuJoCo's `rollout` on one thread beside ours (`bench_rollouts`).
"""

import argparse
import os
import sys
import time

import bench_rollouts
import bench_step_jacobian
import crocoddyl_problems
from measure import (
    banner,
    begin,
    markdown,
    microseconds,
    microseconds_in_loop,
    mujoco_model,
    standing,
    step_and_linearize,
    write_json,
)
from results import record

MODELS = "half-cheetah,go1,h1,humanoid,atlas"
ROUNDS = 3  # of both engines in turn
# us on other machines. Nimble on Atlas: a step, and its five Jacobians. JaxSim 0.9: RNEA, CRBA, ABA, `jax.jacfwd` of ABA.
NIMBLE = {"step": 1699.0, "five Jacobians": 5608.0}
JAXSIM = {"go1": (125, 106, 164, 1958), "h1": (161, 155, 222, 3472), "atlas": (224, 261, 300, 8707)}


def mjx_times(name: str) -> dict:
    """MJX's step and `jax.jacfwd` of it. It computes every pair of shapes in every step: those that do not touch are left out."""
    import jax
    import jax.numpy as jnp
    import mujoco
    import numpy as np
    from mujoco import mjx

    from trajopt.models import load_model

    m = mujoco_model(name)
    q, d = jnp.asarray(standing(load_model(name))), mujoco.MjData(m)
    d.qpos[:] = q
    mujoco.mj_forward(m, d)
    idle = np.setdiff1d(np.arange(m.ngeom), np.unique(d.contact.geom))
    m.geom_contype[idle] = m.geom_conaffinity[idle] = 0
    mx = mjx.put_model(m)
    data = mjx.make_data(mx).replace(qpos=q)
    step = jax.jit(lambda d: mjx.step(mx, d))
    out = {"step_us": microseconds(lambda: step(data).qvel)}
    start = time.perf_counter()

    def velocity(q, v, u):
        return mjx.step(mx, data.replace(qpos=q, qvel=v, ctrl=u)).qvel

    jacobian = jax.jit(jax.jacfwd(velocity, (0, 1, 2)))
    arguments = (q, data.qvel, data.ctrl)
    jax.block_until_ready(jacobian(*arguments))
    out["compile_s"] = time.perf_counter() - start
    out["jacfwd_us"] = microseconds(lambda: jacobian(*arguments))
    return out


def steps(models: list[str], with_mjx: list[str]) -> dict:
    rows, found = [], {}
    for name in models:
        ours, peer, ratios = bench_step_jacobian.in_turn(name, False, ROUNDS)
        mjx = mjx_times(name) if name in with_mjx else None
        found[name] = {"trajopt": ours, "mujoco": peer, "ratios": ratios, "mjx": mjx}
        both = ours["step_jacobian_us"]
        if mjx:
            record(f"mjx/{name}", mjx["jacfwd_us"] / both, "times jax.jacfwd of an MJX step")
        rows.append((
            name, f"{ours['dof']}, {ours['contacts']}", ours["backend"], ours["step_us"], both, peer["step_us"],
            peer["jacobian_us"], bench_step_jacobian.spread(ratios["loop"]), mjx["jacfwd_us"] if mjx else "",
            f"{mjx['jacfwd_us'] / both:.0f}x" if mjx else "", f"{mjx['compile_s']:.0f} s" if mjx else "",
        ))  # fmt: skip
    head = ("standing, us", "DoF, contacts", "backend", "step", "+ Jacobian", "`mj_step`", "MuJoCo's differences", "faster",
            "MJX `jacfwd`", "faster", "its compilation")  # fmt: skip
    print(markdown(head, rows))
    if "atlas" in found:
        step, both = found["atlas"]["trajopt"]["step_us"], found["atlas"]["trajopt"]["step_jacobian_us"]
        print(f"\nNimble on Atlas, printed, on its machine: step {NIMBLE['step']:,.0f} us, five Jacobians "
              f"{NIMBLE['five Jacobians']:,.0f} us; ours {step:.1f} us and, step included, {both:.1f} us: "
              f"{NIMBLE['step'] / step:.0f}x and {sum(NIMBLE.values()) / both:.0f}x.")  # fmt: skip
    return found


def empty_call_us() -> float:
    """Pinocchio's `computeABADerivatives` of a pendulum: next to nothing but the call from Python."""
    import numpy as np
    import pinocchio as pin

    model = pin.Model()
    model.addJoint(0, pin.JointModelRX(), pin.SE3.Identity(), "hinge")
    data, x = model.createData(), np.zeros(1)
    return microseconds(lambda: pin.computeABADerivatives(model, data, x, x, x))


def pinocchio_times(name: str) -> dict[str, float]:
    """us of calls from Python at a random state."""
    import numpy as np
    import pinocchio as pin

    from trajopt.models import bundled_file

    model = pin.buildModelFromMJCF(str(bundled_file(name)))
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


def free_motion_us(name: str) -> tuple[str, float, float, float]:
    """(backend, step, step + A and B) without contact, in a compiled loop; derivatives of forward dynamics by JAX."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import NoContact, System
    from trajopt.dynamics.rigid_body.configuration import integrate
    from trajopt.dynamics.rigid_body.derivatives import forward_dynamics_derivatives
    from trajopt.models import load_model

    system = System(load_model(name), dt=1e-3, contact=NoContact())
    rng = np.random.default_rng(0)
    q = integrate(system.model, system.model.q_default, jnp.asarray(0.3 * rng.normal(size=system.nv)))
    v, u = jnp.asarray(rng.normal(size=system.nv)), jnp.asarray(rng.normal(size=system.nu))
    step, linearize = step_and_linearize(system, v, u)
    model, slopes = system.model, jax.jit(forward_dynamics_derivatives)
    times = (*(microseconds_in_loop(f, q) for f in (step, linearize)), microseconds(lambda: slopes(model, q, v, v)))
    return system.resolved_backend, *times


def dynamics(models: list[str]) -> dict:
    empty, rows, found = empty_call_us(), [], {}
    for name in models:
        peer = pinocchio_times(name)
        peer = {key: value - empty for key, value in peer.items()}
        backend, step, both, by_jax = free_motion_us(name)
        found[name] = {"pinocchio_us": peer, "step_us": step, "step_jacobian_us": both, "empty_call_us": empty, "jax_us": by_jax}
        record(f"pinocchio/{name}", both / peer["FD derivatives"], "of Pinocchio's derivatives of forward dynamics")
        jaxsim = ", ".join(f"{x:,}" for x in JAXSIM[name]) if name in JAXSIM else ""
        rows.append((name, peer["RNEA"], peer["CRBA"], peer["FD"], peer["FD derivatives"], backend, step, both, by_jax,
                     f"{both / peer['FD derivatives']:.2f}x", jaxsim))  # fmt: skip
    head = ("no contact, us", "Pinocchio: RNEA", "CRBA", "ABA", "its derivatives", "ours by", "step", "step, A and B",
            "JAX: derivatives of FD", "of Pinocchio's derivatives",
            "JaxSim, printed: RNEA, CRBA, ABA, `jacfwd` of ABA")  # fmt: skip
    print(markdown(head, rows))
    print(f"\nPinocchio's times are those of calls from Python less an empty one, {empty:.2f} us.")
    return found


def solvers(interpreter: str) -> dict:
    from trajopt.solvers import iLQR

    found = crocoddyl_problems.crocoddyls(interpreter)
    rows = []
    for name, peer in found.items():
        rise = name == "anymal"
        problem = crocoddyl_problems.anymal_problem(peer["first_control"]) if rise else crocoddyl_problems.reach_problem()
        solution, each = crocoddyl_problems.measured(problem, iLQR())
        peer["trajopt"] = {"iterations": solution.iterations, "cost": float(solution.cost), "ms": each}
        record(f"crocoddyl/{problem.name}", each / peer["ms"], "of an iteration of Crocoddyl's FDDP")
        rows.append((problem.name, solution.iterations, f"{solution.cost:.6g}", each, peer["iterations"],
                     f"{peer['cost']:.6g}", peer["ms"], f"{each / peer['ms']:.2f}x"))  # fmt: skip
    head = ("problem", "iLQR: iterations", "cost", "ms an iteration", "FDDP: iterations", "cost", "ms an iteration",
            "of Crocoddyl's")  # fmt: skip
    print(markdown(head, rows))
    print("\nANYmal's contacts are free here, and constrained to stick in Crocoddyl: its costs are those of two problems.")
    return found


def rollouts() -> list[dict]:
    rows = bench_rollouts.table(["half-cheetah", "go1"], 1000, 100)
    print(bench_rollouts.report(rows))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="steps,dynamics,solvers,rollouts")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--mjx", default="half-cheetah,go1")
    parser.add_argument("--crocoddyl", default="/tmp/crocoddyl/bin/python", help="a Python that can import crocoddyl")
    parser.add_argument("--json")
    arguments = begin(parser)
    models, start, found = arguments.models.split(","), time.perf_counter(), {}
    print(banner("mujoco", "mujoco-mjx", "pin"))
    parts = {
        "steps": lambda: steps(models, arguments.mjx.split(",")),
        "dynamics": lambda: dynamics([name for name in models if name in ("go1", "h1", "atlas")]),
        "solvers": lambda: solvers(arguments.crocoddyl),
        "rollouts": rollouts,
    }
    for part in arguments.parts.split(","):
        print(f"\n## {part}\n", flush=True)
        if part == "solvers" and not os.access(arguments.crocoddyl, os.X_OK):
            print(f"skipped: {arguments.crocoddyl} is not there; make it by: {crocoddyl_problems.INSTALL}")
            continue
        found[part] = parts[part]()
        sys.stdout.flush()
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
