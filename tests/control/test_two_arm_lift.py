"""Two arms that lift a ball in a receding horizon: it is kept from a start from which it is lost without hands at plans' ends."""

import numpy as np
import pytest

from trajopt.control.tasks import task
from trajopt.problems.library.two_arm_lift import TOLERANCES, random_start


@pytest.mark.slow
def test_the_ball_is_lifted_in_mujoco_by_one_iteration_a_plan():
    horizon = task("two-arm-lift").horizon(max_iterations=1, time_budget=1e3)
    wanted = np.asarray(horizon.problem.x0)[12:15] + [0.0, 0.0, 0.3]
    end = horizon.run(2.0, x0=np.concatenate([random_start(51), np.zeros(18)])).xs[-1]
    assert np.linalg.norm(end[12:15] - wanted) < TOLERANCES[0]
    assert np.linalg.norm(end[31:34]) < TOLERANCES[1]
