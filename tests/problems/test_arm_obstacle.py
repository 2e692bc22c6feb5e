"""The arm that goes around a ball: draws that can be solved, answers judged by MuJoCo's distances in between the states too."""

import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.models import bundled_file

RATE, CLEAR = 2.0, 0.02  # rad/s, m


def ball(problem):
    """The middle of the ball."""
    names = [shape.name for shape in problem.system.model.topology.shapes]
    return np.asarray(problem.system.model.shape_position)[names.index("obstacle")]


class Judge:
    """MuJoCo's scene with the ball of a problem."""

    def __init__(self, problem):
        self.model = mujoco.MjModel.from_xml_path(str(bundled_file("arm-obstacle")))
        self.model.geom("obstacle").pos = ball(problem)
        self.data = mujoco.MjData(self.model)

    def at(self, q):
        """(least distance of the arm from the ball, place of the tool)."""
        self.data.qpos[:] = q
        mujoco.mj_forward(self.model, self.data)
        obstacle = self.model.geom("obstacle").id
        arm = [k for k in range(self.model.ngeom) if k != obstacle]
        distances = [mujoco.mj_geomDistance(self.model, self.data, k, obstacle, 10.0, None) for k in arm]
        return min(distances), self.data.site("tool").xpos.copy()


def test_starts_are_clear_of_the_ball_and_differ():
    made = [problems.get("arm-obstacle", seed=seed) for seed in range(6)]
    assert all(Judge(problem).at(problem.x0[:6])[0] > 0.06 for problem in made)
    assert len({tuple(np.round(ball(problem), 6)) for problem in made}) == 6
    again = problems.get("arm-obstacle", seed=3)
    np.testing.assert_array_equal(again.x0, made[3].x0)
    np.testing.assert_array_equal(ball(again), ball(made[3]))


def test_the_straight_way_meets_the_ball():
    """The tool on the line to its goal is within the ball somewhere."""
    for seed in range(6):
        problem = problems.get("arm-obstacle", seed=seed)
        start = Judge(problem).at(problem.x0[:6])[1]
        goal = np.asarray(problem.goals["tool position"].residual.terms[0].reference)
        line = start + np.linspace(0.0, 1.0, 101)[:, None] * (goal - start)
        assert np.linalg.norm(line - ball(problem), axis=1).min() < 0.2


@pytest.mark.slow
def test_ten_draws_reach_the_place_at_the_distance():
    for seed in range(10):
        problem = problems.get("arm-obstacle", seed=seed)
        solution = solvers.solve(problem)
        judge, qs, vs = Judge(problem), solution.xs[:, :6], solution.xs[:, 6:]
        between = np.concatenate([(1 - share) * qs[:-1] + share * qs[1:] for share in (0.0, 0.25, 0.5, 0.75)])
        assert solution.success
        assert min(judge.at(q)[0] for q in np.concatenate([between, qs[-1:]])) >= CLEAR
        goal = np.asarray(problem.goals["tool position"].residual.terms[0].reference)
        assert np.abs(judge.at(qs[-1])[1] - goal).max() <= 5e-3
        assert np.abs(vs).max() <= RATE + 1e-6
        assert np.abs(vs[-1]).max() <= 0.1
        assert np.all(np.abs(solution.us) <= np.asarray(problem.system.model.control_upper) + 1e-9)
