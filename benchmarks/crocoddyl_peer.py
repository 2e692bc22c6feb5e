"""Crocoddyl's FDDP on the problems of `crocoddyl_problems.py`, in an environment of its own: a JSON object in, one out.

    echo '{"reach": {...}, "anymal": {...}}' | /tmp/crocoddyl/bin/python benchmarks/crocoddyl_peer.py

Crocoddyl 3.2.1 wants pin 4.0.0, which is not the version of the `bench` extra; nothing of this package is imported.
"""

import json
import statistics
import sys
import time

import crocoddyl
import numpy as np
import pinocchio as pin

REPEATS = 7


def state_cost(state, nu: int, weights, target):
    activation = crocoddyl.ActivationModelWeightedQuad(np.array(weights))
    return crocoddyl.CostModelResidual(state, activation, crocoddyl.ResidualModelState(state, np.array(target), nu))


def reach(spec: dict) -> tuple:
    """(problem, first controls) of the arm's reach: free motion, all joints driven."""
    model, w = pin.buildModelFromMJCF(spec["file"]), spec["weights"]
    nv = model.nv
    state = crocoddyl.StateMultibody(model)
    actuation = crocoddyl.ActuationModelFull(state)
    running, final = crocoddyl.CostModelSum(state, nv), crocoddyl.CostModelSum(state, nv)
    running.addCost("v", state_cost(state, nv, [0.0] * nv + [w["v"]] * nv, [0.0] * (2 * nv)), 1.0)
    running.addCost("u", crocoddyl.CostModelResidual(state, crocoddyl.ResidualModelControl(state, nv)), w["u"])
    final.addCost("x", state_cost(state, nv, [w["goal"]] * nv + [w["rest"]] * nv, spec["goal"] + [0.0] * nv), 1.0)

    def action(costs, dt):
        free = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, actuation, costs)
        return crocoddyl.IntegratedActionModelEuler(free, dt)

    start = np.array(spec["start"] + [0.0] * nv)
    problem = crocoddyl.ShootingProblem(start, [action(running, spec["dt"])] * spec["steps"], action(final, 0.0))
    return problem, [np.zeros(nv)] * spec["steps"]


def pinocchios(q: list[float]) -> list[float]:
    """A floating-base configuration with the quaternion's scalar last."""
    return [*q[:3], *q[4:7], q[3], *q[7:]]


def standing(spec: dict) -> tuple:
    """(problem, torques that hold the start) of the quadruped that raises its trunk; its feet are constrained to stay."""
    model, w = pin.buildModelFromMJCF(spec["file"]), spec["weights"]
    model.names[1] = "root_joint"  # by this name the actuation finds the floating base
    joints = [name for name in model.names if name in spec["joints"]]
    assert joints == spec["joints"], f"joints are ordered as {joints}, expected {spec['joints']}"
    feet = [
        model.addFrame(pin.Frame(f"{joint}_foot", model.getJointId(joint), 0, pin.SE3(np.eye(3), np.array(offset)), pin.OP_FRAME))
        for joint, offset in spec["feet"]
    ]
    state, nv = crocoddyl.StateMultibody(model), model.nv
    actuation = crocoddyl.ActuationModelFloatingBase(state)
    nu = actuation.nu
    start, goal = (np.array(pinocchios(spec[key]) + [0.0] * nv) for key in ("start", "goal"))
    data = model.createData()
    pin.framesForwardKinematics(model, data, start[: model.nq])
    contacts = crocoddyl.ContactModelMultiple(state, nu)
    for frame in feet:
        place = data.oMf[frame].translation
        contact = crocoddyl.ContactModel3D(state, frame, place, pin.LOCAL_WORLD_ALIGNED, nu, np.array([0.0, 50.0]))
        contacts.addContact(model.frames[frame].name, contact)
    running, final = crocoddyl.CostModelSum(state, nu), crocoddyl.CostModelSum(state, nu)
    running.addCost("x", state_cost(state, nu, [w["q"]] * nv + [w["v"]] * nv, goal), 1.0)
    running.addCost("u", crocoddyl.CostModelResidual(state, crocoddyl.ResidualModelControl(state, nu)), w["u"])
    final.addCost("x", state_cost(state, nu, [w["goal"]] * nv + [w["rest"]] * nv, goal), 1.0)

    def action(costs, dt):
        held = crocoddyl.DifferentialActionModelContactFwdDynamics(state, actuation, contacts, costs, 0.0, True)
        return crocoddyl.IntegratedActionModelEuler(held, dt)

    problem = crocoddyl.ShootingProblem(start, [action(running, spec["dt"])] * spec["steps"], action(final, 0.0))
    return problem, problem.quasiStatic([start] * spec["steps"])


def solve(problem, us) -> dict:
    """Iterations, cost and median milliseconds of an iteration of REPEATS solves; the first controls."""
    times = []
    for _ in range(REPEATS):
        solver = crocoddyl.SolverFDDP(problem)
        solver.th_stop = 1e-14
        xs = problem.rollout(list(us))
        start = time.perf_counter()
        solver.solve(xs, list(us), 200, True)
        times.append((time.perf_counter() - start) / solver.iter)
    return {
        "iterations": solver.iter,
        "cost": solver.cost,
        "ms": 1e3 * statistics.median(times),
        "first_control": [float(x) for x in us[0]],
    }


if __name__ == "__main__":
    kinds = {"reach": reach, "anymal": standing}
    print(json.dumps({name: solve(*kinds[name](spec)) for name, spec in json.load(sys.stdin).items()}))
