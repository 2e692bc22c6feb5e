"""Go1 gets onto a box: starts that stand, feet by MuJoCo's kinematics; tests/solvers/test_continuation.py has its answers."""

import mujoco
import numpy as np

from trajopt import problems
from trajopt.models import bundled_file

FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
EDGE, SOLE = 0.35, 0.023  # m


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
