"""The problems on which bench_peers.py measures iLQR beside Crocoddyl's FDDP, and what runs Crocoddyl.

A reach of the bundled UR5 in 1 s and 100 steps of semi-implicit Euler, the same costs term by term; and an ANYmal that raises its
trunk on its four feet, 108 knots, contacts being free here and preset there. Crocoddyl 3.2.1 wants pin 4.0.0, which is not the
version of the `bench` extra, so it runs in an environment of its own (`INSTALL`), in `crocoddyl_peer.py`.
"""

import json
import pathlib
import subprocess

from measure import standing

REACH = {
    "steps": 100,
    "dt": 0.01,
    "start": [0.0, -1.2, 1.5, -1.0, -1.5, 0.0],
    "goal": [1.2, -0.8, 1.0, -1.5, -0.5, 1.0],
    "weights": {"v": 1e-2, "u": 1e-4, "goal": 1e3, "rest": 1e1},
}

ANYMAL = {
    "steps": 108,
    "dt": 0.01,
    "rise": 0.03,  # m
    "weights": {"q": 10.0, "v": 0.1, "u": 1e-4, "goal": 1e3, "rest": 1e1},
}
INSTALL = "python -m venv /tmp/crocoddyl && /tmp/crocoddyl/bin/pip install crocoddyl==3.2.1 pin==4.0.0"


def anymal_poses() -> tuple[list[float], list[float]]:
    """The home pose on the floor, and the same with the trunk higher."""
    from trajopt import load_model

    start = standing(load_model("anymal-c"))
    goal = start.copy()
    goal[2] += ANYMAL["rise"]
    return start.tolist(), goal.tolist()


def crocoddyls(interpreter: str) -> dict:
    """What `crocoddyl_peer.py` reports of both problems."""
    import mujoco

    from trajopt.models import bundled_file

    m = mujoco.MjModel.from_xml_path(str(bundled_file("anymal-c")))
    start, goal = anymal_poses()
    feet = [i for i in range(m.ngeom) if m.geom(i).name.endswith("_foot")]
    anymal = ANYMAL | {
        "file": str(bundled_file("anymal-c")), "start": start, "goal": goal,
        "joints": [m.joint(i).name for i in range(1, m.njnt)],
        "feet": [(m.joint(m.body_jntadr[m.geom_bodyid[i]]).name, m.geom_pos[i].tolist()) for i in feet],
    }  # fmt: skip
    given = json.dumps({"reach": REACH | {"file": str(bundled_file("ur5"))}, "anymal": anymal})
    peer = pathlib.Path(__file__).with_name("crocoddyl_peer.py")
    done = subprocess.run([interpreter, str(peer)], input=given, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{interpreter} {peer.name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def anymal_problem(first_control):
    """ANYmal raising its trunk, from torques that hold the start."""
    import math

    import jax.numpy as jnp
    import numpy as np

    from trajopt import load_model
    from trajopt.dynamics import State, System
    from trajopt.dynamics.rigid_body.configuration import difference
    from trajopt.problems import OptimalControlProblem

    w, dt = ANYMAL["weights"], ANYMAL["dt"]
    system = System(load_model("anymal-c"), dt=dt)
    start, goal = (jnp.array(q) for q in anymal_poses())

    def state_rows(x, q_weight, v_weight):
        return [math.sqrt(q_weight) * difference(system.model, goal, x.q), math.sqrt(v_weight) * x.v]

    def stage(x, u, t):
        return math.sqrt(dt) * jnp.concatenate([*state_rows(x, w["q"], w["v"]), math.sqrt(w["u"]) * u])

    def final(x):
        return jnp.concatenate(state_rows(x, w["goal"], w["rest"]))

    us = np.tile(np.asarray(first_control), (ANYMAL["steps"], 1))
    free = {"control_lower": -np.inf, "control_upper": np.inf, "u0": us}
    return OptimalControlProblem(
        "anymal-rise", system, ANYMAL["steps"], State(start, jnp.zeros(system.nv)), stage_residual=stage,
        terminal_residual=final, **free,
    )  # fmt: skip


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


def measured(problem, solver):
    """(solution, milliseconds of an iteration) of the second of two solves, so that caches are warm; compilation apart."""
    import numpy as np

    from trajopt.solvers import solve

    solve(problem, solver)
    solution = solve(problem, solver)
    # The median of the differences leaves out what is paid once.
    each = 1e3 * float(np.median(np.diff(solution.trace["time"]))) if solution.iterations else float("nan")
    return solution, each
