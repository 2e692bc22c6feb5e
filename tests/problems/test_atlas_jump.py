"""atlas-jump: the crouch is static, the guess is a jump, the cost is its formula; the solved jump, judged by MuJoCo (slow)."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.models.registry import load_model
from trajopt.problems.library import atlas_jump
from trajopt.problems.library.static_pose import certify
from trajopt.problems.trajectory import Trajectory

FILE = str(atlas_jump.__file__).replace("problems/library/atlas_jump.py", "models/bundled/atlas.xml")


@functools.cache
def problem():
    return problems.get("atlas-jump")


@functools.cache
def mujoco_model():
    return mujoco.MjModel.from_xml_path(FILE)


def sole_heights(q):
    """Lowest corner of each sole, by MuJoCo's kinematics."""
    model = mujoco_model()
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    heights = []
    for name in atlas_jump.SOLES:
        geom = model.geom(name).id
        up = data.geom_xmat[geom].reshape(3, 3)[2]
        heights.append(data.geom_xpos[geom][2] - np.abs(up) @ model.geom_size[geom])
    return np.array(heights)


@pytest.mark.slow
def test_the_crouch_can_be_stood_in_and_its_torques_keep_it():
    """Static equilibrium by the certificate of static poses, and in one step under the guess's first torques."""
    p = problem()
    pose = certify(load_model("atlas"), p.x0[:37], atlas_jump.SOLES)
    assert pose.support_distance < 1e-12 and pose.equilibrium < 1e-9
    assert pose.use < 0.5 and pose.com_offset > 0.1 and pose.limit_margin > 0.1 and pose.clearance > 0.2
    after, info = p.system.step(p.as_state(jnp.asarray(p.x0)), jnp.asarray(p.u0[0]))
    # Inverse dynamics is exact; what is left is the tolerance of the contact solve, 1e-10 N s, on a foot of 2.4 kg.
    assert float(jnp.abs(after.v).max()) < 1e-8 and float(info.residual) < 1e-9


def test_the_guess_is_a_jump_to_the_height():
    p = problem()
    q, v, dt = p.xs0[:, :37], p.xs0[:, 37:], p.dt
    heights = np.array([sole_heights(row).min() for row in q])
    push, flight = atlas_jump.schedule(q[0, 2], 1.2)
    standing = p.times <= 0.1 + push
    np.testing.assert_allclose(heights[standing], 0.0, atol=1e-9)
    assert (heights[p.times > 0.1 + push + 2 * dt] > 1e-3).all() and heights[-1] > 0.2
    # The last step is the first at or after the apex: less than one step of free fall from rest away.
    assert abs(q[-1, 2] - 1.2) < 0.5 * 9.81 * dt**2
    rise = q[standing][-1, 2] - q[0, 2]
    assert 0.9 * (atlas_jump.STRAIGHT - q[0, 2]) < rise < atlas_jump.STRAIGHT - q[0, 2]
    np.testing.assert_allclose(np.diff(v[~standing][1:, 2]) / dt, -9.81, rtol=1e-9)
    np.testing.assert_allclose(v[1:, 2], np.diff(q[:, 2]) / dt, atol=1e-12)
    assert (np.abs(p.u0) < p.control_upper).all()


@pytest.mark.slow
def test_it_jumps():
    p = problem()
    solution = solvers.solve(p, solvers.get(p.defaults.solver, **p.defaults.options))
    assert solution.success and solution.residuals["defect"] < 1e-9
    assert abs(solution.xs[-1, 2] - 1.2) < 5e-3 and solution.residuals["replay_error"] < 1e-3
    heights = np.array([sole_heights(q[:37]) for q in solution.xs])
    assert heights[-1].min() > 0.05 and heights.min() > -2e-3
    assert (np.abs(solution.us) <= p.control_upper).all()
    at = jax.tree.map(jnp.asarray, Trajectory(solution.xs, solution.us, np.zeros(0)))
    np.testing.assert_allclose(p.cost(at), solution.cost, rtol=1e-12)
    assert solution.cost < 0.5 * float(p.cost(jax.tree.map(jnp.asarray, p.initial_point)))
