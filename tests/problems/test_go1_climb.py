"""Go1 gets onto a box: starts that stand, and answers judged by a rollout of their controls, feet by MuJoCo's kinematics."""

import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.models import bundled_file

FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
EDGE, HEIGHT, SOLE = 0.35, 0.15, 0.023  # m


def feet_at(q):
    """Places of the feet (4, 3)."""
    model = mujoco.MjModel.from_xml_path(str(bundled_file("go1-climb")))
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_forward(model, data)
    return np.array([data.geom(foot).xpos for foot in FEET])


def test_it_starts_on_its_feet_before_the_box():
    for seed in range(4):
        problem = problems.get("go1-climb", seed=seed)
        feet = feet_at(problem.x0[:19])
        np.testing.assert_allclose(feet[:, 2], SOLE, atol=1e-9)
        assert np.all(feet[:, 0] < EDGE - 0.05)
        assert np.abs(problem.u0).max() > 0.1  # it is held where it stands


@pytest.mark.slow
def test_nine_of_ten_starts_end_on_the_box():
    met = 0
    for seed in range(10):
        problem = problems.get("go1-climb", seed=seed)
        solution = solvers.solve(problem)
        x = problem.as_state(problem.x0)
        for u in solution.us:
            x, info = problem.system.step(x, u)
        q, v = np.asarray(x.q), np.asarray(x.v)
        feet = feet_at(q)
        on_top = np.all(np.abs(feet[:, 2] - HEIGHT - SOLE) <= 0.02) and np.all(feet[:, 0] > EDGE)
        upright = 2 * np.arcsin(np.linalg.norm(q[4:7])) <= 0.2
        there = np.abs(q[:3] - [EDGE + 0.3, 0.0, HEIGHT + 0.2878]).max() <= 0.05
        reached = bool(on_top and upright and there and np.abs(v[:3]).max() <= 0.2)
        assert reached or not solution.success
        met += solution.success
    assert met >= 9
