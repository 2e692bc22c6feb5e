"""A hand that turns a ball on its palm: the strokes of its fingers, and a horizon that keeps to them."""

import mujoco
import numpy as np
import pytest

from trajopt import load_model
from trajopt.control.tasks import task
from trajopt.models import bundled_file
from trajopt.problems.library.in_hand_rotation import AWAY, FINGERS, GRASP, random_start, strokes


@pytest.mark.parametrize(("angles", "least", "largest"), [(GRASP, -1.6e-3, -0.4e-3), (AWAY, 8e-3, 13e-3)])
def test_fingertips_touch_the_ball_or_stay_away(angles, least, largest):
    model = mujoco.MjModel.from_xml_path(str(bundled_file("allegro-ball")))
    data = mujoco.MjData(model)
    for posture in angles:
        data.qpos[:] = model.key_qpos[0]
        data.qpos[:16] = posture
        mujoco.mj_kinematics(model, data)
        tips = [model.geom(f"{finger}_tip").id for finger in FINGERS]
        gaps = [mujoco.mj_geomDistance(model, data, tip, model.geom("object").id, 0.1, None) for tip in tips]
        assert least < min(gaps) and max(gaps) < largest


def test_strokes_start_at_home_and_end_with_the_ball_held():
    angles, done = strokes(0.01)
    np.testing.assert_allclose(angles[0], load_model("allegro-ball").keyframes["home"][:16])
    np.testing.assert_allclose(angles[-1], GRASP[1])
    assert done[0] == 0.0 and done[-1] == pytest.approx(1.0) and (np.diff(done) >= 0).all()
    still = np.abs(angles - AWAY[1]).max(1) < 1e-9
    assert set(done[still].round(6)) == {round(1 / 3, 6), round(2 / 3, 6)}  # it lets go after the first and the second


@pytest.mark.slow
def test_the_first_stroke_turns_the_ball_in_mujoco():
    horizon = task("in-hand-rotation").horizon(max_iterations=1, time_budget=1e3)
    home = np.asarray(horizon.problem.x0)
    end = horizon.run(1.8, x0=np.concatenate([random_start(21), np.zeros(22)])).xs[-1]
    yaw = 2 * np.arctan2(end[22], end[19])
    assert np.radians(12.0) < yaw < np.radians(30.0)
    assert np.linalg.norm(end[16:19] - home[16:19]) < 0.02
