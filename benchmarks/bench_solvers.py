"""iLQR and DDP: iterations, final cost and time per iteration on the test problems, and beside Crocoddyl on a UR5.

    python benchmarks/bench_solvers.py [--crocoddyl /tmp/crocoddyl/bin/python] [--problems cart_pole,pendulum]

One pinned core, float64. Crocoddyl 3.2.1 wants pin 4.0.0, which is not the version of the `bench` extra, so it runs in an
environment of its own:

    python -m venv /tmp/crocoddyl && /tmp/crocoddyl/bin/pip install crocoddyl==3.2.1 pin==4.0.0

The peer problem is a reach of the bundled UR5 in 1 s and 100 steps of semi-implicit Euler, the same costs term by term.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import pathlib
import subprocess
import sys

from measure import banner, pin_to_one_core

REACH = {
    "steps": 100,
    "dt": 0.01,
    "start": [0.0, -1.2, 1.5, -1.0, -1.5, 0.0],
    "goal": [1.2, -0.8, 1.0, -1.5, -0.5, 1.0],
    "weights": {"v": 1e-2, "u": 1e-4, "goal": 1e3, "rest": 1e1},
}

CROCODDYL = """
import json, statistics, sys, time
import crocoddyl, numpy as np, pinocchio as pin
model, reach = pin.buildModelFromMJCF(sys.argv[1]), json.loads(sys.argv[2])
w, nv = reach["weights"], model.nv
state = crocoddyl.StateMultibody(model)
actuation = crocoddyl.ActuationModelFull(state)
def cost(weights, target):
    activation = crocoddyl.ActivationModelWeightedQuad(np.array(weights))
    return crocoddyl.CostModelResidual(state, activation, crocoddyl.ResidualModelState(state, np.array(target), nv))
running, final = crocoddyl.CostModelSum(state, nv), crocoddyl.CostModelSum(state, nv)
rest = [0.0] * (2 * nv)
running.addCost("v", cost([0.0] * nv + [w["v"]] * nv, rest), 1.0)
running.addCost("u", crocoddyl.CostModelResidual(state, crocoddyl.ResidualModelControl(state, nv)), w["u"])
final.addCost("x", cost([w["goal"]] * nv + [w["rest"]] * nv, reach["goal"] + [0.0] * nv), 1.0)
def action(costs, dt):
    model = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, actuation, costs)
    return crocoddyl.IntegratedActionModelEuler(model, dt)
x0 = np.array(reach["start"] + [0.0] * nv)
problem = crocoddyl.ShootingProblem(x0, [action(running, reach["dt"])] * reach["steps"], action(final, 0.0))
us = [np.zeros(nv)] * reach["steps"]
times = []
for _ in range(7):
    solver = crocoddyl.SolverFDDP(problem)
    solver.th_stop = 1e-14
    xs = problem.rollout(us)
    start = time.perf_counter()
    solver.solve(xs, us, 200, True)
    times.append((time.perf_counter() - start) / solver.iter)
print(json.dumps({"iterations": solver.iter, "cost": solver.cost, "ms": 1e3 * statistics.median(times)}))
"""


def reach_problem():
    """The UR5 reach as an `OptimalControlProblem`."""
    import math

    import jax.numpy as jnp
    import numpy as np

    from trajopt import load_model
    from trajopt.dynamics import NoContact, State, System
    from trajopt.problems import OptimalControlProblem

    w, dt = REACH["weights"], REACH["dt"]
    system = System(load_model("ur5"), dt=dt, contact=NoContact())
    goal = np.array(REACH["goal"])

    def stage(x, u, t):
        return jnp.concatenate([math.sqrt(w["v"] * dt) * x.v, math.sqrt(w["u"] * dt) * u])

    def final(x):
        return jnp.concatenate([math.sqrt(w["goal"]) * (x.q - goal), math.sqrt(w["rest"]) * x.v])

    start = State(jnp.array(REACH["start"]), jnp.zeros(6))
    free = {"control_lower": -np.inf, "control_upper": np.inf}
    return OptimalControlProblem(
        "ur5-reach", system, REACH["steps"], start, stage_residual=stage, terminal_residual=final, **free
    )


def report(problem, solver, reference: float | None) -> None:
    """One row: the second of two solves, so that caches are warm; compilation apart."""
    import numpy as np

    from trajopt.result import status_name
    from trajopt.solvers import solve

    solve(problem, solver)
    solution = solve(problem, solver)
    # The median of the differences leaves out what is paid once.
    each = 1e3 * float(np.median(np.diff(solution.trace["time"]))) if solution.iterations else float("nan")
    excess = "" if reference is None else f"{solution.cost / reference - 1:+.1e}"
    label = f"{solver.name} ({solver.shooting})"
    print(
        f"{problem.name:18s} {label:18s} {status_name(solution.status):10s} {solution.iterations:5d} {solution.cost:14.8g} "
        f"{excess:>9s} {each:8.2f} {solution.compile_time_s:8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="double_integrator,pendulum,van_der_pol,unicycle,cart_pole")
    parser.add_argument("--crocoddyl", help="a Python interpreter that can import crocoddyl")
    options = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "solvers"))
    import control_cases

    from trajopt.solvers import DDP, iLQR

    print(banner("trajopt"))
    head = ("problem", "solver", "status", "iter", "cost", "to IPOPT", "ms/iter", "compile")
    print("{:18s} {:18s} {:10s} {:>5s} {:>14s} {:>9s} {:>8s} {:>8s}".format(*head))
    for name in filter(None, options.problems.split(",")):
        problem = getattr(control_cases, name)()
        for solver in (iLQR(), iLQR(shooting="multiple"), DDP()):
            report(problem, solver, control_cases.OPTIMA.get(problem.name))
    report(reach_problem(), iLQR(), None)
    if options.crocoddyl:
        path = importlib.resources.files("trajopt.models") / "bundled" / "ur5.xml"
        command = [options.crocoddyl, "-c", CROCODDYL, str(path), json.dumps(REACH)]
        peer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        row = f"{'ur5-reach':18s} {'Crocoddyl FDDP':18s} {'':10s} {peer['iterations']:5d} {peer['cost']:14.8g}"
        print(f"{row} {'':>9s} {peer['ms']:8.2f}")


if __name__ == "__main__":
    main()
